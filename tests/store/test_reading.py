"""What lists show has the columns of the tables, newest first, and never costs the fleet a change."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from fleet_agent.domain.actions import ScheduleNextCheck
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.run import Usage
from fleet_agent.store import reading
from fleet_agent.store.claims import QUARANTINE_FROM
from fleet_agent.store.database import open_database
from fleet_agent.store.installation import found_installation
from tests.store.rig import Fleet


async def test_a_run_shows_why_how_and_what_it_cost(fleet: Fleet) -> None:
    fleet.post(text="how are we doing?")
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    await fleet.reply(run, usage=Usage(tokens_in=1000, tokens_out=50, cost_usd=Decimal("0.0125")))
    await fleet.close(run, summary="We are fine.")

    with fleet.database.transaction() as tx:
        (row,) = reading.runs(tx, fleet.name, last=10)

    assert (row["run_id"], row["trigger"], row["status"], row["reason"]) == (1, "manual", "closed", "how are we doing?")
    assert row["verdict"] == {"action": False, "state_changed": False}
    assert (row["tokens_in"], row["tokens_out"], row["cost_usd"]) == (1000, 50, Decimal("0.0125"))
    assert row["summary"] == "We are fine."


async def test_runs_come_newest_first_and_only_as_many_as_asked(fleet: Fleet) -> None:
    for _ in range(3):
        await fleet.run_through()

    with fleet.database.transaction() as tx:
        assert [row["run_id"] for row in reading.runs(tx, fleet.name, last=2)] == [3, 2]


async def test_seconds_of_a_run_are_real_whatever_the_speed_of_business(database_url: str) -> None:
    opened = open_database(database_url)
    found_installation(opened, speed=60)
    fleet = Fleet(opened)
    run = await fleet.open()
    fleet.clock.advance(timedelta(minutes=3) - timedelta(seconds=1))
    await fleet.close(run)
    await fleet.open()

    with opened.transaction() as tx:
        running, ended = reading.runs(tx, fleet.name, last=2)
    opened.close()

    assert (running["seconds"], ended["seconds"]) == (None, 3)


async def test_the_status_counts_boxes_burn_and_what_is_on_its_way(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101, offer_id=1, step=1)
    await ready.rent(run, offer_id=2, step=2)
    ready.post()

    status = ready.state()

    assert (status["mode"], status["current_run_id"]) == (Mode.LIVE, run.run_id)
    assert (status["boxes"], status["burn_usd_per_hour"]) == (1, Decimal("0.40"))
    assert (status["in_flight"], status["in_flight_usd_per_hour"]) == (1, Decimal("0.40"))
    assert (status["waiting_events"], status["something_urgent_waits"]) == (1, True)


async def test_the_status_counts_what_is_quarantined(fleet: Fleet) -> None:
    fleet.post(text="poison")
    before = fleet.state()["quarantined"]
    for _ in range(QUARANTINE_FROM):
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fleet.journal.fail_run(run, exit_reason="context too long", summary="too long")

    assert (before, fleet.state()["quarantined"]) == (0, 1)
    assert [row["what"] for row in fleet.rows("audit")] == ["quarantine"]


async def test_wakes_are_listed_whatever_became_of_them(fleet: Fleet) -> None:
    run = await fleet.open()
    for minutes in (10, 20, 30):
        await fleet.journal.write(run, ScheduleNextCheck(minutes=minutes, reason=f"in {minutes}"))
    await fleet.close(run)
    fleet.clock.advance(timedelta(minutes=10))
    await fleet.run_through()
    fleet.cancel_wake(fleet.rows("wake")[1]["id"])

    with fleet.database.transaction() as tx:
        rows = reading.wakes(tx, fleet.name, last=10)
    assert [(row["reason"], row["status"]) for row in rows] == [
        ("in 30", "pending"),
        ("in 20", "cancelled"),
        ("in 10", "processed"),
    ]
    assert fleet.state()["pending_wakes"] == 1
