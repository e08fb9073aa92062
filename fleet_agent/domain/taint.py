"""What words from outside may lead to, and for how long.

Text that strangers are free to choose (a log, an annotation, JSON of no format we know) can lead a model astray, and
nothing on the model's side prevents that. So it is kept apart (`hygiene.fence`), and what may follow from it is known:

- a run is *tainted* from the moment a request of it carries such text;
- so is what it leaves behind: its final words, its notes, the reasons of its wakes. Later prompts fence them, and by
  carrying them those runs become tainted too;
- nothing outlives what tainted it by more than TAINT_LASTS. The end is inherited: being read and retold does not put it
  off, so that one bad log is forgotten after a day, however many runs have passed its traces on. Then a line says that
  something was here, and `read_run` has no more than that either.

Typed fields of a format we know do not taint, nor do a provider's figures and names, which stand in cells of tables.
What a tainted run may do is for the rules to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from fleet_agent.domain.hygiene import fence
from fleet_agent.domain.values import Frozen

TAINT_LASTS = timedelta(hours=24)
"""Business time. Longer than any trouble that a log explains should last, short enough to be rid of a bad one."""


class Taint(Frozen):
    """Of words that something from outside may have led: they stand between `mark`, and are shown until `until`.

    The mark is drawn for the run that says them and shown to nobody while it does; kept, so that neighbouring prompts
    begin alike.
    """

    mark: str
    until: datetime

    def is_over(self, now: datetime) -> bool:
        return self.until <= now


def as_shown(words: str, taint: Taint | None, *, source: str, now: datetime) -> str:
    """What a prompt may carry of `words`: themselves, themselves in a fence, or that they were there."""
    if taint is None:
        return words
    if taint.is_over(now):
        return f"({source}: no longer shown, text from outside may have led them)"
    return fence(words, source=source, mark=taint.mark)


def carried(taints: Iterable[Taint | None], *, now: datetime) -> datetime | None:
    """Until when a prompt is tainted by showing words with these taints; None where none of them is in force."""
    return newest(taint.until for taint in taints if taint is not None and not taint.is_over(now))


def newest(ends: Iterable[datetime | None]) -> datetime | None:
    return max((end for end in ends if end is not None), default=None)
