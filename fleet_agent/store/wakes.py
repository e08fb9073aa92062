"""Future checks: asked for and listed. Which run takes a due one is decided in `claims`."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.wakes import NewWake, NoWake, Wake, answer_request
from fleet_agent.store import session, tables
from fleet_agent.store.tables import WakeStatus


def ask(tx: Session, fleet: str, after: timedelta, reason: str, *, asked_by: str, now: datetime) -> NewWake | NoWake:
    """Store a wake if the request is worth one. To be called within `Database.exclusive`."""
    session.state(tx, fleet)
    answer = answer_request(after, now=now, pending=[wake.wake_at for wake in pending(tx, fleet)])
    if isinstance(answer, NewWake):
        tx.add(tables.Wake(fleet=fleet, wake_at=answer.wake_at, reason=reason, asked_by=asked_by, asked_at=now))
    return answer


def pending(tx: Session, fleet: str) -> tuple[Wake, ...]:
    """What is still to come: neither processed nor cancelled nor in the hands of a run. Soonest first."""
    rows = tx.scalars(
        select(tables.Wake)
        .where(
            tables.Wake.fleet == fleet,
            tables.Wake.status == WakeStatus.PENDING,
            col(tables.Wake.claimed_by_run).is_(None),
        )
        .order_by(col(tables.Wake.wake_at), col(tables.Wake.id))
    )
    return tuple(as_wake(row) for row in rows)


def as_wake(row: tables.Wake) -> Wake:
    return Wake(id=row.id, wake_at=row.wake_at, reason=row.reason, asked_by=row.asked_by)
