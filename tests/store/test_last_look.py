"""Between a run's last look and its end: every order in which a post and a closing run can meet.

Two real transactions of three moves each, in all twenty orders. Posting: take the lock, store, commit. Closing: take
the lock, look and write, commit. A move that has to wait for the other's lock waits, and the other goes on. Whatever
the order, one of two things must be true in the end: the run has claimed the event and goes on, or the event became
visible after the run had ended, and whoever then rings finds no run in whose hands it could seem to be.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import permutations
from typing import Any

import pytest
from sqlalchemy.orm import Session

from fleet_agent.domain.run import Claimed, Run
from fleet_agent.domain.triggers import Kind
from fleet_agent.store import runs
from fleet_agent.store.inbox import Post, post
from tests.store.rig import Fleet
from tests.store.test_races import how_many_wait

Transaction = AbstractContextManager[Session]
Move = Callable[[], object]

ORDERS = sorted({"".join(order) for order in permutations("ppprrr")})
"""p: the post makes its next move; r: the run does."""


class Party:
    """Makes its moves one at a time, in a thread of its own, when it is told to."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves: queue.SimpleQueue[Move | None] = queue.SimpleQueue()
        self._left = list(moves)
        self._busy = 0
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def next(self) -> None:
        self._busy += 1
        self._moves.put(self._left.pop(0))

    def is_busy(self) -> bool:
        return self._busy > 0

    def end(self) -> None:
        self._moves.put(None)
        self._thread.join()

    def _go(self) -> None:
        while (move := self._moves.get()) is not None:
            move()
            self._busy -= 1


class Meeting:
    """One post and one closing run, and in which order they committed."""

    def __init__(self, fleet: Fleet, run: Run, transaction_of_post: Transaction) -> None:
        self.fleet = fleet
        self.end: Any = None
        self.committed: list[str] = []
        self._closing = fleet.closing()  # a look of its own, made before the run decides
        self._run = run
        self._posting = transaction_of_post
        self._deciding = fleet.database.exclusive(fleet.name)
        self._open: dict[str, tuple[ExitStack, Session]] = {}

    def held_in(self, order: str) -> None:
        posting = Party([lambda: self._begin("post", self._posting), self._store, lambda: self._commit("post")])
        running = Party([lambda: self._begin("run", self._deciding), self._decide, lambda: self._commit("run")])
        for party in order:
            moving = posting if party == "p" else running
            moving.next()
            while moving.is_busy() and not how_many_wait(self.fleet.database):
                pass
        posting.end()
        running.end()

    def _begin(self, who: str, transaction: Transaction) -> None:
        stack = ExitStack()
        self._open[who] = (stack, stack.enter_context(transaction))

    def _store(self) -> None:
        event = Post(kind=Kind.MESSAGE, source="test", text="now or never")
        post(self._open["post"][1], self.fleet.name, event, now=self.fleet.clock.now())

    def _decide(self) -> None:
        now = self.fleet.clock.now()
        self.end = runs.close_or_go_on(self._open["run"][1], self._run, self._closing, may_go_on=True, now=now)

    def _commit(self, who: str) -> None:
        # In this order: when the one that waits for our lock gets on, this list says already who was first.
        self.committed.append(who)
        self._open[who][0].close()


async def overlooked(fleet: Fleet, order: str, posting: Callable[[], Transaction]) -> bool:
    """Whether the event fell between the run's last look and its end: it was there before the run ended, unseen."""
    meeting = Meeting(fleet, await fleet.open(), posting())
    meeting.held_in(order)
    event = fleet.rows("inbox")[-1]
    if isinstance(meeting.end, Claimed):
        assert event["claimed_by_run"] is not None
        return False
    assert event["claimed_by_run"] is None
    return meeting.committed == ["post", "run"]


@pytest.mark.parametrize("order", ORDERS)
async def test_no_event_falls_between_the_last_look_and_the_end(fleet: Fleet, order: str) -> None:
    fleet.post()  # so that the fleet is known
    await fleet.run_through()

    assert not await overlooked(fleet, order, lambda: fleet.database.shared(fleet.name))


async def test_without_the_lock_of_a_post_some_would(fleet: Fleet) -> None:
    """The control."""
    fleet.post()
    await fleet.run_through()
    fell_between: list[str] = []
    for order in ORDERS:
        if await overlooked(fleet, order, fleet.database.transaction):
            fell_between.append(order)
        await fleet.run_through()

    # Wherever it is stored: what is committed after the look and before the end is overlooked.
    assert fell_between == [order for order in ORDERS if order.endswith("pr")]
