"""Whether a complete list of boxes can be true.

A provider that answers a complete and wrong list has been seen: an old one, an empty one, half of one. Whoever believes
it takes a fleet for dead, rents it once more and pays twice. So a list in which much of a fleet is missing that nobody
gave up is doubted, and a person is told. While it is, nothing is done by itself. It is believed once two further lists
in a row say the same: a lie that is told three times within minutes is not worse than a fleet that is held up for ever.
Boxes that are back end the doubt at once, and so does a person who lets things go on.

Lists lag, and looks may follow each other within a second: a person's order brings one forward, and nobody keeps two
watches from running. So a further list is one of a while later.

What is missing goes on to be counted as it always is (`store/sightings.py`): belief here only frees the hands.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, Self

from fleet_agent.domain.timeline import is_of_a_time_to_come
from fleet_agent.domain.values import Frozen

LEAST_TO_VANISH: Final = 2
"""Boxes. A single one that is missing is a box that is missing."""

HALF_COUNTS_FROM: Final = 4
"""Boxes of which more than half are missing; of fewer it may be chance."""

A_WHILE: Final = timedelta(seconds=30)
"""Business time for which one and the same lie may stand in every list."""


class Belief(Frozen):
    """What the next look goes on from."""

    stage: Literal["trusted", "doubted", "seen once", "believed"] = "trusted"
    digest: str = ""
    """Of the boxes that the list showed which counted last …"""
    since: datetime | None = None
    """… and when that was."""

    @property
    def band(self) -> str:
        return "" if self.stage == "trusted" else self.model_dump_json()

    @classmethod
    def of(cls, band: str) -> Self:
        return cls.model_validate_json(band) if band else cls()

    @property
    def is_doubt(self) -> bool:
        return self.stage in ("doubted", "seen once")

    def is_older_than_a_while(self, now: datetime) -> bool:
        return self.since is None or now - self.since >= A_WHILE or is_of_a_time_to_come(self.since, now)


class Trust(Frozen):
    """What is thought of the newest list, and why it cannot be true, in a sentence; empty where it is believed."""

    belief: Belief = Belief()
    doubt: str = ""


def judged(
    before: Belief, *, expected: int, missing: int, listed: Collection[int], now: datetime, overruled: bool = False
) -> Trust:
    """Of `expected` boxes that were seen and that nobody gave up, `missing` are not in the list, which shows the boxes
    `listed` of the fleet. `overruled`: a person has looked since, and ended the doubt."""
    if not (_all_gone(expected, missing) or _most_gone(expected, missing)):
        return Trust()
    belief = Belief(stage="believed", digest=_digest(listed), since=now) if overruled else _next(before, listed, now)
    why = f"{missing} of {expected} boxes are missing from the list at once, and nobody gave them up"
    return Trust(belief=belief, doubt=why if belief.is_doubt else "")


def _next(before: Belief, listed: Collection[int], now: datetime) -> Belief:
    same = _digest(listed)
    match before.stage:
        case "believed" if before.digest == same:
            return before
        case "trusted" | "believed":
            return Belief(stage="doubted", since=now)
        case "seen once" if before.digest != same:
            return Belief(stage="seen once", digest=same, since=now)
        case _ if not before.is_older_than_a_while(now):
            return before
        case "doubted":
            return Belief(stage="seen once", digest=same, since=now)
        case "seen once":
            return Belief(stage="believed", digest=same, since=now)


def unread(before: Belief) -> Belief:
    """After a look in which there was no list: what would have agreed was not in a row."""
    return Belief(stage="doubted", since=before.since) if before.stage == "seen once" else before


def _all_gone(expected: int, missing: int) -> bool:
    return missing == expected >= LEAST_TO_VANISH


def _most_gone(expected: int, missing: int) -> bool:
    return expected >= HALF_COUNTS_FROM and missing * 2 > expected


def _digest(listed: Collection[int]) -> str:
    return sha256(" ".join(map(str, sorted(listed))).encode()).hexdigest()[:16]
