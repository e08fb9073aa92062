"""The books of what models cost, by the hour. What is counted and what is allowed is said in `domain/spending.py`.

One run of a fleet asks at a time, so reading the day and booking the request need no lock of their own; each change of
a row is an addition, so that what an older run learns late is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain import spending
from fleet_agent.domain.run import Message, Run, Usage
from fleet_agent.domain.spending import Booking, Spent
from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.errors import BudgetSpent
from fleet_agent.store import conversation, session, tables

RAISE_IT = "raise it with `fleet-agent policy set`, or wait until older hours count no more"


def book(tx: Session, run: Run, body: Mapping[str, Any], model: str, most: Usage, *, now: datetime) -> Booking:
    """Enter a request with the most that it may cost. Raises BudgetSpent where the day has not that much left."""
    beyond = spending.beyond_the_day(of_the_day(tx, run.fleet, now=now), most, session.policy(tx, run.fleet).model)
    if beyond is not None:
        raise BudgetSpent(f"the models may not be asked for now: the last 24 h took {beyond}", RAISE_IT)
    chars, chars_as_before = spending.alike(conversation.newest_request(tx, run.fleet), body)
    booking = Booking(model=model, hour=spending.hour_of(now), most=most, chars=chars, chars_as_before=chars_as_before)
    _add(tx, run.fleet, booking.hour, model, most, calls=1)
    return booking


def put_right(tx: Session, run: Run, booking: Booking, used: Usage | None) -> None:
    """There is no reply: in the place of the booking comes what was paid for all the same. The request itself counts,
    unless it never left: None."""
    _add(tx, run.fleet, booking.hour, booking.model, (used or Usage()) - booking.most, calls=-1 if used is None else 0)


def put_down(tx: Session, run: Run, booking: Booking, used: Usage, reply: Message) -> None:
    """There is a reply, perhaps of another model than the one that was to be asked."""
    _add(tx, run.fleet, booking.hour, booking.model, Usage() - booking.most, calls=-1)
    _add(
        tx,
        run.fleet,
        booking.hour,
        reply.model or booking.model,
        used,
        calls=1,
        estimate=reply.estimate,
        reported=reply.reported,
        chars=booking.chars,
        chars_as_before=booking.chars_as_before,
    )


def of_the_day(tx: Session, fleet: str, *, now: datetime) -> Spent:
    """What counts for the day's bounds. What stands in an hour to come was written before the clock was set back: it
    would count for as long as the clock had been ahead."""
    calls, tokens, usd = tx.execute(
        select(
            func.coalesce(func.sum(tables.Usage.calls), 0),
            func.coalesce(func.sum(tables.Usage.tokens_in + tables.Usage.tokens_out), 0),
            func.coalesce(func.sum(tables.Usage.cost_usd), 0),
        ).where(
            tables.Usage.fleet == fleet,
            tables.Usage.hour >= spending.day_before(now),
            tables.Usage.hour <= now + CLOCKS_AGREE_WITHIN,
        )
    ).one()
    return Spent(int(calls), int(tokens), Decimal(usd))


def _add(tx: Session, fleet: str, hour: datetime, model: str, used: Usage, **counts: int) -> None:
    zeros = dict.fromkeys(("calls", "estimate", "reported", "chars", "chars_as_before"), 0)
    amounts = zeros | used.model_dump() | counts
    new = insert(tables.Usage).values(fleet=fleet, hour=hour, model=model, **amounts)
    added = {name: col(getattr(tables.Usage, name)) + new.excluded[name] for name in amounts}
    tx.execute(new.on_conflict_do_update(index_elements=["fleet", "hour", "model"], set_=added))
