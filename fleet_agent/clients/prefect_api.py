"""Prefect from outside: ring, start runs, read them back, end them, and see whether it is ready.

Prefect's own times are real; here, and only here, they are converted from and to business time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID, uuid4

from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.domain.flow_run import FlowRun, FlowRunState
from fleet_agent.domain.timeline import Timeline
from fleet_agent.domain.triggers import Doorbell, Trigger, rung_at
from fleet_agent.errors import FixSetup, TryLater

FLOW = "agent-cycle"
"""Its deployments are the fleets, each under its name."""
HOUSEKEEPING, ALL_FLEETS = "housekeeping", "all_fleets"
"""The flow of what is done for all fleets together, and its one deployment: no fleet can be called so."""

MOST_AT_ONCE: Final = 200
"""Flow runs in one answer: Prefect's own limit."""

LONGEST_NAME: Final = 80
"""Characters of a flow run's name: a heading, and a line in a list."""


class PrefectOrchestrator:
    """`ports.Orchestrator` on one server; `real_now` is the machine's clock, by which Prefect judges events."""

    def __init__(
        self, rest: PrefectRest, timeline: Timeline, *, real_now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._rest = rest
        self._timeline = timeline
        self._real_now = real_now

    async def ring(self, doorbell: Doorbell, *, fleet: str) -> None:
        """As `ports.Orchestrator.ring`. Each has an id of its own: Prefect passes over one that it has seen."""
        event = {
            "id": str(uuid4()),
            "occurred": self._real_now().isoformat(),
            "event": doorbell.value,
            "resource": {"prefect.resource.id": rung_at(fleet)},
            "payload": {"fleet": fleet},
        }
        await self._rest.ask("POST", "/events", [event])

    async def start_run(
        self,
        *,
        fleet: str,
        trigger: Trigger,
        key: str,
        at: datetime | None = None,
        wake_id: int | None = None,
        name: str | None = None,
    ) -> FlowRun:
        """As `ports.Orchestrator.start_run`. FixSetup also where the fleet has no deployment."""
        deployment = await self._deployment(fleet)
        due = {} if at is None else {"state_details": {"scheduled_time": self._timeline.real(at).isoformat()}}
        body = {
            "parameters": {"fleet": fleet, "trigger": trigger.value}
            | ({} if wake_id is None else {"wake_id": wake_id}),
            "idempotency_key": key,
            "state": {"type": "SCHEDULED"} | due,
        } | ({} if name is None else {"name": name[:LONGEST_NAME]})
        made = await self._rest.ask("POST", f"/deployments/{deployment}/create_flow_run", body)
        if made.status_code == HTTPStatus.NOT_FOUND:  # deleted since
            raise _no_deployment(fleet)
        return self._flow_run(made.json())

    async def flow_run(self, flow_run_id: str) -> FlowRun:
        """One that is known to be there."""
        return self._flow_run((await self._rest.ask("GET", f"/flow_runs/{flow_run_id}")).json())

    async def flow_runs(self, ids: Collection[str]) -> dict[str, FlowRun]:
        wanted = sorted(filter(_is_prefects, ids))
        found: dict[str, FlowRun] = {}
        for start in range(0, len(wanted), MOST_AT_ONCE):
            some = wanted[start : start + MOST_AT_ONCE]
            answer = await self._rest.ask(
                "POST", "/flow_runs/filter", {"flow_runs": {"id": {"any_": some}}, "limit": MOST_AT_ONCE}
            )
            found |= {run.id: run for run in map(self._flow_run, answer.json())}
        return found

    async def on_its_way(self, fleet: str, *, within: timedelta) -> bool:
        not_begun = {
            "state": {"type": {"any_": [FlowRunState.SCHEDULED.value, FlowRunState.PENDING.value]}},
            "expected_start_time": {"before_": (self._real_now() + within).isoformat()},
        }
        wanted = {"flows": {"name": {"any_": [FLOW]}}, "deployments": {"name": {"any_": [fleet]}}}
        counted = await self._rest.ask("POST", "/flow_runs/count", {**wanted, "flow_runs": not_begun})
        return counted.json() > 0

    async def withdraw(self, flow_run_id: str, *, why: str) -> None:
        found = await self.flow_runs([flow_run_id])
        if any(run.state is FlowRunState.SCHEDULED for run in found.values()):
            await self._set_state(flow_run_id, FlowRunState.CANCELLED, why, force=False)

    async def crash(self, flow_run_id: str, *, why: str) -> None:
        found = await self.flow_runs([flow_run_id])
        if any(not run.is_over for run in found.values()):
            await self._set_state(flow_run_id, FlowRunState.CRASHED, why, force=True)

    async def _set_state(self, flow_run_id: str, state: FlowRunState, why: str, *, force: bool) -> None:
        body = {"state": {"type": state.value, "message": why}, "force": force}
        await self._rest.ask("POST", f"/flow_runs/{flow_run_id}/set_state", body)

    async def _deployment(self, fleet: str) -> str:
        answer = await self._rest.ask("GET", f"/deployments/name/{FLOW}/{fleet}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise _no_deployment(fleet)
        return answer.json()["id"]

    def _flow_run(self, shown: Mapping[str, Any]) -> FlowRun:
        state = shown["state"]
        return FlowRun(
            id=shown["id"],
            name=shown["name"],
            state=FlowRunState(state["type"]),
            state_name=state["name"],
            message=state["message"],
            since=self._timeline.business(datetime.fromisoformat(state["timestamp"])),
            has_deployment=shown["deployment_id"] is not None,
        )


def _no_deployment(fleet: str) -> FixSetup:
    return FixSetup(f"Prefect has no deployment {FLOW}/{fleet}", "make it with `fleet-agent deploy`")


def _is_prefects(flow_run_id: str) -> bool:
    """A run without Prefect has an id of another form, which Prefect would refuse to look for."""
    try:
        UUID(flow_run_id)
    except ValueError:
        return False
    return True


async def has_worker(prefect: PrefectRest, pool: str, *, since: datetime) -> bool:
    """Whether a worker of this pool is known to have reported after `since` (real time)."""
    try:
        workers = await prefect.ask("POST", f"/work_pools/{pool}/workers/filter", {})
    except TryLater:
        return False
    if workers.status_code == HTTPStatus.NOT_FOUND:
        return False
    return any(datetime.fromisoformat(worker["last_heartbeat_time"]) >= since for worker in workers.json())
