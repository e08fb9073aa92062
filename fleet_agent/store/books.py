"""The port `Books` on PostgreSQL: the provider's charges laid beside what was counted, fleet by fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import ColumnElement, func
from sqlalchemy.orm import Session
from sqlmodel import and_, col, or_, select

from fleet_agent.domain import spent
from fleet_agent.domain.fleet import parse_label
from fleet_agent.domain.spent import BILLS_COME_WITHIN, Bill, Charge, Doubt, Entry, Reckoning
from fleet_agent.store import notices, reading
from fleet_agent.store.database import Database
from fleet_agent.store.installation import installation
from fleet_agent.store.spent import meter_of
from fleet_agent.store.tables import Box
from fleet_agent.store.threads import in_thread


class PostgresBooks:
    """Implements `fleet_agent.ports.Books`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def charges_from(self, now: datetime) -> datetime:
        return await in_thread(self._database.transaction(), lambda tx: charges_from(tx, now=now))

    async def compare(self, charges: Sequence[Charge], *, since: datetime, read_at: datetime) -> Reckoning:
        bills = spent.bills(charges)
        fleets = await in_thread(self._database.transaction(), reading.fleets)
        reckoned = Reckoning()
        for fleet in fleets:
            work = partial(compare, fleet=fleet, bills=bills, since=since, now=read_at)
            reckoned += await in_thread(self._database.exclusive(fleet), work)
        return reckoned


def charges_from(tx: Session, *, now: datetime) -> datetime:
    first = select(func.min(Box.rented_at)).where(_may_still_be_charged(now))
    return spent.bills_begin(tx.execute(first).scalar_one(), now)


def _may_still_be_charged(now: datetime) -> ColumnElement[bool]:
    return and_(
        col(Box.vast_id).is_not(None), or_(col(Box.gone_at).is_(None), col(Box.gone_at) > now - BILLS_COME_WITHIN)
    )


def compare(tx: Session, fleet: str, bills: Mapping[int, Bill], *, since: datetime, now: datetime) -> Reckoning:
    """Keep the bill of each box that is whole since `since`, and have a person told what does not fit."""
    strangers = _strangers(tx, fleet, bills)
    reckoned = Reckoning()
    for box in _boxes(tx, fleet, bills, strangers, since, now):
        bill = _bill_of(box, bills, strangers)
        if bill is None:
            continue
        entry = _entry(box)
        doubt = spent.doubt_about(entry, bill, now)
        reckoned += Reckoning(
            boxes=1,
            charged_usd=bill.usd,
            spent_usd=entry.spent_by(now),
            doubts=() if doubt is None else (doubt,),
        )
        box.charged_usd, box.charged_at = bill.usd, now
    reckoned += Reckoning(doubts=tuple(spent.nobodys(bill) for alike in strangers.values() for bill in alike))
    _tell(tx, fleet, reckoned.doubts, now)
    return reckoned


def _strangers(tx: Session, fleet: str, bills: Mapping[int, Bill]) -> dict[str, list[Bill]]:
    """By label: the bills with a label of this fleet whose number no box has."""
    known = set(tx.scalars(select(Box.vast_id).where(col(Box.vast_id).in_(bills))))
    name = installation(tx).name
    strangers: dict[str, list[Bill]] = {}
    for bill in bills.values():
        label = parse_label(bill.label)
        if bill.vast_id not in known and label is not None and (label.installation, label.fleet) == (name, fleet):
            strangers.setdefault(bill.label, []).append(bill)
    return strangers


def _boxes(
    tx: Session,
    fleet: str,
    bills: Mapping[int, Bill],
    strangers: Mapping[str, Sequence[Bill]],
    since: datetime,
    now: datetime,
) -> Sequence[Box]:
    """Those whose whole life the charges show, and that have a bill or should have one."""
    by_label = and_(col(Box.vast_id).is_(None), col(Box.label).in_(strangers))
    return tx.scalars(
        select(Box)
        .where(
            Box.fleet == fleet,
            Box.rented_at >= since,
            or_(col(Box.vast_id).in_(bills), by_label, _may_still_be_charged(now)),
        )
        .order_by(col(Box.key))
    ).all()


def _bill_of(box: Box, bills: Mapping[int, Bill], strangers: Mapping[str, list[Bill]]) -> Bill | None:
    """A box whose number was never told is known by its label, which the charges carry too."""
    if box.vast_id is not None:
        nothing_yet = Bill(vast_id=box.vast_id, label=box.label)
        return bills.get(box.vast_id, nothing_yet)
    alike = strangers.get(box.label)
    return alike.pop(0) if alike else None


def _entry(box: Box) -> Entry:
    return Entry(
        key=box.key,
        vast_id=box.vast_id,
        meter=meter_of(box),
        spent_usd=box.spent_usd,
        charged_usd=box.charged_usd,
        charged_at=box.charged_at,
    )


def _tell(tx: Session, fleet: str, doubts: Iterable[Doubt], now: datetime) -> None:
    for doubt in doubts:
        notices.give(tx, fleet, key=doubt.key, text=doubt.text, now=now)
