"""A session without an end: a thousand runs, a history of ten thousand, and what somebody wrote into the tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet_agent.domain.context import TARGET_TOKENS, Budget, compose
from fleet_agent.domain.run import ModelReply, PastRun
from fleet_agent.domain.tokens import HARD_TOKENS, by_bytes, request_tokens
from fleet_agent.domain.triggers import Trigger
from fleet_agent.ports import Model
from fleet_agent.sim.chat import read_request
from fleet_agent.sim.scenarios import CALM_DAY, IDLE, Scenario
from fleet_agent.store import reading
from tests.domain.test_context import opening, standing
from tests.history import write_history
from tests.world import NOON, Installation, installation


class Overheard:
    """A model whose requests are counted and read, by the strictest server, before they are sent."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.tokens: list[int] = []
        self.bodies: list[Mapping[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def body(self, *messages_and_tools: Any) -> dict[str, Any]:
        return self._model.body(*messages_and_tools)

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        read_request(dict(body))
        self.tokens.append(request_tokens(body["messages"], body["tools"], by_bytes))
        self.bodies.append(body)
        return await self._model.reply(body, within=within)


def overhear(fleet: Installation) -> Overheard:
    model = Overheard(fleet.ports.model)
    fleet.ports = replace(fleet.ports, model=model)
    return model


WARM_UP = 80
"""Runs, written into the tables, that fill a prompt."""

# --- many runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "scenario"),
    [(56, IDLE), pytest.param(1000, CALM_DAY, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
    ids=["idle", "a thousand in calm days"],
)
async def test_requests_do_not_grow_with_the_number_of_runs(database_url: str, runs: int, scenario: Scenario) -> None:
    """None is refused, and from the first compaction on their size has no trend. The control tells the same runs in
    full."""
    last_of_run: list[int] = []
    async with installation(database_url, scenario=scenario) as fleet:
        write_history(fleet.database, runs=WARM_UP, until=NOON)
        overheard = overhear(fleet)
        for number in range(runs):
            fleet.say(f"Message {number}: " + "how are the boxes, and what do they cost? " * 3)
            fleet.time.advance(timedelta(minutes=5))
            report = await fleet.run()
            assert report.failed is None
            last_of_run.append(overheard.tokens[-1])
        history = [as_past_run(row) for row in fleet.runs()]

    part = runs // (4 if runs >= 200 else 2)  # a part should hold more than one compaction
    first, last = statistics.median(last_of_run[:part]), statistics.median(last_of_run[-part:])
    assert max(overheard.tokens) <= TARGET_TOKENS
    assert 0.75 < last / first < 1.33, f"{first} → {last} tokens"
    assert told_in_full(history) > max(HARD_TOKENS, 1.2 * told_in_full(history[:-part]))


def as_past_run(row: Mapping[str, Any]) -> PastRun:
    return PastRun(
        run_id=row["run_id"],
        trigger=Trigger(row["trigger"]),
        reason=row["reason"],
        opened_at=row["opened_at"],
        summary=row["summary"],
    )


def told_in_full(history: list[PastRun]) -> int:
    everything = compose(
        standing=standing(past_runs=tuple(history)),
        steps=opening(),
        count_tokens=by_bytes,
        budget=Budget(target=10**9, small=10**9),
    )
    return everything.tokens


async def test_ten_thousand_runs_before_it_do_not_make_a_run_longer(database_url: str) -> None:
    """Every one of them is counted in the digest or told, and none twice."""
    async with installation(database_url, scenario=IDLE) as fleet:
        write_history(fleet.database, runs=10_000, until=NOON)
        overheard = overhear(fleet)
        first = await fleet.run()
        second = await fleet.run()

    told = overheard.bodies[-1]["messages"][1]["content"]
    (counted,) = map(int, re.findall(r"\((\d+) older runs", told))
    assert (first.failed, second.failed, first.run_id) == (None, None, 10_001)
    assert max(overheard.tokens) <= TARGET_TOKENS
    assert counted + told.count("\n#") == 10_000 + (not first.summary["no_op"])


# --- what is written by hand ------------------------------------------------------------------------------------------


async def test_a_conversation_of_38_000_tokens_that_is_found_in_the_tables_just_works(database_url: str) -> None:
    """The size at which the system before this one collapsed, its compaction silent."""
    async with installation(database_url, scenario=IDLE) as fleet:
        write_history(fleet.database, runs=38, until=NOON, summary="One thousand of these are many tokens. " * 26)
        overheard = overhear(fleet)
        report = await fleet.run()
        history = [as_past_run(row) for row in fleet.runs()[:38]]

    assert told_in_full(history) > 38_000
    assert (report.failed, report.summary["exit_reason"]) == (None, "finished")
    assert max(overheard.tokens) <= TARGET_TOKENS


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session_state SET notes = repeat('a note that nobody cut short ', 5000)",
        "UPDATE run SET summary = repeat('界', 50000)",
        "UPDATE message SET content = repeat('words of a person ', 5000) WHERE kind = 'human'",
        "UPDATE run SET reason = repeat('because ', 20000)",
    ],
)
async def test_what_no_code_of_ours_would_write_does_not_make_a_run_impossible(
    database_url: str, statement: str
) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        write_history(fleet.database, runs=20, until=NOON)
        overheard = overhear(fleet)
        with fleet.database.transaction() as tx:
            tx.connection().exec_driver_sql(statement)
        report = await fleet.run()

    assert report.failed is None
    assert max(overheard.tokens) <= TARGET_TOKENS


# --- what prompts leave alone -----------------------------------------------------------------------------------------


async def test_runs_that_changed_nothing_leave_the_prompt_as_it_is_to_the_byte(database_url: str) -> None:
    """However many they are; the control is one run that did something."""
    async with installation(database_url, scenario=IDLE) as fleet:
        write_history(fleet.database, runs=20, until=NOON)

        def beginning() -> str:
            with fleet.database.transaction() as tx:
                found = reading.standing(tx, "main", epoch=0, now=NOON)
            made = compose(standing=found, steps=opening(), count_tokens=by_bytes)
            return json.dumps(made.messages)

        before = beginning()
        for _ in range(5):
            report = await fleet.heartbeat()
            assert report.summary["no_op"]
        after_no_ops = beginning()
        fleet.say("Is anybody there?")
        await fleet.run()

        assert after_no_ops == before
        assert beginning() != before


async def test_of_an_older_run_only_its_conclusion_is_shown_and_its_log_stays_as_it_was(fleet: Installation) -> None:
    """Tool outputs are in the log for people; a prompt that carries them grows with every run."""
    await fleet.heartbeat()
    before = log_of(fleet)
    overheard = overhear(fleet)
    await fleet.run()
    outputs = [content for role, content in before if role == "tool" and "\n" in content]

    assert outputs, "the first run searched for offers"
    assert all(output not in json.dumps(overheard.bodies[0]["messages"]) for output in map(first_row, outputs))
    assert "Rented 1x" in json.dumps(overheard.bodies[0]["messages"])
    assert log_of(fleet)[: len(before)] == before


def first_row(output: str) -> str:
    return output.splitlines()[-1]


def log_of(fleet: Installation) -> list[tuple[str, str]]:
    with fleet.database.transaction() as tx:
        rows = tx.connection().exec_driver_sql("SELECT role, content FROM message ORDER BY seq")
        return [(row.role, row.content) for row in rows]
