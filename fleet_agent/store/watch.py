"""The port `Logbook` on PostgreSQL: what the watch looks for, and what it has told."""

from __future__ import annotations

from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.watch import DeadRun, Untold
from fleet_agent.ports import Clock
from fleet_agent.store import claims, notices, reading, tables
from fleet_agent.store.database import Database
from fleet_agent.store.threads import in_thread


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
