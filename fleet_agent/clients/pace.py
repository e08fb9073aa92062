"""How often an endpoint of a provider may be called: a minimum gap between two calls, and for some a budget a day.

Providers count requests per key and answer too many with a refusal, some with a penalty. So the waiting happens here,
before the call, where it costs nothing. A caller whose turn would come too late is told so at once instead of waiting:
then nothing was sent, and a later run may try.

All times are real time. The pace is kept within one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime

from fleet_agent.errors import SlowDown

PATIENCE = timedelta(seconds=15)
"""Longest wait for a turn. Shorter than the 20 s after which an effect that has not left is not sent at all."""

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Limit:
    """What one endpoint bears: one call per `gap`, and at most `per_day` calls in any 24 hours (None: any number)."""

    gap: timedelta
    per_day: int | None = None


class Pace:
    """Hands out turns. An endpoint without a limit is waited for only while it is on hold."""

    def __init__(
        self,
        limits: Mapping[str, Limit],
        *,
        elapsed: Callable[[], timedelta],
        sleep: Callable[[float], Awaitable[None]],
        patience: timedelta = PATIENCE,
    ) -> None:
        self._limits = limits
        self._elapsed = elapsed
        self._sleep = sleep
        self._patience = patience
        self._free_at: dict[str, timedelta] = {}
        self._turns_of_day: dict[str, deque[timedelta]] = {}

    async def turn(self, endpoint: str) -> None:
        """Return when `endpoint` may be called, which counts as called from then on.

        Raises SlowDown at once, and takes no turn, if that is further away than the patience.
        """
        now = self._elapsed()
        wait = max(self._until_free(endpoint, now), self._until_within_budget(endpoint, now))
        if wait > self._patience:
            raise SlowDown(
                f"no turn for {endpoint} within {self._patience.total_seconds():g} s",
                f"it is free again in {wait.total_seconds():.0f} s",
                retry_after=wait,
            )
        self._take(endpoint, now + wait)
        if wait:
            await self._sleep(wait.total_seconds())

    def hold(self, endpoint: str, pause: timedelta) -> None:
        """Give no turn for `pause`: the provider asked for it."""
        self._free_at[endpoint] = max(self._free_at.get(endpoint, timedelta(0)), self._elapsed() + pause)

    def _until_free(self, endpoint: str, now: timedelta) -> timedelta:
        return max(self._free_at.get(endpoint, now) - now, timedelta(0))

    def _until_within_budget(self, endpoint: str, now: timedelta) -> timedelta:
        """Until the oldest turn is a day old, if the budget is used up. Any 24 hours contain every calendar day."""
        limit, turns = self._limits.get(endpoint), self._turns_of_day.get(endpoint)
        if limit is None or limit.per_day is None or not turns or len(turns) < limit.per_day:
            return timedelta(0)
        return max(turns[0] + DAY - now, timedelta(0))

    def _take(self, endpoint: str, at: timedelta) -> None:
        limit = self._limits.get(endpoint)
        if limit is None:
            return
        self._free_at[endpoint] = at + limit.gap
        if limit.per_day is not None:
            self._turns_of_day.setdefault(endpoint, deque(maxlen=limit.per_day)).append(at)


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """What a refusal asks for in its Retry-After header (RFC 9110): seconds, or a date beside the server's own Date.

    None where nothing intelligible was said; never negative, and never more than a day.
    """
    said = headers.get("retry-after", "")
    try:
        pause = timedelta(seconds=float(said))
    except (ValueError, OverflowError):
        pause = _between(headers.get("date", ""), said)
    return None if pause is None else min(max(pause, timedelta(0)), DAY)


def _between(earlier: str, later: str) -> timedelta | None:
    try:
        return parsedate_to_datetime(later) - parsedate_to_datetime(earlier)
    except (ValueError, TypeError):
        return None
