"""How a run ended, in the words of its row, and what follows from that for what it had claimed and for the next run.

An error's name is its exit reason, and here stands what it means; so whoever gives one another name, or a new one its
meaning, does it in one place. What is not in the table may lie in what the run had claimed, and may go well next time.
"""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from typing import Final, NamedTuple

from fleet_agent.errors import (
    BudgetSpent,
    DatabaseUnreachable,
    DatabaseUnusable,
    FixSetup,
    InventoryUnknown,
    KeyRefused,
    ModelUnreachable,
    ModelUnusable,
    PolicyInvalid,
    RunSuperseded,
    ShortenObjective,
    SlowDown,
    TryLater,
)

FOUND_OPEN: Final = "found open by the next run"


class Blame(StrEnum):
    """When what a run had claimed may be the cause of such an end."""

    ALWAYS = "always"
    AFTER_A_REPLY = "once the model has replied"
    NEVER = "never"


class Outlook(StrEnum):
    """What another run may come to."""

    GOOD = "good"
    POOR = "poor"
    """Something is out; it comes back by itself, nobody knows when."""
    NONE = "none"
    """It ends as the last did, until a person acts or hours have passed."""


class Meaning(NamedTuple):
    blame: Blame = Blame.ALWAYS
    outlook: Outlook = Outlook.GOOD


def exit_reason(error: type[BaseException]) -> str:
    """`KeyRefused` → "key refused": errors are named so that their names can be read."""
    if issubclass(error, asyncio.CancelledError):
        return "cancelled"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", error.__name__).lower()


def meaning_of(reason: str) -> Meaning:
    return _MEANINGS.get(reason, Meaning())


_UNTIL_A_PERSON_ACTS = Meaning(Blame.NEVER, Outlook.NONE)
_AN_OUTAGE = Meaning(Blame.NEVER, Outlook.POOR)

_MEANINGS: Final = {
    FOUND_OPEN: Meaning(Blame.AFTER_A_REPLY),
    **{
        exit_reason(error): meaning
        for error, meaning in (
            (FixSetup, _UNTIL_A_PERSON_ACTS),
            (KeyRefused, _UNTIL_A_PERSON_ACTS),
            (PolicyInvalid, _UNTIL_A_PERSON_ACTS),
            (ShortenObjective, _UNTIL_A_PERSON_ACTS),
            (BudgetSpent, _UNTIL_A_PERSON_ACTS),
            (ModelUnreachable, _AN_OUTAGE),
            (SlowDown, _AN_OUTAGE),
            (TryLater, _AN_OUTAGE),
            (DatabaseUnreachable, _AN_OUTAGE),
            (DatabaseUnusable, _AN_OUTAGE),
            (asyncio.CancelledError, Meaning(Blame.NEVER)),
            (ModelUnusable, Meaning(Blame.AFTER_A_REPLY)),
            (RunSuperseded, Meaning(Blame.AFTER_A_REPLY)),
            (InventoryUnknown, Meaning(Blame.AFTER_A_REPLY)),
        )
    },
}
"""A request that was refused and a defect of ours are not among them: what was claimed may be their cause at once."""
