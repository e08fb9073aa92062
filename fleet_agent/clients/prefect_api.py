"""Prefect from outside, over its REST API: enough to start runs, to read them back and to see whether it is ready.

Plain httpx, because importing Prefect takes a second and most of what asks here is a short command. Addresses and
fields: https://docs.prefect.io/v3/api-ref/rest-api of Prefect 3.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx
from pydantic import BaseModel, ConfigDict, Field
from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_attempt, wait_exponential

from fleet_agent.clients.address import usable_address
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import FixSetup, KeyRefused, TryLater

FLOW = "agent-cycle"

BUSY_TRIES = 5
"""A server whose database is busy answers 503 at once; five tries are about three seconds."""


class FlowRun(BaseModel):
    """One flow run as Prefect shows it. Times are real time, not business time."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    state_type: str = Field(description="SCHEDULED, PENDING, RUNNING, COMPLETED, FAILED, CRASHED, CANCELLED …")
    state_name: str
    parameters: dict[str, Any]
    expected_start_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None

    @property
    def is_over(self) -> bool:
        return self.state_type in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def open_client(api_url: str, auth_string: str | None) -> httpx.AsyncClient:
    """For the server whose API is at `api_url`; `auth_string` is `user:password`, None where it asks for none.

    Raises FixSetup where no server can be at `api_url`.
    """
    return httpx.AsyncClient(
        base_url=usable_address(api_url, "FLEET_PREFECT_PORT"),
        auth=None if auth_string is None else httpx.BasicAuth(*auth_string.split(":", 1)),
        timeout=httpx.Timeout(10, connect=3),
        trust_env=False,  # the server is on this machine or in this network; a proxy has no business between
    )


class PrefectOrchestrator:
    """`ports.Orchestrator`, and what the process tree and the demo want to know of the server."""

    def __init__(self, client: httpx.AsyncClient, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep

    async def start_run(self, *, fleet: str, trigger: Trigger, idempotency_key: str | None = None) -> str:
        """Create a flow run of `fleet`'s deployment now and return its id; the same key returns the same run.

        Raises TryLater where the server does not answer, KeyRefused, FixSetup where there is no such deployment.
        """
        deployment = await self._deployment(fleet)
        run = await self._ask(
            "POST",
            f"/deployments/{deployment}/create_flow_run",
            {
                "parameters": {"fleet": fleet, "trigger": trigger.value},
                # A key in any case: it makes it safe to ask again after an answer that was lost.
                "idempotency_key": idempotency_key or f"{trigger.value}:{uuid4()}",
                "state": {"type": "SCHEDULED"},
            },
        )
        return run.json()["id"]

    async def flow_run(self, flow_run_id: str) -> FlowRun:
        return FlowRun.model_validate((await self._ask("GET", f"/flow_runs/{flow_run_id}")).json())

    async def is_ready(self) -> bool:
        """Whether the server answers and reaches its database."""
        try:
            return (await self._client.get("/ready")).status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False

    async def has_worker(self, pool: str, *, since: datetime) -> bool:
        """Whether a worker of this pool is known to have reported after `since` (real time)."""
        try:
            workers = await self._ask("POST", f"/work_pools/{pool}/workers/filter", {})
        except TryLater:
            return False
        if workers.status_code == HTTPStatus.NOT_FOUND:
            return False
        return any(datetime.fromisoformat(worker["last_heartbeat_time"]) >= since for worker in workers.json())

    async def _deployment(self, fleet: str) -> str:
        answer = await self._ask("GET", f"/deployments/name/{FLOW}/{fleet}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise FixSetup(f"Prefect has no deployment {FLOW}/{fleet}", "make it with `fleet-agent deploy`")
        return answer.json()["id"]

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """The answer; what a repetition cannot mend is raised, but for 404, whose meaning the caller knows."""
        again = AsyncRetrying(
            retry=retry_if_result(_is_busy),
            stop=stop_after_attempt(BUSY_TRIES),
            wait=wait_exponential(multiplier=0.2),
            sleep=self._sleep,
        )
        try:
            answer: httpx.Response = await again(self._client.request, method, path, json=body)
        except RetryError as error:
            raise TryLater(f"Prefect at {self._client.base_url} is busy", "try again in a minute") from error
        except httpx.TransportError as error:
            raise TryLater(
                f"Prefect at {self._client.base_url} does not answer ({type(error).__name__})",
                "is `fleet-agent up` or `demo` running?",
            ) from error
        if answer.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise KeyRefused(
                f"Prefect at {self._client.base_url} does not accept the auth string",
                "use the one that `fleet-agent up` printed",
            )
        if answer.is_error and answer.status_code != HTTPStatus.NOT_FOUND:
            raise FixSetup(f"Prefect refuses {method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer


def _is_busy(answer: httpx.Response) -> bool:
    return answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
