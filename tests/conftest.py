"""What every test may use: a real PostgreSQL with a fresh copy of our tables, and a simulated world."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

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


# --- several processes side by side -----------------------------------------------------------------------------------

BLACK_BOX = "tests/blackbox/"
# Of these (nearly) every test builds a tree for itself alone, so they need not wait for each other.
HAVE_THEIR_OWN_HOUSE = ("tests/blackbox/test_deaths.py", "tests/blackbox/test_fence.py")
SETUP = re.compile(r"\[((?:resident|process)(?:, prefetch \d+)?)[]-]")


class ByTree(LoadScopeScheduling):
    """What shares a process tree goes to one process: a file, or the tests of the black box on one set-up."""

    def _split_scope(self, nodeid: str) -> str:
        setup = SETUP.search(nodeid)
        if nodeid.startswith(HAVE_THEIR_OWN_HOUSE):
            return nodeid
        if nodeid.startswith(BLACK_BOX):
            return f"{BLACK_BOX} {setup[1] if setup else ''}"
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByTree:
    return ByTree(config, log)


@pytest.hookimpl(trylast=True)  # behind the shuffling
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits longest comes first, so that nobody waits for it at the end."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(BLACK_BOX):
        return 0
    return 1 if item.get_closest_marker("prefect") else 2
