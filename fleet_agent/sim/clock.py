"""The one clock that market, demand and model share."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol


class SimClock(Protocol):
    """Tells the business time of the simulated world."""

    def now(self) -> datetime:
        """The present instant, aware, in UTC. Never goes backwards."""
        ...


class WallClock:
    """Business time that runs `speed` times as fast as real time, starting at `origin` when the clock is made."""

    def __init__(self, origin: datetime, speed: float, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._origin = origin
        self._speed = speed
        self._elapsed = elapsed
        self._started = elapsed()

    def now(self) -> datetime:
        return self._origin + timedelta(seconds=(self._elapsed() - self._started) * self._speed)


class ManualClock:
    """Business time that stands still until it is advanced: the clock of exact tests."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Moves time forward; raises ValueError for a step backwards, which no clock of the world may take."""
        if by < timedelta(0):
            raise ValueError(f"a clock cannot go back by {-by}")
        self._now += by
