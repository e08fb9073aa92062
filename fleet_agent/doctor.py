"""Is everything in place? Each finding is one sentence; a bad one says how to mend it.

Looks from the inside out: the settings, our database, the process tree, Prefect and what it was told, the fleet's own
affairs, then each neighbour, by calls that rent nothing and change nothing. What Prefect and our tables say is read
here and judged in `domain/health.py`. `mend` carries out what can do no harm; whatever it cannot is left as a finding.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from fleet_agent.automations import bootstrap as make_automations
from fleet_agent.automations import doorbells, faults, guards, named
from fleet_agent.clients.models import see_a_tool_call
from fleet_agent.clients.prefect_admin import PrefectAdmin
from fleet_agent.clients.prefect_api import ALL_FLEETS
from fleet_agent.clients.prefect_rest import PrefectRest
from fleet_agent.deploy import our_deployments
from fleet_agent.domain import health
from fleet_agent.domain.context import Budget, room_for_a_run
from fleet_agent.domain.demand import not_known
from fleet_agent.domain.fleet import parse_label
from fleet_agent.domain.health import Finding, LiveFlowRun, Mend, WantedDeployment, fine
from fleet_agent.domain.money import show_usd
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.spending import DAY, beyond_the_day
from fleet_agent.domain.triggers import HEARTBEAT
from fleet_agent.errors import BudgetSpent, FixSetup, FleetAgentError, TryLater
from fleet_agent.ports import OfferQuery, Ports
from fleet_agent.settings import Settings, demand_must_have_one_source, missing_for_up, variable
from fleet_agent.store import model_servers, reading, session, spending
from fleet_agent.store.database import Database
from fleet_agent.store.installation import installation, read_clock, timeline

LOOK_TWICE = 3.0
"""Seconds before a slot that nobody seems to hold is looked at again: a run begins and ends between two questions."""

BELL_MAY_TAKE = timedelta(seconds=30)
"""Real time until a wake is to be seen in Prefect; the bell looks every 5 s."""

CRASHED_BY_US = "Nobody carries it out any more (fleet-agent doctor)."

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Tree:
    """A process tree that runs, and its Prefect. `started_at` is real time."""

    pid: int
    log_dir: Path
    started_at: datetime
    prefect: PrefectRest


@dataclass(frozen=True)
class Patient:
    """Where to look. What could not be opened is the error that says why."""

    settings: Settings
    variables: Collection[str]
    """The variables of our prefix that are set here."""
    database: Database | FleetAgentError
    tree: Tree | FleetAgentError
    open_ports: Callable[[], AbstractAsyncContextManager[Ports]]
    sleep: Sleep = asyncio.sleep

    @property
    def fleet(self) -> str:
        return self.settings.fleet


Check = Callable[[], Awaitable[str]]
"""What is well, in a few words; raises FleetAgentError where it is not."""


async def _checked(name: str, check: Check) -> Finding:
    try:
        return _named(name, fine(await check()))
    except FleetAgentError as error:
        return _named(name, Finding(well=False, sentence=str(error)))


def _named(name: str, finding: Finding) -> Finding:
    return finding.model_copy(update={"sentence": f"{name}: {finding.sentence}"})


# --- the settings ----------------------------------------------------------------------------------------------------


async def examine_settings(patient: Patient) -> AsyncGenerator[Finding]:
    for line in missing_for_up(patient.settings):
        yield Finding(well=False, sentence=f"settings: missing {line}")
    try:
        demand_must_have_one_source(patient.settings)
    except FixSetup as error:
        yield Finding(well=False, sentence=f"settings: {error}")
    known = {variable(name) for name in type(patient.settings).model_fields}
    yield _named("settings", health.of_variables(patient.variables, known))


# --- the fleet and its Prefect ---------------------------------------------------------------------------------------


async def examine_fleet(patient: Patient) -> AsyncGenerator[Finding]:
    """One finding after the other, of what is ours on this machine; what is ill does not hide the next."""
    database, tree = patient.database, patient.tree
    yield await _checked("database", lambda: _database(patient))
    yield await _checked("tree", lambda: _tree(tree))
    if not isinstance(tree, FleetAgentError):
        prefect = PrefectAdmin(tree.prefect)
        looks: list[tuple[str, Callable[[], AsyncGenerator[Finding]]]] = [
            ("Prefect", lambda: _prefect(prefect, patient.fleet)),
            ("automations", lambda: _automations(prefect, patient.fleet)),
        ]
        if not isinstance(database, FleetAgentError):
            looks += [
                ("flow runs", lambda: _flow_runs(prefect, database, patient)),
                ("fleet", lambda: _affairs(prefect, database, patient.fleet, tree)),
            ]
        for name, look in looks:
            try:
                async for finding in look():
                    yield finding
            except FleetAgentError as error:
                yield _named(name, Finding(well=False, sentence=str(error)))


async def _database(patient: Patient) -> str:
    if isinstance(patient.database, FleetAgentError):
        raise patient.database
    return f"fit for this version, fleet {patient.fleet}"


async def _tree(tree: Tree | FleetAgentError) -> str:
    if isinstance(tree, FleetAgentError):
        raise tree
    if not await tree.prefect.is_ready():
        raise TryLater(f"runs (pid {tree.pid}) and its Prefect does not answer", f"see {tree.log_dir}")
    return f"runs (pid {tree.pid}) and Prefect answers"


async def _prefect(prefect: PrefectAdmin, fleet: str) -> AsyncGenerator[Finding]:
    yield _named("Prefect server", health.of_server(await prefect.server_settings()))
    for name in _needed_by(fleet):
        wanted, seen = _wanted(name), await prefect.deployment(name)
        yield _named("deployment", health.of_deployment(name, wanted, seen))
        if wanted is not None and seen is not None:
            yield _named("schedule", health.of_schedules(wanted, seen))
    seen = await prefect.deployment(fleet)
    if seen is not None:
        pool = await prefect.work_pool(seen.work_pool) if seen.work_pool else None
        yield _named("worker", health.of_worker(seen.work_pool, pool, now=datetime.now(UTC)))


def _needed_by(fleet: str) -> tuple[str, str]:
    """The names of the deployments that look after a fleet."""
    return fleet, ALL_FLEETS


async def _automations(prefect: PrefectAdmin, fleet: str) -> AsyncGenerator[Finding]:
    there, deployment, spec = await prefect.automations(), await prefect.deployment(fleet), _spec(fleet)
    wanted = [(each, Mend.AUTOMATIONS) for each in guards()]
    if deployment is not None and spec is not None:
        wanted += [(each, Mend.DEPLOY) for each in doorbells(spec, deployment.id)]
    for automation, mend in wanted:
        found = named(there, automation["name"])
        differs = faults(automation, found[0]) if found else []
        yield _named("automation", health.of_automation(automation["name"], len(found), differs, mend))


async def _flow_runs(prefect: PrefectAdmin, database: Database, patient: Patient) -> AsyncGenerator[Finding]:
    seen = await prefect.deployment(patient.fleet)
    if seen is None:
        return
    live = await prefect.live_flow_runs(seen.id)
    yield _named("flow runs", health.of_flow_runs(_forsaken(database, live), now=datetime.now(UTC)))
    yield _named("slots", await _slots(prefect, patient.fleet, patient.sleep))


def _forsaken(database: Database, live: Sequence[LiveFlowRun]) -> tuple[LiveFlowRun, ...]:
    with database.transaction() as tx:
        silent_for = reading.silences(tx, [run.id for run in live])
    return health.forsaken(live, silent_for, now=datetime.now(UTC))


async def _slots(prefect: PrefectAdmin, fleet: str, sleep: Sleep) -> Finding:
    """What is still so at a second look, where the first finds a slot that nobody holds."""
    finding = fine("no deployment")
    for pause in (0, LOOK_TWICE):
        await sleep(pause)
        before = await prefect.deployment(fleet)
        if before is None:
            break
        live = await prefect.live_flow_runs(before.id)
        deployment = await prefect.deployment(fleet) or before
        live += tuple(run for run in await prefect.live_flow_runs(before.id) if run not in live)
        finding = health.of_slots(deployment, live)
        if finding.well:
            break
    return finding


async def _affairs(prefect: PrefectAdmin, database: Database, fleet: str, tree: Tree) -> AsyncGenerator[Finding]:
    with database.transaction() as tx:
        seen = reading.health(tx, fleet)
    line, now = timeline(database), read_clock(database).now()
    since = max(line.origin, line.business(tree.started_at))
    yield _named("last run", health.of_last_run(seen, since=since, now=now, heartbeat=HEARTBEAT))
    over = await prefect.ended_or_gone([wake.flow_run_id for wake in seen.wakes if wake.flow_run_id])
    yield _named("wakes", health.of_wakes(seen.wakes, over, now=now, grace=BELL_MAY_TAKE * line.speed))
    yield _named("notices", health.of_notices(seen, now=now))


def _spec(name: str) -> dict[str, Any] | None:
    return next((each for each in our_deployments() if each["name"] == name), None)


def _wanted(name: str) -> WantedDeployment | None:
    spec = _spec(name)
    if spec is None:
        return None
    limit = spec["concurrency_limit"]
    return WantedDeployment(
        entrypoint=spec["entrypoint"],
        limit=limit["limit"],
        collision_strategy=limit["collision_strategy"],
        grace=timedelta(seconds=limit["grace_period_seconds"]),
        slugs=tuple(each["slug"] for each in spec["schedules"]),
    )


# --- mending ---------------------------------------------------------------------------------------------------------


async def mend(
    patient: Patient, mends: Collection[Mend], deploy: Callable[[], Awaitable[Sequence[str]]]
) -> AsyncGenerator[str]:
    """Carry these out, in the order in which one may need the other; a line for each thing done or left alone."""
    if isinstance(patient.tree, FleetAgentError):
        return
    prefect = PrefectAdmin(patient.tree.prefect)
    steps: dict[Mend, Callable[[], Awaitable[Sequence[str]]]] = {
        Mend.DEPLOY: deploy,
        Mend.AUTOMATIONS: lambda: make_automations(prefect, guards()),
        Mend.LIMIT: lambda: _switch_limit_on(prefect, patient.fleet),
        Mend.SCHEDULES: lambda: _let_schedules_run(prefect, patient.fleet),
        Mend.FLOW_RUNS: lambda: _crash_the_forsaken(prefect, patient),
        Mend.SLOT: lambda: _free_slot(prefect, patient),
    }
    for each, step in steps.items():
        if each in mends:
            try:
                for line in await step():
                    yield line
            except FleetAgentError as error:
                yield f"could not {each.value}: {error}"


async def _switch_limit_on(prefect: PrefectAdmin, fleet: str) -> list[str]:
    done: list[str] = []
    for name in _needed_by(fleet):
        seen = await prefect.deployment(name)
        if seen is not None and seen.limit is not None and not seen.limit.active:
            await prefect.activate_limit(seen.limit)
            done.append(f"limit of deployment {name} is on")
    return done


async def _let_schedules_run(prefect: PrefectAdmin, fleet: str) -> list[str]:
    done: list[str] = []
    for name in _needed_by(fleet):
        wanted, seen = _wanted(name), await prefect.deployment(name)
        if wanted is None or seen is None:
            continue
        for schedule in seen.schedules:
            if schedule.slug in wanted.slugs and not schedule.active:
                await prefect.activate_schedule(seen.id, schedule)
                done.append(f"schedule {schedule.slug} runs again")
    return done


async def _crash_the_forsaken(prefect: PrefectAdmin, patient: Patient) -> list[str]:
    seen = await prefect.deployment(patient.fleet)
    if seen is None or isinstance(patient.database, FleetAgentError):
        return []
    live = await prefect.live_flow_runs(seen.id)
    dead = _forsaken(patient.database, live)
    living = [run for run in live if run not in dead]
    done: list[str] = []
    for run in dead:
        if not health.may_be_crashed(run, living, now=datetime.now(UTC)):
            done.append(f"left {run.name} alone: another run is on its way and would lose its slot; try again after it")
        elif await prefect.crash(run.id, message=CRASHED_BY_US):
            done.append(f"crashed {run.name} in Prefect; what it had claimed waits for the next run")
    return done


async def _free_slot(prefect: PrefectAdmin, patient: Patient) -> list[str]:
    """Only what is nobody's now: crashing a run may have freed it, and a run may have taken it meanwhile."""
    finding = await _slots(prefect, patient.fleet, patient.sleep)
    seen = await prefect.deployment(patient.fleet)
    if finding.mend is not Mend.SLOT or seen is None or seen.limit is None:
        return []
    await prefect.free_slots(seen.limit)
    return ["freed the slot that nobody held"]


# --- the neighbours --------------------------------------------------------------------------------------------------


async def examine_neighbours(patient: Patient) -> AsyncGenerator[Finding]:
    """Provider, demand and model, where the settings say who they are and our tables by what policy."""
    settings = patient.settings
    if missing_for_up(settings) or isinstance(patient.database, FleetAgentError):
        return
    try:
        with patient.database.transaction() as tx:
            policy, name = session.policy(tx, patient.fleet), installation(tx).name
        async with patient.open_ports() as opened:
            for each, check in _neighbours(opened, patient.database, policy, settings, name):
                yield await _checked(each, check)
        yield _named("models", _models(patient.database))
    except FleetAgentError as error:
        yield Finding(well=False, sentence=f"neighbours: {error}")


def _neighbours(
    ports: Ports, database: Database, policy: Policy, settings: Settings, installation_name: str
) -> Sequence[tuple[str, Check]]:
    return (
        ("policy", lambda: _launch(policy, settings)),
        ("vast.ai account", lambda: _account(ports)),
        ("vast.ai boxes", lambda: _boxes(ports, installation_name)),
        ("vast.ai charges", lambda: _charges(ports)),
        ("vast.ai offers", lambda: _offers(ports, policy)),
        ("demand", lambda: _demand(ports)),
        ("model", lambda: see_a_tool_call(ports.model)),
        ("prompt", lambda: _prompt(database, settings.fleet, ports)),
        ("model budget", lambda: _spending(database, settings.fleet, ports, policy, settings)),
    )


async def _launch(policy: Policy, settings: Settings) -> str:
    if not policy.launch.image:
        raise FixSetup(
            "no image to launch, so nothing can be rented", "fleet-agent policy set launch.image=NAME@sha256:DIGEST"
        )
    unset = _unset_box_variables(policy, settings)
    if unset:
        raise FixSetup(
            f"launch.env names {', '.join(unset)}, so renting fails", "add it to FLEET_BOX_ENV, restart `up`"
        )
    return f"launches {policy.launch.image}"


def _unset_box_variables(policy: Policy, settings: Settings) -> list[str]:
    wanted = {value[1:] for value in policy.launch.env.values() if value.startswith("$")}
    return sorted(wanted - set(settings.box_env))


async def _account(ports: Ports) -> str:
    account = await ports.market.account()
    if account.credit_usd <= 0:
        raise FixSetup(f"credit is {show_usd(account.credit_usd)}", "add credit at vast.ai")
    return f"credit {show_usd(account.credit_usd)}"


async def _boxes(ports: Ports, installation_name: str) -> str:
    instances = (await ports.market.inventory()).instances
    labels = [label for each in instances if (label := parse_label(each.label)) is not None]
    others = Counter(label.installation for label in labels if label.installation != installation_name)
    said = "".join(f"; {count} of the installation {name}, left alone" for name, count in sorted(others.items()))
    return f"{len(instances)} in a complete list{said}"


async def _charges(ports: Ports) -> str:
    """Whether the key may read them: without, nobody notices a box that is billed and in no list."""
    now = ports.clock.now()
    charges = await ports.market.charges(now - DAY, now)
    boxes = len({charge.vast_id for charge in charges})
    return f"{show_usd(sum((charge.usd for charge in charges), start=Decimal(0)))} for {boxes} boxes since yesterday"


async def _offers(ports: Ports, policy: Policy) -> str:
    offers = await ports.market.offers(OfferQuery(policy=policy))
    if not offers:
        raise FixSetup("no offer meets the policy now", "loosen offers.* with `fleet-agent policy set`")
    return f"{len(offers)} meet the policy"


async def _demand(ports: Ports) -> str:
    demand = await ports.demand.demand()
    missing = "; ".join(not_known(demand))
    return f"{demand.pending} pending, {demand.running} running{f'; not known: {missing}' if missing else ''}"


def _models(database: Database) -> Finding:
    """What runs and self-tests have found out about every model that may be asked."""
    with database.transaction() as tx:
        return health.of_models(model_servers.listed(tx))


async def _spending(database: Database, fleet: str, ports: Ports, policy: Policy, settings: Settings) -> str:
    """Whether the day has left what the smallest prompt may cost, and whether the price of the model is known."""
    terms = await ports.model.terms()
    with database.transaction() as tx:
        spent = spending.of_the_day(tx, fleet, now=ports.clock.now())
        standing = reading.standing_now(tx, fleet)
    room = room_for_a_run(standing, ports.count_tokens, terms.factor)
    pinned_tokens = Budget(factor=terms.factor).target - room
    beyond = beyond_the_day(spent, terms.most(pinned_tokens), policy.model)
    if beyond is not None:
        raise BudgetSpent(f"the last 24 h took {beyond}", spending.RAISE_IT)
    free = [served.name for served in settings.models if not served.usd_per_million_tokens_in]
    unpriced = f"; no price is set for {', '.join(free)}, so only requests and tokens bound it" if free else ""
    return f"{spent.calls} requests, {spent.tokens:,} tokens, {show_usd(spent.usd)} in 24 h{unpriced}"


async def _prompt(database: Database, fleet: str, ports: Ports) -> str:
    """Whether what every prompt carries leaves room for what a run is about."""
    with database.transaction() as tx:
        standing = reading.standing_now(tx, fleet)
    left = room_for_a_run(standing, ports.count_tokens, (await ports.model.terms()).factor)
    return f"a run has {left:,} tokens of its own"
