"""What is known of each model on each server, remembered for every process and every run.

A model belongs to no fleet: that a server is down, or counts otherwise than we do, is true for whoever asks. What a
person must be told of it is told to the fleet whose run found it. The lessons are pure (`domain.model_server`); here
each is one short transaction that locks the model's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.model_server import Lesson, ModelName, ModelState, Recalled, news
from fleet_agent.ports import Clock
from fleet_agent.store import notices, session
from fleet_agent.store.database import Database, real_now
from fleet_agent.store.tables import ModelServer
from fleet_agent.store.threads import in_thread


class PostgresModelMemory:
    """Implements `clients.models.ModelMemory` for one fleet. Raises DatabaseUnreachable."""

    def __init__(self, database: Database, clock: Clock, fleet: str) -> None:
        self._database = database
        self._clock = clock
        self._fleet = fleet

    async def recall(self, names: Sequence[ModelName]) -> Recalled:
        """The states of the models in the order of `names`, which is the order in which they are asked; models that
        are on the list no more are remembered, but not shown."""

        def recall(tx: Session) -> Recalled:
            rows = _rows(tx)
            if {name: row.rank for name, row in rows.items() if row.rank is not None} != _ranks(names):
                rows = _ranked(tx, names)
            return Recalled(real_now(tx), tuple(_state(rows[name]) for name in names))

        return await in_thread(self._database.transaction(), recall)

    async def learn(self, name: ModelName, lesson: Lesson) -> ModelState:
        """Apply `lesson`, tell what a person should know of it, and return the state as it now is."""

        def learn(tx: Session) -> ModelState:
            tx.execute(insert(ModelServer).values(name._asdict()).on_conflict_do_nothing())
            row = tx.get_one(ModelServer, tuple(name), with_for_update=True)
            before = _state(row)
            after = lesson(before, real_now(tx))
            _keep(row, after)
            for key, text in news(name, before, after, alone=not _has_another(tx, name)):
                session.begin(tx, self._fleet)
                notices.give(tx, self._fleet, key=key, text=text, now=self._clock.now())
            return after

        return await in_thread(self._database.transaction(), learn)


def listed(tx: Session) -> tuple[tuple[ModelName, ModelState], ...]:
    """The models of the list in its order, with what is known of each."""
    return tuple((ModelName(row.server, row.model), _state(row)) for row in _in_order(tx))


def shown(tx: Session) -> list[dict[str, Any]]:
    """The same as a person sees it; those before the first that is well are left alone or failing. Where none is well
    nobody is left alone: then all are asked."""
    rows, now = _in_order(tx), real_now(tx)
    somebody_is_well = not all(_state(row).left_alone(now) for row in rows)
    return [
        row.model_dump(exclude={"ratios", "refused_ratio", "rank"})
        | {"factor": _state(row).factor, "left_alone": somebody_is_well and _state(row).left_alone(now)}
        for row in rows
    ]


def _has_another(tx: Session, name: ModelName) -> bool:
    """Whether another model of the list could be asked in its place."""
    return any(other != name for other, _ in listed(tx))


def _in_order(tx: Session) -> Sequence[ModelServer]:
    listed = select(ModelServer).where(col(ModelServer.rank).is_not(None))
    return tx.scalars(listed.order_by(col(ModelServer.rank))).all()


def _rows(tx: Session) -> dict[ModelName, ModelServer]:
    return {ModelName(row.server, row.model): row for row in tx.scalars(select(ModelServer))}


def _ranked(tx: Session, names: Sequence[ModelName]) -> dict[ModelName, ModelServer]:
    """The rows of `names`, made where there are none, with their places in the list."""
    for name, rank in sorted(_ranks(names).items()):  # in one order, so that two that do this at once do not deadlock
        place = insert(ModelServer).values(**name._asdict(), rank=rank)
        tx.execute(place.on_conflict_do_update(index_elements=["server", "model"], set_={"rank": rank}))
    is_listed = tuple_(col(ModelServer.server), col(ModelServer.model)).in_([tuple(name) for name in names])
    tx.execute(update(ModelServer).where(~is_listed).values(rank=None))
    tx.expire_all()
    return _rows(tx)


def _ranks(names: Sequence[ModelName]) -> dict[ModelName, int]:
    return {name: rank for rank, name in enumerate(names)}


def _state(row: ModelServer) -> ModelState:
    return ModelState.model_validate({field: getattr(row, field) for field in ModelState.model_fields})


def _keep(row: ModelServer, state: ModelState) -> None:
    for field in ModelState.model_fields:
        value = getattr(state, field)
        setattr(row, field, list(value) if field == "ratios" else value)
