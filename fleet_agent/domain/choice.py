"""Which machines are rented: the best by the proof, one box on each, and nothing that a rule would not allow.

The best are taken in an order that does not depend on how much is missing; only the last gives way to the cheapest
machine that does for the rest. So more work never gets fewer boxes, and a small rest gets no large machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from fleet_agent.domain.actions import Effect, RentBox
from fleet_agent.domain.fleet import LEAVING_STAGES, LIVE_STAGES, Offer
from fleet_agent.domain.observation import Known
from fleet_agent.domain.rules import Decision, Situation, judge
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.worth import Experience

COMPANY: Final = Decimal("0.1")
"""By so much an offer is dearer to us for each box that we have with its host, which may go down with all of them."""

ANY_RENT: Final = RentBox(offer_id=0, reason="whatever can be rented")
"""For rules that ask nothing about the offer."""


class Wish(Frozen):
    """What is to be rented: enough for `proofs_per_hour`, and a number of boxes."""

    proofs_per_hour: float
    least_boxes: int
    most_boxes: int


class Choice(Frozen):
    offers: tuple[Offer, ...]
    objection: str | None = None
    """Why no more could be chosen, where that was what ended it."""


def chosen(wish: Wish, situation: Situation, known: Experience) -> Choice:
    """Offers of the listing that may all be rented, one after the other."""
    taken: list[Offer] = []
    missing = wish.proofs_per_hour
    while len(taken) < wish.most_boxes and (missing > 0 or len(taken) < wish.least_boxes):
        free, objection = _free(situation, known, taken)
        if not free:
            return Choice(offers=tuple(taken), objection=objection)
        offer, is_last = free[0], len(taken) + 1 >= wish.least_boxes
        if is_last and _rate(known, offer) >= missing:
            enough = [each for each in free if _rate(known, each) >= missing]
            offer = min(enough, key=known.usd_of_a_stay)
        taken.append(offer)
        missing -= _rate(known, offer)
        situation = once_rented(offer, situation)
    return Choice(offers=tuple(taken))


def best_first(situation: Situation, known: Experience, taken: Sequence[Offer] = ()) -> list[Offer]:
    """The listing by what a proof is expected to cost; without machines of which none is expected."""
    company = Counter(offer.host_id for offer in taken)
    if isinstance(situation.inventory, Known):
        ours = {box.vast_id for box in situation.boxes if box.stage in LIVE_STAGES - LEAVING_STAGES}
        company.update(each.host_id for each in situation.inventory.value.instances if each.id in ours)
    priced = [
        (usd * (1 + COMPANY * company[offer.host_id]), offer.machine_id, offer.id, offer)
        for offer in situation.listing
        if (usd := known.usd_per_proof(offer)) is not None
    ]
    return [offer for *_, offer in sorted(priced, key=lambda each: each[:3])]


def once_rented(offer: Offer, situation: Situation) -> Situation:
    return situation.model_copy(
        update={
            "in_flight_count": situation.in_flight_count + 1,
            "in_flight_usd_per_hour": situation.in_flight_usd_per_hour + offer.usd_per_hour,
            "effects_of_run": with_one_more(ANY_RENT, situation),
            "rents_of_hour": situation.rents_of_hour + 1,
        }
    )


def with_one_more(effect: Effect, situation: Situation) -> dict[str, int]:
    """The effects of the run, and this."""
    return {**situation.effects_of_run, effect.name: situation.effects_of_run.get(effect.name, 0) + 1}


def _free(situation: Situation, known: Experience, taken: Sequence[Offer]) -> tuple[list[Offer], str]:
    """The offers that may be rented now, best first, and why the best of the others may not."""
    free: list[Offer] = []
    objections: list[str] = []
    occupied = {box.machine_id for box in situation.boxes if box.stage in LIVE_STAGES}
    occupied |= {offer.machine_id for offer in taken}
    for offer in best_first(situation, known, taken):
        ruling = judge(RentBox(offer_id=offer.id, reason=ANY_RENT.reason), situation)
        if offer.machine_id in occupied:
            objections.append(f"The best machine that is left, {offer.machine_id}, has a box of ours already.")
        elif ruling.decision is not Decision.ALLOW:
            objections.append(ruling.sentence)
        else:
            free.append(offer)
    return free, next(iter(objections), "No machine of the listing would prove anything.")


def _rate(known: Experience, offer: Offer) -> float:
    return known.rate_of_offer(offer).proofs_per_hour
