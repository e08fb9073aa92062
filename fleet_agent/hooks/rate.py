"""How much one sender may say: a bucket of posts each, which fills again with time.

A whole storm fits into a bucket, for what happens all at once is what the agent must hear of. A sender that never stops
is slowed down to a rate at which it fills neither the database nor every prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

BURST: Final = 6_000
"""Posts of one sender at once: a thousand a second for five seconds, and some."""

WORDS: Final = 60
"""The same of a box, which has a few figures to say every quarter of a minute: whoever owns its machine may say more
with its token, and each word is a transaction."""

EACH: Final = timedelta(milliseconds=50)
"""In which a bucket gains a post: twenty a second, where Alertmanager sends a few a minute."""


class Buckets:
    """One bucket a sender, in real time. A full one is forgotten: it is like one that was never used."""

    def __init__(self, elapsed: Callable[[], timedelta], burst: int = BURST) -> None:
        self._elapsed = elapsed
        self._burst = burst
        self._full_at: dict[tuple[str, str], timedelta] = {}

    def take(self, fleet: str, source: str, *, most: int = BURST) -> bool:
        """Take a post of this sender's bucket, which holds `most`; False where it is empty."""
        now = self._elapsed()
        self._full_at = {sender: full_at for sender, full_at in self._full_at.items() if full_at > now}
        full_at = self._full_at.get((fleet, source), now) + EACH
        if full_at - now > min(self._burst, most) * EACH:
            return False
        self._full_at[fleet, source] = full_at
        return True
