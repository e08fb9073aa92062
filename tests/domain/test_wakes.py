"""A request for a future check becomes a wake only where the heartbeat does not do the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.wakes import (
    LATEST,
    MOST_PENDING,
    SOONEST,
    CannotRead,
    NewWake,
    NoWake,
    answer_request,
    time_until,
)

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("seconds", [240, 300, 360])
def test_the_heartbeat_covers_what_it_does_anyway(seconds: int) -> None:
    answer = answer_request(timedelta(seconds=seconds), now=NOW, pending=[])
    assert isinstance(answer, NoWake)
    assert "heartbeat" in answer.answer


@pytest.mark.parametrize("seconds", [239, 361])
def test_beside_the_heartbeat_a_wake_is_set(seconds: int) -> None:
    assert isinstance(answer_request(timedelta(seconds=seconds), now=NOW, pending=[]), NewWake)


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=30)))
def test_a_wake_is_never_nearer_or_farther_than_allowed(after: timedelta) -> None:
    answer = answer_request(after, now=NOW, pending=[])
    if isinstance(answer, NewWake):
        assert SOONEST <= answer.wake_at - NOW <= LATEST


def test_a_clamped_request_is_told_so() -> None:
    answer = answer_request(timedelta(seconds=5), now=NOW, pending=[])
    assert isinstance(answer, NewWake)
    assert "asked for" in answer.answer


def test_requests_for_the_same_time_become_one_wake() -> None:
    near = NOW + timedelta(minutes=20, seconds=50)
    assert isinstance(answer_request(timedelta(minutes=20), now=NOW, pending=[near]), NoWake)


def test_there_are_never_more_than_the_most_pending() -> None:
    pending = [NOW + timedelta(hours=hour) for hour in range(1, MOST_PENDING + 1)]
    answer = answer_request(timedelta(minutes=30), now=NOW, pending=pending)
    assert isinstance(answer, NoWake)


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("45", timedelta(minutes=45)),
        ("1.5", timedelta(seconds=90)),
        ("13:30", timedelta(minutes=90)),
        ("12:00", timedelta(days=1)),  # it is noon: the next one
        ("09:00", timedelta(hours=21)),
        ("2026-03-17T14:00", timedelta(hours=2)),
        ("2026-03-17T14:00+01:00", timedelta(hours=1)),
        ("2026-03-17T11:00Z", timedelta(hours=-1)),
    ],
)
def test_a_time_is_said_in_minutes_or_as_a_time_in_utc(said: str, after: timedelta) -> None:
    assert time_until(said, now=NOW) == after


@given(st.text() | st.from_regex(r"[0-9:TZ+.-]*"))
def test_what_is_no_time_is_told_so_and_nothing_raises(said: str) -> None:
    assert isinstance(time_until(said, now=NOW), timedelta | CannotRead)
    assert isinstance(time_until("soon", now=NOW), CannotRead)


def test_a_time_that_is_past_is_a_minute_from_now_and_told_so() -> None:
    answer = answer_request(timedelta(hours=-1), now=NOW, pending=[])
    assert isinstance(answer, NewWake)
    assert answer.wake_at == NOW + SOONEST
    assert "a time that is past" in answer.answer
