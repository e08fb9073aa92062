"""How often an endpoint is called: gaps, a budget a day, and never a long wait."""

from datetime import timedelta

import pytest

from fleet_agent.clients.pace import MemoryTurns, Pace, TurnsInAnyCase, retry_after
from fleet_agent.domain.pace import Limit
from fleet_agent.errors import DatabaseUnreachable, SlowDown
from tests.clients.world import PassingTime

SECOND = timedelta(seconds=1)


def pace(time: PassingTime, limit: Limit) -> Pace:
    return Pace({"search": limit}, MemoryTurns(time.now), sleep=time.sleep)


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
    unlimited = Pace({}, MemoryTurns(time.now), sleep=time.sleep)

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
    paced = Pace({}, MemoryTurns(time.now), sleep=time.sleep)
    await paced.hold("search", 12 * SECOND)

    await paced.turn("list")
    await paced.turn("search")

    assert time.slept == [12]


# --- turns that are shared, while what shares them works --------------------------------------------------------------


class BrokenTurns:
    """What shares the turns has failed."""

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        raise DatabaseUnreachable("the database does not answer")

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        raise DatabaseUnreachable("the database does not answer")


async def test_the_emergency_stop_keeps_a_pace_of_its_own_when_nobody_knows_the_shared_one():
    time = PassingTime()
    turns = TurnsInAnyCase(BrokenTurns(), MemoryTurns(time.now))
    paced = Pace({"search": Limit(7 * SECOND)}, turns, sleep=time.sleep)

    assert await times_of_turns(time, paced, 2) == [0, 7]
    await paced.hold("search", 12 * SECOND)
    assert await times_of_turns(time, paced, 1) == [19]


async def test_control_without_a_pace_of_its_own_it_gets_no_turn():
    time = PassingTime()

    with pytest.raises(DatabaseUnreachable):
        await Pace({}, BrokenTurns(), sleep=time.sleep).turn("search")


async def test_the_emergency_stop_takes_the_shared_turns_as_long_as_there_are_any():
    time = PassingTime()
    shared = MemoryTurns(time.now)
    limits = {"search": Limit(7 * SECOND)}
    await Pace(limits, shared, sleep=time.sleep).turn("search")

    await Pace(limits, TurnsInAnyCase(shared, MemoryTurns(time.now)), sleep=time.sleep).turn("search")

    assert time.slept == [7]


# --- what a refusal asks for ------------------------------------------------------------------------------------------


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
