"""What one run saw, each part with its own age or the reason why it is unknown.

Unknown is a value of its own, so that no code can take it for empty or zero by forgetting a check: whoever wants
the inventory must first ask whether it is `Known`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Generic, TypeVar

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import LIVE_STAGES, Box, Inventory
from fleet_agent.domain.money import Usd, UsdPerHour, runway, total
from fleet_agent.domain.values import Frozen

Part = TypeVar("Part")


class Known(Frozen, Generic[Part]):
    """`seen_at` is the time before the question was asked: no part looks younger than it is."""

    value: Part
    seen_at: datetime


class Unknown(Frozen):
    reason: str


class Account(Frozen):
    """The provider's account: spendable credit."""

    credit_usd: Decimal


class Observation(Frozen):
    """One look at the world, and the ledger as it stood right after it."""

    taken_at: datetime
    inventory: Known[Inventory] | Unknown
    demand: Known[Demand] | Unknown
    account: Known[Account] | Unknown
    boxes: tuple[Box, ...]
    in_flight_usd_per_hour: Decimal
    in_flight_count: int

    def live_boxes(self) -> tuple[Box, ...]:
        return tuple(box for box in self.boxes if box.stage in LIVE_STAGES)

    def burn(self) -> UsdPerHour:
        """What the live boxes cost, without what is still in flight."""
        return total([UsdPerHour(box.usd_per_hour) for box in self.live_boxes()])

    def runway(self) -> timedelta | None:
        if isinstance(self.account, Unknown):
            return None
        return runway(Usd(self.account.value.credit_usd), self.burn())
