"""A flow run, as Prefect shows it: how the bell and the demo see from outside what became of one."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from fleet_agent.domain.values import Frozen


class FlowRunState(StrEnum):
    """Prefect's types of state."""

    SCHEDULED = "SCHEDULED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CRASHED = "CRASHED"
    CANCELLED = "CANCELLED"


OVER = frozenset({FlowRunState.COMPLETED, FlowRunState.FAILED, FlowRunState.CRASHED, FlowRunState.CANCELLED})


class FlowRun(Frozen):
    id: str
    name: str
    state: FlowRunState
    state_name: str
    message: str | None
    """What was said of the state. A person's cancel says nothing; ours and Prefect's own say why."""
    since: datetime
    """Business time of the change to this state."""
    has_deployment: bool

    @property
    def is_over(self) -> bool:
        return self.state in OVER
