"""However long a fleet has run, no statement of a run reads a whole table.

PostgreSQL itself says how it would carry out each statement that a run sends, on a history that was written into the
tables. A scan of a table that grows with the years would make each run slower than the one before it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.event import listen, remove

from fleet_agent.store.database import Database
from tests.history import write_history
from tests.world import NOON, Installation, installation

GROWING = {"run", "message", "inbox", "action", "wake", "request", "audit", "notice"}

Statement = tuple[str, Mapping[str, Any]]


@contextmanager
def overheard() -> Generator[list[Statement]]:
    """Every statement that is sent meanwhile, with its values."""
    sent: list[Statement] = []

    def hear(_: Any, __: Any, statement: str, values: Any, ___: Any, several: bool) -> None:
        if not several and statement.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT"):
            sent.append((statement, values))

    listen(Engine, "before_cursor_execute", hear)
    try:
        yield sent
    finally:
        remove(Engine, "before_cursor_execute", hear)


def read_whole(database: Database, statement: Statement) -> set[str]:
    """The tables of which every row is read to carry it out."""
    with database.transaction() as tx:
        sql, values = statement
        plan = tx.connection().exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", values).scalar_one()
    return {node["Relation Name"] for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"}


def nodes(plan: dict[str, Any]) -> Generator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def a_day(fleet: Installation) -> None:
    """Runs that rent, are told things, look again, and find nothing to do."""
    fleet.say("How are we doing?")
    await fleet.run()
    await fleet.heartbeat()
    fleet.status()


@pytest.mark.parametrize("runs", [6_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
async def test_no_statement_of_a_run_reads_the_whole_history(database_url: str, runs: int) -> None:
    async with installation(database_url) as fleet:
        write_history(fleet.database, runs=runs, until=NOON, every=5)
        await fleet.run()  # the first prompt of a history that nobody has compacted counts it once
        with overheard() as sent:
            await a_day(fleet)
        plans = {sql: read_whole(fleet.database, (sql, values)) & GROWING for sql, values in sent}

    assert len(plans) > 40
    assert {sql: tables for sql, tables in plans.items() if tables} == {}


async def test_control_without_its_index_the_log_of_a_run_is_looked_for_in_all_messages(database_url: str) -> None:
    async with installation(database_url) as fleet:
        write_history(fleet.database, runs=2_000, until=NOON)
        await fleet.run()
        with fleet.database.transaction() as tx:
            tx.execute(text("DROP INDEX message_of_a_person"))
        with overheard() as sent:
            await a_day(fleet)

        assert any("message" in read_whole(fleet.database, statement) for statement in sent)
