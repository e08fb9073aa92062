"""Future checks: when a request for one becomes a wake, and what the asker is told.

The heartbeat comes every five minutes anyway. The system this one replaces answered every request, so that an agent
that asked for a look "in about five minutes" doubled its own runs; here such a request stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from fleet_agent.domain.values import Frozen

HEARTBEAT_COVERS = (timedelta(seconds=240), timedelta(seconds=360))
SOONEST = timedelta(seconds=60)
LATEST = timedelta(days=7)
MERGE_WITHIN = timedelta(seconds=60)
MOST_PENDING = 20


class Wake(Frozen):
    id: int
    wake_at: datetime
    reason: str
    asked_by: str


class NewWake(Frozen):
    """The request becomes a row."""

    wake_at: datetime
    answer: str


class NoWake(Frozen):
    """The request stores nothing."""

    answer: str


def answer_request(after: timedelta, *, now: datetime, pending: Sequence[datetime]) -> NewWake | NoWake:
    """What to do with the request "look again `after` from now"; `pending` are the times of the pending wakes."""
    shortest, longest = HEARTBEAT_COVERS
    if shortest <= after <= longest:
        return NoWake(answer="Nothing stored: the heartbeat looks every 5 minutes and covers that.")
    clamped = min(max(after, SOONEST), LATEST)
    wake_at = now + clamped
    near = [at for at in pending if abs(at - wake_at) <= MERGE_WITHIN]
    if near:
        return NoWake(answer=f"Nothing stored: a wake at {near[0]:%Y-%m-%d %H:%M:%S} UTC is already pending.")
    if len(pending) >= MOST_PENDING:
        return NoWake(answer=f"Nothing stored: {MOST_PENDING} wakes are pending, the most there may be.")
    note = "" if clamped == after else f" (asked for {_minutes(after)}, allowed are 1 minute to 7 days)"
    return NewWake(wake_at=wake_at, answer=f"Wake set for {wake_at:%Y-%m-%d %H:%M:%S} UTC{note}.")


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:g} minutes"
