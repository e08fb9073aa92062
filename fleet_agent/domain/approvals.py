"""What a person's word grants: a bound, not an offer.

Between a question and its answer offers go and prices move. So an approval grants what may be done at most: this tool,
once, on such GPUs and no lesser machine, for no more than such prices, until it expires. What is carried out is judged
anew, by every rule, and lies within the bound or is not done at all.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, RentBox
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.money import show_rate, show_usd, usd_per_proof
from fleet_agent.domain.policy import OfferFloors
from fleet_agent.domain.values import Frozen


class Grant(Frozen):
    """The bound of one action, which is used up when it is carried out."""

    tool: str
    expires_at: datetime
    gpu_name: str = ""
    num_gpus: int = 0
    floors: OfferFloors | None = None
    """Of the policy at the time of the question: who loosens them later has granted no more."""
    max_usd_per_hour: Decimal = Decimal(0)
    max_usd_per_proof: Decimal | None = None
    """None where nobody had measured the machine that was asked about."""
    vast_id: int | None = None

    def in_words(self) -> str:
        until = f"until {self.expires_at:%Y-%m-%d %H:%M} UTC"
        if self.tool != RentBox.name:
            return f"{self.tool} of box {self.vast_id}, {until}"
        most = show_rate(self.max_usd_per_hour)
        if self.max_usd_per_proof is not None:
            most += f" and {show_usd(self.max_usd_per_proof)} a proof"
        return f"rent one {self.num_gpus}x {self.gpu_name} for at most {most}, {until}"


def bound_of(
    action: Effect,
    offer: Offer | None,
    *,
    floors: OfferFloors,
    proofs_per_hour: float | None = None,
    expires_at: datetime,
) -> Grant:
    """The narrowest bound within which `action` can be carried out as it was asked for; `proofs_per_hour` is what the
    machine of the offer has shown."""
    match action:
        case RentBox() if offer is not None:
            return Grant(
                tool=action.name,
                expires_at=expires_at,
                gpu_name=offer.gpu_name,
                num_gpus=offer.num_gpus,
                floors=floors.model_copy(update={"min_gpu_ram_gb": offer.gpu_ram_mb // 1000}),
                max_usd_per_hour=offer.usd_per_hour,
                max_usd_per_proof=usd_per_proof(offer.usd_per_hour, proofs_per_hour),
            )
        case DrainBox(id=vast_id) | DestroyBox(id=vast_id):
            return Grant(tool=action.name, expires_at=expires_at, vast_id=vast_id)
        case _:
            raise AssertionError(f"{action.name} is nothing that waits for a person's word")


def beyond(
    grant: Grant, action: Effect, offer: Offer | None, now: datetime, *, proofs_per_hour: float | None = None
) -> str | None:
    """How `action` goes beyond what was granted, in a sentence; None where it lies within.

    A machine that nobody has measured is beyond no price of a proof: its benchmark is waited for.
    """
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
    if grant.floors is not None and (missing := grant.floors.unmet_by(offer)) is not None:
        return f"The approval is for no such machine: {missing}."
    if offer.usd_per_hour > grant.max_usd_per_hour:
        return f"{show_rate(offer.usd_per_hour)} is more than the approved {show_rate(grant.max_usd_per_hour)}."
    price, most = usd_per_proof(offer.usd_per_hour, proofs_per_hour), grant.max_usd_per_proof
    if price is not None and most is not None and price > most:
        return f"{show_usd(price)} a proof is more than the approved {show_usd(most)}."
    return None
