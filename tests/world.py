"""A whole installation in one process: the story on the simulated world, with the real database and the real clients.

The clients speak HTTP to the simulator's faces over an in-process transport; time moves only when a test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import httpx
import httpx2
from openai import AsyncOpenAI
from sqlalchemy import text

from fleet_agent.clients.model import ChatModel, ChatOptions
from fleet_agent.clients.models import ModelList
from fleet_agent.clients.pace import MemoryTurns, Pace
from fleet_agent.clients.prometheus import DemandQueries, PrometheusDemand
from fleet_agent.clients.vast import VastMarket
from fleet_agent.cycle import run_cycle
from fleet_agent.domain.report import Report
from fleet_agent.domain.run import RunRequest
from fleet_agent.domain.tokens import by_bytes
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.ports import Ports
from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import MarketConfig
from fleet_agent.sim.scenarios import Scenario
from fleet_agent.sim.world import World, open_world
from fleet_agent.store import reading, steering
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.installation import found_installation
from fleet_agent.store.journal import PostgresJournal
from fleet_agent.store.model_servers import PostgresModelMemory
from tests.soundness import Door, unsound

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
IMAGE = "example/prover@sha256:" + "a" * 64
HEARTBEAT = timedelta(minutes=5)
ADDRESS = "http://simulator.invalid"
KEY = {"Authorization": "Bearer made-up"}

A_BATCH = Scenario(
    name="a-batch",
    market=MarketConfig(
        loading=(timedelta(seconds=60), timedelta(seconds=75)),
        productive_after=timedelta(seconds=250),
    ),
    demand=DemandScript(waiting=14, effort=0.012),
)
"""Work for two boxes: it still waits at the heartbeat after they were rented, and is done at the next."""

REAL_TIMES = {
    "run": ("seen_at",),
    "action": ("sent_at", "send_by"),
    "box": ("missed_since", "busy_until"),
}
"""The columns of a fleet that are measured by the database's own clock."""


class StoryClock:
    """Both faces of time, moved by the test alone."""

    def __init__(self, business: ManualClock) -> None:
        self._business = business
        self._start = business.now()
        self._off_by = timedelta()

    def now(self) -> datetime:
        return self._business.now() + self._off_by

    def set_off_by(self, off_by: timedelta) -> None:
        """Somebody sets the clock: `now` is another time, and none has passed."""
        self._off_by = off_by

    def elapsed(self) -> timedelta:
        return self._business.now() - self._start


class ListeningNotifier:
    """Keeps what the operator was told."""

    has_an_address = True

    def __init__(self) -> None:
        self.told: list[str] = []

    async def notify(self, text: str) -> str:
        self.told.append(text)
        return "The operator was told."


@dataclass
class Installation:
    """One fleet of one database, and the simulated world it lives in."""

    sim: World
    time: ManualClock
    clock: StoryClock
    database: Database
    ports: Ports
    notifier: ListeningNotifier
    door: Door
    fleet: str = "main"
    unsound_because: str = ""
    """Set by a test that breaks a promise about money to show that it would be broken."""
    _flow_runs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- what happens -------------------------------------------------------------------------------------------------

    async def run(self, trigger: Trigger = Trigger.MANUAL, **request: Any) -> Report:
        """One run of the story, as a flow run of its own."""
        values: dict[str, Any] = {
            "fleet": self.fleet,
            "trigger": trigger,
            "flow_run_id": f"flow-run-{next(self._flow_runs)}",
            "worker_id": "test",
        }
        return await run_cycle(RunRequest(**values | request), self.ports)

    async def heartbeat(self) -> Report:
        """Five minutes pass and the heartbeat comes."""
        self.time.advance(HEARTBEAT)
        return await self.run(Trigger.HEARTBEAT)

    def pass_time(self, by: timedelta) -> None:
        """Both clocks go on, and so does the database's own."""
        self.time.advance(by)
        self.date_back(by)

    def date_back(self, by: timedelta) -> None:
        """What the database measures by its own clock is as if so much time had passed since."""
        with self.database.transaction() as tx:
            for table, columns in REAL_TIMES.items():
                dated_back = ", ".join(f"{column} = {column} - :by" for column in columns)
                tx.execute(text(f"UPDATE {table} SET {dated_back}"), {"by": by})

    def say(self, words: str) -> None:
        with self.database.shared(self.fleet) as tx:
            post(tx, self.fleet, Post(kind=Kind.MESSAGE, source="cli", text=words), now=self.time.now())

    def set_policy(self, changes: Mapping[str, str]) -> None:
        with self.database.exclusive(self.fleet) as tx:
            steering.change_policy(tx, self.fleet, changes, who="test", now=self.time.now())

    # --- what is there ------------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """Oldest first."""
        with self.database.transaction() as tx:
            return reading.runs(tx, self.fleet, last=1000)[::-1]

    def actions(self, *tools: str) -> list[dict[str, Any]]:
        """Oldest first."""
        with self.database.transaction() as tx:
            rows = reading.actions(tx, self.fleet, last=1000)[::-1]
        return [row for row in rows if not tools or row["tool"] in tools]

    def boxes(self) -> list[dict[str, Any]]:
        with self.database.transaction() as tx:
            return reading.boxes(tx, self.fleet)

    def status(self) -> dict[str, Any]:
        with self.database.transaction() as tx:
            return reading.status(tx, self.fleet, now=self.time.now())


@asynccontextmanager
async def installation(
    database_url: str,
    *,
    scenario: Scenario = A_BATCH,
    model: str = "sensible",
    seed: int = 1,
    key_wanted: str | None = None,
) -> AsyncGenerator[Installation]:
    """A new installation whose policy names an image, on a world of its own at noon."""
    time = ManualClock(NOON)
    sim = open_world(time, scenario, seed=seed, policy=model, api_key=key_wanted)
    database = opened(database_url)
    try:
        found_installation(database, origin=NOON)
        async with living_in(sim, time, database) as made:
            made.set_policy({"launch.image": IMAGE})
            yield made
            assert made.unsound_because or not (broken := unsound(made)), broken
    finally:
        database.close()


@asynccontextmanager
async def living_in(sim: World, time: ManualClock, database: Database) -> AsyncGenerator[Installation]:
    """The installation of this database, on a world that others may share with it."""
    clock = StoryClock(time)
    door = Door(sim, database)
    notifier = ListeningNotifier()
    async with (
        httpx.AsyncClient(base_url=ADDRESS, transport=httpx.ASGITransport(door), headers=KEY) as vast,
        httpx.AsyncClient(base_url=f"{ADDRESS}/demand", transport=httpx.ASGITransport(sim.vast_face)) as demand,
        AsyncOpenAI(
            base_url=f"{ADDRESS}/v1",
            api_key="made-up",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(sim.model_face)),
        ) as chat,
    ):
        options = ChatOptions(model="simulated")
        chat_model = ChatModel(chat, options, count_tokens=by_bytes, elapsed=clock.elapsed, sleep=skip)
        yield Installation(
            sim=sim,
            time=time,
            clock=clock,
            database=database,
            notifier=notifier,
            door=door,
            ports=Ports(
                clock=clock,
                market=VastMarket(vast, clock=clock, pace=Pace({}, MemoryTurns(clock.now), sleep=skip), box_env={}),
                model=ModelList([chat_model], PostgresModelMemory(database, clock, "main"), elapsed=clock.elapsed),
                demand=PrometheusDemand(demand, DemandQueries(), clock=clock),
                notifier=notifier,
                journal=PostgresJournal(database, clock, "main"),
                count_tokens=by_bytes,
                draw_mark=marks(),
            ),
        )


@cache
def opened(url: str) -> Database:
    """One for each address, whose engine keeps the statements that it has compiled. Closed, it has no connection, and
    opens new ones when it is used again."""
    return open_database(url)


def marks() -> Callable[[], str]:
    """One after the other, so that a prompt can be foretold."""
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):012x}"


async def skip(_: float) -> None:
    """Waiting takes no time in a story."""
