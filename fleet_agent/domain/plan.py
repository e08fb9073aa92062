"""The plan: what the figures alone say should be done, and how far whoever acts may stray from it.

It is three things at once: advice to the model, what is done while no model answers, and the yardstick by which a
model is held. `domain.planner` makes it; what it says is fixed here, so that the rules can ask it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.values import Frozen

LATITUDE_BOXES: Final = 2
LATITUDE_SHARE: Final = 0.25
"""The agent may have its reasons for a few boxes more or less. For many it needs a person."""

Move = RentBox | DrainBox | DestroyBox


class Need(Frozen):
    """Proofs an hour between which a fleet fits the work: with less, work will be late; more has nothing to do."""

    least: float
    most: float


class Reading(Frozen):
    """What one plan was made on, for the plans of the next hour: a single reading may err."""

    at: datetime
    work: int
    """Proofs that waited or were under way."""
    need: Need


class Search(Frozen):
    """Boxes to be rented for which no listing was at hand: what to look for."""

    boxes: int
    proofs_per_hour: float
    """All of them together."""


class Plan(Frozen):
    """What should be done now. Capacity is in proofs an hour; what nobody can know is None."""

    made_at: datetime
    wanted_proofs_per_hour: float | None
    """As near to what there is as the work allows."""
    wanted_boxes: int | None
    present_proofs_per_hour: float
    coming_proofs_per_hour: float
    """Of boxes on their way, rents in flight included: what was asked for is not asked for again."""
    boxes: int
    """Without those that are on their way out."""
    actions: tuple[Move, ...] = ()
    search: Search | None = None
    held_because: str | None = None
    """Why nothing, or not all, is done though the figures ask for it."""
    alarm: str | None = None
    """What a person should be told, where that is why: it will not pass by itself."""
    why: str
    reading: Reading | None = None
    """To be kept for later plans; None where nothing could be read."""

    def asks_for_nothing(self) -> bool:
        return not self.actions and self.search is None


def within_latitude(plan: Plan, boxes_after: int) -> str | None:
    """Why a fleet of so many boxes is too far from the plan, in a sentence; None where it is not.

    Boxes that are on their way out do not count. What brings the fleet nearer to the plan is never too far from it, and
    nobody is held to a plan that does not know.
    """
    if plan.wanted_boxes is None:
        return None
    latitude = max(LATITUDE_BOXES, int(plan.wanted_boxes * LATITUDE_SHARE))
    away = abs(boxes_after - plan.wanted_boxes)
    if away <= latitude or away < abs(plan.boxes - plan.wanted_boxes):
        return None
    side = "more" if boxes_after > plan.wanted_boxes else "fewer"
    return (
        f"{count_of(boxes_after)} would be {away} {side} than the {plan.wanted_boxes} of the plan, from which "
        f"{latitude} are left to your judgement. {plan.why}"
    )


def plan_lines(plan: Plan) -> list[str]:
    """The plan as a prompt and `status` show it."""
    head = (
        f"plan: wanted_proofs_per_hour={_figure(plan.wanted_proofs_per_hour)} "
        f"present={_figure(plan.present_proofs_per_hour)} coming={_figure(plan.coming_proofs_per_hour)} "
        f"wanted_boxes={'?' if plan.wanted_boxes is None else plan.wanted_boxes} boxes={plan.boxes}"
    )
    held = [f"- held: {plan.held_because}"] if plan.held_because else []
    nothing = ["- nothing to do"] if plan.asks_for_nothing() and not held else []
    return [head, f"- {plan.why}", *map(_move, plan.actions), *_search(plan.search), *held, *nothing]


def count_of(boxes: int) -> str:
    return "1 box" if boxes == 1 else f"{boxes} boxes"


def _move(move: Move) -> str:
    number = move.offer_id if isinstance(move, RentBox) else move.id
    return f"- {move.name} {number}: {move.reason}"


def _search(search: Search | None) -> list[str]:
    if search is None:
        return []
    return [f"- search_offers, and rent {count_of(search.boxes)} that prove {search.proofs_per_hour:.0f}/h in all"]


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
