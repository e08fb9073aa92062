"""Prefect's REST API over plain httpx: one question, typed errors.

Not Prefect's own client, because importing Prefect takes a second and most of what asks here is a short command.
Addresses and fields: https://docs.prefect.io/v3/api-ref/rest-api of Prefect 3.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_attempt, wait_exponential

from fleet_agent.clients.address import usable_address
from fleet_agent.errors import FixSetup, KeyRefused, TryLater

BUSY_TRIES = 5
"""A server whose database is busy answers 503 at once; five tries are about three seconds."""


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


class PrefectRest:
    """One server. `sleep` is waited with between tries."""

    def __init__(self, client: httpx.AsyncClient, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The answer; what a repetition cannot mend is raised, but for 404, whose meaning the caller knows.

        Raises TryLater where the server is busy or does not answer, KeyRefused, FixSetup for what it refuses.
        """
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

    async def is_ready(self) -> bool:
        """Whether the server answers and reaches its database."""
        try:
            return (await self._client.get("/ready")).status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False


def _is_busy(answer: httpx.Response) -> bool:
    return answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
