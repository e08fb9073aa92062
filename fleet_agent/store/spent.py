"""The books of what boxes cost, by the hour. What is counted, and why, is said in `domain/spent.py`.

A box is read when a look was recorded, in the same transaction: what the look shows is in the ledger with what it cost,
or neither is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain import spending
from fleet_agent.domain.actions import RentBox
from fleet_agent.domain.money import Usd
from fleet_agent.domain.spent import Meter, read
from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.store import samples
from fleet_agent.store.tables import Action, Box, BoxHour

MOST_USD: Final = Decimal("999999.999999")
"""What a column holds. No box comes near it but one whose price is a lie, and a lie must not end the look."""


def accrue(tx: Session, fleet: str, *, now: datetime) -> None:
    """Enter what each box of the fleet has cost, as far as its newest look knows. To be called once a look was
    recorded, within `Database.exclusive`; once more changes nothing."""
    hours: list[dict[str, Any]] = []
    for box in _boxes_to_read(tx, fleet):
        reading = read(meter_of(box), now)
        box.accrued_until = reading.until
        box.spent_usd = min(box.spent_usd + reading.usd, MOST_USD)
        hours += ({"fleet": fleet, "hour": hour, "box_key": box.key, "usd": usd} for hour, usd in reading.hours.items())
    if hours:
        _add(tx, hours)


def _boxes_to_read(tx: Session, fleet: str) -> Sequence[Box]:
    """What the provider gave a number, while it lives and once more when it is gone. A rent without one is in flight:
    if it made a box, that is read from its beginning when it is found."""
    its_end_is_not_counted = and_(
        col(Box.gone_at).is_not(None),
        Box.misses == 0,
        func.coalesce(Box.accrued_until, Box.rented_at) < col(Box.gone_at),
    )
    return tx.scalars(
        select(Box)
        .where(
            Box.fleet == fleet,
            col(Box.vast_id).is_not(None),
            or_(and_(col(Box.gone_at).is_(None), Box.misses <= 1), its_end_is_not_counted),
        )
        .order_by(col(Box.key))
    ).all()


def meter_of(box: Box) -> Meter:
    return Meter(
        usd_per_hour=box.agreed_usd_per_hour if box.seen_usd_per_hour is None else box.seen_usd_per_hour,
        rented_at=box.rented_at,
        accrued_until=box.accrued_until,
        looked_at=box.looked_at,
        misses=box.misses,
        gone_at=box.gone_at,
    )


def _add(tx: Session, hours: Sequence[Mapping[str, Any]]) -> None:
    new = insert(BoxHour)
    added = new.on_conflict_do_update(
        index_elements=["fleet", "hour", "box_key"], set_={"usd": col(BoxHour.usd) + new.excluded.usd}
    )
    tx.execute(added, hours)


# --- questions -------------------------------------------------------------------------------------------------------


def of_the_day(tx: Session, fleet: str, *, now: datetime) -> Usd:
    """Of the boxes, in the current hour and the 24 before it."""
    return _between(tx, fleet, spending.day_before(now), now)


def of_the_hour(tx: Session, fleet: str, *, now: datetime) -> Usd:
    """Of the boxes, in the current hour so far."""
    return _between(tx, fleet, spending.hour_of(now), now)


def _between(tx: Session, fleet: str, first: datetime, now: datetime) -> Usd:
    """What stands in an hour to come was counted before the clock was set back: it would count for as long as the clock
    had been ahead."""
    spent = select(func.coalesce(func.sum(BoxHour.usd), 0)).where(
        BoxHour.fleet == fleet, BoxHour.hour >= first, BoxHour.hour <= now + CLOCKS_AGREE_WITHIN
    )
    return Usd(Decimal(tx.execute(spent).scalar_one()))


def of_runs(tx: Session, fleet: str, run_ids: Collection[int]) -> Mapping[int, Usd]:
    """Of the boxes that each of these runs asked for, to this day, whoever sent the order once it was approved. A run
    that made none is left out."""
    spent = (
        select(Action.run_id, func.sum(Box.spent_usd))
        .join(Box, col(Box.key) == Action.box_key)
        .where(Action.fleet == fleet, col(Action.run_id).in_(run_ids), Action.tool == RentBox.name)
        .group_by(col(Action.run_id))
    )
    return {run_id: Usd(usd) for run_id, usd in tx.execute(spent) if run_id is not None}


class Cost(NamedTuple):
    """Of one box: counted by the prices seen, and as the provider charged, None where no bill was read yet."""

    spent_usd: Decimal | None
    charged_usd: Decimal | None


def of_boxes(tx: Session, keys: Collection[str]) -> Mapping[str, Cost]:
    """By key; what is no box is left out."""
    boxes = tx.scalars(select(Box).where(col(Box.key).in_(keys)))
    return {box.key: Cost(box.spent_usd, box.charged_usd) for box in boxes}


class Credit(NamedTuple):
    usd: Usd | None
    """None where the account could not be read."""
    seen_at: datetime


def credit(tx: Session, fleet: str, *, now: datetime) -> Credit | None:
    """As the newest sample of the watch has it; None where there is none."""
    newest = samples.newest(tx, fleet, now=now)
    return newest and Credit(None if newest.credit_usd is None else Usd(newest.credit_usd), newest.at)
