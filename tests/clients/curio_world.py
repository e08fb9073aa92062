"""A database such as Curio keeps, newest and older, and rows whose meaning can be counted by hand.

The columns are those of Curio's migrations. The older shape is that of early 2024: no retries, no details of machines,
no proofshare, and times without a zone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from tests.postgres import TemporaryPostgres, plain

NEWEST = """
CREATE SCHEMA curio;
CREATE TABLE curio.harmony_machines (
    id SERIAL PRIMARY KEY, last_contact TIMESTAMPTZ NOT NULL DEFAULT now(), host_and_port VARCHAR(300) NOT NULL,
    cpu INTEGER NOT NULL, ram BIGINT NOT NULL, gpu FLOAT NOT NULL, unschedulable BOOLEAN DEFAULT false,
    restart_request TIMESTAMPTZ
);
CREATE TABLE curio.harmony_machine_details (
    id SERIAL PRIMARY KEY, tasks TEXT, layers TEXT, startup_time TIMESTAMPTZ, miners TEXT,
    machine_id INTEGER UNIQUE REFERENCES curio.harmony_machines (id) ON DELETE CASCADE, machine_name TEXT, version TEXT
);
CREATE TABLE curio.harmony_task (
    id SERIAL PRIMARY KEY, initiated_by INTEGER, update_time TIMESTAMPTZ NOT NULL DEFAULT now(),
    posted_time TIMESTAMPTZ NOT NULL, owner_id INTEGER REFERENCES curio.harmony_machines (id) ON DELETE SET NULL,
    added_by INTEGER NOT NULL, previous_task INTEGER, name VARCHAR(16) NOT NULL, retries BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE curio.harmony_task_history (
    id SERIAL PRIMARY KEY, task_id INTEGER NOT NULL, name VARCHAR(16) NOT NULL, posted TIMESTAMPTZ NOT NULL,
    work_start TIMESTAMPTZ NOT NULL, work_end TIMESTAMPTZ NOT NULL, result BOOLEAN NOT NULL, err VARCHAR,
    completed_by_host_and_port VARCHAR(300) NOT NULL
);
CREATE TABLE curio.proofshare_queue (
    service_id BIGINT NOT NULL, obtained_at TIMESTAMPTZ NOT NULL, request_cid TEXT UNIQUE, response_data BYTEA,
    compute_task_id BIGINT, compute_done BOOLEAN NOT NULL DEFAULT false, submit_task_id BIGINT,
    submit_done BOOLEAN NOT NULL DEFAULT false, was_pow BOOLEAN, PRIMARY KEY (service_id, obtained_at)
);
"""

OLDER = """
CREATE SCHEMA curio;
CREATE TABLE curio.harmony_machines (
    id SERIAL PRIMARY KEY, last_contact TIMESTAMP NOT NULL DEFAULT now(), host_and_port VARCHAR(300) NOT NULL,
    cpu INTEGER NOT NULL, ram BIGINT NOT NULL, gpu FLOAT NOT NULL
);
CREATE TABLE curio.harmony_task (
    id SERIAL PRIMARY KEY, initiated_by INTEGER, update_time TIMESTAMP NOT NULL DEFAULT now(),
    posted_time TIMESTAMP NOT NULL, owner_id INTEGER REFERENCES curio.harmony_machines (id) ON DELETE SET NULL,
    added_by INTEGER NOT NULL, previous_task INTEGER, name VARCHAR(16) NOT NULL
);
CREATE TABLE curio.harmony_task_history (
    id SERIAL PRIMARY KEY, task_id INTEGER NOT NULL, name VARCHAR(16) NOT NULL, posted TIMESTAMP NOT NULL,
    work_start TIMESTAMP NOT NULL, work_end TIMESTAMP NOT NULL, result BOOLEAN NOT NULL, err VARCHAR,
    completed_by_host_and_port VARCHAR(300) NOT NULL
);
"""


@dataclass
class Cluster:
    """Curio's side of it: whoever writes the rows. Times are said as how long ago."""

    url: str
    writer: psycopg.Connection[tuple[Any, ...]]
    is_newest: bool

    def machine(self, number: int, *, silent_for: timedelta, tasks: str) -> None:
        self.insert(
            "harmony_machines",
            {"id": number, "host_and_port": f"10.0.0.{number}:12300", "cpu": 32, "ram": 2**38, "gpu": 1},
            {"last_contact": silent_for},
        )
        if self.is_newest:
            self.insert("harmony_machine_details", {"machine_id": number, "tasks": tasks})

    def task(
        self,
        number: int,
        name: str,
        *,
        posted: timedelta,
        owner: int | None = None,
        retries: int = 0,
        updated: timedelta | None = None,
    ) -> None:
        more = {"retries": retries} if self.is_newest else {}
        self.insert(
            "harmony_task",
            {"id": number, "name": name, "added_by": 1, "owner_id": owner, **more},
            {"posted_time": posted, "update_time": posted if updated is None else updated},
        )

    def attempt(
        self,
        task: int,
        name: str,
        *,
        ended: timedelta,
        took: timedelta = timedelta(seconds=30),
        result: bool = False,
        err: str | None = "",
    ) -> None:
        """Curio writes the history in UTC, whatever the zone of its session."""
        times = {"posted": ended + took, "work_start": ended + took, "work_end": ended}
        values = {"task_id": task, "name": name, "result": result, "err": err, "completed_by_host_and_port": "10.0.0.2"}
        self.insert("harmony_task_history", values, times, zone="" if self.is_newest else " AT TIME ZONE 'UTC'")

    def bought(self, number: int, *, task: int | None = None, done: bool = False, handed_in: bool = False) -> None:
        values = {"service_id": number, "request_cid": f"cid-{number}", "compute_task_id": task}
        done_values = {"compute_done": done, "submit_done": handed_in}
        self.insert("proofshare_queue", values | done_values, {"obtained_at": timedelta(minutes=5)})

    def insert(
        self, table: str, values: Mapping[str, Any], ago: Mapping[str, timedelta] | None = None, *, zone: str = ""
    ) -> None:
        ago = ago or {}
        columns = sql.SQL(", ").join(map(sql.Identifier, [*values, *ago]))
        given = sql.SQL(", ").join([sql.Placeholder()] * len(values) + [sql.SQL(f"(now() - %s){zone}")] * len(ago))
        statement = sql.SQL("INSERT INTO curio.{} ({}) VALUES ({})")
        self.writer.execute(statement.format(sql.Identifier(table), columns, given), [*values.values(), *ago.values()])

    def runs(self, statement: str, values: Sequence[Any] = ()) -> None:
        self.writer.execute(statement, values or None)

    def sees(self, question: str) -> Any:
        """What an innocent query of somebody else's yields."""
        with self.writer.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(question).fetchone()
        assert row is not None
        return row[0]


@contextmanager
def curio_database(postgres: TemporaryPostgres, shape: str = NEWEST, *, zone: str = "UTC") -> Generator[Cluster]:
    """A database of its own, in whose sessions it is `zone`."""
    with postgres.clone("template0") as url:
        with psycopg.connect(plain(url), autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = {}").format(name, sql.Literal(zone)))
        with psycopg.connect(plain(url), autocommit=True) as writer:
            writer.execute(shape)
            writer.execute("SET search_path = curio")
            yield Cluster(plain(url), writer, is_newest=shape == NEWEST)


# --- a cluster with every state that a task can be in -----------------------------------------------------------------

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

CORE, BOX, DEAD_BOX, LONG_DEAD_BOX, DEAD_STORE, CORDONED = 1, 2, 3, 4, 5, 6


def fill(cluster: Cluster) -> None:
    """What each row is, and what it counts for, is said beside it; `COUNTED` in test_curio.py is the sum."""
    _machines(cluster)
    _tasks(cluster)
    _attempts(cluster)
    if cluster.is_newest:
        _market(cluster)


def _machines(cluster: Cluster) -> None:
    cluster.machine(CORE, silent_for=20 * SECOND, tasks=",SDR,TreeD,WinPost,")
    cluster.machine(BOX, silent_for=40 * SECOND, tasks=",PoRep,UpdateProve,PSProve,")
    cluster.machine(DEAD_BOX, silent_for=4 * MINUTE, tasks=",PSProve,")  # dead
    cluster.machine(LONG_DEAD_BOX, silent_for=9 * MINUTE, tasks=",UpdateProve,PSProve,")  # dead
    cluster.machine(DEAD_STORE, silent_for=8 * MINUTE, tasks=",SDR,PSProveNever,")  # dead, and would not prove
    cluster.machine(CORDONED, silent_for=30 * SECOND, tasks=",PoRep,PSProve,")


def _tasks(cluster: Cluster) -> None:
    cluster.task(101, "PoRep", posted=50 * MINUTE)  # pending, and waits longest
    cluster.task(102, "PoRep", posted=5 * HOUR, retries=2, updated=10 * MINUTE)  # pending, retrying: waits 10 minutes
    cluster.task(103, "PSProve", posted=2 * MINUTE)  # pending
    cluster.task(104, "PSProve", posted=6 * MINUTE, owner=BOX)  # claimed, running
    cluster.task(105, "PSProve", posted=7 * MINUTE, owner=DEAD_BOX)  # claimed by a dead worker
    cluster.task(106, "UpdateProve", posted=9 * MINUTE, owner=BOX)  # claimed, running
    cluster.task(107, "PSProve", posted=20 * MINUTE)  # pending: it made way
    cluster.task(111, "PoRep", posted=3 * HOUR, owner=CORDONED, retries=1, updated=29 * MINUTE)  # claimed, running
    cluster.task(108, "WdPost", posted=8 * HOUR)  # not for boxes
    cluster.task(109, "WinPost", posted=1 * SECOND, owner=CORE)  # not for boxes
    cluster.task(110, "SDR", posted=30 * HOUR)  # no proof


def _attempts(cluster: Cluster) -> None:
    def succeeded(task: int, name: str, ended: timedelta, took: int, err: str = "") -> None:
        cluster.attempt(task, name, ended=ended, took=took * SECOND, result=True, err=err)

    def failed(task: int, name: str, ended: timedelta, err: str | None = "error: no") -> None:
        cluster.attempt(task, name, ended=ended, err=err)

    succeeded(201, "PoRep", 50 * MINUTE, 100)  # done
    succeeded(202, "PSProve", 40 * MINUTE, 40, "non-failing error: could not tell")  # done, whatever it complains of
    failed(203, "PSProve", 45 * MINUTE)  # failed
    failed(203, "PSProve", 44 * MINUTE, "unspecified error")  # failed
    succeeded(203, "PSProve", 43 * MINUTE, 60)  # done, so not for good
    failed(107, "PSProve", 15 * MINUTE, "preempted")  # no failure
    failed(204, "PSProve", 30 * MINUTE)  # failed
    failed(204, "PSProve", 25 * MINUTE)  # failed, and for good: the task is no more
    failed(205, "UpdateProve", 20 * MINUTE, None)  # failed, and for good; nobody wrote why
    failed(102, "PoRep", 20 * MINUTE)  # failed
    failed(102, "PoRep", 10 * MINUTE)  # failed, and it waits again
    failed(206, "PSProve", 12 * MINUTE, "preempted")  # no failure
    succeeded(206, "PSProve", 8 * MINUTE, 80)  # done
    failed(207, "PSProve", 5 * MINUTE, "preempted")  # no failure, though the task is no more
    succeeded(208, "PoRep", 61 * MINUTE, 900)  # too long ago
    failed(209, "PSProve", 65 * MINUTE)  # too long ago
    failed(301, "WdPost", 10 * MINUTE)  # not for boxes
    failed(111, "PoRep", 30 * MINUTE)  # failed, and is being proved again
    failed(210, "PSProve", 62 * MINUTE)  # too long ago
    succeeded(210, "PSProve", 55 * MINUTE, 50)  # done


def _market(cluster: Cluster) -> None:
    cluster.bought(1)  # waiting: it has no task yet
    cluster.bought(2, task=103)  # waiting
    cluster.bought(3, task=104)  # computing
    cluster.bought(4, task=105)  # computing, as far as Curio knows
    cluster.bought(5, task=999)  # orphaned, and waiting as Curio counts
    cluster.bought(6, done=True)  # unsubmitted
    cluster.bought(7, done=True)  # unsubmitted
    cluster.bought(8, task=997, done=True, handed_in=True)  # over
    cluster.bought(9, task=998, done=True)  # unsubmitted; a task that is done is no more
    cluster.bought(10, task=107)  # waiting
