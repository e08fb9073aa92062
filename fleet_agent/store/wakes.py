"""Future checks: asked for, cancelled and listed. Which run takes a due one is decided in `claims`.

The bell hears of every change, for it shows them in Prefect.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.wakes import NewWake, NoWake, Wake, answer_request
from fleet_agent.store import audit, session, tables, taints
from fleet_agent.store.database import notify_bell
from fleet_agent.store.tables import WakeStatus


def ask(
    tx: Session,
    fleet: str,
    after: timedelta,
    reason: str,
    *,
    asked_by: str,
    asked_by_run: int | None = None,
    now: datetime,
) -> NewWake | NoWake:
    """Store a wake if the request is worth one. To be called within `Database.exclusive`."""
    session.state(tx, fleet)
    answer = answer_request(after, now=now, pending=[wake.wake_at for wake in pending(tx, fleet)])
    if isinstance(answer, NewWake):
        tx.add(
            tables.Wake(
                fleet=fleet,
                wake_at=answer.wake_at,
                reason=reason,
                asked_by=asked_by,
                asked_by_run=asked_by_run,
                asked_at=now,
            )
        )
        notify_bell(tx, fleet)
    return answer


def cancel(tx: Session, fleet: str, wake_id: int, *, who: str, now: datetime) -> str | None:
    """Cancel a wake that is still to come; why it cannot be, or None. To be called within `Database.exclusive`."""
    row = tx.get(tables.Wake, wake_id)
    if row is None or row.fleet != fleet:
        return f"fleet {fleet} has no wake {wake_id}"
    if row.status != WakeStatus.PENDING:
        return f"wake {wake_id} is {row.status} already"
    if row.claimed_by_run is not None:
        return f"run #{row.claimed_by_run} has wake {wake_id} in hand"
    row.status = WakeStatus.CANCELLED.value
    audit.note(tx, fleet, who=who, what="wake", text=f"cancelled wake {wake_id}: {row.reason}", now=now)
    notify_bell(tx, fleet)
    return None


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
    ).all()
    return as_wakes(tx, fleet, rows)


def as_wakes(tx: Session, fleet: str, rows: Sequence[tables.Wake]) -> tuple[Wake, ...]:
    """The words of a tainted run are tainted."""
    of_runs = taints.of_runs(tx, fleet, [row.asked_by_run for row in rows])
    return tuple(
        Wake(
            id=row.id,
            wake_at=row.wake_at,
            reason=row.reason,
            asked_by=row.asked_by,
            asked_by_run=row.asked_by_run,
            taint=of_runs.get(row.asked_by_run),
        )
        for row in rows
    )
