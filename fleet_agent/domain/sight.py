"""What a look of the watch goes by, and what a finding is: the values of `domain/lookout.py`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from fleet_agent.domain.actions import DestroyBox, DrainBox
from fleet_agent.domain.fleet import Box, Instance, Offer, Stage
from fleet_agent.domain.hosts import Failure
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Removal, Situation
from fleet_agent.domain.triggers import Kind
from fleet_agent.domain.values import Frozen


class Watched(Frozen):
    """One live box of the ledger beside its row of the list, and what earlier looks said of it."""

    box: Box
    listed: Instance | None
    """None where the list does not show it, or where there is no list."""
    ordered: Offer | None
    """What its rent was ruled on; None where nobody of ours ordered it."""
    image: str
    """What its rent ordered, as far as that is known; else empty."""
    sightings: int
    misses: int
    has_hook: bool = False
    """It was given an address at which it can report."""
    gave_up: bool = False
    """By its own word it ends, and nothing will come of it."""
    destroyed: bool
    """It was to be destroyed, longer ago than that takes, and is still there."""
    told: frozenset[str] = frozenset()
    """Codes of what goes on and was told already."""
    troubled_since: datetime | None = None
    """Since when it has had a trouble that may pass by itself."""

    @property
    def name(self) -> str:
        return f"box {self.box.vast_id} on machine {self.box.machine_id}"


class Sight(Frozen):
    """Everything that a finding may look at."""

    situation: Situation
    boxes: tuple[Watched, ...]
    lost: tuple[Box, ...] = ()
    """Boxes that are gone, that nobody gave up and nobody was told of."""
    strangers: tuple[Instance, ...] = ()
    """Listed boxes that are no box of this installation."""
    reports_since: datetime | None = None
    """When the first box was rented that ever reported; None where none did, and silence says nothing."""
    grace: timedelta
    """Business time in which a box may still turn out to be ours."""
    unread: int = 0
    """Looks in a row without a list, this one included."""
    last: Mapping[str, str] | None = None
    """Of the look before; None where there was none."""
    run: Mapping[str, str] = {}
    """Of the newest run: what the agent knows is no news to it."""

    @property
    def now(self) -> datetime:
        return self.situation.now

    @property
    def policy(self) -> Policy:
        return self.situation.policy

    def band(self, path: str) -> str:
        return (self.last or {}).get(path, "")


class Finding(Frozen):
    """Something that is not as it should be, or that somebody must know."""

    code: str
    text: str
    kind: Kind | None = None
    """Of the event for the agent; None where it need not know."""
    notice: bool = False
    """A person is told."""
    box: Box | None = None
    removal: Removal | None = None
    failure: Failure | None = None
    """Of the machine, which is avoided."""
    in_vain: bool = False
    """Its rent came to nothing: the box never did any work."""
    may_pass: bool = False
    """It is waited for a while, from the first look that shows it."""


class Mark(Frozen):
    """What is kept of a box until the next look."""

    told: frozenset[str] = frozenset()
    troubled_since: datetime | None = None


class State(NamedTuple):
    """What is said of the whole fleet: a band that the next look compares with, and what is wrong with it."""

    path: str
    band: str
    finding: Finding | None = None
    is_news: bool = False


# --- what findings have in common -------------------------------------------------------------------------------------


def destroy(watched: Watched, why: str) -> DestroyBox:
    return DestroyBox(id=number(watched.box), reason=why)


def let_go(watched: Watched, why: str) -> Removal:
    """A box that may have a proof at hand finishes it; any other has nothing to finish."""
    if works(watched):
        return DrainBox(id=number(watched.box), reason=why)
    return destroy(watched, why)


def works(watched: Watched) -> bool:
    return watched.box.stage in (Stage.BENCHMARKED, Stage.PROVING)


def number(box: Box) -> int:
    assert box.vast_id is not None, "a box that is listed has a number"
    return box.vast_id


def minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:.0f} minutes"
