"""An end that lies in settings, in a budget or in a neighbour is held against no event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_agent.domain.exits import Outlook, exit_reason, meaning_of
from fleet_agent.errors import BudgetSpent, DatabaseUnusable, FixSetup, FleetAgentError, TryLater
from fleet_agent.store.claims import _may_be_the_cause  # pyright: ignore[reportPrivateUsage]


def kinds_of(error: type[FleetAgentError]) -> Iterator[type[FleetAgentError]]:
    yield error
    for kind in error.__subclasses__():
        yield from kinds_of(kind)


@pytest.mark.parametrize("kind", [*kinds_of(FixSetup), *kinds_of(TryLater)])
def test_no_event_is_the_cause_of_what_a_person_must_mend_or_what_passes(kind: type[FleetAgentError]) -> None:
    assert not _may_be_the_cause(exit_reason(kind), model_replied=False)


def test_control_a_defect_may_lie_in_what_was_claimed() -> None:
    assert _may_be_the_cause(exit_reason(KeyError), model_replied=False)


@pytest.mark.parametrize("kind", [*(kind for kind in kinds_of(FixSetup) if kind is not DatabaseUnusable), BudgetSpent])
def test_where_a_person_must_act_another_run_is_of_no_use(kind: type[FleetAgentError]) -> None:
    assert meaning_of(exit_reason(kind)).outlook is Outlook.NONE
