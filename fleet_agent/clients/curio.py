"""Demand from Curio's own database: what its scheduler knows, in a few questions that only read.

    the columns that this Curio has  →  one question for each table  →  one reading

Four things make an innocent query lie. A task that somebody has claimed is not a proof under way: a worker with a
daemon for its proofs claims several ahead. The history has a row for each attempt, so a proof that failed twice and
then succeeded is two failures and one proof; and a task that made way for something urgent stands there as a failure
that it was not. Curio's clocks and ours differ, so every age is reckoned where the rows are, and a row that is dated in
a time to come counts for no age. And a copy of a database answers as readily as the living one: Curio's workers sign in
every minute, so where none has for five there is no demand to be read.

Releases differ. What decisions cannot do without must be there; what an older Curio lacks, or the role may not read,
costs the figures that need it, and the reason is kept. The same goes for a question that takes too long: the history
grows, and how much work waits must not be unknown because of it.

Each reading has a connection of its own: there is none to mend, and none is held between two readings. The session is
read only, whatever the role may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege, OperationalError, QueryCanceled, UndefinedTable
from psycopg.rows import dict_row
from pydantic import BaseModel, Field, ValidationError

from fleet_agent.clients.address import PORTS
from fleet_agent.clients.secrecy import quoted
from fleet_agent.domain.demand import Demand, Market
from fleet_agent.errors import FixSetup, TryLater
from fleet_agent.ports import Clock

SETTING: Final = "FLEET_DEMAND_CURIO_URL"
SCHEMA: Final = "curio"

MARKET_TASK: Final = "PSProve"

DEADLINE: Final = timedelta(seconds=20)
"""Real time for one reading."""
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
STATEMENT_TIMEOUT: Final = timedelta(seconds=4)
SILENCE_TIMEOUT: Final = timedelta(seconds=10)

STALE_AFTER: Final = timedelta(minutes=5)
TOO_MANY: Final = 10**9

CHECK: Final = f"check {SETTING}"
GRANT: Final = f"grant its role SELECT as docs/operating.md says, and check the database in {SETTING}"


class CurioDemand:
    """`ports.DemandSource` over Curio's PostgreSQL or YugabyteDB."""

    def __init__(
        self,
        url: str,
        *,
        tasks: Sequence[str],
        clock: Clock,
        deadline: timedelta = DEADLINE,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
    ) -> None:
        """`url` is one of PostgreSQL; it may name several hosts with commas between them. `tasks` are the names of
        Curio's tasks that are work for the fleet. Raises FixSetup where no database can be at `url`."""
        address = _address(url)
        self._connecting = address | _session(address, statement_timeout)
        self._secrets = [str(address[name]) for name in ("password", "sslpassword") if name in address]
        self._tasks = tuple(tasks)
        self._clock = clock
        self._deadline = deadline
        self._statement_timeout = statement_timeout

    async def demand(self) -> Demand:
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                return await self._read()
        except TimeoutError as error:
            cause = f"Curio's database took over {self._deadline.total_seconds():.0f} s"
            raise TryLater(cause, f"see whether it is busy, and {CHECK}") from error
        except psycopg.Error as error:
            raise self._told(error) from error

    async def _read(self) -> Demand:
        seen_at = self._clock.now()
        async with await AsyncConnection.connect(**self._connecting, autocommit=True, prepare_threshold=None) as server:
            reading = _Reading(server, self._tasks, await _columns(server), self._told)
            await _must_be_alive(reading)
            figures = await _waiting(reading) | await _attempts(reading) | await _dead_workers(reading)
            if MARKET_TASK in self._tasks:
                figures |= await _market(reading)
        return Demand(**figures, seen_at=seen_at, unread=reading.unread)

    def _told(self, error: psycopg.Error) -> TryLater:
        """One line: the last words of the driver, and none of the address."""
        said = quoted((str(error).splitlines() or [""])[0].rpartition(": ")[2], self._secrets)
        match error:
            case QueryCanceled():
                cause = f"Curio's database took over {self._statement_timeout.total_seconds():g} s for a statement"
                return TryLater(cause, f"see what it is busy with, and {CHECK}")
            case InsufficientPrivilege() | UndefinedTable():  # what is in a schema that one may not enter, is not there
                return TryLater(f"Curio's database does not let us read ({said})", GRANT)
            case OperationalError() if "authentication failed" in said or "no password supplied" in said:
                return TryLater("Curio's database refuses the login", f"correct user and password in {SETTING}")
            case OperationalError():
                return TryLater(f"Curio's database does not answer ({said})", f"see whether it runs, and {CHECK}")
            case _:
                return TryLater(f"Curio's database cannot be read ({said})", CHECK)


# --- the address ------------------------------------------------------------------------------------------------------


def _address(url: str) -> dict[str, Any]:
    """The parts of `url`. Raises FixSetup, which repeats none of them: what was read wrongly may be the password."""
    remedy = f"write {SETTING}=postgresql://user:password@host:5433/yugabyte"
    if not url.startswith(("postgresql://", "postgres://")):
        raise FixSetup(f"{SETTING} is no address of a PostgreSQL", remedy)
    try:
        parts: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.Error:
        raise FixSetup(f"{SETTING} cannot be read", remedy) from None
    if any("@" in str(parts.get(name)) for name in ("host", "dbname")):
        raise FixSetup(f"{SETTING} has an @ or a / too many", "within a password write @ as %40 and / as %2F")
    if not all(port.isdecimal() and int(port) in PORTS for port in str(parts.get("port", "")).split(",") if port):
        raise FixSetup(f"{SETTING} has a port that is none", remedy)
    return parts


def _session(address: Mapping[str, Any], statement_timeout: timedelta) -> dict[str, Any]:
    """How we speak, whatever the address says.

    The time zone is not among it: columns without one are in that of Curio's sessions, and neither Curio nor we ask for
    another than the server has.
    """
    ours = (
        f"-c search_path={SCHEMA} -c default_transaction_read_only=on "
        f"-c statement_timeout={round(statement_timeout.total_seconds() * 1000)}"
    )
    return {
        "application_name": "fleet-agent",
        "client_encoding": "utf8",
        "connect_timeout": round(CONNECT_TIMEOUT.total_seconds()),
        # A server whose machine is gone closes no connection; over a socket file these say nothing.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(SILENCE_TIMEOUT.total_seconds() * 1000),
        "options": f"{address.get('options', '')} {ours}",
    }


# --- asking -----------------------------------------------------------------------------------------------------------

Columns = Mapping[str, Mapping[str, str]]
"""Of each table that the role may read: its columns, and their types."""

PARAMETERS: Final[Mapping[str, Any]] = {
    "schema": SCHEMA,
    "tables": [
        "harmony_machines",
        "harmony_machine_details",
        "harmony_task",
        "harmony_task_history",
        "proofshare_queue",
    ],
    "window": timedelta(hours=1),
    "stale_after": STALE_AFTER,
    "dead_after": timedelta(minutes=3),  # workers sign in every minute
    "ahead": timedelta(minutes=5),  # by which clocks may differ; what is dated later than that is dated wrongly
    "longest_wait": timedelta(days=3650),
    "longest_proof": timedelta(days=1),
}

Count = Annotated[int, Field(ge=0, lt=TOO_MANY)]
Age = Annotated[timedelta, Field(ge=timedelta(0))]
Answer = TypeVar("Answer", bound=BaseModel)


@dataclass
class _Reading:
    """One reading under way, and what could not be known in it."""

    server: AsyncConnection
    tasks: Sequence[str]
    columns: Columns
    told: Callable[[psycopg.Error], TryLater]
    unread: dict[str, str] = field(default_factory=dict[str, str])

    def lacks(self, table: str, *columns: str) -> str:
        """What of this may not be read, in words; empty where all may."""
        there = self.columns.get(table)
        if there is None:
            return f"there is no {SCHEMA}.{table} that the role may read"
        missing = [column for column in columns if column not in there]
        return f"{SCHEMA}.{table} has no {' and no '.join(missing)}" if missing else ""

    def needs(self, table: str, *columns: str) -> None:
        lacking = self.lacks(table, *columns)
        if lacking:
            raise TryLater(lacking, GRANT)

    async def answer(self, kind: type[Answer], question: LiteralString, **parts: LiteralString) -> Answer:
        """`parts` fill the braces of the question. Raises psycopg.Error, TryLater."""
        filled = sql.SQL(question).format(**{name: sql.SQL(part) for name, part in parts.items()})
        async with self.server.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(filled, {**PARAMETERS, "tasks": list(self.tasks)})
            row = await cursor.fetchone()
        try:
            return kind.model_validate(row)
        except ValidationError as error:
            figure = error.errors(include_input=False, include_url=False)[0]["loc"]
            raise TryLater(f"Curio's database gives no figure for {', '.join(map(str, figure))}", CHECK) from error

    async def figures_if_it_can(
        self, kind: type[BaseModel], lacking: str, question: LiteralString, **parts: LiteralString
    ) -> dict[str, Any]:
        """The same, for figures that decisions can do without: they are None where they cannot be had."""
        reason = lacking
        if not reason:
            try:
                return (await self.answer(kind, question, **parts)).model_dump()
            except psycopg.Error as error:
                if self.server.closed:
                    raise
                reason = self.told(error).cause
        nothing = dict.fromkeys(kind.model_fields)
        self.unread.update(dict.fromkeys(nothing, reason))
        return nothing


async def _columns(server: AsyncConnection) -> Columns:
    """A column that the role may not read is in no answer to this question."""
    rows = await server.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %(schema)s AND table_name = ANY(%(tables)s)",
        PARAMETERS,
    )
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await rows.fetchall():
        found.setdefault(table, {})[column] = kind
    return found


# --- the questions ----------------------------------------------------------------------------------------------------


class Alive(BaseModel):
    workers: Count


async def _must_be_alive(reading: _Reading) -> None:
    reading.needs("harmony_machines", "id", "last_contact")
    alive = await reading.answer(
        Alive,
        """
        SELECT count(*) AS workers FROM harmony_machines
        WHERE last_contact BETWEEN now() - %(stale_after)s AND now() + %(ahead)s
        """,
    )
    if not alive.workers:
        raise TryLater(
            f"no worker of Curio has signed in for {STALE_AFTER.total_seconds() / 60:.0f} minutes",
            f"see whether Curio runs, and whether {SETTING} leads to its database and not to a copy",
        )


class Waiting(BaseModel):
    pending: Count
    claimed: Count
    running: Count
    retrying: Count
    oldest_pending: Age | None


async def _waiting(reading: _Reading) -> dict[str, Any]:
    reading.needs("harmony_task", "id", "name", "owner_id", "posted_time", "update_time")
    no_retries = reading.lacks("harmony_task", "retries")
    found = await reading.answer(
        Waiting,
        """
        SELECT count(*) FILTER (WHERE owner_id IS NULL) AS pending,
               count(*) FILTER (WHERE owner_id IS NOT NULL) AS claimed,
               count(*) FILTER (WHERE last_contact > now() - %(dead_after)s) AS running,
               count(*) FILTER (WHERE owner_id IS NULL AND retries > 0) AS retrying,
               max(greatest(now() - since, '0')) FILTER (
                   WHERE owner_id IS NULL AND since BETWEEN now() - %(longest_wait)s AND now() + %(ahead)s
               ) AS oldest_pending
        FROM (
            SELECT t.owner_id, m.last_contact, {retries} AS retries,
                   CASE WHEN {retries} > 0 THEN t.update_time ELSE t.posted_time END AS since
            FROM harmony_task t LEFT JOIN harmony_machines m ON m.id = t.owner_id
            WHERE t.name = ANY(%(tasks)s)
        ) task
        """,
        retries="0" if no_retries else "t.retries",
    )
    figures = found.model_dump()
    if no_retries:
        figures["retrying"] = None
        reading.unread["retrying"] = no_retries
    if found.pending and found.oldest_pending is None:
        reading.unread["oldest_pending"] = f"{SCHEMA}.harmony_task dates what waits in a time that cannot be"
    return figures


WITHOUT_ZONE: Final = "timestamp without time zone"


class Attempts(BaseModel):
    done_per_hour: Count
    failed_per_hour: Count
    final_failures_per_hour: Count
    proof_p95: Age | None


async def _attempts(reading: _Reading) -> dict[str, Any]:
    """A task is deleted when it succeeds and when it is given up, and waits again when it is to be tried again."""
    table = "harmony_task_history"
    has_zone = reading.columns.get(table, {}).get("work_end") != WITHOUT_ZONE
    return await reading.figures_if_it_can(
        Attempts,
        reading.lacks(table, "task_id", "name", "work_start", "work_end", "result", "err"),
        """
        WITH attempt AS (
            SELECT name, task_id, work_start, work_end, result,
                   NOT result AND err IS DISTINCT FROM 'preempted' AS failed
            FROM harmony_task_history
            WHERE name = ANY(%(tasks)s) AND work_end > {now} - %(window)s AND work_end <= {now} + %(ahead)s
        ), without_success AS (
            SELECT task_id FROM attempt GROUP BY name, task_id HAVING bool_or(failed) AND NOT bool_or(result)
        )
        SELECT count(*) FILTER (WHERE result) AS done_per_hour,
               count(*) FILTER (WHERE failed) AS failed_per_hour,
               (
                   SELECT count(*) FROM without_success w
                   WHERE NOT EXISTS (SELECT FROM harmony_task t WHERE t.id = w.task_id)
               ) AS final_failures_per_hour,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY work_end - work_start) FILTER (
                   WHERE result AND work_start BETWEEN work_end - %(longest_proof)s AND work_end
               ) AS proof_p95
        FROM attempt
        """,
        # Curio has always written the history in UTC, into columns that once had no zone.
        now="now()" if has_zone else "(now() AT TIME ZONE 'UTC')",
    )


class Dead(BaseModel):
    dead_workers: Count


async def _dead_workers(reading: _Reading) -> dict[str, Any]:
    """Of those that would prove. The list of a machine's tasks has commas at both ends."""
    return await reading.figures_if_it_can(
        Dead,
        reading.lacks("harmony_machine_details", "machine_id", "tasks"),
        """
        SELECT count(*) AS dead_workers
        FROM harmony_machines m JOIN harmony_machine_details d ON d.machine_id = m.id
        WHERE m.last_contact <= now() - %(dead_after)s AND string_to_array(d.tasks, ',') && %(tasks)s::text[]
        """,
    )


class Bought(BaseModel):
    market: Market


async def _market(reading: _Reading) -> dict[str, Any]:
    """How many slots we have is known to the market alone."""
    return await reading.figures_if_it_can(
        Bought,
        reading.lacks("proofshare_queue", "compute_task_id", "compute_done", "submit_done"),
        """
        SELECT json_build_object(
            'waiting', count(*) FILTER (WHERE NOT q.compute_done AND t.owner_id IS NULL),
            'computing', count(*) FILTER (WHERE NOT q.compute_done AND t.owner_id IS NOT NULL),
            'unsubmitted', count(*) FILTER (WHERE q.compute_done AND NOT q.submit_done),
            'orphaned', count(*) FILTER (
                WHERE NOT q.compute_done AND q.compute_task_id IS NOT NULL AND t.id IS NULL
            )
        ) AS market
        FROM proofshare_queue q LEFT JOIN harmony_task t ON t.id = q.compute_task_id
        """,
    )
