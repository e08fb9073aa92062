"""What can be wrong with a fleet, its list and its money. What is done about it is listed in `domain/lookout.py`.

What is said of a fleet is a band, so that a look can tell what the one before it has told.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from fleet_agent.domain.doubt import Belief, Trust, judged, unread
from fleet_agent.domain.fleet import LEAVING_STAGES, Stage
from fleet_agent.domain.money import Usd, UsdPerHour, runway, show_rate, show_usd, total
from fleet_agent.domain.observation import Known
from fleet_agent.domain.rules import is_idle
from fleet_agent.domain.sight import Finding, Sight, State, Watched, let_go, minutes, works
from fleet_agent.domain.triggers import Kind
from fleet_agent.domain.waking import SOFT_EDGE, doubled

LIST: Final = "list"
BUDGET: Final = "budget"

MOST_UNREAD: Final = 5
"""Looks in a row without a list, or without the demand, after which a person is told."""

MOST_NAMED: Final = 5
"""Boxes of others that are named; there may be hundreds."""

# --- its list ---------------------------------------------------------------------------------------------------------


def trust_in_the_list(sight: Sight) -> Trust:
    before, frozen_because = Belief.of(sight.band(LIST)), sight.situation.frozen_because
    if not isinstance(sight.situation.inventory, Known):
        return Trust(belief=unread(before), doubt=frozen_because)
    expected = [each for each in sight.boxes if each.sightings and each.box.stage is not Stage.DESTROYING]
    return judged(
        before,
        expected=len(expected),
        missing=sum(each.misses > 0 for each in expected),
        listed=[each.listed.id for each in sight.boxes if each.listed is not None],
        now=sight.now,
        overruled=before.is_doubt and not frozen_because,
    )


def list_cannot_be_true(sight: Sight, _: Collection[str]) -> State:
    trust, before = trust_in_the_list(sight), sight.situation.frozen_because
    band = trust.belief.band
    if trust.doubt:
        text = f"{trust.doubt}: until the list can be true, nothing is rented or destroyed by itself"
        return State(
            LIST,
            band,
            Finding(code="list frozen", text=text, kind=Kind.LIST_FROZEN, notice=True),
            is_news=not before,
        )
    if before:
        text = "the list of boxes can be true again: what was held back goes on"
        return State(LIST, band, Finding(code="list believed", text=text, notice=True), is_news=True)
    return State(LIST, band)


def list_cannot_be_read(sight: Sight, _: Collection[str]) -> State:
    path = "list unread"
    if sight.unread < MOST_UNREAD or isinstance(sight.situation.inventory, Known):
        return State(path, "")
    text = (
        f"the list of boxes could not be read {sight.unread} times in a row "
        f"({sight.situation.inventory.reason}): until it can, nothing is rented or destroyed by itself"
    )
    return State(path, "long", Finding(code=path, text=text, notice=True), is_news=sight.band(path) != "long")


# --- its money --------------------------------------------------------------------------------------------------------


def is_over_budget(sight: Sight, given_up: Collection[str]) -> State:
    """One box at a time: what it saves is seen at the next look, and the newest has done least."""
    staying = [each for each in sight.boxes if each.box.stage not in LEAVING_STAGES and each.box.key not in given_up]
    burn = UsdPerHour(
        total([UsdPerHour(each.box.usd_per_hour) for each in staying]) + sight.situation.in_flight_usd_per_hour
    )
    why = _beyond(burn, sight)
    if why is None or not isinstance(sight.situation.inventory, Known):
        return State(BUDGET, "" if why is None else sight.band(BUDGET))
    chosen = _least_missed(staying, sight)
    return State(
        BUDGET,
        "over",
        Finding(
            code="over budget",
            text=f"{why}; {'no box can be given up' if chosen is None else f'{chosen.name} is given up'}",
            kind=Kind.OVER_BUDGET,
            notice=True,
            box=chosen and chosen.box,
            removal=chosen and let_go(chosen, why),
        ),
        is_news=sight.band(BUDGET) != "over",
    )


def _beyond(burn: UsdPerHour, sight: Sight) -> str | None:
    """Which cap the boxes that stay would break, in words; the day's as renting counts it, with the hour to come."""
    limits, spent = sight.policy.limits, sight.situation.spent_of_day_usd
    if burn > limits.max_usd_per_hour:
        return f"the fleet costs {show_rate(burn)}, over the cap of {show_rate(limits.max_usd_per_hour)}"
    if burn and spent + burn > limits.max_usd_per_day:
        return (
            f"{show_usd(spent)} in 24 hours and {show_usd(burn)} in the next hour is over the cap of "
            f"{show_usd(limits.max_usd_per_day)} a day"
        )
    return None


def _least_missed(boxes: Collection[Watched], sight: Sight) -> Watched | None:
    """The newest that is idle, else the newest."""
    free = [each for each in boxes if each.listed is not None and not each.box.protected and not each.box.busy]

    def order(each: Watched) -> tuple[bool, datetime, str]:
        idle = not works(each) or is_idle(each.box, sight.situation.demand, sight.now)
        return idle, each.box.rented_at, each.box.key

    return max(free, key=order, default=None)


def credit_is_short(sight: Sight, _: Collection[str]) -> State:
    """Told at the policy's least, at the half and at the quarter of it, and when there is none."""
    path, least, account = "runway", sight.policy.limits.min_runway, sight.situation.account
    before = sight.band(path)
    if not isinstance(account, Known):
        return State(path, before)
    credit = Usd(account.value.credit_usd)
    left = timedelta(0) if credit <= 0 else runway(credit, _burn_of_account(sight))
    depth = _depth(left, least, int(before or 0))
    if not depth:
        return State(path, "")
    text = (
        f"the credit of {show_usd(credit)} lasts for {minutes(left or timedelta(0))}; {minutes(least)} are wanted: "
        "add credit, or the provider stops every box"
    )
    finding = Finding(code="runway short", text=text, kind=Kind.RUNWAY_SHORT, notice=True)
    return State(path, str(depth), finding, is_news=depth > int(before or 0))


def _burn_of_account(sight: Sight) -> UsdPerHour:
    """Boxes of others on the same account use up the same credit."""
    inventory = sight.situation.inventory
    if not isinstance(inventory, Known):
        return sight.situation.burn_counted()
    return total([UsdPerHour(each.usd_per_hour) for each in inventory.value.instances])


def _depth(left: timedelta | None, least: timedelta, before: int) -> int:
    """How many marks lie above what is left, 4 where nothing is; on the way back a mark counts a while longer."""
    if left is None:
        return 0
    marks = (least, least / 2, least / 4)
    under = sum(left < mark * (1 + (SOFT_EDGE if number < before else 0)) for number, mark in enumerate(marks))
    return under if left else len(marks) + 1


# --- what it is there for ---------------------------------------------------------------------------------------------


def demand_cannot_be_read(sight: Sight, _: Collection[str]) -> State:
    """Told after as many looks as for the list, and again when as many could read it: a source that comes and goes is
    one trouble. While it lasts the band counts looks up, and down again."""
    path, demand = "demand unread", sight.situation.demand
    count, _, told = sight.band(path).partition(" ")
    unread = min(max(int(count or 0) + (-1 if isinstance(demand, Known) else 1), 0), MOST_UNREAD)
    if told and not unread:
        text = "the demand can be read again: the fleet follows it as before"
        return State(path, "", Finding(code="demand read", text=text, notice=True), is_news=True)
    if not isinstance(demand, Known) and (told or unread == MOST_UNREAD):
        text = (
            f"the demand cannot be read ({demand.reason}): until it can, the fleet becomes neither larger nor smaller "
            "by itself; what is wrong with a box, or costs too much, still goes"
        )
        return State(path, f"{unread} told", Finding(code=path, text=text, notice=True), is_news=not told)
    return State(path, f"{unread} {told}".strip() if unread else "")


def there_is_more_work(sight: Sight, _: Collection[str]) -> State:
    return _risen(sight, "demand.value.pending", "proofs that wait")


def more_proofs_fail(sight: Sight, _: Collection[str]) -> State:
    return _risen(sight, "demand.value.failed_per_hour", "proofs that failed within an hour")


def _risen(sight: Sight, path: str, what: str) -> State:
    """A figure of the demand in a higher band than the agent knows of. That it falls is no hurry: the next heartbeat
    sees it. Bands and paths are those of `domain/waking.py`."""
    demand, before = sight.situation.demand, sight.band(path)
    figure = getattr(demand.value, path.rpartition(".")[2]) if isinstance(demand, Known) else None
    if figure is None:
        return State(path, before)
    band = doubled(figure, before)
    known = max(_low(before), _low(sight.run.get(path, "")))
    if not before or _low(band) <= known:
        return State(path, band)
    text = f"{what}: {before} → {band}"
    return State(path, band, Finding(code=path, text=text, kind=Kind.DEMAND_BAND), is_news=True)


def _low(band: str) -> int:
    low = band.partition("–")[0]
    return int(low) if low.isdigit() else 0


# --- who else is there ------------------------------------------------------------------------------------------------


def others_are_there(sight: Sight, _: Collection[str]) -> State:
    """Told once for all: whoever has other business on the account knows it from then on."""
    path, count = "strangers", len(sight.strangers)
    before = sight.band(path)
    if not isinstance(sight.situation.inventory, Known):
        return State(path, before)
    if not count:
        return State(path, before and NONE_LEFT)
    numbers = ", ".join(str(each.id) for each in sight.strangers[:MOST_NAMED])
    text = (
        f"{count} boxes on the account are not of this installation ({numbers}{', …' if count > MOST_NAMED else ''}): "
        "they are left alone, and use up the same credit"
    )
    return State(path, str(count), Finding(code=path, text=text, notice=True), is_news=not before)


NONE_LEFT: Final = "0"
