"""`docs/states.md` says what the code does: the same states, and for every change a function that makes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType

from fleet_agent.store.tables import InboxState, RunStatus, WakeStatus

PAGE = (Path(__file__).parents[1] / "docs" / "states.md").read_text()
EDGE = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (\S+))?$", re.MULTILINE)
OUTSIDE = "[*]"

Change = tuple[str, str, str]


def diagram(title: str) -> list[Change]:
    """From, to and label of every arrow of the diagram in the section of this title."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    (mermaid,) = re.findall(r"```mermaid\n(.*?)```", section, re.DOTALL)
    changes: list[Change] = EDGE.findall(mermaid)
    assert len(changes) == mermaid.count("-->"), "every arrow was read"
    return changes


def states(changes: Iterable[Change]) -> set[str]:
    return {state for begin, end, _ in changes for state in (begin, end)} - {OUTSIDE}


STATES: dict[str, type[StrEnum]] = {"Run": RunStatus, "Wake": WakeStatus, "Inbox event": InboxState}


@pytest.mark.parametrize("title", STATES)
def test_a_diagram_has_the_states_of_the_code(title: str) -> None:
    assert states(diagram(title)) == {state.value for state in STATES[title]}


@pytest.mark.parametrize("title", STATES)
def test_every_change_is_made_by_a_function_that_exists(title: str) -> None:
    for begin, end, label in diagram(title):
        if end == OUTSIDE:
            continue
        module, _, function = label.partition(".")
        assert callable(getattr(import_module(f"fleet_agent.store.{module}"), function)), (begin, end)


@pytest.mark.parametrize("title", STATES)
def test_every_state_can_be_reached_and_none_is_a_trap(title: str) -> None:
    changes = diagram(title)
    assert states(changes) == {end for _, end, _ in changes} - {OUTSIDE}
    assert states(changes) == {begin for begin, _, _ in changes} - {OUTSIDE}


def test_the_map_names_every_status_of_a_run_and_only_states_that_prefect_has() -> None:
    changes = diagram("In Prefect")
    assert {begin for begin, _, _ in changes} == {status.value for status in RunStatus} | {"empty"}
    assert {end.upper() for _, end, _ in changes} <= {state.value for state in StateType}


def test_a_state_that_the_page_does_not_know_is_noticed() -> None:
    """The control."""
    changes = [change for change in diagram("Run") if "superseded" not in change]
    assert states(changes) != {status.value for status in RunStatus}
