"""What waits is taken by one run, given back when that run dies, and consumed by the run that closes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from fleet_agent.domain.actions import ScheduleNextCheck
from fleet_agent.domain.run import Claimed, Closed, Run
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.store import claims, steering
from fleet_agent.store.claims import QUARANTINE_FROM, SUSPECT_FROM
from tests.store.rig import Fleet


async def fail(fleet: Fleet, run: Run, *, after_a_reply: bool, exit_reason: str = "model unusable") -> None:
    if after_a_reply:
        await fleet.reply(run)
    await fleet.journal.fail_run(run, exit_reason=exit_reason, summary="no sense in it")


async def poison(fleet: Fleet, *, attempts: int, text: str = "poison") -> int:
    """An event over which `attempts` runs have ended after the model had replied."""
    event = fleet.post(text=text)
    for _ in range(attempts):
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fail(fleet, run, after_a_reply=True)
    return event


def ids(claimed: Claimed) -> list[int]:
    return [event.id for event in claimed.events]


# --- claiming ---------------------------------------------------------------------------------------------------------


async def test_a_run_takes_everything_that_waits_the_urgent_first(fleet: Fleet) -> None:
    routine = fleet.post(Kind.BOX_PROGRESS)
    change = fleet.post(Kind.BOX_FAILED)
    urgent = fleet.post(Kind.RUN_NOW)

    claimed = await fleet.journal.collect(await fleet.open(), turn=1)

    assert ids(claimed) == [urgent, change, routine]


async def test_what_was_claimed_is_not_claimed_again(fleet: Fleet) -> None:
    fleet.post()
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)

    assert await fleet.journal.collect(run, turn=1) == Claimed()


async def test_a_run_takes_due_wakes_only(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="soon"))
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=40, reason="later"))
    await fleet.close(asking)
    fleet.clock.advance(timedelta(minutes=30))

    claimed = await fleet.journal.collect(await fleet.open(), turn=1)

    assert [wake.reason for wake in claimed.wakes] == ["soon"]


async def test_the_words_of_a_person_enter_the_log_with_the_claim(fleet: Fleet) -> None:
    fleet.post(Kind.MESSAGE, "how are we doing?")
    fleet.post(Kind.BOX_FAILED, "box 101 is offline")
    await fleet.journal.collect(await fleet.open(), turn=1)

    assert [(row["kind"], row["content"]) for row in fleet.rows("message")] == [("human", "how are we doing?")]


async def test_peeking_shows_what_a_run_would_take_and_takes_nothing(fleet: Fleet) -> None:
    fleet.post(text="hello")
    with fleet.database.transaction() as tx:
        seen = claims.peek(tx, fleet.name, now=fleet.clock.now())

    assert seen == await fleet.journal.collect(await fleet.open(), turn=1)


async def test_a_run_whose_session_was_reset_takes_nothing_more(fleet: Fleet) -> None:
    run = await fleet.open()
    with fleet.database.exclusive(fleet.name) as tx:
        steering.reset_session(tx, fleet.name, who="test", now=fleet.clock.now())
    fleet.post()

    assert await fleet.journal.collect(run, turn=1) == Claimed()
    assert isinstance(await fleet.close(run, may_go_on=True), Closed)


# --- in the middle of a turn ------------------------------------------------------------------------------------------


async def test_between_steps_a_run_takes_what_is_urgent_and_nothing_else(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="soon"))
    await fleet.close(asking)
    fleet.clock.advance(timedelta(minutes=20))
    run = await fleet.open()
    urgent = fleet.post(Kind.MESSAGE, "one more thing")
    fleet.post(Kind.BOX_FAILED)
    fleet.post(Kind.BOX_PROGRESS)

    meanwhile = await fleet.journal.meanwhile(run, turn=2)

    assert ids(meanwhile.claimed) == [urgent]
    assert meanwhile.claimed.wakes == ()
    assert [(row["turn"], row["content"]) for row in fleet.rows("message")] == [(2, "one more thing")]
    assert (await fleet.journal.meanwhile(run, turn=2)).claimed == Claimed()


async def test_between_steps_a_run_takes_no_suspect_event(fleet: Fleet) -> None:
    run = await fleet.open()
    suspect, innocent = fleet.post(), fleet.post()
    suspected(fleet, suspect)

    assert ids((await fleet.journal.meanwhile(run, turn=1)).claimed) == [innocent]


async def test_between_steps_nothing_joins_a_suspect_event(fleet: Fleet) -> None:
    await poison(fleet, attempts=SUSPECT_FROM)
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    fleet.post()

    assert (await fleet.journal.meanwhile(run, turn=1)).claimed == Claimed()


async def test_between_steps_a_run_whose_session_was_reset_takes_nothing_and_is_told(fleet: Fleet) -> None:
    run = await fleet.open()
    fleet.post()
    with fleet.database.exclusive(fleet.name) as tx:
        steering.reset_session(tx, fleet.name, who="test", now=fleet.clock.now())

    meanwhile = await fleet.journal.meanwhile(run, turn=1)

    assert (meanwhile.session_was_reset, meanwhile.claimed) == (True, Claimed())


def suspected(fleet: Fleet, event: int) -> None:
    with fleet.database.transaction() as tx:
        tx.execute(text("UPDATE inbox SET attempts = :n WHERE id = :id"), {"n": SUSPECT_FROM, "id": event})


# --- consuming --------------------------------------------------------------------------------------------------------


async def test_events_and_wakes_are_consumed_by_the_run_that_closes(fleet: Fleet) -> None:
    """The system before this one never marked a wake processed, and every run met all of them again."""
    fleet.post()
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look again"))
    await fleet.close(asking)
    fleet.clock.advance(timedelta(minutes=20))

    run = await fleet.run_through()
    later = await fleet.journal.collect(await fleet.open(), turn=1)

    assert [event["consumed_by_run"] for event in fleet.rows("inbox")] == [run.run_id]
    assert [(wake["status"], wake["processed_by_run"]) for wake in fleet.rows("wake")] == [("processed", run.run_id)]
    assert later == Claimed()


async def test_a_run_goes_on_when_something_urgent_came_meanwhile(fleet: Fleet) -> None:
    run = await fleet.open()
    event = fleet.post(text="one more thing")

    more = await fleet.close(run, may_go_on=True)

    assert isinstance(more, Claimed)
    assert ids(more) == [event]
    assert [(row["turn"], row["content"]) for row in fleet.rows("message")] == [(2, "one more thing")]


async def test_a_run_that_may_not_go_on_leaves_what_came_meanwhile_to_the_next(fleet: Fleet) -> None:
    run = await fleet.open()
    event = fleet.post()
    await fleet.close(run, may_go_on=False)

    assert ids(await fleet.journal.collect(await fleet.open(Trigger.EVENT), turn=1)) == [event]


async def test_a_routine_event_keeps_no_run_from_closing(fleet: Fleet) -> None:
    run = await fleet.open()
    fleet.post(Kind.BOX_PROGRESS)

    assert isinstance(await fleet.close(run, may_go_on=True), Closed)


async def test_a_cancelled_wake_is_neither_claimed_nor_processed(fleet: Fleet) -> None:
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look again"))
    await fleet.close(asking)
    (wake,) = fleet.rows("wake")
    fleet.cancel_wake(wake["id"])
    fleet.clock.advance(timedelta(minutes=20))
    await fleet.run_through()

    assert [(row["status"], row["processed_by_run"]) for row in fleet.rows("wake")] == [("cancelled", None)]


@pytest.mark.parametrize("seen", [True, False])
async def test_what_the_model_was_never_shown_waits_for_the_next_run(fleet: Fleet, seen: bool) -> None:
    """A turn that ends at a bound before its first request. Control: what was shown is dealt with."""
    event = fleet.post()
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look again"))
    await fleet.close(asking)
    fleet.clock.advance(timedelta(minutes=20))
    run = await fleet.open()
    claimed = await fleet.journal.collect(run, turn=1)
    unseen: dict[str, tuple[int, ...]] = (
        {} if seen else {"unseen": (event,), "unseen_wakes": tuple(wake.id for wake in claimed.wakes)}
    )

    closed = await fleet.close(run, **unseen)
    left = await fleet.journal.collect(await fleet.open(), turn=1)

    assert (len(left.events), len(left.wakes)) == ((0, 0) if seen else (1, 1))
    assert [row["attempts"] for row in fleet.rows("inbox")] == [0]
    assert closed.no_op is not seen, "a message that nobody read is no reason to be in later prompts"


async def test_what_the_model_was_never_shown_is_shown_in_the_next_turn_where_there_is_one(fleet: Fleet) -> None:
    event = fleet.post()
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)

    assert ids(await fleet.close(run, may_go_on=True, unseen=(event,))) == [event]


# --- giving back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fails", "dies"])
async def test_what_a_run_held_waits_again_when_it_ends_without_closing(fleet: Fleet, end: str) -> None:
    event = fleet.post()
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look again"))
    fleet.clock.advance(timedelta(minutes=20))
    await fleet.journal.collect(asking, turn=1)
    if end == "fails":
        await fail(fleet, asking, after_a_reply=False)

    claimed = await fleet.journal.collect(await fleet.open(), turn=1)

    assert ids(claimed) == [event]
    assert [wake.reason for wake in claimed.wakes] == ["look again"]


async def test_an_outage_of_the_model_counts_no_attempt(fleet: Fleet) -> None:
    """Control: the same ends after a reply of the model do count."""
    fleet.post()
    for _ in range(QUARANTINE_FROM):
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fail(fleet, run, after_a_reply=False)
    (unharmed,) = fleet.rows("inbox")
    for _ in range(QUARANTINE_FROM):
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fail(fleet, run, after_a_reply=True)
    (put_aside,) = fleet.rows("inbox")

    assert (unharmed["attempts"], unharmed["quarantined_at"]) == (0, None)
    assert (put_aside["attempts"], put_aside["quarantined_at"]) == (QUARANTINE_FROM, fleet.clock.now())


@pytest.mark.parametrize(
    ("exit_reason", "after_a_reply", "attempts"),
    [
        ("context too long", False, 1),
        ("request refused", False, 1),
        ("model unusable", False, 0),
        ("model unusable", True, 1),
        ("model unreachable", True, 0),
        ("slow down", True, 0),
        ("try later", True, 0),
        ("key refused", True, 0),
        ("cancelled", True, 0),
        ("database unreachable", True, 0),
        ("database unusable", True, 0),
        ("value error", False, 1),
        ("found open by the next run", True, 1),
        ("found open by the next run", False, 0),
    ],
)
async def test_an_attempt_counts_where_the_event_may_be_the_cause(
    fleet: Fleet, exit_reason: str, after_a_reply: bool, attempts: int
) -> None:
    """A message that no server takes must not block the fleet; an outage is nobody's fault, however late it comes."""
    fleet.post()
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    await fail(fleet, run, after_a_reply=after_a_reply, exit_reason=exit_reason)

    assert [row["attempts"] for row in fleet.rows("inbox")] == [attempts]


async def test_an_event_given_back_takes_its_twin_into_itself(fleet: Fleet) -> None:
    event = fleet.post(Kind.DEMAND_BAND, "demand is 40", dedupe_key="demand")
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    fleet.post(Kind.DEMAND_BAND, "demand is 80", dedupe_key="demand")
    fleet.post(Kind.DEMAND_BAND, "demand is 160", dedupe_key="demand")
    await fail(fleet, run, after_a_reply=False)

    (row,) = fleet.rows("inbox")

    assert (row["id"], row["count"], row["text"]) == (event, 3, "demand is 160")


# --- events over which runs die ---------------------------------------------------------------------------------------


async def test_a_suspect_event_is_claimed_alone_and_before_the_others(fleet: Fleet) -> None:
    suspect = await poison(fleet, attempts=SUSPECT_FROM)
    innocent = fleet.post(Kind.DEMAND_BAND)

    first = await fleet.journal.collect(run := await fleet.open(), turn=1)
    await fleet.close(run)
    second = await fleet.journal.collect(await fleet.open(), turn=1)

    assert (ids(first), ids(second)) == ([suspect], [innocent])


async def test_a_person_does_not_wait_for_suspect_events(fleet: Fleet) -> None:
    suspect = await poison(fleet, attempts=SUSPECT_FROM)
    words = fleet.post(text="stop!")

    first = await fleet.journal.collect(run := await fleet.open(), turn=1)
    await fleet.close(run)
    second = await fleet.journal.collect(await fleet.open(), turn=1)

    assert (ids(first), ids(second)) == ([words], [suspect])


async def test_many_suspects_are_halved_and_one_bad_event_is_soon_alone(fleet: Fleet) -> None:
    """Control: alone from the first, forty events would be forty runs."""
    events = [fleet.post(Kind.DEMAND_BAND) for _ in range(40)]
    bad = events[7]
    runs = 0
    while not any(row["quarantined_at"] for row in fleet.rows("inbox")):
        run = await fleet.open()
        claimed = ids(await fleet.journal.collect(run, turn=1))
        runs += 1
        if bad in claimed:
            await fail(fleet, run, after_a_reply=True)
        else:
            await fleet.close(run)

    assert [row["id"] for row in fleet.rows("inbox") if row["quarantined_at"]] == [bad]
    assert runs < 20


async def test_a_run_with_a_suspect_event_takes_nothing_more_and_does_not_go_on(fleet: Fleet) -> None:
    await poison(fleet, attempts=SUSPECT_FROM)
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    fleet.post()

    assert await fleet.journal.collect(run, turn=1) == Claimed()
    assert isinstance(await fleet.close(run, may_go_on=True), Closed)


async def test_a_suspect_event_leaves_due_wakes_to_the_next_run(fleet: Fleet) -> None:
    await poison(fleet, attempts=SUSPECT_FROM)
    asking = await fleet.open()
    await fleet.journal.write(asking, ScheduleNextCheck(minutes=20, reason="look again"))
    fleet.clock.advance(timedelta(minutes=20))

    first = await fleet.journal.collect(run := await fleet.open(), turn=1)
    await fleet.close(run)
    second = await fleet.journal.collect(await fleet.open(), turn=1)

    assert (len(first.wakes), len(second.wakes)) == (0, 1)


async def test_a_run_that_holds_something_leaves_a_suspect_event_to_another(fleet: Fleet) -> None:
    fleet.post()
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    suspected(fleet, fleet.post())

    assert await fleet.journal.collect(run, turn=1) == Claimed()


async def test_the_third_attempt_is_the_first_alone(fleet: Fleet) -> None:
    event, other = fleet.post(), fleet.post()
    together: list[list[int]] = []
    for _ in range(3):
        run = await fleet.open()
        together.append(ids(await fleet.journal.collect(run, turn=1)))
        await fail(fleet, run, after_a_reply=True)

    assert together == [[event, other], [event, other], [event]]


async def test_an_event_is_quarantined_with_a_notice_and_never_claimed_again(fleet: Fleet) -> None:
    event = await poison(fleet, attempts=QUARANTINE_FROM)

    assert await fleet.journal.collect(await fleet.open(), turn=1) == Claimed()
    assert [(row["what"], row["text"]) for row in fleet.rows("audit")] == [
        ("quarantine", f"inbox event {event} (message) is quarantined: 5 runs ended over it")
    ]
    assert [row["key"] for row in fleet.rows("notice")] == [f"quarantine:{event}:{QUARANTINE_FROM}"]


async def test_a_person_is_told_of_each_quarantine_of_an_event(fleet: Fleet) -> None:
    event = await poison(fleet, attempts=QUARANTINE_FROM)
    with fleet.database.exclusive(fleet.name) as tx:
        claims.lift_quarantine(tx, fleet.name, event)
    while not fleet.rows("inbox")[0]["quarantined_at"]:
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fail(fleet, run, after_a_reply=True)

    assert len(fleet.rows("notice")) == 2


async def test_a_quarantined_event_takes_up_its_twin_when_it_is_released(fleet: Fleet) -> None:
    quarantined = fleet.post(Kind.DEMAND_BAND, dedupe_key="band")
    with fleet.database.transaction() as tx:
        tx.execute(text("UPDATE inbox SET attempts = 5, quarantined_at = now()"))
    fleet.post(Kind.DEMAND_BAND, dedupe_key="band", text="newer")
    with fleet.database.exclusive(fleet.name) as tx:
        assert claims.lift_quarantine(tx, fleet.name, quarantined) is None

    (row,) = fleet.rows("inbox")
    assert (row["id"], row["count"], row["text"], row["quarantined_at"]) == (quarantined, 2, "newer", None)
    claimed = await fleet.journal.collect(await fleet.open(), turn=1)
    assert [event.id for event in claimed.events] == [quarantined]
