"""Whether a complete list of boxes can be true.

A provider that answers a complete and wrong list has been seen: an old one, an empty one, half of one. Whoever believes
it takes a fleet for dead, rents it once more and pays twice. So a list in which much of a fleet is missing that nobody
gave up is doubted, and a person is told. While it is, nothing is done by itself. It is believed once two further lists
in a row say the same: a lie that is told three times within minutes is not worse than a fleet that is held up for ever.
Boxes that are back end the doubt at once.

What is missing goes on to be counted as it always is (`store/sightings.py`): belief here only frees the hands.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Final

from fleet_agent.domain.values import Frozen

LEAST_TO_VANISH: Final = 2
"""Boxes. A single one that is missing is a box that is missing."""

HALF_COUNTS_FROM: Final = 4
"""Boxes of which more than half are missing; of fewer it may be chance."""

TRUSTED: Final = ""
DOUBTED: Final = "doubted"


class Trust(Frozen):
    """What is thought of the newest list; `state` is what the next look goes on from."""

    state: str = TRUSTED
    doubt: str = ""
    """Why the list cannot be true, in a sentence; empty where it is believed."""


def judged(state: str, *, expected: int, missing: int, listed: Collection[int]) -> Trust:
    """`state` of the look before; of `expected` boxes that were seen and that nobody gave up, `missing` are not in the
    list, which shows the boxes `listed` of the fleet."""
    if not (_all_gone(expected, missing) or _most_gone(expected, missing)):
        return Trust()
    same = _digest(listed)
    if state in (_believed(same), _seen_once(same)):
        return Trust(state=_believed(same))
    again = state == DOUBTED or state.startswith(_seen_once(""))
    return Trust(
        state=_seen_once(same) if again else DOUBTED,
        doubt=f"{missing} of {expected} boxes are missing from the list at once, and nobody gave them up",
    )


def unread(state: str) -> str:
    """The state after a look in which there was no list: what would have agreed was not in a row."""
    return DOUBTED if state.startswith(_seen_once("")) else state


def _all_gone(expected: int, missing: int) -> bool:
    return missing == expected >= LEAST_TO_VANISH


def _most_gone(expected: int, missing: int) -> bool:
    return expected >= HALF_COUNTS_FROM and missing * 2 > expected


def _seen_once(digest: str) -> str:
    return f"seen once {digest}"


def _believed(digest: str) -> str:
    return f"believed {digest}"


def _digest(listed: Collection[int]) -> str:
    return sha256(" ".join(map(str, sorted(listed))).encode()).hexdigest()[:16]
