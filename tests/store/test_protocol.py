"""Whatever the order in which runs open, die, close and are reset, the promises of the protocol hold.

The machine drives one fleet through its journal on a real database. Its controls are the same machine with one
sentence of the protocol taken out, each a fault of the system before this one: it must find them by itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Generator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from fleet_agent.domain.actions import ScheduleNextCheck
from fleet_agent.domain.run import Claimed, Run
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import steering
from fleet_agent.store.claims import QUARANTINE_FROM
from fleet_agent.store.database import Database
from tests.store.rig import Fleet

MACHINE = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)

Thing = tuple[str, int]
"""An inbox event or a wake: its table and its id."""


class Protocol(RuleBasedStateMachine):
    """One fleet, the run that holds its fence, and those that lost it."""

    database: ClassVar[Database]
    runner: ClassVar[asyncio.Runner]
    names: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(self.database, name=f"f{next(self.names)}")
        self.me = {"fleet": self.fleet.name}
        self.posted = 0
        self.opened: list[int] = []
        self.current: Run | None = None
        self.stale: list[Run] = []
        self.shown: dict[int, set[Thing]] = {}
        self.finished: set[Thing] = set()

    def do(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(Kind), dedupe_key=st.sampled_from([None, "a", "b"]))
    def post(self, kind: Kind, dedupe_key: str | None) -> None:
        self.fleet.post(kind, dedupe_key=dedupe_key)
        self.posted += 1

    @rule(
        trigger=st.sampled_from([Trigger.MANUAL, Trigger.EVENT, Trigger.HEARTBEAT]),
        after_minutes=st.integers(0, 20),
        asks_for_a_wake=st.booleans(),
        model_replies=st.booleans(),
    )
    def a_run_takes_what_waits(
        self, trigger: Trigger, after_minutes: int, asks_for_a_wake: bool, model_replies: bool
    ) -> None:
        self.fleet.clock.advance(timedelta(minutes=after_minutes))
        run = self.do(self.fleet.ask_for_run(trigger, scheduled_for=self.fleet.clock.now()))
        if not isinstance(run, Run):
            return
        if self.current is not None:
            self.stale.append(self.current)
        self.opened.append(run.run_id)
        self.current = run
        self.looks_again()
        if model_replies:
            self.do(self.fleet.reply(run))
        if asks_for_a_wake:
            self.do(self.fleet.journal.write(run, ScheduleNextCheck(minutes=10, reason="look again")))

    @precondition(lambda self: self.current is not None)
    @rule()
    def looks_again(self) -> None:
        assert self.current is not None
        self.show(self.current, self.do(self.fleet.journal.collect(self.current, turn=1)))

    @precondition(lambda self: self.current is not None)
    @rule(may_go_on=st.booleans())
    def closes(self, may_go_on: bool) -> None:
        run, self.current = self.current, None
        assert run is not None
        end = self.do(self.fleet.close(run, may_go_on=may_go_on))
        if isinstance(end, Claimed):
            self.current = run
            self.show(run, end)
        else:
            self.finished |= self.shown.get(run.run_id, set())
            self.after_closing(run)

    @precondition(lambda self: self.current is not None)
    @rule()
    def fails(self) -> None:
        run, self.current = self.current, None
        assert run is not None
        self.end_as_failed(run)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_stale_run_stirs(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.stale))
        self.claim_without_the_fence(stale)
        with pytest.raises(RunSuperseded):
            self.do(self.fleet.close(stale))
        self.do(self.fleet.journal.fail_run(stale, exit_reason="RunSuperseded", summary="the fence is gone"))

    @rule()
    def reset(self) -> None:
        with self.database.exclusive(self.fleet.name) as tx:
            steering.reset_session(tx, self.fleet.name, who="test", now=self.fleet.clock.now())

    def show(self, run: Run, claimed: Claimed) -> None:
        things = {("inbox", event.id) for event in claimed.events} | {("wake", wake.id) for wake in claimed.wakes}
        assert not things & self.finished, "what a closed run has dealt with was shown again"
        self.shown.setdefault(run.run_id, set()).update(things)

    # --- what the controls do otherwise -------------------------------------------------------------------------------

    def after_closing(self, run: Run) -> None:
        pass

    def end_as_failed(self, run: Run) -> None:
        self.do(self.fleet.journal.fail_run(run, exit_reason="TryLater", summary="no answer"))

    def claim_without_the_fence(self, stale: Run) -> None:
        with pytest.raises(RunSuperseded):
            self.do(self.fleet.journal.collect(stale, turn=1))

    def sql(self, *statements: str, run: Run) -> None:
        with self.database.transaction() as tx:
            for statement in statements:
                tx.execute(text(statement), {"fleet": self.fleet.name, "run": run.run_id})

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_promises_hold(self) -> None:
        holder = None if self.current is None else self.current.run_id
        with self.database.transaction() as tx:
            run, inbox, wake, audit, session_state = (
                [
                    dict(row)
                    for row in tx.execute(text(f"SELECT * FROM {table} WHERE fleet = :fleet"), self.me).mappings()
                ]
                for table in ("run", "inbox", "wake", "audit", "session_state")
            )

        assert self.opened == list(range(1, len(self.opened) + 1)), "run ids count up"

        status = {row["run_id"]: row["status"] for row in run}
        assert [row["current_run_id"] for row in session_state] in ([], [holder]), "the last to open holds the fence"
        assert [run_id for run_id in status if status[run_id] == "open"] == ([holder] if holder else [])

        for row in inbox:
            self.is_in_order(("inbox", row["id"]), row["claimed_by_run"], row["consumed_by_run"], status, holder)
        for row in wake:
            self.is_in_order(("wake", row["id"]), row["claimed_by_run"], row["processed_by_run"], status, holder)
        assert sum(row["count"] for row in inbox) == self.posted, "no post is lost"

        aside = [row for row in inbox if row["quarantined_at"] is not None]
        assert all(row["attempts"] >= QUARANTINE_FROM for row in aside)
        assert Counter(row["what"] for row in audit)["quarantine"] == len(aside), "a person is told"

    def is_in_order(
        self, thing: Thing, claimed_by: int | None, ended_by: int | None, status: dict[int, str], holder: int | None
    ) -> None:
        """It waits, or the holder of the fence has it, or a run that was shown it has closed."""
        if ended_by is None:
            assert claimed_by in (None, holder)
        else:
            assert status[ended_by] == "closed"
            assert thing in self.shown.get(ended_by, set())

    def teardown(self) -> None:
        """However it went: runs that go well take all that is left."""
        self.fleet.clock.advance(timedelta(hours=1))
        while (before := self.left()) and self.do(self.fleet.run_through()) and self.left() < before:
            pass
        assert self.left() == 0

    def left(self) -> int:
        events = [row["consumed_by_run"] or row["quarantined_at"] for row in self.fleet.rows("inbox")]
        wakes = [row["processed_by_run"] for row in self.fleet.rows("wake")]
        return (events + wakes).count(None)


@pytest.fixture
def on_a_database(database: Database) -> Generator[None]:
    with asyncio.Runner() as runner:
        Protocol.database, Protocol.runner = database, runner
        yield


@pytest.mark.usefixtures("on_a_database")
def test_no_order_of_events_breaks_a_promise_of_the_protocol() -> None:
    run_state_machine_as_test(Protocol, settings=MACHINE)


class NeverMarksAWakeProcessed(Protocol):
    def after_closing(self, run: Run) -> None:
        self.sql(
            "UPDATE wake SET status = 'pending', claimed_by_run = NULL, processed_by_run = NULL WHERE fleet = :fleet",
            run=run,
        )


class ConsumesWhatItWasNeverShown(Protocol):
    def after_closing(self, run: Run) -> None:
        self.sql(
            "UPDATE inbox SET claimed_by_run = :run, consumed_by_run = :run "
            "WHERE fleet = :fleet AND consumed_by_run IS NULL AND quarantined_at IS NULL",
            run=run,
        )


class KeepsTheClaimsOfAFailedRun(Protocol):
    def end_as_failed(self, run: Run) -> None:
        self.sql(
            "UPDATE run SET status = 'failed' WHERE fleet = :fleet AND run_id = :run",
            "UPDATE session_state SET current_run_id = NULL WHERE fleet = :fleet",
            run=run,
        )


class ClaimsWithoutTheFence(Protocol):
    def claim_without_the_fence(self, stale: Run) -> None:
        self.sql(
            "UPDATE inbox SET claimed_by_run = :run "
            "WHERE fleet = :fleet AND claimed_by_run IS NULL AND quarantined_at IS NULL",
            run=stale,
        )


@pytest.mark.usefixtures("on_a_database")
@pytest.mark.parametrize(
    "naive",
    [NeverMarksAWakeProcessed, ConsumesWhatItWasNeverShown, KeepsTheClaimsOfAFailedRun, ClaimsWithoutTheFence],
)
def test_a_protocol_without_one_of_its_sentences_is_found_out(naive: type[Protocol]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(naive, settings=MACHINE)
