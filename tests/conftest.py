"""What every test may use: a real PostgreSQL with a fresh copy of our tables, and a simulated world."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fleet_agent.store import migrate
from tests.postgres import TemporaryPostgres, temporary_postgres


@pytest.fixture(scope="session")
def postgres() -> Generator[TemporaryPostgres]:
    with temporary_postgres(migrate.upgrade) as server:
        yield server


@pytest.fixture
def database_url(postgres: TemporaryPostgres) -> Generator[str]:
    with postgres.clone() as url:
        yield url
