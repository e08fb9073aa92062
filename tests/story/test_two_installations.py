"""Two installations on one account: each rents and destroys for itself, and never touches what is the other's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from fleet_agent.domain import rules
from fleet_agent.domain.fleet import LABEL_PREFIX, Instance
from fleet_agent.domain.triggers import Trigger
from fleet_agent.lookout import Lookout
from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import MarketConfig
from fleet_agent.sim.scenarios import Scenario
from fleet_agent.sim.world import World, open_world
from fleet_agent.steps.troubles import Troubles
from fleet_agent.store import sightings
from fleet_agent.store.installation import found_installation
from fleet_agent.store.watch import PostgresLogbook
from tests.postgres import TemporaryPostgres
from tests.soundness import rows, unsound
from tests.without import without
from tests.world import IMAGE, NOON, Installation, living_in, opened

A_DAY = timedelta(hours=24)

WAVES = Scenario(
    name="waves",
    market=MarketConfig(loading=(timedelta(seconds=60), timedelta(seconds=75))),
    demand=DemandScript(waiting=14, per_hour=(0, 0, 0, 60, 0, 0) * 4, effort=0.1),
)
"""A batch of work every six hours and nothing in between, so that boxes come and go all day."""


@dataclass
class Neighbours:
    """Two installations, and the account that they share."""

    sim: World
    time: ManualClock
    both: tuple[Installation, Installation]

    async def live(self, span: timedelta, *, heartbeat: timedelta) -> None:
        """A look and a heartbeat of each, so much apart."""
        for _ in range(span // heartbeat):
            await self.beats(heartbeat, *self.both)

    async def beats(self, heartbeat: timedelta, *fleets: Installation) -> None:
        """… of these only."""
        self.time.advance(heartbeat)
        for fleet in fleets:
            fleet.date_back(heartbeat)
            await watch_of(fleet).look()
            await fleet.run(Trigger.HEARTBEAT)

    def touched(self) -> list[str]:
        """What one has done to what is the other's, as the provider has it and as each ledger has it."""
        broken = [sentence for fleet in self.both for sentence in unsound(fleet)]
        for fleet, other in (self.both, self.both[::-1]):
            theirs = {made.instance_id for made in self.sim.market.creates if other.door.is_ours(made.label)}
            known = {row["vast_id"] for table in ("box", "question") for row in rows(fleet, table)}
            broken += [f"box {number} is in the other's ledger" for number in known & theirs]
        return broken


@asynccontextmanager
async def neighbours(postgres: TemporaryPostgres) -> AsyncGenerator[Neighbours]:
    time = ManualClock(NOON)
    sim = open_world(time, WAVES, seed=1)
    async with AsyncExitStack() as stack:
        fleets: list[Installation] = []
        for _ in range(2):
            database = opened(stack.enter_context(postgres.clone()))
            stack.callback(database.close)
            found_installation(database, origin=NOON)
            fleets.append(await stack.enter_async_context(living_in(sim, time, database)))
            fleets[-1].set_policy({"launch.image": IMAGE})
        one, other = fleets
        yield Neighbours(sim, time, (one, other))


def watch_of(fleet: Installation) -> Lookout:
    return Lookout(
        market=fleet.ports.market,
        demand=fleet.ports.demand,
        logbook=PostgresLogbook(fleet.database, fleet.clock),
        notifier=fleet.notifier,
        clock=fleet.clock,
        troubles=Troubles(lambda line: None),
        tell=lambda line: None,
    )


@pytest.mark.parametrize(
    "heartbeat",
    [timedelta(minutes=30), pytest.param(timedelta(minutes=5), marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
async def test_a_day_side_by_side_and_neither_touches_the_others_boxes(
    postgres: TemporaryPostgres, heartbeat: timedelta
) -> None:
    async with neighbours(postgres) as both:
        await both.live(A_DAY, heartbeat=heartbeat)
        assert both.touched() == []
        for fleet in both.both:
            assert len([a for a in fleet.actions("rent_box") if a["status"] == "done"]) > 2
            assert len([a for a in fleet.actions("destroy_box") if a["status"] == "done"]) > 2


async def test_whoever_goes_by_the_prefix_alone_takes_the_others_for_its_own(
    postgres: TemporaryPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a label of any fleet-agent is taken for ours, at sight and by the rules."""

    def of_any_of_us(instance: Instance, *, installation: str, fleet: str) -> bool:
        return instance.label.startswith(f"{LABEL_PREFIX}/")

    monkeypatch.setattr(sightings, "ours", of_any_of_us)
    monkeypatch.setattr(rules, "RULES", without(rules.box_is_ours))
    async with neighbours(postgres) as both:
        one, other = both.both
        half_an_hour = timedelta(minutes=30)
        await both.beats(half_an_hour, one)  # it rents
        await both.beats(half_an_hour, other)  # the work is done: whoever thinks that these are his lets them go
        broken = both.touched()
        assert [sentence for sentence in broken if "is in the other's ledger" in sentence]
        assert [sentence for sentence in broken if "was to be destroyed" in sentence]
