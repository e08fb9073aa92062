"""A call to the database ends or is given up, and its caller goes on only then."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from fleet_agent.errors import DatabaseUnreachable
from fleet_agent.store.journal import PostgresJournal
from tests.store.rig import Fleet
from tests.store.test_races import how_many_wait

SOON = timedelta(milliseconds=50)


@contextmanager
def stopped(fleet: Fleet) -> Generator[None]:
    """The server process behind the fleet's one pooled connection neither answers nor closes."""
    with fleet.database.transaction() as tx:
        backend = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
    os.kill(backend, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(backend, signal.SIGCONT)
        for left in threading.enumerate():
            if left.name == "transaction":
                left.join()


async def test_a_database_that_stopped_answering_is_given_up(fleet: Fleet) -> None:
    run = await fleet.open()
    impatient = PostgresJournal(fleet.database, fleet.clock, fleet.name, longest_call=SOON)
    with stopped(fleet), pytest.raises(DatabaseUnreachable, match=r"did not answer within 0\.05 s"):
        await impatient.boxes(run)

    assert await fleet.journal.boxes(run) == ()


async def test_without_the_bound_a_caller_waits_for_as_long_as_the_server_is_stopped(fleet: Fleet) -> None:
    """Control of the test above."""
    run = await fleet.open()
    with stopped(fleet):
        unbounded = asyncio.create_task(fleet.journal.boxes(run))
        await asyncio.wait([unbounded], timeout=2 * SOON.total_seconds())
        assert not unbounded.done()
    assert await unbounded == ()


async def test_a_caller_that_is_cancelled_waits_no_longer_than_the_bound(fleet: Fleet) -> None:
    run = await fleet.open()
    impatient = PostgresJournal(fleet.database, fleet.clock, fleet.name, longest_call=SOON)
    with stopped(fleet):
        call = asyncio.create_task(impatient.boxes(run))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_caller_that_is_cancelled_again_waits_all_the_same(fleet: Fleet) -> None:
    """Control in `test_races`: a bare hop to a thread lets its caller go on while the transaction is under way."""
    with fleet.database.exclusive(fleet.name):
        call = asyncio.create_task(fleet.ask_for_run())
        while not how_many_wait(fleet.database):  # noqa: ASYNC110 what happens, happens in the database
            await asyncio.sleep(0)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
        assert not call.done()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert fleet.statuses() == {1: "open"}
