"""Whatever the order in which runs open, die, close and are reset, the promises of the protocol hold.

A walk is a list of steps that drives one fleet through its journal on a real database; after each step every promise
is checked. The controls walk with one sentence of the protocol taken out, each a fault of the system before this one:
some walk must find it out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from fleet_agent.domain.actions import ScheduleNextCheck
from fleet_agent.domain.run import Claimed, Run
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import steering
from fleet_agent.store.claims import QUARANTINE_FROM
from fleet_agent.store.database import Database
from tests.store.rig import Fleet

Thing = tuple[str, int]
"""An inbox event or a wake: its table and its id."""


class Walk:
    """One fleet, the run that holds its fence, and those that lost it."""

    def __init__(self, database: Database, runner: asyncio.Runner, name: str) -> None:
        self.fleet = Fleet(database, name=name)
        self.runner = runner
        self.posted = 0
        self.opened: list[int] = []
        self.holder: Run | None = None
        self.stale: list[Run] = []
        self.shown: dict[int, set[Thing]] = {}
        self.dealt_with: set[Thing] = set()

    def go(self, steps: Sequence[tuple[Any, ...]]) -> None:
        for step, *arguments in steps:
            getattr(self, step)(*arguments)
            self.check_the_promises()
        self.let_good_runs_take_what_is_left()

    def do(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    # --- steps --------------------------------------------------------------------------------------------------------

    def post(self, kind: Kind, dedupe_key: str | None) -> None:
        self.fleet.post(kind, dedupe_key=dedupe_key)
        self.posted += 1

    def run(self, trigger: Trigger, after_minutes: int, asks_for_a_wake: bool, model_replies: bool) -> None:
        self.fleet.clock.advance(timedelta(minutes=after_minutes))
        run = self.do(self.fleet.ask_for_run(trigger, due=self.fleet.real(self.fleet.clock.now())))
        if not isinstance(run, Run):
            return
        if self.holder is not None:
            self.stale.append(self.holder)
        self.opened.append(run.run_id)
        self.holder = run
        self.look()
        if model_replies:
            self.do(self.fleet.reply(run))
        if asks_for_a_wake:
            self.do(self.fleet.journal.write(run, ScheduleNextCheck(minutes=10, reason="look again")))

    def look(self) -> None:
        if self.holder is not None:
            self.note_shown(self.holder, self.do(self.fleet.journal.collect(self.holder, turn=1)))

    def close(self, may_go_on: bool) -> None:
        if self.holder is None:
            return
        run, self.holder = self.holder, None
        end = self.do(self.fleet.close(run, may_go_on=may_go_on))
        if isinstance(end, Claimed):
            self.holder = run
            self.note_shown(run, end)
        else:
            self.dealt_with |= self.shown.get(run.run_id, set())
            self.after_closing(run)

    def fail(self) -> None:
        if self.holder is not None:
            run, self.holder = self.holder, None
            self.end_as_failed(run)

    def stir_the_oldest_stale_run(self) -> None:
        if self.stale:
            stale = self.stale.pop(0)
            self.claim_without_the_fence(stale)
            with pytest.raises(RunSuperseded):
                self.do(self.fleet.close(stale))
            self.do(self.fleet.journal.fail_run(stale, exit_reason="RunSuperseded", summary="the fence is gone"))

    def reset(self) -> None:
        with self.fleet.database.exclusive(self.fleet.name) as tx:
            steering.reset_session(tx, self.fleet.name, who="test", now=self.fleet.clock.now())

    def note_shown(self, run: Run, claimed: Claimed) -> None:
        things = {("inbox", event.id) for event in claimed.events} | {("wake", wake.id) for wake in claimed.wakes}
        assert not things & self.dealt_with, "what a closed run has dealt with was shown again"
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
        with self.fleet.database.transaction() as tx:
            for statement in statements:
                tx.execute(text(statement), {"fleet": self.fleet.name, "run": run.run_id})

    # --- promises -----------------------------------------------------------------------------------------------------

    def check_the_promises(self) -> None:
        with self.fleet.database.transaction() as tx:
            runs, inbox, wakes, audit, states = (
                [dict(row) for row in tx.execute(text(f"SELECT * FROM {table} WHERE fleet = :fleet"), me).mappings()]
                for table in ("run", "inbox", "wake", "audit", "session_state")
                for me in [{"fleet": self.fleet.name}]
            )
        holder = None if self.holder is None else self.holder.run_id
        status = {row["run_id"]: row["status"] for row in runs}

        assert self.opened == list(range(1, len(self.opened) + 1)), "run ids count up"
        assert [row["current_run_id"] for row in states] in ([], [holder]), "the last to open holds the fence"
        assert [run_id for run_id in status if status[run_id] == "open"] == ([holder] if holder else [])

        claims = [("inbox", row["id"], row["claimed_by_run"], row["consumed_by_run"]) for row in inbox]
        claims += [("wake", row["id"], row["claimed_by_run"], row["processed_by_run"]) for row in wakes]
        for table, thing, claimed_by, ended_by in claims:
            if ended_by is None:
                assert claimed_by in (None, holder), "it waits, or the holder of the fence has it"
            else:
                assert status[ended_by] == "closed"
                assert (table, thing) in self.shown.get(ended_by, set()), "a run ends what it was shown"

        assert sum(row["count"] for row in inbox) == self.posted, "no post is lost"
        aside = [row for row in inbox if row["quarantined_at"] is not None]
        assert all(row["attempts"] >= QUARANTINE_FROM for row in aside)
        assert Counter(row["what"] for row in audit)["quarantine"] == len(aside), "a person is told"

    def let_good_runs_take_what_is_left(self) -> None:
        self.fleet.clock.advance(timedelta(hours=1))
        while (before := self.left()) and self.do(self.fleet.run_through()) and self.left() < before:
            pass
        assert self.left() == 0

    def left(self) -> int:
        events = [row["consumed_by_run"] or row["quarantined_at"] for row in self.fleet.rows("inbox")]
        wakes = [row["processed_by_run"] for row in self.fleet.rows("wake")]
        return (events + wakes).count(None)


class NeverMarksAWakeProcessed(Walk):
    def after_closing(self, run: Run) -> None:
        self.sql(
            "UPDATE wake SET status = 'pending', claimed_by_run = NULL, processed_by_run = NULL WHERE fleet = :fleet",
            run=run,
        )


class ConsumesWhatItWasNeverShown(Walk):
    def after_closing(self, run: Run) -> None:
        self.sql(
            "UPDATE inbox SET claimed_by_run = :run, consumed_by_run = :run "
            "WHERE fleet = :fleet AND consumed_by_run IS NULL AND quarantined_at IS NULL",
            run=run,
        )


class KeepsTheClaimsOfAFailedRun(Walk):
    def end_as_failed(self, run: Run) -> None:
        self.sql(
            "UPDATE run SET status = 'failed' WHERE fleet = :fleet AND run_id = :run",
            "UPDATE session_state SET current_run_id = NULL WHERE fleet = :fleet",
            run=run,
        )


class ClaimsWithoutTheFence(Walk):
    def claim_without_the_fence(self, stale: Run) -> None:
        self.sql(
            "UPDATE inbox SET claimed_by_run = :run "
            "WHERE fleet = :fleet AND claimed_by_run IS NULL AND quarantined_at IS NULL",
            run=stale,
        )


STEPS = st.one_of(
    st.tuples(st.just("post"), st.sampled_from(Kind), st.sampled_from([None, "a", "b"])),
    st.tuples(
        st.just("run"),
        st.sampled_from([Trigger.MANUAL, Trigger.EVENT, Trigger.HEARTBEAT]),
        st.integers(0, 20),
        st.booleans(),
        st.booleans(),
    ),
    st.just(("look",)),
    st.tuples(st.just("close"), st.booleans()),
    st.just(("fail",)),
    st.just(("stir_the_oldest_stale_run",)),
    st.just(("reset",)),
)
WALKS = st.lists(STEPS, min_size=20, max_size=30)


def walk_everywhere(kind: type[Walk], database: Database, runner: asyncio.Runner, *, walks: int) -> None:
    names = (f"f{number}" for number in itertools.count(1))

    @settings(
        max_examples=walks,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(WALKS)
    def walk(steps: list[tuple[Any, ...]]) -> None:
        kind(database, runner, next(names)).go(steps)

    walk()


@pytest.fixture
def runner() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def test_no_order_of_events_breaks_a_promise_of_the_protocol(database: Database, runner: asyncio.Runner) -> None:
    walk_everywhere(Walk, database, runner, walks=30)


@pytest.mark.parametrize(
    "naive",
    [NeverMarksAWakeProcessed, ConsumesWhatItWasNeverShown, KeepsTheClaimsOfAFailedRun, ClaimsWithoutTheFence],
)
def test_a_protocol_without_one_of_its_sentences_is_found_out(
    database: Database, runner: asyncio.Runner, naive: type[Walk]
) -> None:
    with pytest.raises(AssertionError):
        walk_everywhere(naive, database, runner, walks=100)
