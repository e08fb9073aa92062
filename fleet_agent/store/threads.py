"""How a transaction runs beside an event loop: in a thread of its own, waited for to its end, within a bound.

Two promises pull at each other. A transaction that was begun is committed or rolled back before its caller goes on,
even one that is cancelled, so that nobody acts beside a commit under way. And no caller waits for ever: the server's
own deadlines end a slow statement, but a server that stopped answering keeps none. Then the thread is left to itself.
It is a daemon and none of the loop's own, which a process would wait for at its exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import timedelta
from threading import Thread
from typing import Final, TypeVar

from sqlalchemy.orm import Session

from fleet_agent.errors import DatabaseUnreachable

Answer = TypeVar("Answer")

LONGEST_CALL: Final = timedelta(seconds=10)
"""Real time. Connecting, waiting for a lock and one slow statement may each reach their own deadline within it."""


async def in_thread(
    transaction: AbstractContextManager[Session],
    work: Callable[[Session], Answer],
    *,
    within: timedelta = LONGEST_CALL,
) -> Answer:
    """Run `work` in the transaction. Raises DatabaseUnreachable once the bound is over: it may still be committed."""

    def transact() -> Answer:
        with transaction as tx:
            return work(tx)

    under_way = asyncio.wrap_future(_started(transact))
    under_way.add_done_callback(_take_notice)
    cancelled = await _ended_or_left(under_way, within)
    if not under_way.done():
        under_way.cancel()  # the thread goes on, but nobody hears of it any more
        cancelled = cancelled or DatabaseUnreachable(
            f"the database did not answer within {within.total_seconds():g} s",
            "the next run tries again; if it lasts, look whether its server is stopped or overloaded",
        )
    if cancelled is not None:
        raise cancelled
    return under_way.result()


def _started(work: Callable[[], Answer]) -> Future[Answer]:
    promise: Future[Answer] = Future()
    promise.set_running_or_notify_cancel()

    def keep() -> None:
        try:
            promise.set_result(work())
        except BaseException as error:
            promise.set_exception(error)

    Thread(target=keep, name="transaction", daemon=True).start()
    return promise


async def _ended_or_left(under_way: asyncio.Future[Answer], within: timedelta) -> BaseException | None:
    """Wait for the end or the bound, however often the caller is cancelled meanwhile; the last cancellation, if any."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within.total_seconds()
    cancelled: BaseException | None = None
    while not under_way.done() and loop.time() < until:
        try:
            await asyncio.wait([under_way], timeout=until - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _take_notice(ended: asyncio.Future[Answer]) -> None:
    """An error that comes when its caller was cancelled is nobody's; asyncio would complain that nobody read it."""
    if not ended.cancelled():
        ended.exception()
