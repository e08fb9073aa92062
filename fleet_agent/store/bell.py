"""The port `Belfry` on PostgreSQL: what waits, what was rung for it, and which flow run shows a wake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg
from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, not_, select

from fleet_agent.domain.bell import OVERDUE, ShownWake, Waiting
from fleet_agent.domain.exits import Outlook, meaning_of
from fleet_agent.domain.timeline import is_of_a_time_to_come
from fleet_agent.domain.triggers import HEARTBEAT, Doorbell, Priority
from fleet_agent.ports import Clock
from fleet_agent.store import claims, reading, session, tables, wakes
from fleet_agent.store.database import Database, real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import SHOWN, Inbox, RunStatus, Wake, WakeStatus
from fleet_agent.store.threads import in_thread

Answer = TypeVar("Answer")


class PostgresBelfry:
    """Implements `fleet_agent.ports.Belfry`."""

    def __init__(
        self, database: Database, clock: Clock, *, read_clock_again: Callable[[datetime], None] = lambda _: None
    ) -> None:
        """`read_clock_again` is told the database's own time at each look at what waits."""
        self._database = database
        self._clock = clock
        self._read_clock_again = read_clock_again
        self._listener: psycopg.AsyncConnection | None = None

    async def until_news(self, *, within: timedelta) -> None:
        try:
            if self._listener is None:
                self._listener = await self._database.listener()
                return  # what was posted before it listened, nobody told
            async for _ in self._listener.notifies(timeout=within.total_seconds(), stop_after=1):
                return
        except psycopg.OperationalError:
            await self.aclose()
            await asyncio.sleep(within.total_seconds())

    async def aclose(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def waiting(self) -> tuple[Waiting, ...]:
        def look(tx: Session) -> tuple[Waiting, ...]:
            self._read_clock_again(real_now(tx))
            return waiting(tx, now=self._clock.now())

        return await self._in(self._database.transaction(), look)

    async def count_rings(self, waiting: Waiting, number: int) -> None:
        await self._in(self._database.shared(waiting.fleet), lambda tx: count_rings(tx, waiting, number))

    async def shown_wakes(self) -> tuple[ShownWake, ...]:
        return await self._in(self._database.transaction(), shown_wakes)

    async def show_wake(self, wake: ShownWake, *, generation: int, flow_run_id: str | None) -> None:
        shown = {"generation": generation, "flow_run_id": flow_run_id}
        of_it = and_(Wake.fleet == wake.fleet, Wake.id == wake.id)
        await self._in(
            self._database.shared(wake.fleet), lambda tx: tx.execute(update(Wake).where(of_it).values(**shown))
        )

    async def cancel_wake(self, wake: ShownWake) -> None:
        await self._in(
            self._database.exclusive(wake.fleet),
            lambda tx: wakes.cancel(tx, wake.fleet, wake.id, who="Prefect", now=self._clock.now()),
        )

    async def _in(self, transaction: AbstractContextManager[Session], work: Callable[[Session], Answer]) -> Answer:
        return await in_thread(transaction, work)


def waiting(tx: Session, *, now: datetime) -> tuple[Waiting, ...]:
    """What waits for a run, fleet by fleet."""
    late = OVERDUE * installation(tx).clock_speed
    found = (_waiting_in(tx, fleet, late, now) for fleet in reading.fleets(tx))
    return tuple(each for each in found if each is not None)


def _waiting_in(tx: Session, fleet: str, late: timedelta, now: datetime) -> Waiting | None:
    """`late` is business time: how late Prefect may be with what it should start by itself."""
    event = tx.execute(
        select(Inbox.id, Inbox.rings).where(claims.urgent_event_waits(fleet)).order_by(col(Inbox.id)).limit(1)
    ).first()
    if event is not None:
        oldest, rings = str(event.id), event.rings
    else:
        wake = tx.scalars(
            select(Wake)
            .where(claims.wake_waits(fleet, claims.is_due(now, overdue_by=late)))
            .order_by(col(Wake.wake_at), col(Wake.id))
        ).first()
        if wake is None:
            return None
        oldest, rings = f"w{wake.id}", wake.rings
    newest = tx.scalars(
        select(tables.Run).where(tables.Run.fleet == fleet).order_by(col(tables.Run.run_id).desc()).limit(1)
    ).first()
    return Waiting(
        fleet=fleet,
        oldest=oldest,
        doorbell=Doorbell.URGENT if event is None or _something_is_urgent(tx, fleet) else Doorbell.CHANGE,
        rings=rings,
        run_is_open=_a_live_run_is_open(tx, fleet),
        run_counter=session.find(tx, fleet).run_counter,
        outlook=_outlook(newest, now, late),
        a_person_acted=newest is not None and _a_person_acted(tx, newest),
    )


def _outlook(newest: tables.Run | None, now: datetime, late: timedelta) -> Outlook:
    """By how the newest run ended. Where the heartbeat should have looked again and did not, hope is as good as in an
    outage; an end in a time to come says nothing, since the clock was set back."""
    if newest is None or newest.closed_at is None or is_of_a_time_to_come(newest.closed_at, now):
        return Outlook.GOOD
    outlook = meaning_of(newest.exit_reason).outlook
    heartbeat_is_missing = now - newest.closed_at > HEARTBEAT + late
    return Outlook.POOR if outlook is Outlook.NONE and heartbeat_is_missing else outlook


def _a_person_acted(tx: Session, newest: tables.Run) -> bool:
    """Since it was opened, and no run has taken it: the newest may have failed before it could see that."""
    of_a_person = select(Inbox.id).where(
        claims.urgent_event_waits(newest.fleet),
        Inbox.priority == Priority.URGENT,
        Inbox.received_at > newest.opened_at,
    )
    return tx.execute(select(of_a_person.exists())).scalar_one()


def _something_is_urgent(tx: Session, fleet: str) -> bool:
    urgent = select(Inbox.id).where(claims.urgent_event_waits(fleet), Inbox.priority == Priority.URGENT)
    return tx.execute(select(urgent.exists())).scalar_one()


def _a_live_run_is_open(tx: Session, fleet: str) -> bool:
    live = select(tables.Run.run_id).where(
        tables.Run.fleet == fleet, tables.Run.status == RunStatus.OPEN, not_(claims.is_dead())
    )
    return tx.execute(select(live.exists())).scalar_one()


def count_rings(tx: Session, waiting: Waiting, number: int) -> None:
    """To be called within `Database.shared`. A row that is gone, merged into a twin, has nothing to keep."""
    is_wake = waiting.oldest.startswith("w")
    row = Wake if is_wake else Inbox
    tx.execute(
        update(row)
        .where(and_(row.fleet == waiting.fleet, row.id == int(waiting.oldest.removeprefix("w"))))
        .values(rings=number)
    )


def shown_wakes(tx: Session) -> tuple[ShownWake, ...]:
    """Pending wakes, and cancelled ones that still have a flow run, of all fleets; soonest first."""
    rows = tx.scalars(select(Wake).where(SHOWN).order_by(col(Wake.wake_at), col(Wake.id)))
    return tuple(
        ShownWake(
            id=row.id,
            fleet=row.fleet,
            wake_at=row.wake_at,
            asked_at=row.asked_at,
            reason=row.reason,
            is_cancelled=row.status == WakeStatus.CANCELLED,
            generation=row.generation,
            flow_run_id=row.flow_run_id,
        )
        for row in rows
    )
