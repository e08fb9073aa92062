"""What the watch finds at a look without a model, and what it is told by the store."""

from __future__ import annotations

from datetime import datetime

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.rules import Removal
from fleet_agent.domain.values import Frozen


class DeadRun(Frozen):
    """A run that is open and silent; its flow run may still hold the only slot of the deployment."""

    fleet: str
    run_id: int
    flow_run_id: str


class Untold(Frozen):
    """A notice that no person was told yet."""

    id: int
    fleet: str
    text: str


class Seen(Frozen):
    """The world at one look, the same for all fleets: they share an account and a proving stack."""

    taken_at: datetime
    inventory: Known[Inventory] | Unknown
    demand: Known[Demand] | Unknown
    account: Known[Account] | Unknown
    unread: int = 0
    """Looks in a row without a list, this one included."""


class Looked(Frozen):
    """What came of one look at one fleet; all of it is in the database already but the removals."""

    fleet: str
    installation: str
    observation: Observation
    removals: tuple[Removal, ...] = ()
    """What the watch wants to give up; the rules have not been asked yet."""
    findings: tuple[str, ...] = ()
    """Everything that is not as it should be, in words."""
    news: tuple[str, ...] = ()
    """Of it, what nobody was told before."""
    unfit: str = ""
    """Why nothing was found though the list was recorded: the policy cannot be read."""


class Order(Frozen):
    """What a person wants to have done, wherever it was said: the watch carries it out."""

    fleet: str
    key: str
    action: Removal
