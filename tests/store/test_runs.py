"""A run is opened, holds the fence, and ends in exactly one way."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fleet_agent.domain.actions import ScheduleNextCheck, SetNotes
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Compaction,
    Message,
    MessageKind,
    NothingToDo,
    Run,
    Said,
    ToolCall,
    Usage,
)
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.verdict import NOTHING, Verdict
from fleet_agent.domain.waking import Look, bands
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import conversation, reading, runs, session, steering, tables
from fleet_agent.store.claims import SILENCE_OF_THE_DEAD
from fleet_agent.store.runs import EARLY
from fleet_agent.store.tables import LeftOut
from tests.history import write_history
from tests.store.rig import ACTED, CHANGED, NOON, TELL, Fleet

# --- the number -------------------------------------------------------------------------------------------------------


async def test_run_ids_count_up_through_closed_failed_and_dead_runs(fleet: Fleet) -> None:
    closed = await fleet.run_through()
    failed = await fleet.open()
    await fleet.journal.fail_run(failed, exit_reason="ModelUnreachable", summary="no answer")
    dead = await fleet.open()
    last = await fleet.open()

    assert [run.run_id for run in (closed, failed, dead, last)] == [1, 2, 3, 4]


async def test_run_ids_go_on_after_a_session_reset(fleet: Fleet) -> None:
    await fleet.run_through()
    with fleet.database.exclusive(fleet.name) as tx:
        steering.reset_session(tx, fleet.name, who="test", now=fleet.clock.now())

    assert (await fleet.open()).run_id == 2


async def test_run_ids_go_on_after_the_runs_were_deleted(fleet: Fleet) -> None:
    """Control: counting on from the runs that are there gives the first number a second time."""
    for _ in range(3):
        await fleet.run_through()
    with fleet.database.transaction() as tx:
        tx.execute(text("DELETE FROM run"))
        naive = tx.execute(text("SELECT coalesce(max(run_id), 0) + 1 FROM run")).scalar_one()

    assert (await fleet.open()).run_id == 4
    assert naive == 1


async def test_an_empty_flow_run_costs_no_number(fleet: Fleet) -> None:
    await fleet.run_through()
    assert isinstance(await fleet.ask_for_run(Trigger.EVENT), NothingToDo)

    assert (await fleet.open()).run_id == 2


async def test_fleets_count_apart(fleet: Fleet) -> None:
    await fleet.run_through()

    assert (await Fleet(fleet.database, name="other").open()).run_id == 1


# --- empty flow runs --------------------------------------------------------------------------------------------------


async def test_a_heartbeat_that_was_due_before_a_closed_run_began_opens_nothing(fleet: Fleet) -> None:
    due = fleet.clock.now()
    fleet.clock.advance(timedelta(seconds=90))
    await fleet.run_through()

    assert await fleet.ask_for_run(Trigger.HEARTBEAT, due=fleet.real(due)) == NothingToDo(
        reason="run #1 was opened after this heartbeat was due, and has closed"
    )


async def test_a_heartbeat_that_was_due_after_the_last_run_began_opens_a_run(fleet: Fleet) -> None:
    await fleet.run_through()
    fleet.clock.advance(timedelta(minutes=5))

    assert (await fleet.open(Trigger.HEARTBEAT, due=fleet.real(fleet.clock.now()))).trigger is Trigger.HEARTBEAT


async def test_a_run_that_failed_does_not_stand_for_a_heartbeat(fleet: Fleet) -> None:
    due = fleet.clock.now()
    fleet.clock.advance(timedelta(seconds=1))
    await fleet.journal.fail_run(await fleet.open(), exit_reason="ModelUnreachable", summary="no answer")

    await fleet.open(Trigger.HEARTBEAT, due=fleet.real(due))


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.BOX_FAILED])
async def test_a_doorbell_opens_a_run_for_an_urgent_event_and_for_a_change(fleet: Fleet, kind: Kind) -> None:
    fleet.post(kind)

    assert (await fleet.open(Trigger.EVENT)).trigger is Trigger.EVENT


async def test_a_doorbell_opens_nothing_for_a_routine_event(fleet: Fleet) -> None:
    fleet.post(Kind.BOX_PROGRESS)

    assert await fleet.ask_for_run(Trigger.EVENT) == NothingToDo(reason="no event and no wake waits")


async def test_a_doorbell_opens_nothing_while_a_living_run_has_the_event_in_hand(fleet: Fleet) -> None:
    fleet.post()
    await fleet.journal.collect(await fleet.open(), turn=1)

    assert isinstance(await fleet.ask_for_run(Trigger.EVENT), NothingToDo)


async def test_a_doorbell_opens_a_run_when_the_run_that_has_the_event_fell_silent(fleet: Fleet) -> None:
    fleet.post()
    await fleet.journal.collect(await fleet.open(), turn=1)
    fleet.let_real_time_pass(SILENCE_OF_THE_DEAD)

    assert (await fleet.open(Trigger.EVENT)).run_id == 2


async def test_a_sign_of_life_keeps_a_run_alive(fleet: Fleet) -> None:
    fleet.post()
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    fleet.let_real_time_pass(SILENCE_OF_THE_DEAD)
    await fleet.journal.stay_alive(run)

    assert isinstance(await fleet.ask_for_run(Trigger.EVENT), NothingToDo)


async def test_a_wake_flow_run_opens_a_run_while_its_wake_is_pending_and_nothing_afterwards(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    await fleet.close(asking)
    (wake,) = fleet.rows("wake")
    fleet.clock.advance(timedelta(minutes=20))

    await fleet.run_through(Trigger.WAKE, wake_id=wake["id"])

    assert await fleet.ask_for_run(Trigger.WAKE, wake_id=wake["id"]) == NothingToDo(
        reason=f"wake {wake['id']} is processed already"
    )


async def test_a_wake_flow_run_opens_nothing_when_its_wake_was_cancelled(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    await fleet.close(asking)
    (wake,) = fleet.rows("wake")
    fleet.cancel_wake(wake["id"])

    assert await fleet.ask_for_run(Trigger.WAKE, wake_id=wake["id"]) == NothingToDo(
        reason=f"wake {wake['id']} is cancelled already"
    )


@pytest.mark.parametrize(("early_by", "opens"), [(EARLY, True), (2 * EARLY, False)])
async def test_a_wake_flow_run_that_comes_a_little_early_takes_its_wake(
    fleet: Fleet, early_by: timedelta, opens: bool
) -> None:
    """Two machines' clocks differ. What comes earlier still finds nothing to do, and its wake is left for its time."""
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=22, reason="another"))
    await fleet.close(asking)
    wake, _ = fleet.rows("wake")
    fleet.clock.advance(timedelta(minutes=20) - early_by)

    run = await fleet.ask_for_run(Trigger.WAKE, wake_id=wake["id"])

    assert isinstance(run, Run) is opens
    if isinstance(run, Run):
        claimed = await fleet.journal.collect(run, turn=1)
        assert [each.reason for each in claimed.wakes] == ["look at the queue"]
    else:
        assert run == NothingToDo(reason=f"wake {wake['id']} is due only at 2026-03-17T12:20:00Z")
        fleet.clock.advance(early_by)
        assert (await fleet.open(Trigger.WAKE, wake_id=wake["id"])).run_id == 2


async def test_no_other_run_takes_a_wake_before_it_is_due(fleet: Fleet) -> None:
    """The control."""
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    await fleet.close(asking)
    fleet.clock.advance(timedelta(minutes=20) - EARLY)

    assert await fleet.journal.collect(await fleet.open(), turn=1) == Claimed()


async def test_a_wake_flow_run_opens_nothing_while_a_living_run_has_its_wake_in_hand(fleet: Fleet) -> None:
    """Control: a run that fell silent does not count."""
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    await fleet.close(asking)
    (wake,) = fleet.rows("wake")
    fleet.clock.advance(timedelta(minutes=20))
    await fleet.journal.collect(await fleet.open(), turn=1)

    assert await fleet.ask_for_run(Trigger.WAKE, wake_id=wake["id"]) == NothingToDo(
        reason=f"wake {wake['id']} is in the hands of run #2"
    )
    fleet.let_real_time_pass(SILENCE_OF_THE_DEAD)
    assert (await fleet.open(Trigger.WAKE, wake_id=wake["id"])).run_id == 3


async def test_a_wake_flow_run_of_another_fleet_opens_nothing(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look at the queue"))
    (wake,) = fleet.rows("wake")

    other = Fleet(fleet.database, name="other")

    assert await other.ask_for_run(Trigger.WAKE, wake_id=wake["id"]) == NothingToDo(reason="there is no such wake")


async def test_a_retry_of_a_closed_flow_run_counts_as_manual(fleet: Fleet) -> None:
    fleet.post()
    await fleet.run_through(Trigger.EVENT, flow_run_id="retried")

    assert (await fleet.open(Trigger.EVENT, flow_run_id="retried", attempt=2)).trigger is Trigger.MANUAL


async def test_a_heartbeat_that_was_due_before_a_run_that_is_still_open_opens_a_run(fleet: Fleet) -> None:
    """That run may be dead. Control: once it has closed, the heartbeat has nothing to do."""
    due = fleet.real(fleet.clock.now())
    fleet.clock.advance(timedelta(seconds=90))
    await fleet.open()
    second = await fleet.open(Trigger.HEARTBEAT, due=due)
    await fleet.close(second)

    assert isinstance(await fleet.ask_for_run(Trigger.HEARTBEAT, due=due), NothingToDo)


async def test_a_retry_of_a_closed_heartbeat_that_was_due_long_ago_opens_a_run(fleet: Fleet) -> None:
    due = fleet.real(fleet.clock.now())
    await fleet.run_through(Trigger.HEARTBEAT, flow_run_id="retried", due=due)
    fleet.clock.advance(timedelta(minutes=1))
    await fleet.run_through()

    again = await fleet.open(Trigger.HEARTBEAT, flow_run_id="retried", attempt=2, due=due)
    assert again.trigger is Trigger.MANUAL


async def test_a_retry_of_a_failed_flow_run_keeps_its_trigger(fleet: Fleet) -> None:
    failed = await fleet.open(Trigger.HEARTBEAT, flow_run_id="retried")
    await fleet.journal.fail_run(failed, exit_reason="ModelUnreachable", summary="no answer")

    assert (await fleet.open(Trigger.HEARTBEAT, flow_run_id="retried", attempt=2)).trigger is Trigger.HEARTBEAT


async def test_one_attempt_of_a_flow_run_opens_one_run_however_often_it_is_carried_out(fleet: Fleet) -> None:
    await fleet.open(flow_run_id="doubled")

    assert isinstance(await fleet.ask_for_run(flow_run_id="doubled"), NothingToDo)


# --- the fence --------------------------------------------------------------------------------------------------------


async def test_opening_a_run_ends_the_one_before_it(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.open()

    assert fleet.statuses() == {1: "interrupted", 2: "open"}


async def test_the_database_itself_refuses_a_second_open_run(fleet: Fleet) -> None:
    first = await fleet.open()
    await fleet.open()

    with pytest.raises(IntegrityError, match="run_one_open_a_fleet"), fleet.database.transaction() as tx:
        tx.execute(text("UPDATE run SET status = 'open' WHERE run_id = :id"), {"id": first.run_id})


async def test_a_run_that_lost_the_fence_can_do_nothing_that_leads_to_an_effect(fleet: Fleet) -> None:
    stale = await fleet.open()
    (ruled,) = await fleet.reply(stale, TELL)
    await fleet.open()
    journal = fleet.journal

    for call in (
        journal.collect(stale, turn=1),
        fleet.reply(stale, TELL, step=2),
        journal.mark_sent(stale, ruled.key, send_by=timedelta(seconds=20)),
        journal.write(stale, SetNotes(text="mine")),
        fleet.ask(stale),
        journal.stay_alive(stale),
        fleet.close(stale),
    ):
        with pytest.raises(RunSuperseded, match="run #1 of fleet main no longer holds the fence, run #2 does"):
            await call


async def test_without_the_fence_a_stale_run_would_store_intents_and_send_them(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control of the test above: a row that is read without asking who holds the fence."""
    stale = await fleet.open()
    await fleet.open()
    monkeypatch.setattr(runs, "hold_fence", lambda tx, run: tx.get_one(tables.Run, (run.fleet, run.run_id)))

    (ruled,) = await fleet.reply(stale, TELL)

    await fleet.journal.mark_sent(stale, ruled.key, send_by=timedelta(seconds=20))

    assert fleet.action(ruled.key)["status"] == "sent"


async def test_a_failure_is_told_once_a_day_whatever_the_server_says_of_it(fleet: Fleet) -> None:
    """Such as a new id of the request each time."""
    for request_id in ("req_a3f", "req_bc0", "req_ddd"):
        run = await fleet.open()
        await fleet.journal.fail_run(run, exit_reason="key refused", summary=f"refused ({request_id})", tell=True)
    assert [row["text"] for row in fleet.rows("notice")] == ["Runs fail: refused (req_a3f)"]

    fleet.clock.advance(timedelta(days=1))
    run = await fleet.open()
    await fleet.journal.fail_run(run, exit_reason="key refused", summary="refused", tell=True)
    assert len(fleet.rows("notice")) == 2


async def test_a_run_that_notices_its_loss_leaves_that_in_its_row(fleet: Fleet) -> None:
    stale = await fleet.open()
    await fleet.open()
    with pytest.raises(RunSuperseded):
        await fleet.journal.stay_alive(stale)

    assert fleet.statuses() == {1: "superseded", 2: "open"}


async def test_a_stale_run_that_fails_takes_nothing_from_its_successor(fleet: Fleet) -> None:
    fleet.post()
    stale = await fleet.open()
    current = await fleet.open()
    await fleet.journal.collect(current, turn=1)

    await fleet.journal.fail_run(stale, exit_reason="RunSuperseded", summary="the fence is gone")

    assert [event["claimed_by_run"] for event in fleet.rows("inbox")] == [current.run_id]
    assert fleet.state()["current_run_id"] == current.run_id


async def test_a_closed_run_can_do_nothing_more(fleet: Fleet) -> None:
    run = await fleet.run_through()

    with pytest.raises(RunSuperseded, match="no run does"):
        await fleet.journal.collect(run, turn=2)
    assert fleet.statuses() == {1: "closed"}


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_run_closes_as_a_no_op_when_it_did_and_wrote_nothing(fleet: Fleet) -> None:
    run = await fleet.open()

    closed = await fleet.close(run)

    assert closed == Closed(
        verdict=NOTHING, no_op=True, usage=Usage(), turns=1, summary="Nothing to do.", exit_reason="finished"
    )
    (row,) = fleet.rows("run")
    assert (row["no_op"], row["in_prompt"], row["left_out_because"]) == (True, False, LeftOut.NO_OP)


async def test_a_human_message_makes_a_run_more_than_a_no_op(fleet: Fleet) -> None:
    fleet.post(Kind.MESSAGE, "how are we doing?")
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)

    assert not (await fleet.close(run)).no_op


async def test_another_event_alone_leaves_a_run_a_no_op(fleet: Fleet) -> None:
    fleet.post(Kind.DEMAND_BAND)
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)

    assert (await fleet.close(run)).no_op


@pytest.mark.parametrize("tool", [SetNotes(text="n"), ScheduleNextCheck(minutes=20, reason="look again")])
async def test_what_a_run_wrote_makes_it_more_than_a_no_op(fleet: Fleet, tool: SetNotes | ScheduleNextCheck) -> None:
    run = await fleet.open()
    await fleet.journal.write(run, tool)

    assert not (await fleet.close(run)).no_op


async def test_a_wake_that_was_not_stored_leaves_a_run_a_no_op(fleet: Fleet) -> None:
    run = await fleet.open()
    answer = await fleet.journal.write(run, ScheduleNextCheck(minutes=5, reason="look again"))

    assert (answer.failed, answer.sentence.split(" ")[:2]) == (True, ["Nothing", "stored:"])
    assert (await fleet.close(run)).no_op


async def test_no_verdict_hides_an_effect(fleet: Fleet) -> None:
    """Control: the model's own verdict says that nothing was done."""
    run = await fleet.open()
    (ruled,) = await fleet.reply(run, TELL)
    await fleet.journal.mark_sent(run, ruled.key, send_by=timedelta(seconds=20))

    closed = await fleet.close(run, verdict=NOTHING)

    assert closed.verdict == ACTED
    assert not closed.no_op


async def test_an_effect_that_was_only_intended_is_none(fleet: Fleet) -> None:
    run = await fleet.open()
    await fleet.reply(run, TELL)

    assert (await fleet.close(run)).verdict == NOTHING
    assert [action["status"] for action in fleet.rows("action")] == ["expired"]


async def test_verdict_and_summary_cover_all_turns(fleet: Fleet) -> None:
    run = await fleet.open()
    fleet.post(Kind.DEMAND_BAND)
    await fleet.close(run, may_go_on=True, verdict=CHANGED, summary="First turn.")

    closed = await fleet.close(run, verdict=NOTHING, summary="Second turn.")

    assert (closed.verdict, closed.turns) == (Verdict(action=False, state_changed=True), 2)
    assert closed.summary == "First turn.\nSecond turn."


async def test_the_reason_of_a_run_is_what_it_found_first(fleet: Fleet) -> None:
    fleet.post(text="how are we doing?")
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    fleet.post(text="one more thing")
    await fleet.close(run, may_go_on=True)

    assert [row["reason"] for row in fleet.rows("run")] == ["how are we doing?"]


async def test_a_run_adds_up_what_it_used(fleet: Fleet) -> None:
    run = await fleet.open()
    used = Usage(tokens_in=1000, tokens_out=50, tokens_cached=400, cost_usd=Decimal("0.001234"))
    await fleet.reply(run, usage=used)
    await fleet.reply(run, usage=used, step=2)
    await fleet.journal.spend(run, await fleet.ask(run), used)

    assert (await fleet.close(run)).usage == used + used + used


async def test_a_server_that_counts_absurdly_many_tokens_does_not_fail_the_record(fleet: Fleet) -> None:
    run = await fleet.open()
    absurd = Usage(tokens_in=2**40, tokens_out=2**40, tokens_cached=2**40)
    await fleet.reply(run, usage=absurd)

    assert (await fleet.close(run)).usage == absurd


async def test_a_failed_run_says_why_and_frees_the_fence(fleet: Fleet) -> None:
    run = await fleet.open()

    await fleet.journal.fail_run(run, exit_reason="KeyRefused", summary="the key of the model is not accepted")

    (row,) = fleet.rows("run")
    assert (row["status"], row["exit_reason"]) == ("failed", "KeyRefused")
    assert row["summary"] == "the key of the model is not accepted"
    assert fleet.state()["current_run_id"] is None


async def test_only_a_run_that_asked_the_model_counts_as_a_review(fleet: Fleet) -> None:
    reviewed_at = fleet.clock.now() + timedelta(seconds=1)
    await fleet.close(await fleet.open(), asked_model=True)
    fleet.clock.advance(timedelta(minutes=5))
    await fleet.close(await fleet.open(Trigger.HEARTBEAT), asked_model=False, quiet=True)

    assert fleet.state()["last_review_at"] == reviewed_at


async def test_what_nobody_looked_at_is_still_news_for_the_next_heartbeat(fleet: Fleet) -> None:
    """A run that closed before its model was asked. Control: a quiet run looked, and found it unchanged."""
    await fleet.close(await fleet.open(), asked_model=False)
    unseen = fleet.state()["last_bands"]
    await fleet.close(await fleet.open(), asked_model=False, quiet=True)

    assert (unseen, fleet.state()["last_bands"]) == ({}, bands(Look(fleet.observation()), {}))


async def test_an_unreadable_policy_keeps_no_run_from_opening(fleet: Fleet) -> None:
    await fleet.run_through()
    with fleet.database.transaction() as tx:
        tx.execute(text("""UPDATE session_state SET policy = '{"from_the_future": 1}'"""))

    assert (await fleet.open()).run_id == 2


# --- what later runs know ---------------------------------------------------------------------------------------------


async def test_prompts_carry_older_runs_with_the_words_of_people_and_without_no_ops(fleet: Fleet) -> None:
    fleet.post(Kind.MESSAGE, "how are we doing?")
    await fleet.run_through()
    await fleet.run_through()
    await fleet.close(await fleet.open(), verdict=CHANGED, summary="The queue is empty.")

    standing = await fleet.journal.standing(await fleet.open())

    assert [(past.run_id, past.reason) for past in standing.past_runs] == [(1, "how are we doing?"), (3, "")]
    assert standing.words == (Said(run_id=1, text="how are we doing?"),)
    assert standing.words_in_all == 1


async def test_a_reset_leaves_older_runs_out_of_the_prompt_and_everything_else_in_force(fleet: Fleet) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        steering.set_objective(tx, fleet.name, "stay under $2/h", who="test", now=fleet.clock.now())
    fleet.set_policy(limits__max_boxes="7")
    run = await fleet.open()
    await fleet.journal.write(run, ScheduleNextCheck(minutes=20, reason="look again"))
    await fleet.journal.write(run, SetNotes(text="the queue fills at noon"))
    await fleet.close(run)
    before = await fleet.journal.standing(await fleet.open())
    with fleet.database.exclusive(fleet.name) as tx:
        steering.reset_session(tx, fleet.name, who="test", now=fleet.clock.now())

    after = await fleet.journal.standing(await fleet.open())

    assert [past.run_id for past in before.past_runs] == [1]
    assert after == before.model_copy(update={"past_runs": ()})


async def test_words_that_wait_again_for_the_next_turn_are_told_to_later_runs_once(fleet: Fleet) -> None:
    event = fleet.post(Kind.MESSAGE, "how are we doing?")
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    assert await fleet.close(run, may_go_on=True, unseen=(event,))
    await fleet.close(run)

    standing = await fleet.journal.standing(await fleet.open())

    assert standing.words == (Said(run_id=1, text="how are we doing?"),)


async def test_a_summary_that_says_nobody_was_asked_does_not_outlive_its_turn(fleet: Fleet) -> None:
    """Control: what the first turn concluded otherwise is kept."""
    for first in ({"quiet": True, "asked_model": False, "summary": "Nobody was asked."}, {"summary": "All is well."}):
        run = await fleet.open()
        fleet.post(Kind.MESSAGE, "how are we doing?")
        await fleet.close(run, may_go_on=True, **first)
        await fleet.close(run, summary="Fine.")

    assert [row["summary"] for row in fleet.rows("run")] == ["Fine.", "All is well.\nFine."]


async def test_a_run_that_failed_after_it_wrote_something_is_told_to_later_runs(fleet: Fleet) -> None:
    """And so is one that was interrupted. Control: one that wrote nothing is left out."""
    for tool in (ScheduleNextCheck(minutes=20, reason="look again"), SetNotes(text="the queue fills at noon"), None):
        run = await fleet.open()
        asked = ToolCall(id="aaaaaaaaa", name=tool.name if tool else "list_boxes", arguments="{}", provider_id="")
        reply = Message(turn=1, step=1, role="assistant", kind=MessageKind.TOOL_CALL, content="", calls=(asked,))
        answer = Message(turn=1, step=1, role="tool", kind=MessageKind.TOOL_RESULT, content="", call_id=asked.id)
        await fleet.journal.record(run, reply)
        if tool is None:
            await fleet.journal.record(run, answer)
        else:
            await fleet.journal.write(run, tool, answer=answer)
        if isinstance(tool, SetNotes):
            await fleet.journal.fail_run(run, exit_reason="model unreachable", summary="no answer")

    standing = await fleet.journal.standing(await fleet.open())

    first, second = standing.past_runs
    assert first.summary.startswith("(did not finish: found open by the next run; what it did, do not repeat:)\n")
    assert "schedule_next_check: " in first.summary
    assert second.summary.endswith("\nset_notes: Notes replaced.\nno answer")
    assert [row["left_out_because"] for row in fleet.rows("run")][:3] == [None, None, LeftOut.NOTHING_DONE]


async def test_a_reset_while_a_request_is_made_keeps_the_older_session_out_of_the_new_one(fleet: Fleet) -> None:
    """Its transaction has the row of the fleet in hand as it was before. Control: without a reset it is kept."""
    run = await fleet.open()
    for resets in (False, True):
        with fleet.database.transaction() as tx:
            before = session.find(tx, fleet.name)
            if resets:
                with fleet.database.exclusive(fleet.name) as beside:
                    steering.reset_session(beside, fleet.name, who="test", now=fleet.clock.now())
            conversation.keep_compaction(tx, run, Compaction(through=8 if resets else 7))
            assert before.epoch == run.epoch
        with fleet.database.transaction() as tx:
            kept = session.find(tx, fleet.name).compaction
        assert kept == ({} if resets else Compaction(through=7).model_dump(mode="json"))


async def test_of_runs_before_a_reset_nothing_is_counted(fleet: Fleet) -> None:
    """Each fourth run told the operator something. Control: without the reset those before it count too."""
    write_history(fleet.database, runs=400, until=NOON)
    with fleet.database.transaction() as tx:
        whole, _ = conversation.compacted(tx, fleet.name, 0)
        tx.execute(text("UPDATE run SET epoch = 1 WHERE run_id > 200"))
        newer, _ = conversation.compacted(tx, fleet.name, 1)

    assert (whole.through, newer.through) == (280, 280)
    assert (whole.digest.runs, whole.digest.told) == (280, 280 // 4 + 1)
    assert (newer.digest.runs, newer.digest.told) == (80, 80 // 4)


async def test_the_newest_request_of_a_run_is_kept_as_it_was_sent(fleet: Fleet) -> None:
    run = await fleet.open()
    await fleet.ask(run, {"model": "m", "messages": [{"role": "system", "content": "a"}]})
    newest = {"model": "m", "messages": [{"role": "system", "content": "b"}], "a_key_out_of_order": 1}
    await fleet.ask(run, newest)

    with fleet.database.transaction() as tx:
        kept = reading.request(tx, fleet.name, run.run_id)
    assert kept is not None
    assert list(kept.items()) == list(newest.items())
