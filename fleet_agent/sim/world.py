"""One simulated world behind its two faces, all parts on one clock.

The provider's face carries the proving stack's figures under `/demand`, where a real fleet has a Prometheus of its own.
"""

from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.routing import Mount

from fleet_agent.sim import demand, model_app, vast_app
from fleet_agent.sim.clock import SimClock
from fleet_agent.sim.demand import ProofQueue
from fleet_agent.sim.market import Market
from fleet_agent.sim.model_faults import ModelFaults
from fleet_agent.sim.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class World:
    """The truth (`market`, `queue`), what can go wrong (`market.faults`, `model_faults`), and the faces."""

    market: Market
    queue: ProofQueue
    model_faults: ModelFaults
    vast_face: Starlette
    model_face: Starlette


def open_world(
    clock: SimClock, scenario: Scenario, *, seed: int = 0, policy: str = "sensible", api_key: str | None = None
) -> World:
    """A new world at `clock.now()`. With an `api_key` both faces refuse any other.

    Raises ValueError for a policy that does not exist.
    """
    market = Market(clock, seed=seed, api_key=api_key, config=scenario.market)
    queue = ProofQueue(clock, market, scenario.demand, seed)
    model_faults = ModelFaults()
    return World(
        market=market,
        queue=queue,
        model_faults=model_faults,
        vast_face=Starlette(
            routes=[Mount("/demand", demand.create_app(queue)), Mount("", vast_app.create_app(market))]
        ),
        model_face=model_app.create_app(clock=clock, policy=policy, seed=seed, faults=model_faults, api_key=api_key),
    )
