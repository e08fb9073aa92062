"""Somebody sets the clock by an hour, and back: nothing is lost, nothing is done twice, no wake is an hour late.

What can jump is the clock of the database, and with it all that is kept in rows. A process that runs does not notice:
it reads that clock once and carries it on by a counter that nobody can set. So a jump falls between two processes, as
a rule; here it falls between any two calls of one run, which is worse. The counter, by which deadlines and budgets are
kept, does not jump: a run that kept them by the clock is the control.

What a jump does to the signs of life of a run is in `tests/watch/test_watch.py`, to the bell in `test_bell.py` there,
and that a process does not notice one in `tests/store/test_database.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from fleet_agent.domain.triggers import Trigger
from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import wakes
from fleet_agent.store.installation import timeline
from tests.postgres import TemporaryPostgres
from tests.story.killing import fused
from tests.story.test_in_the_middle import PHASES, At
from tests.story.test_killed_runs import Story, a_story
from tests.story.test_triggers import rows
from tests.world import NOON, Installation, StoryClock, installation

HOUR = timedelta(hours=1)
FORTH, BACK, RIGHT = HOUR, -HOUR, timedelta(0)


@dataclass
class EachCall:
    """Does something before each call, told its number."""

    happens: Callable[[int], object]
    number: int = 0

    async def around(self, _: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.number += 1
        self.happens(self.number)
        return await call()


async def run_with(story: Story, hand: Any) -> None:
    """A run whose calls go through this hand; the clock is right again afterwards."""
    story.fleet.ports = fused(story.ports, hand)
    await story.fleet.run()
    story.fleet.ports = story.ports
    story.fleet.clock.set_off_by(RIGHT)


async def nothing_is_lost_or_doubled(story: Story) -> None:
    """The run closed, and so does what it asked for: half an hour of true time later, by one run."""
    fleet = story.fleet
    assert [(run["status"], run["exit_reason"]) for run in fleet.runs()] == [("closed", "finished")]
    assert [event["consumed_by_run"] for event in story.rows("inbox") if event["kind"] == "message"] == [1, 1]
    boxes_are_those_that_were_sent_for(story)

    fleet.time.advance(timedelta(minutes=31))
    await fleet.run(Trigger.EVENT)  # as the bell asks for it where a wake is overdue
    after_it = await fleet.run(Trigger.EVENT)
    assert after_it.run_id is None, "something is still due, or due again"
    planted, asked = story.rows("wake")[:2]
    assert (planted["status"], planted["processed_by_run"]) == ("processed", 1)
    assert (asked["status"], asked["reason"]) == ("processed", "are they at work?")


def boxes_are_those_that_were_sent_for(story: Story) -> None:
    """With a clock that is wrong, demand looks stale and nothing is rented; but nothing is ever rented twice."""
    sent = [action["box_key"] for action in story.rows("action") if action["tool"] == "rent_box" and action["sent_at"]]
    made = [box.label.rpartition("/")[2] for box in story.fleet.sim.market.instances()]
    assert sorted(made) == sorted(sent)
    assert len(made) <= 2


@pytest.mark.parametrize("off_by", [FORTH, BACK], ids=["forth", "back"])
@pytest.mark.parametrize("phase", [*PHASES, "close_or_go_on"])
async def test_set_in_any_phase_of_a_run_and_right_again_after_it(
    postgres: TemporaryPostgres, phase: str, off_by: timedelta
) -> None:
    async with a_story(postgres) as story:
        await run_with(story, At(phase, lambda: story.fleet.clock.set_off_by(off_by)))
        await nothing_is_lost_or_doubled(story)


@pytest.mark.parametrize("swing", [(FORTH, BACK), (BACK, FORTH), (FORTH, RIGHT), (BACK, RIGHT)])
async def test_set_back_and_forth_before_every_call_of_a_run(
    postgres: TemporaryPostgres, swing: tuple[timedelta, timedelta]
) -> None:
    async with a_story(postgres) as story:
        await run_with(story, EachCall(lambda call: story.fleet.clock.set_off_by(swing[call % 2])))
        await nothing_is_lost_or_doubled(story)


async def test_a_run_that_kept_its_deadlines_by_the_clock_would_stop_in_the_middle(
    postgres: TemporaryPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: set forth in its first step, it takes its time for used up."""
    monkeypatch.setattr(StoryClock, "elapsed", lambda clock: clock.now() - NOON)
    async with a_story(postgres) as story:
        await run_with(story, At("record_reply", lambda: story.fleet.clock.set_off_by(FORTH)))
        with pytest.raises(AssertionError):
            await nothing_is_lost_or_doubled(story)


# --- between runs ----------------------------------------------------------------------------------------------------


async def test_a_wake_that_was_asked_for_while_the_clock_was_an_hour_ahead_is_not_an_hour_late(
    fleet: Installation,
) -> None:
    fleet.clock.set_off_by(FORTH)
    ask_for_wake(fleet, timedelta(minutes=20))
    fleet.clock.set_off_by(RIGHT)

    fleet.time.advance(timedelta(minutes=20))
    report = await fleet.run(Trigger.EVENT)

    assert wake_of(fleet)["processed_by_run"] == report.run_id == 1
    assert wake_of(fleet)["wake_at"] > fleet.clock.now()  # the control: by this alone it would not be due for an hour


async def test_a_wake_that_is_not_due_waits_whatever_the_clock_did_and_undid(fleet: Installation) -> None:
    ask_for_wake(fleet, timedelta(minutes=90))
    fleet.clock.set_off_by(FORTH)
    await fleet.run()
    fleet.clock.set_off_by(RIGHT)
    await fleet.run()
    assert wake_of(fleet)["status"] == "pending"


async def test_heartbeats_go_on_after_the_clock_was_set_back(database_url: str) -> None:
    """Each is due before the last run of the hour that never was. Control: one that piled up behind a run is empty."""
    async with installation(database_url, scenario=IDLE) as fleet:
        fleet.clock.set_off_by(FORTH)
        await fleet.run(Trigger.HEARTBEAT, due=real(fleet))
        fleet.clock.set_off_by(RIGHT)

        missed = real(fleet)
        fleet.time.advance(timedelta(minutes=5))
        assert (await fleet.run(Trigger.HEARTBEAT, due=real(fleet))).run_id == 2
        assert (await fleet.run(Trigger.HEARTBEAT, due=missed)).run_id is None


async def test_a_review_that_lies_in_a_time_to_come_is_none(database_url: str) -> None:
    """An idle fleet asks its model again, rather than not for two hours. Control: after a review of now, not."""
    async with installation(database_url, scenario=IDLE) as fleet:
        fleet.clock.set_off_by(FORTH)
        await fleet.heartbeat()
        fleet.clock.set_off_by(RIGHT)
        await fleet.heartbeat()
        await fleet.heartbeat()
        assert [run["quiet"] for run in fleet.runs()] == [False, False, True]


def ask_for_wake(fleet: Installation, after: timedelta) -> None:
    with fleet.database.exclusive("main") as tx:
        wakes.ask(tx, "main", after, "look again", asked_by="test", now=fleet.clock.now())


def wake_of(fleet: Installation) -> dict[str, Any]:
    return rows(fleet, "wake")[0]


def real(fleet: Installation) -> datetime:
    """When Prefect says that it is now."""
    return timeline(fleet.database).real(fleet.clock.now())
