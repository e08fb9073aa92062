"""The one way to an effect.

    ruling and intent (committed)  →  sent (committed)  →  the call, once  →  outcome (committed)

Every step is in the ledger before the next begins, so that a crash between any two leaves a row that says how far it
came. The ruling was stored with the reply; here fence, mode and price are read again last thing before the call. A
call whose answer is lost stays `unknown`, which keeps its reservation: the next look finds its label, or its grace
ends. Nothing here repeats a call.
"""

from __future__ import annotations

from datetime import timedelta

from fleet_agent.domain.actions import DestroyBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.fleet import Label, Offer
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.rules import Decision
from fleet_agent.domain.run import Run, Standing
from fleet_agent.domain.show import gpu
from fleet_agent.errors import AlreadyGone, ChooseAnother, FixSetup, LookFirst, StopRenting, TryLater
from fleet_agent.ports import OfferQuery, Ports, RentOrder

SEND_BY = timedelta(seconds=20)
"""A call that has not left by then is not made: the grace of a lost answer counts from `sent`."""


async def act(run: Run, ports: Ports, standing: Standing, listing: Listing, effect: Effect, ruled: Ruled) -> str:
    """Carry out `effect` as far as its ruling and the world allow; the sentence is what the model is told."""
    if ruled.ruling.decision is not Decision.ALLOW:
        return f"Refused ({ruled.ruling.code}): {ruled.ruling.sentence}"
    match effect:
        case RentBox():
            return await _rent(run, ports, standing, listing, effect, ruled.key)
        case DestroyBox():
            return await _destroy(run, ports, effect, ruled.key)
        case NotifyHuman():
            return await _notify(run, ports, effect, ruled.key)
        case _:
            raise AssertionError(f"{effect.name} was allowed without a way to carry it out")


async def _rent(run: Run, ports: Ports, standing: Standing, listing: Listing, rent: RentBox, key: str) -> str:
    listed = next(offer for offer in listing.offers if offer.id == rent.offer_id)
    changed = await _offer_changed(ports, standing, listed)
    if changed is not None:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, changed)
        return f"Not rented: {changed}"
    not_sent = await _not_sent(run, ports, key)
    if not_sent is not None:
        return not_sent
    try:
        vast_id = await ports.market.rent(_order(standing, listed, key))
    except (ChooseAnother, StopRenting, TryLater) as error:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, error.cause)
        return f"Not rented: {error}"
    except FixSetup as error:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, error.cause)
        raise
    except LookFirst as error:
        await ports.journal.record_outcome(key, ActionStatus.UNKNOWN, error.cause)
        return f"Unknown whether it was rented ({error.cause}). It counts as rented until it is found or expires."
    sentence = f"Rented {gpu(listed.num_gpus, listed.gpu_name)} at {show_rate(listed.usd_per_hour)} as box {vast_id}."
    await ports.journal.record_outcome(key, ActionStatus.DONE, sentence, vast_id=vast_id)
    return sentence


async def _offer_changed(ports: Ports, standing: Standing, listed: Offer) -> str | None:
    """Why the offer is no longer what the model chose, or None."""
    try:
        found = await ports.market.offers(OfferQuery(policy=standing.policy, offer_id=listed.id, limit=1))
    except TryLater as error:
        return f"offer {listed.id} could not be read again ({error.cause})"
    if not found:
        return f"offer {listed.id} is gone; search again"
    if found[0].usd_per_hour > listed.usd_per_hour:
        return f"offer {listed.id} now costs {show_rate(found[0].usd_per_hour)}; search again"
    return None


def _order(standing: Standing, offer: Offer, key: str) -> RentOrder:
    launch = standing.policy.launch
    return RentOrder(
        offer_id=offer.id,
        label=str(Label(installation=standing.installation, fleet=standing.fleet, key=key)),
        image=launch.image,
        disk_gb=launch.disk_gb,
        runtype=launch.runtype,
        env=launch.env,
        onstart=launch.onstart,
    )


async def _destroy(run: Run, ports: Ports, destroy: DestroyBox, key: str) -> str:
    not_sent = await _not_sent(run, ports, key)
    if not_sent is not None:
        return not_sent
    try:
        await ports.market.destroy(destroy.id)
    except AlreadyGone:
        sentence = f"Box {destroy.id} was gone already."
    except TryLater as error:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, error.cause)
        return f"Not destroyed: {error}"
    except FixSetup as error:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, error.cause)
        raise
    except LookFirst as error:
        await ports.journal.record_outcome(key, ActionStatus.UNKNOWN, error.cause)
        return f"Unknown whether box {destroy.id} was destroyed ({error.cause}); the next look will tell."
    else:
        sentence = f"The provider accepted to destroy box {destroy.id}; the next look proves it."
    await ports.journal.record_outcome(key, ActionStatus.DONE, sentence)
    return sentence


async def _notify(run: Run, ports: Ports, notify: NotifyHuman, key: str) -> str:
    not_sent = await _not_sent(run, ports, key)
    if not_sent is not None:
        return not_sent
    try:
        await ports.notifier.notify(notify.text)
    except TryLater as error:
        await ports.journal.record_outcome(key, ActionStatus.FAILED, error.cause)
        return f"Nobody could be told: {error}"
    await ports.journal.record_outcome(key, ActionStatus.DONE, "The operator was told.")
    return "The operator was told."


async def _not_sent(run: Run, ports: Ports, key: str) -> str | None:
    """Commit `sent`, or say why the call must not be made after all."""
    ruling = await ports.journal.mark_sent(run, key, send_by=SEND_BY)
    return None if ruling.decision is Decision.ALLOW else f"Not sent ({ruling.code}): {ruling.sentence}"
