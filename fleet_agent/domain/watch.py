"""What the watch finds at a look without a model."""

from __future__ import annotations

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
