"""The newest complete look at an account, for every process on one database."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from fleet_agent.domain.fleet import Inventory
from fleet_agent.errors import DatabaseUnreachable
from fleet_agent.store.account_looks import PostgresLooks
from fleet_agent.store.database import Database, open_database
from tests.store.rig import NOON, instance

KEY = "made-up-vast-key-0123456789abcdef"
SECOND = timedelta(seconds=1)


@pytest.fixture
def other_process(database_url: str, database: Database) -> Generator[Database]:
    """The same database on connections of its own."""
    opened = open_database(database_url)
    yield opened
    opened.close()


def look(*numbers: int, later: timedelta = timedelta(0)) -> Inventory:
    return Inventory(instances=tuple(instance(id=number) for number in numbers), seen_at=NOON + later)


async def test_what_one_process_saw_another_one_finds_to_the_last_digit(
    database: Database, other_process: Database
) -> None:
    await PostgresLooks(database, KEY).keep(look(101, 102))

    assert await PostgresLooks(other_process, KEY).newest() == look(101, 102)


async def test_where_nobody_has_looked_there_is_none(database: Database) -> None:
    await PostgresLooks(database, "another-made-up-key").keep(look(101))

    assert await PostgresLooks(database, KEY).newest() is None


async def test_a_look_that_took_longer_does_not_take_the_place_of_a_newer_one(database: Database) -> None:
    """Control: a newer one does."""
    looks = PostgresLooks(database, KEY)
    await looks.keep(look(101, later=SECOND))
    await looks.keep(look(102))
    kept = await looks.newest()
    await looks.keep(look(103, later=2 * SECOND))

    assert kept == look(101, later=SECOND)
    assert await looks.newest() == look(103, later=2 * SECOND)


async def test_what_another_version_kept_is_not_read(database: Database) -> None:
    looks = PostgresLooks(database, KEY)
    await looks.keep(look(101))
    with database.transaction() as tx:
        tx.execute(text("UPDATE account_look SET inventory = inventory - 'instances'"))

    assert await looks.newest() is None


async def test_the_key_itself_is_not_kept(database: Database) -> None:
    await PostgresLooks(database, KEY).keep(look(101))
    with database.transaction() as tx:
        kept = str(tx.execute(text("SELECT * FROM account_look")).all())

    assert KEY not in kept


async def test_without_a_database_it_says_so() -> None:
    nothing_listens_here = Database(create_engine("postgresql+psycopg://x@127.0.0.1:9/x"))
    with pytest.raises(DatabaseUnreachable):
        await PostgresLooks(nothing_listens_here, KEY).newest()
