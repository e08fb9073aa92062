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
        loading=(timedelta(seconds=20), timedelta(seconds=25)),
        productive_after=timedelta(seconds=60),
    ),
    demand=DemandScript(waiting=14, effort=0.004),
)
"""One batch of small proofs, done well within a heartbeat after somebody rented.

Nothing moves before boxes are rented, so a late start shifts the whole story and changes nothing. The first run happens
because something was said, so the second, a heartbeat, may follow after a moment or after five minutes. After a moment
it finds all of the work still waiting, changes nothing, and the third, five minutes later, destroys; later it finds the
work done and destroys, and the third has nothing to do. A rent, a no-op and a destroy are shown either way.
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
