"""Amounts are exact decimals with their unit in the name."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.money import cost, runway, show_rate, show_usd, total, usd, usd_per_hour

rates = st.decimals(min_value="0.001", max_value="100", places=4)


def test_a_float_counts_by_its_printed_digits() -> None:
    assert usd(0.1) + usd(0.2) == Decimal("0.3")


def test_a_small_amount_is_not_shown_as_nothing() -> None:
    assert (show_usd(Decimal("0.0004")), show_usd(Decimal(0)), show_usd(Decimal("1.005"))) == (
        "$0.0004",
        "$0.00",
        "$1.01",
    )
    assert show_rate(Decimal("0.4125")) == "$0.413/h"


def test_nothing_burnt_has_no_end() -> None:
    assert runway(usd(5), usd_per_hour(0)) is None


@given(rates, st.integers(0, 10_000))
def test_credit_lasts_exactly_its_runway(rate: Decimal, credit: int) -> None:
    left = runway(usd(credit), usd_per_hour(rate))
    assert left is not None
    assert left == timedelta(hours=24 * 365) or abs(cost(usd_per_hour(rate), left) - credit) < Decimal("0.001")


@given(st.lists(rates))
def test_the_total_does_not_depend_on_the_order(values: list[Decimal]) -> None:
    assert total([usd_per_hour(v) for v in values]) == total([usd_per_hour(v) for v in reversed(values)])
