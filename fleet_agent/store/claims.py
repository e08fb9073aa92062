"""What waits for a run, who takes it, and how it is given back: events and due wakes alike.

A claim is made and ended only under the exclusive lock of the fleet. It ends in one of two ways: the transaction that
closes the run consumes it, or it is released and waits again. An event under which runs keep dying becomes suspect, is
claimed alone, and is put aside with a notice in the end, so that it cannot take the others with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.run import Claimed, Run
from fleet_agent.domain.triggers import Event, Kind, Priority
from fleet_agent.store import audit, session, tables
from fleet_agent.store.tables import WAITS, Inbox, RunStatus, Wake, WakeStatus
from fleet_agent.store.wakes import as_wake

SUSPECT_FROM: Final = 2
"""Attempts that were counted, from which on an event is claimed alone."""

QUARANTINE_FROM: Final = 5

_OUTAGES: Final = ("model unreachable", "slow down", "try later", "key refused")
"""Exit reasons that say nothing about what the run had claimed, however far it had come."""

_REFUSALS_OF_A_REQUEST: Final = ("context too long", "request refused")
"""Exit reasons that may lie in what the run had claimed, even if the model never replied."""

SILENCE_OF_THE_DEAD: Final = timedelta(seconds=20)
"""Real time without a sign of life after which an open run counts as dead and its claims as waiting."""


def something_urgent_waits(tx: Session, fleet: str, *, now: datetime) -> bool:
    """Is there an event of priority 0 or 1, or a due wake, that no living run has in hand?"""
    dead = select(tables.Run.run_id).where(
        tables.Run.fleet == fleet,
        tables.Run.status == RunStatus.OPEN,
        tables.Run.seen_at < func.clock_timestamp() - SILENCE_OF_THE_DEAD,
    )
    urgent_event = select(Inbox.id).where(
        Inbox.fleet == fleet,
        Inbox.priority < Priority.ROUTINE,
        col(Inbox.consumed_by_run).is_(None),
        col(Inbox.quarantined_at).is_(None),
        or_(col(Inbox.claimed_by_run).is_(None), col(Inbox.claimed_by_run).in_(dead)),
    )
    due_wake = select(Wake.id).where(
        Wake.fleet == fleet,
        Wake.status == WakeStatus.PENDING,
        Wake.wake_at <= now,
        or_(col(Wake.claimed_by_run).is_(None), col(Wake.claimed_by_run).in_(dead)),
    )
    return tx.execute(select(or_(urgent_event.exists(), due_wake.exists()))).scalar_one()


def peek(tx: Session, fleet: str, *, now: datetime) -> Claimed:
    """What a run that opened now would find; nothing is claimed."""
    return _claimed(*_what_to_take(tx, fleet, [], held_anything=False, now=now))


def claim(tx: Session, run: Run, *, now: datetime) -> Claimed:
    """Take everything that waits. A run whose session was reset meanwhile takes nothing more."""
    if session.state(tx, run.fleet).epoch != run.epoch:
        return Claimed()
    held_events = _events_of(tx, run)
    held_anything = bool(held_events) or _holds_a_wake(tx, run)
    events, wakes = _what_to_take(tx, run.fleet, held_events, held_anything=held_anything, now=now)
    for thing in (*events, *wakes):
        thing.claimed_by_run = run.run_id
    return _claimed(events, wakes)


def _what_to_take(
    tx: Session, fleet: str, held: Sequence[Inbox], *, held_anything: bool, now: datetime
) -> tuple[Sequence[Inbox], Sequence[Wake]]:
    """What of the waiting a run takes that has the events `held` in hand: a suspect one only alone, and first."""
    waiting = _waiting(tx, fleet)
    suspects = [event for event in waiting if _is_suspect(event)]
    if any(map(_is_suspect, held)):
        return [], []
    if suspects and not held_anything:
        return suspects[:1], []
    return [event for event in waiting if not _is_suspect(event)], _due(tx, fleet, now)


def _is_suspect(event: Inbox) -> bool:
    return event.attempts >= SUSPECT_FROM


def human_message_claimed(tx: Session, run: Run) -> bool:
    return any(event.kind == Kind.MESSAGE for event in _events_of(tx, run))


def put_back(tx: Session, run: Run, events: Collection[int], wakes: Collection[int]) -> None:
    """Give back what this run claimed and the model was never shown; that says nothing against it."""
    for event in _events_of(tx, run):
        if event.id in events:
            _give_back(tx, event)
    tx.execute(
        update(Wake)
        .where(and_(Wake.fleet == run.fleet, Wake.claimed_by_run == run.run_id, Wake.status == WakeStatus.PENDING))
        .where(col(Wake.id).in_(wakes))
        .values(claimed_by_run=None)
    )
    tx.flush()


def consume(tx: Session, run: Run) -> None:
    """The run closes: what it had claimed has been dealt with."""
    tx.execute(
        update(Inbox)
        .where(and_(Inbox.fleet == run.fleet, Inbox.claimed_by_run == run.run_id, col(Inbox.consumed_by_run).is_(None)))
        .values(consumed_by_run=run.run_id)
    )
    tx.execute(
        update(Wake)
        .where(and_(Wake.fleet == run.fleet, Wake.claimed_by_run == run.run_id, Wake.status == WakeStatus.PENDING))
        .values(status=WakeStatus.PROCESSED, processed_by_run=run.run_id)
    )


def release(tx: Session, fleet: str, *, exit_reason: str, now: datetime) -> None:
    """Give back every claim of the fleet that was not consumed: its holder is dead, or ends now without closing.

    An attempt counts where the event may be the cause, so that one that no run survives cannot block the fleet, and
    an outage puts no event aside.
    """
    tx.execute(
        update(Wake)
        .where(and_(Wake.fleet == fleet, Wake.status == WakeStatus.PENDING, col(Wake.claimed_by_run).is_not(None)))
        .values(claimed_by_run=None)
    )
    held = select(Inbox, tables.Run.steps).where(
        Inbox.fleet == fleet,
        col(Inbox.consumed_by_run).is_(None),
        tables.Run.fleet == fleet,
        tables.Run.run_id == Inbox.claimed_by_run,
    )
    for event, steps in tx.execute(held.order_by(col(Inbox.id))).all():
        event.attempts += _may_be_the_cause(exit_reason, model_replied=steps > 0)
        if event.attempts >= QUARANTINE_FROM:
            _put_aside(tx, event, now)
        else:
            _give_back(tx, event)
        tx.flush()


def _may_be_the_cause(exit_reason: str, *, model_replied: bool) -> bool:
    if exit_reason in _OUTAGES:
        return False
    return model_replied or exit_reason in _REFUSALS_OF_A_REQUEST


def _put_aside(tx: Session, event: Inbox, now: datetime) -> None:
    event.claimed_by_run = None
    event.quarantined_at = now
    text = f"inbox event {event.id} ({event.kind}) was put aside: {event.attempts} runs ended over it"
    audit.note(tx, event.fleet, who="fleet-agent", what="quarantine", text=text, now=now)


def _give_back(tx: Session, event: Inbox) -> None:
    """The event waits again; a twin that was posted meanwhile becomes part of it."""
    twin = (
        event.dedupe_key
        and tx.scalars(
            select(Inbox).where(Inbox.fleet == event.fleet, Inbox.dedupe_key == event.dedupe_key, WAITS)
        ).first()
    )
    if twin:
        event.count += twin.count
        event.attempts = max(event.attempts, twin.attempts)
        event.priority = min(event.priority, twin.priority)
        event.text, event.payload = twin.text, twin.payload
        tx.delete(twin)
        tx.flush()  # the twin goes first: two of a key may not wait
    event.claimed_by_run = None


def _waiting(tx: Session, fleet: str) -> Sequence[Inbox]:
    return tx.scalars(
        select(Inbox).where(Inbox.fleet == fleet, WAITS).order_by(col(Inbox.priority), col(Inbox.id))
    ).all()


def _events_of(tx: Session, run: Run) -> Sequence[Inbox]:
    return tx.scalars(
        select(Inbox).where(
            Inbox.fleet == run.fleet, Inbox.claimed_by_run == run.run_id, col(Inbox.consumed_by_run).is_(None)
        )
    ).all()


def _holds_a_wake(tx: Session, run: Run) -> bool:
    held = select(Wake.id).where(Wake.fleet == run.fleet, Wake.claimed_by_run == run.run_id)
    return tx.execute(select(held.exists())).scalar_one()


def _due(tx: Session, fleet: str, now: datetime) -> Sequence[Wake]:
    return tx.scalars(
        select(Wake)
        .where(
            Wake.fleet == fleet,
            Wake.status == WakeStatus.PENDING,
            col(Wake.claimed_by_run).is_(None),
            Wake.wake_at <= now,
        )
        .order_by(col(Wake.wake_at), col(Wake.id))
    ).all()


def _claimed(events: Sequence[Inbox], wakes: Sequence[Wake]) -> Claimed:
    return Claimed(events=tuple(map(_as_event, events)), wakes=tuple(map(as_wake, wakes)))


def _as_event(row: Inbox) -> Event:
    return Event(
        id=row.id,
        kind=Kind(row.kind),
        source=row.source,
        priority=Priority(row.priority),
        count=row.count,
        occurred_at=row.occurred_at,
        text=row.text,
        payload=row.payload,
    )
