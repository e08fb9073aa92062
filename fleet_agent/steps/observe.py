"""Look at the world: inventory, demand and money, each Known with its time or Unknown with its reason.

A source that cannot be read makes its part Unknown and the run goes on: safety does not wait for demand. Only what a
person must change (`FixSetup`) ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Inventory
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.run import Run
from fleet_agent.errors import TryLater
from fleet_agent.ports import Ports

Part = TypeVar("Part")


async def observe(run: Run, ports: Ports) -> Observation:
    """One look; what it shows of our boxes is recorded in the ledger before anybody decides on it."""
    inventory, demand, account = await _look_around(ports)
    if isinstance(inventory, Known):
        boxes = await ports.journal.record_sighting(run, inventory.value)
    else:
        boxes = await ports.journal.boxes(run)
    return await _observation(run, ports, inventory, demand, account, boxes)


async def glance(run: Run, ports: Ports) -> Observation:
    """The same look, for a person who wants to see what the model would see: nothing is recorded."""
    inventory, demand, account = await _look_around(ports)
    return await _observation(run, ports, inventory, demand, account, await ports.journal.boxes(run))


async def _look_around(
    ports: Ports,
) -> tuple[Known[Inventory] | Unknown, Known[Demand] | Unknown, Known[Account] | Unknown]:
    inventory, demand, account = await asyncio.gather(
        _look(ports.market.inventory(), ports),
        _look(ports.demand.demand(), ports),
        _look(ports.market.account(), ports),
    )
    if isinstance(inventory, Known):  # it may be that of a moment ago
        inventory = Known(value=inventory.value, seen_at=inventory.value.seen_at)
    return inventory, demand, account


async def _observation(
    run: Run,
    ports: Ports,
    inventory: Known[Inventory] | Unknown,
    demand: Known[Demand] | Unknown,
    account: Known[Account] | Unknown,
    boxes: tuple[Box, ...],
) -> Observation:
    in_flight_count, in_flight_usd_per_hour = await ports.journal.in_flight(run)
    return Observation(
        taken_at=ports.clock.now(),
        inventory=inventory,
        demand=demand,
        account=account,
        boxes=boxes,
        in_flight_count=in_flight_count,
        in_flight_usd_per_hour=in_flight_usd_per_hour,
    )


async def _look(question: Awaitable[Part], ports: Ports) -> Known[Part] | Unknown:
    seen_at = ports.clock.now()
    try:
        return Known(value=await question, seen_at=seen_at)
    except TryLater as error:
        return Unknown(reason=error.cause)
