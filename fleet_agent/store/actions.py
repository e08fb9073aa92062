"""An action from its ruling to its outcome: judged and intended, sent, settled; or waiting for a person's word.

A row is written before anything happens and never removed. Whoever asks, each action is judged by the rules in the
transaction that stores its intent, and looked at once more in the transaction that commits `sent`. A rent counts
against the limits from the moment of its intent: first as an intent, then, once it may have reached the provider, as a
box whose number nobody knows yet, then as a box. Only a definite refusal or the end of the grace frees it. `Box.key` is
the key of the rent that made it.

Every function here that changes something is called within `Database.exclusive`.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, cast

from sqlalchemy import ColumnElement, Select, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.actions import TOOLS, DestroyBox, DrainBox, Effect, RentBox
from fleet_agent.domain.approvals import Grant, bound_of
from fleet_agent.domain.fleet import Label, Offer, Stage
from fleet_agent.domain.hosts import Failure, InVain, machines_of
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import BUSY, DRY_RUN, PASSING, Actor, Decision, Mode, Removal, Ruling, Situation, judge
from fleet_agent.domain.run import Approval, Approved, Run
from fleet_agent.domain.watch import Order
from fleet_agent.store import hosts, ledger, session, tables
from fleet_agent.store.database import notify_bell, real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.situation import Asker, situation_of
from fleet_agent.store.tables import Action

LONGEST_CALL: Final = timedelta(seconds=60)
"""Real time that a call about a box may be on its way, beyond the time to send it; then nobody waits for it."""

_SETTLED: Final = (ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.EXPIRED)
"""What somebody has seen the end of."""

_ABOUT_BOXES: Final = (RentBox.name, DrainBox.name, DestroyBox.name)
"""What a pause or another policy stops at the last moment; a person may be told things all the same."""

_OF_A_RUN: Final = (Actor.AGENT, Actor.PLANNER)
"""Whose intents end with the run that carries them out."""

_EFFECTS: Final = {tool.name: tool for tool in TOOLS if issubclass(tool, Effect)}


# --- before anything happens -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """An effect that somebody asks for; `key` begins the key of its row, `call_id` ties it to a call of the model."""

    action: Effect
    key: str
    call_id: str | None = None


def propose(
    tx: Session, asker: Asker, wanted: Sequence[Wanted], *, observation: Observation, listing: Listing, now: datetime
) -> tuple[Ruled, ...]:
    """Rule on the effects in order, each knowing the intents of those before it, and store the rows."""
    return tuple(_judged(tx, asker, each, observation, listing, now) for each in wanted)


def _judged(
    tx: Session, asker: Asker, wanted: Wanted, observation: Observation, listing: Listing, now: datetime
) -> Ruled:
    situation = situation_of(tx, asker, observation, listing, now=now)
    row = Action(
        fleet=asker.fleet,
        key=f"{wanted.key}-{_random_suffix()}",
        actor=asker.actor.value,
        run_id=asker.run and asker.run.run_id,
        call_id=wanted.call_id,
        tool=wanted.action.name,
        arguments={},
        tainted=situation.tainted,
        created_at=now,
        ruling="",
        code="",
        sentence="",
        status="",
    )
    _rule(tx, row, wanted.action, situation, judge(wanted.action, situation))
    tx.add(row)
    tx.flush()
    return ruled(row, situation.policy)


def _rule(tx: Session, row: Action, action: Effect, situation: Situation, ruling: Ruling) -> None:
    """Write down the ruling on `action`, with what it was judged by, reserves, or waits for."""
    offer = situation.offer(action.offer_id) if isinstance(action, RentBox) else None
    row.arguments = action.model_dump(mode="json")
    row.box_key = _box_key(action, row.key, situation) or row.box_key
    row.policy_version = session.state(tx, row.fleet).policy_version
    row.ruling, row.code, row.sentence = ruling.decision.value, ruling.code, ruling.sentence
    row.status = _first_status(ruling, situation.mode).value
    row.reserved_usd_per_hour = Decimal(0)
    if offer is not None:
        row.offer = offer.model_dump(mode="json")
        if row.status == ActionStatus.INTENDED:
            row.reserved_usd_per_hour = offer.usd_per_hour
    if row.status == ActionStatus.AWAITING_APPROVAL:
        row.grant_expires_at = situation.now + situation.policy.approvals.expire_after
        bound = bound_of(
            action,
            offer,
            floors=situation.policy.offers,
            proofs_per_hour=situation.proofs_per_hour(offer) if offer else None,
            expires_at=row.grant_expires_at,
        )
        row.grant = bound.model_dump(mode="json")


def ruled(row: Action, policy: Policy) -> Ruled:
    return Ruled(
        key=row.key,
        call_id=row.call_id or "",
        ruling=Ruling(decision=Decision(row.ruling), code=row.code, sentence=row.sentence),
        policy=policy,
        offer=None if row.offer is None else Offer.model_validate(row.offer),
        status=ActionStatus(row.status),
        outcome=row.outcome,
    )


def _first_status(ruling: Ruling, mode: Mode) -> ActionStatus:
    match ruling.decision:
        case Decision.ALLOW:
            return ActionStatus.DRY if mode is Mode.DRY_RUN else ActionStatus.INTENDED
        case Decision.NEEDS_APPROVAL:
            return ActionStatus.AWAITING_APPROVAL
        case Decision.REFUSE:
            return ActionStatus.REFUSED


def _box_key(action: Effect, key: str, situation: Situation) -> str | None:
    match action:
        case RentBox():
            return key
        case DrainBox(id=vast_id) | DestroyBox(id=vast_id):
            box = situation.box(vast_id)
            return box and box.key
        case _:
            return None


def _random_suffix() -> str:
    """Keeps keys of two databases apart that were copied from one another."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))


# --- what waits for a person's word ----------------------------------------------------------------------------------


def approvals(tx: Session, fleet: str) -> tuple[Approval, ...]:
    """What waits for a person's word, and what has it and waits for its time, oldest first."""
    return tuple(
        Approval(
            key=row.key,
            tool=row.tool,
            arguments=row.arguments,
            sentence=row.sentence,
            asked_at=row.created_at,
            bound="" if row.grant is None else Grant.model_validate(row.grant).in_words(),
            approved_by=row.approved_by,
        )
        for row in tx.scalars(_awaiting(fleet))
    )


def open_approvals(tx: Session, fleet: str) -> tuple[Approval, ...]:
    """Of these, what no person has answered yet."""
    return tuple(approval for approval in approvals(tx, fleet) if approval.approved_by is None)


def approve(tx: Session, fleet: str, key: str, *, who: str, now: datetime) -> str | Grant:
    """Grant what was asked for, from now until it expires anew; the problem in a sentence where that cannot be."""
    row = _asked(tx, fleet, key, now)
    if isinstance(row, str):
        return row
    bound = Grant.model_validate(row.grant)
    expires_at = now + session.policy(tx, fleet).approvals.expire_after
    granted = bound.model_copy(update={"expires_at": expires_at})
    row.grant, row.grant_expires_at = granted.model_dump(mode="json"), expires_at
    row.approved_by, row.approved_at = who, now
    return granted


def reject(tx: Session, fleet: str, key: str, *, who: str, now: datetime) -> str | None:
    """Refuse what was asked for; the problem in a sentence where that cannot be."""
    row = _asked(tx, fleet, key, now)
    if isinstance(row, str):
        return row
    row.status = ActionStatus.REFUSED.value
    row.ruling, row.code, row.sentence = Decision.REFUSE.value, "rejected", f"{who} rejected it."
    row.settled_at = now
    return None


def _asked(tx: Session, fleet: str, key: str, now: datetime) -> Action | str:
    """The row that waits for a word, or why there is none."""
    expire_approvals(tx, fleet, now=now)
    row = tx.scalars(select(Action).where(Action.fleet == fleet, Action.key == key)).first()
    if row is None:
        return f"fleet {fleet} has no action {key}"
    if row.status != ActionStatus.AWAITING_APPROVAL:
        return f"{key} does not wait for approval: it is {row.status}"
    if row.approved_by is not None:
        return f"{key} was approved by {row.approved_by} already"
    return row


def expire_approvals(tx: Session, fleet: str, *, now: datetime) -> None:
    """What nobody answered in time, and what was granted and not sent in time, is over."""
    for row in tx.scalars(select(Action).where(_waits_or_is_intended(fleet))):
        if row.grant_expires_at is not None and row.grant_expires_at <= now:
            settle(row, ActionStatus.EXPIRED, "the approval was not given, or not used, in time", now)


def approved(tx: Session, fleet: str) -> tuple[Approved, ...]:
    """What a person has approved and nobody has carried out yet, oldest first.

    With what is intended already: no intent outlives its run, so an attempt of this one was interrupted before it was
    sent.
    """
    rows = tx.scalars(
        select(Action)
        .where(_waits_or_is_intended(fleet), col(Action.approved_at).is_not(None))
        .order_by(col(Action.id))
    )
    return tuple(
        Approved(
            key=row.key,
            action=_EFFECTS[row.tool].model_validate(row.arguments),
            offer=None if row.offer is None else Offer.model_validate(row.offer),
            grant=Grant.model_validate(row.grant),
        )
        for row in rows
    )


def carry_out_approved(
    tx: Session, run: Run, key: str, *, action: Effect, observation: Observation, listing: Listing, now: datetime
) -> Ruled:
    """Judge an approved action anew, by every rule and within its bound; its row becomes the intent, or is refused.

    `action` is what lies within the bound now: a rent may name another offer than was asked about. Used once; but what
    only time is in the way of goes on waiting, for nobody is asked again about what he has answered. An intent that was
    interrupted before it was sent is judged anew as well, for time has passed.
    """
    row = action_of(tx, key)
    if row.status == ActionStatus.INTENDED and row.approved_at is not None:
        row.status, row.reserved_usd_per_hour = ActionStatus.AWAITING_APPROVAL.value, Decimal(0)
        tx.flush()  # else it would stand in its own way
    if row.status != ActionStatus.AWAITING_APPROVAL or row.approved_at is None:
        return ruled(row, session.policy(tx, run.fleet))
    asker = Asker(fleet=run.fleet, actor=Actor(row.actor), run=run, grant=Grant.model_validate(row.grant))
    situation = situation_of(tx, asker, observation, listing, now=now)
    ruling = judge(action, situation)
    if ruling.decision is Decision.REFUSE and ruling.code in PASSING:
        row.sentence = f"Approved by {row.approved_by}, and waits: {ruling.sentence}"
        return ruled(row, situation.policy)
    _rule(tx, row, action, situation, ruling)
    if ruling.decision is Decision.ALLOW:
        row.sentence = f"Approved by {row.approved_by}."
    tx.flush()
    return ruled(row, situation.policy)


# --- a person's orders -----------------------------------------------------------------------------------------------


def order(tx: Session, fleet: str, action: Removal, *, who: str, now: datetime) -> str | None:
    """Have the watch carry out what a person wants, at once; the problem in a sentence where it cannot be ordered."""
    box = ledger.live_box(tx, fleet, action.id)
    if box is None:
        return f"fleet {fleet} has no live box {action.id}"
    if box.stage == Stage.DESTROYING or (box.stage == Stage.DRAINING and isinstance(action, DrainBox)):
        return f"box {action.id} is {box.stage} already"
    if _is_ordered(tx, box, action):
        return f"{action.name} of box {action.id} is ordered already"
    tx.add(_order(fleet, action, box, _by(who), now))
    notify_bell(tx, fleet)
    return None


def order_on(tx: Session, before: Action, action: Removal, *, now: datetime) -> None:
    """Go on with what a person ordered `before`, in the same name; nothing where that is under way."""
    box = tx.get(tables.Box, before.box_key)
    if box is not None and not _is_ordered(tx, box, action):
        tx.add(_order(before.fleet, action, box, before.sentence, now))


def _is_ordered(tx: Session, box: tables.Box, action: Removal) -> bool:
    """Whether a person wants the same already, and nobody has seen the end of it."""
    orders = select(Action.id).where(
        Action.box_key == box.key,
        Action.tool == action.name,
        Action.actor == Actor.OPERATOR,
        col(Action.status).in_((ActionStatus.INTENDED, ActionStatus.SENT, ActionStatus.UNKNOWN)),
    )
    return tx.execute(select(orders.exists())).scalar_one()


def orders(tx: Session) -> tuple[Order, ...]:
    """What persons ordered and nobody has carried out yet, of all fleets, oldest first."""
    rows = tx.scalars(
        select(Action)
        .where(
            Action.actor == Actor.OPERATOR,
            Action.status == ActionStatus.INTENDED,
            col(Action.tool).in_((DrainBox.name, DestroyBox.name)),
        )
        .order_by(col(Action.id))
    )
    return tuple(
        Order(fleet=row.fleet, key=row.key, action=cast("Removal", _EFFECTS[row.tool].model_validate(row.arguments)))
        for row in rows
    )


def judge_order(tx: Session, order: Order, *, observation: Observation, now: datetime) -> Ruled:
    """Judge a person's order by the look at hand. No brake holds it, and no dry run: only ownership does."""
    row = action_of(tx, order.key)
    if row.status == ActionStatus.INTENDED:
        asker = Asker(fleet=order.fleet, actor=Actor.OPERATOR)
        situation = situation_of(tx, asker, observation, Listing(), now=now)
        ruling = judge(order.action, situation)
        if ruling.decision is Decision.ALLOW:
            row.box_key = _box_key(order.action, row.key, situation)
        else:
            row.ruling, row.code, row.sentence = ruling.decision.value, ruling.code, ruling.sentence
            row.status, row.settled_at = ActionStatus.REFUSED.value, now
        tx.flush()
    return ruled(row, session.policy(tx, order.fleet))


def order_destroy(tx: Session, fleet: str, vast_id: int, *, who: str = "a person", now: datetime) -> str:
    """The order of the emergency stop, which no brake holds back and whoever gave it carries out himself: stored as
    sent; returns its key. To be called after a look that showed the box to be ours.
    """
    box = ledger.live_box(tx, fleet, vast_id)
    row = _order(fleet, DestroyBox(id=vast_id, reason="emergency stop"), box, _by(who), now)
    row.status, row.sent_at = ActionStatus.SENT.value, real_now(tx)
    tx.add(row)
    if box is not None:
        ledger.enter(box, Stage.DESTROYING, now)
    return row.key


def _by(who: str) -> str:
    return f"Ordered by {who}."


def _order(fleet: str, action: Removal, box: tables.Box | None, sentence: str, now: datetime) -> Action:
    return Action(
        fleet=fleet,
        key=f"{Actor.OPERATOR.value}{action.id}-{_random_suffix()}",
        actor=Actor.OPERATOR.value,
        tool=action.name,
        arguments=action.model_dump(mode="json"),
        box_key=box and box.key,
        created_at=now,
        ruling=Decision.ALLOW.value,
        code=Actor.OPERATOR.value,
        sentence=sentence,
        status=ActionStatus.INTENDED.value,
    )


# --- last thing before the call --------------------------------------------------------------------------------------


def mark_sent(
    tx: Session,
    fleet: str,
    key: str,
    *,
    send_by: timedelta,
    now: datetime,
    hook_digest: str | None = None,
    run: Run | None = None,
) -> Ruling:
    """Commit that the call is about to be made, or rule that it must not be. The caller holds the fence of `run`."""
    expire_approvals(tx, fleet, now=now)
    row = action_of(tx, key)
    box = tx.get(tables.Box, row.box_key) if row.box_key else None
    sent_at = real_now(tx)
    refusal = reason_not_to_send(row, box, session.state(tx, fleet), sent_at) or _banned_since(tx, row, now)
    if refusal is not None:
        if row.status == ActionStatus.INTENDED and not (row.actor == Actor.OPERATOR and refusal.code in PASSING):
            row.status = (ActionStatus.DRY if refusal.code == DRY_RUN else ActionStatus.REFUSED).value
            row.ruling, row.code, row.sentence = refusal.decision.value, refusal.code, refusal.sentence
            row.reserved_usd_per_hour = Decimal(0)
        return refusal
    row.status, row.sent_at, row.send_by = ActionStatus.SENT.value, sent_at, sent_at + send_by
    row.sent_by_run = run and run.run_id
    if row.tool == RentBox.name:
        tx.add(_box_of_rent(row, installation(tx).name, hook_digest, now))
    elif box is not None:
        box.busy_action, box.busy_until = row.tool, sent_at + send_by + LONGEST_CALL
        if row.tool == DestroyBox.name:
            ledger.enter(box, Stage.DESTROYING, now)
        if row.tool == DrainBox.name:
            ledger.drain(box, str(row.arguments.get("reason", "")), session.policy(tx, fleet), now)
    return Ruling(decision=Decision.ALLOW, code=row.code, sentence=row.sentence)


def reason_not_to_send(row: Action, box: tables.Box | None, state: tables.SessionState, at: datetime) -> Ruling | None:
    """What speaks against the call since its ruling; `box` is the one that it is about, `at` is real time."""
    status, mode, held = ActionStatus(row.status), Mode(state.mode), row.actor != Actor.OPERATOR
    if status is ActionStatus.DRY or (status is ActionStatus.INTENDED and held and mode is Mode.DRY_RUN):
        return _refuse(DRY_RUN, "This is a dry run: it was allowed, and nothing is sent.")
    if status is not ActionStatus.INTENDED:
        return _refuse("not_intended", f"This action is {status.value} already.")
    if held and mode is Mode.PAUSED and row.tool in _ABOUT_BOXES:
        return _refuse("paused", "The fleet was paused after this was allowed.")
    if held and state.frozen_because and row.tool in _ABOUT_BOXES:
        return _refuse("frozen", f"The list of boxes is in doubt since this was allowed: {state.frozen_because}.")
    if held and state.scale_out_paused and row.tool == RentBox.name:
        return _refuse("scale_out_paused", "Renting was paused after this was allowed.")
    if held and state.rent_breaker and row.tool == RentBox.name:
        return _refuse("rent_breaker", "Rents kept failing, and renting was paused after this was allowed.")
    if row.actor in _OF_A_RUN and state.scale_in_paused and row.tool in (DrainBox.name, DestroyBox.name):
        return _refuse("scale_in_paused", "Giving up boxes was paused after this was allowed.")
    if held and row.policy_version != state.policy_version and row.tool in _ABOUT_BOXES:
        return _refuse("policy_changed", "The policy was changed after this was allowed; ask again.")
    if box is not None and box.stage in (Stage.DESTROYING, Stage.GONE):
        return _refuse("already_destroying", f"Box {box.vast_id} is {box.stage} already.")
    if box is not None and box.protected:
        return _refuse("protected", f"Box {box.vast_id} was protected after this was allowed.")
    if box is not None and box.busy_until is not None and box.busy_until > at:  # a person's order waits for that
        return _refuse(BUSY, f"A call about box {box.vast_id} is on its way; its outcome comes first.")
    return None


def _banned_since(tx: Session, row: Action, now: datetime) -> Ruling | None:
    """A machine may fail, or be banned in the very reply that rents it, after the rent was ruled on."""
    machine_id = None if row.tool != RentBox.name or row.offer is None else row.offer["machine_id"]
    if machine_id in machines_of(hosts.bans(tx, row.fleet, now=now)):
        return _refuse("host_banned", f"Machine {machine_id} was banned after this was allowed.")
    return None


def _refuse(code: str, sentence: str) -> Ruling:
    return Ruling(decision=Decision.REFUSE, code=code, sentence=sentence)


def _box_of_rent(row: Action, installation_name: str, hook_digest: str | None, now: datetime) -> tables.Box:
    """The ledger knows of the box before the provider does, and of its token only by what the order does not say."""
    offer = Offer.model_validate(row.offer)
    return tables.Box(
        key=row.key,
        fleet=row.fleet,
        label=str(Label(installation=installation_name, fleet=row.fleet, key=row.key)),
        machine_id=offer.machine_id,
        offer_id=offer.id,
        gpu_name=offer.gpu_name,
        num_gpus=offer.num_gpus,
        agreed_usd_per_hour=offer.usd_per_hour,
        rented_at=now,
        stage=Stage.RENTED.value,
        stage_since=now,
        hook_digest=hook_digest,
    )


def drop(tx: Session, key: str, why: str, *, now: datetime) -> None:
    """What was intended is not sent after all, and reserves nothing. The caller holds the fence of its run: who was
    overtaken does not know what became of the intent since, and must not undo what another one has sent."""
    row = action_of(tx, key)
    if row.status == ActionStatus.INTENDED:
        settle(row, ActionStatus.FAILED, why, now)


# --- what became of it -----------------------------------------------------------------------------------------------


def record_outcome(
    tx: Session,
    key: str,
    status: ActionStatus,
    outcome: str,
    *,
    vast_id: int | None,
    in_vain: InVain | None = None,
    now: datetime,
) -> None:
    """What the provider answered, or that its answer is unknown. DONE is never overwritten.

    Nor does a late "unknown" reopen what a look has settled: nothing would settle it again. Never fenced, for it is a
    fact. `in_vain`: what follows from a rent that came to nothing.
    """
    row = action_of(tx, key)
    box = tx.get(tables.Box, row.box_key) if row.box_key else None
    if box is not None and status is not ActionStatus.UNKNOWN and box.busy_action == row.tool:
        box.busy_action, box.busy_until = None, None
    if row.status == ActionStatus.DONE or (status is ActionStatus.UNKNOWN and row.status in _SETTLED):
        return
    settle(row, status, outcome, now)
    if box is None:
        return
    match row.tool, status:
        case RentBox.name, ActionStatus.DONE:
            box.vast_id = vast_id
            if box.stage == Stage.GONE:
                ledger.back(box, now)
        case RentBox.name, ActionStatus.FAILED:
            ledger.gone(box, outcome, now)
            if in_vain is not None:
                was_in_vain(tx, box, in_vain, outcome, now)
        case DestroyBox.name, ActionStatus.FAILED if box.stage == Stage.DESTROYING:
            ledger.back(box, now)
        case _:
            pass


def was_in_vain(tx: Session, box: tables.Box, in_vain: InVain, why: str, now: datetime) -> None:
    """The rent of this box came to nothing. By the default bounds where the policy cannot be read: no look, and no
    outcome, waits for that."""
    policy = session.policy_or_default(tx, box.fleet)
    match in_vain:
        case InVain.AVOID_MACHINE:
            where = (box.machine_id, box.num_gpus, box.gpu_name)
            by, bounds = "fleet-agent", policy.bans
            hosts.failed(tx, box.fleet, *where, Failure.TRANSIENT, why, by=by, bounds=bounds, now=now)
            hosts.rent_failed(tx, box.fleet, why, most=policy.watch.rent_failures, now=now)
        case InVain.STOP_RENTING:
            hosts.no_credit_is_given(tx, box.fleet, why, now=now)


def settle(row: Action, status: ActionStatus, outcome: str, now: datetime) -> None:
    row.status = status.value
    row.outcome = outcome
    row.settled_at = None if status is ActionStatus.UNKNOWN else now


def expire_intents(tx: Session, fleet: str, *, now: datetime, of: Sequence[Actor] = _OF_A_RUN) -> None:
    """What nobody stands behind any more will never be sent, and reserves nothing. No intent outlives its run; behind
    what was approved stands a person, so that waits for the next one."""
    intended = and_(
        Action.fleet == fleet,
        Action.status == ActionStatus.INTENDED,
        col(Action.actor).in_([actor.value for actor in of]),
    )
    tx.execute(
        update(Action)
        .where(intended, col(Action.approved_at).is_not(None))
        .values(status=ActionStatus.AWAITING_APPROVAL, reserved_usd_per_hour=Decimal(0))
    )
    tx.execute(
        update(Action)
        .where(intended)
        .values(status=ActionStatus.EXPIRED, outcome="who asked for it ended before it was sent", settled_at=now)
    )


def call_off(tx: Session, fleet: str, *, now: datetime) -> None:
    """Nothing that anybody intended, ordered or approved is sent any more: a person stops everything."""
    tx.execute(
        update(Action)
        .where(
            _waits_or_is_intended(fleet),
            or_(Action.status == ActionStatus.INTENDED, col(Action.approved_at).is_not(None)),
        )
        .values(status=ActionStatus.EXPIRED, outcome="everything was stopped before it was sent", settled_at=now)
    )


def effects_of(
    tx: Session, run: Run, calls: Sequence[str], observation: Observation, *, now: datetime
) -> tuple[Ruled, ...]:
    """The effects that these calls of the run asked for, as far as they have come.

    What was intended and not sent is judged anew, in order, by the policy and the look of this moment: the list may be
    unknown by now. A rent is judged by the offer that it was judged by before; its price is read again at the call.
    """
    rows = tx.scalars(
        select(Action)
        .where(Action.fleet == run.fleet, Action.run_id == run.run_id, col(Action.call_id).in_(calls))
        .order_by(col(Action.id))
    ).all()
    intended = [row for row in rows if row.status == ActionStatus.INTENDED]
    for row in intended:
        row.status, row.reserved_usd_per_hour = ActionStatus.EXPIRED.value, Decimal(0)
    tx.flush()  # else they would stand in their own way
    for row in intended:
        action = _EFFECTS[row.tool].model_validate(row.arguments)
        listing = Listing() if row.offer is None else Listing(offers=(Offer.model_validate(row.offer),))
        situation = situation_of(tx, Asker(run.fleet, Actor(row.actor), run), observation, listing, now=now)
        _rule(tx, row, action, situation, judge(action, situation))
        tx.flush()
    policy = session.policy(tx, run.fleet)
    return tuple(ruled(row, policy) for row in rows)


def action_of(tx: Session, key: str) -> Action:
    return tx.scalars(select(Action).where(Action.key == key)).one()


def _waits_or_is_intended(fleet: str) -> ColumnElement[bool]:
    """As two conditions, each of which has an index: a list of both has none."""
    return and_(
        Action.fleet == fleet,
        or_(Action.status == ActionStatus.AWAITING_APPROVAL, Action.status == ActionStatus.INTENDED),
    )


def _awaiting(fleet: str) -> Select[Action]:
    return (
        select(Action)
        .where(Action.fleet == fleet, Action.status == ActionStatus.AWAITING_APPROVAL)
        .order_by(col(Action.id))
    )
