"""How often an endpoint is called: gaps, a budget a day, and never a long wait."""

from datetime import timedelta

import pytest

from fleet_agent.clients.pace import Limit, Pace, retry_after
from fleet_agent.errors import SlowDown
from tests.clients.world import PassingTime

SECOND = timedelta(seconds=1)


def pace(time: PassingTime, limit: Limit) -> Pace:
    return Pace({"search": limit}, elapsed=time.elapsed, sleep=time.sleep)


async def times_of_turns(time: PassingTime, paced: Pace, turns: int) -> list[float]:
    times: list[float] = []
    for _ in range(turns):
        await paced.turn("search")
        times.append(time.elapsed().total_seconds())
    return times


async def test_two_calls_keep_the_gap_between_them():
    time = PassingTime()

    assert await times_of_turns(time, pace(time, Limit(7 * SECOND)), 3) == [0, 7, 14]


async def test_control_without_a_limit_the_calls_come_at_once():
    time = PassingTime()
    unlimited = Pace({}, elapsed=time.elapsed, sleep=time.sleep)

    assert await times_of_turns(time, unlimited, 3) == [0, 0, 0]


async def test_time_that_passed_anyway_is_not_waited_for_again():
    time = PassingTime()
    paced = pace(time, Limit(7 * SECOND))
    await paced.turn("search")
    time.advance(5 * SECOND)

    await paced.turn("search")

    assert time.slept == [2]


async def test_a_turn_beyond_the_patience_is_refused_at_once_and_not_taken():
    time = PassingTime()
    paced = pace(time, Limit(40 * SECOND))
    await paced.turn("search")

    for _ in range(2):
        with pytest.raises(SlowDown) as refusal:
            await paced.turn("search")
        assert refusal.value.retry_after == 40 * SECOND
    assert time.slept == []


async def test_a_used_up_day_budget_is_refused_until_the_oldest_call_is_a_day_old():
    time = PassingTime()
    paced = pace(time, Limit(SECOND, per_day=3))
    await times_of_turns(time, paced, 3)
    with pytest.raises(SlowDown):
        await paced.turn("search")

    time.advance(timedelta(hours=24) - 2 * SECOND)

    await paced.turn("search")


async def test_an_endpoint_on_hold_is_waited_for_and_others_are_not():
    time = PassingTime()
    paced = Pace({}, elapsed=time.elapsed, sleep=time.sleep)
    paced.hold("search", 12 * SECOND)

    await paced.turn("list")
    await paced.turn("search")

    assert time.slept == [12]


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry-after": "2"}, timedelta(seconds=2)),
        ({"retry-after": "0.5"}, timedelta(seconds=0.5)),
        (
            {"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT", "date": "Sun, 29 Nov 2026 12:00:00 GMT"},
            timedelta(seconds=30),
        ),
        ({"retry-after": "-5"}, timedelta(0)),
        ({"retry-after": "1e300"}, None),
        ({"retry-after": "999999999"}, timedelta(days=1)),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT"}, None),
        ({}, None),
    ],
)
def test_a_retry_after_header_is_read_in_every_form_and_never_believed_beyond_a_day(
    headers: dict[str, str], pause: timedelta | None
):
    assert retry_after(headers) == pause
