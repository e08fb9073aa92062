"""Runs that an event has named and no look has found yet.

Prefect emits the event of a new state in the middle of the transaction that stores it. Whoever looks because of the
event may look before the commit, and finds nothing: on a busy machine one time in some dozens. Nor does Prefect show a
run whose row another transaction holds. So a look that does not find what was announced is no answer; it is repeated,
each time after twice as long, until the run is found, or has been missed so often that somebody else must have it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

SHORTEST_PAUSE: Final = 0.05
"""Seconds until the look that missed a run for the first time is repeated."""

MOST_MISSES: Final = 7
"""After these, some three seconds, it is left to the slow look: it was taken, or is due at a later time, or is not of
our pool."""


class Announced:
    def __init__(self) -> None:
        self._misses: dict[str, int] = {}

    def hear(self, run: str) -> None:
        """An event has named this run (any text: what is no run is never found)."""
        self._misses[run] = 0

    def looked(self, found: Collection[str]) -> None:
        """A look has found these."""
        self._misses = {
            run: misses + 1 for run, misses in self._misses.items() if run not in found and misses + 1 < MOST_MISSES
        }

    @property
    def look_again_after(self) -> float | None:
        """Seconds; None if everything was found or given up."""
        return SHORTEST_PAUSE * 2.0 ** (min(self._misses.values()) - 1) if self._misses else None
