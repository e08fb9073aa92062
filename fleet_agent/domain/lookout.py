"""What a look of the watch finds, and what is done about it: small findings, in lists that read as policy.

    what is known (`Sight`)  →  findings  →  events for the agent, notices for a person, boxes to give up, bans

A finding is a pure function of what is known. Those about one box are asked in order, until one gives the box up: what
else is wrong with it no longer matters. A finding that goes on is told once; what it does about it is wanted anew at
each look, for a call can be lost and a rule can hold it back. The watch rents nothing, and each box it gives up is
judged by the rules as any other's wish is.

Three things are no finding. What the ledger itself caused: boxes that come up, drain and go as they were told to. What
cannot be seen: without a list nothing is said of any box, and a box that is missing from one is waited for
(`store/sightings.py`). And what is not ours: boxes of others are counted, and never touched.

Deadlines are by the wall clock. A host writes what it likes into the message of a box, and one that changes every
second says nothing of progress; so no text moves a deadline, and of a text only our own words for it are passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Final

from fleet_agent.domain.box_troubles import (
    cannot_start,
    does_not_run,
    has_drained,
    has_fallen_silent,
    has_given_up,
    is_dear_for_its_proofs,
    is_gone_unasked,
    is_not_as_ordered,
    is_on_a_banned_machine,
    is_over_its_price,
    is_past_its_deadline,
    is_second_of_one_order,
    is_stalled,
    lives_on,
    was_not_ordered,
)
from fleet_agent.domain.fleet import Instance, Stage
from fleet_agent.domain.fleet_troubles import (
    credit_is_short,
    demand_cannot_be_read,
    is_over_budget,
    list_cannot_be_read,
    list_cannot_be_true,
    more_proofs_fail,
    others_are_there,
    there_is_more_work,
    trust_in_the_list,
)
from fleet_agent.domain.rules import Removal
from fleet_agent.domain.sight import Finding, Mark, Sight, State, Watched
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.waking import Bands

OF_A_BOX: Final[tuple[Callable[[Watched, Instance, Sight], Finding | None], ...]] = (
    lives_on,  # destroyed by name: nothing else matters of it
    is_second_of_one_order,
    is_not_as_ordered,  # destroyed before it earns anything, so that nobody gets used to it
    was_not_ordered,
    cannot_start,
    has_given_up,
    is_past_its_deadline,
    does_not_run,  # waited for
    is_stalled,  # … as well
    has_fallen_silent,  # told, and left to the agent
    is_on_a_banned_machine,
    is_over_its_price,
    is_dear_for_its_proofs,
    has_drained,
)

OF_THE_FLEET: Final[tuple[Callable[[Sight, Collection[str]], State], ...]] = (
    list_cannot_be_true,
    list_cannot_be_read,
    is_over_budget,
    credit_is_short,
    demand_cannot_be_read,
    there_is_more_work,
    more_proofs_fail,
    others_are_there,
)
"""With the keys of the boxes that are given up already."""


class Found(Frozen):
    """What came of one look."""

    findings: tuple[Finding, ...]
    """Everything that is so."""
    news: tuple[Finding, ...]
    """Of it, what nobody was told yet."""
    marks: Mapping[str, Mark]
    """By the key of the box; a box without one is left as it is."""
    bands: Bands
    frozen_because: str

    @property
    def removals(self) -> tuple[Removal, ...]:
        return tuple(finding.removal for finding in self.findings if finding.removal is not None)


def find(sight: Sight) -> Found:
    """Ask every finding of the two lists. What a protected box should lose it keeps, so its price goes on counting."""
    by_box = [(watched, tuple(_about(watched, sight))) for watched in sight.boxes if _can_be_judged(watched)]
    about_boxes = [finding for _, findings in by_box for finding in findings]
    given_up = {each.box.key for each in about_boxes if each.box and each.removal and not each.box.protected}
    states = [ask(sight, given_up) for ask in OF_THE_FLEET]
    lost = [is_gone_unasked(box) for box in sight.lost]
    news = [
        *(finding for watched, findings in by_box for finding in findings if finding.code not in watched.told),
        *(state.finding for state in states if state.finding is not None and state.is_news),
        *lost,
    ]
    return Found(
        findings=(*about_boxes, *(state.finding for state in states if state.finding is not None), *lost),
        news=tuple(finding for finding in news if finding.kind is not None or finding.notice or finding.failure),
        marks={watched.box.key: _mark(watched, findings, sight.now) for watched, findings in by_box},
        bands={state.path: state.band for state in states},
        frozen_because=trust_in_the_list(sight).doubt,
    )


def _can_be_judged(watched: Watched) -> bool:
    """What is not listed is waited for, and what is being destroyed has nothing to do but to go."""
    return watched.listed is not None and watched.box.stage is not Stage.DESTROYING


def _about(watched: Watched, sight: Sight) -> Iterator[Finding]:
    assert watched.listed is not None, "only a box that is listed is judged"
    for ask in OF_A_BOX:
        finding = ask(watched, watched.listed, sight)
        if finding is not None:
            yield finding.model_copy(update={"box": watched.box})
            if finding.removal is not None:
                return


def _mark(watched: Watched, findings: Collection[Finding], now: datetime) -> Mark:
    may_pass = any(finding.may_pass for finding in findings)
    return Mark(
        told=frozenset(finding.code for finding in findings),
        troubled_since=(watched.troubled_since or now) if may_pass else None,
    )
