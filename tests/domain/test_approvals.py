"""A person's word grants the narrowest bound within which the action can be done as it was asked for."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.approvals import Grant, beyond, bound_of
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.policy import OfferFloors
from tests.domain.test_rules import DESTROY, DRAIN, NOW, RENT, offer

UNTIL = NOW + timedelta(hours=4)


def granted(action: Effect, *, measured: float | None = None) -> Grant:
    asked = offer() if isinstance(action, RentBox) else None
    return bound_of(action, asked, floors=OfferFloors(), proofs_per_hour=measured, expires_at=UNTIL)


@pytest.mark.parametrize("action", [RENT, DRAIN, DESTROY])
def test_what_was_asked_for_lies_within_its_own_bound_until_it_expires(action: Effect) -> None:
    seen = offer() if isinstance(action, RentBox) else None
    assert beyond(granted(action), action, seen, UNTIL - timedelta(microseconds=1)) is None
    assert beyond(granted(action), action, seen, UNTIL) == "The approval expired at 2026-03-17 16:00 UTC."


def test_a_bound_is_said_in_words() -> None:
    """By kind and price, for the offer may be gone by the time it is used."""
    assert granted(RENT).in_words() == "rent one 1x RTX 4090 for at most $0.400/h, until 2026-03-17 16:00 UTC"
    assert granted(RENT, measured=8).in_words() == (
        "rent one 1x RTX 4090 for at most $0.400/h and $0.05 a proof, until 2026-03-17 16:00 UTC"
    )
    assert granted(DRAIN).in_words() == "drain_box of box 101, until 2026-03-17 16:00 UTC"


def test_another_offer_of_the_same_kind_lies_within_the_bound() -> None:
    """Machine, place and host may be others: those are for the rules."""
    another = offer(id=2, machine_id=12, host_id=22, location="Sweden", usd_per_hour=Decimal("0.39"))
    assert beyond(granted(RENT), RentBox(offer_id=2, reason="the other is gone"), another, NOW) is None


@pytest.mark.parametrize(
    ("lesser", "missing"),
    [
        ({"gpu_ram_mb": 23_999}, "24 GB of GPU memory is under the floor of 24 GB"),
        ({"reliability": 0.949}, "reliability 0.949 is under the floor of 0.95"),
        ({"inet_down_mbps": 199}, "199 Mb/s down is under the floor of 200 Mb/s"),
        ({"verified": False}, "the host is not verified"),
        ({"gpu_share": 0.5}, "it is a share of a machine"),
    ],
)
def test_a_lesser_machine_is_beyond_the_bound_whatever_the_policy_says_by_then(
    lesser: dict[str, Any], missing: str
) -> None:
    """The floors are those under which it was asked for, and the memory is that of the GPUs that were asked for."""
    said = beyond(granted(RENT), RENT, offer(**lesser), NOW)
    assert said == f"The approval is for no such machine: {missing}."


def test_the_same_gpu_with_half_of_its_memory_is_another_one() -> None:
    asked = offer(gpu_ram_mb=81_559)
    grant = bound_of(RENT, asked, floors=OfferFloors(), expires_at=UNTIL)
    assert beyond(grant, RENT, offer(gpu_ram_mb=81_050), NOW) is None  # hosts do not count the last megabytes alike
    assert beyond(grant, RENT, offer(gpu_ram_mb=40_960), NOW) is not None


@pytest.mark.parametrize(
    ("asked", "found", "said"),
    [
        (8, 8, None),
        (8, None, None),  # nobody has measured it: its benchmark is waited for
        (None, 4, None),  # nobody had measured what was asked about: a proof had no price
        (8, 7, "$0.06 a proof is more than the approved $0.05."),
        (8, 4, "$0.10 a proof is more than the approved $0.05."),
    ],
)
def test_a_machine_whose_proofs_are_dearer_than_those_of_the_one_asked_about_is_beyond_the_bound(
    asked: float | None, found: float | None, said: str | None
) -> None:
    """It costs no more an hour, and gives less for it."""
    assert beyond(granted(RENT, measured=asked), RENT, offer(), NOW, proofs_per_hour=found) == said


def test_an_offer_that_nobody_found_is_beyond_the_bound() -> None:
    assert beyond(granted(RENT), RENT, None, NOW) == "No offer was found that lies within the approval."


@pytest.mark.parametrize(
    ("grant", "action"), [(RENT, DESTROY), (RENT, DRAIN), (DRAIN, DESTROY), (DESTROY, DRAIN), (DESTROY, RENT)]
)
def test_a_grant_for_one_tool_is_none_for_another(grant: Effect, action: Effect) -> None:
    """To destroy a box is more than to drain it, and to drain it is not what was asked."""
    assert beyond(granted(grant), action, offer(), NOW) == f"The approval is for {grant.name}."


@pytest.mark.parametrize("tool", [DrainBox, DestroyBox])
def test_a_grant_for_one_box_is_none_for_another(tool: type[DrainBox | DestroyBox]) -> None:
    action = tool(id=101, reason="no work left")
    assert beyond(granted(action), tool(id=102, reason="no work left"), None, NOW) == "The approval is for box 101."


def test_what_needs_no_word_has_no_bound() -> None:
    with pytest.raises(AssertionError, match="notify_human"):
        bound_of(NotifyHuman(text="credit is low"), None, floors=OfferFloors(), expires_at=UNTIL)


offers = st.builds(
    offer,
    id=st.integers(1, 3),
    gpu_name=st.sampled_from(("RTX 4090", "RTX 3090")),
    num_gpus=st.sampled_from((1, 2)),
    usd_per_hour=st.decimals("0.01", "3", places=3),
)


@given(offers, offers)
def test_whatever_lies_within_a_bound_is_of_its_kind_and_no_dearer(asked: Offer, found: Offer) -> None:
    """And what is not is beyond it: nothing else decides."""
    grant = bound_of(RENT, asked, floors=OfferFloors(), expires_at=UNTIL)
    said = beyond(grant, RENT, found, NOW)
    same_kind = (found.gpu_name, found.num_gpus) == (asked.gpu_name, asked.num_gpus)
    assert (said is None) == (same_kind and found.usd_per_hour <= asked.usd_per_hour)
