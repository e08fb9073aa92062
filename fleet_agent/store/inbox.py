"""Posting: what happened becomes a row and a notification, nothing else.

Whoever posts needs no Prefect and waits for no run. A repetition of what already waits raises its count.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col

from fleet_agent.domain.triggers import PRIORITY, Kind
from fleet_agent.domain.values import Frozen
from fleet_agent.store import session
from fleet_agent.store.database import notify_bell
from fleet_agent.store.tables import WAITS, Inbox


class Post(Frozen):
    """Something that happened. While an event with the same `dedupe_key` waits, it only counts that one up."""

    kind: Kind
    source: str
    text: str = ""
    payload: dict[str, Any] = Field(default={})
    dedupe_key: str | None = None


def post(tx: Session, fleet: str, event: Post, *, now: datetime) -> int:
    """Store the event and return the id of its row. To be called within `Database.shared` or `exclusive`."""
    session.state(tx, fleet)
    new = insert(Inbox).values(
        fleet=fleet,
        source=event.source,
        kind=event.kind.value,
        priority=PRIORITY[event.kind].value,
        dedupe_key=event.dedupe_key,
        occurred_at=now,
        received_at=now,
        text=event.text,
        payload=event.payload,
    )
    counted_up = new.on_conflict_do_update(
        index_elements=["fleet", "dedupe_key"],
        index_where=WAITS,
        set_={
            "count": col(Inbox.count) + 1,
            "text": new.excluded.text,
            "payload": new.excluded.payload,
            "priority": func.least(Inbox.priority, new.excluded.priority),
        },
    )
    event_id = tx.execute(counted_up.returning(col(Inbox.id))).scalar_one()
    notify_bell(tx, fleet)
    return event_id
