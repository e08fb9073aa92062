"""How long a run waits to open or to close while a flood of posts comes in: a thousand a second for five seconds.

    make bench-flood

Posters in processes of their own store one event a transaction, by the statements of `inbox.post` without its Python,
for which a small machine would need all its cores; beside them runs are opened and closed one after the other. `beside`
has the same with the lock that a fleet's row could have been: then a run waits as long as posts overlap, and gives up
at the lock's deadline. How surely it does depends on the machine; that it may is shown without chance in
`tests/store/test_races.py`. The last line is one JSON object, of seconds.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from fleet_agent.errors import DatabaseUnreachable
from fleet_agent.store import migrate
from fleet_agent.store.database import LOCK_TIMEOUT, Database, connect
from fleet_agent.store.embedded import ensure_running
from fleet_agent.store.installation import found_installation
from tests.postgres import plain
from tests.store.rig import Fleet

POSTERS = 16
POSTS_PER_SECOND = 1_000
FLOOD_SECONDS = 5.0


LOCKS = {
    "ours": "SELECT pg_advisory_xact_lock_shared(1718379877, hashtext('main'))",
    "of a row": "SELECT fleet FROM session_state WHERE fleet = 'main' FOR SHARE",
}
"""What a post takes; the first is what `Database.shared` takes."""

STORE = """
    INSERT INTO inbox (fleet, source, kind, priority, count, occurred_at, received_at, text, payload, attempts,
        rings, tainted)
    VALUES ('main', 'flood', 'webhook', 1, 1, now(), now(), %s, '{}', 0, 0, false)
"""


class RowLocked(Database):
    """The control: what a run decides waits for the fleet's row."""

    @contextmanager
    def exclusive(self, fleet: str) -> Generator[Session]:
        with self.transaction() as tx:
            tx.execute(text("SELECT fleet FROM session_state WHERE fleet = :fleet FOR UPDATE"), {"fleet": fleet})
            yield tx


def flood(url: str, lock: str, posted: multiprocessing.Queue[int]) -> None:
    """One poster: its share of the posts, each at its time, or late where the machine cannot keep up."""
    gap = POSTERS / POSTS_PER_SECOND
    with psycopg.connect(plain(url)) as connection:
        began, count = time.monotonic(), 0
        while (now := time.monotonic()) < began + FLOOD_SECONDS:
            time.sleep(max(0.0, began + count * gap - now))
            connection.execute(LOCKS[lock])
            connection.execute(STORE, [f"post {count}"])
            connection.execute("SELECT pg_notify('fleet_agent', 'main')")
            connection.commit()
            count += 1
    posted.put(count)


def measure(url: str, lock: str) -> dict[str, Any]:
    database = {"ours": Database, "of a row": RowLocked}[lock](connect(url))
    found_installation(database)
    fleet = Fleet(database)
    asyncio.run(fleet.run_through())
    posted: multiprocessing.Queue[int] = multiprocessing.Queue()
    posters = [multiprocessing.Process(target=flood, args=(url, lock, posted)) for _ in range(POSTERS)]
    for poster in posters:
        poster.start()
    seconds = deciding_seconds(fleet, still_floods=lambda: any(poster.is_alive() for poster in posters))
    count = sum(posted.get() for _ in posters)
    for poster in posters:
        poster.join()
    database.close()
    return {
        "p50": round(statistics.median(seconds), 3),
        "max": round(max(seconds), 3),
        "gave_up": sum(each >= LOCK_TIMEOUT.total_seconds() for each in seconds),
        "n": len(seconds),
        "posts_per_second": round(count / FLOOD_SECONDS),
    }


def deciding_seconds(fleet: Fleet, *, still_floods: Callable[[], bool]) -> list[float]:
    """Of each opening and each closing of a run, whether it came through or gave up."""
    seconds: list[float] = []

    def timed(decision: Coroutine[Any, Any, Any]) -> Any:
        began = time.monotonic()
        try:
            return asyncio.run(decision)
        except DatabaseUnreachable:
            return None
        finally:
            seconds.append(time.monotonic() - began)

    while still_floods():
        run = timed(fleet.open())
        if run is not None:
            timed(fleet.close(run))
    return seconds


@contextmanager
def on_disk() -> Generator[Path]:
    """A folder on a real disk, where a commit takes its time, through which the server's account may pass."""
    with tempfile.TemporaryDirectory(prefix="fleet-agent-flood-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def main() -> int:
    figures: dict[str, dict[str, Any]] = {}
    with on_disk() as folder, ensure_running(folder) as server:
        for number, lock in enumerate(LOCKS):
            server.create_database(f"flood{number}")
            migrate.upgrade(server.url(f"flood{number}"))
            figures[lock] = measure(server.url(f"flood{number}"), lock)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(json.dumps({**figures["ours"], "beside": {"row_lock": figures["of a row"]}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
