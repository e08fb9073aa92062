"""Settle what an earlier run left open, by looking and never by repeating.

The sighting that `observe` recorded has already matched the provider's list against the ledger by label: a rent whose
answer was lost is found or, after its grace, expired. What is still open here stays reserved, and the model is told.
"""

from __future__ import annotations

from fleet_agent.domain.ledger import Unsettled
from fleet_agent.domain.run import Run
from fleet_agent.ports import Ports


async def settle(run: Run, ports: Ports) -> tuple[Unsettled, ...]:
    """The actions whose outcome nobody has seen yet."""
    return await ports.journal.unsettled(run)
