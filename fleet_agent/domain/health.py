"""What the doctor makes of what it read: one finding each, and what may mend it.

Pure judgement on values that the adapters filled in. A finding is one sentence; a bad one ends with how to mend it, and
names the `Mend` that `doctor --fix` may carry out. What a person may have wanted, or what a mend could make worse, is
only said.

Times are real where Prefect says them and business where our tables do; no function here compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from fleet_agent.domain.model_server import ModelName, ModelState
from fleet_agent.domain.values import Frozen


class Mend(StrEnum):
    """What can be mended without asking a person."""

    DEPLOY = "deploy again"
    AUTOMATIONS = "make the automations as they should be"
    LIMIT = "switch the limit on"
    SCHEDULES = "let the schedule run again"
    SLOT = "free the slot that nobody holds"
    FLOW_RUNS = "crash the flow runs that nobody carries out"


class Finding(Frozen):
    well: bool
    sentence: str
    mend: Mend | None = None


def fine(sentence: str) -> Finding:
    return Finding(well=True, sentence=sentence)


def bad(cause: str, remedy: str, mend: Mend | None = None) -> Finding:
    return Finding(well=False, sentence=f"{cause} → {remedy}", mend=mend)


FIX = "fleet-agent doctor --fix"


# --- what was read ---------------------------------------------------------------------------------------------------


class ServerSettings(Frozen):
    """What Prefect's server says of itself."""

    lease_storage: str
    slot_wait: timedelta
    cancelling_timeout: timedelta


class Schedule(Frozen):
    id: str
    slug: str | None
    active: bool


class Limit(Frozen):
    """Of a deployment: at most `limit` runs at a time; `active_slots` is what Prefect counts as taken."""

    id: str
    limit: int
    active_slots: int
    active: bool = True


class Deployment(Frozen):
    id: str
    name: str
    entrypoint: str | None
    work_pool: str | None
    paused: bool
    limit: Limit | None
    collision_strategy: str | None
    grace: timedelta | None
    schedules: tuple[Schedule, ...]


class WantedDeployment(Frozen):
    """What `prefect.yaml` says of a deployment, as far as it may not be otherwise."""

    entrypoint: str
    limit: int
    collision_strategy: str
    grace: timedelta
    slugs: tuple[str, ...]


class LiveFlowRun(Frozen):
    """A flow run that holds a slot: pending, running or being cancelled."""

    id: str
    name: str
    state_type: str
    since: datetime
    """Real: since when it is in this state."""


class WorkPool(Frozen):
    name: str
    paused: bool
    heard_from: tuple[datetime, ...]
    """Real: when each of its workers last reported."""


class PendingWake(Frozen):
    id: int
    wake_at: datetime
    asked_at: datetime
    flow_run_id: str | None


class FleetHealth(Frozen):
    """What our tables say, in business time."""

    last_closed_at: datetime | None
    newest_run: str
    """Of the newest run that ended otherwise than well, after the last that closed: what happened to it; or empty."""
    wakes: tuple[PendingWake, ...]
    untold: int
    oldest_untold_at: datetime | None
    quarantined: int


# --- Prefect's server ------------------------------------------------------------------------------------------------

LONGEST_SLOT_WAIT = timedelta(seconds=5)
LONGEST_CANCELLING = timedelta(seconds=120)


def of_server(seen: ServerSettings) -> Finding:
    if seen.lease_storage.endswith(".memory"):
        return bad(
            "Prefect keeps the leases of runs in memory: a restart ends the run at hand or leaves its slot taken",
            "start the server with PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE="
            "prefect.server.concurrency.lease_storage.filesystem (`fleet-agent up` does)",
        )
    if seen.slot_wait > LONGEST_SLOT_WAIT:
        return bad(
            f"a run that found the slot taken waits {_span(seen.slot_wait)} for its next try",
            "start the server with PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS=2",
        )
    if seen.cancelling_timeout > LONGEST_CANCELLING:
        return bad(
            f"a run that cannot be cancelled keeps its slot for {_span(seen.cancelling_timeout)}",
            "start the server with PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS=60",
        )
    return fine("leases survive a restart, a run waits for its slot in short steps")


# --- the deployment --------------------------------------------------------------------------------------------------


def of_deployment(name: str, wanted: WantedDeployment | None, seen: Deployment | None) -> Finding:
    if wanted is None:
        return bad(f"prefect.yaml has no deployment {name}", f"add one for the fleet {name}, then `fleet-agent deploy`")
    if seen is None:
        return bad(f"Prefect has no deployment {name}", "fleet-agent deploy", Mend.DEPLOY)
    differs = [
        what
        for what, ours, theirs in (
            ("entrypoint", wanted.entrypoint, seen.entrypoint),
            ("limit", wanted.limit, seen.limit.limit if seen.limit else "none"),
            ("collision strategy", wanted.collision_strategy, seen.collision_strategy),
            ("grace period", wanted.grace, seen.grace),
        )
        if ours != theirs
    ]
    if differs:
        return bad(f"deployment {name} has another {', '.join(differs)} than prefect.yaml", FIX, Mend.DEPLOY)
    if seen.limit is not None and not seen.limit.active:  # deploying again leaves it so
        return bad(f"the limit of deployment {name} is switched off, so runs go side by side", FIX, Mend.LIMIT)
    if seen.paused:
        return bad(f"deployment {name} is paused in Prefect", "resume it in Prefect's pages")
    return fine(f"deployment {name} runs {seen.limit.limit if seen.limit else 0} at a time, the others wait")


def of_schedules(wanted: WantedDeployment, seen: Deployment) -> Finding:
    by_slug = {each.slug: each for each in seen.schedules}
    missing = [slug for slug in wanted.slugs if slug not in by_slug]
    if missing:
        return bad(f"no schedule {', '.join(missing)}", FIX, Mend.DEPLOY)
    strangers = [each for each in seen.schedules if each.slug not in wanted.slugs and each.active]
    if strangers:
        names = ", ".join(each.slug or f"{each.id} without a slug" for each in strangers)
        return bad(f"schedules that prefect.yaml does not know: {names}", "delete them in Prefect's pages")
    asleep = [slug for slug in wanted.slugs if not by_slug[slug].active]
    if asleep:
        return bad(f"schedule {', '.join(asleep)} is switched off, so nothing happens by itself", FIX, Mend.SCHEDULES)
    return fine(f"{', '.join(wanted.slugs)}, active")


WORKER_IS_HEARD_EVERY = timedelta(seconds=30)
SILENT_WORKER = 3 * WORKER_IS_HEARD_EVERY


def of_worker(pool_name: str | None, pool: WorkPool | None, *, now: datetime) -> Finding:
    """`now` is real time."""
    if pool_name is None or pool is None:
        return bad(f"Prefect has no work pool {pool_name or 'for the deployment'}", FIX, Mend.DEPLOY)
    if pool.paused:
        return bad(f"work pool {pool.name} is paused in Prefect", "resume it in Prefect's pages")
    if not pool.heard_from:
        return bad(f"no worker ever looked at the work pool {pool.name}", "fleet-agent up, or `fleet-agent worker`")
    silence = now - max(pool.heard_from)
    if silence > SILENT_WORKER:
        return bad(
            f"no worker looks at the work pool {pool.name}: the last one reported {_span(silence)} ago",
            "fleet-agent up; its worker.log says why it ended",
        )
    return fine(f"looks at the pool {pool.name}")


# --- slots and flow runs ---------------------------------------------------------------------------------------------

LEASE = timedelta(seconds=300)
"""How long a running run has its slot without renewing it. Crashing a run whose lease is over takes the slot from
whoever has it by then, for Prefect counts down without looking (measured, 3.9.1)."""

MAY_BE_SILENT = timedelta(seconds=60)
"""Real time without a sign of life: the watch acts after 20 s, so that after a minute nobody did."""

MAY_BE_PENDING = timedelta(seconds=120)
"""Then its lease is over: it is the grace period of `prefect.yaml`. Prefect's own automation acts after 90 s."""


def of_slots(deployment: Deployment, live: Sequence[LiveFlowRun]) -> Finding:
    """`live` is what was live before or after the slots were read: a run that just ended does not make a finding."""
    taken = deployment.limit.active_slots if deployment.limit else 0
    if taken and not live:
        return bad(f"{taken} slot taken and no run has it, so every run waits for ever", FIX, Mend.SLOT)
    if taken > len(live):
        return bad(f"{taken} slots taken by {_runs(live)}", f"when it is over: {FIX}")
    return fine(f"{taken} taken, {len(live)} runs on their way")


def forsaken(
    live: Sequence[LiveFlowRun], silent_for: Mapping[str, timedelta], *, now: datetime
) -> tuple[LiveFlowRun, ...]:
    """The flow runs that nobody carries out any more. `silent_for` is real time since a run's last sign of life, by
    the id of its flow run; `now` is real time."""

    def is_forsaken(run: LiveFlowRun) -> bool:
        age = now - run.since
        if run.state_type == "RUNNING":
            return silent_for.get(run.id, age) > MAY_BE_SILENT
        return run.state_type == "PENDING" and age > MAY_BE_PENDING

    return tuple(run for run in live if is_forsaken(run))


def may_be_crashed(dead: LiveFlowRun, living: Collection[LiveFlowRun], *, now: datetime) -> bool:
    """Not while another run is on its way and the dead one's lease may be over: the living one would lose its slot."""
    return not living or (dead.state_type == "RUNNING" and now - dead.since < LEASE - MAY_BE_SILENT)


def of_flow_runs(dead: Sequence[LiveFlowRun], *, now: datetime) -> Finding:
    if dead:
        names = ", ".join(f"{run.name} ({run.state_type.lower()} for {_span(now - run.since)})" for run in dead)
        return bad(f"nobody carries out {names}, and Prefect does not know it", FIX, Mend.FLOW_RUNS)
    return fine("none that nobody carries out")


# --- automations -----------------------------------------------------------------------------------------------------


def of_automation(name: str, count: int, faults: Sequence[str], mend: Mend) -> Finding:
    """How many automations of this name there are, and in what the first is not as it should be."""
    if count == 0:
        return bad(f"automation {name!r} is missing", FIX, mend)
    if count > 1:
        return bad(f"automation {name!r} is there {count} times", FIX, mend)
    if faults == ["enabled"]:
        return bad(f"automation {name!r} is switched off", FIX, mend)
    if faults:
        return bad(f"automation {name!r} has been changed ({', '.join(faults)})", FIX, mend)
    return fine(f"{name}, on")


# --- our own tables --------------------------------------------------------------------------------------------------

OVERDUE = 2
"""Heartbeats without a run that closed."""


def of_last_run(seen: FleetHealth, *, since: datetime, now: datetime, heartbeat: timedelta) -> Finding:
    """`since`: nothing can be expected from before then (the fleet began, the tree was started)."""
    after = f" (the newest: {seen.newest_run})" if seen.newest_run else ""
    waiting = now - max(filter(None, (seen.last_closed_at, since)))
    if waiting > OVERDUE * heartbeat:
        last = "ever" if seen.last_closed_at is None else f"for {_span(now - seen.last_closed_at)}"
        return bad(f"no run has closed {last}{after}", "see the flow runs in Prefect's pages and worker.log")
    if seen.last_closed_at is None:
        return fine(f"none closed yet, the first is due within {_span(heartbeat)}{after}")
    return fine(f"closed {_span(now - seen.last_closed_at)} ago{after}")


def of_wakes(seen: Sequence[PendingWake], over: Collection[str], *, now: datetime, grace: timedelta) -> Finding:
    """`over` are the flow runs that have ended; `grace` is how long the bell may take to show a wake in Prefect."""
    unseen = [
        wake for wake in seen if (wake.flow_run_id is None and now - wake.asked_at > grace) or wake.flow_run_id in over
    ]
    if unseen:
        ids = ", ".join(str(wake.id) for wake in unseen)
        return bad(f"Prefect has no flow run to come for wake {ids}", "the watch makes it: is `fleet-agent watch` up?")
    return fine(f"{len(seen)} pending")


def of_notices(seen: FleetHealth, *, now: datetime) -> Finding:
    """Only said: a person may have set no address to be told at."""
    said: list[str] = []
    if seen.untold and seen.oldest_untold_at is not None:
        said.append(f"{seen.untold} not told yet, the oldest {_span(now - seen.oldest_untold_at)} old")
    if seen.quarantined:
        said.append(f"{seen.quarantined} events quarantined: `fleet-agent inbox list`")
    return fine("; ".join(said) or "all told, no event quarantined")


def of_models(listed: Sequence[tuple[ModelName, ModelState]]) -> Finding:
    """What a person should mend of a model: that one fails for a while is what the list is for, and only said."""
    for name, state in listed:
        if state.truncates_since is not None:
            return bad(f"{name} cuts our prompts", "give it a larger window (Ollama: OLLAMA_CONTEXT_LENGTH)")
        if state.needs_a_person:
            return Finding(well=False, sentence=state.trouble)
        if state.test_passed is False:
            return bad(f"{name} failed its self-test ({state.test})", "see that it is served, and calls tools")
    failing = [f"{name} failed {state.failures} times in a row" for name, state in listed if state.failures]
    return fine("; ".join(failing) or "all well")


# --- this machine ----------------------------------------------------------------------------------------------------


def of_variables(given: Collection[str], known: Collection[str]) -> Finding:
    """Variables of our prefix that no setting reads are typing errors."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        name = unknown[0]
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else "unset it; `.env.example` has every setting"
        return bad(f"no setting is called {', '.join(unknown)}", remedy)
    return fine("every FLEET_ variable is one")


def _runs(live: Sequence[LiveFlowRun]) -> str:
    return ", ".join(run.name for run in live)


def _span(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 2 * 3600:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"
