"""The port `Logbook` on PostgreSQL: what the watch looks for, what it finds and does, and what it has told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.hosts import InVain
from fleet_agent.domain.ledger import ActionStatus, Ruled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import Actor, Removal, Ruling
from fleet_agent.domain.watch import DeadRun, Looked, Order, Seen, Untold
from fleet_agent.ports import Clock
from fleet_agent.store import actions, claims, looks, notices, reading, tables
from fleet_agent.store.database import Database
from fleet_agent.store.threads import in_thread

Answer = TypeVar("Answer")


class PostgresLogbook:
    """Implements `fleet_agent.ports.Logbook`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def dead_runs(self) -> tuple[DeadRun, ...]:
        return await in_thread(self._database.transaction(), dead_runs)

    async def untold(self) -> tuple[Untold, ...]:
        return await in_thread(self._database.transaction(), untold)

    async def told(self, notice: Untold, *, how: str) -> None:
        await in_thread(
            self._database.transaction(), lambda tx: notices.told(tx, notice.id, how=how, now=self._clock.now())
        )

    async def fleets(self) -> tuple[str, ...]:
        return await in_thread(self._database.transaction(), lambda tx: tuple(reading.fleets(tx)))

    async def record_look(self, fleet: str, seen: Seen) -> Looked:
        return await self._exclusive(fleet, lambda tx: looks.record_look(tx, fleet, seen, now=self._clock.now()))

    async def propose(
        self, fleet: str, actor: Actor, wanted: Sequence[Removal], observation: Observation
    ) -> tuple[Ruled, ...]:
        return await self._exclusive(
            fleet,
            lambda tx: looks.propose(tx, fleet, actor, wanted, observation=observation, now=self._clock.now()),
        )

    async def orders(self) -> tuple[Order, ...]:
        return await in_thread(self._database.transaction(), actions.orders)

    async def judge_order(self, order: Order, observation: Observation) -> Ruled:
        return await self._exclusive(
            order.fleet,
            lambda tx: actions.judge_order(tx, order, observation=observation, now=self._clock.now()),
        )

    async def mark_sent(self, fleet: str, key: str, *, send_by: timedelta) -> Ruling:
        return await self._exclusive(
            fleet, lambda tx: actions.mark_sent(tx, fleet, key, send_by=send_by, now=self._clock.now())
        )

    async def record_outcome(
        self,
        fleet: str,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        await self._exclusive(
            fleet,
            lambda tx: actions.record_outcome(
                tx, key, status, outcome, vast_id=vast_id, in_vain=in_vain, now=self._clock.now()
            ),
        )

    async def _exclusive(self, fleet: str, work: Callable[[Session], Answer]) -> Answer:
        return await in_thread(self._database.exclusive(fleet), work)


def dead_runs(tx: Session) -> tuple[DeadRun, ...]:
    """Open runs of all fleets that fell silent."""
    rows = tx.scalars(select(tables.Run).where(claims.is_dead()))
    return tuple(DeadRun(fleet=row.fleet, run_id=row.run_id, flow_run_id=row.flow_run_id) for row in rows)


def untold(tx: Session) -> tuple[Untold, ...]:
    return tuple(
        Untold(id=row.id, fleet=row.fleet, text=row.text)
        for fleet in reading.fleets(tx)
        for row in notices.untold(tx, fleet)
    )
