"""What lists and pages show: rows as plain dicts, with the column names of the tables. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session
from sqlmodel import SQLModel, col, func, select

from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.money import UsdPerHour, total
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.run import Standing
from fleet_agent.store import conversation, ledger, session, tables
from fleet_agent.store.claims import something_urgent_waits
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import WAITS
from fleet_agent.store.wakes import pending


def standing(tx: Session, fleet: str, *, epoch: int) -> Standing:
    """What is pinned into a prompt of this epoch."""
    state = session.find(tx, fleet)
    return Standing(
        installation=installation(tx).name,
        fleet=fleet,
        mode=Mode(state.mode),
        policy=session.policy(tx, fleet),
        objective=state.objective,
        notes=state.notes,
        wakes=pending(tx, fleet),
        past_runs=conversation.past_runs(tx, fleet, epoch),
        last_digest=state.last_digest,
        last_review_at=state.last_review_at,
    )


def fleets(tx: Session) -> list[str]:
    """The fleets that somebody has begun."""
    return list(tx.scalars(select(tables.SessionState.fleet).order_by(col(tables.SessionState.fleet))))


def runs(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The newest runs, newest first; `seconds` is real time from opening to the end, None while it is open."""
    speed = installation(tx).clock_speed
    rows = tx.scalars(
        select(tables.Run).where(tables.Run.fleet == fleet).order_by(col(tables.Run.run_id).desc()).limit(last)
    )
    return [
        _row(row) | {"seconds": row.closed_at and (row.closed_at - row.opened_at).total_seconds() / speed}
        for row in rows
    ]


def request(tx: Session, fleet: str, run_id: int) -> dict[str, Any] | None:
    """The newest request body that a run sent to the model, if it sent one."""
    kept = tx.get(tables.Request, (fleet, run_id))
    return kept and kept.body


def actions(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The newest actions, newest first."""
    return _rows(
        tx.scalars(
            select(tables.Action).where(tables.Action.fleet == fleet).order_by(col(tables.Action.id).desc()).limit(last)
        )
    )


def boxes(tx: Session, fleet: str) -> list[dict[str, Any]]:
    """Every box that is not gone, also those whose number the provider has not told yet; oldest first."""
    return _rows(
        tx.scalars(
            select(tables.Box)
            .where(tables.Box.fleet == fleet, tables.Box.stage != Stage.GONE)
            .order_by(col(tables.Box.rented_at), col(tables.Box.key))
        )
    )


def wakes(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The latest wakes by their time, whatever became of them."""
    return _rows(
        tx.scalars(
            select(tables.Wake)
            .where(tables.Wake.fleet == fleet)
            .order_by(col(tables.Wake.wake_at).desc(), col(tables.Wake.id))
            .limit(last)
        )
    )


def status(tx: Session, fleet: str, *, now: datetime) -> dict[str, Any]:
    """The fleet at a glance."""
    state = session.find(tx, fleet)
    known = ledger.boxes(tx, fleet)
    count, rate = ledger.in_flight(tx, fleet)
    coming = pending(tx, fleet)
    newest = runs(tx, fleet, last=1)
    return {
        "installation": installation(tx).name,
        **_row(state),
        "boxes": len(known),
        "burn_usd_per_hour": total([UsdPerHour(box.usd_per_hour) for box in known]),
        "in_flight": count,
        "in_flight_usd_per_hour": rate,
        "waiting_events": tx.execute(
            select(func.count()).select_from(tables.Inbox).where(tables.Inbox.fleet == fleet, WAITS)
        ).scalar_one(),
        "quarantined": tx.execute(
            select(func.count())
            .select_from(tables.Inbox)
            .where(tables.Inbox.fleet == fleet, col(tables.Inbox.quarantined_at).is_not(None))
        ).scalar_one(),
        "questions": list(
            tx.scalars(
                select(tables.Question.text)
                .where(tables.Question.fleet == fleet)
                .order_by(col(tables.Question.asked_at), col(tables.Question.vast_id))
            )
        ),
        "something_urgent_waits": something_urgent_waits(tx, fleet, now=now),
        "pending_wakes": len(coming),
        "next_wake_at": coming[0].wake_at if coming else None,
        "last_run": newest[0] if newest else None,
    }


def _rows(rows: Iterable[SQLModel]) -> list[dict[str, Any]]:
    return [_row(row) for row in rows]


def _row(row: SQLModel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).model_fields}
