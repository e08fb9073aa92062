"""The rules refuse with one good reason; what no rule allows is refused.

Each rule of each list has a case of its own, which it alone refuses. The control of every case is the same list without
that rule, which allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fleet_agent.domain import rules
from fleet_agent.domain.actions import EFFECTS, DestroyBox, DrainBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import LIVE_STAGES, Box, Instance, Inventory, Offer, Stage
from fleet_agent.domain.hosts import Ban, Benchmark, Failure
from fleet_agent.domain.observation import Account, Known, Unknown
from fleet_agent.domain.policy import Approvals, Launch, Limits, OfferFloors, Policy
from fleet_agent.domain.rules import FRESH, Actor, Decision, Mode, Rule, Situation, judge
from tests.without import without

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
IMAGE = "example/prover@sha256:" + "a" * 64
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def offer(**changes: Any) -> Offer:
    values: dict[str, Any] = {
        "id": 1, "machine_id": 11, "host_id": 21, "gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram_mb": 24_576,
        "gpu_share": 1.0, "usd_per_hour": Decimal("0.40"), "reliability": 0.99, "verified": True, "datacenter": False,
        "location": "Texas, US", "cpu_cores": 16, "ram_mb": 64_000, "disk_gb": 500, "inet_down_mbps": 900,
        "inet_up_mbps": 500, "cuda": 12.8, "rentable_until": None,
    }  # fmt: skip
    return Offer(**values | changes)


def instance(**changes: Any) -> Instance:
    values: dict[str, Any] = {
        "id": 101, "label": "fa/abc123/main/r1-s1-c0-zzzz", "machine_id": 11, "host_id": 21, "gpu_name": "RTX 4090",
        "num_gpus": 1, "gpu_share": 1.0, "usd_per_hour": Decimal("0.40"), "interruptible": False, "image": IMAGE,
        "actual_status": "running", "intended_status": "running", "contract_status": "running", "status_message": "",
        "started_at": NOW,
    }  # fmt: skip
    return Instance(**values | changes)


def box(**changes: Any) -> Box:
    values: dict[str, Any] = {
        "key": "r1-s1-c0-zzzz", "label": "fa/abc123/main/r1-s1-c0-zzzz", "vast_id": 101, "machine_id": 11,
        "gpu_name": "RTX 4090", "num_gpus": 1, "usd_per_hour": Decimal("0.40"), "stage": Stage.PROVING,
        "agreed_usd_per_hour": Decimal("0.40"), "rented_at": NOW - timedelta(hours=1),
        "stage_since": NOW - timedelta(hours=1), "protected": False,
    }  # fmt: skip
    return Box(**values | changes)


def listed(*instances: Instance) -> Known[Inventory]:
    return Known(value=Inventory(instances=instances, seen_at=NOW), seen_at=NOW)


def work(*, running: int, seen_at: datetime = NOW, **more: Any) -> Known[Demand]:
    demand = Demand(
        pending=0, running=running, oldest_pending=None, done_per_hour=None, failed_per_hour=None, seen_at=seen_at,
        **more,
    )  # fmt: skip
    return Known(value=demand, seen_at=seen_at)


def credit(usd: str) -> Known[Account]:
    return Known(value=Account(credit_usd=Decimal(usd)), seen_at=NOW)


def policy(**limits: Any) -> Policy:
    return Policy(launch=Launch(image=IMAGE), limits=Limits(**limits))


def asking(**approvals: Any) -> Policy:
    return Policy(launch=Launch(image=IMAGE), approvals=Approvals(**approvals))


def ban(*, expires_at: datetime) -> Ban:
    return Ban(
        machine_id=11, failure=Failure.TRANSIENT, reason="its line is slow", banned_by="agent", banned_at=NOW - HOUR,
        expires_at=expires_at,
    )  # fmt: skip


def benchmark(proofs_per_hour: float) -> Benchmark:
    return Benchmark(machine_id=11, num_gpus=1, proofs_per_hour=proofs_per_hour, measured_at=NOW - HOUR)


def situation(**changes: Any) -> Situation:
    values: dict[str, Any] = {
        "now": NOW,
        "installation": "abc123",
        "fleet": "main",
        "mode": Mode.LIVE,
        "policy": policy(),
        "inventory": listed(instance()),
        "demand": work(running=0),
        "account": credit("100"),
        "boxes": (box(),),
        "in_flight_count": 0,
        "in_flight_usd_per_hour": Decimal(0),
        "listing": (offer(),),
        "effects_of_run": {},
    }
    return Situation(**values | changes)


RENT = RentBox(offer_id=1, reason="pending work")
DRAIN = DrainBox(id=101, reason="no work left")
DESTROY = DestroyBox(id=101, reason="no work left")
TELL = NotifyHuman(text="credit is low")
REMOVALS = (DRAIN, DESTROY)


@dataclass(frozen=True)
class Case:
    """A situation that one rule objects to, by its code."""

    rule: Rule[Any]
    code: str
    changes: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.code}-{'-'.join(self.changes)}"


# --- what is refused --------------------------------------------------------------------------------------------------

RENTING = (
    Case(rules.not_paused, "paused", {"mode": Mode.PAUSED}),
    Case(rules.scale_out_not_paused, "scale_out_paused", {"scale_out_paused": True}),
    Case(rules.renting_does_not_keep_failing, "rent_breaker", {"rent_breaker": "5 rents in a row came to nothing"}),
    Case(rules.inventory_is_known, "inventory_unknown", {"inventory": Unknown(reason="page 2 failed")}),
    Case(rules.list_can_be_true, "frozen", {"frozen_because": "the list fell from 9 boxes to none"}),
    Case(rules.demand_is_fresh, "demand_unknown", {"demand": Unknown(reason="no answer")}),
    Case(rules.demand_is_fresh, "demand_stale", {"demand": work(running=0, seen_at=NOW - FRESH - SECOND)}),
    Case(rules.launch_is_configured, "no_image", {"policy": Policy()}),
    Case(rules.offer_was_listed, "offer_not_listed", {"listing": ()}),
    Case(rules.offer_meets_floors, "below_floor", {"listing": (offer(reliability=0.5),)}),
    Case(rules.host_is_not_banned, "host_banned", {"bans": (ban(expires_at=NOW + SECOND),)}),
    Case(
        rules.price_of_box_within_cap,
        "box_price",
        {"listing": (offer(usd_per_hour=Decimal("0.401")),), "policy": policy(max_usd_per_hour_per_box=Decimal("0.4"))},
    ),
    Case(
        rules.price_of_proof_within_cap,
        "proof_price",
        {"benchmarks": (benchmark(3.9),), "policy": policy(max_usd_per_proof=Decimal("0.1"))},
    ),
    Case(
        rules.price_of_proof_within_cap,
        "proof_price",
        {"benchmarks": (benchmark(0),), "policy": policy(max_usd_per_proof=Decimal("0.1"))},
    ),
    Case(rules.boxes_within_cap, "max_boxes", {"in_flight_count": 3}),
    Case(rules.burn_within_cap, "max_usd_per_hour", {"in_flight_usd_per_hour": Decimal("3.201")}),
    Case(rules.day_within_cap, "max_usd_per_day", {"spent_of_day_usd": Decimal("49.21")}),
    Case(rules.credit_lasts, "runway", {"account": credit("1.59")}),
    Case(rules.credit_lasts, "account_unknown", {"account": Unknown(reason="no answer")}),
    Case(rules.rents_of_run_within_cap, "run_cap", {"effects_of_run": {"rent_box": 2}}),
    Case(rules.rents_of_hour_within_cap, "hour_cap", {"rents_of_hour": 10}),
)

NOT_OURS = (
    {"boxes": ()},
    {"boxes": (box(stage=Stage.GONE),)},
    {"inventory": listed(instance(machine_id=12, label=""))},
    {"inventory": listed(instance(label="fa/zzz999/main/r1-s1-c0-zzzz"))},
    {"inventory": listed(instance(label="fa/abc123/east/r1-s1-c0-zzzz"))},
    {"inventory": listed(instance(label="fa/abc123/main/r2-s1-c0-yyyy"))},
)

ORDERED = (
    Case(rules.inventory_is_known, "inventory_unknown", {"inventory": Unknown(reason="page 2 failed")}),
    *(Case(rules.box_is_ours, "not_ours", changes) for changes in NOT_OURS),
    Case(rules.box_is_not_protected, "protected", {"boxes": (box(protected=True),)}),
    Case(rules.box_is_not_going_already, "already_destroying", {"boxes": (box(stage=Stage.DESTROYING),)}),
)

FOR_SAFETY = (
    *ORDERED,
    Case(rules.not_paused, "paused", {"mode": Mode.PAUSED}),
    Case(rules.list_can_be_true, "frozen", {"frozen_because": "the list fell from 9 boxes to none"}),
    Case(rules.box_is_not_busy, "busy", {"boxes": (box(busy=True),)}),
    Case(rules.not_too_many_at_once, "too_many_at_once", {"removed_lately": 2}),
)

REMOVING = (
    *FOR_SAFETY,
    Case(rules.scale_in_not_paused, "scale_in_paused", {"scale_in_paused": True}),
    Case(
        rules.demand_is_fresh,
        "demand_unknown",
        {"demand": Unknown(reason="no answer"), "boxes": (box(stage=Stage.LOADING),)},
    ),
    Case(
        rules.demand_is_fresh,
        "demand_stale",
        {"demand": work(running=0, seen_at=NOW - FRESH - SECOND), "boxes": (box(stage=Stage.LOADING),)},
    ),
    Case(rules.box_is_old_enough, "too_young", {"boxes": (box(rented_at=NOW - 5 * MINUTE + SECOND),)}),
    Case(rules.removals_of_run_within_cap, "run_cap", {"effects_of_run": {"drain_box": 1, "destroy_box": 1}}),
    Case(rules.removals_of_hour_within_cap, "hour_cap", {"destroys_of_hour": 20}),
)

BUSY = (
    {"demand": work(running=1)},
    {"demand": work(running=0, claimed=1)},  # its worker is silent, and may be at it all the same
    {"demand": work(running=1), "boxes": (box(stage=Stage.DRAINING),)},
    {"boxes": (box(tasks=1, reported_at=NOW),)},  # whatever the demand says
    {"demand": work(running=1), "boxes": (box(tasks=0, reported_at=NOW - FRESH - SECOND),)},
)

REFUSED: dict[str, tuple[Actor, Effect, Sequence[Case]]] = {
    "rent": (Actor.AGENT, RENT, RENTING),
    "rent of the planner": (Actor.PLANNER, RENT, RENTING),
    "drain": (
        Actor.AGENT,
        DRAIN,
        (
            *REMOVING,
            Case(rules.box_is_not_going_already, "already_draining", {"boxes": (box(stage=Stage.DRAINING),)}),
        ),
    ),
    "destroy": (
        Actor.AGENT,
        DESTROY,
        (*REMOVING, *(Case(rules.box_is_idle, "drain_first", changes) for changes in BUSY)),
    ),
    "drain of the watch": (Actor.WATCH, DRAIN, FOR_SAFETY),
    "destroy of the watch": (Actor.WATCH, DESTROY, FOR_SAFETY),
    "drain of a person": (Actor.OPERATOR, DRAIN, ORDERED),
    "destroy of a person": (Actor.OPERATOR, DESTROY, ORDERED),
    "notification": (
        Actor.AGENT,
        TELL,
        (Case(rules.notifications_of_run_within_cap, "run_cap", {"effects_of_run": {"notify_human": 2}}),),
    ),
}


# --- what waits for a person's word -----------------------------------------------------------------------------------

READ_OUTSIDE = {"tainted": True}

ASKED: dict[str, tuple[Actor, Effect, Sequence[Case]]] = {
    "rent": (
        Actor.AGENT,
        RENT,
        (
            Case(
                rules.dear_box_was_approved,
                "dear",
                {"policy": asking(rent_above_usd_per_hour=Decimal("0.399"))},
            ),
            Case(rules.tool_was_approved, "always", {"policy": asking(always=("rent_box",))}),
            Case(rules.tainted_rent_was_approved, "tainted", READ_OUTSIDE | {"tainted_usd_per_hour": Decimal("0.101")}),
        ),
    ),
    **{
        name: (
            Actor.AGENT,
            action,
            (
                Case(rules.tool_was_approved, "always", {"policy": asking(always=(action.name,))}),
                Case(
                    rules.tainted_removal_was_approved, "tainted", READ_OUTSIDE | {"effects_of_run": {"drain_box": 1}}
                ),
                Case(
                    rules.tainted_removal_was_approved, "tainted", READ_OUTSIDE | {"effects_of_run": {"destroy_box": 1}}
                ),
            ),
        )
        for name, action in (("drain", DRAIN), ("destroy", DESTROY))
    },
}

GRANTED: dict[str, Grant] = {
    RENT.name: Grant(
        tool=RENT.name, expires_at=NOW + SECOND, gpu_name="RTX 4090", num_gpus=1, max_usd_per_hour=Decimal("0.40")
    ),
    **{action.name: Grant(tool=action.name, expires_at=NOW + SECOND, vast_id=101) for action in REMOVALS},
}
"""What a person's word grants for each action, by the narrowest bound."""

BEYOND = (
    (RENT, {"tool": "destroy_box"}, "The approval is for destroy_box."),
    (RENT, {"expires_at": NOW}, "The approval expired at 2026-03-17 12:00 UTC."),
    (RENT, {"gpu_name": "RTX 3090"}, "The approval is for 1x RTX 3090."),
    (RENT, {"num_gpus": 2}, "The approval is for 2x RTX 4090."),
    (
        RENT,
        {"floors": OfferFloors(min_gpu_ram_gb=48)},
        "The approval is for no such machine: 25 GB of GPU memory is under the floor of 48 GB.",
    ),
    (RENT, {"max_usd_per_hour": Decimal("0.399")}, "$0.400/h is more than the approved $0.399/h."),
    (DESTROY, {"vast_id": 102}, "The approval is for box 102."),
    (DESTROY, {"expires_at": NOW}, "The approval expired at 2026-03-17 12:00 UTC."),
    (DESTROY, {"tool": "drain_box"}, "The approval is for drain_box."),
    (DRAIN, {"tool": "destroy_box"}, "The approval is for destroy_box."),
)


def cases(table: dict[str, tuple[Actor, Effect, Sequence[Case]]]) -> list[Any]:
    return [
        pytest.param(actor, action, case, id=f"{name}-{case}")
        for name, (actor, action, of_it) in table.items()
        for case in of_it
    ]


def held(actor: Actor, action: Effect, case: Case, **more: Any) -> rules.Ruling:
    return judge(action, situation(actor=actor, **case.changes | more))


@pytest.mark.parametrize("actor", [Actor.AGENT, Actor.PLANNER])
@pytest.mark.parametrize("action", [RENT, DRAIN, DESTROY, TELL])
def test_an_action_within_the_policy_is_allowed(action: Effect, actor: Actor) -> None:
    assert judge(action, situation(actor=actor)).decision is Decision.ALLOW


@pytest.mark.parametrize(("actor", "action", "case"), cases(REFUSED))
def test_each_rule_refuses_what_it_is_there_for(actor: Actor, action: Effect, case: Case) -> None:
    ruling = held(actor, action, case)
    assert (ruling.decision, ruling.code) == (Decision.REFUSE, case.code)


def test_what_a_persons_word_waits_for_is_what_a_rule_says() -> None:
    """And nothing is waited for that a person said since, or that no time ends."""
    assert {case.code for _, _, of_it in REFUSED.values() for case in of_it} > rules.PASSING
    assert not rules.PASSING & {"paused", "scale_in_paused", "scale_out_paused", "protected", "rent_breaker"}


@pytest.mark.parametrize(("actor", "action", "case"), cases(ASKED))
def test_each_question_waits_for_a_person(actor: Actor, action: Effect, case: Case) -> None:
    ruling = held(actor, action, case)
    assert (ruling.decision, ruling.code) == (Decision.NEEDS_APPROVAL, case.code)


@pytest.mark.parametrize(("actor", "action", "case"), [*cases(REFUSED), *cases(ASKED)])
def test_without_its_rule_each_case_is_allowed(
    actor: Actor, action: Effect, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: no case is refused for another reason than its own."""
    monkeypatch.setattr(rules, "RULES", without(case.rule))
    assert held(actor, action, case).decision is Decision.ALLOW


def test_every_rule_has_a_case_in_each_list_it_stands_in() -> None:
    """A rule about grants has its own table below."""
    tried = {(actor, type(action)): set[Any]() for actor, action, _ in [*REFUSED.values(), *ASKED.values()]}
    for actor, action, of_it in [*REFUSED.values(), *ASKED.values()]:
        tried[actor, type(action)] |= {case.rule for case in of_it}
    for (actor, effect), rules_tried in tried.items():
        if actor is not Actor.PLANNER:  # the agent's lists are the planner's
            assert set(rules.RULES[actor][effect]) - {rules.within_what_was_granted} == rules_tried
    assert rules.RULES[Actor.PLANNER] is rules.RULES[Actor.AGENT]


# --- a person's word --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("actor", "action", "case"), cases(ASKED))
def test_a_grant_answers_every_question(actor: Actor, action: Effect, case: Case) -> None:
    assert held(actor, action, case, grant=GRANTED[action.name]).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("actor", "action", "case"), [param for param in cases(REFUSED) if param.values[1].name in GRANTED]
)
def test_a_grant_overrules_no_refusal(actor: Actor, action: Effect, case: Case) -> None:
    """A price above what was granted is refused as well, and so is what a later policy forbids."""
    assert held(actor, action, case, grant=GRANTED[action.name]).code == case.code


@pytest.mark.parametrize(("actor", "action", "case"), cases(REFUSED))
def test_nobody_is_asked_about_what_is_refused_anyway(actor: Actor, action: Effect, case: Case) -> None:
    waits = {"tainted": True, "tainted_usd_per_hour": Decimal(9)} | {
        "policy": case.changes.get("policy", policy()).model_copy(
            update={"approvals": Approvals(always=("rent_box", "drain_box", "destroy_box"))}
        )
    }
    assert held(actor, action, case, **waits).code == case.code


@pytest.mark.parametrize(("action", "bound", "sentence"), BEYOND)
def test_what_is_beyond_a_grant_is_refused(action: Effect, bound: dict[str, Any], sentence: str) -> None:
    grant = GRANTED[action.name].model_copy(update=bound)
    ruling = judge(action, situation(grant=grant))
    assert (ruling.decision, ruling.code, ruling.sentence) == (Decision.REFUSE, "beyond_approval", sentence)


@pytest.mark.parametrize(("action", "bound", "sentence"), BEYOND)
def test_without_the_bound_a_grant_would_cover_it(
    action: Effect, bound: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(rules, "RULES", without(rules.within_what_was_granted))
    grant = GRANTED[action.name].model_copy(update=bound)
    assert judge(action, situation(grant=grant)).decision is Decision.ALLOW


# --- up to the bound --------------------------------------------------------------------------------------------------

UP_TO_THE_BOUND: dict[str, tuple[Effect, dict[str, Any]]] = {
    "boxes": (RENT, {"in_flight_count": 2}),
    "$/h": (RENT, {"in_flight_usd_per_hour": Decimal("3.20")}),
    "$/h of a box": (RENT, {"policy": policy(max_usd_per_hour_per_box=Decimal("0.40"))}),
    "$ of a day": (RENT, {"spent_of_day_usd": Decimal("49.20")}),
    "$ of a proof": (
        RENT,
        {"benchmarks": (benchmark(4),), "policy": policy(max_usd_per_proof=Decimal("0.1"))},
    ),
    "a proof that nobody measured": (RENT, {"policy": policy(max_usd_per_proof=Decimal("0.1"))}),
    "a proof of more GPUs": (
        RENT,
        {
            "benchmarks": (benchmark(1).model_copy(update={"num_gpus": 2}),),
            "policy": policy(max_usd_per_proof=Decimal("0.1")),
        },
    ),
    "runway": (RENT, {"account": credit("1.60")}),
    "no runway asked for": (RENT, {"account": Unknown(reason="no answer"), "policy": policy(min_runway=timedelta(0))}),
    "rents of a run": (RENT, {"effects_of_run": {"rent_box": 1}}),
    "rents of an hour": (RENT, {"rents_of_hour": 9}),
    "a ban that is over": (RENT, {"bans": (ban(expires_at=NOW),)}),
    "a ban of another machine": (
        RENT,
        {"bans": (ban(expires_at=NOW + HOUR).model_copy(update={"machine_id": 12}),)},
    ),
    "age of the demand": (RENT, {"demand": work(running=0, seen_at=NOW - FRESH)}),
    "a price nobody asks about": (RENT, {"policy": asking(rent_above_usd_per_hour=Decimal("0.40"))}),
    "no price is asked about": (
        RENT,
        {"policy": asking(rent_above_usd_per_hour=None), "listing": (offer(usd_per_hour=Decimal("1.5")),)},
    ),
    "tainted rents": (RENT, {"tainted": True, "tainted_usd_per_hour": Decimal("0.10")}),
    "tainted removals": (DESTROY, {"tainted": True}),
    "age of a box": (DESTROY, {"boxes": (box(rented_at=NOW - 5 * MINUTE),)}),
    "removals of a run": (DESTROY, {"effects_of_run": {"drain_box": 1}}),
    "removals of an hour": (DESTROY, {"destroys_of_hour": 19}),
    "two at once": (DESTROY, {"removed_lately": 1}),
    "a box that was given up before": (DESTROY, {"removed_lately": 9, "given_up": frozenset({"r1-s1-c0-zzzz"})}),
    "a fifth of a large fleet at once": (DESTROY, {"removed_lately": 2, "in_flight_count": 14}),
    "a box that says it is idle": (DESTROY, {"demand": work(running=1), "boxes": (box(tasks=0, reported_at=NOW),)}),
    "a box that said so just now": (
        DESTROY,
        {"demand": work(running=1), "boxes": (box(tasks=0, reported_at=NOW - FRESH),)},
    ),
    "a box that does not prove yet": (DESTROY, {"demand": work(running=1), "boxes": (box(stage=Stage.LOADING),)}),
    "a box that drains and is idle": (DESTROY, {"boxes": (box(stage=Stage.DRAINING),)}),
    "a busy box is drained": (DRAIN, {"demand": work(running=1)}),
    "notifications": (TELL, {"effects_of_run": {"notify_human": 1}}),
    "notifications while paused": (TELL, {"mode": Mode.PAUSED}),
}


@pytest.mark.parametrize("bound", UP_TO_THE_BOUND)
def test_up_to_its_bound_each_rule_allows(bound: str) -> None:
    action, changes = UP_TO_THE_BOUND[bound]
    assert judge(action, situation(**changes)).decision is Decision.ALLOW


@pytest.mark.parametrize(("in_flight", "lately"), [(13, 2), (14, 3), (18, 3), (19, 4)])
def test_a_fifth_of_a_large_fleet_and_no_more_is_given_up_at_once(in_flight: int, lately: int) -> None:
    """Of 14, 15, 19 and 20 boxes."""
    assert judge(DESTROY, situation(in_flight_count=in_flight, removed_lately=lately)).code == "too_many_at_once"
    assert judge(DESTROY, situation(in_flight_count=in_flight, removed_lately=lately - 1)).code == "allowed"


FLOORS = (
    ({"gpu_ram_mb": 23_999}, {"gpu_ram_mb": 24_000}),
    ({"reliability": 0.949}, {"reliability": 0.95}),
    ({"inet_down_mbps": 199}, {"inet_down_mbps": 200}),
    ({"verified": False}, {"verified": True}),
    ({"gpu_share": 0.5}, {"gpu_share": 1.0}),
)


@pytest.mark.parametrize(("under", "just"), FLOORS)
def test_an_offer_is_refused_under_a_floor_and_allowed_on_it(under: dict[str, Any], just: dict[str, Any]) -> None:
    assert judge(RENT, situation(listing=(offer(**under),))).code == "below_floor"
    assert judge(RENT, situation(listing=(offer(**just),))).code == "allowed"


def test_a_gpu_that_the_policy_does_not_name_is_refused() -> None:
    only = Policy(launch=Launch(image=IMAGE)).model_copy(
        update={"offers": Policy().offers.model_copy(update={"gpu_names": ("RTX 3090",)})}
    )
    assert judge(RENT, situation(policy=only)).code == "below_floor"
    assert judge(RENT, situation(policy=only, listing=(offer(gpu_name="RTX 3090"),))).code == "allowed"


# --- whose box --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["", "relabelled by hand"])
def test_a_box_of_the_ledger_that_lost_its_label_can_still_be_destroyed(label: str) -> None:
    """Else it would bill for ever: the number came from the answer to our own create."""
    assert judge(DESTROY, situation(inventory=listed(instance(label=label)))).decision is Decision.ALLOW


def test_a_box_with_our_label_is_ours_on_whatever_machine_it_was_made() -> None:
    """It is billed to us."""
    assert judge(DESTROY, situation(inventory=listed(instance(machine_id=12)))).decision is Decision.ALLOW


def test_a_box_that_is_not_in_the_list_can_still_be_destroyed() -> None:
    """A list lags; a destroy of what is gone costs nothing."""
    assert judge(DESTROY, situation(inventory=listed())).decision is Decision.ALLOW


# --- who asks ---------------------------------------------------------------------------------------------------------

BRAKES_ON_SCALING: tuple[dict[str, Any], ...] = (
    {"scale_in_paused": True},
    {"demand": Unknown(reason="no answer")},
    {"demand": work(running=3)},
    {"boxes": (box(rented_at=NOW),)},
    {"effects_of_run": {"destroy_box": 9}},
    {"destroys_of_hour": 99},
    {"policy": asking(always=("drain_box", "destroy_box"))},
    {"tainted": True, "effects_of_run": {"destroy_box": 1}},
)

BRAKES_ON_WHATEVER_ACTS_BY_ITSELF: tuple[dict[str, Any], ...] = (
    {"mode": Mode.PAUSED},
    {"frozen_because": "the list fell from 9 boxes to none"},
    {"boxes": (box(busy=True),)},
    {"removed_lately": 99},
)


@pytest.mark.parametrize("action", REMOVALS)
@pytest.mark.parametrize("brake", BRAKES_ON_SCALING)
def test_what_holds_back_scaling_does_not_hold_the_watch(action: Effect, brake: dict[str, Any]) -> None:
    """It removes what must not be there. Control: the agent is held by the same, but by a question or by a refusal."""
    assert judge(action, situation(actor=Actor.WATCH, **brake)).decision is Decision.ALLOW
    if not (isinstance(action, DrainBox) and brake == {"demand": work(running=3)}):
        held_by = brake | ({} if "policy" in brake else {"policy": policy()})
        assert judge(action, situation(**held_by)).decision is not Decision.ALLOW


@pytest.mark.parametrize("action", REMOVALS)
@pytest.mark.parametrize("brake", [*BRAKES_ON_SCALING, *BRAKES_ON_WHATEVER_ACTS_BY_ITSELF])
def test_no_brake_holds_a_person(action: Effect, brake: dict[str, Any]) -> None:
    assert judge(action, situation(actor=Actor.OPERATOR, **brake)).decision is Decision.ALLOW


# --- what has no rule -------------------------------------------------------------------------------------------------


def test_an_effect_without_rules_is_refused() -> None:
    class SellBox(Effect):
        name: ClassVar[str] = "sell_box"

    for actor in Actor:
        assert judge(SellBox(), situation(actor=actor)).code == "no_rule"


@pytest.mark.parametrize("actor", [Actor.WATCH, Actor.OPERATOR])
@pytest.mark.parametrize("action", [RENT, TELL])
def test_what_an_actor_has_no_list_for_is_refused(actor: Actor, action: Effect) -> None:
    """The watch never rents, whatever is missing."""
    ruling = judge(action, situation(actor=actor))
    assert (ruling.decision, ruling.code) == (Decision.REFUSE, "no_rule")
    assert actor.value in ruling.sentence


def test_every_kind_of_effect_has_rules() -> None:
    """Fails when an effect is added and nobody says what it may do, or an actor and nobody says what that may."""
    for actor in (Actor.AGENT, Actor.PLANNER):
        assert set(rules.RULES[actor]) == set(EFFECTS)
    assert set(rules.RULES) == set(Actor)
    assert all(rules_of for lists in rules.RULES.values() for rules_of in lists.values())


# --- whatever the situation -------------------------------------------------------------------------------------------

MACHINES = (11, 12)
LABELS = ("", "by hand", "fa/abc123/main/r1-s1-c0-zzzz", "fa/zzz999/main/r1-s1-c0-zzzz")


def amounts(*usual: str) -> st.SearchStrategy[Decimal]:
    """Near where it matters, and anywhere."""
    return st.sampled_from([Decimal(each) for each in usual]) | st.decimals(0, 60, places=3)


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((usual,) * 6 + others)


boxes = st.builds(
    box,
    vast_id=st.sampled_from((101, 102, None)),
    machine_id=rarely(*MACHINES),
    label=rarely(LABELS[2]),
    usd_per_hour=amounts("0.4", "1.2", "3.6"),
    stage=rarely(Stage.PROVING, *Stage),
    rented_at=rarely(NOW - HOUR, NOW - MINUTE),
    protected=rarely(False, True),
    busy=rarely(False, True),
    tasks=st.sampled_from((None, 0, 1)),
    reported_at=st.sampled_from((None, NOW, NOW - HOUR)),
)

instances = st.builds(
    instance, id=st.sampled_from((101, 102)), machine_id=rarely(*MACHINES), label=rarely(LABELS[2], *LABELS)
)

offers = st.builds(
    offer,
    id=st.sampled_from((1, 2)),
    machine_id=st.sampled_from(MACHINES),
    usd_per_hour=amounts("0.4", "1.0", "1.5", "1.6"),
    reliability=rarely(0.99, 0.5),
)

policies = st.builds(
    Policy,
    launch=rarely(Launch(image=IMAGE), Launch()),
    limits=st.builds(
        Limits,
        max_boxes=st.integers(0, 4),
        max_usd_per_hour=st.sampled_from((Decimal("0.5"), Decimal(2), Decimal(50))),
        max_usd_per_hour_per_box=st.sampled_from((Decimal("0.5"), Decimal("1.5"))),
        max_usd_per_day=st.sampled_from((Decimal(1), Decimal(50))),
        max_usd_per_proof=st.sampled_from((None, Decimal("0.1"))),
        min_runway=st.sampled_from((timedelta(0), 2 * HOUR)),
    ),
    approvals=st.builds(
        Approvals,
        rent_above_usd_per_hour=st.sampled_from((None, Decimal(1))),
        always=rarely((), ("rent_box", "drain_box", "destroy_box")),
    ),
)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(Mode),
    "scale_out_paused": st.booleans(),
    "scale_in_paused": st.booleans(),
    "rent_breaker": st.sampled_from(("", "it keeps failing")),
    "frozen_because": st.sampled_from(("", "the list is empty")),
    "policy": policies,
    "inventory": rarely(Unknown(reason="no answer")) | st.lists(instances, max_size=3).map(lambda them: listed(*them)),
    "demand": st.sampled_from((work(running=3), work(running=0, seen_at=NOW - HOUR), Unknown(reason="no answer"))),
    "account": st.sampled_from((credit("0"), credit("0.8"), credit("2"), Unknown(reason="no answer"))),
    "boxes": st.lists(boxes, max_size=3).map(tuple),
    "in_flight_count": st.integers(0, 5),
    "in_flight_usd_per_hour": amounts("0.4", "3.6"),
    "listing": st.lists(offers, max_size=2).map(tuple),
    "bans": st.sampled_from(((ban(expires_at=NOW),), (ban(expires_at=NOW + HOUR),))),
    "benchmarks": st.sampled_from(((benchmark(0),), (benchmark(4),))),
    "effects_of_run": st.dictionaries(st.sampled_from([each.name for each in EFFECTS]), st.integers(0, 3)),
    "rents_of_hour": st.integers(0, 11),
    "destroys_of_hour": st.integers(0, 21),
    "removed_lately": st.integers(0, 3),
    "given_up": st.sampled_from((frozenset[str](), frozenset({"r1-s1-c0-zzzz"}))),
    "spent_of_day_usd": amounts("49"),
    "tainted": st.booleans(),
    "tainted_usd_per_hour": amounts("0.1"),
    "grant": st.sampled_from((None, *GRANTED.values())),
}


@st.composite
def situations(draw: st.DrawFn, fields: Sequence[str] = tuple(FIELDS), at_once: int = 4) -> Situation:
    """That of an action which is allowed, but for some fields: were all of them drawn, hardly anything would be."""
    names = draw(st.lists(st.sampled_from(fields), max_size=at_once, unique=True))
    return situation(actor=draw(rarely(Actor.AGENT, *Actor)), **{name: draw(FIELDS[name]) for name in names})


def test_every_field_of_a_situation_is_tried() -> None:
    """But for who and when, which are the same in all."""
    assert set(FIELDS) == set(Situation.model_fields) - {"actor", "now", "installation", "fleet"}


rents = st.sampled_from([RentBox(offer_id=number, reason="more") for number in (1, 1, 1, 2, 3)])
removals = st.sampled_from(
    [tool(id=number, reason="fewer") for tool in (DrainBox, DestroyBox) for number in (101, 102)]
)

thorough = settings(max_examples=400, deadline=None, database=None)
controlled = settings(
    max_examples=3_000, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    report_multiple_bugs=False,
)  # fmt: skip
"""Of a property that must fail: with the same cases each time, until it does."""


def stays_within_the_caps(seen: Situation, action: RentBox) -> None:
    """Of a rent that is allowed, reckoned anew from what is in the situation."""
    if judge(action, seen).decision is not Decision.ALLOW:
        return
    limits = seen.policy.limits
    rented = next(each for each in seen.listing if each.id == action.offer_id)
    live = [each for each in seen.boxes if each.stage != Stage.GONE]
    burn = sum((each.usd_per_hour for each in live), seen.in_flight_usd_per_hour + rented.usd_per_hour)
    assert len(live) + seen.in_flight_count + 1 <= limits.max_boxes
    assert burn <= limits.max_usd_per_hour
    assert rented.usd_per_hour <= limits.max_usd_per_hour_per_box
    assert seen.spent_of_day_usd + burn <= limits.max_usd_per_day
    if limits.min_runway:
        assert isinstance(seen.account, Known)
        hours = Decimal(limits.min_runway.total_seconds()) / 3600
        assert seen.account.value.credit_usd >= burn * hours - Decimal("0.000001")
    assert rented.machine_id not in [each.machine_id for each in seen.bans if each.expires_at > seen.now]
    assert seen.actor in (Actor.AGENT, Actor.PLANNER)
    assert seen.mode is not Mode.PAUSED
    assert isinstance(seen.inventory, Known)


def touches_only_what_may_be_given_up(seen: Situation, action: DrainBox | DestroyBox) -> None:
    """Of a removal that is allowed. A person may give up what is protected, too."""
    if judge(action, seen).decision is not Decision.ALLOW:
        return
    assert isinstance(seen.inventory, Known)
    ours = [each for each in seen.boxes if each.vast_id == action.id and each.stage in LIVE_STAGES]
    assert ours
    listed_as = [each for each in seen.inventory.value.instances if each.id == action.id][:1]
    for each in listed_as:
        lost_its_label = not each.label.startswith("fa/") and each.machine_id == ours[0].machine_id
        assert each.label == ours[0].label or lost_its_label
    if seen.actor is Actor.OPERATOR:
        return
    assert not ours[0].protected
    assert not ours[0].busy
    assert seen.mode is not Mode.PAUSED
    if seen.actor is not Actor.WATCH and isinstance(action, DestroyBox):
        says_busy = ours[0].reported_at == NOW and ours[0].tasks == 1
        assert not (says_busy and ours[0].stage in (Stage.PROVING, Stage.DRAINING))


@thorough
@given(situations(at_once=len(FIELDS)), rents | removals | st.just(TELL))
def test_no_situation_is_without_a_ruling(seen: Situation, action: Effect) -> None:
    ruling = judge(action, seen)
    assert ruling.code
    assert ruling.sentence.endswith(".")


@thorough
@given(situations(), rents)
def test_no_rent_that_is_allowed_breaks_a_cap(seen: Situation, action: RentBox) -> None:
    stays_within_the_caps(seen, action)


@thorough
@given(situations(), removals)
def test_no_removal_that_is_allowed_is_of_what_must_stay(seen: Situation, action: DrainBox | DestroyBox) -> None:
    touches_only_what_may_be_given_up(seen, action)


HOLDS_RENTS: tuple[tuple[Rule[RentBox], Sequence[str]], ...] = (
    (rules.boxes_within_cap, ["in_flight_count"]),
    (rules.burn_within_cap, ["in_flight_usd_per_hour"]),
    (rules.price_of_box_within_cap, ["listing", "policy"]),
    (rules.day_within_cap, ["spent_of_day_usd"]),
    (rules.credit_lasts, ["account"]),
    (rules.host_is_not_banned, ["bans"]),
    (rules.not_paused, ["mode"]),
    (rules.inventory_is_known, ["inventory"]),
)

HOLDS_REMOVALS: tuple[tuple[Rule[DestroyBox], Sequence[str]], ...] = (
    (rules.inventory_is_known, ["inventory"]),
    (rules.box_is_ours, ["inventory", "boxes"]),
    (rules.box_is_not_protected, ["boxes"]),
    (rules.box_is_not_busy, ["boxes"]),
    (rules.box_is_idle, ["boxes"]),
    (rules.not_paused, ["mode"]),
)


@pytest.mark.parametrize(("rule", "fields"), HOLDS_RENTS)
def test_without_its_rule_a_rent_breaks_the_cap(
    rule: Rule[RentBox], fields: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, on the fields that the rule is about."""
    monkeypatch.setattr(rules, "RULES", without(rule))
    with pytest.raises(AssertionError):
        controlled(given(situations(fields), rents)(stays_within_the_caps))()


@pytest.mark.parametrize(("rule", "fields"), HOLDS_REMOVALS)
def test_without_its_rule_a_removal_is_of_what_must_stay(
    rule: Rule[DestroyBox], fields: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, on the fields that the rule is about."""
    monkeypatch.setattr(rules, "RULES", without(rule))
    with pytest.raises(AssertionError):
        controlled(given(situations(fields), removals)(touches_only_what_may_be_given_up))()


# --- one after the other ----------------------------------------------------------------------------------------------

prices = st.decimals(min_value="0.01", max_value="3", places=3)


def rents_one_after_the_other(offered: list[Decimal], in_flight: int, max_boxes: int) -> None:
    limits = Limits(max_boxes=max_boxes, max_rents_per_run=50)
    count, rate = in_flight, Decimal("0.5") * in_flight
    started_over = count > max_boxes or rate > limits.max_usd_per_hour
    for price in offered:
        seen = situation(
            policy=Policy(launch=Launch(image=IMAGE), limits=limits, approvals=Approvals(rent_above_usd_per_hour=None)),
            boxes=(),
            in_flight_count=count,
            in_flight_usd_per_hour=rate,
            listing=(offer(usd_per_hour=price),),
        )
        if judge(RENT, seen).decision is Decision.ALLOW:
            count, rate = count + 1, rate + price
            assert price <= limits.max_usd_per_hour_per_box
    assert started_over or (count <= max_boxes and rate <= limits.max_usd_per_hour)


@given(st.lists(prices, max_size=12), st.integers(0, 4), st.integers(1, 6))
def test_no_sequence_of_allowed_rents_exceeds_a_cap(offered: list[Decimal], in_flight: int, max_boxes: int) -> None:
    """Caps hold for any order and any prices when every allowed rent counts for the next ruling."""
    rents_one_after_the_other(offered, in_flight, max_boxes)


@pytest.mark.parametrize("rule", [rules.boxes_within_cap, rules.burn_within_cap, rules.price_of_box_within_cap])
def test_without_its_rule_a_sequence_of_rents_exceeds_the_cap(
    rule: Rule[RentBox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(rules, "RULES", without(rule))
    with pytest.raises(AssertionError):
        controlled(
            given(st.lists(prices, max_size=12), st.integers(0, 4), st.integers(1, 6))(rents_one_after_the_other)
        )()


# --- what a machine says of itself ------------------------------------------------------------------------------------

claims = st.floats(min_value=0, max_value=1_000_000, exclude_min=True)


def says_nothing_in_its_own_favour(seen: Situation, action: RentBox, claimed: float) -> None:
    silent = judge(action, seen.model_copy(update={"benchmarks": ()}))
    claiming = judge(action, seen.model_copy(update={"benchmarks": (benchmark(claimed),)}))
    assert claiming == silent or (claiming.decision, claiming.code) == (Decision.REFUSE, "proof_price")


@thorough
@given(situations(), rents, claims)
def test_what_a_machine_claims_allows_nothing_that_its_silence_would_not(
    seen: Situation, action: RentBox, claimed: float
) -> None:
    """Its owner chooses the figure, and nobody has checked it."""
    says_nothing_in_its_own_favour(seen, action, claimed)


def test_a_rule_that_wants_to_see_a_rate_would_be_led_by_whoever_makes_one_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""

    def was_measured(_: RentBox, seen: Situation) -> tuple[str, str] | None:
        return None if seen.benchmarks else ("not_measured", "Nobody has measured that machine.")

    naive = {**rules.RULES, Actor.AGENT: {**rules.BY_THEMSELVES, RentBox: (was_measured, *rules.RENT_RULES)}}
    monkeypatch.setattr(rules, "RULES", naive)
    with pytest.raises(AssertionError):
        says_nothing_in_its_own_favour(situation(), RENT, 500)
