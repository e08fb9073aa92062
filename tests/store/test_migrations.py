"""The migrations make exactly the tables that the code describes, from anywhere and once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlmodel import SQLModel

from fleet_agent.errors import DatabaseUnusable
from fleet_agent.store.database import connect, open_database
from fleet_agent.store.migrate import alembic_config, upgrade
from fleet_agent.store.tables import SCHEMA_VERSION
from tests.postgres import TemporaryPostgres, plain


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
