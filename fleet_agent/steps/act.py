"""The one way to an effect.

    ruling and intent (committed)  →  sent (committed)  →  the call, once  →  outcome (committed)

Every step is in the ledger before the next begins, so that a crash between any two leaves a row that says how far it
came. The ruling was stored with the reply; here the price, and last thing before the call fence, mode and policy are
read again. What is done is what was judged: the offer and the policy come with the ruling. A call whose answer is lost
stays `unknown`, which keeps its reservation: the next look finds its label, or its grace ends. Nothing here repeats a
call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

from fleet_agent.domain.actions import DestroyBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.fleet import Label, Offer
from fleet_agent.domain.ledger import ActionStatus, Ruled
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Decision
from fleet_agent.domain.run import Run, Standing
from fleet_agent.domain.show import gpu
from fleet_agent.errors import AlreadyGone, ChooseAnother, FixSetup, FleetAgentError, StopRenting, TryLater
from fleet_agent.ports import Market, Notifier, OfferQuery, Ports, RentOrder

SEND_BY = timedelta(seconds=20)
"""Real time from `sent` to the wire. A call that has not left by then is not made: the grace of a lost answer counts
from `sent`."""


async def act(run: Run, ports: Ports, standing: Standing, effect: Effect, ruled: Ruled) -> str:
    """Carry out `effect` as far as its ruling and the world allow; the sentence is what the model is told.

    Raises RunSuperseded, and FixSetup after the outcome was recorded.
    """
    if ruled.ruling.decision is not Decision.ALLOW:
        return f"Refused ({ruled.ruling.code}): {ruled.ruling.sentence}"
    match effect:
        case RentBox():
            assert ruled.offer is not None, "a rent is allowed only for an offer that was listed"
            return await _rent(run, ports, standing, ruled.offer, ruled)
        case DestroyBox(id=vast_id):
            return await _send(run, ports, ruled, lambda: _destroy(ports.market, vast_id))
        case NotifyHuman(text=text):
            return await _send(run, ports, ruled, lambda: _tell(ports.notifier, text))
        case _:
            raise AssertionError(f"{effect.name} was allowed without a way to carry it out")


class Done(NamedTuple):
    """What a call came to; `vast_id` of the box it made."""

    sentence: str
    vast_id: int | None = None


async def _destroy(market: Market, vast_id: int) -> Done:
    """Ask once. Accepted is not gone: only a later look proves it."""
    try:
        await market.destroy(vast_id)
    except AlreadyGone:
        return Done(f"Box {vast_id} was gone already.")
    return Done(f"The provider accepted to destroy box {vast_id}; the next look proves it.")


def outcome_of(error: FleetAgentError) -> ActionStatus:
    """What an error of a call says of its effect. Anything but a definite no may have happened."""
    match error:
        case ChooseAnother() | StopRenting() | TryLater() | FixSetup():
            return ActionStatus.FAILED
        case _:
            return ActionStatus.UNKNOWN


async def _rent(run: Run, ports: Ports, standing: Standing, offer: Offer, ruled: Ruled) -> str:
    changed = await _offer_changed(ports, ruled.policy, offer)
    if changed is not None:
        await ports.journal.record_outcome(ruled.key, ActionStatus.FAILED, changed)
        return f"Not done: {changed}"
    order = _order(standing, ruled, offer, send_by=ports.clock.elapsed() + SEND_BY)
    return await _send(run, ports, ruled, lambda: _order_box(ports.market, order, offer))


async def _offer_changed(ports: Ports, policy: Policy, judged: Offer) -> str | None:
    """Why the offer is no longer what was judged, or None."""
    try:
        found = await ports.market.offers(OfferQuery(policy=policy, offer_id=judged.id, limit=1))
    except TryLater as error:
        return f"offer {judged.id} could not be read again ({error.cause})"
    if not found:
        return f"offer {judged.id} is gone; search again"
    if found[0].usd_per_hour > judged.usd_per_hour:
        return f"offer {judged.id} now costs {show_rate(found[0].usd_per_hour)}; search again"
    return None


def _order(standing: Standing, ruled: Ruled, offer: Offer, *, send_by: timedelta) -> RentOrder:
    launch = ruled.policy.launch
    return RentOrder(
        offer_id=offer.id,
        label=str(Label(installation=standing.installation, fleet=standing.fleet, key=ruled.key)),
        image=launch.image,
        disk_gb=launch.disk_gb,
        runtype=launch.runtype,
        env=launch.env,
        onstart=launch.onstart,
        send_by=send_by,
    )


async def _order_box(market: Market, order: RentOrder, offer: Offer) -> Done:
    vast_id = await market.rent(order)
    what = f"{gpu(offer.num_gpus, offer.gpu_name)} at {show_rate(offer.usd_per_hour)}"
    return Done(f"Rented {what} as box {vast_id}.", vast_id)


async def _tell(notifier: Notifier, text: str) -> Done:
    return Done(await notifier.notify(text))


async def _send(run: Run, ports: Ports, ruled: Ruled, call: Callable[[], Awaitable[Done]]) -> str:
    """Commit `sent`, make the call, commit its outcome."""
    ruling = await ports.journal.mark_sent(run, ruled.key, send_by=SEND_BY)
    if ruling.decision is not Decision.ALLOW:
        return f"Not sent ({ruling.code}): {ruling.sentence}"
    try:
        done = await call()
    except FleetAgentError as error:
        status = outcome_of(error)
        await ports.journal.record_outcome(ruled.key, status, error.cause)
        if isinstance(error, FixSetup):
            raise
        if status is ActionStatus.UNKNOWN:
            return (
                f"Unknown whether it happened ({error.cause}). It counts until it is found or expires; wait for that."
            )
        return f"Not done: {error}"
    await ports.journal.record_outcome(ruled.key, ActionStatus.DONE, done.sentence, vast_id=done.vast_id)
    return done.sentence
