"""What is known of models is one memory for all processes, and what a person must hear is committed with the lesson."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from fleet_agent.domain.model_server import FAILURES_IN_A_ROW, PAUSE, Asked, Lesson, ModelName, ModelState
from fleet_agent.errors import DatabaseUnreachable, KeyRefused, ModelUnreachable
from fleet_agent.store import reading
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.model_servers import PostgresModelMemory
from tests.store.rig import NOON, Fleet, HandClock

FIRST = ModelName("http://model.test/v1", "wise-one")
SECOND = ModelName("http://model.test/v1", "quick-one")
DOWN = ModelUnreachable("the model server cannot be reached")


@pytest.fixture
def memory(database: Database) -> PostgresModelMemory:
    return PostgresModelMemory(database, HandClock(), "main")


@pytest.fixture
def other_process(database_url: str, database: Database) -> Generator[PostgresModelMemory]:
    """The same database on connections of its own, for another fleet."""
    opened = open_database(database_url)
    yield PostgresModelMemory(opened, HandClock(), "other")
    opened.close()


def failing(known: ModelState, now: datetime) -> ModelState:
    return known.failed(DOWN, now)


def reporting(tokens: int, *, of: int = 10_000, at_least: int = 3_000) -> Lesson:
    asked = Asked(estimate=of, at_least=at_least, at_most=10**6, reported=tokens, called_a_tool=True)
    return lambda known, now: known.answered(asked, now)


def rows(database: Database, table: str) -> list[dict[str, Any]]:
    with database.transaction() as tx:
        return [dict(row) for row in tx.execute(text(f"SELECT * FROM {table}")).mappings()]


def models_in_status(database: Database) -> list[dict[str, Any]]:
    with database.transaction() as tx:
        return reading.status(tx, "main", now=NOON)["models"]


# --- one memory -------------------------------------------------------------------------------------------------------


async def test_a_model_that_nobody_has_asked_is_taken_for_well(memory: PostgresModelMemory):
    assert (await memory.recall([FIRST, SECOND])).states == (ModelState(), ModelState())


async def test_what_one_process_learnt_another_recalls(memory: PostgresModelMemory, other_process: PostgresModelMemory):
    learnt = await memory.learn(FIRST, reporting(12_000))

    known, untouched = (await other_process.recall([FIRST, SECOND])).states
    assert known == learnt
    assert known.factor == pytest.approx(1.224)
    assert untouched == ModelState()


async def test_no_lesson_of_processes_that_learn_at_once_is_lost(
    memory: PostgresModelMemory, other_process: PostgresModelMemory
):
    await asyncio.gather(*(each.learn(FIRST, failing) for _ in range(5) for each in (memory, other_process)))

    [known] = (await memory.recall([FIRST])).states
    assert known.failures == 10


async def test_control_reading_and_then_writing_loses_lessons(memory: PostgresModelMemory):
    """What `learn` does in one transaction, done in two."""
    [before] = (await memory.recall([FIRST])).states
    for _ in range(2):
        await memory.learn(FIRST, lambda _, now: failing(before, now))

    [known] = (await memory.recall([FIRST])).states
    assert known.failures == 1


async def test_everything_that_is_known_survives_the_way_through_the_table(memory: PostgresModelMemory):
    """The helper sets every field; else one that the table forgot would not be noticed."""
    whole = ModelState(
        ratios=(0.9, 1.25),
        refused_ratio=1.5,
        truncates_since=NOON,
        exceeded_at=NOON + timedelta(seconds=1),
        answered_at=NOON + timedelta(seconds=2),
        failures=4,
        failing_since=NOON + timedelta(seconds=3),
        trouble="down",
        needs_a_person=True,
        asked_again_at=NOON + timedelta(seconds=4),
        tested_at=NOON + timedelta(seconds=5),
        test="well",
        test_passed=True,
    )
    assert [name for name in ModelState.model_fields if getattr(whole, name) == getattr(ModelState(), name)] == []

    await memory.learn(FIRST, lambda _, __: whole)

    assert (await memory.recall([FIRST])).states == (whole,)


async def test_pauses_run_in_real_time_whatever_speed_business_has(memory: PostgresModelMemory, database: Database):
    with database.transaction() as tx:
        tx.execute(text("UPDATE installation SET clock_speed = 600"))
    for _ in range(3):
        await memory.learn(FIRST, failing)

    now, [known] = await memory.recall([FIRST])
    assert known.left_alone(now + PAUSE * 0.9)
    assert not known.left_alone(now + PAUSE)


async def test_a_database_that_does_not_answer_is_told_as_such():
    nothing_listens_here = Database(create_engine("postgresql+psycopg://fleet@127.0.0.1:1/fleet"))

    with pytest.raises(DatabaseUnreachable):
        await PostgresModelMemory(nothing_listens_here, HandClock(), "main").recall([FIRST])


# --- what a person sees -----------------------------------------------------------------------------------------------


async def test_status_shows_the_models_in_the_order_in_which_they_are_asked(
    memory: PostgresModelMemory, database: Database
):
    await memory.recall([FIRST, SECOND])
    await memory.learn(SECOND, lambda known, now: known.tested("it calls no tool", now, passed=False))

    shown = models_in_status(database)
    assert [(row["model"], row["test_passed"], row["factor"]) for row in shown] == [
        ("wise-one", None, 1.0),
        ("quick-one", False, 1.0),
    ]
    await memory.recall([SECOND, FIRST])
    assert [row["model"] for row in models_in_status(database)] == ["quick-one", "wise-one"]


async def test_status_calls_left_alone_only_a_model_in_whose_place_another_is_asked(
    memory: PostgresModelMemory, database: Database
):
    """Where none is well all are asked, and a person who reads that all are left alone would wait for nothing."""

    async def left_alone_after_failures_of(model: ModelName) -> list[bool]:
        for _ in range(FAILURES_IN_A_ROW):
            await memory.learn(model, failing)
        return [row["left_alone"] for row in models_in_status(database)]

    await memory.recall([FIRST, SECOND])
    assert await left_alone_after_failures_of(FIRST) == [True, False]
    assert await left_alone_after_failures_of(SECOND) == [False, False]


async def test_a_model_that_is_on_the_list_no_more_is_remembered_and_not_shown(
    memory: PostgresModelMemory, database: Database
):
    await memory.recall([FIRST, SECOND])
    await memory.learn(SECOND, reporting(12_000))

    await memory.recall([FIRST])
    assert [row["model"] for row in models_in_status(database)] == ["wise-one"]
    [back] = (await memory.recall([SECOND])).states
    assert back.factor > 1


async def test_recalling_the_same_list_again_writes_nothing(memory: PostgresModelMemory, database: Database):
    await memory.recall([FIRST, SECOND])
    versions = rows(database, "(SELECT xmin::text FROM model_server) AS row")
    await memory.recall([FIRST, SECOND])

    assert rows(database, "(SELECT xmin::text FROM model_server) AS row") == versions


# --- what a person is told --------------------------------------------------------------------------------------------


async def test_a_server_that_cuts_prompts_is_told_once_while_it_goes_on(
    memory: PostgresModelMemory, database: Database
):
    for _ in range(3):
        await memory.learn(FIRST, reporting(4_096, of=27_000, at_least=8_000))

    [notice] = rows(database, "notice")
    assert notice["fleet"] == "main"
    assert notice["text"].startswith("The server cuts our prompts: wise-one at http://model.test/v1")
    assert notice["at"] == NOON


async def test_each_fleet_is_told_by_the_run_that_found_it(
    memory: PostgresModelMemory, other_process: PostgresModelMemory, database: Database
):
    await other_process.learn(FIRST, lambda known, now: known.failed(KeyRefused("refused", "check it"), now))
    await memory.learn(FIRST, lambda known, now: known.failed(KeyRefused("refused", "check it"), now))

    assert [(row["fleet"], row["text"]) for row in rows(database, "notice")] == [("other", "refused → check it")]


async def test_a_fleet_that_has_never_run_can_be_told(fleet: Fleet, database: Database):
    assert rows(database, "session_state") == []

    memory = PostgresModelMemory(database, fleet.clock, "brand-new")
    await memory.learn(FIRST, lambda known, now: known.tested("it calls no tool", now, passed=False))

    assert [row["fleet"] for row in rows(database, "notice")] == ["brand-new"]
