"""Future checks: when a request for one becomes a wake, and what the asker is told.

The heartbeat comes every five minutes anyway. The system this one replaces answered every request, so that an agent
that asked for a look "in about five minutes" doubled its own runs; here such a request stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta

from fleet_agent.domain.taint import Taint
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
    asked_by_run: int | None = None
    """Of the agent; its words are that run's."""
    taint: Taint | None = None


class NewWake(Frozen):
    """The request becomes a row."""

    wake_at: datetime
    answer: str


class NoWake(Frozen):
    """The request stores nothing."""

    answer: str


class CannotRead(Frozen):
    """What was said is no time; `sentence` says what would be one."""

    sentence: str


def time_until(said: str, *, now: datetime) -> timedelta | CannotRead:
    """How far away a person's `45` (minutes), `2026-03-17T14:00` or `14:00` (the next one, UTC) is."""
    try:
        return timedelta(minutes=float(said))
    except (ValueError, OverflowError):
        pass
    try:
        return as_utc(datetime.fromisoformat(said)) - now
    except ValueError:
        pass
    try:
        at = datetime.combine(now.date(), time.fromisoformat(said), tzinfo=UTC)
    except ValueError:
        return CannotRead(sentence=f"{said!r} is neither minutes nor a time such as 14:00 or 2026-03-17T14:00 (UTC)")
    return at - now if at > now else at + timedelta(days=1) - now


def as_utc(at: datetime) -> datetime:
    """A time without a zone is one of UTC: every time that anybody is shown is."""
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:  # within a day of the first or the last time there is: either is out of any bound
        return at.replace(tzinfo=UTC)


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
    asked_for = _minutes(after) if after > timedelta() else "a time that is past"
    note = "" if clamped == after else f" (asked for {asked_for}, allowed are 1 minute to 7 days)"
    return NewWake(wake_at=wake_at, answer=f"Wake set for {wake_at:%Y-%m-%d %H:%M:%S} UTC{note}.")


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:g} minutes"
