"""An unchanged fleet costs nothing, and every change that matters wakes the agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from fleet_agent.domain.fleet import Label
from fleet_agent.domain.waking import FIELDS
from fleet_agent.sim.market import Order
from fleet_agent.sim.scenarios import FIRST_LIGHT, IDLE
from fleet_agent.store import reading, tables
from fleet_agent.store.database import real_now
from tests.story.test_conversation import last_prompt
from tests.world import IMAGE, Installation, installation


@pytest.fixture
async def idle(database_url: str) -> AsyncGenerator[Installation]:
    """No work and no box; the agent has seen it and has nothing to do."""
    async with installation(database_url, scenario=IDLE) as made:
        await made.heartbeat()
        await made.heartbeat()
        assert [run["quiet"] for run in made.runs()] == [False, True]
        yield made


# --- what wakes -------------------------------------------------------------------------------------------------------


def the_list_cannot_be_read(fleet: Installation) -> None:
    fleet.sim.market.faults.arm("list_success_false")


def work_arrives(fleet: Installation) -> None:
    fleet.sim.queue.arrive(3)


def work_has_waited_for_long(fleet: Installation) -> None:
    fleet.sim.queue.arrive(1)
    fleet.time.advance(timedelta(minutes=40))


def proofs_fail(fleet: Installation) -> None:
    fleet.sim.queue.fail(4)


def the_credit_is_gone(fleet: Installation) -> None:
    fleet.sim.market.faults.arm("credit_zero", times=1)


def a_box_appears(fleet: Installation) -> None:
    """Of ours by its label, as after a restore."""
    label = Label(installation=fleet.status()["installation"], fleet=fleet.fleet, key="r1-s1-c0-zzzz")
    order = Order(IMAGE, disk_gb=Decimal(100), label=str(label))
    fleet.sim.market.rent(fleet.sim.market.offers()[0].lot.ask_id, order)


def a_rent_is_in_flight(fleet: Installation) -> None:
    with fleet.database.exclusive(fleet.fleet) as tx:
        tx.add(action_row(fleet, "operator1-zzzz", "rent_box", "sent", sent_at=real_now(tx), send_by=real_now(tx)))


def action_row(fleet: Installation, key: str, tool: str, status: str, **values: Any) -> tables.Action:
    return tables.Action(
        fleet=fleet.fleet, key=key, actor="operator", tool=tool, arguments={}, created_at=fleet.time.now(),
        ruling="allow", code="ok", sentence="", status=status, **values,
    )  # fmt: skip


def box_row(fleet: Installation, key: str) -> tables.Box:
    """Rented in a time that no list is of, so that none misses it."""
    return tables.Box(
        fleet=fleet.fleet, key=key, label=key, machine_id=1, gpu_name="RTX 4090", num_gpus=1, stage="rented",
        agreed_usd_per_hour=Decimal("0.4"), rented_at=fleet.time.now(),
        stage_since=fleet.time.now(),
    )  # fmt: skip


def work_without_a_box(fleet: Installation) -> None:
    fleet.sim.queue.arrive(1)


def an_outcome_is_lost(fleet: Installation) -> None:
    with fleet.database.exclusive(fleet.fleet) as tx:
        tx.add(box_row(fleet, "r1-s1-c0-yyyy"))
        tx.flush()
        tx.add(action_row(fleet, "r1-s1-c0", "destroy_box", "unknown", box_key="r1-s1-c0-yyyy"))


def a_person_is_asked(fleet: Installation) -> None:
    with fleet.database.exclusive(fleet.fleet) as tx:
        tx.add(action_row(fleet, "operator1-aaaa", "destroy_box", "awaiting_approval"))


CHANGES: dict[str, Callable[[Installation], None]] = {
    "list of boxes": the_list_cannot_be_read,
    "queue": work_arrives,
    "oldest in queue": work_has_waited_for_long,
    "failures per hour": proofs_fail,
    "credit lasts": the_credit_is_gone,
    "boxes": a_box_appears,
    "in flight": a_rent_is_in_flight,
    "boxes for the work": work_without_a_box,
    "outcome unknown": an_outcome_is_lost,
    "approvals": a_person_is_asked,
}


def test_every_waking_field_has_its_change() -> None:
    assert {field.name for field in FIELDS if field.band is not None} == set(CHANGES)


@pytest.mark.parametrize("field", CHANGES)
async def test_a_waking_field_wakes_when_it_changes_its_band(idle: Installation, field: str) -> None:
    """Control: the heartbeat before, when nothing had changed, was quiet."""
    idle.unsound_because = "what a field shows is written by hand"
    CHANGES[field](idle)

    await idle.heartbeat()

    run = idle.runs()[-1]
    assert (run["quiet"], run["tokens_in"] > 0) == (False, True)
    (told,) = [line for line in last_prompt(idle).splitlines() if line.startswith("Changed since the last look: ")]
    assert f"{field}: " in told
    assert run["reason"], "a person reads why"


async def test_trouble_that_nobody_can_do_anything_about_is_asked_about_once(
    idle: Installation,
) -> None:
    """Work, and no box may be rented. Control: more of the same trouble is a change like any other."""
    idle.set_policy({"limits.max_boxes": "0"})
    idle.sim.queue.arrive(1)
    await idle.heartbeat()
    assert "boxes for the work: as it should be → work and no box" in last_prompt(idle)
    for _ in range(4):
        await idle.heartbeat()
    idle.sim.queue.arrive(40)
    await idle.heartbeat()

    assert [run["quiet"] for run in idle.runs()[2:]] == [False, True, True, True, True, False]


async def test_what_came_too_soon_is_asked_about_at_the_next_heartbeat(database_url: str) -> None:
    """The work is done before a box may be given up, and after that nothing changes any more."""
    assert await _given_up_at_heartbeat(database_url) == 4


async def test_where_only_changes_count_the_boxes_stay_until_the_next_review(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(reading, "_too_soon", lambda *_: ())
    assert await _given_up_at_heartbeat(database_url) > 10


async def _given_up_at_heartbeat(database_url: str) -> int:
    async with installation(database_url, scenario=FIRST_LIGHT) as fleet:
        fleet.set_policy({"limits.min_age": "PT12M"})
        for number in range(1, 15):
            await fleet.heartbeat()
            if any(row["status"] == "done" for row in fleet.actions("destroy_box")):
                return number
    return 99


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [6, pytest.param(24, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_heartbeats_over_an_idle_fleet_cost_a_tenth_of_asking_every_time(database_url: str, hours: int) -> None:
    """A day is 288 heartbeats and at most 26 reviews. Control: with `review_every=0`, over an hour, each one asks."""
    async with installation(database_url, scenario=IDLE) as fleet:
        fleet.set_policy({"run.review_every": "PT0S"})
        for _ in range(12):
            await fleet.heartbeat()
        hour = fleet.runs()
        fleet.set_policy({"run.review_every": "PT1H"})
        for _ in range(12 * hours):
            await fleet.heartbeat()
        day = fleet.runs()[12:]

    asked = [run for run in day if run["steps"]]
    assert all(run["steps"] for run in hour)
    assert (len(day), len(asked) <= 26 * hours / 24) == (12 * hours, True)
    assert {run["quiet"] for run in day if not run["steps"]} == {True}
    assert tokens(day) <= 0.1 * hours * tokens(hour)


def tokens(runs: list[dict[str, int]]) -> int:
    return sum(run["tokens_in"] + run["tokens_out"] for run in runs)


async def test_a_run_that_is_left_out_of_prompts_says_why(idle: Installation) -> None:
    idle.sim.model_faults.arm("unauthorized", times=1)
    await idle.run()
    await idle.run()
    idle.say("How are we doing?")
    await idle.run()

    assert [(run["in_prompt"], run["left_out_because"]) for run in idle.runs()] == [
        (False, "it changed nothing"),
        (False, "the model was not asked"),
        (False, "it did not finish and did nothing"),
        (False, "it changed nothing"),
        (True, None),
    ]
