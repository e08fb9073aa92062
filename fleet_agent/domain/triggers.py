"""Why a run happens, and how urgent what happened is. Only the tables `PRIORITY` and `ALERTS` say so."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final

from fleet_agent.domain.values import Frozen


class Trigger(StrEnum):
    HEARTBEAT = "heartbeat"
    WAKE = "wake"
    EVENT = "event"
    MANUAL = "manual"


HEARTBEAT: Final = timedelta(minutes=5)
"""Business time between two scheduled runs: what the cron line in `prefect.yaml` says."""


class Doorbell(StrEnum):
    """The Prefect events that say "look at the inbox". They carry no truth: an event that is lost is rung again."""

    URGENT = "fleet-agent.doorbell.urgent"
    CHANGE = "fleet-agent.doorbell.change"


def rung_at(fleet: str) -> str:
    """The resource that a doorbell of this fleet is about, by which `prefect.yaml` tells fleets apart."""
    return f"fleet-agent.fleet.{fleet}"


class Priority(IntEnum):
    URGENT = 0
    CHANGE = 1
    ROUTINE = 2


class Kind(StrEnum):
    """What can happen. A kind without a priority fails a test."""

    MESSAGE = "message"
    RUN_NOW = "run_now"
    CONFIG_CHANGE = "config_change"
    APPROVAL = "approval"
    DEMAND_BAND = "demand_band"
    ALERT_FIRING = "alert_firing"
    ALERT_RESOLVED = "alert_resolved"
    WEBHOOK = "webhook"
    BOX_FAILED = "box_failed"
    BOX_GONE = "box_gone"
    BOX_SILENT = "box_silent"
    OUTBID = "outbid"
    HOST_OFFLINE = "host_offline"
    NOT_ORDERED = "not_ordered"
    DESTROY_IGNORED = "destroy_ignored"
    OVER_PRICE = "over_price"
    OVER_BUDGET = "over_budget"
    RUNWAY_SHORT = "runway_short"
    LIST_FROZEN = "list_frozen"
    BOX_PROGRESS = "box_progress"


PRIORITY: dict[Kind, Priority] = {
    Kind.MESSAGE: Priority.URGENT,
    Kind.RUN_NOW: Priority.URGENT,
    Kind.CONFIG_CHANGE: Priority.URGENT,
    Kind.APPROVAL: Priority.URGENT,
    Kind.DEMAND_BAND: Priority.CHANGE,
    Kind.ALERT_FIRING: Priority.CHANGE,
    Kind.ALERT_RESOLVED: Priority.CHANGE,
    Kind.WEBHOOK: Priority.CHANGE,
    Kind.BOX_FAILED: Priority.CHANGE,
    Kind.BOX_GONE: Priority.CHANGE,
    Kind.BOX_SILENT: Priority.CHANGE,
    Kind.OUTBID: Priority.CHANGE,
    Kind.HOST_OFFLINE: Priority.ROUTINE,  # most come back within minutes; that one did not is a failed box
    Kind.NOT_ORDERED: Priority.CHANGE,
    Kind.DESTROY_IGNORED: Priority.CHANGE,
    Kind.OVER_PRICE: Priority.CHANGE,
    Kind.OVER_BUDGET: Priority.CHANGE,
    Kind.RUNWAY_SHORT: Priority.CHANGE,
    Kind.LIST_FROZEN: Priority.CHANGE,
    Kind.BOX_PROGRESS: Priority.ROUTINE,
}

ALERTS: dict[str, Priority] = {
    "critical": Priority.CHANGE,
    "error": Priority.CHANGE,
    "warning": Priority.CHANGE,
    "info": Priority.ROUTINE,
    "none": Priority.ROUTINE,
}
"""By the label `severity`, whose values are convention only. None is urgent: that is for what a person asks for, and an
alert can wait until the others of its burst are there."""


def priority_of(kind: Kind, severity: str = "") -> Priority:
    """How urgent an event is; a severity that is not in the table changes nothing."""
    return ALERTS.get(severity.lower(), PRIORITY[kind])


class Event(Frozen):
    """Something that happened, durable until a run consumes it.

    `tainted`: its text has words that a stranger was free to choose.
    """

    id: int
    kind: Kind
    source: str
    priority: Priority
    count: int
    occurred_at: datetime
    text: str
    payload: dict[str, Any]
    tainted: bool = False
