"""What a person's word grants: a bound, not an offer.

Between a question and its answer offers go and prices move. So an approval grants what may be done at most: this tool,
once, on such GPUs, for no more than such a price, until it expires. What is carried out is judged anew, by every rule,
and lies within the bound or is not done at all.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, RentBox
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.values import Frozen

if TYPE_CHECKING:
    from fleet_agent.domain.fleet import Offer


class Grant(Frozen):
    """The bound of one action, which is used up when it is carried out."""

    tool: str
    expires_at: datetime
    gpu_name: str = ""
    num_gpus: int = 0
    max_usd_per_hour: Decimal = Decimal(0)
    vast_id: int | None = None

    def in_words(self) -> str:
        if self.tool == RentBox.name:
            what = f"one {self.num_gpus}x {self.gpu_name} for at most {show_rate(self.max_usd_per_hour)}"
            return f"rent {what}, until {self.expires_at:%Y-%m-%d %H:%M} UTC"
        return f"{self.tool} of box {self.vast_id}, until {self.expires_at:%Y-%m-%d %H:%M} UTC"


def bound_of(action: Effect, offer: Offer | None, *, expires_at: datetime) -> Grant:
    """The narrowest bound within which `action` can be carried out as it was asked for."""
    match action:
        case RentBox() if offer is not None:
            return Grant(
                tool=action.name,
                expires_at=expires_at,
                gpu_name=offer.gpu_name,
                num_gpus=offer.num_gpus,
                max_usd_per_hour=offer.usd_per_hour,
            )
        case DrainBox(id=vast_id) | DestroyBox(id=vast_id):
            return Grant(tool=action.name, expires_at=expires_at, vast_id=vast_id)
        case _:
            raise AssertionError(f"{action.name} is nothing that waits for a person's word")


def beyond(grant: Grant, action: Effect, offer: Offer | None, now: datetime) -> str | None:
    """How `action` goes beyond what was granted, in a sentence; None where it lies within."""
    if action.name != grant.tool:
        return f"The approval is for {grant.tool}."
    if now >= grant.expires_at:
        return f"The approval expired at {grant.expires_at:%Y-%m-%d %H:%M} UTC."
    if isinstance(action, DrainBox | DestroyBox):
        return None if action.id == grant.vast_id else f"The approval is for box {grant.vast_id}."
    if offer is None:
        return "No offer was found that lies within the approval."
    if (offer.gpu_name, offer.num_gpus) != (grant.gpu_name, grant.num_gpus):
        return f"The approval is for {grant.num_gpus}x {grant.gpu_name}."
    if offer.usd_per_hour > grant.max_usd_per_hour:
        return f"{show_rate(offer.usd_per_hour)} is more than the approved {show_rate(grant.max_usd_per_hour)}."
    return None
