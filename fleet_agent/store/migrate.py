"""Bringing the schema up to date: Alembic, run from code, whatever the current folder and without an ini file.

Alembic is imported only where there is something to migrate: every command of a person passes here first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, func, select, text

from fleet_agent.store.database import connect, schema_problem, schema_version
from fleet_agent.store.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from alembic.config import Config

_ONE_AT_A_TIME: Final = 0x6D696772
"""Advisory lock: two processes that start together do not migrate together."""


def upgrade(url: str) -> None:
    """Migrate the database at `url` to this version; a current one is left alone.

    Raises DatabaseUnreachable, DatabaseUnusable (a newer schema is never touched).
    """
    engine = connect(url)
    try:
        with engine.begin() as connection:
            if not _is_behind(connection):
                return
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(select(func.pg_advisory_xact_lock(_ONE_AT_A_TIME)))
            if _is_behind(connection):  # whoever held the lock may have done it
                from alembic import command

                command.upgrade(alembic_config(connection), "head")
    finally:
        engine.dispose()


def _is_behind(connection: Connection) -> bool:
    version = schema_version(connection)
    problem = schema_problem(version)
    if problem is not None and version > SCHEMA_VERSION:
        raise problem
    return problem is not None


def alembic_config(connection: Connection) -> Config:
    """What Alembic needs to work on `connection`; the migrations find it in `attributes`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
