"""What boxes cost is counted by the stretch, to the last digit, and held against what the provider charged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.spending import DAY, hour_of
from fleet_agent.domain.spent import (
    BILLS_COME_WITHIN,
    LONGEST_STRETCH,
    SMALLEST,
    Bill,
    Charge,
    Entry,
    Meter,
    Reckoning,
    bills,
    bills_begin,
    doubt_about,
    nobodys,
    read,
    split,
)

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PRICE = Decimal("0.41")

prices = st.decimals(min_value=0, max_value=10_000, places=6)
moments = st.integers(0, 10 * 86_400_000_000).map(lambda us: NOON + timedelta(microseconds=us))


# --- a stretch and its hours ------------------------------------------------------------------------------------------


def test_a_stretch_is_split_over_the_hours_that_it_falls_in() -> None:
    parts = split(Decimal("0.60"), NOON + 50 * MINUTE, NOON + 2 * HOUR + 10 * MINUTE)

    assert parts == {NOON: Decimal("0.10"), NOON + HOUR: Decimal("0.60"), NOON + 2 * HOUR: Decimal("0.10")}


@given(prices, moments, moments)
def test_no_part_is_negative_none_is_outside_and_the_sum_is_price_times_time(
    price: Decimal, one: datetime, other: datetime
) -> None:
    since, until = sorted((one, other))
    parts = split(price, since, until)

    assert all(usd > 0 and usd.as_tuple().exponent == SMALLEST.as_tuple().exponent for usd in parts.values())
    assert all(hour_of(since) <= hour < until for hour in parts)
    exact = price * ((until - since) // timedelta(microseconds=1)) / 3_600_000_000
    assert abs(sum(parts.values()) - exact) <= SMALLEST  # of the two hours at its ends, half a digit each


@given(prices, st.lists(moments, min_size=2, max_size=8))
def test_whoever_looks_more_often_counts_the_same_to_the_last_digit(price: Decimal, looks: Sequence[datetime]) -> None:
    looks = sorted(looks)
    together: dict[datetime, Decimal] = {}
    for since, until in itertools.pairwise(looks):
        for hour, usd in split(price, since, until).items():
            together[hour] = together.get(hour, Decimal(0)) + usd

    assert together == split(price, looks[0], looks[-1])


def test_control_parts_that_are_rounded_each_for_itself_drift_away() -> None:
    every_second = [NOON + timedelta(seconds=second) for second in range(3601)]
    naive = sum(((PRICE / 3600).quantize(SMALLEST) for _ in every_second[1:]), start=Decimal(0))

    assert sum(split(PRICE, NOON, NOON + HOUR).values()) == PRICE
    assert naive != PRICE


@given(prices, moments, moments)
def test_a_stretch_that_ends_before_it_begins_costs_nothing(price: Decimal, one: datetime, other: datetime) -> None:
    until, since = sorted((one, other))

    assert split(price, since, until) == {}


def test_a_beginning_in_the_last_century_is_not_believed() -> None:
    parts = split(PRICE, datetime(1970, 1, 1, tzinfo=UTC), NOON)

    assert sum(parts.values()) == PRICE * (LONGEST_STRETCH // HOUR)


# --- a box and its looks ----------------------------------------------------------------------------------------------


def meter(**changes: Any) -> Meter:
    return Meter(**{"usd_per_hour": PRICE, "rented_at": NOON, "looked_at": NOON + HOUR} | changes)


def test_the_first_look_counts_from_the_rent_and_the_next_from_there() -> None:
    first = read(meter(), NOON + HOUR)
    second = read(meter(accrued_until=first.until, looked_at=NOON + 3 * HOUR), NOON + 3 * HOUR)

    assert (first.usd, first.until) == (PRICE, NOON + HOUR)
    assert (second.usd, second.until) == (2 * PRICE, NOON + 3 * HOUR)


def test_a_box_that_no_look_has_shown_yet_is_read_when_one_does() -> None:
    assert read(meter(looked_at=None), NOON + HOUR).usd == 0


def test_a_missing_box_is_counted_until_it_was_first_missed_and_no_further() -> None:
    first_missed = read(meter(misses=1), NOON + HOUR)
    again = meter(misses=2, accrued_until=first_missed.until, looked_at=NOON + 2 * HOUR)
    gone = again.model_copy(update={"gone_at": NOON + 2 * HOUR})

    assert first_missed.usd == PRICE
    assert [read(each, NOON + 2 * HOUR).usd for each in (again, gone)] == [0, 0]


def test_a_missing_box_that_is_found_again_was_there_all_the_time() -> None:
    found = meter(misses=0, accrued_until=NOON + HOUR, looked_at=NOON + 5 * HOUR)

    assert read(found, NOON + 5 * HOUR).usd == 4 * PRICE


def test_a_box_that_the_provider_does_not_know_any_more_is_counted_until_it_said_so() -> None:
    gone = meter(accrued_until=NOON + HOUR, gone_at=NOON + 2 * HOUR)
    read_once = read(gone, NOON + 3 * HOUR)

    assert (read_once.usd, read_once.until) == (PRICE, NOON + 2 * HOUR)
    assert read(gone.model_copy(update={"accrued_until": read_once.until}), NOON + 4 * HOUR).usd == 0


@given(st.lists(moments, min_size=1, max_size=12))
def test_a_clock_that_is_set_back_counts_nothing_twice(looks: Sequence[datetime]) -> None:
    """Every moment of business time up to the latest look is counted once, in whatever order looks come."""
    at_hand, spent = meter(looked_at=None), Decimal(0)
    for look in looks:
        reading = read(at_hand.model_copy(update={"looked_at": look}), max(look, _latest(at_hand) - DAY))
        spent += reading.usd
        at_hand = at_hand.model_copy(update={"accrued_until": reading.until})

    assert spent == sum(split(PRICE, NOON, max(looks)).values())


def _latest(at_hand: Meter) -> datetime:
    return at_hand.accrued_until or at_hand.rented_at


def test_a_clock_that_was_ahead_by_more_than_a_day_is_not_waited_for() -> None:
    ahead = meter(accrued_until=NOON + 30 * DAY, looked_at=NOON + HOUR)
    back = read(ahead, NOON + HOUR)
    next_look = ahead.model_copy(update={"accrued_until": back.until, "looked_at": NOON + 2 * HOUR})

    assert (back.usd, back.until) == (0, NOON + HOUR)
    assert read(next_look, NOON + 2 * HOUR).usd == PRICE


def _by_the_stretch(looks: Sequence[datetime]) -> Decimal:
    at_hand, spent = meter(looked_at=None), Decimal(0)
    for look in looks:
        reading = read(at_hand.model_copy(update={"looked_at": look}), look)
        spent += reading.usd
        at_hand = at_hand.model_copy(update={"accrued_until": reading.until})
    return spent


def _by_the_look(looks: Sequence[datetime]) -> Decimal:
    """Naive: every look is worth the minute between two looks."""
    return (PRICE / 60 * len(looks)).quantize(SMALLEST)


EVERY_MINUTE = [NOON + minute * MINUTE for minute in range(1, 601)]
WATCH_WAS_DOWN = [look for look in EVERY_MINUTE if not 60 < (look - NOON) / MINUTE < 540]


def pays_for_the_whole_time(counted: Callable[[Sequence[datetime]], Decimal], looks: Sequence[datetime]) -> bool:
    return counted(looks) == 10 * PRICE


def test_an_outage_of_the_watch_loses_no_money() -> None:
    assert pays_for_the_whole_time(_by_the_stretch, EVERY_MINUTE)
    assert pays_for_the_whole_time(_by_the_stretch, WATCH_WAS_DOWN)


def test_control_price_times_looks_loses_the_money_of_an_outage() -> None:
    assert pays_for_the_whole_time(_by_the_look, EVERY_MINUTE)
    assert not pays_for_the_whole_time(_by_the_look, WATCH_WAS_DOWN)


# --- bills ------------------------------------------------------------------------------------------------------------


def charge(vast_id: int, usd: str, *, rent_usd: str | None = None, label: str = "") -> Charge:
    return Charge(
        vast_id=vast_id, label=label, start=None, end=None, usd=Decimal(usd), rent_usd=Decimal(rent_usd or usd)
    )


def test_the_charges_of_a_box_are_one_bill_under_its_newest_label() -> None:
    found = bills([charge(1, "0.30", rent_usd="0.25", label="a"), charge(2, "1.00"), charge(1, "0.20", label="b")])

    assert found[1] == Bill(vast_id=1, label="b", usd=Decimal("0.50"), rent_usd=Decimal("0.45"))
    assert found[2].usd == 1


def test_charges_are_read_from_the_day_in_which_the_oldest_open_bill_began() -> None:
    midnight = NOON - 12 * HOUR

    assert bills_begin(None, NOON) == midnight - BILLS_COME_WITHIN
    assert bills_begin(NOON - HOUR, NOON) == midnight - BILLS_COME_WITHIN
    assert bills_begin(NOON - 40 * DAY, NOON) == midnight - 40 * DAY
    assert bills_begin(datetime(1970, 1, 1, tzinfo=UTC), NOON) == midnight - 366 * DAY


# --- where bill and books do not fit ----------------------------------------------------------------------------------


def entry(
    *, spent_usd: str = "10", vast_id: int | None = 101, charged: str = "", at: timedelta = HOUR, **of_meter: Any
) -> Entry:
    return Entry(
        key="r1-s1-c1-aaaa",
        vast_id=vast_id,
        meter=meter(accrued_until=NOON + HOUR, **of_meter),
        spent_usd=Decimal(spent_usd),
        charged_usd=Decimal(charged) if charged else None,
        charged_at=NOON + at if charged else None,
    )


def bill(usd: str, *, rent_usd: str | None = None) -> Bill:
    return Bill(vast_id=101, label="", usd=Decimal(usd), rent_usd=Decimal(rent_usd or usd))


def told(of: Entry, its_bill: Bill, after: timedelta) -> str | None:
    doubt = doubt_about(of, its_bill, NOON + after)
    return doubt and doubt.key.partition(":")[0]


def test_a_bill_that_its_price_explains_is_no_doubt() -> None:
    """Control: a larger difference than ten percent and fifty cents is one, whichever way."""
    live = entry(spent_usd="10")
    gone = entry(spent_usd="10", gone_at=NOON + HOUR)

    assert told(live, bill("10.99"), HOUR) is None
    assert told(entry(spent_usd="1"), bill("1.49"), HOUR) is None
    assert told(live, bill("11.01"), HOUR) == "charged otherwise"
    assert told(gone, bill("8.99"), HOUR + DAY + MINUTE) == "charged otherwise"


def test_traffic_is_in_no_price_and_explains_itself() -> None:
    assert told(entry(spent_usd="1"), bill("3", rent_usd="1"), HOUR) is None


def test_a_bill_that_is_too_low_may_be_late_until_a_day_after_the_end() -> None:
    assert told(entry(spent_usd="10"), bill("0"), HOUR) is None
    assert told(entry(spent_usd="10", gone_at=NOON + HOUR), bill("2"), HOUR + DAY) is None


def test_a_bill_does_not_wait_for_our_next_look() -> None:
    """The watch was down for ten hours in which the box ran on. Control: the same bill at the time of the last look."""
    unseen = entry(spent_usd="0.41")

    assert told(unseen, bill("4.51"), 11 * HOUR) is None
    assert told(unseen, bill("4.51"), HOUR) == "charged otherwise"


def test_a_box_that_is_gone_for_an_hour_and_whose_bill_grows_is_told() -> None:
    """Controls: a bill that stands still; one that grew while late charges may still come; a box that lives."""
    gone = {"gone_at": NOON + HOUR, "spent_usd": "2.00"}
    later = 4 * HOUR

    assert told(entry(charged="2.00", at=3 * HOUR, **gone), bill("2.10"), later) == "charged while gone"
    assert told(entry(charged="2.00", at=3 * HOUR, **gone), bill("2.00"), later) is None
    assert told(entry(charged="1.00", at=HOUR, **gone), bill("2.00"), later) is None
    assert told(entry(charged="1.60", at=3 * HOUR, spent_usd="0.41"), bill("1.65"), later) is None


def test_a_rent_that_came_to_nothing_and_is_charged_is_told_at_once_when_its_hour_is_over() -> None:
    nothing = entry(spent_usd="0.40", vast_id=None, gone_at=NOON)

    assert told(nothing, bill("0.41"), HOUR) is None
    assert told(nothing, bill("0.41"), HOUR + MINUTE) == "charged while gone"


@pytest.mark.parametrize(
    ("doubt", "words"),
    [
        (
            doubt_about(entry(spent_usd="2", charged="2", at=3 * HOUR, gone_at=NOON), bill("2.10"), NOON + 4 * HOUR),
            "goes on charging for box 101, which is gone for us since 2026-03-17 12:00 UTC (r1-s1-c1-aaaa): $2.10",
        ),
        (doubt_about(entry(), bill("12"), NOON + HOUR), "charged $12.00 for GPUs and disk of box 101"),
        (nobodys(Bill(vast_id=7, label="fa/abc123/main/r1", usd=Decimal(1))), "carries our label fa/abc123/main/r1"),
    ],
)
def test_a_doubt_says_which_box_and_how_much(doubt: Any, words: str) -> None:
    assert words in doubt.text
    assert "\n" not in doubt.text


def test_a_reckoning_is_one_line() -> None:
    reckoned = Reckoning(boxes=1, charged_usd=Decimal("1.20"), spent_usd=Decimal(1)) + Reckoning(
        boxes=2, spent_usd=Decimal(3)
    )

    assert reckoned.headline == "3 boxes: vast.ai charged $1.20 with traffic, we counted $4.00; all fits"
    assert Reckoning().headline == "no box to be charged for"
