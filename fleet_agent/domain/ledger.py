"""The ledger's words: what became of an effect, from the ruling to the outcome."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Ruling
from fleet_agent.domain.values import Frozen


class ActionStatus(StrEnum):
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
    """An effect with its ruling; `key` names its row, for refused ones too.

    `policy`, and for a rent `offer`, are what it was judged by: whoever carries it out must use no others.
    `status` and `outcome` are how far it has come: what an interrupted attempt of the run had begun is told by them.
    """

    key: str
    call_id: str
    ruling: Ruling
    policy: Policy
    offer: Offer | None
    status: ActionStatus
    outcome: str = ""


class Deed(Frozen):
    """An effect that happened, or perhaps happened, as a later run is told of it."""

    tool: str
    key: str
    status: ActionStatus
    outcome: str

    def in_words(self) -> str:
        return f"{self.tool} {self.key}: {self.outcome or 'nobody saw its outcome'} ({self.status.value})"


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
