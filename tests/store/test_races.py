"""What happens at the same moment: real transactions beside each other, held open until the other one waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from fleet_agent.domain.run import Claimed, Closed
from fleet_agent.domain.triggers import Kind
from fleet_agent.errors import RunSuperseded
from fleet_agent.store.database import Database
from fleet_agent.store.inbox import Post, post
from tests.store.rig import Fleet


def somebody_waits(database: Database) -> bool:
    """Does a transaction of this database wait for an advisory lock?"""
    with database.transaction() as tx:
        waiting = (
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE locktype = 'advisory' AND NOT granted AND d.datname = current_database()"
        )
        return tx.execute(text(waiting)).scalar_one() > 0


class Beside:
    """Work in a thread of its own."""

    def __init__(self, database: Database, work: Callable[[], Any]) -> None:
        self._database = database
        self._work = work
        self._result: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._result = error

    def waits(self) -> bool:
        """True once it waits for a lock of the fleet, False when it got through without."""
        while self._thread.is_alive():
            if somebody_waits(self._database):
                return True
        return False

    def result(self) -> Any:
        """What the work returned, or raised."""
        self._thread.join()
        return self._result


def in_transaction(database: Database, kind: str, fleet: str) -> None:
    transaction = {"shared": database.shared, "exclusive": database.exclusive}[kind](fleet)
    with transaction:
        pass


@pytest.mark.parametrize(
    ("held", "asked", "waits"),
    [
        ("shared", "shared", False),
        ("shared", "exclusive", True),
        ("exclusive", "shared", True),
        ("exclusive", "exclusive", True),
    ],
)
def test_posts_run_beside_posts_and_nothing_runs_beside_a_decision(
    database: Database, held: str, asked: str, waits: bool
) -> None:
    holding = {"shared": database.shared, "exclusive": database.exclusive}[held]("main")
    with holding:
        second = Beside(database, lambda: in_transaction(database, asked, "main"))
        waited = second.waits()

    assert second.result() is None
    assert waited is waits


def test_fleets_do_not_wait_for_each_other(database: Database) -> None:
    with database.exclusive("main"):
        second = Beside(database, lambda: in_transaction(database, "exclusive", "other"))
        assert not second.waits()


@pytest.mark.parametrize(("post_with_lock", "end"), [(True, Claimed), (False, Closed)])
async def test_a_run_that_closes_sees_the_post_that_is_being_made_at_that_moment(
    fleet: Fleet, post_with_lock: bool, end: type[Claimed] | type[Closed]
) -> None:
    """Control: a post without the lock falls between the last look and the end of the run."""
    run = await fleet.open()
    posting = fleet.database.shared(fleet.name) if post_with_lock else fleet.database.transaction()
    with posting as tx:
        post(tx, fleet.name, Post(kind=Kind.MESSAGE, source="test", text="wait!"), now=fleet.clock.now())
        closing = Beside(fleet.database, lambda: asyncio.run(fleet.close(run, may_go_on=True)))
        assert closing.waits() is post_with_lock

    assert isinstance(closing.result(), end)


async def test_runs_that_open_at_once_get_numbers_of_their_own_and_one_of_them_the_fence(fleet: Fleet) -> None:
    opening = [Beside(fleet.database, lambda: asyncio.run(fleet.open())) for _ in range(6)]
    runs = [each.result() for each in opening]

    assert sorted(run.run_id for run in runs) == [1, 2, 3, 4, 5, 6]
    assert sorted(fleet.statuses().values()) == ["interrupted"] * 5 + ["open"]
    assert fleet.statuses()[fleet.state()["current_run_id"]] == "open"


async def test_a_counter_that_is_read_and_then_written_gives_one_number_twice(fleet: Fleet) -> None:
    """Control of the test above: the naive way of counting, without the lock."""
    await fleet.run_through()
    both_have_read = threading.Barrier(2)

    def naive_count() -> int:
        with fleet.database.transaction() as tx:
            last = tx.execute(text("SELECT run_counter FROM session_state")).scalar_one()
            both_have_read.wait()
            tx.execute(text("UPDATE session_state SET run_counter = :next"), {"next": last + 1})
            return last + 1

    counted = [Beside(fleet.database, naive_count) for _ in range(2)]

    assert [each.result() for each in counted] == [2, 2]


async def test_a_run_that_asks_while_another_one_opens_finds_the_fence_gone(fleet: Fleet) -> None:
    stale = await fleet.open()
    with fleet.database.exclusive(fleet.name) as tx:
        asking = Beside(fleet.database, lambda: asyncio.run(fleet.journal.collect(stale, turn=1)))
        assert asking.waits()
        tx.execute(text("UPDATE run SET status = 'interrupted'"))
        tx.execute(text("UPDATE session_state SET current_run_id = NULL"))

    assert isinstance(asking.result(), RunSuperseded)


async def test_a_cancelled_call_is_over_before_its_caller_goes_on(fleet: Fleet) -> None:
    """Control: a bare hop to a thread lets its caller go on while the transaction is still under way."""

    async def gives_up_at_once(call: asyncio.Task[Any]) -> bool:
        while not somebody_waits(fleet.database):  # noqa: ASYNC110 what happens, happens in the database
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        return call.done()

    with fleet.database.exclusive(fleet.name):
        bare = asyncio.create_task(asyncio.to_thread(in_transaction, fleet.database, "exclusive", fleet.name))
        assert await gives_up_at_once(bare)
    with fleet.database.exclusive(fleet.name):
        ours = asyncio.create_task(fleet.ask_for_run())
        assert not await gives_up_at_once(ours)

    with pytest.raises(asyncio.CancelledError):
        await ours
    assert fleet.statuses() == {1: "open"}
