"""Who changed what, and what a person should know of it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from fleet_agent.store.tables import Audit


def note(tx: Session, fleet: str, *, who: str, what: str, text: str, now: datetime) -> None:
    tx.add(Audit(fleet=fleet, at=now, who=who, what=what, text=text))
