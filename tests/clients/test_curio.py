"""Demand from Curio's database: every state counted by hand, and never a figure that nobody could know."""

from __future__ import annotations

import asyncio
import re
import socket
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from psycopg import sql
from pydantic import ValidationError

from fleet_agent.clients.curio import CurioDemand, Waiting
from fleet_agent.domain.demand import Demand, Market, not_known
from fleet_agent.errors import FixSetup, TryLater
from fleet_agent.settings import CurioTask
from tests.clients.curio_world import BOX, HOUR, MINUTE, OLDER, SECOND, Cluster, curio_database, fill
from tests.clients.world import NOON, PassingTime
from tests.postgres import TemporaryPostgres

TASKS = get_args(CurioTask)
SETTING = "FLEET_DEMAND_CURIO_URL"
PASSWORD = "made-up-password-0123456789"
DAY = timedelta(days=1)

COUNTED = Demand(
    pending=4,  # 101, 102, 103, 107
    claimed=4,  # 104, 105, 106, 111
    running=3,  # … without 105, whose worker is dead
    retrying=1,  # 102
    oldest_pending=50 * MINUTE,  # 101
    done_per_hour=5,  # 201, 202, 203, 206, 210
    failed_per_hour=8,  # twice 203, 204 and 102; 205 and 111
    final_failures_per_hour=2,  # 204, 205
    proof_p95=96 * SECOND,  # of 40, 50, 60, 80 and 100 s: four fifths of the way from 80 to 100
    dead_workers=2,
    market=Market(waiting=4, computing=2, unsubmitted=3, orphaned=1),
    seen_at=NOON,
)
"""What the rows of `fill` come to."""


@pytest.fixture
def curio(postgres: TemporaryPostgres) -> Generator[Cluster]:
    with curio_database(postgres) as cluster:
        fill(cluster)
        yield cluster


@pytest.fixture
def idle(postgres: TemporaryPostgres) -> Generator[Cluster]:
    """One worker that lives, and no work."""
    with curio_database(postgres) as cluster:
        cluster.machine(BOX, silent_for=10 * SECOND, tasks=",PoRep,PSProve,")
        yield cluster


def source(url: str, **options: Any) -> CurioDemand:
    return CurioDemand(url, **{"tasks": TASKS, "clock": PassingTime()} | options)


async def read(cluster: Cluster, **options: Any) -> Demand:
    """With the ages to the minute: between a row and a reading passes a moment."""
    demand = await source(cluster.url, **options).demand()
    waited = demand.oldest_pending
    return demand.model_copy(update={"oldest_pending": None if waited is None else round(waited / MINUTE) * MINUTE})


# --- what is counted --------------------------------------------------------------------------------------------------


async def test_every_state_that_a_task_can_be_in_is_counted_as_what_it_is(curio: Cluster):
    assert await read(curio) == COUNTED


LAST_HOUR = "name <> 'WdPost' AND work_end > now() - interval '1 h'"
INNOCENT: dict[str, tuple[str, int, float | None]] = {
    "takes what made way for a failure": (
        f"SELECT count(*) FROM harmony_task_history WHERE NOT result AND {LAST_HOUR}",
        11,
        COUNTED.failed_per_hour,
    ),
    "forgets that nobody may have written why": (
        f"SELECT count(*) FROM harmony_task_history WHERE NOT result AND err <> 'preempted' AND {LAST_HOUR}",
        7,
        COUNTED.failed_per_hour,
    ),
    "takes what complains for failed": (
        f"SELECT count(*) FROM harmony_task_history WHERE err = '' AND {LAST_HOUR}",
        4,
        COUNTED.done_per_hour,
    ),
    "takes each task without success for given up": (
        f"SELECT count(*) FROM (SELECT FROM harmony_task_history WHERE {LAST_HOUR} GROUP BY task_id"
        " HAVING NOT bool_or(result) AND bool_or(err IS DISTINCT FROM 'preempted')) given_up",
        4,
        COUNTED.final_failures_per_hour,
    ),
    "takes a task that made way and is no more for given up": (
        f"SELECT count(*) FROM (SELECT FROM harmony_task_history h WHERE {LAST_HOUR}"
        " AND NOT EXISTS (SELECT FROM harmony_task t WHERE t.id = h.task_id)"
        " GROUP BY task_id HAVING NOT bool_or(result)) given_up",
        3,
        COUNTED.final_failures_per_hour,
    ),
    "takes what is claimed for running": (
        "SELECT count(*) FROM harmony_task WHERE owner_id IS NOT NULL AND name IN ('PoRep', 'UpdateProve', 'PSProve')",
        4,
        COUNTED.running,
    ),
    "lets a retry wait since it was posted": (
        "SELECT max(extract(hour FROM now() - posted_time))::int FROM harmony_task"
        " WHERE owner_id IS NULL AND name = 'PoRep'",
        5,
        0,
    ),
    "takes each task that has failed for one that waits": (
        "SELECT count(*) FROM harmony_task WHERE retries > 0",
        2,
        COUNTED.retrying,
    ),
    "counts every silent machine": (
        "SELECT count(*) FROM harmony_machines WHERE last_contact < now() - interval '3 min'",
        3,
        COUNTED.dead_workers,
    ),
    "looks for the name of a task anywhere": (
        "SELECT count(*) FROM harmony_machines m JOIN harmony_machine_details d ON d.machine_id = m.id"
        " WHERE last_contact < now() - interval '3 min' AND d.tasks LIKE '%PSProve%'",
        3,
        COUNTED.dead_workers,
    ),
    "takes each bought proof whose task is no more for orphaned": (
        "SELECT count(*) FROM proofshare_queue q LEFT JOIN harmony_task t ON t.id = compute_task_id"
        " WHERE compute_task_id IS NOT NULL AND t.id IS NULL",
        3,
        1,
    ),
    "counts no bought proof without a task": (
        "SELECT count(*) FROM proofshare_queue q JOIN harmony_task t ON t.id = compute_task_id"
        " WHERE NOT compute_done AND t.owner_id IS NULL",
        2,
        4,
    ),
}
"""Who reads Curio's tables without its meaning, what that yields, and what is so."""


@pytest.mark.parametrize("who", INNOCENT)
def test_control_who_reads_the_tables_innocently_counts_otherwise(curio: Cluster, who: str):
    query, yields, instead_of = INNOCENT[who]

    assert curio.sees(query) == yields != instead_of


async def test_a_queue_without_work_is_zero_and_nothing_that_is_not_known(idle: Cluster):
    assert await read(idle) == Demand(
        pending=0,
        claimed=0,
        running=0,
        retrying=0,
        oldest_pending=None,
        done_per_hour=0,
        failed_per_hour=0,
        final_failures_per_hour=0,
        proof_p95=None,
        dead_workers=0,
        market=Market(waiting=0, computing=0, unsubmitted=0, orphaned=0),
        seen_at=NOON,
    )


async def test_only_the_tasks_of_the_fleet_are_its_work(curio: Cluster):
    """Whoever proves nothing for the market is not told of it."""
    demand = await read(curio, tasks=["PoRep"])

    assert (demand.pending, demand.claimed, demand.done_per_hour, demand.failed_per_hour) == (2, 1, 1, 3)
    assert (demand.market, demand.unread) == (None, {})


def test_proofs_that_must_not_be_missed_are_never_work_for_boxes():
    assert not {"WdPost", "WinPost"} & {*TASKS}


# --- older releases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Asia/Seoul", "Etc/GMT+8"])
async def test_an_older_curio_is_read_as_far_as_it_goes_and_what_is_missing_says_why(
    postgres: TemporaryPostgres, zone: str
):
    """Its times have no zone: the tasks' are in that of its sessions, the history's in UTC."""
    with curio_database(postgres, OLDER, zone=zone) as older:
        fill(older)

        demand = await read(older)

    assert demand == COUNTED.model_copy(
        update={
            "oldest_pending": 5 * HOUR,  # since 102 was posted: that it is a retry is not written down
            "retrying": None,
            "dead_workers": None,
            "market": None,
            "unread": {
                "retrying": "curio.harmony_task has no retries",
                "dead_workers": "there is no curio.harmony_machine_details that the role may read",
                "market": "there is no curio.proofshare_queue that the role may read",
            },
        }
    )


@pytest.mark.parametrize(("zone", "hours"), [("Asia/Seoul", -9), ("Etc/GMT+8", 8)])
def test_control_who_takes_times_without_a_zone_for_utc_is_hours_off(
    postgres: TemporaryPostgres, zone: str, hours: int
):
    with curio_database(postgres, OLDER, zone=zone) as older:
        older.task(1, "PoRep", posted=1 * MINUTE)

        off = older.sees("SELECT extract(epoch FROM now() AT TIME ZONE 'UTC' - posted_time) / 3600 FROM harmony_task")

    assert round(off) == hours


async def test_figures_that_need_a_table_which_the_role_may_not_read_are_not_known(curio: Cluster):
    demand = await read_as(curio, "reader", ["harmony_task", "harmony_machines"])

    figures = ("done_per_hour", "failed_per_hour", "final_failures_per_hour", "proof_p95", "dead_workers", "market")
    assert {name: getattr(demand, name) for name in figures} == dict.fromkeys(figures)
    assert {*demand.unread} == {*figures}
    assert (demand.pending, demand.running) == (COUNTED.pending, COUNTED.running)
    assert not_known(demand) == (
        "done_per_hour, failed_per_hour, final_failures_per_hour, proof_p95: "
        "there is no curio.harmony_task_history that the role may read",
        "dead_workers: there is no curio.harmony_machine_details that the role may read",
        "market: there is no curio.proofshare_queue that the role may read",
    )


@pytest.mark.parametrize("kept_from", ["harmony_task", "harmony_machines"])
async def test_without_what_decisions_need_nothing_is_known(curio: Cluster, kept_from: str):
    granted = [table for table in ("harmony_task", "harmony_machines", "harmony_task_history") if table != kept_from]

    with pytest.raises(TryLater, match=rf"there is no curio\.{kept_from} that the role may read → .*{SETTING}"):
        await read_as(curio, "reader", granted)


@contextmanager
def as_role(cluster: Cluster, role: str, create: str = "CREATE ROLE {} LOGIN") -> Generator[str]:
    """The address of a new role, which is gone afterwards."""
    address = cluster.url.replace("//postgres@", f"//{role}@")
    assert address != cluster.url
    cluster.runs(create.format(role))
    try:
        yield address
    finally:
        cluster.runs(f"DROP OWNED BY {role}")
        cluster.runs(f"DROP ROLE {role}")


async def read_as(cluster: Cluster, role: str, tables: list[str], **options: Any) -> Demand:
    """As a role that may read these tables."""
    with as_role(cluster, role) as url:
        cluster.runs(f"GRANT USAGE ON SCHEMA curio TO {role}")
        for table in tables:
            cluster.runs(f"GRANT SELECT ON curio.{table} TO {role}")
        return await source(url, **options).demand()


async def test_a_database_that_is_not_curios_is_told_with_the_remedy(database_url: str):
    url = database_url.replace("postgresql+psycopg://", "postgresql://")

    with pytest.raises(TryLater, match=rf"there is no curio\.harmony_machines .*→ .*SELECT .*{SETTING}"):
        await source(url).demand()


async def test_a_role_that_may_not_enter_the_schema_is_told_what_to_grant(curio: Cluster):
    curio.runs("GRANT SELECT ON ALL TABLES IN SCHEMA curio TO public")

    with (
        as_role(curio, "stranger") as url,
        pytest.raises(TryLater, match=rf"Curio's database does not let us read .*→ grant .*{SETTING}"),
    ):
        await source(url).demand()


# --- rows that cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("posted", "waited", "is_unread"),
    [
        ("now() - interval '2 min'", 2 * MINUTE, False),
        ("now() + interval '4 min'", 0 * MINUTE, False),  # clocks differ
        ("now() + interval '6 min'", None, True),
        ("now() - interval '9 years'", 9 * 365 * DAY, False),
        ("'epoch'", None, True),
        ("'infinity'", None, True),
        ("'-infinity'", None, True),
        ("'0044-03-15 BC'", None, True),
        ("'290000-01-01'", None, True),
    ],
)
async def test_a_wait_that_cannot_be_is_not_known_and_what_waits_is_counted(
    idle: Cluster, posted: str, waited: timedelta | None, is_unread: bool
):
    idle.runs(f"INSERT INTO harmony_task (name, added_by, posted_time) VALUES ('PoRep', 1, {posted})")

    demand = await read(idle)

    assert demand.pending == 1
    if waited is None:
        assert demand.oldest_pending is None
    else:
        assert demand.oldest_pending is not None
        assert abs(demand.oldest_pending - waited) < 5 * DAY if waited > DAY else demand.oldest_pending == waited
    assert ("oldest_pending" in demand.unread) is is_unread


async def test_a_row_that_cannot_be_hides_none_that_can(idle: Cluster):
    idle.task(1, "PoRep", posted=-HOUR)
    idle.task(2, "PoRep", posted=7 * MINUTE)
    idle.runs("INSERT INTO harmony_task (id, name, added_by, posted_time) VALUES (3, 'PoRep', 1, '-infinity')")

    demand = await read(idle)

    assert (demand.pending, demand.oldest_pending, demand.unread) == (3, 7 * MINUTE, {})


async def test_attempts_of_a_time_to_come_are_not_of_the_last_hour_and_durations_that_cannot_be_are_none(
    idle: Cluster,
):
    idle.attempt(1, "PoRep", ended=5 * MINUTE, took=70 * SECOND, result=True)
    idle.attempt(2, "PoRep", ended=-4 * MINUTE, took=70 * SECOND, result=True)  # clocks differ
    idle.attempt(3, "PoRep", ended=-DAY, result=True)
    idle.attempt(4, "PoRep", ended=-DAY)
    idle.attempt(5, "PoRep", ended=5 * MINUTE, took=-HOUR, result=True)
    idle.attempt(6, "PoRep", ended=5 * MINUTE, took=400 * DAY, result=True)
    for start, end in (("-infinity", "now"), ("now", "infinity"), ("infinity", "now"), ("-infinity", "-infinity")):
        idle.runs(
            "INSERT INTO harmony_task_history (task_id, name, posted, work_start, work_end, result, err,"
            " completed_by_host_and_port) VALUES (7, 'PoRep', now(), %s, %s, true, '', '')",
            [start, end],
        )

    demand = await read(idle)

    assert (demand.done_per_hour, demand.failed_per_hour, demand.proof_p95) == (6, 0, 70 * SECOND)


def test_control_an_innocent_percentile_of_such_durations_is_no_duration(idle: Cluster):
    idle.attempt(1, "PoRep", ended=5 * MINUTE, took=-HOUR, result=True)

    p95 = "percentile_cont(0.95) WITHIN GROUP (ORDER BY work_end - work_start)"
    assert idle.sees(f"SELECT {p95} FROM harmony_task_history") == -HOUR


@pytest.mark.parametrize("count", [-1, 10**9, "many", 0.5, None])
def test_a_count_that_no_queue_has_is_refused_whoever_answers(count: object):
    figures = {"pending": 1, "claimed": 0, "running": 0, "retrying": 0, "oldest_pending": None}

    assert Waiting.model_validate(figures).pending == 1  # the control
    with pytest.raises(ValidationError):
        Waiting.model_validate(figures | {"pending": count})


async def test_ages_do_not_depend_on_what_time_it_is_here(curio: Cluster):
    """It is noon of a day in 2026 here, and whatever it is in the database."""
    here = curio.sees("SELECT clock_timestamp()")
    assert isinstance(here, datetime)
    other_day = PassingTime()
    other_day.advance(-300 * DAY)

    demand = await read(curio, clock=other_day)

    assert demand == COUNTED.model_copy(update={"seen_at": NOON - 300 * DAY})


# --- a source that is down or stale -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signed_in", "is_known"),
    [
        ("now() - interval '4 min 50 s'", True),
        ("now() - interval '5 min 10 s'", False),
        ("now() - interval '400 days'", False),
        ("now() + interval '4 min'", True),  # clocks differ
        ("now() + interval '6 min'", False),  # the clock was set back since
        ("'infinity'", False),
        ("'-infinity'", False),
    ],
)
async def test_a_database_in_which_no_worker_signs_in_any_more_is_a_copy_or_a_corpse(
    idle: Cluster, signed_in: str, is_known: bool
):
    idle.task(1, "PoRep", posted=MINUTE)
    idle.runs(f"UPDATE harmony_machines SET last_contact = {signed_in}")

    if is_known:
        assert (await read(idle)).pending == 1
    else:
        with pytest.raises(TryLater, match=rf"no worker of Curio has signed in for 5 minutes → .*{SETTING}"):
            await read(idle)


async def test_a_curio_without_any_machine_is_stale_too(idle: Cluster):
    idle.runs("DELETE FROM harmony_machines")

    with pytest.raises(TryLater, match="no worker of Curio has signed in"):
        await read(idle)


async def test_a_database_that_is_down_is_told_without_the_password():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"postgresql://reader:{PASSWORD}@127.0.0.1:{port}/yugabyte"

    told = await refusal(url)

    assert told == f"Curio's database does not answer (Connection refused) → see whether it runs, and check {SETTING}"


async def test_a_login_that_is_refused_is_told_without_the_password(idle: Cluster):
    with asked_for_a_password(idle, "wary") as url:
        right, wrong, none = (
            url.replace("//wary@", f"//wary{password}@") for password in (f":{PASSWORD}", ":wrong", "")
        )
        assert (await source(right).demand()).pending == 0  # the control
        told = {await refusal(wrong), await refusal(none)}

    assert told == {f"Curio's database refuses the login → correct user and password in {SETTING}"}


@contextmanager
def asked_for_a_password(cluster: Cluster, role: str) -> Generator[str]:
    """The address of a role that this server trusts as little as one from another machine."""
    rules = Path(cluster.sees("SHOW hba_file"))
    before = rules.read_text()
    with as_role(cluster, role, f"CREATE ROLE {{}} LOGIN PASSWORD '{PASSWORD}' IN ROLE pg_read_all_data") as url:
        rules.write_text(f"local all {role} scram-sha-256\n{before}")
        cluster.runs("SELECT pg_reload_conf()")
        try:
            while is_let_in(url):  # the server reads its rules in its own time
                pass
            yield url
        finally:
            rules.write_text(before)
            cluster.runs("SELECT pg_reload_conf()")


def is_let_in(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


async def refusal(url: str, **options: Any) -> str:
    """What a person is told; a traceback must not say more of the password than this does."""
    with pytest.raises(TryLater) as refused:
        await source(url, **options).demand()
    everything = "".join(traceback.format_exception(refused.value))
    assert PASSWORD not in everything
    return str(refused.value)


async def test_a_server_that_takes_the_call_and_says_nothing_is_given_up_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = await refusal(
            f"postgresql://reader:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/yugabyte", deadline=timedelta(0)
        )

    assert told == f"Curio's database took over 0 s → see whether it is busy, and check {SETTING}"


async def test_a_table_that_is_locked_is_given_up_and_the_next_reading_has_it(curio: Cluster):
    with locked(curio, "harmony_task"):
        told = await refusal(curio.url, statement_timeout=timedelta(milliseconds=50))

    assert told == (
        f"Curio's database took over 0.05 s for a statement → see what it is busy with, and check {SETTING}"
    )
    assert await read(curio) == COUNTED


async def test_a_history_that_takes_too_long_does_not_hide_how_much_work_waits(curio: Cluster):
    with locked(curio, "harmony_task_history"):
        demand = await read(curio, statement_timeout=timedelta(milliseconds=50))

    assert (demand.pending, demand.market, demand.done_per_hour) == (COUNTED.pending, COUNTED.market, None)
    assert {*demand.unread} == {"done_per_hour", "failed_per_hour", "final_failures_per_hour", "proof_p95"}
    assert {*demand.unread.values()} == {"Curio's database took over 0.05 s for a statement"}


async def test_a_connection_that_is_cut_is_told_and_the_next_reading_has_a_new_one(curio: Cluster):
    asking = source(curio.url)
    with locked(curio, "harmony_task_history"):
        reading = asyncio.create_task(asking.demand())
        await asyncio.to_thread(cut, curio)
        with pytest.raises(TryLater, match=rf"Curio's database does not answer \(.*\) → .*{SETTING}"):
            await reading

    assert (await asking.demand()).pending == COUNTED.pending


@contextmanager
def locked(cluster: Cluster, table: str) -> Generator[None]:
    """As during one of Curio's migrations."""
    with psycopg.connect(cluster.url) as connection:
        connection.execute(sql.SQL("LOCK TABLE curio.{} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
        yield


def cut(cluster: Cluster) -> None:
    """As soon as a reading waits."""
    while not cluster.sees(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'fleet-agent' AND wait_event_type = 'Lock'"
    ):
        pass


# --- reading only -----------------------------------------------------------------------------------------------------


async def test_what_would_write_fails_although_the_role_may(idle: Cluster):
    """A table that writes when it is read. The control: in an ordinary session of the same role it does."""
    idle.runs("CREATE TABLE written (at timestamptz)")
    idle.runs(
        "CREATE FUNCTION writes() RETURNS boolean VOLATILE LANGUAGE sql AS"
        " 'INSERT INTO curio.written VALUES (now()) RETURNING true'"
    )
    idle.runs("ALTER TABLE harmony_task RENAME TO task")
    idle.runs("CREATE VIEW harmony_task AS SELECT task.*, writes() FROM task WHERE writes()")
    idle.runs("INSERT INTO task (name, added_by, posted_time) VALUES ('PoRep', 1, now())")

    with pytest.raises(TryLater, match=rf"cannot execute INSERT in a read-only transaction\) → check {SETTING}"):
        await read(idle)

    assert idle.sees("SELECT count(*) FROM written") == 0
    idle.sees("SELECT count(*) FROM harmony_task")
    assert idle.sees("SELECT count(*) FROM written") > 0


async def test_an_address_cannot_ask_for_a_session_that_writes(idle: Cluster):
    url = f"{idle.url}&options=-c%20default_transaction_read_only%3Doff"
    with psycopg.connect(url) as control:
        assert control.execute("SHOW default_transaction_read_only").fetchone() == ("off",)

    await test_what_would_write_fails_although_the_role_may(Cluster(url, idle.writer, is_newest=True))


async def test_the_role_of_the_manual_can_read_all_that_is_asked_and_change_nothing(curio: Cluster):
    manual = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    statements = re.search(r"```sql\s+(CREATE ROLE fleet_agent.*?)```", manual, re.DOTALL)
    assert statements is not None
    assert "DATABASE yugabyte" in statements[1]
    create = statements[1].replace("DATABASE yugabyte", f"DATABASE {curio.writer.info.dbname}")
    with as_role(curio, "fleet_agent", create) as url:
        demand = await read(Cluster(url, curio.writer, is_newest=True))

        with psycopg.connect(url, autocommit=True) as session:
            session.execute("SET default_transaction_read_only = off")
            for table in ("harmony_task", "harmony_machines", "harmony_task_history", "proofshare_queue"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(sql.SQL("DELETE FROM curio.{}").format(sql.Identifier(table)))
    assert demand == COUNTED


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "yugabyte",
        f"host=db password={PASSWORD}",
        f"https://reader:{PASSWORD}@db/yugabyte",
        f"postgresql+psycopg://reader:{PASSWORD}@db/yugabyte",
        f"postgresql://reader:{PASSWORD}@db:99999/yugabyte",
        f"postgresql://reader:{PASSWORD}@db:port/yugabyte",
        f"postgresql://reader:{PASSWORD}@[::1/yugabyte",
        f"postgresql://reader:{PASSWORD}@db/yugabyte?no_such_option=1",
        f"postgresql://reader:a@{PASSWORD}@db/yugabyte",
        f"postgresql://reader:a/{PASSWORD}@db/yugabyte",
        f"postgresql://reader:1/{PASSWORD}@db/yugabyte",
        f"postgresql://reader:{PASSWORD}/b@db/yugabyte",
    ],
)
def test_an_address_that_cannot_be_one_is_told_with_the_setting_and_without_a_piece_of_it(url: str):
    with pytest.raises(FixSetup, match=SETTING) as refused:
        source(url)

    assert PASSWORD not in "".join(traceback.format_exception(refused.value))
    assert "\n" not in str(refused.value)


def test_control_the_driver_repeats_what_it_cannot_read():
    with pytest.raises(psycopg.Error) as refused:
        psycopg.connect(f"postgresql://127.0.0.1:{PASSWORD}/b@db/yugabyte")

    assert PASSWORD in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://reader@db/yugabyte",
        "postgres://reader:p%40ss%2Fword@db:5433/yugabyte?sslmode=verify-full",
        "postgresql://reader:secret@one:5433,two:5433,three:5433/yugabyte",
        "postgresql://reader@[::1]:5433/yugabyte",
        "postgresql://reader@/yugabyte?host=%2Frun%2Fpostgresql",
    ],
)
def test_an_address_that_a_database_can_have_is_taken(url: str):
    source(url)
