"""The controls: what others do, and pay for. The same stories, the same faults, and one habit that is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet_agent.domain.actions import RentBox
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.errors import LookFirst
from fleet_agent.ports import Ports, RentOrder
from tests.chaos.scene import Wrap


class AsksAgain:
    """Whoever got no answer asks again, as the provider's official client does with every request."""

    def __init__(self, market: Any) -> None:
        self._market = market

    def __getattr__(self, name: str) -> Any:
        return getattr(self._market, name)

    async def rent(self, order: RentOrder) -> int:
        try:
            return await self._market.rent(order)
        except LookFirst:
            return await self._market.rent(order)


class Forgets:
    """What is not in the first list is not: its place is given away."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def record_sighting(self, run: Any, inventory: Inventory) -> Any:
        await self._journal.record_sighting(run, inventory)
        listed = {instance.label for instance in inventory.instances}
        for rent in await self._journal.unsettled(run):
            if rent.tool == RentBox.name and rent.label not in listed:
                await self._journal.record_outcome(rent.key, ActionStatus.FAILED, "it is not in the list")
        return await self._journal.boxes(run)


def asks_again(ports: Ports) -> Ports:
    market: Any = AsksAgain(ports.market)
    return replace(ports, market=market)


def forgets(ports: Ports) -> Ports:
    journal: Any = Forgets(ports.journal)
    return replace(ports, journal=journal)


CONTROLS: Mapping[str, Wrap] = {"create_lost": asks_again, "list_lag": forgets}
"""By the fault that brings it to light."""
