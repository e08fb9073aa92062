"""What wakes the agent, field by field."""

from __future__ import annotations

import typing
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Inventory, Stage
from fleet_agent.domain.ledger import Unsettled
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.run import Approval
from fleet_agent.domain.waking import FIELDS, Bands, Look, doubled, moved, stepped
from fleet_agent.domain.waking import bands as bands_of_look
from tests.domain.test_context import NOW, observation
from tests.domain.test_rules import box, instance


def leaves(model: type[BaseModel], path: str = "") -> set[str]:
    """Every path to a value that is no model of ours."""
    return {leaf for name, field in model.model_fields.items() for leaf in _below(field.annotation, f"{path}{name}")}


def _below(annotation: Any, path: str) -> set[str]:
    options = typing.get_args(annotation) if annotation is not None else ()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return leaves(annotation, f"{path}.")
    if typing.get_origin(annotation) is tuple:
        return _below(options[0], f"{path}.*")
    models = [each for each in options if isinstance(each, type) and issubclass(each, BaseModel)]
    return {leaf for each in models for leaf in leaves(each, f"{path}.")} or {path}


def test_every_field_of_an_observation_is_on_the_list() -> None:
    listed = {field.path for field in FIELDS}
    whole = {path.removesuffix("*") for path in listed if path.endswith(".*")}

    missing = {leaf for leaf in leaves(Observation) if leaf not in listed and not leaf.startswith(tuple(whole))}

    assert missing == set()
    assert len(leaves(Observation)) > 20  # the control: the fields were found
    assert all(field.why for field in FIELDS)


def demand(**changes: Any) -> Known[Demand]:
    values: dict[str, Any] = {
        "pending": 12, "running": 3, "oldest_pending": timedelta(minutes=4), "done_per_hour": 20,
        "failed_per_hour": 0, "seen_at": NOW,
    }  # fmt: skip
    return Known(value=Demand(**values | changes), seen_at=NOW)


def credit(usd: str) -> Known[Account]:
    return Known(value=Account(credit_usd=Decimal(usd)), seen_at=NOW)


def staged(stage: Stage) -> tuple[Box, ...]:
    return (box().model_copy(update={"stage": stage}),)


def listed(status: str) -> Known[Inventory]:
    """The box of `staged` as the provider's list shows it."""
    seen = instance(id=box().vast_id, actual_status=status)
    return Known(value=Inventory(instances=(seen,), seen_at=NOW), seen_at=NOW)


def bands(seen: Observation, last: Bands) -> dict[str, str]:
    return bands_of_look(Look(seen), last)


BEFORE = observation(demand=demand(), account=credit("41.2"))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (observation(demand=demand(pending=40), account=credit("41.2")), "queue: 8–15 → 32–63"),
        (observation(demand=demand(pending=0), account=credit("41.2")), "queue: 8–15 → 0"),
        (observation(demand=Unknown(reason="x"), account=credit("41.2")), "queue: 8–15 → unknown"),
        (
            observation(demand=demand(oldest_pending=timedelta(hours=3)), account=credit("41.2")),
            "oldest in queue: under 0:30:00 → over 2:00:00",
        ),
        (
            observation(demand=demand(failed_per_hour=5), account=credit("41.2")),
            "failures per hour: 0 → 4–7",
        ),
        (observation(demand=demand(), account=credit("0.5")), "credit lasts: over 3 days"),
        (observation(demand=demand(), account=credit("0")), "→ no credit"),
        (
            observation(demand=demand(), account=credit("41.2"), inventory=Unknown(reason="x")),
            "list of boxes: known → unk",
        ),
        (observation(demand=demand(), account=credit("41.2"), boxes=()), "boxes: r1-s1-c0-zzzz no longer there"),
        (
            observation(demand=demand(), account=credit("41.2"), boxes=staged(Stage.DESTROYING)),
            "boxes: r1-s1-c0-zzzz destroying",
        ),
        (
            observation(demand=demand(), account=credit("41.2"), inventory=listed("exited")),
            "boxes: r1-s1-c0-zzzz proving/exited",
        ),
        (observation(demand=demand(), account=credit("41.2"), in_flight_count=0), "in flight: 1 → 0"),
        (
            observation(demand=demand(pending=0, running=0), account=credit("41.2")),
            "boxes for the work: as it should be → boxes and no work",
        ),
    ],
)
def test_every_waking_field_wakes_when_it_changes_its_band(after: Observation, words: str) -> None:
    last = bands(BEFORE, {})

    told = moved(last, bands(after, last))

    assert any(words in each for each in told), told


def test_all_waking_fields_are_in_the_table_above() -> None:
    paths = {field.path for field in FIELDS if field.band is not None}

    assert paths == {
        "inventory", "demand.value.pending", "demand.value.oldest_pending", "demand.value.failed_per_hour",
        "account.value.credit_usd", "boxes.*.stage", "in_flight_count", "fit", "unsettled", "approvals",
    }  # fmt: skip


def test_what_moves_within_its_band_wakes_nobody() -> None:
    last = bands(BEFORE, {})
    later = observation(
        taken_at=NOW + timedelta(minutes=5),
        demand=demand(pending=14, running=9, done_per_hour=31, oldest_pending=timedelta(minutes=9)),
        account=credit("41.1"),
    )

    assert moved(last, bands(later, last)) == ()


def test_a_queue_that_swings_around_an_edge_wakes_once() -> None:
    """The control is the band without a memory, which changes each time."""
    swing = [15, 16, 15, 16, 17, 15, 14, 16]
    band, woken = doubled(12, ""), 0
    for value in swing:
        now = doubled(value, band)
        woken += now != band
        band = now
    forgetful = [doubled(value, "") for value in swing]

    assert woken == 0
    assert sum(a != b for a, b in pairwise(forgetful)) > 3


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_value_far_from_its_band_always_changes_it(first: int, second: int) -> None:
    band = doubled(first, "")

    if second > 2.5 * first or first > 2.7 * second:
        assert doubled(second, band) != band
    assert doubled(first, band) == band


def test_steps_are_soft_on_the_way_back() -> None:
    edges = (timedelta(hours=1), timedelta(hours=4))

    assert stepped(timedelta(minutes=59), "", edges) == "under 1:00:00"
    assert stepped(timedelta(hours=1), "", edges) == "over 1:00:00"
    assert stepped(timedelta(minutes=50), "over 1:00:00", edges) == "over 1:00:00"
    assert stepped(timedelta(minutes=44), "over 1:00:00", edges) == "under 1:00:00"
    assert stepped(timedelta(hours=9), "over 1:00:00", edges) == "over 4:00:00"


def fit(seen: Observation, last: str = "") -> str:
    return bands(seen, {"fit": last})["fit"]


def test_whether_the_boxes_fit_the_work_is_said_by_kind() -> None:
    protected = (box().model_copy(update={"protected": True}),)
    idle = {"demand": demand(pending=0, running=0), "in_flight_count": 0}

    assert fit(observation(**idle, boxes=())) == fit(BEFORE) == "as it should be"
    assert fit(observation(demand=demand(), boxes=(), in_flight_count=0)) == "work and no box"
    assert fit(observation(demand=demand(), boxes=protected, in_flight_count=0)) == "as it should be"
    assert fit(observation(**idle)) == "boxes and no work"
    assert fit(observation(**idle, boxes=protected)) == "as it should be"
    assert fit(observation(**idle, boxes=staged(Stage.DESTROYING))) == "as it should be"
    assert fit(observation(demand=Unknown(reason="x"), boxes=()), "work and no box") == "work and no box"


def test_what_a_dead_worker_holds_is_work_that_is_still_to_be_done() -> None:
    held = {"demand": demand(pending=0, running=0, claimed=2), "in_flight_count": 0}

    assert fit(observation(**held)) == "as it should be"
    assert fit(observation(**held, boxes=())) == "work and no box"


def test_what_is_open_wakes_when_it_comes_and_when_it_goes_and_not_while_it_stays() -> None:
    rent = Unsettled(key="r1-s1-c0", tool="rent_box", label="", vast_id=None, sent_for=timedelta(minutes=1))
    asked = Approval(key="r2-s1-c0", tool="destroy_box", arguments={}, sentence="too dear", asked_at=NOW)
    later = rent.model_copy(update={"sent_for": timedelta(minutes=6)})
    nothing = bands_of_look(Look(BEFORE), {})
    both = bands_of_look(Look(BEFORE, (rent,), (asked,)), nothing)

    assert moved(nothing, both) == (
        "outcome unknown: none → rent_box:r1-s1-c0",
        "approvals: none → destroy_box:r2-s1-c0",
    )
    assert moved(both, bands_of_look(Look(BEFORE, (later,), (asked,)), both)) == ()
    assert moved(both, bands_of_look(Look(BEFORE), both)) == (
        "outcome unknown: rent_box:r1-s1-c0 → none",
        "approvals: destroy_box:r2-s1-c0 → none",
    )


def test_a_box_on_its_way_out_may_have_exited() -> None:
    """Control: that of a box that is to stay is told, in the table above."""
    leaving = staged(Stage.DESTROYING)
    last = bands(observation(boxes=leaving), {})

    assert moved(last, bands(observation(boxes=leaving, inventory=listed("exited")), last)) == ()


def test_of_many_boxes_only_those_that_changed_are_told_and_of_them_a_few() -> None:
    boxes = tuple(box().model_copy(update={"key": f"r1-s1-c{n}-zzzz"}) for n in range(12))
    after = (boxes[0], *(each.model_copy(update={"stage": Stage.DESTROYING}) for each in boxes[1:]))
    last = bands(observation(boxes=boxes), {})

    (told,) = moved(last, bands(observation(boxes=after), last))

    assert told.startswith("boxes: r1-s1-c1-zzzz destroying, r1-s1-c10-zzzz destroying")
    assert told.endswith("3 more")
    assert "r1-s1-c0-zzzz" not in told
