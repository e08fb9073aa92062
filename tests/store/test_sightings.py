"""The provider's list is laid beside the ledger, and what it cannot prove is waited for."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fleet_agent.domain.actions import DestroyBox, RentBox
from fleet_agent.domain.fleet import Inventory, Stage
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.run import Run
from fleet_agent.store import hosts, ledger, tables
from fleet_agent.store.database import real_now
from fleet_agent.store.ledger import GRACE
from fleet_agent.store.sightings import LIST_LAG, MISSES_UNTIL_GONE, stage_seen
from tests.store.rig import NOON, Fleet, instance, offer

OVER = GRACE + timedelta(seconds=1)


# --- what is listed ---------------------------------------------------------------------------------------------------


async def test_a_box_is_known_by_its_label_and_takes_number_and_price_from_the_list(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    await ready.sees(run, ready.instance(key, 101, usd_per_hour=Decimal("0.43")))

    (box,) = await ready.journal.boxes(run)

    assert (box.key, box.vast_id, box.usd_per_hour) == (key, 101, Decimal("0.43"))


@pytest.mark.parametrize(
    ("status", "stage"),
    [("", Stage.RENTED), ("created", Stage.LOADING), ("loading", Stage.LOADING), ("running", Stage.PROVING),
     ("exited", Stage.LOADING), ("offline", Stage.LOADING)],
)  # fmt: skip
def test_only_a_running_box_counts_as_proving(status: str, stage: Stage) -> None:
    assert stage_seen(instance(actual_status=status)) is stage


async def test_what_carries_no_label_of_this_fleet_is_left_alone(ready: Fleet) -> None:
    run = await ready.open()
    strangers = [
        instance(id=1, label=""),
        instance(id=2, label="somebody else's"),
        instance(id=3, label="fa/zzzzzz/main/r1-s1-c1-aaaa"),
        instance(id=4, label=ready.label("r1-s1-c1-aaaa").replace("/main/", "/other/")),
    ]

    assert await ready.journal.record_sighting(run, ready.look(*strangers).value) == ()
    assert ready.rows("box") == []


async def test_one_look_counts_once_however_often_it_is_recorded(ready: Fleet) -> None:
    """Control: a later look counts again."""
    run = await ready.open()
    key = await ready.rented(run)
    await ready.sees(run, ready.instance(key))
    empty = ready.look().value

    for _ in range(3):
        await ready.journal.record_sighting(run, empty)
    once = ready.box(key)["misses"]
    await ready.sees(run)

    assert (once, ready.box(key)["misses"]) == (1, 2)


async def test_a_look_older_than_the_last_one_changes_nothing(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    older = ready.look().value
    await ready.sees(run, ready.instance(key))

    await ready.journal.record_sighting(run, older)

    assert (ready.box(key)["sightings"], ready.box(key)["misses"]) == (1, 0)


# --- rents whose answer was lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [None, ActionStatus.UNKNOWN, ActionStatus.FAILED, ActionStatus.EXPIRED])
async def test_a_rent_is_done_when_its_label_is_found_whatever_was_thought_of_it(
    ready: Fleet, status: ActionStatus | None
) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    if status is not None:
        await ready.journal.record_outcome(key, status, "no box, it seems")

    await ready.sees(run, ready.instance(key))

    assert ready.action(key)["status"] == "done"
    assert [box.key for box in await ready.journal.boxes(run)] == [key]
    assert await ready.journal.unsettled(run) == ()
    assert await ready.journal.in_flight(run) == (0, Decimal(0))


async def test_a_rent_that_is_not_listed_stays_reserved_until_its_grace_is_over(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    ready.let_real_time_pass(GRACE - timedelta(seconds=10))
    for _ in range(5):
        await ready.sees(run)
    in_grace = ready.action(key)["status"], (await ready.journal.in_flight(run))[0]
    ready.let_real_time_pass(timedelta(seconds=11))
    await ready.sees(run)

    assert in_grace == ("sent", 1)
    assert ready.action(key)["status"] == "expired"
    assert await ready.journal.in_flight(run) == (0, Decimal(0))
    assert ready.box(key)["gone_because"] == "never came into being"


async def expires(fleet: Fleet, run: Run, *, answer: ActionStatus | None, step: int) -> str:
    """A rent that no list ever shows; its key. `answer` is what was heard of it, None where who asked had died."""
    key = await fleet.rent(run, step=step, offer_id=step)
    if answer is not None:
        await fleet.journal.record_outcome(key, answer, "504 Gateway Timeout")
    fleet.let_real_time_pass(OVER)
    await fleet.sees(run)
    assert fleet.action(key)["status"] == "expired"
    return key


async def test_a_rent_that_was_called_and_never_seen_was_in_vain(ready: Fleet) -> None:
    """Its machine is avoided for a while, and one such rent after the other pauses renting."""
    ready.set_policy(limits__max_rents_per_run="9", watch__rent_failures="2")
    run = await ready.open()
    await expires(ready, run, answer=ActionStatus.UNKNOWN, step=1)
    (ban,) = ready.rows("host_ban")
    after_one = ready.state()["rent_failures"], ready.state()["rent_breaker"]
    with ready.database.exclusive(ready.name) as tx:
        hosts.lift(tx, ready.name, 11, by="test", now=ready.clock.now())
    await expires(ready, run, answer=ActionStatus.UNKNOWN, step=2)

    assert (ban["machine_id"], ban["failure"], ban["expires_at"] - ban["banned_at"]) == (
        11, "transient", timedelta(hours=6),
    )  # fmt: skip
    assert after_one == (1, "")
    assert ready.state()["rent_breaker"].startswith("2 rents in a row came to nothing")


async def test_a_rent_of_which_nobody_knows_whether_it_was_called_speaks_against_nobody(ready: Fleet) -> None:
    """The control: whoever was about to call died, and that is no machine's fault."""
    run = await ready.open()
    await expires(ready, run, answer=None, step=1)
    assert (ready.rows("host_ban"), ready.state()["rent_failures"]) == ([], 0)


async def test_a_rent_expires_whatever_the_stored_policy_says(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    await ready.journal.record_outcome(key, ActionStatus.UNKNOWN, "504 Gateway Timeout")
    ready.let_real_time_pass(OVER)
    with ready.database.transaction() as tx:
        tx.execute(text("""UPDATE session_state SET policy = '{"limits": {"max_boxes": "many"}}'"""))
    await ready.sees(run)

    assert (ready.action(key)["status"], len(ready.rows("host_ban"))) == ("expired", 1)


async def test_a_box_that_appears_after_its_rent_expired_is_a_box_again(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    ready.let_real_time_pass(OVER)
    await ready.sees(run)
    expired = ready.action(key)["status"], ready.box(key)["stage"]

    await ready.sees(run, ready.instance(key))

    assert expired == ("expired", "gone")
    assert (ready.action(key)["status"], ready.box(key)["stage"]) == ("done", "proving")


async def test_a_new_box_is_not_missing_while_the_list_may_lag(ready: Fleet) -> None:
    """Control: after the grace the same looks count."""
    run = await ready.open()
    key = await ready.rented(run)
    for _ in range(MISSES_UNTIL_GONE):
        await ready.sees(run)
    in_grace = ready.box(key)["stage"]
    ready.let_real_time_pass(OVER)
    await ready.sees(run)

    assert (in_grace, ready.box(key)["stage"]) == ("rented", "gone")


# --- boxes that go ----------------------------------------------------------------------------------------------------


async def test_a_box_is_gone_when_it_was_missing_from_two_looks_and_for_a_whole_grace(ready: Fleet) -> None:
    """Control: neither many looks at once nor one look after a long time are enough; a list may lag that long."""
    run = await ready.open()
    key = await ready.rented(run)
    await ready.sees(run, ready.instance(key))
    for _ in range(MISSES_UNTIL_GONE + 3):
        await ready.sees(run)
    at_once = ready.box(key)["stage"]
    await ready.sees(run, ready.instance(key))
    ready.let_real_time_pass(OVER)
    await ready.sees(run)
    late_but_once = ready.box(key)["stage"]
    ready.let_real_time_pass(OVER)
    await ready.sees(run)

    assert (at_once, late_but_once, ready.box(key)["stage"]) == ("proving", "proving", "gone")


async def test_a_box_that_a_lagging_list_leaves_out_keeps_its_place_under_the_cap(ready: Fleet) -> None:
    """Two looks a second apart freed it once, and the cap was broken when the list caught up."""
    ready.set_policy(limits__max_boxes="1")
    run = await ready.open()
    await ready.sees(run, ready.instance(await ready.rented(run)))
    for _ in range(MISSES_UNTIL_GONE):
        await ready.sees(run)

    (ruled,) = await ready.reply(run, RentBox(offer_id=2, reason="work waits"), step=2, offers=[offer(id=2)])

    assert ruled.ruling.code == "max_boxes"


async def test_a_list_that_was_read_before_a_rent_says_nothing_about_its_box(ready: Fleet) -> None:
    """Control: a list that was read after it does."""
    run = await ready.open()
    before = ready.look().value
    ready.clock.advance(timedelta(seconds=1))
    key = await ready.rent(run)
    ready.let_real_time_pass(OVER)

    await ready.journal.record_sighting(run, before)
    by_the_old_list = ready.action(key)["status"]
    await ready.sees(run)

    assert (by_the_old_list, ready.action(key)["status"]) == ("sent", "expired")


async def test_looks_count_although_the_clock_of_business_was_set_back(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.sees(run, ready.instance(key))
    ready.clock.advance(-timedelta(hours=1))

    await ready.loses(run)

    assert ready.box(key)["stage"] == "gone"


async def test_what_is_waited_for_since_a_time_to_come_is_waited_for_from_now_on(ready: Fleet) -> None:
    """The clock is set back by an hour while a box drains, reports, is in trouble and has a call on its way. Control:
    until it is, a look leaves all of that as it is."""
    run = await ready.open()
    key = await ready.rented(run)
    with ready.database.exclusive("main") as tx:
        box = tx.get_one(tables.Box, key)
        ledger.drain(box, "no work", Policy(), ready.clock.now())
        box.reported_at = box.troubled_since = ready.clock.now()
        box.busy_action, box.busy_until = "drain_box", real_now(tx) + timedelta(seconds=80)
    times = ("stage_since", "drain_by", "reported_at", "troubled_since", "busy_until")
    await ready.sees(run, ready.instance(key))
    left = {name: ready.box(key)[name] for name in times}
    before = ready.clock.now()

    ready.clock.jump(-timedelta(hours=1))
    ready.let_real_time_pass(-timedelta(hours=1))
    await ready.sees(run, ready.instance(key))

    box_row, now = ready.box(key), ready.clock.now()
    assert all(left.values())
    assert max(left["stage_since"], left["reported_at"], left["troubled_since"]) < before
    assert (box_row["stage_since"], box_row["reported_at"], box_row["troubled_since"]) == (now, now, now)
    assert box_row["drain_by"] == now + Policy().deadlines.draining
    assert (box_row["busy_action"], box_row["busy_until"]) == (None, None)


async def test_a_clock_that_was_set_back_makes_no_grace_longer(ready: Fleet) -> None:
    """Neither of a rent whose answer was lost, nor of a box that is missing."""
    run = await ready.open()
    lost = await ready.rent(run)
    missing = await ready.rented(run, vast_id=102, offer_id=2, step=2)
    await ready.sees(run, ready.instance(missing, 102))
    await ready.sees(run)
    ready.let_real_time_pass(-timedelta(hours=1))
    await ready.sees(run)
    ready.let_real_time_pass(OVER)
    for _ in range(MISSES_UNTIL_GONE):
        await ready.sees(run)

    assert (ready.action(lost)["status"], ready.box(missing)["stage"]) == ("expired", "gone")


async def test_only_looks_in_a_row_count(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    stages: list[str] = []
    for _ in range(3):
        await ready.sees(run, ready.instance(key))
        await ready.sees(run)
        stages.append(ready.box(key)["stage"])

    assert stages == ["proving"] * 3


async def test_a_destroyed_box_is_gone_when_it_was_absent_for_longer_than_lists_lag(ready: Fleet) -> None:
    """Control: two looks at once do not prove it. Nobody has to wait for a whole grace."""
    run = await ready.open()
    key = await ready.rented(run)
    order = await ready.destroy(run)
    await ready.journal.record_outcome(order, ActionStatus.UNKNOWN, "the answer was lost")
    for _ in range(MISSES_UNTIL_GONE):
        await ready.sees(run)
    at_once = ready.box(key)["stage"], ready.action(order)["status"]
    ready.let_real_time_pass(LIST_LAG)
    await ready.sees(run)

    assert at_once == ("destroying", "unknown")
    assert (ready.box(key)["stage"], ready.box(key)["gone_because"]) == ("gone", "destroyed")
    assert ready.action(order)["status"] == "done"
    assert ready.box(key)["gone_at"] == ready.clock.now()


async def test_a_box_that_is_listed_while_it_is_being_destroyed_goes_on_being_destroyed(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.journal.record_outcome(await ready.destroy(run), ActionStatus.DONE, "accepted")
    await ready.sees(run, ready.instance(key))

    assert ready.box(key)["stage"] == "destroying"


@pytest.mark.parametrize("answer", [ActionStatus.DONE, ActionStatus.UNKNOWN])
async def test_a_box_that_is_still_listed_after_the_grace_can_be_destroyed_anew(
    ready: Fleet, answer: ActionStatus
) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.journal.record_outcome(await ready.destroy(run), answer, "accepted, perhaps")
    ready.let_real_time_pass(OVER)
    look = ready.look(ready.instance(key))
    await ready.journal.record_sighting(run, look.value)

    (ruled,) = await ready.reply(run, DestroyBox(id=101, reason="no work"), step=3, inventory=look)

    assert ready.box(key)["stage"] == "proving"
    assert ruled.ruling.code == "allowed"
    assert await ready.journal.unsettled(run) == ()


# --- orphans ----------------------------------------------------------------------------------------------------------


async def test_a_box_with_our_label_that_the_ledger_does_not_know_is_adopted_and_noted(ready: Fleet) -> None:
    run = await ready.open()
    orphan = ready.instance("r900-s1-c1-abcd", 555, usd_per_hour=Decimal("0.50"))
    await ready.sees(run, orphan)
    await ready.sees(run, orphan)

    (box,) = await ready.journal.boxes(run)

    assert (box.key, box.vast_id, box.usd_per_hour) == ("r900-s1-c1-abcd", 555, Decimal("0.50"))
    assert [row["what"] for row in ready.rows("audit")].count("adopted") == 1


async def test_two_boxes_with_one_label_are_two_boxes(ready: Fleet) -> None:
    """Control: by the label alone they would be one, and the other would be billed unseen."""
    run = await ready.open()
    key = await ready.rented(run, vast_id=101)
    both = [ready.instance(key, 101), ready.instance(key, 102)]
    await ready.sees(run, *both)
    await ready.sees(run, *both)

    assert {box.vast_id: box.key for box in await ready.journal.boxes(run)} == {101: key, 102: f"{key}-102"}
    assert len({instance.label for instance in both}) == 1


async def test_a_box_that_a_person_has_labelled_for_another_fleet_is_adopted_by_that_one(ready: Fleet) -> None:
    """Control: under the key that its label names there is a box already, and a second row would be refused."""
    run = await ready.open()
    key = await ready.rented(run)
    east = Fleet(ready.database, name="east", clock=ready.clock)
    labelled_anew = instance(id=101, label=ready.label(key).replace("/main/", "/east/"))

    await east.sees(await east.open(), labelled_anew)

    assert [(row["key"], row["vast_id"]) for row in east.rows("box")] == [(f"{key}-101", 101)]
    with pytest.raises(IntegrityError), ready.database.transaction() as tx:
        tx.execute(text("UPDATE box SET key = :key WHERE fleet = 'east'"), {"key": key})


async def test_a_box_that_is_gone_stays_so_when_another_one_carries_its_label(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run, vast_id=101)
    await ready.sees(run, ready.instance(key, 101))
    await ready.loses(run)
    before = ready.box(key)
    for _ in range(MISSES_UNTIL_GONE):
        await ready.sees(run, ready.instance(key, 102))

    after = ready.box(key)
    assert (after["stage"], after["gone_at"], after["misses"]) == ("gone", before["gone_at"], before["misses"])
    assert [box.vast_id for box in await ready.journal.boxes(run)] == [102]


async def test_a_box_whose_label_was_lost_is_known_by_its_number(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run, vast_id=101)
    for _ in range(MISSES_UNTIL_GONE + 1):
        await ready.sees(run, instance(id=101, label=""))

    assert (ready.box(key)["stage"], ready.box(key)["misses"]) == ("proving", 0)


async def test_a_box_that_was_thought_gone_counts_again_when_it_is_listed(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.sees(run, ready.instance(key))
    await ready.loses(run)
    thought = ready.box(key)["stage"]
    await ready.sees(run, ready.instance(key))

    assert (thought, ready.box(key)["stage"], ready.box(key)["gone_at"]) == ("gone", "proving", None)


async def test_a_stale_run_may_tell_what_it_saw(ready: Fleet) -> None:
    """What was seen is a fact; it needs no fence."""
    stale = await ready.open()
    key = await ready.rent(stale)
    await ready.open()

    inventory = Inventory(instances=(ready.instance(key),), seen_at=NOON + timedelta(hours=1))
    assert [box.key for box in await ready.journal.record_sighting(stale, inventory)] == [key]
