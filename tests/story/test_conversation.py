"""What the model sees, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.run import ModelReply
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import ContextTooLong
from fleet_agent.ports import Model
from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import reading, wakes
from tests.world import Installation, installation


def desk(fleet: Installation) -> Desk:
    return Desk(database=fleet.database, clock=fleet.ports.clock, fleet=fleet.fleet, who="test", place="here")


def last_prompt(fleet: Installation) -> str:
    """Everything that the newest run sent in its newest request, as one text."""
    with fleet.database.transaction() as tx:
        body = reading.request(tx, fleet.fleet, fleet.runs()[-1]["run_id"])
    assert body is not None
    return "\n".join(message["content"] for message in body["messages"])


async def test_a_message_is_answered_in_the_next_run(fleet: Installation) -> None:
    fleet.say("How are we doing?")
    report = await fleet.run()
    assert "You wrote: “How are we doing?”" in report.summary["summary"]
    assert report.headline == "#1 manual: How are we doing? (+1)"


async def test_a_message_is_answered_once(fleet: Installation) -> None:
    fleet.say("How are we doing?")
    await fleet.run()
    assert "You wrote" not in (await fleet.run()).summary["summary"]


async def test_a_heartbeat_that_finds_nothing_changed_costs_no_token(database_url: str) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        await fleet.heartbeat()
        await fleet.heartbeat()
        first, second = fleet.runs()
        assert first["tokens_in"] > 0
        assert (second["quiet"], second["tokens_in"]) == (True, 0)


async def test_the_model_reviews_an_unchanged_fleet_once_an_hour(database_url: str) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        for _ in range(14):
            await fleet.heartbeat()
        assert [run["quiet"] for run in fleet.runs()] == [False, *[True] * 11, False, True]


async def test_a_run_started_by_hand_always_asks_the_model(database_url: str) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        await fleet.run()
        await fleet.run()
        assert all(run["tokens_in"] > 0 for run in fleet.runs())


async def test_a_run_that_changed_nothing_is_kept_but_not_shown_to_the_model(fleet: Installation) -> None:
    await fleet.heartbeat()
    before_no_op = last_prompt(fleet)
    no_op = await fleet.heartbeat()
    assert no_op.summary["no_op"]
    await fleet.run()
    assert no_op.summary["summary"] not in last_prompt(fleet)
    assert "Rented 1x" in last_prompt(fleet)
    assert "Rented 1x" not in before_no_op.split("Earlier runs")[1].split("Run #1")[0]


async def test_a_reset_ends_the_conversation_and_nothing_else(fleet: Installation) -> None:
    await fleet.heartbeat()
    fleet.set_policy({"limits.max_boxes": "3"})
    epoch = controls.reset_session(desk(fleet))
    report = await fleet.run()

    assert report.run_id == 2
    assert epoch == 1
    assert "Earlier runs, oldest first (runs that changed nothing are left out):\n(none)" in last_prompt(fleet)
    assert "max_boxes=3" in last_prompt(fleet)
    assert "see whether the new boxes are at work" in last_prompt(fleet)
    assert len(fleet.boxes()) == 2


async def test_run_ids_count_on_through_every_kind_of_run(fleet: Installation) -> None:
    for trigger in (Trigger.HEARTBEAT, Trigger.MANUAL, Trigger.HEARTBEAT):
        await fleet.run(trigger)
        controls.reset_session(desk(fleet))
    assert [run["run_id"] for run in fleet.runs()] == [1, 2, 3]


async def test_the_objective_stands_in_every_prompt(fleet: Installation) -> None:
    controls.set_objective(desk(fleet), "Never more than one box at night.")
    await fleet.run()
    assert "Never more than one box at night." in last_prompt(fleet)


async def test_a_prompt_shown_before_a_run_is_the_one_that_is_sent(fleet: Installation) -> None:
    body, tokens = await controls.next_request(desk(fleet), fleet.ports)
    assert 0 < tokens <= 27_000
    await fleet.run()
    with fleet.database.transaction() as tx:
        sent = reading.request(tx, fleet.fleet, 1)
    assert sent is not None
    assert json.dumps(body["messages"]) == json.dumps(sent["messages"][: len(body["messages"])])


async def test_a_wake_is_consumed_by_one_run(fleet: Installation) -> None:
    with fleet.database.exclusive("main") as tx:
        wakes.ask(tx, "main", timedelta(minutes=30), "look at prices", asked_by="test", now=fleet.time.now())
    fleet.time.advance(timedelta(minutes=31))
    await fleet.run()
    assert "Wake is due: look at prices" in last_prompt(fleet)
    await fleet.run()
    assert "look at prices" not in last_prompt(fleet)


async def test_a_verdict_in_writing_ends_a_run_like_the_finish_tool(database_url: str) -> None:
    async with installation(database_url, model="verdict_text") as fleet:
        report = await fleet.run()
        assert report.summary["exit_reason"] == "verdict in text"
        assert report.summary["summary"] == "I looked at the queue and at the boxes and changed nothing."


class TooLongOnce:
    """A model whose server has less room than we thought, and says so once."""

    def __init__(self, model: Model) -> None:
        self.body, self.terms = model.body, model.terms
        self._model = model
        self.asked: list[int] = []

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        self.asked.append(len(str(body["messages"])))
        if len(self.asked) == 1:
            raise ContextTooLong("the prompt is too long", fits=20_000)
        return await self._model.reply(body, within=within)


async def test_a_prompt_that_a_server_finds_too_long_is_made_shorter_once(fleet: Installation) -> None:
    model = TooLongOnce(fleet.ports.model)
    fleet.ports = replace(fleet.ports, model=model)

    report = await fleet.run()

    assert report.failed is None
    assert len(model.asked) >= 2
