"""What wakes the agent: every field of a look, with the bands in which a change counts, or why it never does.

An unchanged fleet costs no token. What "unchanged" means must not be guessed from a hash: a field that nobody thought
of would either wake the agent at every heartbeat or hide what happens. So each field stands in `FIELDS`, a test holds
that list against the types, and what is stored of a look are the bands by name, so that a run can say which of them
moved.

Bands have soft edges. A queue that goes to and fro between 15 and 16 crosses the edge of a band at each look; it wakes
the agent once, and again only when it has gone well past the edge.

What was refused only because it came too soon is asked about again at the next heartbeat: nothing that a look shows
would ever tell that its time has come.

Trouble that lasts is no change either. That the fleet does not fit the work, that the outcome of a call is unknown,
that an action waits for a person's word: each wakes when it comes and when it goes. While it stays as it is, the model
has had its say on it: whoever wants another look before the next review schedules a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fleet_agent.domain.fleet import LEAVING_STAGES, TROUBLED
from fleet_agent.domain.ledger import Unsettled
from fleet_agent.domain.observation import Known, Observation
from fleet_agent.domain.run import Approval, Claimed, Run, Standing, reason_of
from fleet_agent.domain.timeline import is_of_a_time_to_come
from fleet_agent.domain.triggers import Priority

MOST_BOXES_TOLD: Final = 8
"""Changed boxes that are named; there may be hundreds."""

SOFT_EDGE: Final = 0.25
"""A value may go this far past its band, as a part of the edge, before it counts as another."""

Bands = Mapping[str, str]
"""Path of a waking field → the band it is in."""


def _from_to(last: str, now: str) -> str:
    return f"{last} → {now}"


@dataclass(frozen=True)
class Look:
    """What a run sees before anybody decides: the world, and what is open between us and it."""

    observation: Observation
    unsettled: Sequence[Unsettled] = ()
    approvals: Sequence[Approval] = ()


@dataclass(frozen=True)
class Field:
    """One field, or all fields below it where the path ends in `.*`.

    band: the band of a look, given the band of the last one ("" at first); None where the field wakes nobody.
    why: the reason for that, for a reader.
    name: what a person and the model call it.
    told: the last band and the new one, in words.
    """

    path: str
    band: Callable[[Look, str], str] | None
    why: str
    name: str = ""
    told: Callable[[str, str], str] = _from_to


def bands(look: Look, last: Bands) -> dict[str, str]:
    """The band of each waking field; `last` are those of the look before."""
    return {each.path: each.band(look, last.get(each.path, "")) for each in FIELDS if each.band is not None}


def moved(last: Bands, now: Bands) -> tuple[str, ...]:
    """Which fields changed their band, in words; a field that the last look did not know counts as changed."""
    return tuple(
        f"{each.name}: {each.told(last.get(each.path, _NEVER), now[each.path])}"
        for each in FIELDS
        if each.path in now and last.get(each.path) != now[each.path]
    )


def changes(look: Look, last: Bands) -> tuple[str, ...]:
    """What has changed, in words, since the look that `last` is of."""
    return moved(last, bands(look, last))


def reasons_to_ask(
    run: Run,
    claimed: Claimed,
    standing: Standing,
    look: Look,
    now: datetime,
) -> tuple[str, ...]:
    """Why even a heartbeat asks the model: what came, what changed, what is due."""
    came = claimed.wakes or any(event.priority is not Priority.ROUTINE for event in claimed.events)
    reasons = [
        *([reason_of(claimed)] if came else []),
        *(changes(look, standing.last_bands) if standing.last_bands else ["the first look"]),
        *([f"{', '.join(standing.too_soon)} came too soon"] if standing.too_soon else []),
        *(["a review was asked for"] if run.force_review else []),
    ]
    every, reviewed_at = standing.policy.run.review_every, standing.last_review_at
    if reviewed_at is None or is_of_a_time_to_come(reviewed_at, now) or now - reviewed_at >= every:
        reasons.append(f"a review is due every {every.total_seconds() / 60:.0f} minutes")
    return tuple(reasons)


# --- bands -----------------------------------------------------------------------------------------------------------


def doubled(value: float, last: str) -> str:
    """Bands of powers of two, such as `16–31`; none is a band of its own."""
    kept = _bounds(last)
    if kept is not None and kept[0] * (1 - SOFT_EDGE) <= value <= kept[1] * (1 + SOFT_EDGE):
        return last
    power = max(0, int(value)).bit_length()
    return "0" if power == 0 else f"{2 ** (power - 1)}–{2**power - 1}"


def _bounds(band: str) -> tuple[int, int] | None:
    low, separator, high = band.partition("–")
    if band == "0":
        return 0, 0
    return (int(low), int(high)) if separator and low.isdigit() and high.isdigit() else None


def stepped(value: timedelta, last: str, edges: Sequence[timedelta]) -> str:
    """Bands between the given edges, such as `over 1:00:00`, soft on the way back."""
    for position in range(len(edges), 0, -1):
        edge = edges[position - 1]
        soft = edge * (1 - SOFT_EDGE) if last == _over(edge) else edge
        if value >= soft:
            return _over(edge)
    return f"under {edges[0]}"


def _over(edge: timedelta) -> str:
    return f"over {edge}"


# --- the fields ------------------------------------------------------------------------------------------------------

_WAITS: Final = (timedelta(minutes=30), timedelta(hours=2), timedelta(hours=8), timedelta(hours=24))
_RUNWAYS: Final = (timedelta(hours=2), timedelta(hours=6), timedelta(hours=24), timedelta(hours=72))

_NEVER: Final = "never seen"
_UNKNOWN: Final = "unknown"
_NO_FIGURE: Final = "no figure"


def _inventory(look: Look, _: str) -> str:
    return "known" if isinstance(look.observation.inventory, Known) else _UNKNOWN


def _pending(look: Look, last: str) -> str:
    demand = look.observation.demand
    return doubled(demand.value.pending, last) if isinstance(demand, Known) else _UNKNOWN


def _oldest(look: Look, last: str) -> str:
    demand = look.observation.demand
    if not isinstance(demand, Known):
        return last or _NO_FIGURE
    oldest = demand.value.oldest_pending
    return _NO_FIGURE if oldest is None else stepped(oldest, last, _WAITS)


def _failed(look: Look, last: str) -> str:
    demand = look.observation.demand
    if not isinstance(demand, Known):
        return last or _NO_FIGURE
    failed = demand.value.failed_per_hour
    return _NO_FIGURE if failed is None else doubled(failed, last)


def _runway(look: Look, last: str) -> str:
    account = look.observation.account
    if not isinstance(account, Known):
        return last or _UNKNOWN
    if account.value.credit_usd <= 0:
        return "no credit"
    left = look.observation.runway()
    return "nothing burnt" if left is None else stepped(left, last, _RUNWAYS)


def _stages(look: Look, _: str) -> str:
    """The provider may call a box `exited` that never got beyond loading: the stage alone would hide it."""
    inventory = look.observation.inventory
    listed = inventory.value.instances if isinstance(inventory, Known) else ()
    trouble: dict[int | None, str] = {
        each.id: f"/{each.actual_status}" for each in listed if each.actual_status in TROUBLED
    }
    stages = [
        f"{box.key}:{box.stage}{'' if box.stage in LEAVING_STAGES else trouble.get(box.vast_id, '')}"
        for box in look.observation.live_boxes()
    ]
    return " ".join(sorted(stages)) or "no box"


def _changed_stages(last: str, now: str) -> str:
    """Box by box, only those that differ, and no more than a reader takes in."""
    before, after = _by_box(last), _by_box(now)
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    told = [f"{key} {after.get(key, 'no longer there')}" for key in keys[:MOST_BOXES_TOLD]]
    more = [f"{len(keys) - MOST_BOXES_TOLD} more"] if len(keys) > MOST_BOXES_TOLD else []
    return ", ".join([*told, *more]) or _from_to(last, now)


def _by_box(band: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in band.split())
    return {key: stage for key, _, stage in pairs if stage}


def _in_flight(look: Look, _: str) -> str:
    return str(look.observation.in_flight_count)


def _fit(look: Look, last: str) -> str:
    """A plain look at capacity until there is a planner. A box that a person protects is no box too many."""
    demand = look.observation.demand
    if not isinstance(demand, Known) or not isinstance(look.observation.inventory, Known):
        return last or _UNKNOWN  # that it became unknown is a change of another field
    work = demand.value.pending + demand.value.running
    staying = [box for box in look.observation.live_boxes() if box.stage not in LEAVING_STAGES]
    in_flight = look.observation.in_flight_count
    if work and not staying and not in_flight:
        return "work and no box"
    if not work and (in_flight or any(not box.protected for box in staying)):
        return "boxes and no work"
    return "as it should be"


def _unsettled(look: Look, _: str) -> str:
    return " ".join(f"{action.tool}:{action.key}" for action in look.unsettled) or "none"


def _approvals(look: Look, _: str) -> str:
    return " ".join(f"{approval.tool}:{approval.key}" for approval in look.approvals) or "none"


FIELDS: Final[tuple[Field, ...]] = (
    Field("taken_at", None, "changes with every look"),
    Field("inventory", _inventory, "whether it could be read: while it cannot, nothing may be done", "list of boxes"),
    Field(
        "inventory.value.instances.*", None, "the provider's claims; what they mean stands beside the stage of a box"
    ),
    Field("inventory.value.seen_at", None, "changes with every look"),
    Field("inventory.seen_at", None, "changes with every look"),
    Field("inventory.reason", None, "words of an error, which change without anything else changing"),
    Field("demand.value.pending", _pending, "how much work waits, in powers of two; unknown is a band", "queue"),
    Field("demand.value.oldest_pending", _oldest, "how long the oldest waits, in a few steps", "oldest in queue"),
    Field(
        "demand.value.failed_per_hour",
        _failed,
        "failures, in powers of two: a box may be the cause",
        "failures per hour",
    ),
    Field("demand.value.running", None, "work that is being done; that it ends shows in what waits and in the boxes"),
    Field("demand.value.done_per_hour", None, "moves all the time while boxes prove"),
    Field("demand.value.seen_at", None, "changes with every look"),
    Field("demand.seen_at", None, "changes with every look"),
    Field("demand.reason", None, "words of an error"),
    Field(
        "account.value.credit_usd", _runway, "how long it lasts at what is burnt now, in a few steps", "credit lasts"
    ),
    Field("account.seen_at", None, "changes with every look"),
    Field("account.reason", None, "words of an error"),
    Field(
        "boxes.*.stage",
        _stages,
        "each box that comes, goes, changes its stage or gets into trouble",
        "boxes",
        _changed_stages,
    ),
    Field("boxes.*.key", None, "part of the stages"),
    Field("boxes.*.label", None, "made from the key"),
    Field("boxes.*.vast_id", None, "comes with the first stage in which the provider lists the box"),
    Field("boxes.*.machine_id", None, "fixed for a box"),
    Field("boxes.*.gpu_name", None, "fixed for a box"),
    Field("boxes.*.num_gpus", None, "fixed for a box"),
    Field("boxes.*.usd_per_hour", None, "agreed when it was rented; what is over it is a matter of the rules"),
    Field("boxes.*.agreed_usd_per_hour", None, "fixed for a box"),
    Field("boxes.*.rented_at", None, "fixed for a box"),
    Field("boxes.*.stage_since", None, "goes with the stage"),
    Field("boxes.*.drain_by", None, "set with the stage `draining`; the watch keeps it"),
    Field("boxes.*.drain_because", None, "set with the stage `draining`"),
    Field("boxes.*.tasks", None, "moves all the time while boxes prove"),
    Field("boxes.*.fetched", None, "moves while parameters come; that it is too slow is the watch's to find"),
    Field("boxes.*.reported_at", None, "moves with every word of a box; that one falls silent is the watch's to find"),
    Field("boxes.*.busy", None, "a call that is on its way; what it comes to shows in the stage"),
    Field("boxes.*.protected", None, "set by a person, which is an event of its own"),
    Field("in_flight_count", _in_flight, "rents whose outcome is open", "in flight"),
    Field("in_flight_usd_per_hour", None, "goes with their count"),
    Field("fit", _fit, "whether the boxes fit the work, by kind and not by number", "boxes for the work"),
    Field(
        "unsettled",
        _unsettled,
        "calls that may have reached the provider and whose outcome nobody saw",
        "outcome unknown",
    ),
    Field(
        "approvals",
        _approvals,
        "actions that wait for a person's word: a new one, or one that was answered",
        "approvals",
    ),
)
