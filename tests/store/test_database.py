"""What is wrong with a database is said in one line, locks do what they promise, and time is the database's."""

from __future__ import annotations

import math
import re
import socket
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import select, text

from fleet_agent.domain.timeline import Timeline
from fleet_agent.domain.triggers import Kind
from fleet_agent.errors import DatabaseUnreachable, DatabaseUnusable
from fleet_agent.store import audit
from fleet_agent.store.database import (
    Database,
    DatabaseClock,
    open_database,
    schema_problem,
    server_problem,
)
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.installation import found_installation, read_clock
from fleet_agent.store.session import state
from fleet_agent.store.tables import SCHEMA_VERSION, Audit
from tests.postgres import TemporaryPostgres
from tests.store.rig import NOON, Fleet

# --- opening ----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_database_that_is_down_is_named_without_its_password() -> None:
    port = free_port()
    with pytest.raises(DatabaseUnreachable) as refused:
        open_database(f"postgresql://alice:made-up-secret@127.0.0.1:{port}/fleet")

    said = f"the database fleet at 127.0.0.1:{port} does not answer (Connection refused) → start it"
    assert str(refused.value).startswith(said)
    assert "made-up-secret" not in str(refused.value)


def test_a_database_that_does_not_exist_is_named(database_url: str) -> None:
    with pytest.raises(DatabaseUnusable, match=r"the database no_such_one at .* does not exist"):
        open_database(re.sub(r"/test_\d+\?", "/no_such_one?", database_url))


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("sqlite:///fleet.db", "the database URL names sqlite"),
        ("mysql://root@localhost/fleet", "the database URL names mysql"),
        ("my database", "the database URL cannot be read"),
        ("postgresql://localhost:a-port/fleet", "the database URL cannot be read"),
        ("postgresql://localhost/fleet?no_such_option=1", "the database URL cannot be used: .*no_such_option"),
    ],
)
def test_only_postgresql_is_accepted(url: str, cause: str) -> None:
    with pytest.raises(DatabaseUnusable, match=cause):
        open_database(url)


@pytest.mark.parametrize(
    ("version", "number", "cause"),
    [
        ("PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu", 150012, "the database is YugabyteDB"),
        ("CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu)", 130000, "the database is CockroachDB"),
        ("PostgreSQL 13.20 on x86_64-pc-linux-gnu", 130020, "the database is PostgreSQL 13"),
    ],
)
def test_a_server_that_cannot_carry_us_is_refused_in_one_line(version: str, number: int, cause: str) -> None:
    problem = server_problem(version, number)

    assert problem is not None
    assert str(problem).startswith(cause)
    assert "\n" not in str(problem)


def test_a_server_that_can_carry_us_is_accepted() -> None:
    assert server_problem("PostgreSQL 14.0 on aarch64-apple-darwin", 140000) is None
    assert schema_problem(SCHEMA_VERSION) is None


# --- trouble on the way -----------------------------------------------------------------------------------------------


def test_a_connection_that_was_cut_is_said_and_the_next_transaction_works(database: Database) -> None:
    def ask_on_a_cut_connection() -> None:
        with database.transaction() as tx:
            me = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with database.transaction() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": me})
            tx.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnreachable, match="does not answer"):
        ask_on_a_cut_connection()

    with database.transaction() as tx:
        assert tx.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.parametrize(
    ("setting", "statement", "cause"),
    [
        ("lock_timeout", "LOCK TABLE audit IN SHARE MODE", "is busy: a lock was not free"),
        ("statement_timeout", "SELECT count(*) FROM generate_series(1, 100000000)", "for a statement"),
    ],
)
def test_what_takes_too_long_is_given_up(database: Database, setting: str, statement: str, cause: str) -> None:
    def ask_impatiently() -> None:
        with database.transaction() as tx:
            tx.execute(text(f"SET LOCAL {setting} = '20ms'"))
            tx.execute(text(statement))

    with database.transaction() as holder:
        holder.execute(text("LOCK TABLE audit IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(DatabaseUnreachable, match=cause):
            ask_impatiently()


def test_every_connection_has_deadlines(database: Database) -> None:
    with database.transaction() as tx:
        shown = [tx.execute(text(f"SHOW {name}")).scalar_one() for name in ("lock_timeout", "statement_timeout")]

    assert shown == ["2s", "5s"]


def test_every_connection_notices_a_server_whose_machine_is_gone(database: Database) -> None:
    with database.transaction() as tx:
        connection = tx.connection().connection.driver_connection
        assert isinstance(connection, psycopg.Connection)
        parameters = connection.info.get_parameters()

    assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == ("10000", "5")


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    def fail_half_way() -> None:
        with database.transaction() as tx:
            state(tx, "main")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with database.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM session_state")).scalar_one() == 0


@pytest.mark.parametrize("raw", ["a NUL \0 of a log", "half a pair \ud83d of a model"])
def test_text_that_the_database_cannot_hold_is_recorded_all_the_same(fleet: Fleet, raw: str) -> None:
    event = Post(kind=Kind.MESSAGE, source="test", text=raw, payload={raw: [raw]})
    with fleet.database.shared(fleet.name) as tx:
        post(tx, fleet.name, event, now=NOON)

    (row,) = fleet.rows("inbox")
    ((key, (item,)),) = row["payload"].items()
    for stored in (row["text"], key, item):
        assert stored.split()[:2] == raw.split()[:2]
        assert stored.split()[-1] == raw.split()[-1]


@pytest.mark.parametrize("raw", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_does_not_know_is_recorded_as_its_name(fleet: Fleet, raw: float) -> None:
    fleet.post(payload={"value": [raw, 1.5]})

    assert [row["payload"] for row in fleet.rows("inbox")] == [{"value": [str(raw), 1.5]}]


# --- time -------------------------------------------------------------------------------------------------------------


def test_business_time_follows_its_line_and_back() -> None:
    started = datetime(2026, 1, 1, tzinfo=UTC)
    line = Timeline(origin=NOON, started_at=started, speed=60)

    assert line.business(started + timedelta(seconds=5)) == NOON + timedelta(minutes=5)
    assert line.real(NOON + timedelta(minutes=5)) == started + timedelta(seconds=5)


def test_business_time_goes_on_monotonically_and_real_time_beside_it() -> None:
    seconds = iter([100.0, 100.0, 102.0, 103.0])
    started = datetime(2026, 1, 1, tzinfo=UTC)
    line = Timeline(origin=NOON, started_at=started, speed=60)
    clock = DatabaseClock(line, started + timedelta(seconds=10), monotonic=lambda: next(seconds))

    assert clock.now() == NOON + timedelta(minutes=10)
    assert clock.now() == NOON + timedelta(minutes=12)
    assert clock.elapsed() == timedelta(seconds=103)


def test_a_process_does_not_notice_that_somebody_sets_the_clock_until_it_reads_it_again() -> None:
    """Control: the clock on the wall, by which the time between two looks would be an hour."""
    wall, seconds = datetime(2026, 1, 1, 8, 0, tzinfo=UTC), iter([0.0, 1.0, 2.0, 2.0, 3.0])
    line = Timeline(origin=wall, started_at=wall, speed=1)
    clock = DatabaseClock(line, wall, monotonic=lambda: next(seconds))

    before = clock.now()
    on_the_wall = wall + timedelta(hours=1, seconds=2)
    assert clock.now() - before == timedelta(seconds=1)
    assert on_the_wall - before > timedelta(hours=1)

    clock.read_again(on_the_wall)
    assert clock.now() == on_the_wall + timedelta(seconds=1)


def test_every_process_reads_the_same_time(database_url: str) -> None:
    """Control: the real clock, which a process would otherwise go by, is months away from the origin."""
    first, second = open_database(database_url), open_database(database_url)
    found_installation(first, origin=NOON, speed=3600)
    clocks = [read_clock(database) for database in (first, second)]
    first.close()
    second.close()

    apart = abs(clocks[0].now() - clocks[1].now()) / 3600
    assert apart < timedelta(seconds=5)
    assert abs(datetime.now(UTC) - clocks[0].now()) > timedelta(days=1)


# --- the installation -------------------------------------------------------------------------------------------------


def test_an_installation_is_named_once(database_url: str) -> None:
    opened = open_database(database_url)
    first = found_installation(opened, origin=NOON, speed=60)
    again = found_installation(opened, origin=NOON + timedelta(days=1), speed=1)
    opened.close()

    assert again == first
    assert (first.clock_origin, first.clock_speed) == (NOON, 60)


def test_two_databases_have_two_names(postgres: TemporaryPostgres) -> None:
    names: list[str] = []
    for _ in range(2):
        with postgres.clone() as url:
            opened = open_database(url)
            names.append(found_installation(opened).name)
            opened.close()

    assert names[0] != names[1]
    assert all(re.fullmatch("[a-z0-9]{6}", name) for name in names)


def test_what_is_read_back_is_what_was_written(database: Database) -> None:
    with database.exclusive("main") as tx:
        state(tx, "main")
        audit.note(tx, "main", who="test", what="x", text="żółć 🛰", now=NOON)
    with database.transaction() as tx:
        row = tx.scalars(select(Audit)).one()
    assert (row.text, row.at) == ("żółć 🛰", NOON)
