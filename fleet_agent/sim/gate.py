"""A gate before the replies of a model, so that a test can stop a run in the middle of a step and look around.

A slow reply is late by a time; what is tested while it lasts depends on that time. A closed gate is shut until somebody
lets replies pass.
"""

import asyncio


class Gate:
    """Open at first. `waiting` says how many replies stand before it."""

    def __init__(self) -> None:
        self.waiting = 0
        self._passes: int | None = None
        self._changed = asyncio.Condition()

    async def let(self, passes: int | None) -> None:
        """Let so many replies pass and hold the others; None opens the gate. Raises ValueError for less than none."""
        if passes is not None and passes < 0:
            raise ValueError("pass must be 0 or more, or null for all")
        async with self._changed:
            self._passes = passes
            self._changed.notify_all()

    async def go_through(self) -> None:
        """Wait for one's turn; whoever is cancelled here uses up none."""
        async with self._changed:
            self.waiting += 1
            try:
                await self._changed.wait_for(lambda: self._passes != 0)
            finally:
                self.waiting -= 1
            if self._passes is not None:
                self._passes -= 1
