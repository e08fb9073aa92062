"""Which runs are tainted, and with them what they left behind. See `domain.taint`."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.run import Run
from fleet_agent.domain.taint import Taint
from fleet_agent.store import tables


def taint_run(tx: Session, run: Run, taint: Taint) -> None:
    """The run's words have one mark, the first, and the latest end that anything it read has."""
    tx.execute(
        update(tables.Run)
        .where(and_(tables.Run.fleet == run.fleet, tables.Run.run_id == run.run_id))
        .values(
            mark=func.coalesce(tables.Run.mark, taint.mark),
            tainted_until=func.greatest(tables.Run.tainted_until, taint.until),
        )
    )


def of_runs(tx: Session, fleet: str, run_ids: Collection[int | None]) -> dict[int | None, Taint]:
    """By run; those without a taint are left out."""
    named = {run_id for run_id in run_ids if run_id is not None}
    if not named:
        return {}
    rows = tx.scalars(
        select(tables.Run).where(
            tables.Run.fleet == fleet, col(tables.Run.run_id).in_(named), col(tables.Run.mark).is_not(None)
        )
    )
    return {row.run_id: taint for row in rows if (taint := of(row)) is not None}


def of(row: tables.Run) -> Taint | None:
    if row.mark is None or row.tainted_until is None:
        return None
    return Taint(mark=row.mark, until=row.tainted_until)
