"""The bell on a real database: whatever fails, what waits is rung for until a run has it, and no oftener."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from fleet_agent.domain.flow_run import FlowRunState
from fleet_agent.domain.triggers import HEARTBEAT, Doorbell, Kind, Trigger
from fleet_agent.store import session, tables, wakes
from fleet_agent.store.bell import PostgresBelfry
from fleet_agent.store.database import Database
from fleet_agent.store.wakes import ask
from tests.postgres import plain
from tests.store.rig import NOON, Fleet
from tests.watch.rig import Tower

HOUR = timedelta(hours=1)


@pytest.fixture
def tower(fleet: Fleet) -> Tower:
    return Tower(fleet)


# --- ringing ---------------------------------------------------------------------------------------------------------


async def test_what_is_posted_is_rung_for_at_once_and_what_is_consumed_no_more(tower: Tower) -> None:
    await tower.look()
    assert tower.prefect.rings == []

    tower.fleet.post()
    await tower.look()
    assert tower.prefect.rings == [("main", Doorbell.URGENT)]

    await tower.fleet.run_through(Trigger.EVENT)
    await tower.looks(seconds=600)
    assert tower.rings() == 1


async def test_what_is_routine_is_not_rung_for_and_a_change_by_its_own_doorbell(tower: Tower) -> None:
    tower.fleet.post(Kind.BOX_PROGRESS)
    await tower.look()
    assert tower.prefect.rings == []

    tower.fleet.post(Kind.WEBHOOK)
    await tower.look()
    assert tower.prefect.rings == [("main", Doorbell.CHANGE)]

    tower.fleet.post(Kind.MESSAGE)  # a person does not wait for the ten seconds of a change
    await tower.look()
    assert tower.prefect.rings[1:] == [("main", Doorbell.URGENT)]


async def test_each_fleet_has_its_own_bell(tower: Tower) -> None:
    east = Fleet(tower.fleet.database, name="east")
    tower.fleet.post()
    await tower.look()
    east.post()
    await tower.look()
    assert [fleet for fleet, _ in tower.prefect.rings] == ["main", "east"]


async def test_a_live_run_is_not_rung_at_and_what_it_leaves_is_rung_for_when_it_ends(tower: Tower) -> None:
    run = await tower.fleet.open()
    tower.fleet.post()
    await tower.looks(seconds=19)
    assert tower.rings() == 0

    await tower.fleet.close(run)  # it may not go on, so the event is left
    await tower.look()
    assert tower.rings() == 1


async def test_what_a_run_had_in_hand_when_it_died_is_rung_for(tower: Tower) -> None:
    tower.fleet.post()
    await tower.look()
    run = await tower.fleet.open(Trigger.EVENT)
    await tower.fleet.journal.collect(run, turn=1)
    await tower.looks(seconds=60)
    assert tower.rings() == 1  # the control: as long as it lives, it is in hand

    tower.fleet.let_real_time_pass(timedelta(seconds=21))
    await tower.look()
    assert tower.rings() == 2


async def test_a_lost_doorbell_is_followed_by_a_flow_run_of_the_bells_own(tower: Tower) -> None:
    event = tower.fleet.post()
    await tower.looks(seconds=600)

    assert tower.rings() == 2
    assert tower.prefect.keys_made() == [f"ring:main:{event}:1"]
    assert tower.prefect.made[0]["trigger"] is Trigger.EVENT
    assert len(tower.prefect.asked_for) > 5  # again and again, and for the same: a worker that is down finds one


async def test_while_a_flow_run_is_on_its_way_nothing_more_is_asked_for(tower: Tower) -> None:
    """A process takes seconds to start; the test above is the control, where none is on its way."""
    tower.fleet.post()
    tower.prefect.is_slow = True
    await tower.looks(seconds=60)
    assert (tower.rings(), tower.prefect.asked_for) == (1, [])

    tower.prefect.is_slow = False  # it came to nothing
    await tower.looks(seconds=20)
    assert tower.rings() == 2
    assert tower.prefect.asked_for


async def test_what_is_urgent_does_not_wait_for_a_heartbeat_that_is_due_in_some_seconds(tower: Tower) -> None:
    """What is no more than a change does: the heartbeat comes no later than its doorbell's own answer."""
    tower.fleet.post()
    await tower.look()
    await tower.fleet.run_through()
    tower.prefect.next_is_due = timedelta(seconds=8)

    tower.fleet.post(Kind.WEBHOOK)
    await tower.look()
    assert tower.rings() == 1

    tower.fleet.post()
    await tower.look()
    assert tower.rings() == 2


async def test_the_flow_run_that_was_cancelled_is_followed_by_another_whose_number_was_kept_first(tower: Tower) -> None:
    event = tower.fleet.post()
    await tower.looks(seconds=10)
    (first,) = tower.prefect.living()

    tower.prefect.becomes(first, FlowRunState.CANCELLED)
    await tower.looks(seconds=60)

    assert tower.prefect.keys_made() == [f"ring:main:{event}:{number}" for number in (1, 2)]
    assert [row["rings"] for row in tower.fleet.rows("inbox")] == [2]
    # The control: the key alone would have found the dead one for ever.
    dead = await tower.prefect.start_run(fleet="main", trigger=Trigger.EVENT, key=f"ring:main:{event}:1")
    assert dead.is_over


async def test_a_number_is_committed_before_it_is_used(tower: Tower) -> None:
    tower.fleet.post()
    await tower.looks(seconds=5)
    tower.prefect.loses_starts = True  # the call may have been heard
    await tower.looks(seconds=5)
    assert [row["rings"] for row in tower.fleet.rows("inbox")] == [1]


async def test_flow_runs_that_die_at_birth_are_not_made_without_end(tower: Tower) -> None:
    tower.fleet.post()
    tower.prefect.born_as = FlowRunState.CRASHED
    await tower.looks(seconds=7)
    assert len(tower.prefect.made) == 5


async def test_a_bell_that_was_restarted_rings_anew_and_uses_no_dead_key(tower: Tower) -> None:
    event = tower.fleet.post()
    await tower.looks(seconds=10)
    tower.prefect.becomes(tower.prefect.living()[0], FlowRunState.CRASHED)

    tower.bell = tower.another_bell()
    await tower.looks(seconds=10)

    assert tower.rings() == 4
    assert tower.prefect.keys_made() == [f"ring:main:{event}:1", f"ring:main:{event}:2"]
    assert len(tower.prefect.living()) == 1


async def test_a_prefect_that_was_down_is_rung_at_when_it_is_back(tower: Tower) -> None:
    tower.prefect.is_down = True
    tower.fleet.post()
    await tower.looks(seconds=600)
    assert tower.told == ["the bell of fleet main: Prefect does not answer"]  # once, not each time

    tower.prefect.is_down = False
    await tower.look()
    assert tower.rings() == 1  # at once, however long it was down
    assert tower.told[1:] == ["the bell of fleet main: well again"]


async def test_one_fleet_that_cannot_be_rung_for_does_not_silence_the_next(tower: Tower) -> None:
    east = Fleet(tower.fleet.database, name="east")
    east.post()
    tower.fleet.post()
    tower.prefect.is_down = True
    await tower.look()
    assert [line.partition(":")[0] for line in tower.told] == ["the bell of fleet east", "the bell of fleet main"]


async def fail(fleet: Fleet, exit_reason: str, trigger: Trigger = Trigger.EVENT) -> None:
    run = await fleet.open(trigger)
    await fleet.journal.collect(run, turn=1)
    fleet.clock.advance(timedelta(seconds=1))
    await fleet.journal.fail_run(run, exit_reason=exit_reason, summary="")


async def rings_of_an_hour(tower: Tower, exit_reason: str, *, heartbeats: bool) -> int:
    """Each run, of the bell or of the schedule, ends with that after a second."""
    clock = tower.fleet.clock
    end, next_heartbeat, before = clock.elapsed() + HOUR, clock.elapsed() + HEARTBEAT, tower.rings()
    while clock.elapsed() < end:
        rings = tower.rings()
        pause = await tower.bell.look()
        if tower.rings() > rings:
            await fail(tower.fleet, exit_reason)
        if heartbeats and clock.elapsed() >= next_heartbeat:
            await fail(tower.fleet, exit_reason, Trigger.HEARTBEAT)
            next_heartbeat += HEARTBEAT
        clock.advance(max(pause, timedelta(seconds=15)))
    return tower.rings() - before


HOW_OFTEN = {"model unusable": (50, 70), "model unreachable": (12, 20), "budget spent": (1, 1), "key refused": (1, 1)}
"""Nothing is wrong with the event. The first is the control: such a run may go well the next time."""


@pytest.mark.parametrize("exit_reason", HOW_OFTEN)
async def test_what_a_failing_run_gives_back_is_rung_for_as_often_as_another_is_of_use(
    tower: Tower, exit_reason: str
) -> None:
    tower.fleet.post()
    least, most = HOW_OFTEN[exit_reason]
    assert least <= await rings_of_an_hour(tower, exit_reason, heartbeats=True) <= most
    assert [row["quarantined_at"] for row in tower.fleet.rows("inbox")] == [None]


async def test_where_no_heartbeat_comes_the_bell_looks_in_its_place(tower: Tower) -> None:
    tower.fleet.post()
    assert 9 <= await rings_of_an_hour(tower, "budget spent", heartbeats=False) <= 13


async def test_a_bell_that_was_restarted_knows_that_another_run_is_of_no_use(tower: Tower) -> None:
    tower.fleet.post()
    await fail(tower.fleet, "budget spent")
    tower.bell = tower.another_bell()
    await tower.look(after=200)
    assert tower.rings() == 0


@pytest.mark.parametrize("exit_reason", ["budget spent", "model unreachable"])
@pytest.mark.parametrize(("kind", "rings"), [(Kind.CONFIG_CHANGE, 1), (Kind.MESSAGE, 1), (Kind.WEBHOOK, 0)])
async def test_what_a_person_did_since_the_run_that_failed_is_rung_for_at_once(
    tower: Tower, exit_reason: str, kind: Kind, rings: int
) -> None:
    """It may be what mends it. The control: what happens by itself waits with the rest."""
    tower.fleet.post()
    for _ in range(7):  # by now the bell of an outage pauses for minutes
        await tower.look(after=300)
        await fail(tower.fleet, exit_reason)
    await tower.look(after=100)
    before = tower.rings()
    tower.fleet.post(kind)
    await tower.look()
    assert tower.rings() - before == rings


async def test_an_end_in_a_time_to_come_keeps_nothing_silent(tower: Tower) -> None:
    tower.fleet.post()
    tower.fleet.clock.jump(HOUR)
    await fail(tower.fleet, "budget spent")
    await tower.look()
    assert tower.rings() == 0
    tower.fleet.clock.jump(-HOUR)
    await tower.look()
    assert tower.rings() == 1


# --- overdue wakes ---------------------------------------------------------------------------------------------------


def set_wake(fleet: Fleet, *, minutes: float = 20) -> int:
    with fleet.database.exclusive(fleet.name) as tx:
        ask(tx, fleet.name, timedelta(minutes=minutes), "look again", asked_by="test", now=fleet.clock.now())
    return fleet.rows("wake")[-1]["id"]


async def test_a_wake_is_rung_for_when_it_is_overdue_by_30_seconds(tower: Tower) -> None:
    set_wake(tower.fleet)
    await tower.look(after=20 * 60 + 29)
    assert tower.rings() == 0
    await tower.look(after=1)
    assert tower.prefect.rings == [("main", Doorbell.URGENT)]


async def test_an_overdue_wake_whose_doorbell_is_lost_has_keys_of_its_own(tower: Tower) -> None:
    wake = set_wake(tower.fleet)
    await tower.look(after=20 * 60 + 30)
    await tower.looks(seconds=20)
    assert f"ring:main:w{wake}:1" in tower.prefect.keys_made()
    assert [row["rings"] for row in tower.fleet.rows("wake")] == [1]


async def test_in_fast_time_overdue_is_still_30_real_seconds(tower: Tower) -> None:
    """At speed 15 a wake is overdue by 30 seconds of business time before a process can start."""
    with tower.fleet.database.transaction() as tx:
        tx.execute(text("UPDATE installation SET clock_speed = 15"))
    set_wake(tower.fleet)
    await tower.look(after=20 * 60 + 15 * 30 - 1)
    assert tower.rings() == 0
    await tower.look(after=1)
    assert tower.rings() == 1


async def test_twenty_stale_wakes_are_rung_for_once_and_one_run_takes_them_all(tower: Tower) -> None:
    for number in range(20):
        set_wake(tower.fleet, minutes=20 + 2 * number)
    await tower.look(after=2 * 3600)
    assert tower.rings() == 1
    await tower.fleet.run_through(Trigger.EVENT)
    await tower.looks(seconds=300)
    assert tower.rings() == 1
    assert {row["status"] for row in tower.fleet.rows("wake")} == {"processed"}


async def test_a_clock_that_jumps_an_hour_and_back_loses_doubles_and_delays_nothing(tower: Tower) -> None:
    wake = set_wake(tower.fleet, minutes=90)
    await tower.look()
    tower.fleet.post()
    await tower.look()

    tower.fleet.clock.jump(HOUR)
    await tower.look(after=1)
    tower.fleet.clock.jump(-2 * HOUR)
    await tower.look(after=0.5)
    tower.fleet.clock.jump(HOUR)
    await tower.look(after=0.4)
    assert tower.rings() == 1  # the trailing timer is real time, and it is not over
    await tower.look(after=0.1)
    assert tower.rings() == 2

    await tower.fleet.run_through(Trigger.EVENT)
    assert tower.prefect.keys_made() == [f"wake:main:{wake}:0"]
    assert tower.prefect.made[0]["at"] == NOON + timedelta(minutes=90)
    assert [row["status"] for row in tower.fleet.rows("wake")] == ["pending"]


async def test_a_wake_of_an_hour_that_was_taken_back_is_rung_for_at_once(tower: Tower) -> None:
    """Prefect has a flow run for it, an hour too late. Control: one that was asked for before is not rung for."""
    set_wake(tower.fleet, minutes=90)
    tower.fleet.clock.jump(HOUR)
    await tower.look()
    tower.fleet.clock.jump(-HOUR)
    await tower.look(after=5)
    assert tower.rings() == 0

    tower.fleet.clock.jump(HOUR)
    set_wake(tower.fleet, minutes=25)
    await tower.look(after=5)
    tower.fleet.clock.jump(-HOUR)
    await tower.look(after=5)
    assert tower.rings() == 1


# --- news ------------------------------------------------------------------------------------------------------------


async def test_a_post_wakes_the_bell_and_without_one_it_waits_its_time(fleet: Fleet) -> None:
    belfry = PostgresBelfry(fleet.database, fleet.clock)
    await belfry.until_news(within=timedelta(seconds=50))  # it has begun to listen, so it returns at once
    listening = asyncio.create_task(belfry.until_news(within=timedelta(seconds=50)))
    await asyncio.to_thread(fleet.post)
    await asyncio.wait_for(listening, 10)

    began = time.monotonic()
    await belfry.until_news(within=timedelta(seconds=0.2))
    assert time.monotonic() - began >= 0.19
    await belfry.aclose()


async def test_what_is_posted_between_two_calls_is_not_missed(fleet: Fleet) -> None:
    belfry = PostgresBelfry(fleet.database, fleet.clock)
    await belfry.until_news(within=timedelta(seconds=50))
    fleet.post()
    await asyncio.wait_for(belfry.until_news(within=timedelta(seconds=50)), 10)
    await belfry.aclose()


@pytest.mark.parametrize("change", ["set", "cancelled"])
async def test_a_wake_that_is_set_or_cancelled_is_news(fleet: Fleet, change: str) -> None:
    wake = set_wake(fleet) if change == "cancelled" else 0
    belfry = PostgresBelfry(fleet.database, fleet.clock)
    await belfry.until_news(within=timedelta(seconds=50))
    if change == "set":
        set_wake(fleet)
    else:
        with fleet.database.exclusive(fleet.name) as tx:
            wakes.cancel(tx, fleet.name, wake, who="test", now=fleet.clock.now())
    await asyncio.wait_for(belfry.until_news(within=timedelta(seconds=50)), 10)
    await belfry.aclose()


async def test_a_listener_that_was_cut_off_listens_again(fleet: Fleet, database_url: str) -> None:
    belfry = PostgresBelfry(fleet.database, fleet.clock)
    await belfry.until_news(within=timedelta(seconds=50))
    with psycopg.connect(plain(database_url), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    await belfry.until_news(within=timedelta(seconds=0.01))
    await belfry.until_news(within=timedelta(seconds=50))  # at once: what came meanwhile, nobody told
    listening = asyncio.create_task(belfry.until_news(within=timedelta(seconds=50)))
    await asyncio.to_thread(fleet.post)
    await asyncio.wait_for(listening, 10)
    await belfry.aclose()


async def test_a_post_that_nobody_announced_is_found_at_the_next_look(tower: Tower) -> None:
    with tower.fleet.database.transaction() as tx:
        session.begin(tx, "main")
        tx.add(
            tables.Inbox(
                fleet="main", source="t", kind=Kind.MESSAGE.value, priority=0, occurred_at=NOON, received_at=NOON
            )
        )
    await tower.look()
    assert tower.rings() == 1


async def test_a_dead_database_does_not_end_the_bell(tower: Tower, database_url: str, database: Database) -> None:
    tower.fleet.post()
    name = database_url.rpartition("/")[2].partition("?")[0]
    admin_url = plain(database_url).replace(f"/{name}", "/postgres", 1)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        await tower.look()
        await tower.belfry.until_news(within=timedelta(seconds=0.01))
        assert tower.rings() == 0
        assert any(line.startswith("the bell: ") for line in tower.told)
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name)))
    await tower.look()
    assert tower.rings() == 1
    assert "the bell: well again" in tower.told
    await tower.belfry.aclose()
