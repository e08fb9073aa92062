"""How much proving work there is. A figure that could not be read is None, which is not zero.

The reading as a whole has one age: a source gives figures that are true now, or at most five minutes old, or it gives
no reading at all. So nobody has to ask how old a single figure is, and who must not act on old ones asks once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from fleet_agent.domain.values import Frozen


class Market(Frozen):
    """Proofs that others have bought from us, as Curio's proofshare keeps them.

    Curio buys in work while few wait, and stops at eight: how many wait says how fast we take them, and not how many
    the market has.
    """

    waiting: int | None = None
    """No worker has claimed them; those that are orphaned are among them."""
    computing: int | None = None
    """A worker has claimed them."""
    unsubmitted: int | None = None
    """Proved, and not handed in yet."""
    orphaned: int | None = None
    """Given to a task that is no more. Curio gives them to another one within five minutes."""
    slots: int | None = None
    """How many the market lets us have at once: what could prove more than that earns nothing there."""


class Demand(Frozen):
    """One reading of the proving stack. Rates count what ended within the last hour."""

    pending: int
    """Proofs that wait for somebody to take them."""
    running: int
    """Proofs under way, as far as the source can tell; else those that were taken. Curio's database knows who has
    claimed a proof and not whether a GPU is at it: there it is the proofs claimed by workers that live."""
    oldest_pending: timedelta | None
    """How long the proof that waits longest has waited: since it was posted, or since it last failed."""
    done_per_hour: float | None
    failed_per_hour: float | None
    """Attempts that failed, also where the proof was tried again. Making way for something urgent is no failure."""
    seen_at: datetime
    """By our clock, before the source was asked."""
    claimed: int | None = None
    """Proofs that somebody has taken: under way, waiting within a worker, or in the hands of one that died."""
    retrying: int | None = None
    """Of the pending ones, those that have failed before."""
    final_failures_per_hour: float | None = None
    """Proofs that failed and that nobody will try again."""
    dead_workers: int | None = None
    """Workers that would prove, and have given no sign of life for three minutes. Boxes that were just destroyed are
    among them until the proving stack forgets them."""
    proof_p95: timedelta | None = None
    """19 of 20 proofs took no longer, from being claimed to their end: time within a worker's own queue counts."""
    market: Market | None = None
    unread: Mapping[str, str] = {}
    """Why a figure that the source should have is None, by the figure's name. What was never asked for is not here."""

    @property
    def at_hand(self) -> int:
        """Proofs that may be lost where a worker is: none may count as idle while there are any."""
        return max(self.running, self.claimed or 0)

    @property
    def work(self) -> int:
        """Proofs that are still to be finished."""
        return self.pending + self.at_hand


def not_known(demand: Demand) -> tuple[str, ...]:
    """The figures that are missing, in words, those with the same reason together."""
    figures: dict[str, list[str]] = {}
    for figure, reason in demand.unread.items():
        figures.setdefault(reason, []).append(figure)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in figures.items())
