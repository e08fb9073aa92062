"""What a person must be told, kept by the transaction that found it. The watch reads these, tells, and says how.

Telling is a call to the outside, and no transaction waits for one; a notice that is committed is told sooner or later,
also when the process that found it died right after.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.store.tables import Notice


def give(tx: Session, fleet: str, *, key: str, text: str, now: datetime) -> None:
    """Have a person told `text`, once for each `key`: what goes on is no news."""
    tx.execute(insert(Notice).values(fleet=fleet, key=key, text=text, at=now, how="").on_conflict_do_nothing())


def untold(tx: Session, fleet: str) -> Sequence[Notice]:
    """Oldest first."""
    return tx.scalars(
        select(Notice).where(Notice.fleet == fleet, col(Notice.told_at).is_(None)).order_by(col(Notice.id))
    ).all()


def summary(tx: Session, fleet: str) -> tuple[int, str | None]:
    """How many a person has not been told yet, and the newest of all."""
    newest = select(Notice.text).where(Notice.fleet == fleet).order_by(col(Notice.id).desc()).limit(1)
    return len(untold(tx, fleet)), tx.scalar(newest)


def told(tx: Session, notice_id: int, *, how: str, now: datetime) -> None:
    notice = tx.get_one(Notice, notice_id)
    notice.told_at = now
    notice.how = how
