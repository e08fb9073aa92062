"""What survives a reset, and what a reset ends: any order of words, limits, wakes, runs and deaths, on the real tables.

A model of what must be true is kept beside. Two things are compared with it: all tables around each reset, of which
only the epoch and what prompts have left out of it may change; and the prompt of each run that comes to its end, which
tells nothing of an earlier epoch and everything that is in force.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.orm import Session

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.report import Report
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.store import reading, session, steering
from fleet_agent.store.inbox import Post, post
from tests.postgres import TemporaryPostgres
from tests.story.killing import Fuse, Killed, fused
from tests.world import HEARTBEAT, Installation, installation

TABLES = ("session_state", "run", "message", "inbox", "wake", "action", "box", "notice", "request", "question")

CONVERSATION = {"epoch", "compaction"}
"""The columns of a fleet's row that a reset is about."""

LONGEST_RUN = 40
"""Calls of ports; a fuse beyond the end of a run never blows."""


class Conversation(RuleBasedStateMachine):
    """A person and a fleet, and a process that may die between any two calls of its ports."""

    def __init__(self, postgres: TemporaryPostgres) -> None:
        super().__init__()
        self.postgres = postgres
        self.numbers = itertools.count(1)
        self.loop = asyncio.Runner()
        self.epoch = 0
        self.last_run = 0
        self.objective = ""
        self.max_boxes = "4"
        self.died: dict[str, Any] | None = None

    @initialize()
    def begin(self) -> None:
        self.clone: AbstractContextManager[str] = self.postgres.clone()
        self.opened = installation(self.clone.__enter__())
        self.fleet: Installation = self.loop.run(self.opened.__aenter__())
        self.desk = Desk(
            database=self.fleet.database, clock=self.fleet.ports.clock, fleet="main", who="test", place="here"
        )

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.loop.run(self.opened.__aexit__(None, None, None))
            self.clone.__exit__(None, None, None)
        self.loop.close()

    # --- what a person does -------------------------------------------------------------------------------------------

    @rule()
    def say(self) -> None:
        controls.say(self.desk, self.new("said"))

    @rule()
    def set_objective(self) -> None:
        self.objective = self.new("objective")
        controls.set_objective(self.desk, self.objective)

    @rule(boxes=st.integers(1, 9))
    def set_limit(self, boxes: int) -> None:
        self.max_boxes = str(boxes)
        controls.set_policy(self.desk, {"limits.max_boxes": self.max_boxes})

    @rule(minutes=st.integers(10, 600))
    def add_wake(self, minutes: int) -> None:
        controls.add_wake(self.desk, str(minutes), self.new("wake"))

    @precondition(lambda self: self.pending_wakes())
    @rule(data=st.data())
    def cancel_wake(self, data: st.DataObject) -> None:
        controls.cancel_wake(self.desk, data.draw(st.sampled_from([wake["id"] for wake in self.pending_wakes()])))

    @rule()
    def reset(self) -> None:
        before = self.everything()
        self.epoch = controls.reset_session(self.desk)
        after = self.everything()

        assert without_conversation(after) == without_conversation(before)
        assert after["session_state"][0]["compaction"] == {}

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from((Kind.ALERT_FIRING, Kind.BOX_PROGRESS)))
    def something_happens(self, kind: Kind) -> None:
        with self.fleet.database.shared("main") as tx:
            post(tx, "main", Post(kind=kind, source="test", text=self.new("event")), now=self.fleet.time.now())

    @rule(trigger=st.sampled_from((Trigger.MANUAL, Trigger.HEARTBEAT)))
    def run_through(self, trigger: Trigger) -> None:
        self.died = None
        self.fleet.time.advance(HEARTBEAT)
        self.check(self.loop.run(self.fleet.run(trigger)))

    @rule(at=st.integers(1, LONGEST_RUN), after=st.booleans())
    def die_in_a_run(self, at: int, after: bool) -> None:
        request = {"flow_run_id": f"dying-{next(self.numbers)}", "attempt": 1}
        self.try_to_run(request, Fuse(at, after))

    @precondition(lambda self: self.died is not None)
    @rule(at=st.integers(1, LONGEST_RUN), after=st.booleans())
    def try_again(self, at: int, after: bool) -> None:
        assert self.died is not None
        self.try_to_run(self.died | {"attempt": self.died["attempt"] + 1}, Fuse(at, after))

    def try_to_run(self, request: dict[str, Any], fuse: Fuse) -> None:
        ports = self.fleet.ports
        self.fleet.ports = fused(ports, fuse)
        try:
            report = self.loop.run(self.fleet.run(**request))
        except Killed:
            self.died = request
        else:
            self.died = None
            self.check(report)
        finally:
            self.fleet.ports = ports

    # --- what must be true --------------------------------------------------------------------------------------------

    @invariant()
    def run_ids_only_grow(self) -> None:
        if not hasattr(self, "fleet"):
            return
        state, runs = self.rows("session_state")[0], self.rows("run")
        assert state["run_counter"] >= self.last_run
        assert [row["run_id"] for row in runs] == list(range(1, state["run_counter"] + 1))
        self.last_run = state["run_counter"]

    @invariant()
    def what_is_in_force_stays_in_force(self) -> None:
        if not hasattr(self, "fleet"):
            return
        state = self.rows("session_state")[0]
        assert (state["epoch"], state["objective"]) == (self.epoch, self.objective)
        assert controls.policy(self.desk).limits.max_boxes == int(self.max_boxes)

    def check(self, report: Report) -> None:
        """The newest request of a run that closed, against the tables."""
        assert report.failed is None
        (run,) = [row for row in self.rows("run") if row["run_id"] == report.run_id]
        if run["quiet"] or run["status"] != "closed":
            return
        with self.fleet.database.transaction() as tx:
            body = reading.request(tx, "main", run["run_id"])
        if body is None:  # a reset found it before it asked
            return
        prompt = "\n".join(message["content"] for message in body["messages"])
        told_of = [(row, self.epoch_of(row["consumed_by_run"])) for row in self.rows("inbox") if is_of_us(row)]

        assert all(row["text"] not in prompt for row, epoch in told_of if epoch not in (None, run["epoch"]))
        assert all(row["text"] in prompt for row, epoch in told_of if epoch == run["epoch"] and is_said(row))
        told = re.findall(r"^#(\d+) \d{4}-", prompt, re.MULTILINE)
        assert {self.epoch_of(int(number)) for number in told} <= {run["epoch"]}
        if run["epoch"] == self.epoch:
            assert self.objective in prompt
            assert f"max_boxes={self.max_boxes} " in prompt
            assert all(wake["reason"] in prompt for wake in self.pending_wakes() if wake["asked_by"] == "test")

    def epoch_of(self, run_id: int | None) -> int | None:
        return next((row["epoch"] for row in self.rows("run") if row["run_id"] == run_id), None)

    # --- what is there ------------------------------------------------------------------------------------------------

    def new(self, what: str) -> str:
        """Words that occur nowhere else."""
        return f"{what}-{next(self.numbers):05}-words"

    def pending_wakes(self) -> list[dict[str, Any]]:
        """Those that nobody has in hand."""
        if not hasattr(self, "fleet"):
            return []
        return [row for row in self.rows("wake") if row["status"] == "pending" and row["claimed_by_run"] is None]

    def rows(self, table: str) -> list[dict[str, Any]]:
        order = {"run": "run_id", "message": "seq"}.get(table, "1, 2")
        with self.fleet.database.transaction() as tx:
            found = tx.execute(text(f"SELECT * FROM {table} ORDER BY {order}")).mappings()
            return [dict(row) for row in found]

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        return {table: self.rows(table) for table in TABLES}


def is_of_us(event: dict[str, Any]) -> bool:
    """Its words occur nowhere else; those of a change of the policy do."""
    return event["text"].endswith("-words") and event["kind"] != Kind.CONFIG_CHANGE


def is_said(event: dict[str, Any]) -> bool:
    return event["kind"] == Kind.MESSAGE


def without_conversation(tables: dict[str, list[dict[str, Any]]]) -> str:
    (state,) = tables["session_state"]
    kept = {name: value for name, value in state.items() if name not in CONVERSATION}
    return json.dumps(tables | {"session_state": [kept]}, default=str)


def explore(postgres: TemporaryPostgres, *, examples: int, steps: int, shrink: bool = True) -> None:
    run_state_machine_as_test(
        lambda: Conversation(postgres),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_reset_ends_the_conversation_and_nothing_else_whatever_happens_around_it(
    postgres: TemporaryPostgres,
) -> None:
    explore(postgres, examples=5, steps=12)


def test_control_a_session_that_begins_with_a_new_row_is_found_out(
    postgres: TemporaryPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forgets the limits with the conversation."""
    reset = steering.reset_session

    def begin_anew(tx: Session, fleet: str, *, who: str, now: datetime) -> int:
        session.state(tx, fleet).policy = {}
        return reset(tx, fleet, who=who, now=now)

    monkeypatch.setattr(steering, "reset_session", begin_anew)
    with pytest.raises(AssertionError):
        explore(postgres, examples=20, steps=6, shrink=False)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_so_it_is_through_long_lives(postgres: TemporaryPostgres) -> None:
    explore(postgres, examples=25, steps=30)
