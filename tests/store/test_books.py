"""The provider's charges are laid beside the books: kept for each box, and told where they do not fit."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.run import Run
from fleet_agent.domain.spent import Charge, Reckoning
from fleet_agent.store.books import PostgresBooks
from tests.store.rig import NOON, Fleet

HOUR = timedelta(hours=1)
DAY = timedelta(hours=24)
MIDNIGHT = NOON - 12 * HOUR


@pytest.fixture
async def run(ready: Fleet) -> Run:
    return await ready.open()


def charge(vast_id: int, usd: str, *, label: str = "") -> Charge:
    return Charge(vast_id=vast_id, label=label, start=None, end=None, usd=Decimal(usd), rent_usd=Decimal(usd))


async def compared(fleet: Fleet, *charges: Charge) -> Reckoning:
    """What the housekeeping does with these charges now."""
    books, now = PostgresBooks(fleet.database), fleet.clock.now()
    return await books.compare(charges, since=await books.charges_from(now), read_at=now)


def notices(fleet: Fleet) -> list[str]:
    return [row["key"].partition(":")[0] for row in fleet.rows("notice")]


async def test_what_was_charged_is_kept_beside_what_was_counted(ready: Fleet, run: Run) -> None:
    """Several charges of one box are one sum, and reading them again counts none twice."""
    key = await ready.rented(run)
    ready.clock.advance(HOUR)
    await ready.sees(run, ready.instance(key))
    for _ in range(2):
        reckoned = await compared(ready, charge(101, "0.30"), charge(101, "0.09"), charge(7, "5"))

    box = ready.box(key)
    assert (box["charged_usd"], box["charged_at"]) == (Decimal("0.39"), ready.clock.now())
    assert (reckoned.boxes, reckoned.charged_usd, reckoned.spent_usd) == (1, Decimal("0.39"), box["spent_usd"])
    assert notices(ready) == []


async def test_a_box_without_a_charge_was_charged_nothing_so_far(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    never_seen = await ready.rent(run, offer_id=2, step=2)
    await compared(ready)

    assert [ready.box(each)["charged_usd"] for each in (key, never_seen)] == [0, None]


async def test_charges_are_read_from_the_day_in_which_the_oldest_live_box_was_rented(ready: Fleet, run: Run) -> None:
    """Its bill is whole only then. A box that is gone for long holds nobody up."""
    books = PostgresBooks(ready.database)
    key = await ready.rented(run)
    ready.clock.advance(10 * DAY)
    assert await books.charges_from(ready.clock.now()) == MIDNIGHT
    await ready.sees(run, ready.instance(key))
    await ready.loses(run)
    ready.clock.advance(4 * DAY)

    assert await books.charges_from(ready.clock.now()) == MIDNIGHT + 11 * DAY
    await compared(ready, charge(101, "999"))
    assert (ready.box(key)["charged_usd"], notices(ready)) == (None, [])


async def test_a_box_that_is_gone_and_goes_on_being_charged_is_told_once(ready: Fleet, run: Run) -> None:
    """Control: the same box with a bill that stands still."""
    zombie, dead = await ready.rented(run), await ready.rented(run, vast_id=102, offer_id=2, step=2)
    ready.clock.advance(HOUR)
    await ready.sees(run, ready.instance(zombie), ready.instance(dead, 102))
    await ready.loses(run)
    told = []
    for usd in ("0.41", "0.82", "1.23", "1.64"):
        ready.clock.advance(HOUR)
        await compared(ready, charge(101, usd), charge(102, "0.41"))
        told.append(len(notices(ready)))

    assert told == [0, 1, 1, 1]
    (notice,) = ready.rows("notice")
    assert notice["key"] == f"charged while gone: {zombie}"
    assert "box 101" in notice["text"]


async def test_a_bill_of_more_digits_than_are_kept_does_not_seem_to_grow(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    ready.clock.advance(HOUR)
    await ready.sees(run, ready.instance(key))
    await ready.loses(run)
    for _ in range(4):
        ready.clock.advance(HOUR)
        await compared(ready, charge(101, "0.4100001"), charge(101, "0.0000002"))

    assert notices(ready) == []


async def test_a_rent_that_came_to_nothing_is_known_by_its_label_when_it_is_charged(ready: Fleet, run: Run) -> None:
    key = await ready.rent(run)
    await ready.journal.record_outcome(key, ActionStatus.FAILED, "the provider said no")
    ready.clock.advance(2 * HOUR)
    await compared(ready, charge(555, "0.80", label=ready.label(key)))

    assert notices(ready) == ["charged while gone"]
    assert ready.box(key)["charged_usd"] == Decimal("0.80")


async def test_a_rent_whose_answer_was_lost_is_no_stranger(ready: Fleet, run: Run) -> None:
    key = await ready.rent(run)
    await compared(ready, charge(555, "0.01", label=ready.label(key)))

    assert notices(ready) == []


async def test_a_charge_with_our_label_and_no_box_is_told_to_its_fleet(ready: Fleet, run: Run) -> None:
    """Controls: without a label, of another installation, and a second box under the label of one that is known."""
    key = await ready.rented(run)
    other = Fleet(ready.database, "other", ready.clock)
    await other.open()
    label = ready.label("r9-s1-c1-zzzz")
    charges = [
        charge(1, "1.00", label=label),
        charge(2, "1.00"),
        charge(3, "1.00", label="fa/zzzzzz/main/r9-s1-c1-zzzz"),
        charge(101, "0.01", label=ready.label(key)),
        charge(4, "1.00", label=ready.label(key)),
        charge(5, "1.00", label=label.replace("/main/", "/other/")),
    ]
    for _ in range(2):
        await compared(ready, *charges)

    assert sorted(row["key"] for row in ready.rows("notice")) == ["charged and unknown: 1", "charged and unknown: 4"]
    assert [row["key"] for row in other.rows("notice")] == ["charged and unknown: 5"]


async def test_a_bill_that_the_price_does_not_explain_is_told_once(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    ready.clock.advance(HOUR)
    await ready.sees(run, ready.instance(key))
    for usd in ("0.80", "1.40", "2.00"):
        await compared(ready, charge(101, usd))

    (notice,) = ready.rows("notice")
    assert notice["key"] == f"charged otherwise: {key}"
    assert "charged $1.40" in notice["text"]
