"""Settle what is open before anything new is decided: by looking, never by repeating; then what a person approved.

The sighting that `observe` recorded has already matched the provider's list against the ledger by label: a rent whose
answer was lost is found or, after its grace, expired. What is still open here stays reserved, and the model is told.

An approval granted a bound, not an offer. So what was asked about is looked for again, and what lies within the bound
now is judged by every rule once more and carried out; where nothing does, the approval is used up all the same, for a
person who says yes to a price does not say yes for ever. What only time is in the way of waits for the next run.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_agent.domain.actions import Effect, RentBox
from fleet_agent.domain.approvals import beyond
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.hosts import machines_of, measured_rate
from fleet_agent.domain.ledger import ActionStatus, Listing, Unsettled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.run import Approved, Run, Standing
from fleet_agent.domain.show import one_line
from fleet_agent.errors import TryLater
from fleet_agent.ports import OfferQuery, Ports
from fleet_agent.steps.act import act, hands_of


@dataclass(frozen=True)
class Settled:
    """`open`: actions whose outcome nobody has seen yet. `carried_out`: what became of each approved action, told in a
    sentence; where there is one, the world is to be looked at again."""

    open: tuple[Unsettled, ...]
    carried_out: tuple[str, ...] = ()


async def settle(run: Run, ports: Ports, standing: Standing, seen: Observation) -> Settled:
    """Raises RunSuperseded, and what `act` raises."""
    carried_out: list[str] = []
    for approved in await ports.journal.approved(run):
        said = await _carry_out(run, ports, standing, seen, approved)
        if said is not None:
            carried_out.append(said)
    return Settled(open=await ports.journal.unsettled(run), carried_out=tuple(carried_out))


async def _carry_out(run: Run, ports: Ports, standing: Standing, seen: Observation, approved: Approved) -> str | None:
    """What became of it; None where it has to wait."""
    try:
        action, listing = await within_the_bound(ports, standing, approved)
    except TryLater:
        return None
    ruled = await ports.journal.carry_out_approved(run, approved.key, action, observation=seen, listing=listing)
    if ruled.status is ActionStatus.AWAITING_APPROVAL:
        return None
    result = await act(hands_of(run, ports, standing), action, ruled)
    return f"{action.name} {approved.key}: {one_line(result.sentence)}"


async def within_the_bound(ports: Ports, standing: Standing, approved: Approved) -> tuple[Effect, Listing]:
    """The very offer that was asked about where it is still there and no dearer, else the cheapest of its kind."""
    if not isinstance(approved.action, RentBox):
        return approved.action, Listing()
    grant = approved.grant
    alike = OfferQuery(
        policy=standing.policy,
        gpu_name=grant.gpu_name,
        num_gpus=grant.num_gpus,
        banned=machines_of(standing.bans),
    )
    found, now = await ports.market.offers(alike), ports.clock.now()
    fitting = [
        offer
        for offer in found
        if beyond(grant, approved.action, offer, now, proofs_per_hour=_measured(standing, offer)) is None
    ]
    same = [offer for offer in fitting if offer.id == approved.action.offer_id]
    chosen = (same or fitting)[:1]
    if not chosen:
        return approved.action, Listing()
    return approved.action.model_copy(update={"offer_id": chosen[0].id}), Listing(offers=tuple(chosen))


def _measured(standing: Standing, offer: Offer) -> float | None:
    return measured_rate(standing.benchmarks, offer.machine_id, offer.num_gpus)
