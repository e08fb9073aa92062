"""The rules refuse with one good reason; what no rule allows is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain import rules
from fleet_agent.domain.actions import EFFECTS, DestroyBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Instance, Inventory, Offer, Stage
from fleet_agent.domain.observation import Account, Known, Unknown
from fleet_agent.domain.policy import Launch, Limits, Policy
from fleet_agent.domain.rules import Actor, Decision, Mode, Situation, judge

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
IMAGE = "example/prover@sha256:" + "a" * 64


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


def work(*, running: int, seen_at: datetime = NOW) -> Known[Demand]:
    demand = Demand(
        pending=0, running=running, oldest_pending=None, done_per_hour=None, failed_per_hour=None, seen_at=seen_at
    )
    return Known(value=demand, seen_at=seen_at)


def situation(**changes: Any) -> Situation:
    values: dict[str, Any] = {
        "now": NOW,
        "installation": "abc123",
        "fleet": "main",
        "mode": Mode.LIVE,
        "policy": Policy(launch=Launch(image=IMAGE)),
        "inventory": Known(value=Inventory(instances=(instance(),), seen_at=NOW), seen_at=NOW),
        "demand": work(running=0),
        "account": Known(value=Account(credit_usd=Decimal(100)), seen_at=NOW),
        "boxes": (box(),),
        "in_flight_count": 0,
        "in_flight_usd_per_hour": Decimal(0),
        "listing": (offer(),),
        "effects_of_run": {},
    }
    return Situation(**values | changes)


RENT = RentBox(offer_id=1, reason="pending work")
DESTROY = DestroyBox(id=101, reason="no work left")


@pytest.mark.parametrize("action", [RENT, DESTROY, NotifyHuman(text="credit is low")])
def test_an_action_within_the_policy_is_allowed(action: Effect) -> None:
    assert judge(action, situation()).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("paused", {"mode": Mode.PAUSED}),
        ("inventory_unknown", {"inventory": Unknown(reason="page 2 failed")}),
        ("no_image", {"policy": Policy()}),
        ("offer_not_listed", {"listing": ()}),
        ("below_floor", {"listing": (offer(reliability=0.5),)}),
        ("box_price", {"listing": (offer(usd_per_hour=Decimal("1.51")),)}),
        ("max_boxes", {"in_flight_count": 3}),
        ("max_usd_per_hour", {"in_flight_usd_per_hour": Decimal("3.21")}),
        ("run_cap", {"effects_of_run": {"rent_box": 2}}),
    ],
)
def test_each_rule_of_renting_refuses_what_it_is_there_for(code: str, changes: dict[str, Any]) -> None:
    ruling = judge(RENT, situation(**changes))
    assert (ruling.decision, ruling.code) == (Decision.REFUSE, code)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("paused", {"mode": Mode.PAUSED}),
        ("inventory_unknown", {"inventory": Unknown(reason="page 2 failed")}),
        ("not_ours", {"inventory": listed(instance(machine_id=12, label=""))}),
        ("not_ours", {"boxes": ()}),
        ("protected", {"boxes": (box(protected=True),)}),
        ("already_destroying", {"boxes": (box(stage=Stage.DESTROYING),)}),
        ("run_cap", {"effects_of_run": {"destroy_box": 2}}),
    ],
)
def test_each_rule_of_destroying_refuses_what_it_is_there_for(code: str, changes: dict[str, Any]) -> None:
    ruling = judge(DESTROY, situation(**changes))
    assert (ruling.decision, ruling.code) == (Decision.REFUSE, code)


@pytest.mark.parametrize("label", ["", "relabelled by hand"])
def test_a_box_of_the_ledger_that_lost_its_label_can_still_be_destroyed(label: str) -> None:
    """Else it would bill for ever: the number came from the answer to our own create."""
    assert judge(DESTROY, situation(inventory=listed(instance(label=label)))).decision is Decision.ALLOW


def test_a_box_of_another_installation_is_never_destroyed() -> None:
    foreign = instance(label="fa/zzz999/main/r1-s1-c0-zzzz")
    seen = Known(value=Inventory(instances=(foreign,), seen_at=NOW), seen_at=NOW)
    assert judge(DESTROY, situation(inventory=seen)).code == "not_ours"


def test_an_effect_without_rules_is_refused() -> None:
    class SellBox(Effect):
        name: ClassVar[str] = "sell_box"

    assert judge(SellBox(), situation()).code == "no_rule"


def test_every_kind_of_effect_has_rules() -> None:
    """Fails when an effect is added and nobody says what it may do."""
    for actor in (Actor.AGENT, Actor.PLANNER):
        assert set(rules.RULES[actor]) == set(EFFECTS)
        assert all(rules.RULES[actor].values())


prices = st.decimals(min_value="0.01", max_value="3", places=3)


@given(st.lists(prices, max_size=12), st.integers(0, 4), st.integers(1, 6))
def test_no_sequence_of_allowed_rents_exceeds_a_cap(offered: list[Decimal], in_flight: int, max_boxes: int) -> None:
    """Caps hold for any order and any prices when every allowed rent counts for the next ruling."""
    limits = Limits(max_boxes=max_boxes, max_rents_per_run=50)
    policy = Policy(launch=Launch(image=IMAGE), limits=limits)
    count, rate = in_flight, Decimal("0.5") * in_flight
    started_over = count > max_boxes or rate > limits.max_usd_per_hour
    for price in offered:
        seen = situation(
            policy=policy, boxes=(), in_flight_count=count, in_flight_usd_per_hour=rate,
            listing=(offer(usd_per_hour=price),),
        )  # fmt: skip
        if judge(RENT, seen).decision is Decision.ALLOW:
            count, rate = count + 1, rate + price
            assert price <= limits.max_usd_per_hour_per_box
    assert started_over or (count <= max_boxes and rate <= limits.max_usd_per_hour)
