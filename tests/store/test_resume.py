"""A retry of a flow run goes on with the run that the attempt before it left open, or begins anew."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fleet_agent.domain.actions import ScheduleNextCheck, SetNotes
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.run import Message, MessageKind, NothingToDo, Run, Said, Usage
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import steering
from fleet_agent.store.runs import RESUME_WITHIN
from tests.store.rig import SEND_BY, TELL, Fleet

RETRIED = "retried"


def said(role: str, kind: MessageKind, content: str = "…", **values: Any) -> Message:
    return Message(turn=1, step=1, role=role, kind=kind, content=content, **values)


async def interrupted(fleet: Fleet) -> Run:
    run = await fleet.open(Trigger.EVENT, flow_run_id=RETRIED)
    await fleet.journal.collect(run, turn=1)
    return run


async def retry(fleet: Fleet, attempt: int = 2) -> Run:
    return await fleet.open(Trigger.EVENT, flow_run_id=RETRIED, attempt=attempt, worker_id="another")


@pytest.fixture
async def waiting(fleet: Fleet) -> Fleet:
    """A fleet with a message that waits."""
    fleet.post(text="how are we doing?")
    return fleet


async def test_a_retry_at_once_goes_on_with_the_open_run(waiting: Fleet) -> None:
    first = await interrupted(waiting)
    again = await retry(waiting)

    assert (again.run_id, again.resumed, again.epoch, again.trigger) == (1, True, first.epoch, Trigger.EVENT)
    (row,) = waiting.rows("run")
    assert (row["status"], row["attempt"], row["worker_id"]) == ("open", 2, "another")
    assert waiting.state()["current_run_id"] == 1


async def test_what_the_attempt_before_had_claimed_stays_claimed(waiting: Fleet) -> None:
    await interrupted(waiting)
    progress = await waiting.journal.recall(await retry(waiting), waiting.observation())

    assert [event.text for event in progress.claimed.events] == ["how are we doing?"]
    assert progress.unshown() == progress.unseen() == progress.claimed
    assert [row["attempts"] for row in waiting.rows("inbox")] == [0]


@pytest.mark.parametrize(
    ("silent_for", "resumed"), [(RESUME_WITHIN - timedelta(seconds=30), True), (RESUME_WITHIN, False)]
)
async def test_a_run_that_was_silent_for_ten_minutes_is_interrupted_instead(
    waiting: Fleet, silent_for: timedelta, resumed: bool
) -> None:
    await interrupted(waiting)
    waiting.let_real_time_pass(silent_for)
    again = await retry(waiting)

    assert (again.resumed, again.run_id) == (resumed, 1 if resumed else 2)
    assert waiting.statuses() == ({1: "open"} if resumed else {1: "interrupted", 2: "open"})


async def test_a_run_that_lost_the_fence_is_not_gone_on_with(waiting: Fleet) -> None:
    await interrupted(waiting)
    await waiting.run_through()

    again = await waiting.ask_for_run(Trigger.EVENT, flow_run_id=RETRIED, attempt=2)

    assert again == NothingToDo(reason="no event and no wake waits")
    assert waiting.statuses() == {1: "interrupted", 2: "closed"}


async def test_another_flow_run_never_goes_on_with_it(waiting: Fleet) -> None:
    await interrupted(waiting)

    assert (await waiting.open(attempt=2)).run_id == 2


@pytest.mark.parametrize("attempt", [1, 2])
async def test_an_attempt_that_comes_late_or_twice_opens_nothing(waiting: Fleet, attempt: int) -> None:
    await interrupted(waiting)
    await retry(waiting)

    again = await waiting.ask_for_run(Trigger.EVENT, flow_run_id=RETRIED, attempt=attempt)

    assert again == NothingToDo(reason="this attempt of the flow run was opened before, as run #1")


async def test_the_older_attempt_can_do_nothing_more_and_harms_nothing(waiting: Fleet) -> None:
    """Control: the retry can do all of it."""
    older = await interrupted(waiting)
    (ruled,) = await waiting.reply(older, TELL)
    newer = await retry(waiting)
    journal = waiting.journal

    def calls(run: Run) -> list[Awaitable[object]]:
        return [
            journal.stay_alive(run),
            journal.meanwhile(run, turn=1),
            waiting.ask(run),
            journal.record(run, said("user", MessageKind.NOTE)),
            journal.mark_sent(run, ruled.key, send_by=SEND_BY),
            journal.write(run, SetNotes(text="mine")),
            waiting.reply(run, TELL, step=2),
            journal.collect(run, turn=1),
            waiting.close(run),
        ]

    for call in calls(older):
        with pytest.raises(RunSuperseded, match="run #1 of fleet main was taken over by a retry of its flow run"):
            await call
    await journal.fail_run(older, exit_reason="run superseded", summary="taken over")
    assert waiting.statuses() == {1: "open"}
    for call in calls(newer):
        await call
    assert waiting.statuses() == {1: "closed"}


async def test_an_outcome_of_the_older_attempt_is_a_fact_and_is_kept(waiting: Fleet) -> None:
    older = await interrupted(waiting)
    (ruled,) = await waiting.reply(older, TELL)
    await waiting.journal.mark_sent(older, ruled.key, send_by=SEND_BY)
    newer = await retry(waiting)

    await waiting.journal.record_outcome(ruled.key, ActionStatus.DONE, "The operator was told.")

    assert waiting.action(ruled.key)["status"] == "done"
    assert (await waiting.close(newer)).verdict.action


async def test_the_log_holds_one_result_for_each_call(waiting: Fleet) -> None:
    """Whoever writes it, the database refuses a second one."""
    run = await interrupted(waiting)
    result = said("tool", MessageKind.TOOL_RESULT, call_id="call00001")
    await waiting.journal.record(run, result)

    with pytest.raises(IntegrityError, match="message_one_result_a_call"):
        await waiting.journal.record(run, result)


async def test_a_write_and_its_result_are_one(waiting: Fleet) -> None:
    """A kill between the two would have a retry ask for the wake a second time."""
    run = await interrupted(waiting)
    answer = said("tool", MessageKind.TOOL_RESULT, "", call_id="call00001")

    result = await waiting.journal.write(run, ScheduleNextCheck(minutes=20, reason="look"), answer=answer)

    progress = await waiting.journal.recall(await retry(waiting), waiting.observation())
    assert [message.content for message in progress.said] == [result.sentence]
    with pytest.raises(IntegrityError):
        await waiting.journal.write(
            await retry(waiting, attempt=3), ScheduleNextCheck(minutes=40, reason="look"), answer=answer
        )
    assert len(waiting.rows("wake")) == 1


async def test_tokens_and_steps_count_on(waiting: Fleet) -> None:
    run = await interrupted(waiting)
    await waiting.reply(run, usage=Usage(tokens_in=100, tokens_out=5))
    await waiting.journal.spend(run, await waiting.ask(run), Usage(tokens_in=7))
    again = await retry(waiting)
    progress = await waiting.journal.recall(again, waiting.observation())

    assert (progress.step, progress.turn, progress.usage) == (1, 1, Usage(tokens_in=107, tokens_out=5))


async def test_a_run_whose_session_was_reset_is_gone_on_with_in_its_own_epoch(waiting: Fleet) -> None:
    first = await interrupted(waiting)
    with waiting.database.exclusive(waiting.name) as tx:
        steering.reset_session(tx, waiting.name, who="test", now=waiting.clock.now())
    again = await retry(waiting)

    assert again.epoch == first.epoch
    assert (await waiting.journal.meanwhile(again, turn=1)).session_was_reset


# --- what the next run is told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "interrupted"])
async def test_the_next_run_is_told_what_an_unfinished_one_had_done(ready: Fleet, end: str) -> None:
    run = await ready.open()
    rented = await ready.rented(run)
    unknown = await ready.rent(run, offer_id=2, step=2)
    if end == "failed":
        await ready.journal.fail_run(run, exit_reason="model unreachable", summary="no answer")
    standing = await ready.journal.standing(await ready.open())

    (past,) = [past for past in standing.past_runs if past.run_id == run.run_id]
    assert f"rent_box {rented}: rented (done)" in past.summary
    assert f"rent_box {unknown}: nobody saw its outcome (sent)" in past.summary
    assert past.summary.startswith("(did not finish: ")


async def test_an_unfinished_run_that_did_nothing_is_in_no_prompt(ready: Fleet) -> None:
    run = await ready.open()
    await ready.reply(run, TELL)
    await ready.journal.fail_run(run, exit_reason="model unreachable", summary="no answer")
    standing = await ready.journal.standing(await ready.open())

    assert run.run_id not in [past.run_id for past in standing.past_runs]


async def test_the_words_that_an_unfinished_run_had_claimed_are_told_by_the_run_that_answers_them(ready: Fleet) -> None:
    ready.post(Kind.MESSAGE, "how are we doing?")
    run = await ready.open()
    await ready.journal.collect(run, turn=1)
    await ready.rented(run)
    await ready.journal.fail_run(run, exit_reason="model unreachable", summary="no answer")
    await ready.run_through()
    standing = await ready.journal.standing(await ready.open())

    assert standing.words == (Said(run_id=3, text="how are we doing?"),)
    with ready.database.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM message WHERE kind = 'human'")).scalar_one() == 2
