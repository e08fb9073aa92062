"""A real PostgreSQL for the tests: one server a session, one migrated template, one fresh copy of it for each test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from fleet_agent.store.embedded import EmbeddedPostgres, ensure_running

TEMPLATE = "template_fleet"


class TemporaryPostgres:
    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    def template(self, name: str) -> str:
        """The URL of a new database like the template that is a template itself, once nobody is connected to it."""
        self.server.create_database(name, template=TEMPLATE)
        return self.server.url(name)

    @contextmanager
    def clone(self, template: str = TEMPLATE) -> Generator[str]:
        """The URL of a new database like the template, dropped afterwards whoever is still connected to it. Names come
        again, so that a test may find its statements compiled by the one before it (`tests.world.opened`)."""
        name = self._free.pop() if self._free else f"test_{next(self._numbers)}"
        self.server.create_database(name, template=template)
        try:
            yield self.server.url(name)
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            with psycopg.connect(plain(self.server.url("postgres")), autocommit=True) as connection:
                connection.execute(drop)
            self._free.append(name)


@contextmanager
def temporary_postgres(migrate: Callable[[str], object]) -> Generator[TemporaryPostgres]:
    """A server in a temporary folder, gone afterwards. `migrate(url)` makes the template's tables, and closes its
    connections: PostgreSQL copies no database that is in use."""
    with temporary_folder() as folder, ensure_running(folder, durable=False) as server:
        server.create_database(TEMPLATE)
        migrate(server.url(TEMPLATE))
        yield TemporaryPostgres(server)


@contextmanager
def temporary_folder() -> Generator[Path]:
    """A new folder, deleted afterwards, through which other users may pass: as root the server runs as another one,
    and pytest's own tmp_path is closed to it."""
    with tempfile.TemporaryDirectory(prefix="fleet-agent-test-", dir=_fast_place()) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def _fast_place() -> str | None:
    """Memory, where there is a gigabyte of it that may hold programs: a new database is a thousand small files, and on
    a disk they take three times as long. (A container's /dev/shm often has 64 MB, and may not hold programs.)"""
    memory = "/dev/shm"
    if not os.path.isdir(memory) or shutil.disk_usage(memory).free < 2**30 or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    return memory


def plain(url: str) -> str:
    """The same database for psycopg itself, which knows nothing of SQLAlchemy's drivers."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)
