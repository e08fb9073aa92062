"""What boxes cost is counted through any outage, and once an hour the provider's bill is laid beside it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text

from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.spent import Reckoning
from fleet_agent.errors import TryLater
from fleet_agent.housekeeping import HOUSEKEEPING_EVERY, HousePorts, keep_house
from fleet_agent.store import sightings
from fleet_agent.store.books import PostgresBooks
from tests.world import HEARTBEAT, Installation


async def house_kept(fleet: Installation) -> Reckoning:
    ports = HousePorts(clock=fleet.clock, market=fleet.ports.market, books=PostgresBooks(fleet.database))
    return await keep_house(ports)


def rows(fleet: Installation, query: str) -> list[dict[str, object]]:
    with fleet.database.transaction() as tx:
        return [dict(row) for row in tx.execute(text(query)).mappings()]


def counted(fleet: Installation) -> Decimal:
    with fleet.database.transaction() as tx:
        return tx.execute(text("SELECT sum(spent_usd) FROM box")).scalar_one()


def billed_for_rent(fleet: Installation) -> Decimal:
    """What the provider bills for GPUs and disks: traffic is in no price."""
    market = fleet.sim.market
    charges = market.charges(market.opened_at, market.clock.now())
    return sum((charge.usd - charge.traffic_usd for charge in charges), start=Decimal(0))


def told(fleet: Installation) -> list[str]:
    return [str(row["key"]).partition(":")[0] for row in rows(fleet, "SELECT key FROM notice ORDER BY id")]


async def test_the_books_are_an_upper_bound_of_the_rent_and_not_far_from_it(fleet: Installation) -> None:
    """The boxes load for a minute or two, in which the provider bills only their disks."""
    for _ in range(3):
        await fleet.heartbeat()

    assert billed_for_rent(fleet) <= counted(fleet) <= billed_for_rent(fleet) * 2


async def test_an_outage_of_everything_of_ours_loses_no_money(fleet: Installation) -> None:
    """Control: a price for each look counts the boxes of nine hours as those of two heartbeats."""
    await fleet.heartbeat()
    prices = sum(Decimal(str(box["agreed_usd_per_hour"])) for box in fleet.boxes())
    fleet.time.advance(timedelta(hours=9))
    await fleet.heartbeat()

    assert billed_for_rent(fleet) <= counted(fleet) <= billed_for_rent(fleet) * Decimal("1.02")
    assert 2 * prices * Decimal(HEARTBEAT / timedelta(hours=1)) < billed_for_rent(fleet) / 10


async def test_a_fleet_that_is_well_is_told_nothing_of_by_its_bill(fleet: Installation) -> None:
    for _ in range(3):
        await fleet.heartbeat()
    reckoned = []
    for _ in range(30):
        fleet.time.advance(HOUSEKEEPING_EVERY)
        reckoned.append(await house_kept(fleet))

    charged = sum(Decimal(str(row["charged_usd"])) for row in rows(fleet, "SELECT charged_usd FROM box"))
    assert charged == pytest.approx(fleet.sim.market.usd_billed(), abs=Decimal("0.01"))  # a bill has three decimals
    assert reckoned[-1].headline.endswith("all fits")
    assert told(fleet) == []
    assert all(action["charged_usd"] > 0 for action in fleet.actions("rent_box"))


def left_out_of_lists(fleet: Installation) -> None:
    """Complete lists without any of our boxes, for as long as it takes to believe them."""
    for _ in range(2):
        fleet.time.advance(timedelta(seconds=1))
        empty = Inventory(instances=(), seen_at=fleet.time.now())
        with fleet.database.exclusive(fleet.fleet) as tx:
            sightings.record_sighting(tx, fleet.fleet, empty, now=fleet.time.now())
            tx.execute(text("UPDATE box SET missed_since = missed_since - interval '10 minutes'"))


async def hours_after_the_destroys(fleet: Installation) -> None:
    for _ in range(3):
        await fleet.heartbeat()
    left_out_of_lists(fleet)
    assert {row["stage"] for row in rows(fleet, "SELECT stage FROM box")} == {"gone"}
    for _ in range(4):
        fleet.time.advance(HOUSEKEEPING_EVERY)
        await house_kept(fleet)


async def test_a_box_that_was_destroyed_and_lives_on_in_no_list_is_told_by_its_bill(fleet: Installation) -> None:
    fleet.sim.market.faults.arm("destroy_ignored")
    await hours_after_the_destroys(fleet)

    assert len(fleet.sim.market.instances()) == 2, "they live"
    assert told(fleet) == ["charged while gone", "charged while gone"]
    assert fleet.status()["untold_notices"] == 2


async def test_control_a_box_that_was_destroyed_and_died_is_not_told(fleet: Installation) -> None:
    await hours_after_the_destroys(fleet)

    assert fleet.sim.market.instances() == []
    assert told(fleet) == []


async def test_a_box_with_our_label_that_nobody_knows_is_told_by_its_bill(fleet: Installation) -> None:
    """As after the database was restored from before the rent."""
    await fleet.heartbeat()
    with fleet.database.transaction() as tx:
        tx.execute(text("DELETE FROM box"))
    fleet.time.advance(HOUSEKEEPING_EVERY)
    await house_kept(fleet)

    assert told(fleet) == ["charged and unknown", "charged and unknown"]


async def test_charges_that_cannot_be_read_change_nothing(fleet: Installation) -> None:
    await fleet.heartbeat()
    fleet.time.advance(HOUSEKEEPING_EVERY)
    fleet.sim.market.faults.arm("server_error")
    with pytest.raises(TryLater, match="the charges"):
        await house_kept(fleet)

    assert told(fleet) == []
    assert {row["charged_at"] for row in rows(fleet, "SELECT charged_at FROM box")} == {None}
