"""What causes a run, and what does not: storms, outages, stale wakes, idle fleets, and too many runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import text

from fleet_agent.domain.run import ModelReply
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.wakes import MOST_PENDING
from fleet_agent.errors import ModelUnusable
from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import wakes
from fleet_agent.store.claims import QUARANTINE_FROM
from fleet_agent.store.database import BELL_CHANNEL
from fleet_agent.store.inbox import Post, post, post_all
from tests.postgres import plain
from tests.story.killing import ScriptedModel
from tests.story.test_conversation import last_prompt
from tests.world import Installation, installation


def rows(fleet: Installation, table: str) -> list[dict[str, Any]]:
    with fleet.database.transaction() as tx:
        return [dict(row) for row in tx.execute(text(f"SELECT * FROM {table} ORDER BY 1")).mappings()]


async def test_five_hundred_events_are_one_turn_and_all_of_them_are_consumed(fleet: Installation) -> None:
    alerts = [Post(kind=Kind.ALERT_FIRING, source="alertmanager", text=f"box {number} is hot") for number in range(500)]
    with fleet.database.shared("main") as tx:
        post_all(tx, "main", alerts, now=fleet.time.now())
    fleet.say("What is going on?")

    assert (await fleet.run(Trigger.EVENT)).failed is None

    (run,) = fleet.runs()
    assert run["turns"] == 1
    assert {event["consumed_by_run"] for event in rows(fleet, "inbox")} == {1}
    assert "alert_firing from alertmanager: 500 times" in last_prompt(fleet)
    assert "box 499 is hot" in last_prompt(fleet)
    assert "box 100 is hot" not in last_prompt(fleet)
    assert "[human]\nWhat is going on?\n[/human]" in last_prompt(fleet)


async def test_an_outage_of_the_model_for_an_hour_puts_nothing_aside(fleet: Installation) -> None:
    """Twelve heartbeats and as many doorbells fail. Control: the same number of runs whose replies are of no use."""
    fleet.say("Are you there?")
    with fleet.database.shared("main") as tx:
        post(tx, "main", Post(kind=Kind.ALERT_FIRING, source="alertmanager", text="hot"), now=fleet.time.now())
    for _ in range(12):
        fleet.sim.model_faults.arm("http_500", times=8)
        assert (await fleet.heartbeat()).failed is not None
        assert (await fleet.run(Trigger.EVENT)).failed is not None
        fleet.sim.model_faults.disarm("http_500")
    assert [(event["attempts"], event["quarantined_at"]) for event in rows(fleet, "inbox")] == [(0, None)] * 3
    assert quarantines(fleet) == []
    assert "Are you there?" in (await fleet.heartbeat()).summary["summary"]
    assert {event["consumed_by_run"] for event in rows(fleet, "inbox")} == {25}

    fleet.say("And now?")
    for _ in range(QUARANTINE_FROM):
        fleet.ports = replace(fleet.ports, model=UselessAfterTheFirstReply())
        assert (await fleet.heartbeat()).failed is not None
    assert quarantines(fleet) == [rows(fleet, "inbox")[-1]["id"]]


def quarantines(fleet: Installation) -> list[int]:
    """The events of which a person is told that they are quarantined."""
    keys = [notice["key"] for notice in rows(fleet, "notice")]
    return [int(key.split(":")[1]) for key in keys if key.startswith("quarantine:")]


class UselessAfterTheFirstReply(ScriptedModel):
    async def reply(self, body: Any, *, within: timedelta) -> ModelReply:
        if self.asked:
            raise ModelUnusable("no usable reply")
        return await super().reply(body, within=within)


async def test_twenty_stale_wakes_are_consumed_by_one_run_and_the_next_finds_none(fleet: Installation) -> None:
    """The system before this one met all of them again in every run."""
    with fleet.database.exclusive("main") as tx:
        for number in range(MOST_PENDING):
            wakes.ask(
                tx,
                "main",
                timedelta(minutes=10 + 2 * number),
                f"check {number}",
                asked_by="test",
                now=fleet.time.now(),
            )
    fleet.time.advance(timedelta(hours=3))
    due = [wake["id"] for wake in rows(fleet, "wake")]
    assert len(due) == MOST_PENDING

    await fleet.run(Trigger.WAKE, wake_id=due[0])
    later = [await fleet.run(Trigger.WAKE, wake_id=wake) for wake in due[1:]]

    assert {wake["processed_by_run"] for wake in rows(fleet, "wake") if wake["id"] in due} == {1}
    assert {report.run_id for report in later} == {None}
    await fleet.run()
    assert "Wake is due" not in last_prompt(fleet)


async def test_idle_heartbeats_cause_nothing(database_url: str) -> None:
    """I7: no notification, no event, no wake, no run but their own. Control: a run that leaves something urgent."""
    async with installation(database_url, scenario=IDLE) as fleet:
        await fleet.heartbeat()
        with psycopg.connect(plain(database_url), autocommit=True) as ear:
            ear.execute(f"LISTEN {BELL_CHANNEL}")
            before = [len(rows(fleet, table)) for table in ("inbox", "wake", "notice")]
            for _ in range(10):
                assert (await fleet.heartbeat()).summary["no_op"]
            silence = list(ear.notifies(timeout=0.2))
            fleet.say("Hello?")
            rung = list(ear.notifies(timeout=5, stop_after=1))
        assert (silence, len(rung)) == ([], 1)
        assert [len(rows(fleet, table)) for table in ("inbox", "wake", "notice")] == [before[0] + 1, *before[1:]]
        assert [run["run_id"] for run in fleet.runs()] == list(range(1, 12))


async def test_a_run_that_leaves_something_urgent_rings_the_bell_as_it_ends(database_url: str) -> None:
    """The message comes during the last turn that the run may have."""
    async with installation(database_url, scenario=IDLE) as fleet:
        fleet.set_policy({"run.max_turns": "1"})
        with psycopg.connect(plain(database_url), autocommit=True) as ear:
            fleet.ports = replace(fleet.ports, model=SpokenToAtTheEnd(fleet, ear))
            await fleet.run()
            rung = list(ear.notifies(timeout=5, stop_after=1))
        assert len(rung) == 1
        assert rows(fleet, "inbox")[-1]["claimed_by_run"] is None


class SpokenToAtTheEnd(ScriptedModel):
    """The ear listens from then on."""

    def __init__(self, fleet: Installation, ear: psycopg.Connection) -> None:
        super().__init__()
        self._fleet = fleet
        self._ear = ear

    async def reply(self, body: Any, *, within: timedelta) -> ModelReply:
        reply = await super().reply(body, within=within)
        if reply.calls[0].name == "finish":
            self._fleet.say("One more thing.")
            self._ear.execute(f"LISTEN {BELL_CHANNEL}")
        return reply


async def test_more_runs_in_an_hour_than_expected_are_one_notice_and_are_not_held_back(database_url: str) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        fleet.set_policy({"run.max_opened_per_hour": "12"})
        for _ in range(12):
            await fleet.run(Trigger.HEARTBEAT)
        assert fleet.status()["untold_notices"] == 0
        for _ in range(3):
            await fleet.run(Trigger.HEARTBEAT)
        status = fleet.status()
        assert status["untold_notices"] == 1
        assert status["newest_notice"] == ("13 runs were opened in the last hour, more than run.max_opened_per_hour=12")
        fleet.time.advance(timedelta(hours=2))
        await fleet.run(Trigger.HEARTBEAT)
        assert fleet.status()["untold_notices"] == 1
        assert len(fleet.runs()) == 16
