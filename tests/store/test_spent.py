"""Each good look enters in the books what every box has cost since the look before it."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from fleet_agent.domain.actions import RentBox
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.run import Run
from fleet_agent.domain.spent import split
from fleet_agent.store import ledger, reading, spent
from fleet_agent.store.tables import Sample
from tests.store.rig import NOON, Fleet, offer

HOUR = timedelta(hours=1)
PRICE = Decimal("0.41")  # of an instance; 0.40 was agreed


def hours(fleet: Fleet) -> dict[datetime, Decimal]:
    with fleet.database.transaction() as tx:
        rows = tx.execute(text("SELECT hour, sum(usd) FROM box_hour WHERE fleet = :f GROUP BY hour"), {"f": fleet.name})
        return dict(iter(rows))


async def look_after(fleet: Fleet, run: Run, passed: timedelta, *instances: Any) -> None:
    """A look when so much time has passed since the last one."""
    fleet.clock.advance(passed - timedelta(seconds=1))  # a look is taken a second later
    await fleet.sees(run, *instances)


@pytest.fixture
async def run(ready: Fleet) -> Run:
    return await ready.open()


async def test_what_passed_since_the_rent_is_charged_by_the_hour_it_fell_in(ready: Fleet, run: Run) -> None:
    ready.clock.advance(timedelta(minutes=30) - (ready.clock.now() - NOON))
    key = await ready.rented(run)
    rented_at = ready.box(key)["rented_at"]
    await look_after(ready, run, timedelta(minutes=90), ready.instance(key))

    looked_at = ready.clock.now()
    assert ready.box(key)["spent_usd"] == sum(hours(ready).values())
    assert sorted(hours(ready)) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert hours(ready)[NOON + HOUR] == PRICE
    assert ready.box(key)["accrued_until"] == looked_at
    exact = PRICE * Decimal((looked_at - rented_at).total_seconds()) / 3600
    assert abs(ready.box(key)["spent_usd"] - exact) < Decimal("0.000002")


async def test_looks_in_between_change_no_digit_of_the_sum(ready: Fleet, run: Run) -> None:
    """Of two boxes, one is seen every minute and one at the end of the hour alone."""
    seen, unseen = await ready.rented(run), await ready.rented(run, vast_id=102, offer_id=2, step=2)
    as_agreed = {"usd_per_hour": Decimal("0.40")}
    for _ in range(60):
        await look_after(ready, run, timedelta(minutes=1), ready.instance(seen, **as_agreed))
    await ready.sees(run, ready.instance(seen, **as_agreed), ready.instance(unseen, 102, **as_agreed))

    for box in (ready.box(seen), ready.box(unseen)):
        whole = split(Decimal("0.40"), box["rented_at"], ready.clock.now())
        assert box["spent_usd"] == sum(whole.values()) > Decimal("0.40")


async def test_a_look_that_is_recorded_twice_is_charged_once(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    inventory = ready.look(ready.instance(key)).value
    await ready.journal.record_sighting(run, inventory)
    once = (ready.box(key)["spent_usd"], hours(ready))
    ready.clock.advance(timedelta(seconds=20))
    await ready.journal.record_sighting(run, inventory)

    assert (ready.box(key)["spent_usd"], hours(ready)) == once


async def test_a_watch_that_was_down_for_hours_loses_no_money(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    await look_after(ready, run, timedelta(minutes=5), ready.instance(key))
    before = ready.box(key)["spent_usd"]
    await look_after(ready, run, 7 * HOUR, ready.instance(key))

    assert ready.box(key)["spent_usd"] - before == 7 * PRICE


async def test_a_box_that_goes_missing_costs_until_it_was_first_missed(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    await look_after(ready, run, HOUR, ready.instance(key))
    await look_after(ready, run, HOUR)
    missed_once = ready.box(key)["spent_usd"]
    await look_after(ready, run, HOUR)
    await ready.loses(run)

    assert ready.box(key)["stage"] == "gone"
    assert ready.box(key)["spent_usd"] == missed_once > PRICE * 2 - Decimal("0.001")


async def test_a_box_that_was_missing_and_is_found_was_there_all_the_time(ready: Fleet, run: Run) -> None:
    """A list left it out for two hours, and its bill did not."""
    key = await ready.rented(run)
    await look_after(ready, run, HOUR, ready.instance(key))
    for _ in range(2):
        await look_after(ready, run, HOUR)
    before = ready.box(key)["accrued_until"]
    await look_after(ready, run, HOUR, ready.instance(key))

    assert ready.box(key)["accrued_until"] - before == 2 * HOUR
    assert sum(hours(ready).values()) == ready.box(key)["spent_usd"] > PRICE * 4 - Decimal("0.001")


async def test_a_box_that_the_provider_does_not_know_any_more_is_charged_until_it_said_so(
    ready: Fleet, run: Run
) -> None:
    key = await ready.rented(run)
    await look_after(ready, run, HOUR, ready.instance(key))
    before = ready.box(key)["spent_usd"]
    ready.clock.advance(HOUR)
    with ready.database.exclusive("main") as tx:
        ledger.unknown_to_provider(tx, "main", 101, now=ready.clock.now())
    for _ in range(2):
        await look_after(ready, run, HOUR)

    assert ready.box(key)["spent_usd"] - before == PRICE


async def test_a_rent_whose_answer_was_lost_is_charged_from_its_beginning_once_it_is_found(
    ready: Fleet, run: Run
) -> None:
    key = await ready.rent(run)
    await ready.journal.record_outcome(key, ActionStatus.UNKNOWN, "no answer")
    await ready.sees(run)
    in_flight = ready.box(key)["spent_usd"]
    await look_after(ready, run, HOUR, ready.instance(key))

    assert in_flight == 0
    assert ready.box(key)["spent_usd"] > PRICE


async def test_a_box_that_was_adopted_is_charged_from_its_beginning(ready: Fleet, run: Run) -> None:
    began = ready.clock.now() - 3 * HOUR
    await ready.sees(run, ready.instance("r9-s1-c1-zzzz", 900, started_at=began))

    assert ready.box("r9-s1-c1-zzzz")["spent_usd"] > 3 * PRICE


async def test_a_price_that_cannot_be_and_a_beginning_that_cannot_be_do_not_end_the_look(
    ready: Fleet, run: Run
) -> None:
    """A list may say that a box runs since 1970 at 9,999 dollars an hour."""
    liar = {"started_at": datetime(1970, 1, 1, tzinfo=NOON.tzinfo), "usd_per_hour": Decimal("9999.999999")}
    await ready.sees(run, ready.instance("r9-s1-c1-zzzz", 900, **liar))

    assert ready.box("r9-s1-c1-zzzz")["spent_usd"] == spent.MOST_USD
    assert len(hours(ready)) <= 31 * 24 + 1


async def test_a_clock_that_is_set_back_charges_no_hour_twice(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    await look_after(ready, run, 2 * HOUR, ready.instance(key))
    before = (ready.box(key)["spent_usd"], hours(ready))
    ready.clock.jump(-HOUR)
    await look_after(ready, run, timedelta(minutes=30), ready.instance(key))
    assert (ready.box(key)["spent_usd"], hours(ready)) == before

    await look_after(ready, run, timedelta(minutes=90), ready.instance(key))
    assert ready.box(key)["spent_usd"] - before[0] == PRICE


async def test_a_fleet_is_charged_for_its_own_boxes(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    other = Fleet(ready.database, "other", ready.clock)
    stranger = await other.open()
    await look_after(ready, run, HOUR, ready.instance(key))
    await other.sees(stranger, ready.instance(key))

    assert hours(other) == {}


# --- questions --------------------------------------------------------------------------------------------------------


async def test_what_a_day_an_hour_and_a_run_cost_is_asked_of_the_books(ready: Fleet, run: Run) -> None:
    mine = await ready.rented(run)
    await ready.close(run)
    later = await ready.open()
    theirs = await ready.rented(later, vast_id=102, offer_id=2)
    both = (ready.instance(mine), ready.instance(theirs, 102))
    ready.clock.advance(timedelta(minutes=59) - (ready.clock.now() - NOON))
    await ready.sees(later, *both)
    await look_after(ready, later, 30 * HOUR, *both)

    now = ready.clock.now()
    with ready.database.transaction() as tx:
        assert spent.of_the_hour(tx, "main", now=now) == hours(ready)[NOON + 30 * HOUR]
        assert spent.of_the_day(tx, "main", now=now) == 2 * 24 * PRICE + hours(ready)[NOON + 30 * HOUR]
        newest, older = reading.runs(tx, "main", last=2)
        assert older["box_usd"] == ready.box(mine)["spent_usd"] > 30 * PRICE
        assert newest["box_usd"] == ready.box(theirs)["spent_usd"]
        assert spent.of_runs(tx, "main", [99]) == {}


async def test_hours_to_come_are_from_before_the_clock_was_set_back(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    await look_after(ready, run, 5 * HOUR, ready.instance(key))
    ready.clock.jump(-3 * HOUR)

    with ready.database.transaction() as tx:
        assert spent.of_the_day(tx, "main", now=ready.clock.now()) < 3 * PRICE


async def test_what_a_day_cost_is_what_the_cap_of_the_day_is_laid_against(ready: Fleet, run: Run) -> None:
    """An outage of nine hours is in it. Control: the same rent before them."""
    ready.set_policy(limits__max_usd_per_day="4")
    key = await ready.rented(run)
    await ready.sees(run, ready.instance(key))
    wanted = RentBox(offer_id=2, reason="work waits")
    (before,) = await ready.reply(run, wanted, step=2, offers=[offer(id=2)])
    await look_after(ready, run, 9 * HOUR, ready.instance(key))
    (after,) = await ready.reply(run, wanted, step=3, offers=[offer(id=2)])

    assert (before.ruling.code, after.ruling.code) == ("allowed", "max_usd_per_day")


async def test_the_ledger_has_beside_each_rent_what_its_box_cost(ready: Fleet, run: Run) -> None:
    key = await ready.rented(run)
    await ready.destroy(run)
    await look_after(ready, run, HOUR, ready.instance(key))
    with ready.database.transaction() as tx:
        ending, making = reading.actions(tx, "main", last=2)

    assert (making["tool"], making["spent_usd"], making["charged_usd"]) == (
        "rent_box",
        ready.box(key)["spent_usd"],
        None,
    )
    assert making["spent_usd"] > 0
    assert (ending["tool"], ending["spent_usd"], ending["charged_usd"]) == ("destroy_box", None, None)


def sampled(fleet: Fleet, credit: str | None, ago: timedelta = timedelta(0)) -> None:
    with fleet.database.transaction() as tx:
        at = fleet.clock.now() - ago
        tx.add(Sample(fleet=fleet.name, at=at, credit_usd=None if credit is None else Decimal(credit)))


async def test_the_status_shows_what_is_spent_what_may_be_and_how_long_the_credit_lasts(ready: Fleet, run: Run) -> None:
    ready.set_policy(limits__max_usd_per_day="7.5")
    key = await ready.rented(run)
    await ready.rent(run, offer_id=2, step=2)
    await look_after(ready, run, HOUR, ready.instance(key))
    sampled(ready, "1", ago=HOUR)
    sampled(ready, "8.20")

    status = ready.state()

    assert (status["burn_usd_per_hour"], status["in_flight_usd_per_hour"]) == (PRICE, Decimal("0.40"))
    assert status["box_usd_of_day"] == sum(hours(ready).values()) > PRICE
    assert status["box_usd_of_hour"] < status["box_usd_of_day"]
    assert status["max_usd_per_day"] == Decimal("7.5")
    assert (status["credit_usd"], status["credit_seen_at"]) == (Decimal("8.20"), ready.clock.now())
    assert status["runway"] == 20 * HOUR


async def test_a_credit_that_nobody_could_read_is_unknown_and_not_the_one_before(ready: Fleet, run: Run) -> None:
    none_yet = ready.state()
    sampled(ready, "8.20", ago=HOUR)
    sampled(ready, None)
    unread = ready.state()

    assert [(status["credit_usd"], status["runway"]) for status in (none_yet, unread)] == [(None, None), (None, None)]
