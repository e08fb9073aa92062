from __future__ import annotations

from collections.abc import Generator

import pytest

from fleet_agent.store.database import Database, open_database
from fleet_agent.store.installation import found_installation
from tests.store.rig import IMAGE, Fleet


@pytest.fixture
def database(database_url: str) -> Generator[Database]:
    """A fresh database with an installation in it."""
    opened = open_database(database_url)
    found_installation(opened)
    yield opened
    opened.close()


@pytest.fixture
def fleet(database: Database) -> Fleet:
    """A fleet that has never run."""
    return Fleet(database)


@pytest.fixture
async def ready(fleet: Fleet) -> Fleet:
    """A fleet that may rent, and where nothing waits: its policy names an image, and a run has seen that."""
    fleet.set_policy(launch__image=IMAGE, limits__min_age="PT0S")
    await fleet.run_through()
    return fleet
