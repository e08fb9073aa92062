"""Intent, sent, outcome: what was to happen, what left the house, and what became of it.

A row is written before anything happens and never removed. A rent counts against the limits from the moment of its
intent: first as an intent, then, once it may have reached the provider, as a box whose number nobody knows yet, then as
a box. Only a definite refusal or the end of the grace frees it. `Box.key` is the key of the rent that made it.
"""

from __future__ import annotations

import secrets
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.actions import DestroyBox, Effect, RentBox
from fleet_agent.domain.fleet import Box, Label, Offer, Stage
from fleet_agent.domain.ledger import ActionStatus, Deed, Listing, Ruled, Unsettled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import DRY_RUN, Decision, Mode, Ruling, Situation, judge
from fleet_agent.domain.run import Approval, Run
from fleet_agent.store import session, tables
from fleet_agent.store.database import real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import Action, Actor

GRACE: Final = timedelta(seconds=180)
"""Real time after `sent` in which a box may still appear in the provider's list, or disappear from it.

Longer than the longest call, the time to send it and the lag of the list together.
"""

_COUNTED: Final = (
    ActionStatus.INTENDED,
    ActionStatus.DRY,
    ActionStatus.SENT,
    ActionStatus.DONE,
    ActionStatus.UNKNOWN,
)
"""What uses up a cap of the run: everything that was allowed and did not definitely come to nothing.

A rent that was sent counts whatever became of it: a provider that says no and makes the box all the same would else be
asked again and again.
"""

_SETTLED: Final = (ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.EXPIRED)
"""What somebody has seen the end of."""

_HAPPENED: Final = (ActionStatus.SENT, ActionStatus.DONE, ActionStatus.UNKNOWN)
"""What may have changed the world."""

_WITHOUT_A_BOX: Final = col(tables.Box.vast_id).is_(None)

_IN_FLIGHT: Final = or_(
    col(Action.status) == ActionStatus.INTENDED,
    and_(col(Action.status).in_((ActionStatus.SENT, ActionStatus.UNKNOWN)), _WITHOUT_A_BOX),
)
"""Rents whose end nobody has seen, laid beside the boxes they may have made."""

_ABOUT_BOXES: Final = (RentBox.name, DestroyBox.name)
"""What a pause or another policy stops at the last moment; a person may be told things all the same."""

# --- before anything happens -----------------------------------------------------------------------------------------


def judge_and_store(
    tx: Session,
    run: Run,
    effects: Sequence[tuple[str, Effect]],
    *,
    step: int,
    observation: Observation,
    listing: Listing,
    now: datetime,
) -> tuple[Ruled, ...]:
    """Rule on the effects of one reply in order, each knowing the intents of those before it, and store the rows."""
    ruled: list[Ruled] = []
    for number, (call_id, action) in enumerate(effects, start=1):
        situation = _situation(tx, run, observation, listing)
        ruling = judge(action, situation)
        key = f"r{run.run_id}-s{step}-c{number}-{_random_suffix()}"
        offer = situation.offer(action.offer_id) if isinstance(action, RentBox) else None
        row = Action(
            fleet=run.fleet,
            key=key,
            actor=Actor.AGENT.value,
            run_id=run.run_id,
            call_id=call_id,
            tool=action.name,
            arguments=action.model_dump(mode="json"),
            offer=offer and offer.model_dump(mode="json"),
            box_key=_box_key(action, key, situation),
            policy_version=session.state(tx, run.fleet).policy_version,
            created_at=now,
            ruling=ruling.decision.value,
            code=ruling.code,
            sentence=ruling.sentence,
            status=_first_status(ruling, situation.mode).value,
        )
        if offer is not None and row.status == ActionStatus.INTENDED:
            row.reserved_usd_per_hour = offer.usd_per_hour
        tx.add(row)
        tx.flush()
        ruled.append(_ruled(row, situation.policy))
    return tuple(ruled)


def _ruled(row: Action, policy: Policy) -> Ruled:
    return Ruled(
        key=row.key,
        call_id=row.call_id or "",
        ruling=Ruling(decision=Decision(row.ruling), code=row.code, sentence=row.sentence),
        policy=policy,
        offer=None if row.offer is None else Offer.model_validate(row.offer),
        status=ActionStatus(row.status),
        outcome=row.outcome,
    )


def _situation(tx: Session, run: Run, observation: Observation, listing: Listing) -> Situation:
    """What the rules look at. Inventory and listing are what the run saw; all else is read here, under the lock."""
    state = session.state(tx, run.fleet)
    in_flight_count, in_flight_usd_per_hour = in_flight(tx, run.fleet)
    to_be_destroyed = _boxes_with_a_destroy_intended(tx, run.fleet)
    return Situation(
        installation=installation(tx).name,
        fleet=run.fleet,
        mode=Mode(state.mode),
        policy=session.policy(tx, run.fleet),
        inventory=observation.inventory,
        boxes=tuple(
            box.model_copy(update={"stage": Stage.DESTROYING}) if box.key in to_be_destroyed else box
            for box in boxes(tx, run.fleet)
        ),
        in_flight_count=in_flight_count,
        in_flight_usd_per_hour=in_flight_usd_per_hour,
        listing=listing.offers,
        effects_of_run=_effects_of_run(tx, run),
    )


def _boxes_with_a_destroy_intended(tx: Session, fleet: str) -> set[str | None]:
    return set(
        tx.scalars(
            select(Action.box_key).where(
                Action.fleet == fleet, Action.tool == DestroyBox.name, Action.status == ActionStatus.INTENDED
            )
        )
    )


def _effects_of_run(tx: Session, run: Run) -> Mapping[str, int]:
    counts = tx.execute(
        select(Action.tool, func.count())
        .where(
            Action.fleet == run.fleet,
            Action.run_id == run.run_id,
            or_(
                col(Action.status).in_(_COUNTED),
                and_(Action.tool == RentBox.name, col(Action.sent_at).is_not(None)),
            ),
        )
        .group_by(col(Action.tool))
    )
    return dict(iter(counts))


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
        case DestroyBox(id=vast_id):
            box = situation.box(vast_id)
            return box and box.key
        case _:
            return None


def _random_suffix() -> str:
    """Keeps keys of two databases apart that were copied from one another."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))


# --- last thing before the call --------------------------------------------------------------------------------------


def mark_sent(tx: Session, fleet: str, key: str, *, send_by: timedelta, now: datetime) -> Ruling:
    """Commit that the call is about to be made, or rule that it must not be. The caller holds the fence."""
    row = _action(tx, key)
    box = tx.get(tables.Box, row.box_key) if row.box_key else None
    refusal = reason_not_to_send(row, box, session.state(tx, fleet))
    if refusal is not None:
        if row.status == ActionStatus.INTENDED:
            row.status = (ActionStatus.DRY if refusal.code == DRY_RUN else ActionStatus.REFUSED).value
            row.ruling, row.code, row.sentence = refusal.decision.value, refusal.code, refusal.sentence
        return refusal
    sent_at = real_now(tx)
    row.status, row.sent_at, row.send_by = ActionStatus.SENT.value, sent_at, sent_at + send_by
    if row.tool == RentBox.name:
        tx.add(_box_of_rent(row, installation(tx).name, now))
    if box is not None:
        box.stage = Stage.DESTROYING.value
    return Ruling(decision=Decision.ALLOW, code=row.code, sentence=row.sentence)


def reason_not_to_send(row: Action, box: tables.Box | None, state: tables.SessionState) -> Ruling | None:
    """What speaks against the call since its ruling; `box` is the one to be destroyed."""
    status, mode = ActionStatus(row.status), Mode(state.mode)
    if status is ActionStatus.DRY or (status is ActionStatus.INTENDED and mode is Mode.DRY_RUN):
        return _refuse(DRY_RUN, "This is a dry run: it was allowed, and nothing is sent.")
    if status is not ActionStatus.INTENDED:
        return _refuse("not_intended", f"This action is {status.value} already.")
    if mode is Mode.PAUSED and row.tool in _ABOUT_BOXES:
        return _refuse("paused", "The fleet was paused after this was allowed.")
    if row.policy_version != state.policy_version and row.tool in _ABOUT_BOXES:
        return _refuse("policy_changed", "The policy was changed after this was allowed; ask again.")
    if box is not None and box.stage in (Stage.DESTROYING, Stage.GONE):
        return _refuse("already_destroying", f"Box {box.vast_id} is {box.stage} already.")
    return None


def _refuse(code: str, sentence: str) -> Ruling:
    return Ruling(decision=Decision.REFUSE, code=code, sentence=sentence)


def _box_of_rent(row: Action, installation_name: str, now: datetime) -> tables.Box:
    """The ledger knows of the box before the provider does."""
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
    )


def order_destroy(tx: Session, fleet: str, vast_id: int, *, now: datetime) -> str:
    """A person's order to destroy a box, which no brake holds back: stored as sent; returns its key.

    To be called within `Database.exclusive`, after a look that showed the box to be ours.
    """
    box = tx.scalars(
        select(tables.Box).where(
            tables.Box.fleet == fleet, tables.Box.vast_id == vast_id, tables.Box.stage != Stage.GONE
        )
    ).first()
    order = Action(
        fleet=fleet,
        key=f"{Actor.OPERATOR.value}{vast_id}-{_random_suffix()}",
        actor=Actor.OPERATOR.value,
        tool=DestroyBox.name,
        arguments={"id": vast_id},
        box_key=box and box.key,
        created_at=now,
        ruling=Decision.ALLOW.value,
        code="operator",
        sentence="Ordered by a person.",
        status=ActionStatus.SENT.value,
        sent_at=real_now(tx),
    )
    tx.add(order)
    if box is not None:
        box.stage = Stage.DESTROYING.value
    return order.key


# --- what became of it -----------------------------------------------------------------------------------------------


def record_outcome(
    tx: Session, key: str, status: ActionStatus, outcome: str, *, vast_id: int | None, now: datetime
) -> None:
    """What the provider answered, or that its answer is unknown. DONE is never overwritten.

    Nor does a late "unknown" reopen what a look has settled: nothing would settle it again.
    To be called within `Database.exclusive`; never fenced, for it is a fact.
    """
    row = _action(tx, key)
    if row.status == ActionStatus.DONE or (status is ActionStatus.UNKNOWN and row.status in _SETTLED):
        return
    settle(row, status, outcome, now)
    box = tx.get(tables.Box, row.box_key) if row.box_key else None
    if box is None:
        return
    match row.tool, status:
        case RentBox.name, ActionStatus.DONE:
            box.vast_id = vast_id
            if box.stage == Stage.GONE:
                _back(box)
        case RentBox.name, ActionStatus.FAILED:
            gone(box, outcome, now)
        case DestroyBox.name, ActionStatus.FAILED if box.stage == Stage.DESTROYING:
            _back(box)
        case _:
            pass


def settle(row: Action, status: ActionStatus, outcome: str, now: datetime) -> None:
    row.status = status.value
    row.outcome = outcome
    row.settled_at = None if status is ActionStatus.UNKNOWN else now


def gone(box: tables.Box, because: str, now: datetime) -> None:
    """The box costs nothing any more, as far as is known; a later look may find it all the same."""
    box.stage = Stage.GONE.value
    box.gone_at = now
    box.gone_because = because


def unknown_to_provider(tx: Session, fleet: str, vast_id: int, *, now: datetime) -> None:
    """The provider answered a destroy that it knows no such box: that is more than an absence from a list."""
    for box in tx.scalars(
        select(tables.Box).where(
            tables.Box.fleet == fleet, tables.Box.vast_id == vast_id, tables.Box.stage != Stage.GONE
        )
    ):
        gone(box, "the provider knows no such box", now)


def _back(box: tables.Box) -> None:
    """The box is there after all; how far it is, the next look tells."""
    box.misses, box.missed_since = 0, None
    box.stage = Stage.RENTED.value
    box.gone_at = None
    box.gone_because = ""


def expire_intents(tx: Session, fleet: str, *, now: datetime) -> None:
    """What no open run stands behind will never be sent, and reserves nothing."""
    tx.execute(
        update(Action)
        .where(and_(Action.fleet == fleet, Action.status == ActionStatus.INTENDED))
        .values(status=ActionStatus.EXPIRED, outcome="its run ended before it was sent", settled_at=now)
    )


# --- questions -------------------------------------------------------------------------------------------------------


def boxes(tx: Session, fleet: str) -> tuple[Box, ...]:
    """The live boxes whose number the provider has told, oldest first. A rent without one is still in flight."""
    rows = tx.scalars(
        select(tables.Box)
        .where(tables.Box.fleet == fleet, tables.Box.stage != Stage.GONE, col(tables.Box.vast_id).is_not(None))
        .order_by(col(tables.Box.rented_at), col(tables.Box.key))
    )
    return tuple(
        Box(
            key=row.key,
            label=row.label,
            vast_id=row.vast_id,
            machine_id=row.machine_id,
            gpu_name=row.gpu_name,
            num_gpus=row.num_gpus,
            usd_per_hour=row.agreed_usd_per_hour if row.seen_usd_per_hour is None else row.seen_usd_per_hour,
            stage=Stage(row.stage),
            rented_at=row.rented_at,
            protected=row.protected,
        )
        for row in rows
    )


def in_flight(tx: Session, fleet: str) -> tuple[int, Decimal]:
    """Rents that may still become a box which `boxes` does not show yet, and the $/h reserved for them."""
    return _count_rents(tx, fleet, _IN_FLIGHT)


def may_still_appear(tx: Session, fleet: str) -> int:
    """How many rents may still become a box that nobody knows: those in flight, and those sent within the grace.

    The latter whatever was answered, for a provider may say no and make the box. An emergency stop waits for zero.
    """
    just_sent = and_(_WITHOUT_A_BOX, col(Action.sent_at) > real_now(tx) - GRACE)
    count, _ = _count_rents(tx, fleet, or_(_IN_FLIGHT, just_sent))
    return count


def _count_rents(tx: Session, fleet: str, which: ColumnElement[bool]) -> tuple[int, Decimal]:
    """How many, and the $/h reserved for them."""
    rents = (
        select(func.count(), func.coalesce(func.sum(Action.reserved_usd_per_hour), 0))
        .select_from(Action)
        .outerjoin(tables.Box, col(tables.Box.key) == Action.box_key)
        .where(Action.fleet == fleet, Action.tool == RentBox.name, which)
    )
    count, rate = tx.execute(rents).one()
    return count, Decimal(rate)


def unsettled(tx: Session, fleet: str) -> tuple[Unsettled, ...]:
    """Calls about boxes that may have reached the provider and whose outcome nobody saw, oldest first."""
    now = real_now(tx)
    rows = tx.execute(
        select(Action, tables.Box)
        .join(tables.Box, col(tables.Box.key) == Action.box_key)
        .where(Action.fleet == fleet, col(Action.status).in_((ActionStatus.SENT, ActionStatus.UNKNOWN)))
        .order_by(col(Action.id))
    )
    return tuple(
        Unsettled(
            key=action.key,
            tool=action.tool,
            label=box.label,
            vast_id=box.vast_id,
            sent_for=now - (action.sent_at or now),
        )
        for action, box in rows
    )


def has_effect(tx: Session, fleet: str, run_id: int) -> bool:
    """Did this run change, or perhaps change, the world?"""
    happened = select(Action.id).where(
        Action.fleet == fleet, Action.run_id == run_id, col(Action.status).in_(_HAPPENED)
    )
    return tx.execute(select(happened.exists())).scalar_one()


def effects_of(tx: Session, run: Run, calls: Collection[str]) -> tuple[Ruled, ...]:
    """The effects that these calls of the run asked for, as far as they have come.

    The policy that judged them is not kept, but its version is: where it is no longer in force, `mark_sent` refuses
    what was not sent yet.
    """
    rows = tx.scalars(
        select(Action)
        .where(Action.fleet == run.fleet, Action.run_id == run.run_id, col(Action.call_id).in_(calls))
        .order_by(col(Action.id))
    )
    policy = session.policy(tx, run.fleet)
    return tuple(_ruled(row, policy) for row in rows)


def open_approvals(tx: Session, fleet: str) -> tuple[Approval, ...]:
    """What waits for a person's word, oldest first."""
    rows = tx.scalars(
        select(Action)
        .where(Action.fleet == fleet, Action.status == ActionStatus.AWAITING_APPROVAL)
        .order_by(col(Action.id))
    )
    return tuple(
        Approval(key=row.key, tool=row.tool, arguments=row.arguments, sentence=row.sentence, asked_at=row.created_at)
        for row in rows
    )


def deeds(tx: Session, fleet: str, run_ids: Collection[int]) -> Mapping[int, Sequence[Deed]]:
    """What these runs did, or perhaps did, in order."""
    rows = tx.scalars(
        select(Action)
        .where(Action.fleet == fleet, col(Action.run_id).in_(run_ids), col(Action.sent_at).is_not(None))
        .order_by(col(Action.id))
    )
    done: dict[int, list[Deed]] = {}
    for row in rows:
        deed = Deed(tool=row.tool, key=row.key, status=ActionStatus(row.status), outcome=row.outcome)
        done.setdefault(row.run_id or 0, []).append(deed)
    return done


def done_by(tx: Session, fleet: str, epoch: int, *, first: int, last: int | None = None) -> Counter[tuple[int, str]]:
    """How often runs of this epoch from `first` to `last` did what: (run id, tool) → times."""
    of_them = and_(Action.fleet == fleet, col(Action.run_id) >= first, Action.status == ActionStatus.DONE)
    if last is not None:
        of_them = and_(of_them, col(Action.run_id) <= last)
    rows = tx.execute(
        select(Action.run_id, Action.tool, func.count())
        .join(tables.Run, and_(tables.Run.fleet == Action.fleet, tables.Run.run_id == Action.run_id))
        .where(of_them, tables.Run.epoch == epoch)
        .group_by(col(Action.run_id), Action.tool)
    )
    return Counter({(run_id, tool): times for run_id, tool, times in rows})


def _action(tx: Session, key: str) -> Action:
    return tx.scalars(select(Action).where(Action.key == key)).one()
