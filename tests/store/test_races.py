"""What happens at the same moment: real transactions beside each other, held open until the other one waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from fleet_agent.domain.box_reports import BoxReport, stage_after
from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.run import Claimed, Closed
from fleet_agent.domain.triggers import Kind
from fleet_agent.errors import DatabaseUnreachable, RunSuperseded
from fleet_agent.store import reports
from fleet_agent.store.database import Database
from fleet_agent.store.inbox import Post, post, post_all
from fleet_agent.store.tables import Box
from tests.store.rig import NOON, Fleet


def how_many_wait(database: Database) -> int:
    """Transactions of this database that wait for a lock that another one holds."""
    with database.transaction() as tx:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return tx.execute(text(waiting)).scalar_one()


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

    def waits(self, *, behind: int = 0) -> bool:
        """True once it waits for a lock beside `behind` others that do already, False when it got through without."""
        while self._thread.is_alive():
            if how_many_wait(self._database) > behind:
                return True
        return False

    def result(self) -> Any:
        """What the work returned, or raised."""
        self._thread.join()
        return self._result


def alert(occurrence_id: str) -> Post:
    return Post(kind=Kind.ALERT_FIRING, source="test", occurrence_id=occurrence_id)


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


def says(fleet: Fleet, key: str, **words: Any) -> None:
    """What the door does with what a box says."""
    with fleet.database.shared(fleet.name) as tx:
        reports.record(tx, reports.Speaker(fleet.name, key), BoxReport(**words), now=fleet.clock.now())


def says_without_holding_its_row(fleet: Fleet, key: str, **words: Any) -> None:
    with fleet.database.shared(fleet.name) as tx:
        row = tx.get_one(Box, key)
        row.stage = stage_after(Stage(row.stage), words["stage"], spoke_before=row.reported_at is not None).value


@pytest.mark.parametrize(("saying", "stage"), [(says, "proving"), (says_without_holding_its_row, "registered")])
async def test_two_words_of_one_box_do_not_cross(ready: Fleet, saying: Callable[..., None], stage: str) -> None:
    """The older one comes through later, and does not bring the box back. Control: who does not hold its row."""
    key = await ready.rented(await ready.open())
    with ready.database.shared(ready.name) as tx:
        newer = reports.Speaker(ready.name, key)
        reports.record(tx, newer, BoxReport(stage="proving"), now=ready.clock.now())
        tx.flush()
        older = Beside(ready.database, lambda: saying(ready, key, stage="registered"))
        assert older.waits()

    assert older.result() is None
    assert ready.box(key)["stage"] == stage


async def test_two_boxes_of_one_machine_that_measure_at_once_are_both_heard(ready: Fleet) -> None:
    """A machine of which nothing is known yet; the better of them is kept, whoever comes through first."""
    run = await ready.open()
    one, other = await ready.rented(run), await ready.rented(run, vast_id=102, offer_id=2, step=2)
    with ready.database.shared(ready.name) as tx:
        speaker = reports.Speaker(ready.name, one)
        reports.record(tx, speaker, BoxReport(proofs_per_hour=40), now=ready.clock.now())
        beside = Beside(ready.database, lambda: says(ready, other, proofs_per_hour=30))
        assert beside.waits()

    assert beside.result() is None
    (host,) = ready.rows("host")
    assert host["best_proofs_per_hour"] == 40


@contextmanager
def row_lock(database: Database, strength: str) -> Generator[None]:
    """What the lock of a fleet could have been."""
    with database.transaction() as tx:
        tx.execute(text(f"SELECT fleet FROM session_state FOR {strength}"))
        yield


@pytest.mark.parametrize("lock", ["ours", "of a row"])
def test_a_flood_of_posts_does_not_overtake_a_run_that_waits_to_close(fleet: Fleet, lock: str) -> None:
    """A run waits for the posts under way when it asks, and for none that come later.

    Control: posts that lock the fleet's row in share mode pass beside the run that waits for it, one after the other,
    and it closes when the flood ends.
    """
    fleet.post()
    posting, deciding = {
        "ours": (lambda: fleet.database.shared(fleet.name), lambda: fleet.database.exclusive(fleet.name)),
        "of a row": (lambda: row_lock(fleet.database, "SHARE"), lambda: row_lock(fleet.database, "UPDATE")),
    }[lock]

    def go_through(transaction: Callable[[], AbstractContextManager[object]]) -> None:
        with transaction():
            pass

    with posting():
        closing = Beside(fleet.database, lambda: go_through(deciding))
        assert closing.waits()
        later = Beside(fleet.database, lambda: go_through(posting))
        waited = later.waits(behind=1)

    assert (closing.result(), later.result()) == (None, None)
    assert waited is (lock == "ours")


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


async def test_an_occurrence_that_two_tell_at_once_is_stored_once(fleet: Fleet) -> None:
    """Control: to look first and then to store makes two of it, for neither sees what the other has not committed."""
    fleet.post()
    with fleet.database.shared(fleet.name) as tx:
        first = post(tx, fleet.name, alert("1"), now=fleet.clock.now())
        second = Beside(fleet.database, lambda: fleet.post(Kind.ALERT_FIRING, "looked first", occurrence_id="1"))
        assert second.waits()
    both_have_looked = threading.Barrier(2)

    def naive_post() -> int:
        with fleet.database.shared(fleet.name) as tx:
            seen = tx.execute(text("SELECT count(*) FROM inbox WHERE text = 'naive'")).scalar_one()
            both_have_looked.wait()
            return seen or post(tx, fleet.name, Post(kind=Kind.MESSAGE, source="test", text="naive"), now=NOON)

    naive = [Beside(fleet.database, naive_post) for _ in range(2)]

    assert second.result() == first
    assert len({each.result() for each in naive}) == 2


@pytest.mark.parametrize("in_order", [True, False])
async def test_two_that_post_the_same_events_in_different_orders_do_not_wait_crosswise(
    fleet: Fleet, in_order: bool
) -> None:
    """Control: each in the order in which it was told them, they do, and the database ends one of the two."""
    fleet.post()
    others: list[Beside] = []

    def post_two_then_one() -> None:
        told = [alert("2"), alert("1")]
        with fleet.database.shared(fleet.name) as tx:
            if in_order:
                post_all(tx, fleet.name, told, now=NOON)
            else:
                _ = [post(tx, fleet.name, event, now=NOON) for event in told]

    def post_one_then_two() -> None:
        with fleet.database.shared(fleet.name) as tx:
            post(tx, fleet.name, alert("1"), now=NOON)
            others.append(Beside(fleet.database, post_two_then_one))
            assert others[0].waits()
            post(tx, fleet.name, alert("2"), now=NOON)

    ends = [Beside(fleet.database, post_one_then_two).result(), others[0].result()]

    assert {type(end) for end in ends} == ({type(None)} if in_order else {type(None), DatabaseUnreachable})
    assert len(fleet.rows("inbox")) == 3


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
        while not how_many_wait(fleet.database):  # noqa: ASYNC110 what happens, happens in the database
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
