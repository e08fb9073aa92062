"""What an action may do: an ordered list of rules for whoever asks and every kind of effect, read as policy.

A rule is a pure function that returns one good objection, or None. The first objection is the ruling; those that only
ask for a person's word come last, so that nobody is asked about what is refused anyway. An effect that has no list is
refused: absence of a rule is refusal. Rules see only the `Situation`, which the store reads in the transaction that
writes the ruling, so that no other run can spend the same headroom.

Four ask. The agent and the planner are held by every brake. The watch removes what must not be there, and is held by
what could make its removals wrong, not by what holds back scaling. A person is held by no brake: by ownership, and by
what a person protects, until he takes that back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.approvals import Grant, beyond
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import LIVE_STAGES, Box, Instance, Inventory, Offer, Stage, parse_label
from fleet_agent.domain.hosts import Ban, Benchmark, measured_rate
from fleet_agent.domain.money import Usd, UsdPerHour, runway, show_rate, show_usd, total, usd_per_proof
from fleet_agent.domain.observation import Account, Known, Unknown
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.values import Frozen


class Mode(StrEnum):
    LIVE = "live"
    DRY_RUN = "dry_run"
    PAUSED = "paused"


class Brake(StrEnum):
    """One half of what a fleet does by itself, which a person can hold back alone."""

    SCALE_OUT = "scale_out"
    SCALE_IN = "scale_in"


class Actor(StrEnum):
    """Who asks for an effect; each has rules of its own."""

    AGENT = "agent"
    PLANNER = "planner"
    WATCH = "watch"
    OPERATOR = "operator"


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

BUSY: Final = "busy"
"""The code of what is right and comes at the wrong moment."""

FRESH: Final = timedelta(minutes=5)
"""Older figures of demand, and older words of a box, are as good as none."""

TOO_SOON: Final = frozenset({BUSY, "too_young", "run_cap", "hour_cap", "too_many_at_once"})
"""Codes of refusals that nothing but time ends: no look will show that they have ended."""

PASSING: Final = TOO_SOON | {"inventory_unknown", "frozen", "demand_unknown", "demand_stale", "account_unknown"}
"""Codes of refusals that end by themselves: what a person approved waits for that, as long as the word holds."""

LEAST_REMOVED: Final = 2
MOST_REMOVED_SHARE: Final = 0.2
REMOVED_WITHIN: Final = timedelta(minutes=10)
"""Never more than max(2, 20 %) of the fleet is given up within ten minutes: a wrong belief about all boxes at once
costs a part of them and leaves a person time to step in."""


class Situation(Frozen):
    """Everything a rule may look at."""

    actor: Actor = Actor.AGENT
    now: datetime
    installation: str
    fleet: str
    mode: Mode
    scale_out_paused: bool = False
    scale_in_paused: bool = False
    rent_breaker: str = ""
    frozen_because: str = ""
    policy: Policy
    inventory: Known[Inventory] | Unknown
    demand: Known[Demand] | Unknown
    account: Known[Account] | Unknown
    boxes: tuple[Box, ...]
    in_flight_count: int
    in_flight_usd_per_hour: Decimal
    listing: tuple[Offer, ...]
    bans: tuple[Ban, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    effects_of_run: Mapping[str, int]
    rents_of_hour: int = 0
    destroys_of_hour: int = 0
    removed_lately: int = 0
    """Boxes given up within `REMOVED_WITHIN`, whoever asked for it but a person."""
    given_up: frozenset[str] = frozenset()
    """Keys of live boxes that were given up already: to destroy what has drained, or again what lives on, is no other
    removal."""
    spent_of_day_usd: Decimal = Decimal(0)
    tainted: bool = False
    """The run has read words from outside."""
    tainted_usd_per_hour: Decimal = Decimal(0)
    """What the run has rented so far."""
    grant: Grant | None = None
    """Set where a person approved the action."""

    def boxes_counted(self) -> int:
        """Live boxes and those that may come into being: an unknown answer counts as a box."""
        return sum(box.stage in LIVE_STAGES for box in self.boxes) + self.in_flight_count

    def burn_counted(self) -> UsdPerHour:
        live = total([UsdPerHour(box.usd_per_hour) for box in self.boxes if box.stage in LIVE_STAGES])
        return UsdPerHour(live + self.in_flight_usd_per_hour)

    def offer(self, offer_id: int) -> Offer | None:
        return next((offer for offer in self.listing if offer.id == offer_id), None)

    def proofs_per_hour(self, offer: Offer) -> float | None:
        """What its machine has shown; None where nobody measured it."""
        return measured_rate(self.benchmarks, offer.machine_id, offer.num_gpus)

    def box(self, vast_id: int) -> Box | None:
        return next((box for box in self.boxes if box.vast_id == vast_id and box.stage in LIVE_STAGES), None)

    def removals_of_run(self) -> int:
        return self.effects_of_run.get(DrainBox.name, 0) + self.effects_of_run.get(DestroyBox.name, 0)


AnyEffect = TypeVar("AnyEffect", bound=Effect)
Removal = DrainBox | DestroyBox
Objection = tuple[str, str]
"""Code and sentence."""
Rule = Callable[[AnyEffect, Situation], Objection | None]


class NeedsWord(tuple[str, str]):
    """An objection that a person's word overrules."""

    __slots__ = ()


def judge(action: Effect, situation: Situation) -> Ruling:
    """The ruling on `action`; never raises, refuses what it does not know."""
    rules = RULES[situation.actor].get(type(action))
    if rules is None:
        return _refused(("no_rule", f"There is no rule that allows {situation.actor.value} to {action.name}."))
    objection = next((said for rule in rules if (said := rule(action, situation)) is not None), None)
    match objection:
        case None:
            return Ruling(decision=Decision.ALLOW, code="allowed", sentence="Within the policy.")
        case NeedsWord() as question:
            code, sentence = question
            return Ruling(decision=Decision.NEEDS_APPROVAL, code=code, sentence=sentence)
        case refusal:
            return _refused(refusal)


def _refused(refusal: Objection) -> Ruling:
    code, sentence = refusal
    return Ruling(decision=Decision.REFUSE, code=code, sentence=sentence)


# --- brakes and knowledge ---------------------------------------------------------------------------------------------


def not_paused(_: Effect, situation: Situation) -> Objection | None:
    if situation.mode is Mode.PAUSED:
        return "paused", "The fleet is paused: nothing is rented or destroyed until a person resumes it."
    return None


def scale_out_not_paused(_: RentBox, situation: Situation) -> Objection | None:
    if situation.scale_out_paused:
        return "scale_out_paused", "Renting is paused until a person resumes it."
    return None


def renting_does_not_keep_failing(_: RentBox, situation: Situation) -> Objection | None:
    if situation.rent_breaker:
        return "rent_breaker", f"Renting is paused until a person resumes it: {situation.rent_breaker}."
    return None


def scale_in_not_paused(_: Removal, situation: Situation) -> Objection | None:
    if situation.scale_in_paused:
        return "scale_in_paused", "Giving up boxes is paused until a person resumes it."
    return None


def inventory_is_known(_: Effect, situation: Situation) -> Objection | None:
    if isinstance(situation.inventory, Unknown):
        return (
            "inventory_unknown",
            f"The list of boxes is unknown: {situation.inventory.reason}. Unknown is not empty.",
        )
    return None


def list_can_be_true(_: Effect, situation: Situation) -> Objection | None:
    if situation.frozen_because:
        return "frozen", f"Nothing is rented or destroyed by itself: {situation.frozen_because}."
    return None


def demand_is_fresh(_: Effect, situation: Situation) -> Objection | None:
    match situation.demand:
        case Unknown(reason=reason):
            return "demand_unknown", f"The demand is unknown: {reason}. Nothing is scaled without it."
        case Known(seen_at=seen_at) if situation.now - seen_at > FRESH:
            minutes = (situation.now - seen_at).total_seconds() / 60
            return "demand_stale", f"The figures of demand are {minutes:.0f} minutes old. Nothing is scaled by them."
        case _:
            return None


# --- which machine ----------------------------------------------------------------------------------------------------


def launch_is_configured(_: RentBox, situation: Situation) -> Objection | None:
    if not situation.policy.launch.image:
        return "no_image", "The policy names no image to launch; a person sets launch.image."
    return None


def offer_was_listed(action: RentBox, situation: Situation) -> Objection | None:
    if situation.offer(action.offer_id) is None:
        return "offer_not_listed", f"Offer {action.offer_id} is not in your last listing; search again."
    return None


def offer_meets_floors(action: RentBox, situation: Situation) -> Objection | None:
    offer = situation.offer(action.offer_id)
    missing = situation.policy.offers.unmet_by(offer) if offer else None
    return ("below_floor", f"Offer {action.offer_id}: {missing}.") if missing else None


def host_is_not_banned(action: RentBox, situation: Situation) -> Objection | None:
    offer = situation.offer(action.offer_id)
    ban = next((ban for ban in situation.bans if offer and ban.machine_id == offer.machine_id), None)
    if ban is not None and ban.expires_at > situation.now:
        # Without its reason, which may be words of a run that strangers led.
        return "host_banned", f"Machine {ban.machine_id} is banned until {ban.expires_at:%Y-%m-%d %H:%M} UTC."
    return None


def price_of_box_within_cap(action: RentBox, situation: Situation) -> Objection | None:
    offer = situation.offer(action.offer_id)
    cap = situation.policy.limits.max_usd_per_hour_per_box
    if offer and offer.usd_per_hour > cap:
        return "box_price", f"{show_rate(offer.usd_per_hour)} is over the cap of {show_rate(cap)} for one box."
    return None


def price_of_proof_within_cap(action: RentBox, situation: Situation) -> Objection | None:
    """Where the machine was measured; else its benchmark is waited for."""
    offer, cap = situation.offer(action.offer_id), situation.policy.limits.max_usd_per_proof
    if offer is None or cap is None:
        return None
    measured = situation.proofs_per_hour(offer)
    if measured is None:
        return None
    usd = usd_per_proof(offer.usd_per_hour, measured)
    if usd is None or usd > cap:
        price = "no proof at all" if usd is None else f"{show_usd(usd)} a proof"
        return "proof_price", f"Machine {offer.machine_id} has shown {price}; the cap is {show_usd(cap)}."
    return None


# --- how much ---------------------------------------------------------------------------------------------------------


def boxes_within_cap(_: RentBox, situation: Situation) -> Objection | None:
    count, cap = situation.boxes_counted(), situation.policy.limits.max_boxes
    if count + 1 > cap:
        return "max_boxes", f"{count} boxes are live or in flight and the cap is {cap}."
    return None


def burn_within_cap(action: RentBox, situation: Situation) -> Objection | None:
    offer = situation.offer(action.offer_id)
    burn, cap = situation.burn_counted(), situation.policy.limits.max_usd_per_hour
    if offer and burn + offer.usd_per_hour > cap:
        return (
            "max_usd_per_hour",
            f"{show_rate(burn)} now and {show_rate(offer.usd_per_hour)} more is over the cap of {show_rate(cap)}.",
        )
    return None


def day_within_cap(action: RentBox, situation: Situation) -> Objection | None:
    """With the next hour of all that would run: a cap that is noticed when it is reached is broken by then."""
    offer, cap = situation.offer(action.offer_id), situation.policy.limits.max_usd_per_day
    if offer is None:
        return None
    coming = situation.burn_counted() + offer.usd_per_hour
    if situation.spent_of_day_usd + coming > cap:
        return (
            "max_usd_per_day",
            f"{show_usd(situation.spent_of_day_usd)} in 24 hours and {show_usd(coming)} in the next hour is over the "
            f"cap of {show_usd(cap)} a day.",
        )
    return None


def credit_lasts(action: RentBox, situation: Situation) -> Objection | None:
    offer, least = situation.offer(action.offer_id), situation.policy.limits.min_runway
    if offer is None or not least:
        return None
    if isinstance(situation.account, Unknown):
        return "account_unknown", f"The credit is unknown: {situation.account.reason}. Nothing is rented on it."
    burn = UsdPerHour(situation.burn_counted() + offer.usd_per_hour)
    left = runway(Usd(situation.account.value.credit_usd), burn)
    if left is not None and left < least:
        return "runway", f"The credit would last {_hours(left)}; the policy wants {_hours(least)} at least."
    return None


def rents_of_run_within_cap(action: RentBox, situation: Situation) -> Objection | None:
    return _within_run_cap(
        action, situation.effects_of_run.get(action.name, 0), situation.policy.limits.max_rents_per_run
    )


def rents_of_hour_within_cap(_: RentBox, situation: Situation) -> Objection | None:
    done, cap = situation.rents_of_hour, situation.policy.limits.max_rents_per_hour
    if done + 1 > cap:
        return "hour_cap", f"{done} boxes were rented within an hour and the cap is {cap}."
    return None


# --- which box --------------------------------------------------------------------------------------------------------


def box_is_ours(action: Removal, situation: Situation) -> Objection | None:
    if isinstance(situation.inventory, Unknown):
        return None
    listed = next((i for i in situation.inventory.value.instances if i.id == action.id), None)
    box = situation.box(action.id)
    if box is None:
        return "not_ours", f"Box {action.id} is not a live box of this fleet."
    if listed is not None and is_another(listed, box):
        return "not_ours", f"Box {action.id} carries another fleet's label or is another machine now; hands off."
    return None


def box_is_not_protected(action: Removal, situation: Situation) -> Objection | None:
    box = situation.box(action.id)
    if box and box.protected:
        return "protected", f"Box {action.id} is protected by the operator."
    return None


def box_is_not_going_already(action: Removal, situation: Situation) -> Objection | None:
    box = situation.box(action.id)
    if box and box.stage is Stage.DESTROYING:
        return "already_destroying", f"Box {action.id} is being destroyed already."
    if box and isinstance(action, DrainBox) and box.stage is Stage.DRAINING:
        return "already_draining", f"Box {action.id} drains already."
    return None


def box_is_not_busy(action: Removal, situation: Situation) -> Objection | None:
    box = situation.box(action.id)
    if box and box.busy:
        return BUSY, f"A call about box {action.id} is on its way; its outcome comes first."
    return None


def box_is_old_enough(action: Removal, situation: Situation) -> Objection | None:
    box, least = situation.box(action.id), situation.policy.limits.min_age
    if box and situation.now - box.rented_at < least:
        minutes = (situation.now - box.rented_at).total_seconds() / 60
        return "too_young", f"Box {action.id} was rented {minutes:.0f} minutes ago; it is kept for {_hours(least)}."
    return None


def box_is_idle(action: DestroyBox, situation: Situation) -> Objection | None:
    """A killed proof costs its deadline, and the box was paid for it."""
    box = situation.box(action.id)
    if box is None or box.stage not in (Stage.PROVING, Stage.DRAINING) or is_idle(box, situation.demand, situation.now):
        return None
    return "drain_first", f"Box {action.id} may be proving. `drain_box` lets it finish; then it is destroyed."


def removals_of_run_within_cap(action: Removal, situation: Situation) -> Objection | None:
    return _within_run_cap(action, situation.removals_of_run(), situation.policy.limits.max_destroys_per_run)


def removals_of_hour_within_cap(_: Removal, situation: Situation) -> Objection | None:
    done, cap = situation.destroys_of_hour, situation.policy.limits.max_destroys_per_hour
    if done + 1 > cap:
        return "hour_cap", f"{done} boxes were given up within an hour and the cap is {cap}."
    return None


def not_too_many_at_once(action: Removal, situation: Situation) -> Objection | None:
    box = situation.box(action.id)
    if box and box.key in situation.given_up:
        return None
    most = max(LEAST_REMOVED, int(situation.boxes_counted() * MOST_REMOVED_SHARE))
    if situation.removed_lately + 1 > most:
        return (
            "too_many_at_once",
            f"{situation.removed_lately} boxes were given up within ten minutes; {most} of this fleet may be.",
        )
    return None


def notifications_of_run_within_cap(action: NotifyHuman, situation: Situation) -> Objection | None:
    return _within_run_cap(
        action, situation.effects_of_run.get(action.name, 0), situation.policy.limits.max_notifications_per_run
    )


# --- a person's word --------------------------------------------------------------------------------------------------


def within_what_was_granted(action: Effect, situation: Situation) -> Objection | None:
    if situation.grant is None:
        return None
    offer = situation.offer(action.offer_id) if isinstance(action, RentBox) else None
    measured = situation.proofs_per_hour(offer) if offer else None
    said = beyond(situation.grant, action, offer, situation.now, proofs_per_hour=measured)
    return None if said is None else ("beyond_approval", said)


def dear_box_was_approved(action: RentBox, situation: Situation) -> Objection | None:
    offer, threshold = situation.offer(action.offer_id), situation.policy.approvals.rent_above_usd_per_hour
    if situation.grant or offer is None or threshold is None or offer.usd_per_hour <= threshold:
        return None
    return NeedsWord(
        ("dear", f"{show_rate(offer.usd_per_hour)} is over {show_rate(threshold)}: it waits for a person's word.")
    )


def tool_was_approved(action: Effect, situation: Situation) -> Objection | None:
    if situation.grant or action.name not in situation.policy.approvals.always:
        return None
    return NeedsWord(("always", f"The policy has {action.name} wait for a person's word."))


def tainted_rent_was_approved(action: RentBox, situation: Situation) -> Objection | None:
    offer, cap = situation.offer(action.offer_id), situation.policy.approvals.tainted_max_usd_per_hour
    if situation.grant or not situation.tainted or offer is None:
        return None
    rented = situation.tainted_usd_per_hour
    if rented + offer.usd_per_hour <= cap:
        return None
    return NeedsWord(
        (
            "tainted",
            f"This run has read words from outside: beyond {show_rate(cap)} its rents wait for a person's word.",
        )
    )


def tainted_removal_was_approved(_: Removal, situation: Situation) -> Objection | None:
    cap = situation.policy.approvals.tainted_max_destroys
    if situation.grant or not situation.tainted or situation.removals_of_run() < cap:
        return None
    return NeedsWord(
        ("tainted", f"This run has read words from outside: beyond {cap} boxes it waits for a person's word.")
    )


# --- the policy, as lists ---------------------------------------------------------------------------------------------

RENT_RULES: Final[tuple[Rule[RentBox], ...]] = (
    not_paused,  # the operator's switch comes before everything
    scale_out_not_paused,  # … and so does this one, which leaves removals alone
    renting_does_not_keep_failing,  # a broken image or account fails on every machine alike
    inventory_is_known,  # who cannot count what runs must not add to it
    list_can_be_true,
    demand_is_fresh,  # who does not know the work must not scale
    launch_is_configured,  # a box that starts nothing only costs
    offer_was_listed,  # the model chooses among what it was shown; it does not invent ids
    offer_meets_floors,  # the floors again: the listing may be older than the policy
    host_is_not_banned,  # the bans again: the listing may be older than the failure
    price_of_box_within_cap,
    price_of_proof_within_cap,
    boxes_within_cap,  # in flight included: an unknown answer may be a box
    burn_within_cap,  # in flight included
    day_within_cap,
    credit_lasts,
    rents_of_run_within_cap,  # a wrong run can only do so much
    rents_of_hour_within_cap,  # … and so can a row of wrong runs
    within_what_was_granted,
    tool_was_approved,
    dear_box_was_approved,
    tainted_rent_was_approved,
)

REMOVAL_RULES: Final[tuple[Rule[Removal], ...]] = (
    not_paused,
    scale_in_not_paused,
    inventory_is_known,
    list_can_be_true,
    demand_is_fresh,
    box_is_ours,  # our row in the ledger, and nothing in the provider's list that speaks against it
    box_is_not_protected,
    box_is_not_going_already,
    box_is_not_busy,  # two calls about one box could cross
    box_is_old_enough,  # its start is paid already
    removals_of_run_within_cap,
    removals_of_hour_within_cap,
    not_too_many_at_once,
    within_what_was_granted,
)

REMOVAL_WORDS: Final[tuple[Rule[Removal], ...]] = (tool_was_approved, tainted_removal_was_approved)

SAFETY_RULES: Final[tuple[Rule[Removal], ...]] = (
    not_paused,
    inventory_is_known,
    list_can_be_true,
    box_is_ours,
    box_is_not_protected,
    box_is_not_going_already,
    box_is_not_busy,
    not_too_many_at_once,  # what looks wrong with every box at once is wrong with us
)

ORDER_RULES: Final[tuple[Rule[Removal], ...]] = (
    inventory_is_known,  # ownership cannot be seen without it
    box_is_ours,
    box_is_not_protected,  # no brake, but a person's own word; the later one of two holds
    box_is_not_going_already,
)

NOTIFY_RULES: Final[tuple[Rule[NotifyHuman], ...]] = (
    notifications_of_run_within_cap,  # allowed while paused: a person may need to know
)


Rules = Mapping[type[Effect], Sequence[Rule[Any]]]
"""A list is only ever asked about the kind of effect that it stands under."""

BY_THEMSELVES: Final[Rules] = {
    RentBox: RENT_RULES,
    DrainBox: (*REMOVAL_RULES, *REMOVAL_WORDS),
    DestroyBox: (*REMOVAL_RULES, box_is_idle, *REMOVAL_WORDS),
    NotifyHuman: NOTIFY_RULES,
}

RULES: Final[Mapping[Actor, Rules]] = {
    Actor.AGENT: BY_THEMSELVES,
    Actor.PLANNER: BY_THEMSELVES,
    Actor.WATCH: {DrainBox: SAFETY_RULES, DestroyBox: SAFETY_RULES},  # it never rents
    Actor.OPERATOR: {DrainBox: ORDER_RULES, DestroyBox: ORDER_RULES},
}


# --- questions that others ask too ------------------------------------------------------------------------------------


def is_another(listed: Instance, box: Box) -> bool:
    """Whether the list speaks against it that what it shows under the number of our box is that box.

    A label can get lost at the provider, so another one than ours speaks against it only where it is a label of fleets;
    and with our own label it is ours on whatever machine it was made, for it is billed to us.
    """
    label = parse_label(listed.label)
    return label != parse_label(box.label) and (label is not None or listed.machine_id != box.machine_id)


def is_idle(box: Box, demand: Known[Demand] | Unknown, now: datetime) -> bool:
    """Whether it certainly has no proof at hand: by its own fresh word, or because no proof is under way anywhere."""
    if box.tasks is not None and box.reported_at is not None and now - box.reported_at <= FRESH:
        return box.tasks == 0
    return isinstance(demand, Known) and demand.value.at_hand == 0 and now - demand.seen_at <= FRESH


def _within_run_cap(action: Effect, done: int, cap: int) -> Objection | None:
    if done + 1 > cap:
        return "run_cap", f"This run has used {action.name} {done} times and may use it {cap} times."
    return None


def _hours(duration: timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
