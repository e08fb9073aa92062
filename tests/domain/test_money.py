"""Amounts are exact decimals with their unit in the name."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.money import LONGEST_RUNWAY, Usd, UsdPerHour, runway, show_rate, show_usd, total

rates = st.decimals(min_value="0.001", max_value="100", places=4).map(UsdPerHour)


def test_a_small_amount_is_not_shown_as_nothing() -> None:
    shown = [show_usd(Decimal(amount)) for amount in ("0.0004", "0", "1.005")]
    assert shown == ["$0.0004", "$0.00", "$1.01"]
    assert show_rate(Decimal("0.4125")) == "$0.413/h"


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_whatever_the_amount_it_can_be_shown_on_a_line(amount: Decimal) -> None:
    """A price divided by the rate that a liar claims is one."""
    for shown in (show_usd(amount), show_rate(amount)):
        assert shown.startswith("$")
        assert len(shown) < 40


def test_an_amount_that_nobody_has_is_a_power_and_not_a_page() -> None:
    assert show_usd(Decimal("0.4") / Decimal("1e-320")) == "$4.0e+319"


def test_nothing_burnt_has_no_end() -> None:
    assert runway(Usd(Decimal(5)), UsdPerHour(Decimal(0))) is None


def test_debt_lasts_no_time() -> None:
    assert runway(Usd(Decimal(-5)), UsdPerHour(Decimal(1))) == timedelta(0)


@given(rates, st.integers(0, 10_000))
def test_credit_lasts_exactly_its_runway(rate: UsdPerHour, credit: int) -> None:
    left = runway(Usd(Decimal(credit)), rate)
    assert left is not None
    spent = rate * Decimal(left.total_seconds()) / 3600
    assert left == LONGEST_RUNWAY or abs(spent - credit) < Decimal("0.001")


@given(st.lists(rates))
def test_the_total_does_not_depend_on_the_order(values: list[UsdPerHour]) -> None:
    assert total(values) == total(reversed(values))
