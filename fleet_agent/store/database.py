"""Connections, transactions, the lock of a fleet, and the clock that every process shares.

A transaction comes in three sorts, and the sort says what may happen beside it. `transaction()` takes no lock.
`shared(fleet)` is for posts to the inbox and for what boxes say, which may run beside each other. `exclusive(fleet)` is
for whatever the fence guards: it waits for the posts under way and holds back the next ones, so that "nothing is
waiting" stays true until the commit. The lock is an advisory one: a row lock in share mode lets a stream of posts
starve the close of a run.

Isolation stays READ COMMITTED on purpose: a snapshot taken before the wait for the lock would not see what the last
holder wrote.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, cast

from psycopg import AsyncConnection, sql
from psycopg.abc import Buffer
from psycopg.errors import LockNotAvailable, QueryCanceled
from psycopg.types.string import StrDumper
from sqlalchemy import Connection, Engine, create_engine, func, make_url, select, text
from sqlalchemy.engine import URL
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.orm import Session

from fleet_agent.domain.timeline import Timeline
from fleet_agent.errors import DatabaseUnreachable, DatabaseUnusable, FleetAgentError
from fleet_agent.store.tables import SCHEMA_VERSION

CONNECT_TIMEOUT: Final = timedelta(seconds=3)
LOCK_TIMEOUT: Final = timedelta(seconds=2)
STATEMENT_TIMEOUT: Final = timedelta(seconds=5)
SILENCE_TIMEOUT: Final = timedelta(seconds=10)

OLDEST_POSTGRES: Final = 14

BELL_CHANNEL: Final = "fleet_agent"
"""NOTIFY goes here with the fleet's name, when something waits for a run."""

_FLEET_LOCKS: Final = 0x666C6565
"""The first half of our advisory lock keys, the second is a hash of the fleet: two fleets that collide only wait."""


class Database:
    """One PostgreSQL database with our schema in it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Commits at the end, rolls back on any error. Raises DatabaseUnreachable."""
        with _typed_errors(self._engine.url), Session(self._engine, expire_on_commit=False) as tx, tx.begin():
            yield tx

    @contextmanager
    def shared(self, fleet: str) -> Generator[Session]:
        """A transaction that may run beside others of its sort, but beside no exclusive one of this fleet."""
        with self.transaction() as tx:
            tx.execute(select(func.pg_advisory_xact_lock_shared(_FLEET_LOCKS, func.hashtext(fleet))))
            yield tx

    @contextmanager
    def exclusive(self, fleet: str) -> Generator[Session]:
        """A transaction beside which no other shared or exclusive one of this fleet runs."""
        with self.transaction() as tx:
            tx.execute(select(func.pg_advisory_xact_lock(_FLEET_LOCKS, func.hashtext(fleet))))
            yield tx

    async def listener(self) -> AsyncConnection:
        """A connection for the event loop that hears `notify_bell` from now on. Raises psycopg's OperationalError."""
        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = await AsyncConnection.connect(url, autocommit=True, **_DEADLINES)
        try:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(BELL_CHANNEL)))
        except BaseException:
            await connection.close()
            raise
        return connection

    def check(self) -> None:
        """Raises DatabaseUnreachable, and DatabaseUnusable where the schema is of another version than the program."""
        with _typed_errors(self._engine.url), self._engine.connect() as connection:
            problem = schema_problem(schema_version(connection))
        if problem is not None:
            raise problem

    def close(self) -> None:
        self._engine.dispose()


def open_database(url: str) -> Database:
    """The database at `url`, once it is found fit for this version of the program.

    Raises DatabaseUnreachable, DatabaseUnusable (not PostgreSQL, too old, or a schema of another version).
    """
    database = Database(connect(url))
    try:
        database.check()
    except FleetAgentError:
        database.close()
        raise
    return database


def connect(url: str) -> Engine:
    """An engine with our deadlines whose server was found to be a PostgreSQL that we can use.

    Raises DatabaseUnreachable, DatabaseUnusable.
    """
    engine = create_engine(
        _address(url),
        pool_pre_ping=True,
        json_serializer=_json,
        pool_timeout=CONNECT_TIMEOUT.total_seconds(),
        connect_args=_DEADLINES,
    )
    listen(engine, "connect", _store_any_text)
    try:
        with _typed_errors(engine.url), engine.connect() as connection:
            version, number = connection.execute(
                select(func.version(), func.current_setting("server_version_num"))
            ).one()
        problem = server_problem(version, int(number))
        if problem is not None:
            raise problem
    except FleetAgentError:
        engine.dispose()
        raise
    except ProgrammingError as error:  # the driver does not know an option of the URL
        raise DatabaseUnusable(f"the database URL cannot be used: {error.orig}", _CHECK) from error
    return engine


_DEADLINES: Final[dict[str, Any]] = {
    "connect_timeout": int(CONNECT_TIMEOUT.total_seconds()),
    # A server whose machine is gone closes no connection; over a socket file these say nothing.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": round(SILENCE_TIMEOUT.total_seconds() * 1000),
    "options": (
        f"-c lock_timeout={round(LOCK_TIMEOUT.total_seconds() * 1000)} "
        f"-c statement_timeout={round(STATEMENT_TIMEOUT.total_seconds() * 1000)} -c timezone=UTC"
    ),
}


def server_problem(version: str, number: int) -> DatabaseUnusable | None:
    """Why a server that calls itself `version` cannot be used; `number` is its `server_version_num`."""
    for marker, name in (("-YB-", "YugabyteDB"), ("CockroachDB", "CockroachDB")):
        if marker in version:
            return DatabaseUnusable(
                f"the database is {name}, which lacks the advisory locks and notifications that runs rely on",
                "use PostgreSQL, or leave the database URL out for the embedded one",
            )
    if number < OLDEST_POSTGRES * 10_000:
        return DatabaseUnusable(
            f"the database is PostgreSQL {number // 10_000}", f"use PostgreSQL {OLDEST_POSTGRES} or newer"
        )
    return None


def schema_version(connection: Connection) -> str:
    """The last migration the database has seen; empty when it has no schema of ours."""
    if connection.execute(select(func.to_regclass("alembic_version"))).scalar() is None:
        return ""
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def schema_problem(version: str) -> DatabaseUnusable | None:
    """Why a schema at migration `version` cannot be used (empty: no schema); migrations are numbered."""
    if version > SCHEMA_VERSION:
        return DatabaseUnusable(
            f"the database was made by a newer fleet-agent (its schema is {version}, this one knows {SCHEMA_VERSION})",
            "install that version again; nothing was changed",
        )
    if version < SCHEMA_VERSION:
        return DatabaseUnusable(
            f"the database has {f'schema {version}' if version else 'no schema yet'} and needs {SCHEMA_VERSION}",
            "`fleet-agent up` brings it up to date",
        )
    return None


def notify_bell(tx: Session, fleet: str) -> None:
    """Delivered when the transaction commits."""
    tx.execute(select(func.pg_notify(BELL_CHANNEL, fleet)))


# --- time ------------------------------------------------------------------------------------------------------------


class DatabaseClock:
    """The clock of the database, read once and carried on monotonically: no process has a time of its own.

    `now()` is business time, `elapsed()` is real; neither jumps when somebody sets the machine's clock. Who lives long
    reads it again at times: a machine that slept, or whose clock was set, would keep two times for ever.
    """

    def __init__(self, timeline: Timeline, real_now: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._timeline = timeline
        self._real_at_start = real_now
        self._monotonic = monotonic
        self._start = monotonic()

    def read_again(self, real_now: datetime) -> None:
        self._real_at_start = real_now
        self._start = self._monotonic()

    def now(self) -> datetime:
        since = timedelta(seconds=self._monotonic() - self._start)
        return self._timeline.business(self._real_at_start + since)

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self._monotonic())


def real_now(tx: Session) -> datetime:
    """The database's own clock at this statement, not at the start of the transaction."""
    return tx.execute(select(func.clock_timestamp())).scalar_one()


# --- text from outside -----------------------------------------------------------------------------------------------


def _storable(value: Any) -> Any:
    """`value` without what PostgreSQL cannot keep: NUL, halves of surrogate pairs, and numbers that are none.

    Boxes print it, models write it, and Python's JSON reads NaN and Infinity; these are kept as text.
    Replaced here, at the only door, so that no reply and no log line can fail the transaction that records it.
    """
    match value:
        case str():
            return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {_storable(key): _storable(item) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_storable(item) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def _json(value: Any) -> str:
    return json.dumps(_storable(value))


class _AnyText(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_storable(obj))


def _store_any_text(connection: Any, _: object) -> None:
    connection.adapters.register_dumper(str, _AnyText)


# --- errors ----------------------------------------------------------------------------------------------------------


def _address(url: str) -> URL:
    try:
        address = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise DatabaseUnusable("the database URL cannot be read", "write postgresql://user@host:5432/name") from error
    if address.get_backend_name() not in ("postgresql", "postgres"):
        raise DatabaseUnusable(
            f"the database URL names {address.get_backend_name()}", "use PostgreSQL: postgresql://user@host:5432/name"
        )
    return address.set(drivername="postgresql+psycopg")


@contextmanager
def _typed_errors(url: URL) -> Generator[None]:
    """What the driver raises about the server, as what the caller should do. Errors about a statement are defects."""
    try:
        yield
    except (OperationalError, InterfaceError, NoFreeConnection) as error:
        raise _typed(error, url) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _typed(error, url) from error
        raise


def _typed(error: Exception, url: URL) -> FleetAgentError:
    """One line without the password: the address is built anew from its harmless parts."""
    host = url.host or url.query.get("host") or "the local socket"
    where = f"the database {url.database or ''} at {host}{f':{url.port}' if url.port else ''}"
    said = str(error.__cause__ or error)
    reason = said.splitlines()[0].rpartition(": ")[2]
    match error.__cause__:
        case LockNotAvailable():
            return DatabaseUnreachable(f"{where} is busy: a lock was not free within {LOCK_TIMEOUT.seconds} s", _WAIT)
        case QueryCanceled():
            return DatabaseUnreachable(f"{where} took over {STATEMENT_TIMEOUT.seconds} s for a statement", _WAIT)
        case _ if "authentication failed" in said or "no password supplied" in said:
            return DatabaseUnusable(f"{where} refuses the login of {url.username or 'this user'}", _CHECK)
        case _ if "FATAL" in said and "does not exist" in said:
            return DatabaseUnusable(f"{where} does not exist, or the user {url.username or ''} does not", _CHECK)
        case _:
            return DatabaseUnreachable(f"{where} does not answer ({reason})", "start it, or check the database URL")


_WAIT: Final = "the next run tries again; if it lasts, look for a long transaction in pg_stat_activity"
_CHECK: Final = "check the database URL"
