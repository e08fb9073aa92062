"""What happens while a run is under way: a person speaks, the session is reset, the flow run is cancelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import text

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.run import Meanwhile, Run, Said
from fleet_agent.domain.spending import Terms
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.errors import ModelUnreachable
from fleet_agent.store import reading
from fleet_agent.store.inbox import Post, post
from tests.story.killing import Fuse, Fused, ScriptedModel, fused
from tests.world import Installation


def rows(fleet: Installation, table: str) -> list[dict[str, Any]]:
    order = {"run": "run_id", "message": "seq"}.get(table, "id")
    with fleet.database.transaction() as tx:
        return [dict(row) for row in tx.execute(text(f"SELECT * FROM {table} ORDER BY {order}")).mappings()]


def report_event(fleet: Installation, kind: Kind, text: str) -> None:
    with fleet.database.shared("main") as tx:
        post(tx, "main", Post(kind=kind, source="test", text=text), now=fleet.time.now())


def reset(fleet: Installation) -> None:
    desk = Desk(database=fleet.database, clock=fleet.ports.clock, fleet="main", who="test", place="here")
    controls.reset_session(desk)


def scripted(fleet: Installation, at_second_step: Callable[[], object] = lambda: None) -> ScriptedModel:
    model = ScriptedModel(at_second_step=at_second_step)
    fleet.ports = replace(fleet.ports, model=model)
    return model


# --- what is urgent comes in between ----------------------------------------------------------------------------------


async def test_what_a_person_says_during_a_run_is_shown_at_its_next_step(fleet: Installation) -> None:
    model = scripted(fleet, lambda: fleet.say("Stop at one box, please."))
    await fleet.run()
    assert "Meanwhile:\n[human]\nStop at one box, please.\n[/human]" in model.words()
    (run,) = fleet.runs()
    assert (run["turns"], run["status"]) == (1, "closed")
    assert [event["consumed_by_run"] for event in rows(fleet, "inbox") if event["kind"] == "message"] == [1]
    assert [m["content"] for m in rows(fleet, "message") if m["kind"] == "human"] == ["Stop at one box, please."]


async def test_without_a_look_before_each_step_it_is_shown_a_turn_later(fleet: Installation) -> None:
    """The control."""

    class NeverLooks(Fused):
        async def meanwhile(self, run: Run, *, turn: int) -> Meanwhile:
            return Meanwhile()

    model = scripted(fleet, lambda: fleet.say("Stop at one box, please."))
    journal: Any = NeverLooks(fleet.ports.journal, Fuse())
    fleet.ports = replace(fleet.ports, journal=journal)
    await fleet.run()
    assert "Meanwhile" not in model.words()
    assert fleet.runs()[0]["turns"] == 2


async def test_a_limit_that_is_changed_during_a_run_stands_in_its_next_request(fleet: Installation) -> None:
    def person() -> None:
        controls.set_policy(desk(fleet), {"limits.max_boxes": "3"})
        controls.set_objective(desk(fleet), "One box is enough.")

    model = scripted(fleet, person)
    await fleet.run()
    assert re.findall(r"^limits: mode=live max_boxes=(\d+) ", model.words(), re.MULTILINE) == ["3"]
    assert "Event: config_change: objective: One box is enough." in model.words()
    assert "Objective, set by the operator:\nOne box is enough." in model.words()


def desk(fleet: Installation) -> Desk:
    return Desk(database=fleet.database, clock=fleet.ports.clock, fleet="main", who="test", place="here")


async def test_what_is_not_urgent_waits_for_the_next_turn(fleet: Installation) -> None:
    model = scripted(fleet, lambda: report_event(fleet, Kind.BOX_FAILED, "box 7 is offline"))
    await fleet.run()
    assert "Meanwhile" not in model.words()
    assert fleet.runs()[0]["turns"] == 2


async def test_what_came_during_a_run_that_then_fails_waits_again(fleet: Installation) -> None:
    """The model is asked with the message in the request, and never answers."""
    fleet.ports = replace(fleet.ports, model=FailsAtTheThirdStep(lambda: fleet.say("Are you there?")))
    assert (await fleet.run()).failed is not None
    message = next(event for event in rows(fleet, "inbox") if event["kind"] == "message")
    assert (message["claimed_by_run"], message["consumed_by_run"]) == (None, None)


class FailsAtTheThirdStep(ScriptedModel):
    async def reply(self, body: Any, *, within: Any) -> Any:
        if self.asked == 2:
            assert "Are you there?" in str(body)
            raise ModelUnreachable("no answer")
        return await super().reply(body, within=within)


@dataclass
class IsSlowToBegin(ScriptedModel):
    """An hour passes between the look for what came meanwhile and the second request."""

    pass_an_hour: Callable[[], object] = lambda: None

    async def terms(self) -> Terms:
        if self.asked == 1:
            self.pass_an_hour()
        return await super().terms()

    async def reply(self, body: Any, *, within: Any) -> Any:
        self.at_second_step()
        return await super().reply(body, within=within)


async def test_words_that_come_just_before_a_bound_are_told_to_later_runs_once(fleet: Installation) -> None:
    """The run at the bound took them and gave them back; the run after it answers. Control: both have them in their
    logs."""
    model = IsSlowToBegin(lambda: fleet.say("Stop at one box, please."))
    model.pass_an_hour = lambda: fleet.time.advance(timedelta(hours=1))
    fleet.ports = replace(fleet.ports, model=model)
    await fleet.run()
    scripted(fleet)
    await fleet.run()

    assert "the bound of" in fleet.runs()[0]["exit_reason"]
    told = [message["run_id"] for message in rows(fleet, "message") if message["content"] == "Stop at one box, please."]
    assert told == [1, 2]
    with fleet.database.transaction() as tx:
        standing = reading.standing_now(tx, "main")
    assert standing.words == (Said(run_id=2, text="Stop at one box, please."),)


# --- the session is reset ---------------------------------------------------------------------------------------------

PHASES = ["open_run", "collect", "record", "meanwhile", "about_to_ask", "reply", "record_reply", "rent", "write"]
"""Before the first of each of these calls, which is after the one before it; `reply` is during a model call too."""


@dataclass
class At:
    """Does something once, before the first call of this name."""

    name: str
    happens: Callable[[], object]
    done: bool = False

    async def around(self, name: str, call: Callable[[], Any]) -> Any:
        if name == self.name and not self.done:
            self.done = True
            self.happens()
        return await call()


@pytest.mark.parametrize("phase", [*PHASES, "close_or_go_on"])
async def test_after_a_reset_in_any_phase_every_trigger_works_and_run_ids_go_on(
    fleet: Installation, phase: str
) -> None:
    """The failure that the project was born from: silence after a reset."""
    scripted(fleet)
    fleet.say("Before the reset.")

    def person() -> None:
        reset(fleet)
        fleet.say("After the reset.")

    fuse: Any = At(phase, person)
    untouched, fleet.ports = fleet.ports, fused(fleet.ports, fuse)
    assert (await fleet.run()).failed is None
    fleet.ports = untouched
    model = scripted(fleet)
    if phase != "open_run":
        assert rows(fleet, "inbox")[-1]["claimed_by_run"] is None
        assert (await fleet.run(Trigger.EVENT)).run_id == 2
        assert "After the reset." in model.words()
        assert fleet.runs()[1]["epoch"] == 1
    ids = [(await fleet.heartbeat()).run_id, (await fleet.run(Trigger.MANUAL)).run_id]
    report_event(fleet, Kind.BOX_FAILED, "box 7 is offline")
    ids.append((await fleet.run(Trigger.EVENT)).run_id)
    first = 2 if phase == "open_run" else 3
    assert ids == [first, first + 1, first + 2]
    assert {run["status"] for run in fleet.runs()} == {"closed"}
    assert all(event["consumed_by_run"] for event in rows(fleet, "inbox"))


async def test_a_reset_run_closes_at_its_next_step_and_says_why(fleet: Installation) -> None:
    model = scripted(fleet, lambda: reset(fleet))
    fleet.say("How are we doing?")
    report = await fleet.run()
    assert (model.asked, report.summary["exit_reason"]) == (2, "the reset of the session")
    assert [event["consumed_by_run"] for event in rows(fleet, "inbox") if event["kind"] == "message"] == [1]


@pytest.mark.parametrize("phase", ["meanwhile", "record_reply"])
async def test_a_reset_run_gives_back_what_it_has_not_shown(fleet: Installation, phase: str) -> None:
    """Control: what the model had replied to is consumed."""
    scripted(fleet)
    fleet.say("How are we doing?")
    fuse: Any = At(phase, lambda: reset(fleet))
    fleet.ports = fused(fleet.ports, fuse)
    await fleet.run()
    message = next(event for event in rows(fleet, "inbox") if event["kind"] == "message")
    assert message["consumed_by_run"] == (None if phase == "meanwhile" else 1)


async def test_a_change_that_only_a_reset_run_saw_is_shown_to_the_next(fleet: Installation) -> None:
    """It closed before the model was asked; the next heartbeat must not be quiet about it."""
    await fleet.heartbeat()
    fleet.sim.market.destroy(fleet.sim.market.instances()[0].id)
    fuse: Any = At("meanwhile", lambda: reset(fleet))
    untouched, fleet.ports = fleet.ports, fused(fleet.ports, fuse)
    await fleet.heartbeat()
    fleet.ports = untouched
    await fleet.heartbeat()
    assert [run["quiet"] for run in fleet.runs()] == [False, False, False]


# --- the flow run is cancelled ----------------------------------------------------------------------------------------


async def cancelled_by_task(fleet: Installation) -> None:
    running = asyncio.current_task()
    assert running is not None
    scripted(fleet, running.cancel)
    with pytest.raises(asyncio.CancelledError):
        await fleet.run()
    running.uncancel()


async def cancelled_by_scope(fleet: Installation) -> None:
    """As Prefect does it: everything that is awaited within the scope is cancelled, again and again."""
    with anyio.CancelScope() as scope:
        scripted(fleet, scope.cancel)
        await fleet.run()
    assert scope.cancelled_caught


@pytest.mark.parametrize("cancelled", [cancelled_by_task, cancelled_by_scope])
async def test_a_cancelled_run_ends_as_failed_and_what_it_held_waits_again(
    fleet: Installation, cancelled: Callable[[Installation], Any]
) -> None:
    fleet.say("Are you there?")
    await cancelled(fleet)
    (run,) = fleet.runs()
    assert (run["status"], run["exit_reason"]) == ("failed", "cancelled")
    assert [(e["claimed_by_run"], e["attempts"]) for e in rows(fleet, "inbox")] == [(None, 0)] * 2
    with fleet.database.transaction() as tx:
        assert reading.status(tx, "main", now=fleet.time.now())["current_run_id"] is None
