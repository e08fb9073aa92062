"""Waiting for one's turn before a provider is called.

Providers count requests per key and answer too many with a refusal, some with a penalty. So the waiting happens here,
before the call, where it costs nothing. A caller whose turn would come too late is told so at once instead of waiting:
then nothing was sent, and a later run may try.

The provider counts for all our processes together, and each run is a process of its own. So who remembers the turns is
a port: the database remembers them for all (`store.pace`), `MemoryTurns` for one process. All times are the provider's
own, which a simulated one may live faster than we do; only `sleep` converts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Protocol

from fleet_agent.domain.pace import DAY, Limit, TurnsGiven
from fleet_agent.errors import FleetAgentError, SlowDown

PATIENCE = timedelta(seconds=15)
"""Longest wait for a turn. Shorter than the 20 s after which an effect that has not left is not sent at all."""

UNLIMITED = Limit(gap=timedelta(0))


class Turns(Protocol):
    """What remembers the turns that were given out, one caller at a time."""

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        """Take the next turn of `endpoint` and return how long it is away; take none if that exceeds the patience."""
        ...

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        """Give no turn for `pause`."""
        ...


class MemoryTurns:
    """Turns of this process alone."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._given: dict[str, TurnsGiven] = {}

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        wait, self._given[endpoint] = self._of(endpoint).take(limit, patience, self._now())
        return wait

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        self._given[endpoint] = self._of(endpoint).held_for(pause, self._now())

    def _of(self, endpoint: str) -> TurnsGiven:
        return self._given.get(endpoint, TurnsGiven())


class TurnsInAnyCase:
    """Turns that are shared while what shares them works, and otherwise this process's own: for the emergency stop."""

    def __init__(self, shared: Turns, own: Turns) -> None:
        self._shared = shared
        self._own = own

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        try:
            return await self._shared.take(endpoint, limit, patience)
        except FleetAgentError:
            return await self._own.take(endpoint, limit, patience)

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        try:
            await self._shared.hold(endpoint, pause)
        except FleetAgentError:
            await self._own.hold(endpoint, pause)


class Pace:
    """Waits for turns. An endpoint without a limit is waited for only while it is on hold."""

    def __init__(self, limits: Mapping[str, Limit], turns: Turns, *, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._limits = limits
        self._turns = turns
        self._sleep = sleep

    async def turn(self, endpoint: str) -> None:
        """Return when `endpoint` may be called, which counts as called from then on.

        Raises SlowDown at once, and takes no turn, if that is further away than the patience; TryLater if nobody knows
        when it is.
        """
        wait = await self._turns.take(endpoint, self._limits.get(endpoint, UNLIMITED), PATIENCE)
        if wait > PATIENCE:
            raise SlowDown(
                f"no turn for {endpoint} within {PATIENCE.total_seconds():g} s",
                f"it is free again in {wait.total_seconds():.0f} s",
                retry_after=wait,
            )
        if wait:
            await self._sleep(wait.total_seconds())

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        """Give no turn for `pause`: the provider asked for it."""
        await self._turns.hold(endpoint, pause)


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
