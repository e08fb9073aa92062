"""What an action may do: an ordered list of rules for every kind of effect, read top to bottom as policy.

A rule is a pure function that returns one good reason to refuse, or None. The first reason is the ruling. An effect
whose kind has no rules is refused: absence of a rule is refusal. Rules see only the `Situation`, which the store
reads in the transaction that writes the ruling, so that no other run can spend the same headroom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeVar

from fleet_agent.domain.actions import DestroyBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.fleet import LIVE_STAGES, Box, Inventory, Offer, Stage, parse_label
from fleet_agent.domain.money import UsdPerHour, show_rate, total
from fleet_agent.domain.observation import Known, Unknown
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.values import Frozen


class Mode(StrEnum):
    LIVE = "live"
    DRY_RUN = "dry_run"
    PAUSED = "paused"


class Decision(StrEnum):
    ALLOW = "allow"
    REFUSE = "refuse"
    NEEDS_APPROVAL = "needs_approval"


class Ruling(Frozen):
    """What the rules say of an action before it happens: a code for machines, a sentence for people."""

    decision: Decision
    code: str
    sentence: str


DRY_RUN: Final = "dry_run"
"""The code of what was allowed and is not sent because nothing is."""


class Situation(Frozen):
    """Everything a rule may look at."""

    installation: str
    fleet: str
    mode: Mode
    policy: Policy
    inventory: Known[Inventory] | Unknown
    boxes: tuple[Box, ...]
    in_flight_count: int
    in_flight_usd_per_hour: Decimal
    listing: tuple[Offer, ...]
    effects_of_run: Mapping[str, int]

    def boxes_counted(self) -> int:
        """Live boxes and those that may come into being: an unknown answer counts as a box."""
        return sum(box.stage in LIVE_STAGES for box in self.boxes) + self.in_flight_count

    def burn_counted(self) -> UsdPerHour:
        live = total([UsdPerHour(box.usd_per_hour) for box in self.boxes if box.stage in LIVE_STAGES])
        return UsdPerHour(live + self.in_flight_usd_per_hour)

    def offer(self, offer_id: int) -> Offer | None:
        return next((offer for offer in self.listing if offer.id == offer_id), None)

    def box(self, vast_id: int) -> Box | None:
        return next((box for box in self.boxes if box.vast_id == vast_id and box.stage in LIVE_STAGES), None)


AnyEffect = TypeVar("AnyEffect", bound=Effect)
Refusal = tuple[str, str]
Rule = Callable[[AnyEffect, Situation], Refusal | None]


def judge(action: Effect, situation: Situation) -> Ruling:
    """The ruling on `action`; never raises, refuses what it does not know."""
    match action:
        case RentBox():
            refusal = _first_refusal(RENT_RULES, action, situation)
        case DestroyBox():
            refusal = _first_refusal(DESTROY_RULES, action, situation)
        case NotifyHuman():
            refusal = _first_refusal(NOTIFY_RULES, action, situation)
        case _:
            refusal = ("no_rule", f"There is no rule that allows {action.name}.")
    if refusal is not None:
        code, sentence = refusal
        return Ruling(decision=Decision.REFUSE, code=code, sentence=sentence)
    return Ruling(decision=Decision.ALLOW, code="allowed", sentence="Within the policy.")


def _first_refusal(rules: Sequence[Rule[AnyEffect]], action: AnyEffect, situation: Situation) -> Refusal | None:
    return next((refusal for rule in rules if (refusal := rule(action, situation)) is not None), None)


def mode_allows_spending(_: Effect, situation: Situation) -> Refusal | None:
    if situation.mode is Mode.PAUSED:
        return "paused", "The fleet is paused: nothing is rented or destroyed until a person resumes it."
    return None


def inventory_is_known(_: Effect, situation: Situation) -> Refusal | None:
    if isinstance(situation.inventory, Unknown):
        return (
            "inventory_unknown",
            f"The list of boxes is unknown: {situation.inventory.reason}. Unknown is not empty.",
        )
    return None


def launch_is_configured(_: RentBox, situation: Situation) -> Refusal | None:
    if not situation.policy.launch.image:
        return "no_image", "The policy names no image to launch; a person sets launch.image."
    return None


def offer_was_listed(action: RentBox, situation: Situation) -> Refusal | None:
    if situation.offer(action.offer_id) is None:
        return "offer_not_listed", f"Offer {action.offer_id} is not in your last listing; search again."
    return None


def offer_meets_floors(action: RentBox, situation: Situation) -> Refusal | None:
    offer = situation.offer(action.offer_id)
    missing = unmet_floor(offer, situation.policy) if offer else None
    return ("below_floor", f"Offer {action.offer_id}: {missing}.") if missing else None


def price_of_box_within_cap(action: RentBox, situation: Situation) -> Refusal | None:
    offer = situation.offer(action.offer_id)
    cap = situation.policy.limits.max_usd_per_hour_per_box
    if offer and offer.usd_per_hour > cap:
        return "box_price", f"{show_rate(offer.usd_per_hour)} is over the cap of {show_rate(cap)} for one box."
    return None


def boxes_within_cap(_: RentBox, situation: Situation) -> Refusal | None:
    count, cap = situation.boxes_counted(), situation.policy.limits.max_boxes
    if count + 1 > cap:
        return "max_boxes", f"{count} boxes are live or in flight and the cap is {cap}."
    return None


def burn_within_cap(action: RentBox, situation: Situation) -> Refusal | None:
    offer = situation.offer(action.offer_id)
    burn, cap = situation.burn_counted(), situation.policy.limits.max_usd_per_hour
    if offer and burn + offer.usd_per_hour > cap:
        return (
            "max_usd_per_hour",
            f"{show_rate(burn)} now and {show_rate(offer.usd_per_hour)} more is over the cap of {show_rate(cap)}.",
        )
    return None


def rents_of_run_within_cap(action: RentBox, situation: Situation) -> Refusal | None:
    return _within_run_cap(action, situation, situation.policy.limits.max_rents_per_run)


def box_is_ours(action: DestroyBox, situation: Situation) -> Refusal | None:
    if isinstance(situation.inventory, Unknown):
        return None
    listed = next((i for i in situation.inventory.value.instances if i.id == action.id), None)
    box = situation.box(action.id)
    if box is None:
        return "not_ours", f"Box {action.id} is not a live box of this fleet."
    # The ledger knows it by its label or by the answer to our own create; a label can get lost at the provider since.
    if listed and (
        parse_label(listed.label) not in (None, parse_label(box.label)) or listed.machine_id != box.machine_id
    ):
        return "not_ours", f"Box {action.id} carries another fleet's label or is another machine now; hands off."
    return None


def box_is_not_protected(action: DestroyBox, situation: Situation) -> Refusal | None:
    box = situation.box(action.id)
    if box and box.protected:
        return "protected", f"Box {action.id} is protected by the operator."
    return None


def box_is_not_going_already(action: DestroyBox, situation: Situation) -> Refusal | None:
    box = situation.box(action.id)
    if box and box.stage is Stage.DESTROYING:
        return "already_destroying", f"Box {action.id} is being destroyed already."
    return None


def destroys_of_run_within_cap(action: DestroyBox, situation: Situation) -> Refusal | None:
    return _within_run_cap(action, situation, situation.policy.limits.max_destroys_per_run)


def notifications_of_run_within_cap(action: NotifyHuman, situation: Situation) -> Refusal | None:
    return _within_run_cap(action, situation, situation.policy.limits.max_notifications_per_run)


RENT_RULES: tuple[Rule[RentBox], ...] = (
    mode_allows_spending,  # the operator's switch comes before everything
    inventory_is_known,  # who cannot count what runs must not add to it
    launch_is_configured,  # a box that starts nothing only costs
    offer_was_listed,  # the model chooses among what it was shown; it does not invent ids
    offer_meets_floors,  # the floors again: the listing may be older than the policy
    price_of_box_within_cap,
    boxes_within_cap,  # in flight included: an unknown answer may be a box
    burn_within_cap,  # in flight included
    rents_of_run_within_cap,  # a wrong run can only do so much
)

DESTROY_RULES: tuple[Rule[DestroyBox], ...] = (
    mode_allows_spending,
    inventory_is_known,
    box_is_ours,  # our row in the ledger, and nothing in the provider's list that speaks against it
    box_is_not_protected,
    box_is_not_going_already,
    destroys_of_run_within_cap,
)

NOTIFY_RULES: tuple[Rule[NotifyHuman], ...] = (
    notifications_of_run_within_cap,  # allowed while paused: a person may need to know
)


def unmet_floor(offer: Offer, policy: Policy) -> str | None:
    """The first floor that `offer` does not meet, in words; None when it meets all."""
    floors = policy.offers
    if floors.gpu_names and offer.gpu_name not in floors.gpu_names:
        return f"{offer.gpu_name} is not among the allowed GPUs"
    if offer.gpu_ram_mb < floors.min_gpu_ram_gb * 1000:
        return f"{offer.gpu_ram_mb / 1000:.0f} GB of GPU memory is under the floor of {floors.min_gpu_ram_gb} GB"
    if offer.reliability < floors.min_reliability:
        return f"reliability {offer.reliability:.3f} is under the floor of {floors.min_reliability:g}"
    if offer.inet_down_mbps < floors.min_inet_down_mbps:
        return f"{offer.inet_down_mbps:.0f} Mb/s down is under the floor of {floors.min_inet_down_mbps} Mb/s"
    if floors.verified_only and not offer.verified:
        return "the host is not verified"
    if floors.whole_machine and offer.gpu_share < 1:
        return "it is a share of a machine"
    return None


def _within_run_cap(action: Effect, situation: Situation, cap: int) -> Refusal | None:
    done = situation.effects_of_run.get(action.name, 0)
    if done + 1 > cap:
        return "run_cap", f"This run has used {action.name} {done} times and may use it {cap} times."
    return None
