"""The ledger's words: what became of an effect, from the ruling to the outcome."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from fleet_agent.domain.fleet import Frozen, Offer
from fleet_agent.domain.rules import Ruling


class ActionStatus(StrEnum):
    PROPOSED = "proposed"
    REFUSED = "refused"
    AWAITING_APPROVAL = "awaiting_approval"
    INTENDED = "intended"
    DRY = "dry"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


class Ruled(Frozen):
    """An effect with its ruling; `key` names the intent row, for refused ones too."""

    key: str
    call_id: str
    action: dict[str, Any]
    tool: str
    ruling: Ruling


class Unsettled(Frozen):
    """An action whose outcome nobody saw: the call may have reached the provider. `sent_for` is real time."""

    key: str
    tool: str
    label: str
    vast_id: int | None
    sent_for: timedelta


class Listing(Frozen):
    """The offers of the run's last search, and when they were seen."""

    offers: tuple[Offer, ...] = ()
