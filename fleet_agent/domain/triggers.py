"""Why a run happens, and how urgent what happened is. The table `PRIORITY` is the only place that says so."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

from fleet_agent.domain.values import Frozen


class Trigger(StrEnum):
    HEARTBEAT = "heartbeat"
    WAKE = "wake"
    EVENT = "event"
    MANUAL = "manual"


class Priority(IntEnum):
    URGENT = 0
    CHANGE = 1
    ROUTINE = 2


class Kind(StrEnum):
    """What can happen. A kind without a priority fails a test."""

    MESSAGE = "message"
    RUN_NOW = "run_now"
    CONFIG_CHANGE = "config_change"
    DEMAND_BAND = "demand_band"
    BOX_FAILED = "box_failed"
    BOX_PROGRESS = "box_progress"


PRIORITY: dict[Kind, Priority] = {
    Kind.MESSAGE: Priority.URGENT,
    Kind.RUN_NOW: Priority.URGENT,
    Kind.CONFIG_CHANGE: Priority.URGENT,
    Kind.DEMAND_BAND: Priority.CHANGE,
    Kind.BOX_FAILED: Priority.CHANGE,
    Kind.BOX_PROGRESS: Priority.ROUTINE,
}


class Event(Frozen):
    """Something that happened, durable until a run consumes it."""

    id: int
    kind: Kind
    source: str
    priority: Priority
    count: int
    occurred_at: datetime
    text: str
    payload: dict[str, Any]
