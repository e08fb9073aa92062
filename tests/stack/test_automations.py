"""What Prefect does by itself, on a real server: doorbells become runs, forsaken runs are crashed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fleet_agent import automations
from fleet_agent.automations import SILENT, STUCK, bootstrap, doorbells, faults, guards, named
from fleet_agent.clients.prefect_admin import PrefectAdmin
from fleet_agent.clients.prefect_api import FLOW, HOUSEKEEPING
from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.deploy import PROJECT_DIR, WORK_POOL, our_deployments
from fleet_agent.domain.triggers import Doorbell, rung_at
from fleet_agent.stack import environments
from tests.postgres import TemporaryPostgres, temporary_folder
from tests.stack.prefect_server import PrefectServer, eventually, prefect_server, rows

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

SHORT = timedelta(seconds=10)
"""The shortest window that Prefect takes for waiting."""


@pytest.fixture(scope="module")
def server(postgres: TemporaryPostgres) -> Generator[PrefectServer]:
    with temporary_folder() as folder, prefect_server(folder, postgres.server) as server:
        server.run("-m", "fleet_agent.deploy", folder=PROJECT_DIR)
        yield server


@pytest.fixture
async def rest(server: PrefectServer) -> AsyncGenerator[PrefectRest]:
    async with server.rest() as rest:
        yield rest


@pytest.fixture
async def deployment(rest: PrefectRest) -> str:
    found = await PrefectAdmin(rest).deployment("main")
    assert found is not None
    return found.id


# --- doorbells -------------------------------------------------------------------------------------------------------


async def ring(
    rest: PrefectRest, doorbell: Doorbell, fleet: str = "main", *, at: datetime | None = None, also_after: float = 0
) -> datetime:
    """Ring once, or twenty times evenly over the next `also_after` seconds; returns when the first was, as told. What
    Prefect's windows compare is the time that an event names, so that no slow machine makes a burst longer."""
    first = at or datetime.now(UTC)
    events = [
        {
            "id": str(uuid4()),
            "occurred": (first + timedelta(seconds=also_after * number / 19)).isoformat(),
            "event": doorbell.value,
            "resource": {"prefect.resource.id": rung_at(fleet)},
            "payload": {"fleet": fleet},
        }
        for number in range(20 if also_after else 1)
    ]
    await rest.ask("POST", "/events", events)
    return first


async def runs_since(rest: PrefectRest, deployment: str, since: datetime) -> list[datetime]:
    """When each run is to start that an event made after `since`."""
    found = await rows(
        rest,
        "/flow_runs/filter",
        {"flow_runs": {"deployment_id": {"any_": [deployment]}, "expected_start_time": {"after_": since.isoformat()}}},
    )
    rung = [
        row
        for row in found
        if row["parameters"] == {"fleet": "main", "trigger": "event"} and datetime.fromisoformat(row["created"]) > since
    ]
    return sorted(datetime.fromisoformat(row["expected_start_time"]) for row in rung)


async def settled(rest: PrefectRest, deployment: str, since: datetime, *, at_least: int) -> list[datetime]:
    """The same once there are so many, and those had time to come that must not."""

    async def enough() -> bool:
        return len(await runs_since(rest, deployment, since)) >= at_least

    await eventually(enough)
    await asyncio.sleep(1.5)
    return await runs_since(rest, deployment, since)


async def quiet() -> None:
    """Until no window of an earlier event is open any more."""
    await asyncio.sleep(3.5)


async def test_an_urgent_doorbell_starts_a_run_at_once_and_one_behind_the_window(
    rest: PrefectRest, deployment: str
) -> None:
    await quiet()
    rung = await ring(rest, Doorbell.URGENT)

    at_once, behind = await settled(rest, deployment, rung, at_least=2)

    assert rung < at_once < behind
    assert behind >= rung + timedelta(seconds=2)


async def test_a_change_starts_one_run_behind_its_window(rest: PrefectRest, deployment: str) -> None:
    rung = await ring(rest, Doorbell.CHANGE, also_after=9)

    (behind,) = await settled(rest, deployment, rung, at_least=1)

    assert behind >= rung + timedelta(seconds=10)


async def test_a_burst_is_two_runs_and_the_last_event_has_a_run_behind_it(rest: PrefectRest, deployment: str) -> None:
    await quiet()
    began = await ring(rest, Doorbell.URGENT, also_after=1)

    _, behind = await settled(rest, deployment, began, at_least=2)

    assert behind >= began + timedelta(seconds=1)


async def test_without_the_trailing_run_the_second_message_would_be_lost(rest: PrefectRest, deployment: str) -> None:
    """The control: the usual debounce starts a run at once; for what rings a second later, when that run may be over,
    it starts none."""
    prefect = PrefectAdmin(rest)
    at_once = doorbells(our_deployments()[0], deployment)[0]
    elsewhere = {"match": {"prefect.resource.id": rung_at("naive")}}
    naive = at_once | {"name": "naive", "trigger": at_once["trigger"] | elsewhere}
    await prefect.create_automation(naive)
    await asyncio.sleep(1)  # until the server has taken notice of it

    first = await ring(rest, Doorbell.URGENT, "naive")
    starts = await settled(rest, deployment, first, at_least=1)
    await ring(rest, Doorbell.URGENT, "naive", at=first + timedelta(seconds=1))
    await asyncio.sleep(1.5)

    assert len(starts) == 1
    assert await runs_since(rest, deployment, first) == starts
    await prefect.delete_automation(named(await prefect.automations(), "naive")[0]["id"])


async def test_the_doorbell_of_another_fleet_starts_no_run_of_this_one(rest: PrefectRest, deployment: str) -> None:
    rung = await ring(rest, Doorbell.URGENT, "second")
    await asyncio.sleep(1.5)

    assert await runs_since(rest, deployment, rung) == []


async def test_prefects_own_deploy_makes_the_same(server: PrefectServer, rest: PrefectRest, deployment: str) -> None:
    prefect = PrefectAdmin(rest)
    wanted = doorbells(our_deployments()[0], deployment)
    names = [each["name"] for each in wanted]
    ours = {name: named(await prefect.automations(), name) for name in names}
    assert [faults(each, found) for each in wanted for found in ours[each["name"]]] == [[]] * len(wanted)

    server.run("-m", "prefect", "--no-prompt", "deploy", "--all", folder=PROJECT_DIR, FLEET_WORK_POOL=WORK_POOL)

    theirs = {name: named(await prefect.automations(), name) for name in names}
    assert [faults(each, found) for each in wanted for found in theirs[each["name"]]] == [[]] * len(wanted)
    assert [theirs[name][0]["id"] != ours[name][0]["id"] for name in names] == [True] * len(names)
    assert await prefect.deployment("main") is not None


# --- the bootstrap ---------------------------------------------------------------------------------------------------


async def ids(rest: PrefectRest) -> dict[str, list[str]]:
    there = await PrefectAdmin(rest).automations()
    return {name: [each["id"] for each in named(there, name)] for name in (SILENT, STUCK)}


async def test_a_second_deployment_leaves_the_guards_as_they_are(server: PrefectServer, rest: PrefectRest) -> None:
    before = await ids(rest)

    server.run("-m", "fleet_agent.deploy", folder=PROJECT_DIR)

    assert await ids(rest) == before
    assert [len(each) for each in before.values()] == [1, 1]


@pytest.mark.parametrize(
    "change", [{"enabled": False}, {"actions": []}, {"trigger": {**guards()[0]["trigger"], "for_each": []}}]
)
async def test_a_guard_that_was_changed_is_mended_in_place(rest: PrefectRest, change: dict[str, Any]) -> None:
    prefect = PrefectAdmin(rest)
    await bootstrap(prefect, guards())
    before = await ids(rest)
    await prefect.replace_automation(before[SILENT][0], guards()[0] | change)

    assert await bootstrap(prefect, guards()) == [f"automation {SILENT!r} mended ({next(iter(change))})"]

    assert await ids(rest) == before
    assert await bootstrap(prefect, guards()) == []


async def test_a_second_guard_of_a_name_is_deleted_and_the_first_stays(rest: PrefectRest) -> None:
    prefect = PrefectAdmin(rest)
    await bootstrap(prefect, guards())
    before = await ids(rest)
    await prefect.create_automation(guards()[0])

    assert await bootstrap(prefect, guards()) == [f"a second automation {SILENT!r} deleted"]

    assert await ids(rest) == before


async def test_a_guard_that_is_missing_is_made(rest: PrefectRest) -> None:
    prefect = PrefectAdmin(rest)
    await bootstrap(prefect, guards())
    await prefect.delete_automation((await ids(rest))[STUCK][0])

    assert await bootstrap(prefect, guards()) == [f"automation {STUCK!r} made"]

    assert [len(each) for each in (await ids(rest)).values()] == [1, 1]


# --- runs that nobody carries out ------------------------------------------------------------------------------------


class Runs:
    """Flow runs without a process: what their processes would report is reported here."""

    def __init__(self, rest: PrefectRest, deployment: str) -> None:
        self._rest = rest
        self._deployment = deployment

    async def of_flow(self, flow: str) -> str:
        """One that no limit holds back."""
        flow_id = (await self._rest.ask("POST", "/flows/", {"name": flow})).json()["id"]
        run = {"flow_id": flow_id, "state": {"type": "SCHEDULED"}}
        return (await self._rest.ask("POST", "/flow_runs/", run)).json()["id"]

    async def of_deployment(self) -> str:
        path = f"/deployments/{self._deployment}/create_flow_run"
        return (await self._rest.ask("POST", path, {"state": {"type": "SCHEDULED"}})).json()["id"]

    async def become(self, run: str, *states: str) -> None:
        for state in states:
            answer = await self._rest.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": state}})
            assert answer.json()["status"] == "ACCEPT", answer.text

    async def beat(self, run: str, flow: str) -> None:
        event = {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
            "related": [
                {
                    "prefect.resource.id": f"prefect.flow.{flow}",
                    "prefect.resource.role": "flow",
                    "prefect.resource.name": flow,
                }
            ],
        }
        await self._rest.ask("POST", "/events", [event])

    async def state(self, run: str) -> str:
        return (await self._rest.ask("GET", f"/flow_runs/{run}")).json()["state_type"]

    async def slots(self) -> int:
        found = await PrefectAdmin(self._rest).deployment("main")
        assert found is not None
        assert found.limit is not None
        return found.limit.active_slots


async def test_silent_and_stuck_runs_are_crashed_and_what_lives_or_ended_is_left_alone(
    rest: PrefectRest, deployment: str
) -> None:
    """With windows of 10 s. The control, for another flow, is the same automation without `for_each`: there the beat
    of the one run hides the silence of the other."""
    prefect, runs = PrefectAdmin(rest), Runs(rest, deployment)
    ours = guards(silence=SHORT, pending=SHORT)
    other = "another-flow"
    naive = ours[0] | {
        "name": "naive",
        "trigger": ours[0]["trigger"]
        | {"for_each": [], "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": other}},
    }
    await bootstrap(prefect, [*ours, naive])
    await asyncio.sleep(1)  # until the server has taken notice of them
    silent, lives, ended, began = [await runs.of_flow(FLOW) for _ in range(4)]
    silent_too = await runs.of_flow(HOUSEKEEPING)
    stuck = await runs.of_deployment()
    hidden, hides = [await runs.of_flow(other) for _ in range(2)]
    for run in (silent, silent_too, lives, hidden, hides):
        await runs.become(run, "PENDING", "RUNNING")
    await runs.become(ended, "PENDING", "RUNNING", "COMPLETED")
    await runs.become(began, "PENDING")
    await runs.become(stuck, "PENDING")
    assert await runs.slots() == 1

    async def beats() -> None:
        await runs.become(began, "RUNNING")
        while True:
            await runs.beat(lives, FLOW)
            await runs.beat(began, FLOW)
            await runs.beat(hides, other)
            await asyncio.sleep(2)

    async def all_crashed() -> bool:
        return {await runs.state(run) for run in (silent, silent_too, stuck)} == {"CRASHED"}

    beating = asyncio.create_task(beats())
    try:
        await eventually(all_crashed)
        await asyncio.sleep(SHORT.total_seconds())  # so that whatever lives has had its window twice
        states = [await runs.state(run) for run in (lives, began, ended, hidden)]
    finally:
        beating.cancel()

    assert states == ["RUNNING", "RUNNING", "COMPLETED", "RUNNING"]
    assert await runs.slots() == 0
    for automation in named(await prefect.automations(), "naive"):
        await prefect.delete_automation(automation["id"])
    for run in (lives, began, hidden, hides):
        await runs.become(run, "COMPLETED")
    await bootstrap(prefect, guards())


LONG_RUN = f"""
import time
from prefect import flow

@flow(name={FLOW!r})
def long_run():
    for _ in range(3000):
        time.sleep(0.1)
"""


@pytest.mark.soak
async def test_a_run_whose_process_and_worker_were_killed_is_crashed_and_one_that_works_long_is_not(
    server: PrefectServer, rest: PrefectRest, deployment: str, tmp_path: Path
) -> None:
    """Real processes with Prefect's own beat, whose shortest interval is 30 s: hence a window of 40 s."""
    prefect, runs = PrefectAdmin(rest), Runs(rest, deployment)
    await bootstrap(prefect, guards(silence=timedelta(seconds=40)))
    (tmp_path / "long_run.py").write_text(LONG_RUN)

    async def carried_out() -> tuple[str, asyncio.subprocess.Process]:
        run = await runs.of_flow(FLOW)
        environment = environments.of_deploy(server.place) | {
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT__FLOW_RUN_ID": run,
            "PREFECT__FLOW_ENTRYPOINT": f"{tmp_path / 'long_run.py'}:long_run",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prefect.engine", env=environment, cwd=tmp_path
        )

        async def runs_now() -> bool:
            return await runs.state(run) == "RUNNING"

        await eventually(runs_now)
        return run, process

    killed, victim = await carried_out()
    works, worker = await carried_out()
    try:
        os.kill(victim.pid, signal.SIGKILL)

        async def crashed() -> bool:
            return await runs.state(killed) == "CRASHED"

        await eventually(crashed, seconds=90)
        await asyncio.sleep(45)  # more than a window after that, the other still works
        assert await runs.state(works) == "RUNNING"
    finally:
        for process in (victim, worker):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await bootstrap(prefect, automations.guards())
