"""What waits for a run, who takes it, and how it is given back: events and due wakes alike.

A claim is made and ended only under the exclusive lock of the fleet. It ends in one of two ways: the transaction that
closes the run consumes it, or it is released and waits again. An event under which runs keep dying becomes suspect, is
claimed alone, and is quarantined with a notice in the end, so that it cannot take the others with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.orm import Mapped, Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.exits import Blame, meaning_of
from fleet_agent.domain.run import Claimed, Run
from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.domain.triggers import Event, Kind, Priority
from fleet_agent.store import audit, notices, session, tables
from fleet_agent.store.database import notify_bell
from fleet_agent.store.tables import WAITS, Inbox, InboxState, RunStatus, Wake, WakeStatus
from fleet_agent.store.wakes import as_wakes

SUSPECT_FROM: Final = 2
"""Attempts that were counted, from which on an event is claimed with nobody but its like."""

SHARE_OF_SUSPECTS: Final = {2: 2, 3: 4}
"""By attempts: the part of those that are equally suspect which one run takes. One bad event makes suspects of all that
were claimed with it; halving finds it in a few runs, where one run each would keep everybody waiting for hours."""

QUARANTINE_FROM: Final = 5

SILENCE_OF_THE_DEAD: Final = timedelta(seconds=20)
"""Real time without a sign of life after which an open run counts as dead and its claims as waiting."""


def something_urgent_waits(tx: Session, fleet: str, *, now: datetime) -> bool:
    """Is there an event of priority 0 or 1, or a due wake, that no living run has in hand?"""
    urgent_event = select(Inbox.id).where(urgent_event_waits(fleet))
    due_wake = select(Wake.id).where(wake_waits(fleet, is_due(now)))
    return tx.execute(select(or_(urgent_event.exists(), due_wake.exists()))).scalar_one()


def urgent_event_waits(fleet: str) -> ColumnElement[bool]:
    """Of an inbox row: it is of priority 0 or 1, and no living run has it in hand."""
    return and_(
        Inbox.fleet == fleet,
        Inbox.priority < Priority.ROUTINE,
        col(Inbox.consumed_by_run).is_(None),
        col(Inbox.quarantined_at).is_(None),
        _in_no_living_hand(fleet, col(Inbox.claimed_by_run)),
    )


def wake_waits(fleet: str, is_due: ColumnElement[bool]) -> ColumnElement[bool]:
    """Of a wake: it is due, and no living run has it in hand."""
    return and_(
        Wake.fleet == fleet,
        Wake.status == WakeStatus.PENDING,
        is_due,
        _in_no_living_hand(fleet, col(Wake.claimed_by_run)),
    )


def is_due(now: datetime, *, overdue_by: timedelta = timedelta(0)) -> ColumnElement[bool]:
    """Of a wake, in business time. One that was asked for in a time to come is due already: the clock was set back
    since, by nobody knows how much, and sooner is better than an hour late."""
    return or_(Wake.wake_at <= now - overdue_by, Wake.asked_at > now + CLOCKS_AGREE_WITHIN)


def wake_may_be_taken(tx: Session, fleet: str, wake_id: int, *, now: datetime) -> bool:
    """Is this wake due, and in no living run's hand?"""
    return tx.scalar(select(Wake.id).where(col(Wake.id) == wake_id, wake_waits(fleet, is_due(now)))) is not None


def is_dead() -> ColumnElement[bool]:
    """Of a run: it is open, and has been silent for too long. A sign of life from a time to come was given before the
    clock was set back: whoever lives gives another one at once."""
    now = func.clock_timestamp()
    has_given_a_sign = col(tables.Run.seen_at).between(now - SILENCE_OF_THE_DEAD, now + SILENCE_OF_THE_DEAD)
    return and_(tables.Run.status == RunStatus.OPEN, ~has_given_a_sign)


def _in_no_living_hand(fleet: str, claimed_by_run: Mapped[int | None]) -> ColumnElement[bool]:
    dead = select(tables.Run.run_id).where(tables.Run.fleet == fleet, is_dead())
    return or_(claimed_by_run.is_(None), claimed_by_run.in_(dead))


def peek(tx: Session, fleet: str, *, now: datetime) -> Claimed:
    """What a run that opened now would find; nothing is claimed."""
    return _claimed(tx, fleet, *_what_to_take(tx, fleet, [], held_anything=False, is_due=is_due(now)))


def claim(tx: Session, run: Run, *, now: datetime, early: timedelta = timedelta(0)) -> Claimed:
    """Take everything that waits, and the run's own wake even if it is due only `early` from now.

    A run whose session was reset meanwhile takes nothing more.
    """
    if session.state(tx, run.fleet).epoch != run.epoch:
        return Claimed()
    held_events = _events_of(tx, run)
    held_anything = bool(held_events) or _holds_a_wake(tx, run)
    may_be_taken = or_(is_due(now), and_(Wake.id == run.wake_id, Wake.wake_at <= now + early))
    return _taken(tx, run, *_what_to_take(tx, run.fleet, held_events, held_anything=held_anything, is_due=may_be_taken))


def claim_urgent(tx: Session, run: Run) -> Claimed:
    """Take what is urgent, in the middle of a turn: no wake, nothing suspect, and nothing beside a suspect event."""
    if any(map(_is_suspect, _events_of(tx, run))):
        return Claimed()
    urgent = [
        event for event in _waiting(tx, run.fleet, col(Inbox.priority) == Priority.URGENT) if not _is_suspect(event)
    ]
    return _taken(tx, run, urgent, [])


def held(tx: Session, run: Run) -> Claimed:
    """What the run has in hand."""
    wakes = select(Wake).where(
        Wake.fleet == run.fleet, Wake.claimed_by_run == run.run_id, Wake.status == WakeStatus.PENDING
    )
    by_urgency = sorted(_events_of(tx, run), key=lambda event: (event.priority, event.id))
    return _claimed(tx, run.fleet, by_urgency, tx.scalars(wakes.order_by(col(Wake.wake_at), col(Wake.id))).all())


def _taken(tx: Session, run: Run, events: Sequence[Inbox], wakes: Sequence[Wake]) -> Claimed:
    """In one statement each: a flood is thousands, and every post waits for this lock."""
    for row, things in ((Inbox, events), (Wake, wakes)):
        if things:
            ids = [thing.id for thing in things]
            tx.execute(update(row).where(col(row.id).in_(ids)).values(claimed_by_run=run.run_id))
    return _claimed(tx, run.fleet, events, wakes)


def _what_to_take(
    tx: Session, fleet: str, held: Sequence[Inbox], *, held_anything: bool, is_due: ColumnElement[bool]
) -> tuple[Sequence[Inbox], Sequence[Wake]]:
    """What of the waiting a run takes that has the events `held` in hand.

    Suspects only by themselves, and before the others, unless what is urgent would have to wait for them.
    """
    if any(map(_is_suspect, held)):
        return [], []
    waiting = _waiting(tx, fleet)
    suspects = [event for event in waiting if _is_suspect(event)]
    innocent = [event for event in waiting if not _is_suspect(event)]
    something_is_urgent = any(event.priority == Priority.URGENT for event in innocent)
    if suspects and not held_anything and not something_is_urgent:
        return _some_of(suspects), []
    return innocent, _due(tx, fleet, is_due)


def _some_of(suspects: Sequence[Inbox]) -> Sequence[Inbox]:
    """The first of them and, unless it is near its quarantine, a part of those that are as suspect."""
    attempts = suspects[0].attempts
    alike = [event for event in suspects if event.attempts == attempts]
    share = SHARE_OF_SUSPECTS.get(attempts)
    return alike[:1] if share is None else alike[: -(-len(alike) // share)]


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
    an outage quarantines nothing.
    """
    tx.execute(
        update(Wake)
        .where(and_(Wake.fleet == fleet, Wake.status == WakeStatus.PENDING, col(Wake.claimed_by_run).is_not(None)))
        .values(claimed_by_run=None)
    )
    held = select(Inbox, tables.Run.steps).where(
        Inbox.fleet == fleet,
        col(Inbox.claimed_by_run).is_not(None),
        col(Inbox.consumed_by_run).is_(None),
        col(Inbox.quarantined_at).is_(None),
        tables.Run.fleet == fleet,
        tables.Run.run_id == Inbox.claimed_by_run,
    )
    for event, steps in tx.execute(held.order_by(col(Inbox.id))).all():
        event.attempts += _may_be_the_cause(exit_reason, model_replied=steps > 0)
        if event.attempts >= QUARANTINE_FROM:
            _quarantine(tx, event, now)
        else:
            _give_back(tx, event)
    tx.flush()


def _may_be_the_cause(exit_reason: str, *, model_replied: bool) -> bool:
    blame = meaning_of(exit_reason).blame
    return blame is Blame.ALWAYS or (blame is Blame.AFTER_A_REPLY and model_replied)


def _quarantine(tx: Session, event: Inbox, now: datetime) -> None:
    last = event.claimed_by_run
    event.claimed_by_run = None
    event.quarantined_at = now
    text = f"inbox event {event.id} ({event.kind}) is quarantined: {event.attempts} runs ended over it"
    audit.note(tx, event.fleet, who="fleet-agent", what="quarantine", text=text, now=now)
    notices.give(tx, event.fleet, key=f"quarantine:{event.id}:{last}", text=text, now=now)


def lift_quarantine(tx: Session, fleet: str, event_id: int) -> str | None:
    """Have a quarantined event wait again, still suspect; why it cannot, or None. Within `exclusive`."""
    event = tx.get(Inbox, event_id)
    if event is None or event.fleet != fleet:
        return f"fleet {fleet} has no inbox event {event_id}"
    if event.quarantined_at is None:
        return f"inbox event {event_id} is not quarantined"
    _give_back(tx, event)
    event.attempts = SUSPECT_FROM
    event.quarantined_at = None
    tx.flush()
    notify_bell(tx, fleet)
    return None


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
        event.text, event.payload, event.tainted = twin.text, twin.payload, twin.tainted
        tx.delete(twin)
        tx.flush()  # the twin goes first: two of a key may not wait
    event.claimed_by_run = None


def _waiting(tx: Session, fleet: str, which: ColumnElement[bool] | None = None) -> Sequence[Inbox]:
    those = select(Inbox).where(Inbox.fleet == fleet, WAITS)
    if which is not None:
        those = those.where(which)
    return tx.scalars(those.order_by(col(Inbox.priority), col(Inbox.id))).all()


def _events_of(tx: Session, run: Run) -> Sequence[Inbox]:
    return tx.scalars(
        select(Inbox).where(
            Inbox.fleet == run.fleet, Inbox.claimed_by_run == run.run_id, col(Inbox.consumed_by_run).is_(None)
        )
    ).all()


def _holds_a_wake(tx: Session, run: Run) -> bool:
    held = select(Wake.id).where(
        Wake.fleet == run.fleet, Wake.claimed_by_run == run.run_id, Wake.status == WakeStatus.PENDING
    )
    return tx.execute(select(held.exists())).scalar_one()


def _due(tx: Session, fleet: str, is_due: ColumnElement[bool]) -> Sequence[Wake]:
    return tx.scalars(
        select(Wake)
        .where(
            Wake.fleet == fleet,
            Wake.status == WakeStatus.PENDING,
            col(Wake.claimed_by_run).is_(None),
            is_due,
        )
        .order_by(col(Wake.wake_at), col(Wake.id))
    ).all()


def state_of(event: Inbox) -> InboxState:
    """What has become of it."""
    if event.quarantined_at is not None:
        return InboxState.QUARANTINED
    if event.consumed_by_run is not None:
        return InboxState.CONSUMED
    return InboxState.WAITING if event.claimed_by_run is None else InboxState.CLAIMED


def _claimed(tx: Session, fleet: str, events: Sequence[Inbox], wakes: Sequence[Wake]) -> Claimed:
    return Claimed(events=tuple(map(_as_event, events)), wakes=as_wakes(tx, fleet, wakes))


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
        tainted=row.tainted,
    )
