"""What a person can do, one function each; the command line uses them, and so will every other face.

Posting and steering are one transaction of our database and need nothing else to live; the bell hears of them. One
thing reaches outside: `destroy_all`, the emergency stop, speaks with the provider itself, so that it works when
everything else is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fleet_agent.domain.actions import DestroyBox, DrainBox
from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.context import Budget, compose, turn_block
from fleet_agent.domain.fleet import Inventory, Stage, ours
from fleet_agent.domain.hosts import Ban, Failure, NotBanned
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Brake, Mode, is_another
from fleet_agent.domain.run import Approval, Message, MessageKind, Run
from fleet_agent.domain.tokens import request_tokens
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.wakes import CannotRead, NewWake, NoWake, time_until
from fleet_agent.errors import AlreadyGone, FixSetup, LookFirst, SlowDown, TryLater
from fleet_agent.ports import Clock, CountTokens, Market, Ports
from fleet_agent.steps.observe import glance
from fleet_agent.store import actions, audit, claims, ledger, reading, session, sightings, steering, tokens, wakes
from fleet_agent.store.database import Database
from fleet_agent.store.hosts import ban, lift
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import Purpose

BETWEEN_LOOKS = timedelta(seconds=5)
"""Real time between two passes of the emergency stop: the provider's list lags by a few seconds."""


@dataclass(frozen=True)
class Desk:
    """Where a person sits: one fleet of one database. `who` stands in the audit, `place` is for the person's eyes."""

    database: Database
    clock: Clock
    fleet: str
    who: str
    place: str


# --- saying and steering ---------------------------------------------------------------------------------------------


LONGEST_MESSAGE = 4_000
"""Characters; what goes far beyond that would not fit into a prompt beside everything else."""


def say(desk: Desk, text: str) -> int:
    """Leave a message for the agent; returns the id of its inbox event. Raises FixSetup for one it would not see."""
    if not text.strip():
        raise FixSetup("the message is empty", 'fleet-agent say "how are we doing?"')
    if len(text) > LONGEST_MESSAGE:
        raise FixSetup(
            f"the message has {len(text)} characters and may have {LONGEST_MESSAGE}",
            "shorten it; what is to hold for good belongs in the objective",
        )
    with desk.database.shared(desk.fleet) as tx:
        return post(tx, desk.fleet, Post(kind=Kind.MESSAGE, source=desk.who, text=text), now=desk.clock.now())


def run_now(desk: Desk) -> int:
    """Ask for a run that asks the model, whatever it finds; the id of its inbox event, the same while it waits."""
    event = Post(kind=Kind.RUN_NOW, source=desk.who, dedupe_key=Kind.RUN_NOW.value)
    with desk.database.shared(desk.fleet) as tx:
        return post(tx, desk.fleet, event, now=desk.clock.now())


def objective(desk: Desk) -> str:
    with desk.database.transaction() as tx:
        return session.state(tx, desk.fleet).objective


LONGEST_OBJECTIVE = 6_000
"""Bytes: every prompt carries it whole, and no tokenizer makes more tokens of it than that."""


def set_objective(desk: Desk, text: str) -> None:
    """Set it; an empty text takes it away. Raises FixSetup for one that would crowd out everything else."""
    size = len(text.encode("utf-8", "replace"))
    if size > LONGEST_OBJECTIVE:
        raise FixSetup(
            f"the objective has {size} bytes and may have {LONGEST_OBJECTIVE}", "say what is to hold for good, in short"
        )
    with desk.database.exclusive(desk.fleet) as tx:
        steering.set_objective(tx, desk.fleet, text, who=desk.who, now=desk.clock.now())


def policy(desk: Desk) -> Policy:
    with desk.database.transaction() as tx:
        return session.policy(tx, desk.fleet)


def set_policy(desk: Desk, changes: Mapping[str, str]) -> Policy:
    """Set dotted keys. Raises PolicyInvalid, and then nothing is stored."""
    with desk.database.exclusive(desk.fleet) as tx:
        return steering.change_policy(tx, desk.fleet, changes, who=desk.who, now=desk.clock.now())


def set_mode(desk: Desk, mode: Mode) -> None:
    """In force for the very next effect, also of a run that is under way."""
    with desk.database.exclusive(desk.fleet) as tx:
        steering.set_mode(tx, desk.fleet, mode, who=desk.who, now=desk.clock.now())


def mode(desk: Desk) -> Mode:
    with desk.database.transaction() as tx:
        return Mode(session.state(tx, desk.fleet).mode)


def resume(desk: Desk, mode: Mode) -> None:
    """The mode, without any brake: neither a person's, nor those that were drawn because something went wrong."""
    with desk.database.exclusive(desk.fleet) as tx:
        steering.resume(tx, desk.fleet, mode, who=desk.who, now=desk.clock.now())


def pause_scaling(desk: Desk, *brakes: Brake) -> None:
    """Hold back renting, or giving up boxes, and leave the rest as it is; in force for the very next effect."""
    with desk.database.exclusive(desk.fleet) as tx:
        steering.pause_scaling(tx, desk.fleet, brakes, who=desk.who, now=desk.clock.now())


def resume_scaling(desk: Desk, *brakes: Brake) -> None:
    with desk.database.exclusive(desk.fleet) as tx:
        steering.resume_scaling(tx, desk.fleet, brakes, who=desk.who, now=desk.clock.now())


def reset_session(desk: Desk) -> int:
    """Begin a new conversation and return its epoch; counter, wakes, policy and objective stay."""
    with desk.database.exclusive(desk.fleet) as tx:
        return steering.reset_session(tx, desk.fleet, who=desk.who, now=desk.clock.now())


def rotate_token(desk: Desk, purpose: Purpose) -> str:
    """A new token; the one before it opens nothing any more. It is nowhere to be read again."""
    with desk.database.transaction() as tx:
        return tokens.rotate(tx, desk.fleet, purpose, who=desk.who, now=desk.clock.now())


# --- what is still to come -------------------------------------------------------------------------------------------


def add_wake(desk: Desk, when: str, reason: str) -> NewWake | NoWake:
    """Have the agent look at `when` (minutes, or a time in UTC). Raises FixSetup where that is no time."""
    now = desk.clock.now()
    after = time_until(when, now=now)
    if isinstance(after, CannotRead):
        raise FixSetup(after.sentence, 'fleet-agent wakes add 45 "is the queue empty?"')
    if not reason.strip():
        raise FixSetup("a wake needs a reason, which the agent reads", 'fleet-agent wakes add 45 "is the queue empty?"')
    with desk.database.exclusive(desk.fleet) as tx:
        return wakes.ask(tx, desk.fleet, after, reason, asked_by=desk.who, now=now)


def cancel_wake(desk: Desk, wake_id: int) -> None:
    """Raises FixSetup where it is not still to come."""
    with desk.database.exclusive(desk.fleet) as tx:
        problem = wakes.cancel(tx, desk.fleet, wake_id, who=desk.who, now=desk.clock.now())
    if problem is not None:
        raise FixSetup(problem, "`fleet-agent wakes list` shows which are pending")


def release_event(desk: Desk, event_id: int) -> None:
    """Have a quarantined inbox event tried again, alone. Raises FixSetup where it is not quarantined."""
    with desk.database.exclusive(desk.fleet) as tx:
        problem = claims.lift_quarantine(tx, desk.fleet, event_id)
        if problem is None:
            audit.note(
                tx, desk.fleet, who=desk.who, what="inbox", text=f"released event {event_id}", now=desk.clock.now()
            )
    if problem is not None:
        raise FixSetup(problem, "`fleet-agent inbox list` shows which were")


# --- boxes -----------------------------------------------------------------------------------------------------------


def boxes(desk: Desk) -> list[dict[str, Any]]:
    """The rows of every box that is not gone, oldest first."""
    with desk.database.transaction() as tx:
        return reading.boxes(tx, desk.fleet)


def drain_box(desk: Desk, vast_id: int) -> None:
    """Have the watch drain a box: it takes no more work, and is destroyed once it is idle or at its deadline.

    Raises FixSetup where there is no such box, where it is protected, or where that is under way.
    """
    _order(desk, DrainBox(id=vast_id, reason=f"ordered by {desk.who}"))


def destroy_box(desk: Desk, vast_id: int) -> None:
    """Have the watch destroy a box at once, whatever it is proving. Raises FixSetup as `drain_box` does."""
    _order(desk, DestroyBox(id=vast_id, reason=f"ordered by {desk.who}"))


def _order(desk: Desk, action: DrainBox | DestroyBox) -> None:
    with desk.database.exclusive(desk.fleet) as tx:
        box = ledger.live_box(tx, desk.fleet, action.id)
        if box is not None and box.protected:
            raise FixSetup(f"box {action.id} is protected", f"fleet-agent boxes protect {action.id} --off")
        problem = actions.order(tx, desk.fleet, action, who=desk.who, now=desk.clock.now())
    if problem is not None:
        raise FixSetup(problem, SEE_BOXES)


SEE_BOXES = "`fleet-agent boxes list` shows which are live"


def protect_box(desk: Desk, vast_id: int, on: bool) -> None:
    """Have nobody but the emergency stop give a box up, or let go of that. Raises FixSetup where there is none."""
    with desk.database.exclusive(desk.fleet) as tx:
        problem = steering.protect(tx, desk.fleet, vast_id, on, who=desk.who, now=desk.clock.now())
    if problem is not None:
        raise FixSetup(problem, SEE_BOXES)


# --- the orderly end -------------------------------------------------------------------------------------------------

ORDERED_AGAIN_AFTER = 60
"""Seconds, real, after which a box that does not go is ordered to drain once more: nothing may have come of it."""

LOOK_AT_DRAINS = 2


async def drain_all(desk: Desk, *, sleep: Callable[[float], Awaitable[None]], tell: Callable[[str], None]) -> None:
    """Have the watch drain every box that is not protected, also one that is still on its way, until none is left.

    To be called when nobody rents any more. What may work later is tried again.
    """
    told, since_orders = "", ORDERED_AGAIN_AFTER
    while True:
        try:
            if since_orders >= ORDERED_AGAIN_AFTER:
                await asyncio.to_thread(_order_drains, desk)
                since_orders = 0
            left = await asyncio.to_thread(_left_to_drain, desk)
        except TryLater as error:
            left = f"{error.cause}; trying again"
        if left != told:
            tell(left or f"No box of fleet {desk.fleet} is left but protected ones.")
            told = left
        if not left:
            return
        await sleep(LOOK_AT_DRAINS)
        since_orders += LOOK_AT_DRAINS


def _order_drains(desk: Desk) -> None:
    """What drains already, or is ordered to, refuses another order, and that is well."""
    with desk.database.exclusive(desk.fleet) as tx:
        for box in ledger.boxes(tx, desk.fleet):
            if not box.protected and box.vast_id is not None:
                action = DrainBox(id=box.vast_id, reason=f"ordered by {desk.who}")
                actions.order(tx, desk.fleet, action, who=desk.who, now=desk.clock.now())


def _left_to_drain(desk: Desk) -> str:
    """In words; empty where nothing is."""
    with desk.database.transaction() as tx:
        going = [box for box in ledger.boxes(tx, desk.fleet) if not box.protected]
        in_flight, _ = ledger.in_flight(tx, desk.fleet)
    words = [f"{box.vast_id} {box.stage}" for box in going] + ([f"{in_flight} in flight"] if in_flight else [])
    return f"Still to go: {', '.join(words)}." if words else ""


# --- what waits for a word -------------------------------------------------------------------------------------------


def approvals(desk: Desk) -> tuple[Approval, ...]:
    with desk.database.transaction() as tx:
        return actions.open_approvals(tx, desk.fleet)


def approve(desk: Desk, key: str) -> Grant:
    """Grant what an action asks for; the next run carries it out, within the bound that is returned or not at all.
    Raises FixSetup where nothing waits under this key."""
    with desk.database.exclusive(desk.fleet) as tx:
        granted = steering.approve(tx, desk.fleet, key, who=desk.who, now=desk.clock.now())
    if isinstance(granted, str):
        raise FixSetup(granted, SEE_APPROVALS)
    return granted


def reject(desk: Desk, key: str) -> None:
    """Raises FixSetup where nothing waits under this key."""
    with desk.database.exclusive(desk.fleet) as tx:
        problem = steering.reject(tx, desk.fleet, key, who=desk.who, now=desk.clock.now())
    if problem is not None:
        raise FixSetup(problem, SEE_APPROVALS)


SEE_APPROVALS = "`fleet-agent status` shows what waits for a word"


# --- the machines of strangers ---------------------------------------------------------------------------------------


def hosts(desk: Desk) -> dict[str, list[dict[str, Any]]]:
    """Rows by the name of their table: `host_ban` those in force, `host` what each machine has shown."""
    with desk.database.transaction() as tx:
        bans = reading.host_bans(tx, desk.fleet, now=desk.clock.now())
        return {"host_ban": bans, "host": reading.hosts(tx, desk.fleet)}


def ban_host(desk: Desk, machine_id: int, failure: Failure, reason: str) -> Ban:
    """Rent a machine no more for as long as the policy says for this class, be it one that we never had.

    Returns the ban that holds, which may be a longer one. Raises FixSetup for what is no machine or no reason.
    """
    if not reason.strip():
        raise FixSetup("a ban needs a reason, which you read when you wonder about it", BAN_EXAMPLE)
    now = desk.clock.now()
    with desk.database.exclusive(desk.fleet) as tx:
        bounds = session.policy(tx, desk.fleet).bans
        held = ban(tx, desk.fleet, machine_id, failure, reason, by=desk.who, bounds=bounds, now=now)
        if isinstance(held, Ban):
            text = f"banned machine {machine_id} ({failure.value}): {held.reason}"
            audit.note(tx, desk.fleet, who=desk.who, what="host", text=text, now=now)
    if isinstance(held, NotBanned):
        raise FixSetup(held.sentence, BAN_EXAMPLE)
    return held


BAN_EXAMPLE = 'fleet-agent hosts ban 4711 deterministic "its driver is too old"'


def lift_ban(desk: Desk, machine_id: int) -> None:
    """Let a machine be rented again. Raises FixSetup where it is not banned."""
    with desk.database.exclusive(desk.fleet) as tx:
        problem = lift(tx, desk.fleet, machine_id, by=desk.who, now=desk.clock.now())
    if problem is not None:
        raise FixSetup(problem, "`fleet-agent hosts list` shows which are")


# --- looking into the prompt -----------------------------------------------------------------------------------------


async def next_request(desk: Desk, ports: Ports) -> tuple[dict[str, Any], int]:
    """The request body that a run would send now, and its token count. Nothing is claimed or recorded."""
    with desk.database.transaction() as tx:
        state = session.state(tx, desk.fleet)
        waiting = claims.peek(tx, desk.fleet, now=desk.clock.now())
        run = Run(
            run_id=state.run_counter + 1,
            fleet=desk.fleet,
            epoch=state.epoch,
            trigger=Trigger.MANUAL,
            force_review=False,
            opened_at=desk.clock.now(),
        )
    standing = await ports.journal.standing(run)
    unsettled = await ports.journal.unsettled(run)
    block = turn_block(
        run,
        standing,
        waiting,
        await glance(run, ports),
        unsettled,
        desk.clock.now(),
        ports.count_tokens,
        mark=ports.draw_mark(),
    )
    opening = Message(turn=1, step=0, role="user", kind=MessageKind.TRIGGER, content=block)
    terms = await ports.model.terms()
    prompt = compose(
        standing=standing,
        steps=[opening],
        count_tokens=ports.count_tokens,
        budget=Budget(factor=terms.factor),
    )
    return ports.model.body(prompt.messages, prompt.tools), prompt.tokens


def sent_request(desk: Desk, run_id: int, count_tokens: CountTokens) -> tuple[dict[str, Any], int]:
    """The newest request body of a run, and its token count. Raises FixSetup where there is none."""
    with desk.database.transaction() as tx:
        body = reading.request(tx, desk.fleet, run_id)
    if body is None:
        raise FixSetup(f"run #{run_id} sent no request to the model", "`fleet-agent runs` shows which runs did")
    return body, request_tokens(body["messages"], body.get("tools", ()), count_tokens)


# --- the emergency stop ----------------------------------------------------------------------------------------------


async def destroy_all(
    desk: Desk, market: Market, *, sleep: Callable[[float], Awaitable[None]], tell: Callable[[str], None]
) -> None:
    """Pause the fleet, then destroy every box of it until a good look shows none and no lost rent can still appear.

    Each box has a row in the ledger, of actor operator, before its destruction is asked for. What may work later, our
    own database included, is tried again; raises KeyRefused and what else a person must mend. The fleet stays paused
    until a person resumes it.
    """
    orders = _Orders()
    while True:
        try:
            set_mode(desk, Mode.PAUSED)
            if await _destroyed_all(desk, market, orders, tell):
                return _tell_the_end(desk, tell)
        except TryLater as error:
            tell(f"{error.cause}; trying again")
        await sleep(BETWEEN_LOOKS.total_seconds())


@dataclass
class _Orders:
    """How far the stop has come: the key of the order for each box, and the boxes whose end the provider accepted."""

    keys: dict[int, str] = field(default_factory=dict[int, str])
    accepted: set[int] = field(default_factory=set[int])


async def _destroyed_all(desk: Desk, market: Market, orders: _Orders, tell: Callable[[str], None]) -> bool:
    """One pass. True once nothing is left to do.

    The provider takes one destruction every few seconds. So those come first that it has not accepted yet; the others
    are asked for once more, for its answer that it knows no such box says more than a list without it. Where it asks
    for fewer requests, the pass ends, and the next one begins with what is left.
    """
    ours_now, may_still_appear = _sight(desk, await market.inventory(), orders)
    tell(f"Fleet {desk.fleet} in {desk.place}: {len(ours_now)} of its boxes live, {may_still_appear} may still appear.")
    for vast_id in sorted(ours_now, key=lambda vast_id: (vast_id in orders.accepted, vast_id)):
        await _destroy(desk, market, vast_id, orders, tell)
    return not ours_now and not may_still_appear


def _sight(desk: Desk, inventory: Inventory, orders: _Orders) -> tuple[set[int], int]:
    """The boxes that are ours, each with an order in the ledger, and how many rents may still become one.

    Ours is what carries our label in the list, and what the ledger knows to live, unless the list speaks against it: a
    list can lag, a label can get lost. A box that is alive long after its end was accepted is ordered away anew.
    """
    with desk.database.exclusive(desk.fleet) as tx:
        now = desk.clock.now()
        name = installation(tx).name
        actions.call_off(tx, desk.fleet, now=now)
        sightings.record_sighting(tx, desk.fleet, inventory, now=now)
        shown = {i.id: i for i in inventory.instances}
        listed = {number for number, i in shown.items() if ours(i, installation=name, fleet=desk.fleet)}
        known = {
            box.vast_id: box.stage
            for box in ledger.boxes(tx, desk.fleet)
            if box.vast_id is not None and not (box.vast_id in shown and is_another(shown[box.vast_id], box))
        }
        for vast_id in listed | known.keys():
            if vast_id not in orders.keys or known.get(vast_id, Stage.DESTROYING) is not Stage.DESTROYING:
                orders.keys[vast_id] = actions.order_destroy(tx, desk.fleet, vast_id, who=desk.who, now=now)
                orders.accepted.discard(vast_id)
        return listed | known.keys(), ledger.may_still_appear(tx, desk.fleet)


async def _destroy(desk: Desk, market: Market, vast_id: int, orders: _Orders, tell: Callable[[str], None]) -> None:
    """Raises SlowDown, and then nothing was done."""
    status, gone = ActionStatus.DONE, False
    try:
        await market.destroy(vast_id)
        outcome = f"The provider accepted to destroy box {vast_id}."
        orders.accepted.add(vast_id)
    except AlreadyGone:
        outcome, gone = f"Box {vast_id} is gone.", True
    except SlowDown:
        raise
    except (TryLater, LookFirst) as error:
        outcome, status = error.cause, ActionStatus.UNKNOWN
    tell(outcome)
    with desk.database.exclusive(desk.fleet) as tx:
        actions.record_outcome(tx, orders.keys[vast_id], status, outcome, vast_id=None, now=desk.clock.now())
        if gone:
            ledger.unknown_to_provider(tx, desk.fleet, vast_id, now=desk.clock.now())


def _tell_the_end(desk: Desk, tell: Callable[[str], None]) -> None:
    """With the boxes that may be ours and that nobody but a person may destroy."""
    with desk.database.transaction() as tx:
        questions = reading.questions(tx, desk.fleet)
        left = [box.vast_id for box in ledger.boxes(tx, desk.fleet)]
    for question in questions:
        tell(f"QUESTION {question}")
    for vast_id in left:
        tell(f"QUESTION box {vast_id} was ours, and by its label or machine is another's now: look at the provider")
    tell(f"No box of fleet {desk.fleet} is left. It stays paused until `fleet-agent resume`.")
