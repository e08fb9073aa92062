"""The watch: dead runs are crashed in Prefect, people are told, and nothing that is dead stops the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from fleet_agent.errors import TryLater
from fleet_agent.store import notices, session
from fleet_agent.store.bell import PostgresBelfry
from fleet_agent.store.watch import PostgresLogbook
from fleet_agent.watch import Watch, WatchPorts
from tests.store.rig import Fleet
from tests.watch.rig import BareMarket, ScriptedPrefect

SILENT = timedelta(seconds=21)
HOUR = timedelta(hours=1)


class Phone:
    """`ports.Notifier`; nobody answers until a test says so."""

    def __init__(self) -> None:
        self.has_an_address = True
        self.is_dead = False
        self.heard: list[str] = []

    async def notify(self, text: str) -> str:
        if self.is_dead:
            raise TryLater("nobody was told")
        self.heard.append(text)
        return "by phone"


class Guard:
    """A watch and what it speaks with."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.prefect = ScriptedPrefect(fleet.clock)
        self.market = BareMarket(fleet.clock)
        self.phone = Phone()
        self.log: list[str] = []
        self.paused: list[float] = []
        self.belfry = PostgresBelfry(fleet.database, fleet.clock)
        self.watch = self.another_watch()

    def another_watch(self) -> Watch:
        return Watch(
            WatchPorts(
                clock=self.fleet.clock,
                market=self.market,
                demand=None,
                look_every=timedelta(seconds=60),
                belfry=self.belfry,
                logbook=PostgresLogbook(self.fleet.database, self.fleet.clock),
                orchestrator=self.prefect,
                notifier=self.phone,
                sleep=self._sleep,
                tell=self.log.append,
            )
        )

    async def _sleep(self, seconds: float) -> None:
        """So that hours pass in a test; the short real pause lets the other tasks go on."""
        self.paused.append(seconds)
        await asyncio.sleep(0.01)

    def notice(self, key: str) -> None:
        with self.fleet.database.exclusive("main") as tx:
            session.begin(tx, "main")
            notices.give(tx, "main", key=key, text=f"look at {key}", now=self.fleet.clock.now())


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (a task of its own has no event for us)
            await asyncio.sleep(0.01)


@pytest.fixture
async def guard(fleet: Fleet) -> AsyncGenerator[Guard]:
    guard = Guard(fleet)
    yield guard
    await guard.belfry.aclose()


async def test_a_run_that_fell_silent_is_crashed_once(guard: Guard) -> None:
    run = await guard.fleet.open(flow_run_id="f")
    await guard.watch.once()
    assert guard.prefect.crashed == []  # the control: it lives

    guard.fleet.let_real_time_pass(SILENT)
    await guard.watch.once()
    await guard.watch.once()
    assert guard.prefect.crashed == ["f"]
    assert sum(f"run #{run.run_id} of fleet main gave no sign of life" in line for line in guard.log) == 1


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forth", "back"])
async def test_a_run_that_lives_is_not_crashed_when_the_clock_is_set(guard: Guard, step: timedelta) -> None:
    """Its last sign of life is an hour old, or comes from a time to come; the next one is there before the next look.

    Control: one that gives none is dead at the second look, though by the clock it may be the youngest of all.
    """
    run = await guard.fleet.open(flow_run_id="lives")
    guard.fleet.let_real_time_pass(step)
    await guard.watch.crash_dead_runs()
    await guard.fleet.journal.stay_alive(run)
    await guard.watch.crash_dead_runs()
    await guard.watch.crash_dead_runs()
    assert guard.prefect.crashed == []

    guard.fleet.let_real_time_pass(step)
    await guard.watch.crash_dead_runs()
    await guard.watch.crash_dead_runs()
    assert guard.prefect.crashed == ["lives"]


async def test_a_flow_run_that_is_retried_and_dies_again_is_crashed_again(guard: Guard) -> None:
    await guard.fleet.open(flow_run_id="f")
    guard.fleet.let_real_time_pass(SILENT)
    await guard.watch.once()
    await guard.fleet.open(flow_run_id="f", attempt=2)
    await guard.watch.once()
    assert guard.prefect.crashed == ["f"]  # the control: it lives again

    guard.fleet.let_real_time_pass(SILENT)
    await guard.watch.once()
    assert guard.prefect.crashed == ["f", "f"]


@pytest.mark.parametrize("end", ["close", "fail", "interrupted"])
async def test_a_run_that_has_ended_is_not_dead(guard: Guard, end: str) -> None:
    run = await guard.fleet.open()
    match end:
        case "close":
            await guard.fleet.close(run)
        case "fail":
            await guard.fleet.journal.fail_run(run, exit_reason="try later", summary="")
        case _:
            await guard.fleet.run_through()
    guard.fleet.let_real_time_pass(SILENT)
    await guard.watch.once()
    assert guard.prefect.crashed == []


async def test_a_prefect_that_is_down_is_told_of_the_dead_when_it_is_back_and_people_are_told_meanwhile(
    guard: Guard,
) -> None:
    await guard.fleet.open(flow_run_id="f")
    guard.fleet.let_real_time_pass(SILENT)
    guard.prefect.is_down = True
    guard.notice("box")
    await guard.watch.once()
    assert guard.phone.heard == ["fleet main: look at box"]
    guard.prefect.is_down = False
    await guard.watch.once()
    assert guard.prefect.crashed == ["f"]


async def test_a_notice_is_told_once_and_how_is_kept(guard: Guard) -> None:
    guard.notice("box")
    guard.notice("host")
    await guard.watch.once()
    await guard.another_watch().once()
    assert guard.phone.heard == ["fleet main: look at box", "fleet main: look at host"]
    assert [row["how"] for row in guard.fleet.rows("notice")] == ["by phone", "by phone"]
    assert all(row["told_at"] for row in guard.fleet.rows("notice"))


async def test_where_there_is_no_address_a_notice_stays_untold(guard: Guard) -> None:
    guard.phone.has_an_address = False
    guard.notice("box")
    await guard.watch.once()
    assert [row["told_at"] for row in guard.fleet.rows("notice")] == [None]

    guard.phone.has_an_address = True
    await guard.watch.once()
    assert guard.phone.heard == ["fleet main: look at box"]


async def test_a_notice_that_nobody_heard_waits_and_is_tried_less_and_less_often(guard: Guard) -> None:
    guard.phone.is_dead = True
    guard.notice("box")
    telling = asyncio.create_task(guard.watch._keep_telling())
    await eventually(lambda: len(guard.paused) >= 9)
    assert guard.paused[:9] == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert [row["told_at"] for row in guard.fleet.rows("notice")] == [None]

    guard.phone.is_dead = False
    await eventually(lambda: len(guard.log) >= 2)
    telling.cancel()
    assert guard.phone.heard == ["fleet main: look at box"]
    assert guard.log == ["notices: nobody was told", "notices: well again"]


async def test_the_watch_goes_on_beside_a_dead_prefect_and_a_dead_phone_until_it_is_asked_to_end(guard: Guard) -> None:
    guard.prefect.is_down = guard.phone.is_dead = True
    guard.notice("box")
    guard.fleet.post()
    keeping = asyncio.create_task(guard.watch.keep())
    await eventually(lambda: len(guard.paused) >= 30)
    guard.prefect.is_down = guard.phone.is_dead = False
    guard.fleet.post()
    await eventually(lambda: guard.prefect.rings and guard.phone.heard)
    assert not keeping.done()
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_one_look_says_what_it_found(guard: Guard) -> None:
    """Control: with a list, nothing is wrong."""
    guard.notice("box")
    await guard.watch.once()
    assert guard.log == ["fleet main: 0 boxes, $0.000/h; nothing is wrong"]

    guard.market.is_down = True
    await guard.watch.once()
    assert guard.log[1:] == [
        "the list of boxes: vast.ai does not answer",
        "fleet main: the list of boxes is unknown (vast.ai does not answer)",
    ]


async def test_one_list_is_read_for_all_fleets(guard: Guard) -> None:
    """The provider counts the requests of an account. Control: each fleet has a sample of its own."""
    fleets = ("east", "main", "west")
    for name in fleets:
        with guard.fleet.database.exclusive(name) as tx:
            session.begin(tx, name)
    await guard.watch.once()

    assert guard.market.looks == 1
    with guard.fleet.database.transaction() as tx:
        assert tuple(tx.scalars(text("SELECT fleet FROM sample ORDER BY fleet"))) == fleets


async def test_a_dead_prefect_keeps_nobody_from_looking_and_a_dead_market_nobody_from_ringing(guard: Guard) -> None:
    guard.prefect.is_down = guard.market.is_down = True
    guard.notice("box")
    guard.fleet.post()
    keeping = asyncio.create_task(guard.watch.keep())
    await eventually(lambda: guard.market.looks >= 2 and guard.phone.heard)

    guard.prefect.is_down = False
    await eventually(lambda: guard.prefect.rings)
    assert not keeping.done()
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_a_defect_ends_the_watch_so_that_it_is_started_again(guard: Guard) -> None:
    async def breaks(_: object) -> None:
        raise ZeroDivisionError

    guard.prefect.ring = breaks  # type: ignore[assignment, method-assign]
    guard.fleet.post()
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(guard.watch.keep(), 20)
