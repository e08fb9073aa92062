"""A process that tells a story and, at its point, ends itself with SIGKILL: no `except`, no `finally`, no goodbye.

    python -m tests.chaos.victim '{"database_url": …}'

It reaches the provider and the demand over TCP, and the database as every process does. Only its model is a script.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime
from typing import NoReturn

from fleet_agent.clients import prometheus, vast
from fleet_agent.clients.pace import MemoryTurns, Pace
from fleet_agent.clients.prometheus import DemandQueries, PrometheusDemand
from fleet_agent.clients.vast import VastMarket
from fleet_agent.domain.tokens import by_bytes
from fleet_agent.domain.values import Frozen
from fleet_agent.ports import Ports
from fleet_agent.sim.clock import ManualClock
from fleet_agent.store.database import open_database
from fleet_agent.store.journal import PostgresJournal
from tests.chaos.stories import Greedy, run_of_the_agent
from tests.story.killing import Fuse, fused
from tests.world import ListeningNotifier, StoryClock, marks, skip


class Orders(Frozen):
    """What the victim is told: where the world is, and where it is to die."""

    database_url: str
    provider_url: str
    now: datetime
    idle: int
    busy: int
    at: int
    after: bool


class Deadly(Fuse):
    def blow(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody outlives this")


async def main(orders: Orders) -> None:
    clock = StoryClock(ManualClock(orders.now))
    async with (
        vast.open_client(orders.provider_url, "made-up") as provider,
        prometheus.open_client(f"{orders.provider_url}/demand") as demand,
    ):
        ports = Ports(
            clock=clock,
            market=VastMarket(provider, clock=clock, pace=Pace({}, MemoryTurns(clock.now), sleep=skip), box_env={}),
            model=Greedy(idle=orders.idle, busy=orders.busy),
            demand=PrometheusDemand(demand, DemandQueries(), clock=clock),
            notifier=ListeningNotifier(),
            journal=PostgresJournal(open_database(orders.database_url), clock, "main"),
            count_tokens=by_bytes,
            draw_mark=marks(),
        )
        await run_of_the_agent(fused(ports, Deadly(at=orders.at, after=orders.after)))


if __name__ == "__main__":
    asyncio.run(main(Orders.model_validate_json(sys.argv[1])))
