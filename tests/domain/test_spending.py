"""What a request may cost, when the day has not that much left, and how far two requests begin alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.policy import ModelBounds, Policy
from fleet_agent.domain.run import Usage
from fleet_agent.domain.spending import Prices, Spent, Terms, alike, beyond_the_day, day_before, hour_of
from fleet_agent.domain.tokens import rendered

BOUNDS = ModelBounds(max_calls_per_day=10, max_tokens_per_day=1_000, max_usd_per_day=Decimal(1))


def test_a_request_may_cost_its_whole_prompt_and_the_longest_reply() -> None:
    terms = Terms(max_output_tokens=2_000, prices=Prices(Decimal(3), Decimal(15)))
    assert terms.most(10_000) == Usage(tokens_in=10_000, tokens_out=2_000, cost_usd=Decimal("0.06"))


@pytest.mark.parametrize(
    ("spent", "most", "bound"),
    [
        (Spent(9, 900, Decimal("0.9")), Usage(tokens_in=100, cost_usd=Decimal("0.1")), None),
        (Spent(10, 0, Decimal(0)), Usage(), "max_calls_per_day"),
        (Spent(0, 901, Decimal(0)), Usage(tokens_in=60, tokens_out=40), "max_tokens_per_day"),
        (Spent(0, 0, Decimal("0.91")), Usage(cost_usd=Decimal("0.1")), "max_usd_per_day"),
    ],
    ids=["all of it and no more", "a request too many", "a token too many", "a cent too many"],
)
def test_a_request_leaves_only_if_the_most_that_it_may_cost_is_left(
    spent: Spent, most: Usage, bound: str | None
) -> None:
    said = beyond_the_day(spent, most, BOUNDS)
    assert said is None if bound is None else bound in (said or "")


def test_a_normal_day_fits_into_the_bounds_that_nobody_set() -> None:
    """300 requests of 10,000 tokens, of a model that costs $1 and $5 a million."""
    usage = Usage(tokens_in=9_700, tokens_out=300)
    cost = Prices(Decimal(1), Decimal(5)).of(usage.tokens_in, usage.tokens_out)
    assert beyond_the_day(Spent(300, 300 * usage.tokens, 300 * cost), usage, Policy().model) is None


moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(now=moments, ago=st.timedeltas(timedelta(0), timedelta(hours=48)))
def test_whatever_was_spent_within_24_hours_counts_and_nothing_older_than_25(now: datetime, ago: timedelta) -> None:
    counts = hour_of(now - ago) >= day_before(now)
    assert counts or ago > timedelta(hours=24)
    assert not counts or ago < timedelta(hours=25)


@given(now=moments)
def test_control_a_day_that_begins_at_midnight_lets_two_be_spent_around_it(now: datetime) -> None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    evening = midnight - timedelta(minutes=1)
    assert hour_of(evening) < midnight
    assert hour_of(evening) >= day_before(midnight)


def body(*contents: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content} for content in contents], "tools": []}


@given(before=st.lists(st.text(max_size=30), max_size=4), after=st.lists(st.text(max_size=30), max_size=4))
def test_how_far_two_requests_begin_alike_is_their_longest_common_prefix(before: list[str], after: list[str]) -> None:
    chars, chars_as_before = alike(body(*before), body(*after))
    one, other = rendered(body(*before)), rendered(body(*after))
    assert (chars, chars_as_before) == (len(other), letter_by_letter(one, other))


def letter_by_letter(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_a_request_that_goes_on_with_the_one_before_it_begins_with_all_of_it() -> None:
    before = body("a" * 1_000)
    assert alike(before, body("a" * 1_000, "b"))[1] == len(rendered(before)) - 1


def test_the_first_request_of_all_begins_like_nothing() -> None:
    assert alike(None, body("a"))[1] == 0
