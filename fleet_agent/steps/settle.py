"""Settle what an earlier run left open, by looking and never by repeating.

The sighting that `observe` recorded has already matched the provider's list against the ledger by label: a rent whose
answer was lost is found or, after its grace, expired. What is still open here stays reserved, and the model is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from fleet_agent.domain.ledger import Unsettled
from fleet_agent.domain.run import Run
from fleet_agent.ports import Ports


async def settle(run: Run, ports: Ports) -> list[str]:
    """A sentence for every action whose outcome nobody has seen yet."""
    return _sentences(await ports.journal.unsettled(run))


def _sentences(unsettled: Sequence[Unsettled]) -> list[str]:
    return [
        f"{action.tool} {action.key} was sent {_minutes(action.sent_for)} ago and its outcome is unknown; "
        "it counts against the limits until it is found or expires. Do not repeat it."
        for action in unsettled
    ]


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:.0f} min"
