"""What `demo`, `up`, `cycle --once` and `doctor` do in the foreground: open what they need, show a line for each thing
that happens, close in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import psutil

from fleet_agent import controls, wiring
from fleet_agent.clients.prefect_api import PrefectOrchestrator
from fleet_agent.cycle import run_cycle
from fleet_agent.deploy import deploy
from fleet_agent.doctor import Patient, Tree, examine_fleet, examine_neighbours, examine_settings, mend
from fleet_agent.domain.flow_run import FlowRun
from fleet_agent.domain.health import Finding
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.report import Report
from fleet_agent.domain.run import RunRequest
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import DatabaseUnreachable, FixSetup, FleetAgentError
from fleet_agent.printing import Row, run_line
from fleet_agent.settings import PREFIX, Settings, demand_must_have_one_source, missing_for_up
from fleet_agent.stack import environments
from fleet_agent.stack.runtime import Runtime
from fleet_agent.stack.tree import Simulation, StackPlan, running
from fleet_agent.store import reading, session, steering
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.installation import read_clock, timeline
from fleet_agent.store.tables import RunStatus

Tell = Callable[[str], None]

DEMO_IMAGE = "example.invalid/prover@sha256:" + "0" * 64
DEMO_POLICY = {"launch.image": DEMO_IMAGE, "limits.min_age": "PT1M"}
"""A box of the demo has done its work two minutes after it was rented, when a real one has not yet begun."""
DEMO_OBJECTIVE = "Prove what is pending, at the lowest cost per proof, and keep no idle box."

BETWEEN_LOOKS = 0.5
"""Seconds between two looks for runs that ended: a person watches."""


async def run_demo(settings: Settings, *, runs: int | None, scenario: str, speed: float, tell: Tell) -> int:
    """The whole system against the simulator, until `runs` runs have ended or Ctrl-C; returns the exit code."""
    tell("Starting the demo: a simulated market, model and proof queue; nothing is rented, nothing is paid.")
    simulation = Simulation(scenario=scenario, speed=speed)
    plan = StackPlan(settings, simulation, prepare=lambda database: _prepare_demo(database, settings.fleet))
    shown: list[Row] = []
    confirmed = True  # a demo that is ended by Ctrl-C has nothing to confirm
    async with running(plan, tell) as runtime:
        _tell_where(runtime, tell, speed=speed)
        async for row in _ended_runs(runtime, settings.fleet):
            tell(run_line(row))
            shown.append(row)
            if len(shown) == runs:
                break
        confirmed = await _read_back(runtime, shown, tell)
    return 0 if confirmed else 1


async def run_up(settings: Settings, *, drain: bool, tell: Tell) -> int:
    """The real thing, until Ctrl-C; returns the exit code. With `drain` every box is let go of before anything but the
    worker ends. Raises FixSetup, before anything starts, where a setting is missing, demand has two sources or a
    model's window is too small."""
    missing = missing_for_up(settings)
    if missing:
        tell("`up` needs these settings, from the environment or from a .env file in this folder:")
        for line in missing:
            tell(f"  {line}")
        raise FixSetup(f"{len(missing)} settings are missing", "`fleet-agent demo` needs none")
    demand_must_have_one_source(settings)
    wiring.models_must_fit(settings)
    plan = StackPlan(
        settings,
        prepare=lambda database: _begin_fleet(database, settings.fleet),
        last_look=lambda database: tell(_what_bills(database, settings.fleet)),
        before_end=(lambda runtime: _drain(runtime, settings.fleet, tell)) if drain else None,
    )
    async with running(plan, tell) as runtime:
        _tell_where(runtime, tell)
        async for row in _ended_runs(runtime, settings.fleet):
            tell(run_line(row))
    return 0


async def run_once(settings: Settings) -> Report:
    """One run in this process, without Prefect."""
    async with wiring.open_ports(settings) as ports:
        request = RunRequest(
            fleet=settings.fleet,
            trigger=Trigger.MANUAL,
            flow_run_id=f"once-{os.urandom(8).hex()}",
            worker_id=wiring.worker_id(),
        )
        return await run_cycle(request, ports)


async def run_doctor(settings: Settings, live: Runtime | None, *, fix: bool, tell: Tell) -> int:
    """Look at everything, and with `fix` mend what can do no harm and look again; returns the exit code."""
    async with _patient(settings, live) as patient:
        settled = await _told(examine_settings(patient), tell)
        fleet = await _told(examine_fleet(patient), tell)
        neighbours = await _told(examine_neighbours(patient), tell)
        mends = {finding.mend for finding in fleet if finding.mend is not None}
        if fix and mends and live is not None:
            async for line in mend(patient, mends, lambda: deploy_to(live)):
                tell(f"fix  {line}")
            tell("Looking again:")
            fleet = await _told(examine_fleet(patient), tell)
    return 0 if all(finding.well for finding in (*settled, *fleet, *neighbours)) else 1


async def deploy_to(live: Runtime) -> list[str]:
    """Bring the Prefect of a running tree up to date; a line for each thing done."""
    database = open_database(live.database_url)
    try:
        speed = timeline(database).speed
    finally:
        database.close()
    os.environ |= environments.of_prefect_client(live)  # Prefect reads them when it is imported
    return await deploy(speed, live.work_pool)


@asynccontextmanager
async def _patient(settings: Settings, live: Runtime | None) -> AsyncGenerator[Patient]:
    async with AsyncExitStack() as opened:
        tree = FixSetup("no process tree is running", "fleet-agent up")
        if live is not None:
            prefect = await opened.enter_async_context(wiring.open_prefect(live.api_url, live.auth_string))
            tree = Tree(pid=live.pid, log_dir=live.log_dir, started_at=_start_of(live), prefect=prefect)
        try:
            database = opened.enter_context(wiring.find_store(settings))
            with database.transaction() as tx:
                if settings.fleet not in reading.fleets(tx):
                    raise FixSetup(f"there is no fleet {settings.fleet!r}", "fleet-agent objective set begins one")
        except FleetAgentError as error:
            database = error
        yield Patient(
            settings=settings,
            variables=[name for name in os.environ if name.startswith(PREFIX)],
            database=database,
            tree=tree,
            open_ports=lambda: wiring.open_ports(settings),
        )


def _start_of(live: Runtime) -> datetime:
    try:
        return datetime.fromtimestamp(psutil.Process(live.pid).create_time(), UTC)
    except psutil.NoSuchProcess:  # it has just ended, and everything that is asked of it will say so
        return datetime.now(UTC)


async def _told(findings: AsyncGenerator[Finding], tell: Tell) -> list[Finding]:
    told: list[Finding] = []
    async for finding in findings:
        tell(f"{'ok ' if finding.well else 'BAD'}  {finding.sentence}")
        told.append(finding)
    return told


# --- what is shown ---------------------------------------------------------------------------------------------------


def _begin_fleet(database: Database, fleet: str) -> None:
    """So that other commands find it before its first run."""
    with database.exclusive(fleet) as tx:
        session.state(tx, fleet)


def _prepare_demo(database: Database, fleet: str) -> None:
    """What a person would set before the first run."""
    now = read_clock(database).now()
    with database.exclusive(fleet) as tx:
        steering.set_objective(tx, fleet, DEMO_OBJECTIVE, who="demo", now=now)
        steering.change_policy(tx, fleet, DEMO_POLICY, who="demo", now=now)


def _tell_where(runtime: Runtime, tell: Tell, *, speed: float = 1) -> None:
    tell(f"Prefect: {runtime.ui_url} (to log in, paste {runtime.auth_string})")
    if speed != 1:
        tell(f"The demo's time runs {speed:g} times faster than real time; the times that are shown are its own.")
    tell("Ready. Runs, as they end:")


async def _ended_runs(runtime: Runtime, fleet: str) -> AsyncGenerator[Row]:
    """The runs that end from now on, in order; those of an earlier tree are not shown again."""
    database = open_database(runtime.database_url)
    try:
        seen = max((row["run_id"] for row in _runs(database, fleet) if row["status"] != RunStatus.OPEN), default=0)
        while True:
            for row in reversed(await asyncio.to_thread(_runs, database, fleet)):
                if row["run_id"] > seen and row["status"] != RunStatus.OPEN:
                    seen = row["run_id"]
                    yield row
            await asyncio.sleep(BETWEEN_LOOKS)
    finally:
        database.close()


def _runs(database: Database, fleet: str) -> Sequence[Row]:
    """The newest runs, newest first; none while the database is being started again."""
    try:
        with database.transaction() as tx:
            return reading.runs(tx, fleet, last=50)
    except DatabaseUnreachable:
        return []


async def _read_back(runtime: Runtime, shown: Sequence[Row], tell: Tell) -> bool:
    """Ask Prefect itself what became of the flow runs behind the rows. True if all are Completed."""
    database = open_database(runtime.database_url)
    try:
        async with wiring.open_orchestrator(database, runtime.api_url, runtime.auth_string) as orchestrator:
            flow_runs = [await _ended_flow_run(orchestrator, row["flow_run_id"]) for row in shown]
    finally:
        database.close()
    completed = sum(flow_run.state_name == "Completed" for flow_run in flow_runs)
    tell(f"Prefect's API says of these {len(shown)} flow runs: {completed} Completed.")
    for flow_run in flow_runs:
        tell(f"  {flow_run.state_name:<10} {flow_run.name}")
    return completed == len(shown)


async def _ended_flow_run(orchestrator: PrefectOrchestrator, flow_run_id: str) -> FlowRun:
    """The flow run once it is over: its run is closed a moment before Prefect knows."""
    flow_run = await orchestrator.flow_run(flow_run_id)
    for _ in range(60):
        if flow_run.is_over:
            break
        await asyncio.sleep(BETWEEN_LOOKS)
        flow_run = await orchestrator.flow_run(flow_run_id)
    return flow_run


async def _drain(runtime: Runtime, fleet: str, tell: Tell) -> None:
    tell(
        "No run begins any more, and every box drains. Ctrl-C once more ends at once, and what is left goes on billing."
    )
    database = open_database(runtime.database_url)
    try:
        desk = controls.Desk(database, read_clock(database), fleet, who="up", place=str(runtime.data_dir))
        await controls.drain_all(desk, sleep=asyncio.sleep, tell=tell)
    finally:
        database.close()


def _what_bills(database: Database, fleet: str) -> str:
    """What a person must know who has stopped the tree: the run at hand, which may have rented, is over by now."""
    with database.transaction() as tx:
        found = reading.status(tx, fleet, now=read_clock(database).now())
    boxes, in_flight = found["boxes"], found["in_flight"]
    if boxes + in_flight == 0:
        return "No box is live, nothing bills."
    rate = show_rate(found["burn_usd_per_hour"] + found["in_flight_usd_per_hour"])
    return (
        f"{boxes + in_flight} box(es) go on billing {rate} and nothing watches them "
        "→ fleet-agent up, or fleet-agent destroy-all"
    )
