"""How many boxes the work needs, and which: a pure function of figures, so that a fleet flies when no model answers.

    figures  →  need  →  too little there: rent · too much: give up · else nothing  →  unless something holds it back

The need is a rate. What arrives must be proved as it arrives, and what waits within the drain window:

    most  = arrivals + work ÷ drain window
    least = arrivals + work that will be left when help can be there ÷ drain window

A box that is rented now proves after an hour or so. So renting does not go by the queue as it is, but by what the boxes
that are there and on their way will have left of it by then: a queue that they work off before needs no further box,
and one that grows needs more than it shows. Between least and most a fleet fits, and nothing is done.

Readings err and demand swings. So boxes are rented for what readings in a row agree on, and given up when no reading of
the quiet window had a use for them, one at a time or few. Nothing is kept here: readings are passed in, and each plan
carries one for those after it. What may be done at all the rules say (`domain.rules`); they are asked before anything
is planned, so a plan is within every cap, and where they are what holds it back, the reason is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Final

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.choice import ANY_RENT, Choice, Wish, chosen, with_one_more
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import LEAVING_STAGES, LIVE_STAGES, TROUBLED, Box, Offer, Stage
from fleet_agent.domain.money import show_rate, show_usd
from fleet_agent.domain.observation import Known
from fleet_agent.domain.plan import Move, Need, Plan, Reading, Search, count_of
from fleet_agent.domain.policy import Planning
from fleet_agent.domain.rules import (
    FRESH,
    Actor,
    Decision,
    Mode,
    Objection,
    Removal,
    Situation,
    boxes_within_cap,
    demand_is_fresh,
    inventory_is_known,
    judge,
    list_can_be_true,
    not_paused,
    renting_does_not_keep_failing,
    rents_of_hour_within_cap,
    rents_of_run_within_cap,
    scale_out_not_paused,
)
from fleet_agent.domain.show import gpu
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.worth import HOUR, Experience, StartUp, experience

CONFIRMS_AFTER: Final = timedelta(minutes=1)
"""Readings nearer to each other count as one: events may bring several runs within seconds."""

LONGEST_GAP: Final = timedelta(minutes=15)
"""Three heartbeats. Of what was in a longer gap between two readings, nothing is known."""

LONG_QUEUE: Final = timedelta(minutes=10)
"""Of work for the boxes that prove."""

GROWS_OVER: Final = timedelta(minutes=20)
"""How far back a long queue is compared with now. Over less, chance looks like growth; over more, it is seen late."""

URGENT_SHARE: Final = 2 / 3
"""Of the deadline: work that waits so long, or will have to, waits for no confirmation."""

LEAST_SICK: Final = 2
"""Boxes. A single one that is sick is a box that is sick."""

ON_THE_WAY: Final = LIVE_STAGES - LEAVING_STAGES - {Stage.PROVING}

READABLE: Final = (inventory_is_known, list_can_be_true, demand_is_fresh)

MAY_RENT: Final[tuple[Callable[[RentBox, Situation], Objection | None], ...]] = (
    not_paused,
    scale_out_not_paused,
    renting_does_not_keep_failing,
    boxes_within_cap,
    rents_of_run_within_cap,
    rents_of_hour_within_cap,
)
"""What can be asked before there is an offer."""


class Grounds(Frozen):
    """Everything that a plan is made on: what the rules see, and what was seen before."""

    situation: Situation
    slots: int | None = None
    """Proofs that the market gives us at once; None where nothing limits them."""
    startups: tuple[StartUp, ...] = ()
    history: tuple[Reading, ...] = ()
    """Of the last hour, or of the quiet window where that is longer, and of a quarter more; in any order."""


def make_plan(grounds: Grounds) -> Plan:
    """What should be done now. Never raises, and never plans what the rules would not allow the planner."""
    view = _view(grounds)
    if view.unread is not None:
        return _plan(view, why="Nothing is planned on what is not known.", held_because=view.unread)
    if view.capacity < view.need.least or view.fleet.count < view.planning.min_boxes:
        return _grow(view)
    if view.capacity > view.need.most:
        return _shrink(view)
    return _plan(view, why=f"{_in_words(view)}, which fits.")


# --- what there is, and what is needed --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fleet:
    """The boxes that are not on their way out, by what they are good for."""

    proving: tuple[Box, ...]
    coming: tuple[Box, ...]
    in_flight: int
    late: tuple[Box, ...]
    """Of those that are coming: longer on their way than nearly all before them were."""
    sick: tuple[Box, ...]
    """In trouble by the provider's list. They count until the watch gives them up: one place says what is lost."""
    draining: tuple[Box, ...]
    """No part of the fleet any more."""
    present: float
    """Proofs an hour of those that prove."""
    on_the_way: float
    """Of those that will, rents in flight included."""

    @property
    def staying(self) -> tuple[Box, ...]:
        return (*self.proving, *self.coming)

    @property
    def count(self) -> int:
        return len(self.staying) + self.in_flight


@dataclass(frozen=True)
class _View:
    """What one plan goes by."""

    grounds: Grounds
    situation: Situation
    known: Experience
    fleet: _Fleet
    unread: str | None
    """Why there can be no plan."""
    work: int
    arrivals: float
    """Proofs an hour."""
    need: Need

    @property
    def now(self) -> datetime:
        return self.situation.now

    @property
    def planning(self) -> Planning:
        return self.situation.policy.planning

    @property
    def capacity(self) -> float:
        return self.fleet.present + self.fleet.on_the_way


def _view(grounds: Grounds) -> _View:
    situation = grounds.situation.model_copy(update={"actor": Actor.PLANNER, "grant": None})
    machines = [*situation.listing, *situation.boxes]
    known = experience(situation.policy.planning, situation.benchmarks, grounds.startups, machines)
    fleet = _fleet(situation, known)
    unread = _first_sentence(rule(ANY_RENT, situation) for rule in READABLE)
    if not isinstance(situation.demand, Known):
        return _View(grounds, situation, known, fleet, unread, work=0, arrivals=0, need=Need(least=0, most=0))
    demand = situation.demand.value
    arrivals = arrivals_per_hour(demand, grounds.history, situation.now, present=fleet.present)
    need = _need(grounds, known, fleet, work=_work(demand), arrivals=arrivals)
    return _View(grounds, situation, known, fleet, unread, work=_work(demand), arrivals=arrivals, need=need)


def _fleet(situation: Situation, known: Experience) -> _Fleet:
    listed = situation.inventory.value.instances if isinstance(situation.inventory, Known) else ()
    troubled = {instance.id for instance in listed if instance.actual_status in TROUBLED}
    proving = tuple(box for box in situation.boxes if box.stage is Stage.PROVING)
    coming = tuple(box for box in situation.boxes if box.stage in ON_THE_WAY)
    return _Fleet(
        proving=proving,
        coming=coming,
        in_flight=situation.in_flight_count,
        late=tuple(box for box in coming if situation.now - box.rented_at > known.lead_p95),
        sick=tuple(box for box in (*proving, *coming) if box.vast_id in troubled),
        draining=tuple(box for box in situation.boxes if box.stage is Stage.DRAINING),
        present=math.fsum(map(known.rate_of_box, proving)),
        on_the_way=math.fsum(map(known.rate_of_box, coming)) + situation.in_flight_count * known.usual_rate,
    )


def _work(demand: Demand) -> int:
    return demand.pending + demand.running


def arrivals_per_hour(demand: Demand, history: Sequence[Reading], now: datetime, *, present: float) -> float:
    """What was done within an hour, and by how much the queue grew in it; of a long queue also what it grew by lately.

    That is not asked of a short one: what was done in a wave that is over would be taken for what arrives now.
    `present`: proofs an hour of the boxes that prove.
    """
    done = demand.done_per_hour or 0.0
    of_the_hour = max(0.0, done + _growth_per_hour(demand, history, now, over=HOUR))
    if demand.pending < present * (LONG_QUEUE / HOUR):
        return of_the_hour
    return max(of_the_hour, done + _growth_per_hour(demand, history, now, over=GROWS_OVER))


def _growth_per_hour(demand: Demand, history: Sequence[Reading], now: datetime, *, over: timedelta) -> float:
    before = [reading for reading in history if over / 2 <= now - reading.at <= over + LONGEST_GAP]
    if not before:
        return 0.0
    then = min(before, key=lambda reading: (abs(now - reading.at - over), reading.at, reading.work))
    return (_work(demand) - then.work) / ((now - then.at) / HOUR)


def _need(grounds: Grounds, known: Experience, fleet: _Fleet, *, work: int, arrivals: float) -> Need:
    planning, window = known.planning, known.planning.drain_window / HOUR
    steady = arrivals * (1 + planning.headroom)
    left = _left_when_help_comes(known, fleet, grounds.situation.now, work=work, arrivals=arrivals)
    least, most = steady + left / window, steady + work / window
    fed = _fed(grounds.slots, fleet, known)
    return Need(least=min(least, fed), most=min(max(least, most), fed))


def _left_when_help_comes(known: Experience, fleet: _Fleet, now: datetime, *, work: int, arrivals: float) -> float:
    """Of what waits and what arrives, after all that the boxes that are there and on their way do until then."""
    until = known.usual_lead
    done = fleet.present * (until / HOUR)
    for box in fleet.coming:
        starts = max(timedelta(0), known.lead_of_box(box) - (now - box.rented_at))
        if box not in fleet.late and starts < until:
            done += known.rate_of_box(box) * ((until - starts) / HOUR)
    return max(0.0, work + arrivals * (until / HOUR) - done)


def _fed(slots: int | None, fleet: _Fleet, known: Experience) -> float:
    """Proofs an hour of as many boxes as the market gives proofs at once: any further box would have none."""
    if slots is None or fleet.count < slots:
        return math.inf
    rates = [*map(known.rate_of_box, fleet.staying), *[known.usual_rate] * fleet.in_flight]
    return math.fsum(sorted(rates, reverse=True)[:slots])


# --- too little: rent -------------------------------------------------------------------------------------------------


def _grow(view: _View) -> Plan:
    """Wanted is what the figures ask for; what is rented is what they have asked for long enough."""
    why = f"{_in_words(view)}, which is too little."
    wanted = _wanted_more(view)
    alarm = _first_said(_many_are_sick(view), _starved(view))
    held = _first_said(alarm, _unconfirmed(view), _nothing_for_more(view))
    if held is not None:
        return _plan(view, why=why, wanted_boxes=wanted, held_because=held, alarm=alarm)
    missing = _confirmed(view) - view.capacity
    if not view.situation.listing:
        return _search(view, missing, why=why, wanted_boxes=wanted)
    choice = _choice(view, view.situation, missing)
    offers = choice.offers[: _changes_left(view)]
    held = choice.objection if len(offers) == len(choice.offers) else _enough_changes(view)
    moves = [RentBox(offer_id=offer.id, reason=f"{_worth(view, offer)} {why}") for offer in offers]
    return _plan(view, why=why, wanted_boxes=wanted, moves=moves, held_because=held)


def _wanted_more(view: _View) -> int:
    """By what caps allow in the long run: how fast it may go, and what a person holds back for now, changes nothing
    about what is wanted."""
    missing = view.need.least - view.capacity
    if not view.situation.listing:
        return view.fleet.count + _boxes_for(view, missing)
    policy = view.situation.policy
    at_any_pace = policy.limits.model_copy(update={"max_rents_per_run": 10**6, "max_rents_per_hour": 10**6})
    in_the_long_run = view.situation.model_copy(
        update={
            "mode": Mode.LIVE,
            "scale_out_paused": False,
            "rent_breaker": "",
            "policy": policy.model_copy(update={"limits": at_any_pace}),
        }
    )
    return view.fleet.count + len(_choice(view, in_the_long_run, missing).offers)


def _many_are_sick(view: _View) -> str | None:
    sick, count = len(view.fleet.sick), view.fleet.count
    if sick < LEAST_SICK or sick <= count * view.planning.repair_brake:
        return None
    return (
        f"{sick} of {count} boxes are in trouble at once. The fault is probably our own (image, settings), "
        "and other boxes would have it too."
    )


def _starved(view: _View) -> str | None:
    late, count = len(view.fleet.late), view.fleet.count
    alarming = late >= LEAST_SICK or (late > 0 and not view.fleet.proving)
    if not alarming or late <= count * view.planning.repair_brake:
        return None
    return (
        f"{late} of {count} boxes have been on their way for more than {_minutes(view.known.lead_p95)}. "
        "Until they prove or are given up, others would fare no better."
    )


def _unconfirmed(view: _View) -> str | None:
    if view.fleet.count < view.planning.min_boxes or _confirmed(view) > view.capacity:
        return None
    return f"Boxes are rented once {view.planning.confirmations} readings in a row ask for them."


def _confirmed(view: _View) -> float:
    """The need that so many readings in a row agree on; all of it where the work cannot wait for them."""
    if _is_urgent(view):
        return view.need.least
    agreed, counted, last = view.need.least, 1, view.now
    for reading in _newest_first(view.grounds.history):
        if counted == view.planning.confirmations or last - reading.at > LONGEST_GAP:
            break
        if last - reading.at >= CONFIRMS_AFTER:
            agreed, counted, last = min(agreed, reading.need.least), counted + 1, reading.at
    return agreed if counted == view.planning.confirmations else 0.0


def _is_urgent(view: _View) -> bool:
    """Whether the oldest threatens the deadline, or the newest will have to wait until it does."""
    demand = view.situation.demand
    if not isinstance(demand, Known) or not demand.value.pending:
        return False
    patience = view.planning.deadline * URGENT_SHARE
    waited = demand.value.oldest_pending or timedelta(0)
    return waited >= patience or demand.value.pending >= view.fleet.present * (patience / HOUR)


def _nothing_for_more(view: _View) -> str | None:
    if _room(view) > 0:
        return None
    return f"There will never be more proofs at once than {count_of(view.fleet.count)} can take."


def _room(view: _View) -> int:
    """Further boxes for which there will be a proof."""
    ahead = (view.known.usual_lead + view.planning.drain_window) / HOUR
    proofs = view.work + math.ceil(view.arrivals * ahead)
    useful = proofs if view.grounds.slots is None else min(proofs, view.grounds.slots)
    return max(0, max(useful, view.planning.min_boxes) - view.fleet.count)


def _choice(view: _View, situation: Situation, missing: float) -> Choice:
    least = max(0, view.planning.min_boxes - view.fleet.count)
    wish = Wish(proofs_per_hour=missing, least_boxes=least, most_boxes=_room(view))
    return chosen(wish, situation, view.known)


def _search(view: _View, missing: float, *, why: str, wanted_boxes: int) -> Plan:
    """Without a listing a plan can only say what to look for."""
    held = _first_sentence(rule(ANY_RENT, view.situation) for rule in MAY_RENT)
    boxes = min(_boxes_for(view, missing), _changes_left(view))
    if held is not None or not boxes:
        return _plan(view, why=why, wanted_boxes=wanted_boxes, held_because=held or _enough_changes(view))
    search = Search(boxes=boxes, proofs_per_hour=max(0.0, missing))
    return _plan(view, why=why, wanted_boxes=wanted_boxes, search=search)


def _boxes_for(view: _View, missing: float) -> int:
    """Of the usual kind, within the cap on boxes."""
    least = view.planning.min_boxes - view.fleet.count
    free = view.situation.policy.limits.max_boxes - view.situation.boxes_counted()
    return max(0, min(max(math.ceil(missing / view.known.usual_rate), least), free, _room(view)))


# --- too much: give up ------------------------------------------------------------------------------------------------


def _shrink(view: _View) -> Plan:
    """Unwanted is what the figures of now could do without; what goes is what those before could have, too."""
    spare = _spare(view)
    why = f"{_in_words(view)}, which is {'too much' if spare else 'more than enough, but by no whole box'}."
    if not spare:
        return _plan(view, why=why)
    wanted = view.fleet.count - len(spare)
    alarm = _many_are_sick(view)
    held = _first_said(alarm, _enough_drain(view), _not_quiet(view), _all_changes_made(view))
    if held is not None:
        return _plan(view, why=why, wanted_boxes=wanted, held_because=held, alarm=alarm)
    moves, held = _removals(view, len(spare), why)
    return _plan(view, why=why, wanted_boxes=wanted, moves=moves, held_because=held)


def _spare(view: _View) -> list[Box]:
    """What could go by the figures of now, whatever holds it back for the moment."""
    free = [box for box in _worst_first(view) if not box.protected]
    return _expendable(view, free, needed=view.need.most, most=view.fleet.count - view.planning.min_boxes)


def _expendable(view: _View, boxes: Sequence[Box], *, needed: float, most: int) -> list[Box]:
    """As many of `boxes`, `most` at most, as can be lost so that `needed` is left; of these the first in their order.

    How many is settled before which: else more work could get fewer boxes, because it keeps a large one and lets two
    small ones go.
    """
    room = view.capacity - needed
    rates = [view.known.rate_of_box(box) for box in boxes]
    number = min(most, sum(lost <= room for lost in accumulate(sorted(rates))))
    going: list[Box] = []
    for index, box in enumerate(boxes):
        others = sorted(rates[index + 1 :])[: number - len(going) - 1]
        if len(going) < number and rates[index] + math.fsum(others) <= room:
            going.append(box)
            room -= rates[index]
    return going


def _worst_first(view: _View) -> list[Box]:
    """By what a proof costs from now on; first of all those that will prove none."""
    priced = [(_usd_per_proof(view, box) or Decimal("Infinity"), box.key, box) for box in view.fleet.staying]
    return [box for *_, box in sorted(priced, key=lambda each: each[:2], reverse=True)]


def _usd_per_proof(view: _View, box: Box) -> Decimal | None:
    return view.known.usd_per_proof_from_now(box, age=view.now - box.rented_at)


def _enough_drain(view: _View) -> str | None:
    if len(view.fleet.draining) < _at_a_time(view):
        return None
    return f"Only {count_of(_at_a_time(view))} may drain at a time."


def _at_a_time(view: _View) -> int:
    return max(1, int(view.fleet.count * view.planning.given_up_share))


def _not_quiet(view: _View) -> str | None:
    if _most_of_late(view) is not None:
        return None
    return f"A box is given up once the readings of {_minutes(view.planning.quiet_window)} had no use for it."


def _most_of_late(view: _View) -> float | None:
    """The most that any reading of the quiet window had a use for; None where too few were made to say."""
    most, last = view.need.most, view.now
    for reading in _newest_first(view.grounds.history):
        if view.now - last >= view.planning.quiet_window or last - reading.at > LONGEST_GAP:
            break
        most, last = max(most, reading.need.most), reading.at
    return most if view.now - last >= view.planning.quiet_window else None


def _removals(view: _View, spare: int, why: str) -> tuple[list[Move], str | None]:
    """The worst boxes of those that nobody had a use for and that may go; where there are none, why."""
    most = min(spare, _at_a_time(view) - len(view.fleet.draining), _changes_left(view))
    partings = [(box, _parting(view, box, why)) for box in _worst_first(view) if box.vast_id is not None]
    rulings = {box.key: judge(move, view.situation) for box, move in partings}
    may_go = [box for box, _ in partings if rulings[box.key].decision is Decision.ALLOW]
    going = _expendable(view, may_go, needed=_most_of_late(view) or 0.0, most=most)
    moves = _as_far_as_allowed([(box, move) for box, move in partings if box in going], view.situation)
    refused = next((each.sentence for each in rulings.values() if each.decision is not Decision.ALLOW), None)
    in_use = f"No box was without use for all of the last {_minutes(view.planning.quiet_window)}."
    return moves, None if moves else in_use if may_go or refused is None else refused


def _as_far_as_allowed(partings: Sequence[tuple[Box, Removal]], situation: Situation) -> list[Move]:
    """One after the other: each counts for those after it."""
    moves: list[Move] = []
    for box, move in partings:
        if judge(move, situation).decision is not Decision.ALLOW:
            break
        moves.append(move)
        situation = _once_given_up(box, move, situation)
    return moves


def _parting(view: _View, box: Box, why: str) -> Removal:
    """A box that may be proving is only ever drained: the watch destroys it once it is idle."""
    usd = _usd_per_proof(view, box)
    price = "it will prove nothing" if usd is None else f"{show_usd(usd)} a proof"
    reason = f"The dearest of those that can be spared: {show_rate(box.usd_per_hour)}, {price}. {why}"
    kind = DrainBox if _may_prove(box, view.now) else DestroyBox
    return kind(id=box.vast_id or 0, reason=reason)


def _may_prove(box: Box, now: datetime) -> bool:
    """A stage is as old as the last word: a box that fell silent may have gone on by itself."""
    if box.stage in (Stage.RENTED, Stage.LOADING):
        return False
    is_silent = box.reported_at is None or now - box.reported_at > FRESH
    return is_silent or box.stage is not Stage.REGISTERED


def _once_given_up(box: Box, move: Removal, situation: Situation) -> Situation:
    return situation.model_copy(
        update={
            "effects_of_run": with_one_more(move, situation),
            "destroys_of_hour": situation.destroys_of_hour + 1,
            "removed_lately": situation.removed_lately + 1,
            "given_up": situation.given_up | {box.key},
        }
    )


# --- in words ---------------------------------------------------------------------------------------------------------


def _plan(
    view: _View,
    *,
    why: str,
    wanted_boxes: int | None = None,
    moves: Sequence[Move] = (),
    search: Search | None = None,
    held_because: str | None = None,
    alarm: str | None = None,
) -> Plan:
    """`wanted_boxes`: None where those that there are fit."""
    knows = view.unread is None
    return Plan(
        made_at=view.now,
        wanted_proofs_per_hour=min(max(view.capacity, view.need.least), view.need.most) if knows else None,
        wanted_boxes=(view.fleet.count if wanted_boxes is None else wanted_boxes) if knows else None,
        present_proofs_per_hour=view.fleet.present,
        coming_proofs_per_hour=view.fleet.on_the_way,
        boxes=view.fleet.count,
        actions=tuple(moves),
        search=search,
        held_because=held_because,
        alarm=alarm,
        why=why,
        reading=Reading(at=view.now, work=view.work, need=view.need) if knows else None,
    )


def _in_words(view: _View) -> str:
    need = view.need
    wanted = f"{need.least:.0f}" if round(need.least) == round(need.most) else f"{need.least:.0f} to {need.most:.0f}"
    slots = "" if view.grounds.slots is None else f" of a market that gives {view.grounds.slots} at once"
    return (
        f"{view.work} proofs wait or are under way and {view.arrivals:.0f} arrive an hour{slots}, so {wanted} an hour "
        f"are wanted; {count_of(view.fleet.count)} there or coming can prove {view.capacity:.0f}"
    )


def _worth(view: _View, offer: Offer) -> str:
    rate, usd = view.known.rate_of_offer(offer), view.known.usd_per_proof(offer) or Decimal(0)
    machine = f"{gpu(offer.num_gpus, offer.gpu_name)} at {show_rate(offer.usd_per_hour)}"
    proves = f"{'has shown' if rate.measured else 'should prove'} {rate.proofs_per_hour:.0f}/h"
    return f"{machine} {proves}: {show_usd(usd)} a proof with its start-up."


def _all_changes_made(view: _View) -> str | None:
    return None if _changes_left(view) else _enough_changes(view)


def _changes_left(view: _View) -> int:
    changes = view.situation.rents_of_hour + view.situation.destroys_of_hour
    return max(0, view.planning.max_changes_per_hour - changes)


def _enough_changes(view: _View) -> str:
    return f"Within an hour {count_of(view.planning.max_changes_per_hour)} may be rented or given up, and were."


def _newest_first(history: Sequence[Reading]) -> list[Reading]:
    return sorted(history, key=lambda reading: reading.at, reverse=True)


def _first_sentence(objections: Iterable[Objection | None]) -> str | None:
    return next((said[1] for said in objections if said is not None), None)


def _first_said(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _minutes(duration: timedelta) -> str:
    return f"{duration / timedelta(minutes=1):.0f} minutes"
