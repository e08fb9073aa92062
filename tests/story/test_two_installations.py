"""Two installations on one account: each rents, drains and destroys for itself, and never touches what is the other's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from fleet_agent.domain.fleet import LABEL_PREFIX, Instance
from fleet_agent.domain.triggers import Trigger
from fleet_agent.lookout import Lookout
from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import MarketConfig
from fleet_agent.sim.scenarios import Scenario
from fleet_agent.sim.world import open_world
from fleet_agent.steps.troubles import Troubles
from fleet_agent.store import sightings
from fleet_agent.store.installation import found_installation
from fleet_agent.store.watch import PostgresLogbook
from tests.postgres import TemporaryPostgres
from tests.soundness import rows, unsound
from tests.world import IMAGE, NOON, Installation, living_in, opened

A_DAY = timedelta(hours=24)

WAVES = Scenario(
    name="waves",
    market=MarketConfig(loading=(timedelta(seconds=60), timedelta(seconds=75))),
    demand=DemandScript(waiting=14, per_hour=(0, 0, 60, 0, 0, 0) * 4, effort=0.2),
)
"""A batch of work every six hours, and nothing in between: boxes come and go all day."""


@dataclass
class Neighbours:
    """Two installations and the account that they share."""

    both: tuple[Installation, Installation]
    watches: tuple[Lookout, Lookout]

    async def live(self, span: timedelta, *, heartbeat: timedelta) -> None:
        """A heartbeat of each, and a look of each watch before it."""
        for _ in range(span // heartbeat):
            self.both[0].time.advance(heartbeat)
            for fleet, watch in zip(self.both, self.watches, strict=True):
                fleet.pass_time(timedelta(0))
                date_back(fleet, heartbeat)
                await watch.look()
                await fleet.run(Trigger.HEARTBEAT)

    def touched(self) -> list[str]:
        """What one has done to what is the other's, as the provider and each ledger have it."""
        broken = [sentence for fleet in self.both for sentence in unsound(fleet)]
        for fleet, other in (self.both, self.both[::-1]):
            theirs = {box.id for box, _ in other.door.ours()}
            known = {row["vast_id"] for row in rows(fleet, "box")} | {row["vast_id"] for row in rows(fleet, "question")}
            broken += [f"box {number} is in the other's ledger" for number in known & theirs]
            broken += [f"box {number} is the other's, and was to be destroyed" for number in theirs & set(fleet.door.destroys)]
        return broken
