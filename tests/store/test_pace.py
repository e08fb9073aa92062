"""One pace for all processes: gaps, holds and the budget of a day are remembered in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from fleet_agent.clients.pace import MemoryTurns, Turns
from fleet_agent.domain.pace import Limit
from fleet_agent.errors import DatabaseUnreachable
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.installation import found_installation
from fleet_agent.store.pace import PostgresTurns
from tests.store.rig import NOON

KEY = "made-up-vast-key-0123456789abcdef"
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)
EVERY_HOUR = Limit(HOUR)
TWO_A_DAY = Limit(timedelta(0), per_day=2)


@pytest.fixture
def other_process(database_url: str, database: Database) -> Generator[Database]:
    """The same database on connections of its own."""
    opened = open_database(database_url)
    yield opened
    opened.close()


async def take(turns: Turns, limit: Limit, endpoint: str = "search") -> int:
    """Take a turn, however far away; how far in whole hours."""
    return round(await turns.take(endpoint, limit, WEEK) / HOUR)


def let_pass(database: Database, *, business: timedelta = timedelta(0), real: timedelta = timedelta(0)) -> None:
    """Move the line that business time follows, as if so much had passed."""
    with database.transaction() as tx:
        moved = "clock_origin = clock_origin + :business, clock_started_at = clock_started_at - :real"
        tx.execute(text(f"UPDATE installation SET {moved}"), {"business": business, "real": real})


async def test_two_processes_that_ask_at_once_never_get_the_same_turn(database: Database, other_process: Database):
    one, two = PostgresTurns(database, KEY), PostgresTurns(other_process, KEY)

    waits = await asyncio.gather(*(take(turns, EVERY_HOUR) for _ in range(5) for turns in (one, two)))

    assert sorted(waits) == list(range(10))


async def test_control_two_processes_that_remember_for_themselves_get_every_turn_twice():
    one, two = MemoryTurns(lambda: NOON), MemoryTurns(lambda: NOON)

    waits = [await take(turns, EVERY_HOUR) for _ in range(5) for turns in (one, two)]

    assert sorted(waits) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_two_processes_share_the_budget_of_a_day(database: Database, other_process: Database):
    one, two = PostgresTurns(database, KEY), PostgresTurns(other_process, KEY)

    assert [await take(turns, TWO_A_DAY) for turns in (one, two, one)] == [0, 0, 24]


async def test_control_two_budgets_in_memory_allow_twice_as_much():
    one, two = MemoryTurns(lambda: NOON), MemoryTurns(lambda: NOON)

    assert [await take(turns, TWO_A_DAY) for turns in (one, two, one, two)] == [0, 0, 0, 0]


async def test_what_a_run_used_of_the_budget_is_still_used_in_the_next(database: Database, other_process: Database):
    for _ in range(2):
        await take(PostgresTurns(database, KEY), TWO_A_DAY)
    let_pass(database, business=20 * HOUR)

    assert await take(PostgresTurns(other_process, KEY), TWO_A_DAY) == 4


async def test_a_pause_that_the_provider_asked_one_process_for_holds_for_the_other(
    database: Database, other_process: Database
):
    await PostgresTurns(database, KEY).hold("search", 3 * HOUR)

    other = PostgresTurns(other_process, KEY)
    assert await take(other, EVERY_HOUR, "list") == 0
    assert await take(other, EVERY_HOUR, "search") == 3


async def test_a_turn_beyond_the_patience_is_not_taken(database: Database):
    turns = PostgresTurns(database, KEY)
    await take(turns, EVERY_HOUR)

    for _ in range(3):
        assert round(await turns.take("search", EVERY_HOUR, timedelta(seconds=15)) / HOUR) == 1


async def test_another_account_has_turns_of_its_own(database: Database):
    await take(PostgresTurns(database, KEY), EVERY_HOUR)

    assert await take(PostgresTurns(database, "another-made-up-key"), EVERY_HOUR) == 0


async def test_the_key_of_the_account_is_not_kept(database: Database):
    await take(PostgresTurns(database, KEY), EVERY_HOUR)

    with database.transaction() as tx:
        kept = str(tx.execute(text("SELECT * FROM account_pace")).all())
    assert "search" in kept
    assert KEY not in kept


async def test_gaps_are_in_the_time_that_a_simulated_provider_lives_in(database_url: str):
    database = open_database(database_url)
    found_installation(database, origin=NOON, speed=60)
    turns = PostgresTurns(database, KEY)
    await take(turns, Limit(10 * HOUR))

    let_pass(database, real=timedelta(minutes=5))

    assert await take(turns, Limit(10 * HOUR)) == 5
    database.close()


async def test_a_database_that_does_not_answer_is_told_as_such():
    nothing_listens_here = Database(create_engine("postgresql+psycopg://fleet@127.0.0.1:1/fleet"))

    with pytest.raises(DatabaseUnreachable):
        await take(PostgresTurns(nothing_listens_here, KEY), EVERY_HOUR)


async def test_a_turn_of_a_time_to_come_holds_nothing_up(database: Database):
    """The clock was set back. Control: the pause that was asked for before it was set forth still holds."""
    turns = PostgresTurns(database, KEY)
    await turns.hold("list", 3 * HOUR)
    let_pass(database, business=2 * HOUR)
    await take(turns, EVERY_HOUR)
    let_pass(database, business=-2 * HOUR)

    assert await take(turns, EVERY_HOUR) == 0
    assert await take(turns, EVERY_HOUR) == 1
    assert await take(turns, EVERY_HOUR, "list") == 3
