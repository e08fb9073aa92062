"""When an endpoint of a provider may be called next: a minimum gap between two calls, and for some a budget a day.

This is the arithmetic alone. Whoever remembers the turns that were given, one process for itself or the database for
all, asks here; so both give the same turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from fleet_agent.domain.timeline import is_of_a_time_to_come

DAY = timedelta(days=1)
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Limit:
    """What one endpoint bears: one call per `gap`, and at most `per_day` calls in any 24 hours (None: any number)."""

    gap: timedelta
    per_day: int | None = None


@dataclass(frozen=True)
class TurnsGiven:
    """The turns of one endpoint: when it is free again, and where a budget counts them, the newest, in order."""

    free_at: datetime = LONG_AGO
    counted: tuple[datetime, ...] = ()
    written_at: datetime = LONG_AGO

    def take(self, limit: Limit, patience: timedelta, now: datetime) -> tuple[timedelta, TurnsGiven]:
        """How long the next turn is away, and the record with it; without it if that is longer than the patience."""
        at = max(now, self._free_at(now), self._within_budget(limit))
        return at - now, self if at - now > patience else self._with_turn(limit, at, now)

    def held_for(self, pause: timedelta, now: datetime) -> TurnsGiven:
        return replace(self, free_at=max(self._free_at(now), now + pause), written_at=now)

    def _free_at(self, now: datetime) -> datetime:
        return LONG_AGO if is_of_a_time_to_come(self.written_at, now) else self.free_at

    def _within_budget(self, limit: Limit) -> datetime:
        """When the oldest turn of a budget that is used up is a day old. Any 24 hours contain every calendar day."""
        if limit.per_day is None or len(self.counted) < limit.per_day:
            return LONG_AGO
        return self.counted[-limit.per_day] + DAY

    def _with_turn(self, limit: Limit, at: datetime, now: datetime) -> TurnsGiven:
        counted = () if limit.per_day is None else (*self.counted, at)[-limit.per_day :]
        return TurnsGiven(free_at=at + limit.gap, counted=counted, written_at=now)
