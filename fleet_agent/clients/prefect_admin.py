"""What the doctor and the bootstrap of automations ask of Prefect's REST API, and the few things they change there."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from fleet_agent.clients.prefect_api import ALL_FLEETS, FLOW, HOUSEKEEPING
from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.domain.health import Deployment, Limit, LiveFlowRun, Schedule, ServerSettings, WorkPool

Json = dict[str, Any]

PAGE = 200
"""The most rows that Prefect gives at a time."""

HOLDS_A_SLOT = ("PENDING", "RUNNING", "CANCELLING")


class PrefectAdmin:
    """One server. Everything raises TryLater, KeyRefused and FixSetup as `PrefectRest.ask` does."""

    def __init__(self, rest: PrefectRest) -> None:
        self._rest = rest

    # --- looking ------------------------------------------------------------------------------------------------------

    async def server_settings(self) -> ServerSettings:
        """Those of which a wrong one would lose runs or leave slots taken."""
        server = (await self._rest.ask("GET", "/admin/settings")).json()["server"]
        return ServerSettings(
            lease_storage=server["concurrency"]["lease_storage"],
            slot_wait=timedelta(seconds=server["deployments"]["concurrency_slot_wait_seconds"]),
            cancelling_timeout=timedelta(
                seconds=server["services"]["cancellation_cleanup"]["cancelling_timeout_seconds"]
            ),
        )

    async def deployment(self, name: str) -> Deployment | None:
        """A fleet's, or that for all fleets; None if there is none, as before `fleet-agent deploy`."""
        flow = HOUSEKEEPING if name == ALL_FLEETS else FLOW
        answer = await self._rest.ask("GET", f"/deployments/name/{flow}/{name}")
        return None if answer.status_code == HTTPStatus.NOT_FOUND else _deployment(answer.json())

    async def work_pool(self, name: str) -> WorkPool | None:
        """With the last sign of life (real time) of each worker that ever took from it; None if there is none."""
        pool = await self._rest.ask("GET", f"/work_pools/{name}")
        if pool.status_code == HTTPStatus.NOT_FOUND:
            return None
        workers = (await self._rest.ask("POST", f"/work_pools/{name}/workers/filter", {})).json()
        return WorkPool(
            name=name,
            paused=pool.json()["is_paused"],
            heard_from=tuple(_time(each["last_heartbeat_time"]) for each in workers if each["last_heartbeat_time"]),
        )

    async def live_flow_runs(self, deployment_id: str) -> tuple[LiveFlowRun, ...]:
        """Those that hold a slot, or should."""
        rows = await self._flow_runs(
            {"deployment_id": {"any_": [deployment_id]}, "state": {"type": {"any_": HOLDS_A_SLOT}}}
        )
        return tuple(
            LiveFlowRun(
                id=row["id"],
                name=row["name"],
                state_type=row["state_type"],
                since=_time(row["state"]["timestamp"]),
            )
            for row in rows
        )

    async def ended_or_gone(self, flow_run_ids: Collection[str]) -> set[str]:
        """Which of these have ended or were deleted."""
        if not flow_run_ids:
            return set()
        rows = await self._flow_runs({"id": {"any_": sorted(flow_run_ids)}})
        to_come = {row["id"] for row in rows if row["state_type"] in {"SCHEDULED", *HOLDS_A_SLOT}}
        return set(flow_run_ids) - to_come

    async def automations(self) -> list[Json]:
        """All of them, the oldest of a name first."""
        found: list[Json] = []
        while True:
            page = {"limit": PAGE, "offset": len(found)}
            rows: list[Json] = (await self._rest.ask("POST", "/automations/filter", page)).json()
            found += rows
            if len(rows) < PAGE:
                return sorted(found, key=lambda each: each["created"])

    # --- changing -----------------------------------------------------------------------------------------------------

    async def create_automation(self, automation: Json) -> None:
        """Prefect makes a second one of a known name."""
        await self._rest.ask("POST", "/automations/", automation)

    async def replace_automation(self, automation_id: str, automation: Json) -> None:
        """Its windows begin anew."""
        await self._rest.ask("PUT", f"/automations/{automation_id}", automation)

    async def delete_automation(self, automation_id: str) -> None:
        """One that is gone already is left at that."""
        await self._rest.ask("DELETE", f"/automations/{automation_id}")

    async def activate_schedule(self, deployment_id: str, schedule: Schedule) -> None:
        """End a person's pause of it: Prefect makes its flow runs again."""
        await self._rest.ask("PATCH", f"/deployments/{deployment_id}/schedules/{schedule.id}", {"active": True})

    async def activate_limit(self, limit: Limit) -> None:
        """Have it hold runs back again, after somebody switched it off."""
        await self._rest.ask("PATCH", f"/v2/concurrency_limits/{limit.id}", {"active": True})

    async def free_slots(self, limit: Limit) -> None:
        """Count none as taken, whoever was to have one."""
        await self._rest.ask("PATCH", f"/v2/concurrency_limits/{limit.id}", {"active_slots": 0})

    async def crash(self, flow_run_id: str, *, message: str) -> bool:
        """Whether Prefect counts it as crashed now; a run that ended meanwhile stays as it ended."""
        answer = await self._rest.ask(
            "POST", f"/flow_runs/{flow_run_id}/set_state", {"state": {"type": "CRASHED", "message": message}}
        )
        return answer.status_code != HTTPStatus.NOT_FOUND and answer.json()["status"] == "ACCEPT"

    async def _flow_runs(self, flow_runs: Json) -> list[Json]:
        return (await self._rest.ask("POST", "/flow_runs/filter", {"flow_runs": flow_runs, "limit": PAGE})).json()


def _deployment(row: Json) -> Deployment:
    limit: Json | None = row["global_concurrency_limit"]
    options: Json = row["concurrency_options"] or {}
    grace = options.get("grace_period_seconds")
    return Deployment(
        id=row["id"],
        name=row["name"],
        entrypoint=row["entrypoint"],
        work_pool=row["work_pool_name"],
        paused=row["paused"],
        limit=None
        if limit is None
        else Limit(id=limit["id"], limit=limit["limit"], active_slots=limit["active_slots"], active=limit["active"]),
        collision_strategy=options.get("collision_strategy"),
        grace=None if grace is None else timedelta(seconds=grace),
        schedules=tuple(Schedule(id=each["id"], slug=each["slug"], active=each["active"]) for each in row["schedules"]),
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
