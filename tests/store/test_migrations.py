"""The migrations make exactly the tables that the code describes, from anywhere and once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlmodel import SQLModel

from fleet_agent.domain.policy import WatchBounds
from fleet_agent.errors import DatabaseUnusable
from fleet_agent.store import ledger, reading, session
from fleet_agent.store.database import connect, open_database
from fleet_agent.store.migrate import alembic_config, upgrade
from fleet_agent.store.tables import SCHEMA_VERSION
from tests.postgres import TemporaryPostgres, plain
from tests.store.rig import NOON


@pytest.fixture
def empty_url(postgres: TemporaryPostgres) -> str:
    """A database without a schema."""
    with psycopg.connect(plain(postgres.server.url("postgres")), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS without_schema WITH (FORCE)")
        admin.execute("CREATE DATABASE without_schema")
    return postgres.server.url("without_schema")


def shape(connection: Connection) -> dict[str, set[tuple[str, ...]]]:
    """Every column, constraint and index, as the database itself writes them down."""
    queries = {
        "columns": "SELECT table_name, column_name, data_type, is_nullable, coalesce(identity_generation, ''), "
        "coalesce(numeric_precision::text, ''), coalesce(numeric_scale::text, '') "
        "FROM information_schema.columns WHERE table_schema = 'public'",
        "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace",
        "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    }
    return {
        name: {tuple(row) for row in connection.execute(text(query)) if row[0] != "alembic_version"}
        for name, query in queries.items()
    }


def test_models_and_migrations_agree(database_url: str, empty_url: str) -> None:
    """Alembic's own comparison leaves out checks, partial indexes and identities; the catalogue does not."""
    migrated, described = connect(database_url), connect(empty_url)
    with migrated.connect() as by_migration, described.connect() as by_models:
        SQLModel.metadata.create_all(by_models)

        assert compare_metadata(MigrationContext.configure(by_migration), SQLModel.metadata) == []
        assert shape(by_migration) == shape(by_models)
    migrated.dispose()
    described.dispose()


def test_a_column_that_the_migrations_forgot_would_be_noticed(database_url: str) -> None:
    """Control of the test above."""
    engine = connect(database_url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE box DROP COLUMN protected"))
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) != []
    engine.dispose()


def test_the_schema_version_is_the_newest_migration(database_url: str) -> None:
    engine = connect(database_url)
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(alembic_config(connection))
    engine.dispose()

    assert scripts.get_current_head() == SCHEMA_VERSION


def test_migrating_works_from_any_folder(empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    upgrade(empty_url)

    open_database(empty_url).close()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    engine = connect(database_url)
    with engine.connect() as connection:
        before = shape(connection)
        upgrade(database_url)
        assert shape(connection) == before
    engine.dispose()


def test_two_that_migrate_at_once_do_not_meet(empty_url: str) -> None:
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(upgrade, empty_url) for _ in range(2)]:
            done.result()

    open_database(empty_url).close()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(database_url: str) -> None:
    engine = connect(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()

    for use in (upgrade, open_database):
        with pytest.raises(DatabaseUnusable, match=r"made by a newer fleet-agent .* → install that version again"):
            use(database_url)


def test_a_database_without_a_schema_is_refused_until_it_is_migrated(empty_url: str) -> None:
    with pytest.raises(DatabaseUnusable, match="has no schema yet and needs 0002 → `fleet-agent up`"):
        open_database(empty_url)


# --- what is there already --------------------------------------------------------------------------------------------

OF_THE_FIRST_RELEASE = """
INSERT INTO installation VALUES (1, 'abc123', '2026-03-17 12:00Z', '2026-03-17 12:00Z', 1);
INSERT INTO session_state (fleet, run_counter, last_bands, epoch, mode, objective, notes, compaction, policy,
        policy_version)
    VALUES ('main', 7, '{}', 0, 'live', 'prove', '', '{}', '{"limits": {"max_boxes": 3}}', 1);
INSERT INTO run (fleet, run_id, flow_run_id, attempt, worker_id, trigger, epoch, opened_at, status, seen_at, reason,
        reason_tainted, steps, wrote, tokens_in, tokens_out, tokens_cached, cost_usd, turns, summary, exit_reason,
        quiet, no_op, in_prompt)
    VALUES ('main', 7, 'f', 1, 'w', 'manual', 0, now(), 'closed', now(), '', false, 1, false, 1, 1, 0, 0, 1, 'rented',
        'finished', false, false, true);
INSERT INTO action (fleet, key, actor, run_id, tool, arguments, box_key, reserved_usd_per_hour, created_at, ruling,
        code, sentence, status, sent_at, outcome)
    VALUES ('main', 'r7-s1-c0-aaaa', 'agent', 7, 'rent_box', '{"offer_id": 1, "reason": "work"}', 'r7-s1-c0-aaaa', 0.4,
            now(), 'allow', 'allowed', '', 'done', now(), 'rented'),
        ('main', 'r7-s1-c1-bbbb', 'agent', 7, 'destroy_box', '{"id": 9, "reason": "idle"}', NULL, 0, now(), 'refuse',
            'not_ours', '', 'refused', NULL, '');
INSERT INTO box (key, fleet, label, machine_id, gpu_name, num_gpus, agreed_usd_per_hour, rented_at, vast_id, stage,
        sightings, misses, gone_because, protected)
    VALUES ('r7-s1-c0-aaaa', 'main', 'fa/abc123/main/r7-s1-c0-aaaa', 11, 'RTX 4090', 1, 0.4, now(), 101, 'proving', 3,
        0, '', true);
"""


@pytest.fixture
def first_release_url(empty_url: str) -> str:
    """A database as the first release has left it: a fleet with one box, that a run rented."""
    engine = connect(empty_url)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
    with engine.begin() as connection:
        connection.execute(text(OF_THE_FIRST_RELEASE))
    engine.dispose()
    return empty_url


def test_what_an_older_release_has_kept_is_there_after_the_upgrade(first_release_url: str) -> None:
    upgrade(first_release_url)

    database = open_database(first_release_url)
    with database.transaction() as tx:
        status, rows = reading.status(tx, "main", now=NOON), reading.actions(tx, "main", last=9)
        (box,) = reading.boxes(tx, "main")
        did = ledger.has_effect(tx, "main", 7)
        policy = session.policy(tx, "main")
    database.close()

    assert (status["run_counter"], status["objective"], status["installation"]) == (7, "prove", "abc123")
    assert (policy.limits.max_boxes, policy.watch) == (3, WatchBounds())  # and what it could not know has its default
    assert (box["vast_id"], box["stage"], box["protected"], box["spent_usd"]) == (101, "proving", True, 0)
    assert {row["key"]: row["sent_by_run"] for row in rows} == {"r7-s1-c0-aaaa": 7, "r7-s1-c1-bbbb": None}
    assert did, "a retry of that run is told that it has rented"


def test_an_upgrade_that_dies_has_changed_nothing(first_release_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the one that does not."""
    engine = connect(first_release_url)
    with engine.connect() as connection:
        before = shape(connection)
    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_check_constraint", dies)  # the last thing that the migration does
        with pytest.raises(KeyboardInterrupt):
            upgrade(first_release_url)
    with engine.connect() as connection:
        assert shape(connection) == before
        upgrade(first_release_url)
        assert shape(connection) != before
    engine.dispose()


def dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
