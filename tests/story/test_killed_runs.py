"""A run is killed before or after any one of its calls: nothing happens twice, nothing is lost, nothing is asked twice.

Two things may come next. The flow run is retried at once, and its next attempt goes on where the log ends. Or another
run finds the dead one open and begins anew, knowing what was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import text

from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.observation import Known, Observation
from fleet_agent.domain.run import Progress, Run
from fleet_agent.errors import RunSuperseded
from fleet_agent.ports import Journal
from fleet_agent.store import wakes
from tests.postgres import TemporaryPostgres
from tests.story.killing import Fuse, Killed, ScriptedModel, fused
from tests.world import NOON, Installation, installation

pytestmark = pytest.mark.timeout(300)  # some enumerate every moment of a run, each with a database of its own

FLOW_RUN = "the-flow-run"
STEPS = 4


class Story:
    """One installation in which a message and a wake wait, and another message comes in the middle of the run."""

    def __init__(self, fleet: Installation) -> None:
        self.fleet = fleet
        self.model = ScriptedModel(at_second_step=self._a_message_comes)
        self.ports = replace(fleet.ports, model=self.model)
        self._came = False
        fleet.say("How are we doing?")
        with fleet.database.exclusive("main") as tx:
            wakes.ask(tx, "main", timedelta(minutes=10), "look at prices", asked_by="test", now=fleet.time.now())
        fleet.time.advance(timedelta(minutes=11))

    def _a_message_comes(self) -> None:
        if not self._came:
            self._came = True
            self.fleet.say("One more thing.")

    async def killed(self, fuse: Fuse, **request: Any) -> None:
        self.fleet.ports = fused(self.ports, fuse)
        with pytest.raises(Killed):
            await self.fleet.run(flow_run_id=FLOW_RUN, **request)

    async def whole(self, **request: Any) -> None:
        self.fleet.ports = self.ports
        await self.fleet.run(**request)

    def rows(self, table: str) -> list[dict[str, Any]]:
        order = {"run": "run_id", "message": "seq"}.get(table, "id")
        with self.fleet.database.transaction() as tx:
            return [dict(row) for row in tx.execute(text(f"SELECT * FROM {table} ORDER BY {order}")).mappings()]


@asynccontextmanager
async def a_story(postgres: TemporaryPostgres) -> AsyncGenerator[Story]:
    with postgres.clone() as url:
        async with installation(url) as fleet:
            yield Story(fleet)


async def calls_of_a_whole_run(postgres: TemporaryPostgres) -> list[str]:
    async with a_story(postgres) as story:
        fuse = Fuse()
        story.fleet.ports = fused(story.ports, fuse)
        await story.fleet.run(flow_run_id=FLOW_RUN)
        assert story.model.asked == STEPS
        return fuse.calls


def no_effect_happened_twice(story: Story) -> bool:
    """Each box and each word to the operator has an intent of its own."""
    creates = Counter(create.label for create in story.fleet.sim.market.creates)
    told = [action for action in story.rows("action") if action["tool"] == "notify_human" and action["sent_at"]]
    return max(creates.values(), default=0) <= 1 and len(story.fleet.notifier.told) <= len(told)


def nothing_was_lost(story: Story) -> bool:
    """Both messages and the wake were consumed, by runs that closed and whose model was shown them."""
    closed = {run["run_id"] for run in story.rows("run") if run["status"] == "closed"}
    consumed = [event["consumed_by_run"] in closed for event in story.rows("inbox")]
    look_at_prices, *_ = story.rows("wake")
    return all(consumed) and look_at_prices["processed_by_run"] in closed


def every_call_has_one_result(story: Story) -> bool:
    """I5, in the log of the runs that closed."""
    for run in story.rows("run"):
        messages = [m for m in story.rows("message") if m["run_id"] == run["run_id"] and m["kind"] != "human"]
        calls = [call["id"] for message in messages for call in message["calls"]]
        results = [message["call_id"] for message in messages if message["role"] == "tool"]
        if run["status"] == "closed" and calls != results:
            return False
    return True


THIRDS = [
    0,
    pytest.param(1, marks=pytest.mark.soak),
    pytest.param(2, marks=pytest.mark.soak),
]
"""Every third moment, from the first, the second or the third on. CI sees the first third, `make soak` the others."""


async def moments(postgres: TemporaryPostgres, third: int) -> list[tuple[int, str]]:
    """After which calls of a whole run it is killed: those that leave something behind, here or at the provider.

    Between two of them nothing changes that outlives the process, so these are all the states a kill can leave.
    """
    calls = enumerate(await calls_of_a_whole_run(postgres), 1)
    return [(number, name) for number, name in calls if name not in ONLY_LOOK][third::3]


ONLY_LOOK = {
    "standing", "inventory", "demand", "account", "offers", "bans", "boxes", "in_flight", "unsettled", "approved"
}  # fmt: skip


@pytest.mark.parametrize("third", THIRDS)
async def test_a_run_that_is_killed_anywhere_and_retried_at_once_goes_on(
    postgres: TemporaryPostgres, third: int
) -> None:
    for number, name in await moments(postgres, third):
        where = f"after call {number}, {name}"
        async with a_story(postgres) as story:
            await story.killed(Fuse(at=number, after=True))
            await story.whole(flow_run_id=FLOW_RUN, attempt=2)
            runs = story.rows("run")
            assert no_effect_happened_twice(story), where
            assert every_call_has_one_result(story), where
            assert nothing_was_lost(story) or await the_next_run_finds_it(story), where
            if name == "close_or_go_on":
                assert [run["trigger"] for run in runs] == ["manual", "manual"], where
                continue
            assert [(run["status"], run["steps"]) for run in runs] == [("closed", STEPS)], where
            assert story.model.asked == STEPS + (name == "reply"), (
                where
            )  # only a reply that was lost is asked for again
            paid_in_vain = name in ("about_to_ask", "reply")  # it was booked, and no answer put that right
            assert runs[0]["tokens_in"] >= STEPS * 100, where
            assert (runs[0]["tokens_in"] > STEPS * 100) == paid_in_vain, where
            assert len(story.fleet.sim.market.creates) <= 2, where
            assert len(story.rows("wake")) == 2, where
            assert len(story.fleet.notifier.told) <= 1, where


async def the_next_run_finds_it(story: Story) -> bool:
    """What came after the run had looked for the last time."""
    await story.whole()
    return nothing_was_lost(story)


@pytest.mark.parametrize("calls_a_life", [17, 20, 24])
async def test_a_run_that_is_killed_again_and_again_comes_to_its_end(
    postgres: TemporaryPostgres, calls_a_life: int
) -> None:
    async with a_story(postgres) as story:
        for attempt in range(1, 30):
            fuse = Fuse(at=calls_a_life)
            story.fleet.ports = fused(story.ports, fuse)
            with suppress(Killed):
                await story.fleet.run(flow_run_id=FLOW_RUN, attempt=attempt)
                break
        (run,) = story.rows("run")
        assert (run["status"], run["steps"], run["attempt"] > 2) == ("closed", STEPS, True)
        assert no_effect_happened_twice(story)
        assert nothing_was_lost(story)
        assert every_call_has_one_result(story)


@pytest.mark.parametrize("third", THIRDS)
async def test_a_run_that_is_killed_anywhere_and_found_by_another_is_not_repeated(
    postgres: TemporaryPostgres, third: int
) -> None:
    """The run that finds it is told what was done, effect by effect."""
    for number, name in await moments(postgres, third):
        where = f"after call {number}, {name}"
        async with a_story(postgres) as story:
            await story.killed(Fuse(at=number, after=True))
            done = {a["key"] for a in story.rows("action") if a["status"] in ("sent", "done")}
            left_open = [run["run_id"] for run in story.rows("run") if run["status"] == "open"]
            await story.whole()
            assert no_effect_happened_twice(story), where
            assert nothing_was_lost(story) or await the_next_run_finds_it(story), where
            assert every_call_has_one_result(story), where
            if left_open:
                assert story.rows("run")[0]["status"] == "interrupted", where
                assert all(key in story.model.words() for key in done), where


class Forgetful:
    """A journal that knows that a run is to be gone on with and nothing of what it said: it begins again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def recall(self, run: Run, observation: Observation) -> Progress:
        progress = await self._journal.recall(run, observation)
        return progress.model_copy(update={"said": (), "ruled": ()})


async def test_a_resume_that_forgets_what_was_said_asks_and_acts_again(postgres: TemporaryPostgres) -> None:
    """The control."""
    calls = await calls_of_a_whole_run(postgres)
    async with a_story(postgres) as story:
        await story.killed(Fuse(at=len(calls)))
        story.ports = replace(story.ports, journal=cast("Journal", Forgetful(story.ports.journal)))
        await story.whole(flow_run_id=FLOW_RUN, attempt=2)
        assert story.model.asked == 2 * STEPS
        assert story.fleet.notifier.told == ["Two boxes are coming."] * 2


async def test_an_attempt_that_still_breathes_is_held_out_by_the_next(postgres: TemporaryPostgres) -> None:
    """Prefect took the first attempt for dead and it was only slow: it does nothing more, and ends with one line."""
    async with a_story(postgres) as story:
        asked = story.model.at_second_step

        def retried() -> None:
            asked()
            with story.fleet.database.exclusive("main") as tx:
                tx.execute(text("UPDATE run SET attempt = 2"))

        story.model.at_second_step = retried
        story.fleet.ports = story.ports
        report = await story.fleet.run(flow_run_id=FLOW_RUN)
        assert report.failed == "run #1 of fleet main was taken over by a retry of its flow run"
        assert story.fleet.sim.market.creates == []
        assert [run["status"] for run in story.rows("run")] == ["open"]
        with pytest.raises(RunSuperseded):
            await story.ports.journal.meanwhile(Run.model_validate(FIRST_ATTEMPT), turn=1)


FIRST_ATTEMPT = {
    "run_id": 1, "fleet": "main", "epoch": 0, "trigger": "manual", "force_review": False, "opened_at": NOON
}  # fmt: skip


# --- what was intended and not sent -----------------------------------------------------------------------------------


class ByTheOldLook:
    """A journal that judges nothing anew: for it the list is as well known as it was."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def recall(self, run: Run, observation: Observation) -> Progress:
        before = Known(
            value=Inventory(instances=(), seen_at=observation.taken_at - timedelta(minutes=1)),
            seen_at=observation.taken_at,
        )
        return await self._journal.recall(run, observation.model_copy(update={"inventory": before}))


async def killed_with_intents(postgres: TemporaryPostgres, story: Story) -> None:
    """After the reply that wants two boxes was judged, and before the first is sent; from then on no list is known."""
    calls = await calls_of_a_whole_run(postgres)
    replies = [number for number, name in enumerate(calls, 1) if name == "record_reply"]
    await story.killed(Fuse(at=replies[1], after=True))
    story.fleet.sim.market.faults.arm("list_success_false")


async def test_what_was_allowed_before_a_kill_is_judged_by_what_is_known_after_it(postgres: TemporaryPostgres) -> None:
    """Unknown is not empty, whenever the list became so (I12)."""
    async with a_story(postgres) as story:
        await killed_with_intents(postgres, story)
        await story.whole(flow_run_id=FLOW_RUN, attempt=2)
        rents = [row for row in story.rows("action") if row["tool"] == "rent_box"]
        assert [(row["status"], row["code"]) for row in rents] == [("refused", "inventory_unknown")] * 2
        assert story.fleet.sim.market.creates == []
        assert every_call_has_one_result(story)


async def test_who_goes_by_the_old_ruling_rents_while_nobody_knows_what_runs(postgres: TemporaryPostgres) -> None:
    """The control."""
    async with a_story(postgres) as story:
        await killed_with_intents(postgres, story)
        journal: Any = ByTheOldLook(story.ports.journal)
        story.ports = replace(story.ports, journal=journal)
        await story.whole(flow_run_id=FLOW_RUN, attempt=2)
        assert len(story.fleet.sim.market.creates) == 2
