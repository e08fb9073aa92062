"""The samples of the watch, read. They are written by `looks`, one for each look."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.store.tables import Sample


def newest(tx: Session, fleet: str, *, now: datetime) -> Sample | None:
    """One of a time to come is from before the clock was set back."""
    return tx.scalars(
        select(Sample)
        .where(Sample.fleet == fleet, Sample.at <= now + CLOCKS_AGREE_WITHIN)
        .order_by(col(Sample.at).desc())
        .limit(1)
    ).first()
