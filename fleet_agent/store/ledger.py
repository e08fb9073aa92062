"""The ledger of boxes: what each is, since when, what may still become one, and what runs did.

A box has its row before the provider knows of it, and keeps it for ever. What may have been made counts as long as
nobody knows better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.fleet import Box, Stage
from fleet_agent.domain.ledger import ActionStatus, Deed, Unsettled
from fleet_agent.domain.policy import Policy
from fleet_agent.store import tables
from fleet_agent.store.database import real_now
from fleet_agent.store.tables import Action

GRACE: Final = timedelta(seconds=180)
"""Real time after `sent` in which a box may still appear in the provider's list, or disappear from it.

Longer than the longest call, the time to send it and the lag of the list together.
"""

_HAPPENED: Final = (ActionStatus.SENT, ActionStatus.DONE, ActionStatus.UNKNOWN)
"""What may have changed the world."""

_WITHOUT_A_BOX: Final = col(tables.Box.vast_id).is_(None)

_IN_FLIGHT: Final = or_(
    col(Action.status) == ActionStatus.INTENDED,
    and_(col(Action.status).in_((ActionStatus.SENT, ActionStatus.UNKNOWN)), _WITHOUT_A_BOX),
)
"""Rents whose end nobody has seen, laid beside the boxes they may have made."""

# --- the life of a box -----------------------------------------------------------------------------------------------


def enter(box: tables.Box, stage: Stage, now: datetime) -> None:
    if box.stage != stage:
        box.stage, box.stage_since = stage.value, now


def drain(box: tables.Box, because: str, policy: Policy, now: datetime) -> None:
    """From now on it is to take no more work; who drains already keeps its deadline."""
    if box.drain_by is None:
        box.drain_by, box.drain_because = now + policy.deadlines.draining, because
    enter(box, Stage.DRAINING, now)


def gone(box: tables.Box, because: str, now: datetime) -> None:
    """The box costs nothing any more, as far as is known; a later look may find it all the same."""
    enter(box, Stage.GONE, now)
    box.gone_at = now
    box.gone_because = because


def unknown_to_provider(tx: Session, fleet: str, vast_id: int, *, now: datetime) -> None:
    """The provider answered a destroy that it knows no such box: that is more than an absence from a list.

    With the box ends every call to be rid of it, be it of somebody who died before he heard of it: no look will tell.
    """
    because = "the provider knows no such box"
    for box in tx.scalars(
        select(tables.Box).where(
            tables.Box.fleet == fleet, tables.Box.vast_id == vast_id, tables.Box.stage != Stage.GONE
        )
    ):
        gone(box, because, now)
        tx.execute(
            update(Action)
            .where(
                col(Action.box_key) == box.key,
                col(Action.tool).in_((DrainBox.name, DestroyBox.name)),
                col(Action.status).in_((ActionStatus.SENT, ActionStatus.UNKNOWN)),
            )
            .values(status=ActionStatus.DONE, outcome=because, settled_at=now)
        )


def back(box: tables.Box, now: datetime) -> None:
    """The box is there after all; how far it is, the next look tells."""
    box.misses, box.missed_since = 0, None
    box.gone_at, box.gone_because = None, ""
    enter(box, Stage.DRAINING if box.drain_by else Stage.RENTED, now)


# --- questions -------------------------------------------------------------------------------------------------------


def boxes(tx: Session, fleet: str) -> tuple[Box, ...]:
    """The live boxes whose number the provider has told, oldest first. A rent without one is still in flight."""
    now = real_now(tx)
    rows = tx.scalars(
        select(tables.Box)
        .where(tables.Box.fleet == fleet, tables.Box.stage != Stage.GONE, col(tables.Box.vast_id).is_not(None))
        .order_by(col(tables.Box.rented_at), col(tables.Box.key))
    )
    return tuple(as_box(row, busy=row.busy_until is not None and row.busy_until > now) for row in rows)


def as_box(row: tables.Box, *, busy: bool) -> Box:
    return Box(
        key=row.key,
        label=row.label,
        vast_id=row.vast_id,
        machine_id=row.machine_id,
        gpu_name=row.gpu_name,
        num_gpus=row.num_gpus,
        usd_per_hour=row.agreed_usd_per_hour if row.seen_usd_per_hour is None else row.seen_usd_per_hour,
        agreed_usd_per_hour=row.agreed_usd_per_hour,
        stage=Stage(row.stage),
        stage_since=row.stage_since,
        rented_at=min(row.rented_at, row.stage_since),  # no part of a way began before it, whatever the clock said
        protected=row.protected,
        drain_by=row.drain_by,
        drain_because=row.drain_because,
        tasks=row.tasks,
        fetched=row.fetched,
        reported_at=row.reported_at,
        busy=busy,
    )


def reports_since(tx: Session) -> datetime | None:
    """When the first box of the installation was rented that ever reported; None where none did."""
    return tx.scalar(select(func.min(tables.Box.rented_at)).where(col(tables.Box.reported_at).is_not(None)))


def live_box(tx: Session, fleet: str, vast_id: int) -> tables.Box | None:
    """The row of the box that the provider knows by this number, as long as it is not gone."""
    return tx.scalars(
        select(tables.Box).where(
            tables.Box.fleet == fleet, tables.Box.vast_id == vast_id, tables.Box.stage != Stage.GONE
        )
    ).first()


def in_flight(tx: Session, fleet: str) -> tuple[int, Decimal]:
    """Rents that may still become a box which `boxes` does not show yet, and the $/h reserved for them."""
    return _count_rents(tx, fleet, _IN_FLIGHT)


def may_still_appear(tx: Session, fleet: str) -> int:
    """How many rents may still become a box that nobody knows: those in flight, and those sent within the grace.

    The latter whatever was answered, for a provider may say no and make the box. An emergency stop waits for zero.
    """
    just_sent = and_(_WITHOUT_A_BOX, col(Action.sent_at) > real_now(tx) - GRACE)
    count, _ = _count_rents(tx, fleet, or_(_IN_FLIGHT, just_sent))
    return count


def _count_rents(tx: Session, fleet: str, which: ColumnElement[bool]) -> tuple[int, Decimal]:
    """How many, and the $/h reserved for them."""
    rents = (
        select(func.count(), func.coalesce(func.sum(Action.reserved_usd_per_hour), 0))
        .select_from(Action)
        .outerjoin(tables.Box, col(tables.Box.key) == Action.box_key)
        .where(Action.fleet == fleet, Action.tool == RentBox.name, which)
    )
    count, rate = tx.execute(rents).one()
    return count, Decimal(rate)


def unsettled(tx: Session, fleet: str) -> tuple[Unsettled, ...]:
    """Calls about boxes that may have reached the provider and whose outcome nobody saw, oldest first."""
    now = real_now(tx)
    rows = tx.execute(
        select(Action, tables.Box)
        .join(tables.Box, col(tables.Box.key) == Action.box_key)
        .where(Action.fleet == fleet, col(Action.status).in_((ActionStatus.SENT, ActionStatus.UNKNOWN)))
        .order_by(col(Action.id))
    )
    return tuple(
        Unsettled(
            key=action.key,
            tool=action.tool,
            label=box.label,
            vast_id=box.vast_id,
            sent_for=now - (action.sent_at or now),
        )
        for action, box in rows
    )


def has_effect(tx: Session, fleet: str, run_id: int) -> bool:
    """Did this run change, or perhaps change, the world? What it asked for and another carried out is that one's."""
    happened = select(Action.id).where(
        Action.fleet == fleet, Action.sent_by_run == run_id, col(Action.status).in_(_HAPPENED)
    )
    return tx.execute(select(happened.exists())).scalar_one()


def deeds(tx: Session, fleet: str, run_ids: Collection[int]) -> Mapping[int, Sequence[Deed]]:
    """What these runs did, or perhaps did, in order."""
    rows = tx.scalars(
        select(Action).where(Action.fleet == fleet, col(Action.sent_by_run).in_(run_ids)).order_by(col(Action.id))
    )
    done: dict[int, list[Deed]] = {}
    for row in rows:
        deed = Deed(tool=row.tool, key=row.key, status=ActionStatus(row.status), outcome=row.outcome)
        done.setdefault(row.sent_by_run or 0, []).append(deed)
    return done


def done_by(tx: Session, fleet: str, epoch: int, *, first: int, last: int | None = None) -> Counter[tuple[int, str]]:
    """How often runs of this epoch from `first` to `last` did what: (run id, tool) → times."""
    of_them = and_(Action.fleet == fleet, col(Action.sent_by_run) >= first, Action.status == ActionStatus.DONE)
    if last is not None:
        of_them = and_(of_them, col(Action.sent_by_run) <= last)
    rows = tx.execute(
        select(Action.sent_by_run, Action.tool, func.count())
        .join(tables.Run, and_(tables.Run.fleet == Action.fleet, tables.Run.run_id == Action.sent_by_run))
        .where(of_them, tables.Run.epoch == epoch)
        .group_by(col(Action.sent_by_run), Action.tool)
    )
    return Counter({(run_id, tool): times for run_id, tool, times in rows})
