"""Named worlds: what the market is like and how work arrives. A scenario is a value; a seed makes it one world."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import MarketConfig


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    market: MarketConfig
    demand: DemandScript


FIRST_LIGHT = Scenario(
    name="first-light",
    market=MarketConfig(
        loading=(timedelta(seconds=60), timedelta(seconds=75)),
        productive_after=timedelta(seconds=250),
    ),
    demand=DemandScript(waiting=14, effort=0.012),
)
"""One batch of small proofs, done between the second and the third heartbeat after somebody rented.

Nothing moves before boxes are rented, so a late start shifts the whole story and changes nothing. The boxes take long
to measure themselves, so that the second heartbeat finds them up and all of the work still waiting; the proofs are so
small that even slow boxes are through before the earliest third heartbeat. A second heartbeat that comes even later
finds the work done and destroys, and the third has nothing to do: a rent, a no-op and a destroy are shown either way.
"""

CALM_DAY = Scenario(
    name="calm-day",
    market=MarketConfig(),
    demand=DemandScript(
        waiting=6,
        per_hour=(12, 8, 6, 4, 4, 6, 10, 18, 30, 42, 50, 54, 50, 46, 48, 50, 46, 40, 34, 30, 26, 22, 18, 14),
        failing=0.02,
    ),
)
"""A working day: a few proofs at night, a wave that peaks before noon, now and then a proof that fails."""

IDLE = Scenario(name="idle", market=MarketConfig(), demand=DemandScript())
"""No work at all."""

SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in (FIRST_LIGHT, CALM_DAY, IDLE)}
