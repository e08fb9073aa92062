"""The doctor on a real server and a real database: each illness is found, named with its remedy, and mended or left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.automations import SILENT, STUCK, guards, named
from fleet_agent.clients.prefect_admin import PrefectAdmin
from fleet_agent.clients.prefect_api import ALL_FLEETS
from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.deploy import PROJECT_DIR
from fleet_agent.doctor import Patient, Tree, examine_fleet, mend
from fleet_agent.domain.health import Deployment, Finding, Mend
from fleet_agent.errors import FixSetup
from fleet_agent.settings import Settings
from fleet_agent.store import notices, wakes
from fleet_agent.store.database import open_database
from fleet_agent.store.installation import found_installation
from tests.postgres import TemporaryPostgres, temporary_folder
from tests.stack.prefect_server import PrefectServer, prefect_server
from tests.store.rig import Fleet
from tests.world import NOON

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(postgres: TemporaryPostgres) -> Generator[PrefectServer]:
    with temporary_folder() as folder, prefect_server(folder, postgres.server) as server:
        server.run("-m", "fleet_agent.deploy", folder=PROJECT_DIR)  # once: every test leaves Prefect well
        yield server


@dataclass
class Ward:
    """A fleet that is well: deployed, with a worker that reports and a run that has closed."""

    patient: Patient
    fleet: Fleet
    rest: PrefectRest
    server: PrefectServer

    @property
    def prefect(self) -> PrefectAdmin:
        return PrefectAdmin(self.rest)

    async def findings(self) -> list[Finding]:
        return [finding async for finding in examine_fleet(self.patient)]

    async def ill(self) -> list[Finding]:
        return [finding for finding in await self.findings() if not finding.well]

    async def mended(self, *mends: Mend) -> list[str]:
        async def deploy() -> list[str]:
            return self.server.run("-m", "fleet_agent.deploy", folder=PROJECT_DIR).splitlines()

        return [line async for line in mend(self.patient, mends, deploy)]

    async def deployment(self, name: str = "main") -> Deployment:
        found = await self.prefect.deployment(name)
        assert found is not None
        return found

    async def change(self, name: str, **changes: Any) -> None:
        (automation,) = named(await self.prefect.automations(), name)
        kept = {key: value for key, value in automation.items() if key not in {"id", "created", "updated"}}
        await self.prefect.replace_automation(automation["id"], kept | changes)

    async def delete(self, name: str) -> None:
        await self.prefect.delete_automation(named(await self.prefect.automations(), name)[0]["id"])

    async def running(self) -> str:
        """A flow run that Prefect counts as running, and that nobody carries out."""
        path = f"/deployments/{(await self.deployment()).id}/create_flow_run"
        run = (await self.rest.ask("POST", path, {"state": {"type": "SCHEDULED"}})).json()["id"]
        for state in ("PENDING", "RUNNING"):
            await self.rest.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": state}})
        return run


@pytest.fixture
async def ward(server: PrefectServer, database_url: str, tmp_path: Path) -> AsyncGenerator[Ward]:
    database = open_database(database_url)
    found_installation(database, origin=NOON)
    fleet = Fleet(database)
    await fleet.run_through()
    async with server.rest() as rest:
        tree = Tree(pid=1, log_dir=tmp_path, started_at=datetime.now(UTC), prefect=rest)

        async def no_pause(_: float) -> None:
            pass

        patient = Patient(
            settings=Settings(data_dir=tmp_path),
            variables=[],
            database=database,
            tree=tree,
            open_ports=lambda: pytest.fail("no neighbour is asked"),
            sleep=no_pause,
        )
        ward = Ward(patient, fleet, rest, server)
        pool = (await ward.deployment()).work_pool
        await rest.ask("POST", f"/work_pools/{pool}/workers/heartbeat", {"name": "a worker"})
        yield ward
    database.close()


async def test_a_fleet_that_is_well_has_only_good_findings(ward: Ward) -> None:
    findings = await ward.findings()

    assert [finding.sentence for finding in findings if not finding.well] == []
    looked_at = [finding.sentence.partition(":")[0] for finding in findings]
    assert looked_at == [
        *("database", "tree", "Prefect server", "deployment", "schedule", "deployment", "schedule", "worker"),
        *("automation", "automation", "automation", "automation", "automation"),
        *("flow runs", "slots", "last run", "wakes", "notices"),
    ]


async def test_the_server_of_the_tree_keeps_its_leases_in_files(ward: Ward) -> None:
    assert (await ward.prefect.server_settings()).lease_storage.endswith(".filesystem")


# --- what is mended --------------------------------------------------------------------------------------------------

Illness = Callable[[Ward], Awaitable[object]]
URGENT = "fleet-agent main: urgent, at once"


async def _schedule_off(ward: Ward, name: str = "main") -> None:
    deployment = await ward.deployment(name)
    path = f"/deployments/{deployment.id}/schedules/{deployment.schedules[0].id}"
    await ward.rest.ask("PATCH", path, {"active": False})


async def _limit(ward: Ward, name: str = "main", **changes: int) -> None:
    limit = (await ward.deployment(name)).limit
    assert limit is not None
    await ward.rest.ask("PATCH", f"/v2/concurrency_limits/{limit.id}", changes)


async def _silent_run(ward: Ward) -> None:
    await ward.fleet.open(flow_run_id=await ward.running())
    ward.fleet.let_real_time_pass(timedelta(minutes=2))


@pytest.mark.parametrize(
    ("illness", "words", "cure"),
    [
        (lambda ward: ward.change(SILENT, enabled=False), "is switched off", Mend.AUTOMATIONS),
        (lambda ward: ward.delete(STUCK), "is missing", Mend.AUTOMATIONS),
        (lambda ward: ward.prefect.create_automation(guards()[0]), "is there 2 times", Mend.AUTOMATIONS),
        (lambda ward: ward.change(SILENT, actions=[]), "has been changed (actions)", Mend.AUTOMATIONS),
        (lambda ward: ward.change(URGENT, enabled=False), "is switched off", Mend.DEPLOY),
        (lambda ward: ward.delete(URGENT), "is missing", Mend.DEPLOY),
        (_schedule_off, "nothing happens by itself", Mend.SCHEDULES),
        (lambda ward: _schedule_off(ward, ALL_FLEETS), "schedule hourly is switched off", Mend.SCHEDULES),
        (lambda ward: _limit(ward, limit=2), "has another limit", Mend.DEPLOY),
        (lambda ward: _limit(ward, active=False), "runs go side by side", Mend.LIMIT),
        (lambda ward: _limit(ward, ALL_FLEETS, limit=2), "deployment all_fleets has another limit", Mend.DEPLOY),
        (lambda ward: _limit(ward, ALL_FLEETS, active=False), "limit of deployment all_fleets is switched", Mend.LIMIT),
        (lambda ward: _limit(ward, active_slots=1), "no run has it", Mend.SLOT),
        (_silent_run, "nobody carries out", Mend.FLOW_RUNS),
    ],
    ids=[
        *("guard off", "guard missing", "guard twice", "guard changed", "doorbell off", "doorbell missing"),
        *("schedule off", "hourly off", "limit raised", "limit off", "its limit raised", "its limit off"),
        *("slot of nobody", "silent run"),
    ],
)
async def test_what_is_ill_is_found_and_mended(ward: Ward, illness: Illness, words: str, cure: Mend) -> None:
    await illness(ward)

    (finding,) = await ward.ill()
    assert words in finding.sentence
    assert finding.mend is cure
    assert await ward.mended(cure) != []

    assert [finding.sentence for finding in await ward.ill()] == []


async def test_a_slot_that_a_run_has_is_not_freed(ward: Ward) -> None:
    run = await ward.running()

    assert await ward.mended(Mend.SLOT, Mend.FLOW_RUNS) == []

    limit = (await ward.deployment()).limit
    assert limit is not None
    assert limit.active_slots == 1
    assert await ward.prefect.crash(run, message="the test is over")


async def test_the_crash_of_a_silent_run_frees_its_slot_and_what_ended_meanwhile_stays_as_it_ended(ward: Ward) -> None:
    run = await ward.running()
    await ward.rest.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "COMPLETED"}})
    assert not await ward.prefect.crash(run, message="too late")

    await _silent_run(ward)
    (line,) = await ward.mended(Mend.FLOW_RUNS)

    assert line.startswith("crashed ")
    limit = (await ward.deployment()).limit
    assert limit is not None
    assert limit.active_slots == 0


# --- what is only said -----------------------------------------------------------------------------------------------


async def test_a_wake_without_a_flow_run_is_said(ward: Ward) -> None:
    with ward.fleet.database.exclusive("main") as tx:
        wakes.ask(tx, "main", timedelta(minutes=30), "look", asked_by="test", now=NOON - timedelta(minutes=5))

    (finding,) = await ward.ill()

    assert finding.sentence.startswith("wakes: Prefect has no flow run to come for wake ")
    assert finding.mend is None


async def test_an_old_notice_is_said_and_is_not_ill(ward: Ward) -> None:
    with ward.fleet.database.exclusive("main") as tx:
        notices.give(tx, "main", key="k", text="look", now=NOON)

    assert [finding.sentence for finding in await ward.findings() if "1 not told yet" in finding.sentence] != []
    assert await ward.ill() == []


async def test_a_paused_work_pool_is_said(ward: Ward) -> None:
    pool = (await ward.deployment()).work_pool
    await ward.rest.ask("PATCH", f"/work_pools/{pool}", {"is_paused": True})
    try:
        (finding,) = await ward.ill()
        assert f"work pool {pool} is paused" in finding.sentence
    finally:
        await ward.rest.ask("PATCH", f"/work_pools/{pool}", {"is_paused": False})


async def test_a_server_that_is_gone_is_one_finding_for_each_thing_that_cannot_be_seen(ward: Ward) -> None:
    """And the second half of the examination does not hang on the first."""
    ward.patient = Patient(
        settings=ward.patient.settings,
        variables=[],
        database=FixSetup("there is no installation", "fleet-agent up"),
        tree=ward.patient.tree,
        open_ports=ward.patient.open_ports,
    )

    (finding,) = await ward.ill()

    assert finding.sentence == "database: there is no installation → fleet-agent up"
    assert len(await ward.findings()) > 5
