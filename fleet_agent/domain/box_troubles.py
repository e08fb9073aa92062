"""What can be wrong with a box. The order in which it is asked for, and why, is in `domain/lookout.py`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from fleet_agent.domain.box_reports import could_report
from fleet_agent.domain.fleet import LEAVING_STAGES, TROUBLED, Box, Instance, Stage
from fleet_agent.domain.hosts import Failure, measured_rate
from fleet_agent.domain.money import UsdPerHour, show_rate, show_usd
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Removal, is_idle
from fleet_agent.domain.sight import Finding, Sight, Watched, destroy, let_go, minutes, works
from fleet_agent.domain.triggers import Kind

# --- a box that should not be there at all ----------------------------------------------------------------------------


def lives_on(watched: Watched, _: Instance, __: Sight) -> Finding | None:
    """That a destruction was accepted ends no billing; only a list without the box does."""
    if not watched.destroyed:
        return None
    why = "it was to be destroyed, and is still listed and billed"
    return Finding(
        code="lives on",
        text=f"{watched.name}: {why}; its destruction is asked for again",
        kind=Kind.DESTROY_IGNORED,
        notice=True,
        removal=destroy(watched, why),
    )


def is_second_of_one_order(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    """The oldest is the one that was ordered; of the others nobody knows, and no cap has counted them."""
    alike = [each.listed for each in sight.boxes if each.listed and each.box.label == watched.box.label]
    oldest = min(alike, key=lambda each: (each.started_at, each.id))
    if oldest.id == listed.id:
        return None
    why = f"its order made box {oldest.id} before it"
    return Finding(
        code="second of one order",
        text=f"{watched.name}: {why}; it is to be destroyed",
        kind=Kind.NOT_ORDERED,
        notice=True,
        removal=destroy(watched, why),
    )


BOOTING: Final = (Stage.RENTED, Stage.LOADING)


def is_not_as_ordered(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    difference = differs(watched, listed, sight.policy)
    if difference is None:
        return None
    return Finding(
        code="not as ordered",
        text=f"{watched.name} is not what was ordered: {difference}; it is to be destroyed",
        kind=Kind.BOX_FAILED,
        notice=True,
        removal=destroy(watched, difference),
        failure=Failure.DETERMINISTIC,
        in_vain=True,
    )


def differs(watched: Watched, listed: Instance, policy: Policy) -> str | None:
    """How a box is another than the one that was ordered, in words. What it came to cost later is another matter."""
    ordered = watched.ordered
    if ordered is None:
        return None
    if listed.machine_id != ordered.machine_id:
        return f"it is on machine {listed.machine_id}, and machine {ordered.machine_id} was ordered"
    if listed.num_gpus != ordered.num_gpus:
        return f"it has {listed.num_gpus} GPUs, and {ordered.num_gpus} were ordered"
    if policy.offers.whole_machine and ordered.gpu_share >= 1 and listed.gpu_share is not None and listed.gpu_share < 1:
        return "it is a share of a machine, and the whole was ordered"
    if listed.interruptible:
        return "whoever bids more can stop it, and it was ordered on demand"
    if watched.box.stage in BOOTING and listed.usd_per_hour > _may_cost(watched, policy):
        return f"it costs {show_rate(listed.usd_per_hour)}, and {show_rate(ordered.usd_per_hour)} was agreed"
    if watched.image and listed.image and not _same_image(watched.image, listed.image):
        return "it runs another image than the policy's"
    return None


def _may_cost(watched: Watched, policy: Policy) -> UsdPerHour:
    return UsdPerHour(watched.box.agreed_usd_per_hour * (1 + policy.watch.over_price))


def _same_image(ordered: str, listed: str) -> bool:
    """By digest where both say one; a provider may write the name in another way, or leave the digest out."""
    (name, _, digest), (listed_name, _, listed_digest) = ordered.partition("@"), listed.partition("@")
    if digest and listed_digest:
        return digest == listed_digest
    return name.rpartition("/")[2].partition(":")[0] == listed_name.rpartition("/")[2].partition(":")[0]


def was_not_ordered(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    """With our label and without an order: the database was restored, say. It may be at work, so it is kept unless the
    policy says otherwise."""
    if watched.ordered is not None:
        return None
    why = "it carries our label, and the ledger knows of no order for it"
    if sight.policy.watch.orphans == "adopt":
        said, removal = "it is kept and counted", None
    else:
        is_certain = watched.sightings >= 2 and sight.now - listed.started_at > sight.grace
        said, removal = "it is to be destroyed", destroy(watched, why) if is_certain else None
    return Finding(
        code="not ordered",
        text=f"{watched.name}: {why}; {said}",
        kind=Kind.NOT_ORDERED,
        notice=True,
        removal=removal,
    )


# --- a box that does not come up --------------------------------------------------------------------------------------

FATAL: Final[Mapping[str, Failure | None]] = {
    # What speaks of the image or its registry says nothing of the machine: it would fail on any other as well.
    "manifest unknown": None,
    "unauthorized": None,
    "pull rate limit": None,
    "no space left on device": Failure.TRANSIENT,
    "unexpected eof": Failure.TRANSIENT,
    "oci runtime create failed": Failure.DETERMINISTIC,
    "failed to create task": Failure.DETERMINISTIC,
    "failed to inject cdi devices": Failure.DETERMINISTIC,
    "ping_group_range: invalid argument": Failure.DETERMINISTIC,
    "failed to pull image": None,
    "error response from daemon": Failure.TRANSIENT,
}
"""Parts of the message of a box that will never run, with what they say of the machine; the first that fits counts."""

STALLED: Final = "retrying in"
"""Part of the message of a box whose image does not come: it may come yet."""


def cannot_start(watched: Watched, listed: Instance, _: Sight) -> Finding | None:
    said = listed.status_message.lower()
    fragment = next((each for each in FATAL if each in said), None)
    if fragment is None or listed.actual_status == "running":
        return None
    why = f"its container cannot start ({fragment})"
    return Finding(
        code="cannot start",
        text=f"{watched.name}: {why}; it is to be destroyed",
        kind=Kind.BOX_FAILED,
        removal=destroy(watched, why),
        failure=FATAL[fragment],
        in_vain=True,
    )


def has_given_up(watched: Watched, _: Instance, __: Sight) -> Finding | None:
    """By its own word, which harms nobody else. The agent heard of it, and why, when the box said so."""
    if not watched.gave_up:
        return None
    why = "it has given up"
    return Finding(
        code="gave up",
        text=f"{watched.name}: {why}, by its own word; it is to be destroyed",
        kind=Kind.BOX_PROGRESS,
        removal=destroy(watched, why),
        failure=Failure.TRANSIENT,
        in_vain=watched.box.stage not in (Stage.PROVING, *LEAVING_STAGES),
    )


def is_past_its_deadline(watched: Watched, _: Instance, sight: Sight) -> Finding | None:
    """For the part of its way that it is on, until it proves."""
    late = lateness(watched, sight)
    if late is None:
        return None
    return Finding(
        code="past its deadline",
        text=f"{watched.name}: {late}; it is to be destroyed",
        kind=Kind.BOX_FAILED,
        removal=destroy(watched, late),
        failure=Failure.TRANSIENT,
        in_vain=True,
    )


def lateness(watched: Watched, sight: Sight) -> str | None:
    """Which deadline has passed, in words. Beyond its container the list shows nothing, so only boxes that could report
    are waited for. What ran and does not any more has a grace of its own (`does_not_run`)."""
    box, now, allowed = watched.box, sight.now, sight.policy.deadlines
    match box.stage:
        case stage if stage in BOOTING and (watched.listed is None or watched.listed.actual_status not in TROUBLED):
            since = _boots_since(box, allowed.booting)
            return _late("its container does not run", now - since, allowed.booting)
        case Stage.PROVING if box.reported_at is None and _could_report(watched, sight):
            # Whoever comes and goes begins this part again and again, but not longer than both parts together may take.
            waited = max(now - box.stage_since, now - box.rented_at - allowed.booting)
            return _late("it has not reported", waited, allowed.registering)
        case Stage.REGISTERED:
            waited = now - box.stage_since
            return _late("its parameter files are not there", waited, allowed.fetching) or _too_slow(
                box, waited, allowed.fetching
            )
        case Stage.PARAMS_READY:
            return _late("it has not measured itself", now - box.stage_since, allowed.benchmarking)
        case _:
            return None


def _boots_since(box: Box, allowed: timedelta) -> datetime:
    """One that boots again when the time for its first start is over has run before, or it would not be there."""
    return box.stage_since if box.stage_since - box.rented_at > allowed else box.rented_at


def _could_report(watched: Watched, sight: Sight) -> bool:
    return could_report(has_hook=watched.has_hook, rented_at=watched.box.rented_at, reports_since=sight.reports_since)


RATE_SHOWS_AFTER: Final = timedelta(minutes=10)
"""What is slow before that may only have begun."""


def _too_slow(box: Box, waited: timedelta, allowed: timedelta) -> str | None:
    """Whether its files would come too late at the rate so far; who has nothing yet, by its own word, is waited for."""
    if not box.fetched or waited < RATE_SHOWS_AFTER or waited <= allowed * box.fetched:
        return None
    return (
        f"{box.fetched:.0%} of its parameter files are there after {minutes(waited)}, and all may take "
        f"{minutes(allowed)}"
    )


def _late(what: str, waited: timedelta, allowed: timedelta) -> str | None:
    return f"{what} after {minutes(waited)}, and may take {minutes(allowed)}" if waited > allowed else None


def is_stalled(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    if STALLED not in listed.status_message.lower() or listed.actual_status == "running":
        return None
    why = "its image does not come"
    return _waited_for(
        watched,
        sight,
        Finding(code="stalled", text=f"{watched.name}: {why}", may_pass=True),
        removal=destroy(watched, why),
        failure=Failure.TRANSIENT,
    )


# --- a box that ran, and does not any more ----------------------------------------------------------------------------


def does_not_run(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    """Of every status in which it earns nothing and may cost something. What a person or the provider stopped says
    nothing of the machine."""
    status = listed.actual_status
    if status not in TROUBLED:
        return None
    is_wanted = listed.intended_status == "running"
    if status in ("unknown", "offline"):
        what, kind = "its host is offline", Kind.HOST_OFFLINE
    elif is_wanted and listed.contract_status == "stopped":
        what, kind = "its GPUs were given to somebody else", Kind.OUTBID
    elif is_wanted:
        what, kind = f"its container has {status}" if status == "exited" else f"it is {status}", Kind.BOX_FAILED
    else:
        what, kind = "it was stopped, and not by us", Kind.BOX_FAILED
    return _waited_for(
        watched,
        sight,
        Finding(code=kind.value, text=f"{watched.name}: {what}", kind=kind, may_pass=True),
        removal=destroy(watched, what),
        failure=Failure.TRANSIENT if is_wanted else None,
    )


def has_fallen_silent(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    """It may be at work and only its line to us be down, so nothing is done about it."""
    reported_at, allowed = watched.box.reported_at, sight.policy.deadlines.outage
    if reported_at is None or listed.actual_status != "running" or sight.now - reported_at <= allowed:
        return None
    text = f"{watched.name}: it runs, and has not reported for more than {minutes(allowed)}"
    return Finding(code="silent", text=text, kind=Kind.BOX_SILENT)


def _waited_for(
    watched: Watched, sight: Sight, trouble: Finding, *, removal: Removal, failure: Failure | None
) -> Finding:
    """`trouble` while it may pass; then the box is given up. Who was told of the trouble as news need not be woken for
    its end: it was to be expected."""
    grace = sight.policy.deadlines.outage
    if watched.troubled_since is None or sight.now - watched.troubled_since < grace:
        return trouble
    was_news = trouble.kind in (Kind.OUTBID, Kind.BOX_FAILED)
    return trouble.model_copy(
        update={
            "code": f"{trouble.code} for long",
            "text": f"{trouble.text} for {minutes(sight.now - watched.troubled_since)}; it is to be destroyed",
            "kind": Kind.BOX_PROGRESS if was_news else Kind.BOX_FAILED,
            "removal": removal,
            "failure": failure,
        }
    )


# --- a box that costs too much, or is where it should not be ----------------------------------------------------------


def is_on_a_banned_machine(watched: Watched, _: Instance, sight: Sight) -> Finding | None:
    """A machine that failed for a while may hold a box that does well. Whoever banned it knows of it."""
    classes = {ban.failure for ban in sight.situation.bans if ban.machine_id == watched.box.machine_id}
    if watched.box.stage in LEAVING_STAGES or not classes - {Failure.TRANSIENT}:
        return None
    why = "its machine is banned"
    at_once = Failure.SECURITY in classes
    return Finding(
        code="banned machine",
        text=f"{watched.name}: {why}; it is given up",
        kind=Kind.BOX_PROGRESS,
        removal=destroy(watched, why) if at_once else let_go(watched, why),
    )


def is_over_its_price(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    if watched.box.stage in LEAVING_STAGES or listed.usd_per_hour <= _may_cost(watched, sight.policy):
        return None
    agreed = show_rate(watched.box.agreed_usd_per_hour)
    why = f"it costs {show_rate(listed.usd_per_hour)}, and {agreed} was agreed"
    return Finding(
        code="over its price",
        text=f"{watched.name}: {why}; it is given up",
        kind=Kind.OVER_PRICE,
        notice=True,
        removal=let_go(watched, why),
    )


def is_dear_for_its_proofs(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    box, cap = watched.box, sight.policy.limits.max_usd_per_proof
    measured = measured_rate(sight.situation.benchmarks, box.machine_id, box.num_gpus)
    if cap is None or measured is None or not works(watched) or listed.usd_per_hour <= cap * Decimal(str(measured)):
        return None
    price = show_rate(listed.usd_per_hour)
    why = f"its machine has shown {measured:g} proofs an hour, and at {price} a proof costs more than {show_usd(cap)}"
    return Finding(
        code="dear",
        text=f"{watched.name}: {why}; it is given up",
        kind=Kind.OVER_PRICE,
        removal=let_go(watched, why),
    )


def has_drained(watched: Watched, listed: Instance, sight: Sight) -> Finding | None:
    """Told to nobody: it was asked for."""
    box = watched.box
    if box.stage is not Stage.DRAINING or box.drain_by is None:
        return None
    is_booting = listed.actual_status in ("", "created", "loading")
    if is_booting or is_idle(box, sight.situation.demand, sight.now):
        why = "it has drained: it has no proof at hand"
    elif sight.now >= box.drain_by:
        why = "its time to drain is over"
    else:
        return None
    return Finding(code="drained", text=f"{watched.name}: {why}; it is to be destroyed", removal=destroy(watched, why))


def is_gone_unasked(box: Box) -> Finding:
    return Finding(
        code="gone",
        text=f"box {box.vast_id} on machine {box.machine_id} is gone, and nobody gave it up",
        kind=Kind.BOX_GONE,
        box=box,
    )
