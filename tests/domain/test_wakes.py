"""A request for a future check becomes a wake only where the heartbeat does not do the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.wakes import LATEST, MOST_PENDING, SOONEST, NewWake, NoWake, answer_request

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
