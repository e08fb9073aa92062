"""The one way to an effect, for whoever asks.

    ruling and intent (committed)  →  sent (committed)  →  the call, once  →  outcome (committed)

Every step is in the ledger before the next begins, so that a crash between any two leaves a row that says how far it
came. The ruling was stored before; here the price, and last thing before the call mode and policy, and for a run the
fence, are read again. What is done is what was judged: the offer and the policy come with the ruling. A call whose
answer is lost stays `unknown`, which keeps its reservation: the next look finds its label, or its grace ends. Nothing
here repeats a call: an effect that an interrupted attempt of a run had begun is carried on only from before its `sent`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.box_reports import BoxHook, no_hook
from fleet_agent.domain.fleet import Label, Offer
from fleet_agent.domain.hosts import InVain, what_follows
from fleet_agent.domain.ledger import ActionStatus, Ruled
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import DRY_RUN, Decision, Ruling
from fleet_agent.domain.run import Result, Run, Standing
from fleet_agent.domain.show import gpu
from fleet_agent.errors import AlreadyGone, ChooseAnother, FixSetup, FleetAgentError, StopRenting, TryLater
from fleet_agent.ports import Clock, Journal, Ledger, Market, Notifier, OfferQuery, Ports, RentOrder

SEND_BY = timedelta(seconds=20)
"""Real time from `sent` to the wire. A call that has not left by then is not made: the grace of a lost answer counts
from `sent`."""


@dataclass(frozen=True)
class Hands:
    """Whose hands carry it out: through what they reach the world, and where they write it down."""

    fleet: str
    installation: str
    clock: Clock
    market: Market
    notifier: Notifier
    ledger: Ledger
    draw_hook: Callable[[], BoxHook | None] = no_hook


def hands_of(run: Run, ports: Ports, standing: Standing) -> Hands:
    """Those of a run, which lose their hold with its fence."""
    return Hands(
        fleet=run.fleet,
        installation=standing.installation,
        clock=ports.clock,
        market=ports.market,
        notifier=ports.notifier,
        ledger=_Fenced(run, ports.journal),
        draw_hook=ports.draw_hook,
    )


@dataclass(frozen=True)
class _Fenced:
    run: Run
    journal: Journal

    async def mark_sent(self, key: str, *, send_by: timedelta, hook_digest: str | None = None) -> Ruling:
        return await self.journal.mark_sent(self.run, key, send_by=send_by, hook_digest=hook_digest)

    async def drop(self, key: str, why: str) -> None:
        await self.journal.drop(self.run, key, why)

    async def record_outcome(
        self,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        await self.journal.record_outcome(key, status, outcome, vast_id=vast_id, in_vain=in_vain)


async def act(hands: Hands, effect: Effect, ruled: Ruled) -> Result:
    """Carry out `effect` as far as its ruling and the world allow.

    Raises RunSuperseded, and FixSetup after the outcome was recorded.
    """
    if ruled.status in _BEGUN:
        return _told(ruled.status, ruled.outcome)
    match ruled.ruling.decision:
        case Decision.NEEDS_APPROVAL:
            return _refused("Waits for the operator's approval", ruled.ruling)
        case Decision.REFUSE:
            return _refused("Refused", ruled.ruling)
        case Decision.ALLOW:
            pass
    match effect:
        case RentBox():
            assert ruled.offer is not None, "a rent is allowed only for an offer that was listed"
            return await _rent(hands, ruled.offer, ruled)
        case DrainBox(id=vast_id):
            return await _send(hands, ruled, lambda: _drain(vast_id))
        case DestroyBox(id=vast_id):
            return await _send(hands, ruled, lambda: _destroy(hands.market, vast_id))
        case NotifyHuman(text=text):
            return await _send(hands, ruled, lambda: _tell(hands.notifier, text))
        case _:
            raise AssertionError(f"{effect.name} was allowed without a way to carry it out")


_BEGUN = (ActionStatus.SENT, ActionStatus.UNKNOWN, ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.EXPIRED)
"""What an effect can only be after an interruption: the call may have been made."""


def _told(status: ActionStatus, outcome: str) -> Result:
    """What the model is told of an effect that is not carried out now."""
    match status:
        case ActionStatus.DONE:
            return Result(sentence=outcome)
        case ActionStatus.SENT | ActionStatus.UNKNOWN:
            why = outcome or "the run was interrupted"
            return Result(sentence=f"Unknown whether it happened ({why}). {_COUNTS}", failed=True)
        case _:
            return Result(sentence=f"Not done: {outcome}", failed=True)


def _refused(word: str, ruling: Ruling) -> Result:
    """A dry run goes as it should: what it does not do is no failure."""
    return Result(sentence=f"{word} ({ruling.code}): {ruling.sentence}", failed=ruling.code != DRY_RUN)


_COUNTS = "It counts until it is found or expires; wait for that."


class Done(NamedTuple):
    """What a call came to; `vast_id` of the box it made."""

    sentence: str
    vast_id: int | None = None


async def _drain(vast_id: int) -> Done:
    """Nobody is called: the box asks, and is told to take no more work. The watch destroys it."""
    return Done(f"Box {vast_id} is to take no more work; it is destroyed once it is idle.")


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


async def _rent(hands: Hands, offer: Offer, ruled: Ruled) -> Result:
    changed = await _offer_changed(hands.market, ruled.policy, offer)
    if changed is not None:
        await hands.ledger.drop(ruled.key, changed)
        return _told(ActionStatus.FAILED, changed)
    hook = hands.draw_hook()
    order = _order(hands, ruled, offer, hook, send_by=hands.clock.elapsed() + SEND_BY)
    return await _send(hands, ruled, lambda: _order_box(hands.market, order, offer), hook_digest=hook and hook.digest)


async def _offer_changed(market: Market, policy: Policy, judged: Offer) -> str | None:
    """Why the offer is no longer what was judged, or None."""
    try:
        found = await market.offers(OfferQuery(policy=policy, offer_id=judged.id, limit=1))
    except TryLater as error:
        return f"offer {judged.id} could not be read again ({error.cause})"
    if not found:
        return f"offer {judged.id} is gone; search again"
    (now,) = found
    if (now.machine_id, now.gpu_name, now.num_gpus) != (judged.machine_id, judged.gpu_name, judged.num_gpus):
        return f"offer {judged.id} is another machine now; search again"
    if now.usd_per_hour > judged.usd_per_hour:
        return f"offer {judged.id} now costs {show_rate(now.usd_per_hour)}; search again"
    return None


def _order(hands: Hands, ruled: Ruled, offer: Offer, hook: BoxHook | None, *, send_by: timedelta) -> RentOrder:
    launch = ruled.policy.launch
    return RentOrder(
        offer_id=offer.id,
        label=str(Label(installation=hands.installation, fleet=hands.fleet, key=ruled.key)),
        image=launch.image,
        disk_gb=launch.disk_gb,
        runtype=launch.runtype,
        env=launch.env,
        hook=hook and hook.address,
        onstart=launch.onstart,
        send_by=send_by,
    )


async def _order_box(market: Market, order: RentOrder, offer: Offer) -> Done:
    vast_id = await market.rent(order)
    what = f"{gpu(offer.num_gpus, offer.gpu_name)} at {show_rate(offer.usd_per_hour)}"
    return Done(f"Rented {what} as box {vast_id}.", vast_id)


async def _tell(notifier: Notifier, text: str) -> Done:
    return Done(await notifier.notify(text))


async def _send(
    hands: Hands, ruled: Ruled, call: Callable[[], Awaitable[Done]], *, hook_digest: str | None = None
) -> Result:
    """Commit `sent`, make the call, commit its outcome."""
    ruling = await hands.ledger.mark_sent(ruled.key, send_by=SEND_BY, hook_digest=hook_digest)
    if ruling.decision is not Decision.ALLOW:
        return _refused("Not sent", ruling)
    try:
        done = await call()
    except FleetAgentError as error:
        status = outcome_of(error)
        await hands.ledger.record_outcome(ruled.key, status, error.cause, in_vain=what_follows(error))
        if isinstance(error, FixSetup):
            raise
        return _told(status, error.cause if status is ActionStatus.UNKNOWN else str(error))
    await hands.ledger.record_outcome(ruled.key, ActionStatus.DONE, done.sentence, vast_id=done.vast_id)
    return Result(sentence=done.sentence)
