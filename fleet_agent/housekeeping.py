"""The housekeeping: what is done once an hour, whether or not there is work.

    read the provider's charges  →  lay them beside what was counted  →  have a person told what does not fit

A tombstone is not trusted: a box that our ledger calls gone may live on where no list shows it, and its bill is the
last thing that would tell. Nothing is rented or destroyed here; a charge proves no box.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleet_agent.domain.spent import Reckoning
from fleet_agent.ports import Books, Clock, Market

HOUSEKEEPING_EVERY: Final = timedelta(hours=1)
"""Business time: what the cron line in `prefect.yaml` says."""


@dataclass(frozen=True)
class HousePorts:
    """Everything the housekeeping reaches the world through."""

    clock: Clock
    market: Market
    books: Books


async def keep_house(ports: HousePorts) -> Reckoning:
    """Once, for every fleet. Raises TryLater and FixSetup; whatever was not compared is compared in an hour."""
    read_at = ports.clock.now()
    since = await ports.books.charges_from(read_at)
    charges = await ports.market.charges(since, read_at)
    return await ports.books.compare(charges, since=since, read_at=read_at)
