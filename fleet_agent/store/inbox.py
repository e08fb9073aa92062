"""Posting: what happened becomes a row and a notification, nothing else.

Whoever posts needs no Prefect and waits for no run. Repetitions come in two sorts. A state that is announced again
("demand is high") has a dedupe key: while it waits it is counted up, and once a run has taken it, it is news. One
occurrence that is told again (a sender that got no answer, a pair that both tell) has an id, and is stored once,
whatever has become of it since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Self

from pydantic import Field, model_validator
from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.triggers import Kind, priority_of
from fleet_agent.domain.values import Frozen
from fleet_agent.store import session
from fleet_agent.store.database import notify_bell
from fleet_agent.store.tables import WAITS, Inbox

LARGEST_PAYLOAD: Final = 256 * 1024
"""Bytes of JSON; of a larger one the beginning is kept, and the text of the event says so."""

OCCURRENCES_KEPT: Final = timedelta(hours=24)
"""Senders that repeat what still holds do so every few hours; what still holds a day later may be told again."""


class Post(Frozen):
    """Something that happened.

    dedupe_key: names a state; while an event with the same key waits, this one only counts it up.
    occurrence_id: names this one occurrence; posted again within OCCURRENCES_KEPT it changes nothing. Not both.
    severity: what the sender says of an alert, see `domain.triggers`.
    tainted: the text has words that a stranger was free to choose, see `domain.taint`.
    """

    kind: Kind
    source: str
    text: str = ""
    payload: dict[str, Any] = Field(default={})
    severity: str = ""
    tainted: bool = False
    dedupe_key: str | None = None
    occurrence_id: str | None = None

    @model_validator(mode="after")
    def _repeats_or_occurs_once(self) -> Self:
        if self.dedupe_key is not None and self.occurrence_id is not None:
            raise ValueError("an event that occurs once does not repeat: give one key, not both")
        return self


def post_all(tx: Session, fleet: str, events: Iterable[Post], *, now: datetime) -> list[int]:
    """Store several events; the ids of their rows, in no particular order.

    They go in in the order of their keys: two callers with the same events in different orders would each hold what
    the other waits for.
    """
    in_order = sorted(events, key=lambda event: event.occurrence_id or event.dedupe_key or "")
    return [post(tx, fleet, event, now=now) for event in in_order]


def post(tx: Session, fleet: str, event: Post, *, now: datetime) -> int:
    """Store the event and return the id of its row. To be called within `Database.shared` or `exclusive`."""
    session.begin(tx, fleet)
    if event.occurrence_id is not None:
        _forget(tx, fleet, event.occurrence_id, until=now - OCCURRENCES_KEPT)
    event_id = tx.execute(_insertion(fleet, event, now).returning(col(Inbox.id))).scalar()
    if event_id is None:
        known = select(Inbox.id).where(Inbox.fleet == fleet, Inbox.occurrence_id == event.occurrence_id)
        return tx.execute(known).scalar_one()
    notify_bell(tx, fleet)
    return event_id


def _forget(tx: Session, fleet: str, occurrence_id: str, *, until: datetime) -> None:
    tx.execute(
        update(Inbox)
        .where(and_(Inbox.fleet == fleet, Inbox.occurrence_id == occurrence_id, Inbox.received_at <= until))
        .values(occurrence_id=None)
    )


def _insertion(fleet: str, event: Post, now: datetime) -> Insert:
    text, payload = _kept(event)
    new = insert(Inbox).values(
        fleet=fleet,
        source=event.source,
        kind=event.kind.value,
        priority=priority_of(event.kind, event.severity).value,
        dedupe_key=event.dedupe_key,
        occurrence_id=event.occurrence_id,
        occurred_at=now,
        received_at=now,
        text=text,
        payload=payload,
        tainted=event.tainted,
    )
    if event.occurrence_id is not None:
        return new.on_conflict_do_nothing(index_elements=["fleet", "occurrence_id"])
    if event.dedupe_key is not None:
        return new.on_conflict_do_update(
            index_elements=["fleet", "dedupe_key"],
            index_where=WAITS,
            set_={
                "count": col(Inbox.count) + 1,
                "text": new.excluded.text,
                "payload": new.excluded.payload,
                "tainted": new.excluded.tainted,
                "priority": func.least(Inbox.priority, new.excluded.priority),
            },
        )
    return new


def _kept(event: Post) -> tuple[str, dict[str, Any]]:
    """Text and payload as they are stored."""
    whole = json.dumps(event.payload, ensure_ascii=False).encode("utf-8", "replace")
    if len(whole) <= LARGEST_PAYLOAD:
        return event.text, event.payload
    said = f"{event.text} [the first {LARGEST_PAYLOAD // 1024} of {len(whole) // 1024} KB are kept]"
    return said, {"beginning": whole[:LARGEST_PAYLOAD].decode("utf-8", "ignore"), "bytes": len(whole)}
