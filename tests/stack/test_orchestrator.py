"""What the bell and the watch rely on, of a real Prefect server: keys, times, whose cancel it was, and redeployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fleet_agent.clients.prefect_api import PrefectOrchestrator
from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.domain.flow_run import FlowRunState
from fleet_agent.domain.timeline import Timeline
from fleet_agent.domain.triggers import Trigger
from tests.postgres import TemporaryPostgres, temporary_folder
from tests.stack.prefect_server import PrefectServer, prefect_server

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

NOON = datetime(2026, 3, 17, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Deployed:
    """A server with our deployment and without a worker."""

    server: PrefectServer
    folder: Path
    started_at: datetime

    @asynccontextmanager
    async def orchestrator(self) -> AsyncGenerator[tuple[PrefectOrchestrator, PrefectRest]]:
        """Business time began at noon when the server started, and runs at 15."""
        async with self.server.rest() as rest:
            yield PrefectOrchestrator(rest, Timeline(NOON, self.started_at, speed=15)), rest

    def deploy(self) -> None:
        self.server.run("-m", "fleet_agent.deploy", folder=self.folder)


@pytest.fixture(scope="module")
def deployed(postgres: TemporaryPostgres) -> Generator[Deployed]:
    with temporary_folder() as folder, prefect_server(folder, postgres.server) as server:
        found = Deployed(server, folder, datetime.now(UTC))
        found.deploy()
        yield found


def wake(key: str) -> dict[str, Any]:
    return {
        "fleet": "main",
        "trigger": Trigger.WAKE,
        "key": key,
        "at": NOON + timedelta(days=2),
        "wake_id": 3,
        "name": "wake 3: is the queue empty?",
    }


def a_key() -> str:
    return f"wake:main:{uuid4()}:0"


async def raw(rest: PrefectRest, flow_run_id: str) -> dict[str, Any]:
    return (await rest.ask("GET", f"/flow_runs/{flow_run_id}")).json()


@pytest.mark.soak  # the black box has the same in CI; a busy server answers twenty at once too late
async def test_twenty_creators_of_one_wake_make_one_flow_run_and_without_its_key_twenty(deployed: Deployed) -> None:
    async with deployed.orchestrator() as (orchestrator, rest):
        key = a_key()
        made = await asyncio.gather(*(orchestrator.start_run(**wake(key)) for _ in range(20)))
        assert len({run.id for run in made}) == 1
        seen = await raw(rest, made[0].id)
        assert seen["name"] == "wake 3: is the queue empty?"
        assert seen["parameters"] == {"fleet": "main", "trigger": "wake", "wake_id": 3}
        due = datetime.fromisoformat(seen["expected_start_time"])
        assert due == deployed.started_at + timedelta(days=2) / 15

        naive = await asyncio.gather(*(orchestrator.start_run(**wake(a_key())) for _ in range(20)))
        assert len({run.id for run in naive}) == 20


async def test_a_person_who_cancels_says_nothing_and_we_say_why(deployed: Deployed) -> None:
    """The pages cancel by `CANCELLING`; what comes of it is told from what we withdraw by its message alone."""
    async with deployed.orchestrator() as (orchestrator, rest):
        theirs, ours = [(await orchestrator.start_run(**wake(a_key()))).id for _ in range(2)]
        before = (await orchestrator.flow_runs([theirs]))[theirs].since
        await rest.ask("POST", f"/flow_runs/{theirs}/set_state", {"state": {"type": "CANCELLING"}})
        await orchestrator.withdraw(ours, why="wake 3 was cancelled")
        found = await orchestrator.flow_runs([theirs, ours])

    assert [found[each].state for each in (theirs, ours)] == [FlowRunState.CANCELLED] * 2
    assert [found[each].message for each in (theirs, ours)] == [None, "wake 3 was cancelled"]
    assert found[theirs].has_deployment
    assert before <= found[theirs].since < NOON + timedelta(days=2)


async def test_a_key_returns_its_dead_flow_run_until_that_is_deleted(deployed: Deployed) -> None:
    async with deployed.orchestrator() as (orchestrator, rest):
        key = a_key()
        first = await orchestrator.start_run(**wake(key))
        await orchestrator.withdraw(first.id, why="a test")
        dead = await orchestrator.start_run(**wake(key))
        assert (dead.id, dead.state) == (first.id, FlowRunState.CANCELLED)

        await rest.ask("DELETE", f"/flow_runs/{first.id}")
        assert await orchestrator.flow_runs([first.id]) == {}
        assert (await orchestrator.start_run(**wake(key))).id != first.id


async def test_what_runs_is_crashed_and_frees_its_slot_and_what_is_over_stays_as_it_is(deployed: Deployed) -> None:
    async with deployed.orchestrator() as (orchestrator, rest):
        begun = await orchestrator.start_run(fleet="main", trigger=Trigger.EVENT, key=f"ring:main:{uuid4()}:1")
        for state in ("PENDING", "RUNNING"):
            await rest.ask("POST", f"/flow_runs/{begun.id}/set_state", {"state": {"type": state}})
        await orchestrator.withdraw(begun.id, why="a test")
        assert (await orchestrator.flow_run(begun.id)).state is FlowRunState.RUNNING
        assert await slots(rest) == 1

        await orchestrator.crash(begun.id, why="run #1 fell silent")
        await orchestrator.crash(begun.id, why="again")
        crashed = await orchestrator.flow_run(begun.id)
        assert (crashed.state, crashed.message) == (FlowRunState.CRASHED, "run #1 fell silent")
        assert await slots(rest) == 0


async def slots(rest: PrefectRest) -> int:
    deployment = (await rest.ask("GET", "/deployments/name/agent-cycle/main")).json()
    limit = (await rest.ask("GET", f"/v2/concurrency_limits/{deployment['global_concurrency_limit']['id']}")).json()
    return limit["active_slots"]


async def test_a_redeployment_keeps_the_flow_runs_of_wakes(deployed: Deployed) -> None:
    async with deployed.orchestrator() as (orchestrator, rest):
        key = a_key()
        kept = await orchestrator.start_run(**wake(key))
        deployed.deploy()
        assert (await orchestrator.flow_run(kept.id)).state is FlowRunState.SCHEDULED
        assert (await orchestrator.start_run(**wake(key))).id == kept.id

        # The control: a deployment that is removed takes them with it, and what is missing is made again by its key.
        deployment = (await rest.ask("GET", "/deployments/name/agent-cycle/main")).json()
        await rest.ask("DELETE", f"/deployments/{deployment['id']}")
        assert await orchestrator.flow_runs([kept.id]) == {}
        deployed.deploy()
        assert (await orchestrator.start_run(**wake(key))).id != kept.id
