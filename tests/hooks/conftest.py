from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.hooks.app import hooks_app
from fleet_agent.hooks.rate import Buckets
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.installation import found_installation
from fleet_agent.store.tables import Purpose
from tests.store.rig import Fleet

MOST_POSTS = 6
"""Of one source at once: a test has no time for thousands."""


@pytest.fixture
def database(database_url: str) -> Generator[Database]:
    opened = open_database(database_url)
    found_installation(opened)
    yield opened
    opened.close()


@pytest.fixture
def fleet(database: Database) -> Fleet:
    return Fleet(database)


def token_of(fleet: Fleet) -> str:
    return controls.rotate_token(Desk(fleet.database, fleet.clock, fleet.name, who="test", place="here"), Purpose.HOOKS)


@dataclass
class Door:
    """The door of a fleet's database, and a sender who has the token."""

    fleet: Fleet
    token: str
    sender: httpx.AsyncClient

    async def post(self, body: Any = None, *, source: str = "prom", **request: Any) -> httpx.Response:
        what = {"json": body} if body is not None else {}
        return await self.sender.post(f"/hooks/{source}/{self.token}", **what | request)


@pytest.fixture
async def door(fleet: Fleet) -> AsyncGenerator[Door]:
    app = hooks_app(fleet.database, fleet.clock, Buckets(fleet.clock.elapsed, burst=MOST_POSTS))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hooks.invalid") as sender:
        yield Door(fleet, token_of(fleet), sender)
