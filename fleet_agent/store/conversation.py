"""The log of every run, and what prompts carry of older ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.run import Message, MessageKind, PastRun, Run
from fleet_agent.domain.triggers import Trigger
from fleet_agent.store import tables
from fleet_agent.store.tables import RunStatus

MOST_PAST_RUNS = 50
"""Far more than a prompt holds; `domain.context` leaves out the oldest until it fits."""


def append(tx: Session, run: Run, messages: Sequence[Message], *, now: datetime) -> None:
    tx.add_all(
        tables.Message(
            fleet=run.fleet,
            run_id=run.run_id,
            epoch=run.epoch,
            turn=message.turn,
            step=message.step,
            role=message.role,
            kind=message.kind.value,
            content=message.content,
            call_id=message.call_id,
            calls=[call.model_dump(mode="json") for call in message.calls],
            at=now,
        )
        for message in messages
    )


def keep_request(tx: Session, run: Run, body: Mapping[str, Any]) -> None:
    """Only the newest of a run is kept: it carries the steps before it."""
    new = insert(tables.Request).values(fleet=run.fleet, run_id=run.run_id, body=dict(body))
    tx.execute(new.on_conflict_do_update(index_elements=["fleet", "run_id"], set_={"body": new.excluded.body}))


def past_runs(tx: Session, fleet: str, epoch: int) -> tuple[PastRun, ...]:
    """The closed runs of this epoch that prompts carry, oldest first. A no-op run is never among them."""
    rows = tx.scalars(
        select(tables.Run)
        .where(
            tables.Run.fleet == fleet,
            tables.Run.epoch == epoch,
            tables.Run.status == RunStatus.CLOSED,
            col(tables.Run.in_prompt),
        )
        .order_by(col(tables.Run.run_id).desc())
        .limit(MOST_PAST_RUNS)
    ).all()
    human = _human_words(tx, fleet, [row.run_id for row in rows])
    return tuple(
        PastRun(
            run_id=row.run_id,
            trigger=Trigger(row.trigger),
            reason=row.reason,
            opened_at=row.opened_at,
            summary=row.summary,
            human=tuple(human.get(row.run_id, ())),
        )
        for row in reversed(rows)
    )


def _human_words(tx: Session, fleet: str, run_ids: Sequence[int]) -> dict[int, list[str]]:
    words: dict[int, list[str]] = {}
    rows = tx.execute(
        select(tables.Message.run_id, tables.Message.content)
        .where(
            tables.Message.fleet == fleet,
            col(tables.Message.run_id).in_(run_ids),
            tables.Message.kind == MessageKind.HUMAN,
        )
        .order_by(col(tables.Message.seq))
    )
    for run_id, content in rows:
        words.setdefault(run_id, []).append(content)
    return words
