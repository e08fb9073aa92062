"""Rulings and intents are stored before anything happens, and what was reserved stays so until it is settled."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fleet_agent.domain.actions import DestroyBox, Effect, RentBox
from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.observation import Unknown
from fleet_agent.domain.rules import Decision, Mode
from fleet_agent.domain.run import Run
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import actions, ledger, steering
from fleet_agent.store.ledger import GRACE
from tests.store.rig import IMAGE, SEND_BY, TELL, Fleet, offer


def rent(offer_id: int = 1) -> RentBox:
    return RentBox(offer_id=offer_id, reason="work waits")


def destroy(vast_id: int = 101) -> DestroyBox:
    return DestroyBox(id=vast_id, reason="no work")


def set_mode(fleet: Fleet, mode: Mode) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        steering.set_mode(tx, fleet.name, mode, who="test", now=fleet.clock.now())


# --- rulings ----------------------------------------------------------------------------------------------------------


async def test_an_allowed_effect_is_an_intent_before_anything_happens(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, rent(), offers=[offer(usd_per_hour=Decimal("0.412"))])

    row = ready.action(ruled.key)

    assert ruled.ruling.decision is Decision.ALLOW
    assert (row["status"], row["tool"], row["run_id"]) == ("intended", "rent_box", run.run_id)
    assert row["arguments"] == {"offer_id": 1, "reason": "work waits"}
    assert row["reserved_usd_per_hour"] == Decimal("0.412")
    assert ready.rows("box") == []


async def test_a_refused_effect_is_kept_with_its_reason_and_reserves_nothing(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, rent(offer_id=404))

    row = ready.action(ruled.key)

    assert (row["status"], row["ruling"], row["code"]) == ("refused", "refuse", "offer_not_listed")
    assert await ready.journal.in_flight(run) == (0, Decimal(0))


async def test_a_key_names_run_step_and_call_and_is_never_the_same_twice(ready: Fleet) -> None:
    run = await ready.open()
    ruled = await ready.reply(run, TELL, TELL, step=3)

    assert [each.key[:-4] for each in ruled] == [f"r{run.run_id}-s3-c1-", f"r{run.run_id}-s3-c2-"]
    assert len({each.key[-4:] for each in ruled}) == 2


async def test_the_effects_of_one_reply_share_one_headroom(ready: Fleet) -> None:
    """Control: each of the two rents alone is within the cap."""
    ready.set_policy(limits__max_boxes="1")
    run = await ready.open()
    alone = await ready.reply(run, rent(2), step=1, offers=[offer(id=2)])
    await ready.journal.record_outcome(alone[0].key, ActionStatus.FAILED, "the offer is gone")

    both = await ready.reply(run, rent(1), rent(2), step=2, offers=[offer(id=1), offer(id=2)])

    assert alone[0].ruling.decision is Decision.ALLOW
    assert [ruled.ruling.code for ruled in both] == ["allowed", "max_boxes"]


async def test_a_box_is_destroyed_once_however_often_one_reply_says_so(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101)

    twice = await ready.reply(run, destroy(), destroy(), step=2, inventory=ready.look(ready.instance_of(101)))

    assert [ruled.ruling.code for ruled in twice] == ["allowed", "already_destroying"]


async def test_the_caps_of_a_run_count_over_all_its_steps(ready: Fleet) -> None:
    ready.set_policy(limits__max_notifications_per_run="2")
    run = await ready.open()
    codes = [(await ready.reply(run, TELL, step=step))[0].ruling.code for step in (1, 2, 3)]

    assert codes == ["allowed", "allowed", "run_cap"]


@pytest.mark.parametrize(("sent", "code"), [(True, "run_cap"), (False, "allowed")])
async def test_a_rent_that_was_sent_uses_up_the_cap_of_its_run_whatever_was_answered(
    ready: Fleet, sent: bool, code: str
) -> None:
    """A provider may say no and make the box. Control: what was given up before it was sent uses up nothing."""
    ready.set_policy(limits__max_rents_per_run="1")
    run = await ready.open()
    (first,) = await ready.reply(run, rent(1), offers=[offer(id=1)])
    if sent:
        await ready.journal.mark_sent(run, first.key, send_by=SEND_BY)
    await ready.journal.record_outcome(first.key, ActionStatus.FAILED, "the offer is gone")

    (again,) = await ready.reply(run, rent(2), step=2, offers=[offer(id=2)])

    assert again.ruling.code == code


@pytest.mark.parametrize("effect", [rent(), destroy()])
async def test_an_unknown_inventory_lets_nothing_be_rented_or_destroyed(ready: Fleet, effect: Effect) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101, offer_id=2)

    (ruled,) = await ready.reply(run, effect, step=2, offers=[offer()], inventory=Unknown(reason="the list broke off"))

    assert ruled.ruling.code == "inventory_unknown"


async def test_the_policy_that_rules_is_the_one_in_force_at_the_ruling(ready: Fleet) -> None:
    run = await ready.open()
    ready.set_policy(limits__max_boxes="0")

    (ruled,) = await ready.reply(run, rent(), offers=[offer()])

    assert ruled.ruling.code == "max_boxes"


# --- sending ----------------------------------------------------------------------------------------------------------


async def test_a_rent_is_a_box_of_the_ledger_from_the_moment_it_may_have_been_sent(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)

    row, box = ready.action(key), ready.box(key)

    assert row["status"] == "sent"
    assert row["send_by"] - row["sent_at"] == SEND_BY
    assert (box["label"], box["stage"], box["vast_id"]) == (ready.label(key), "rented", None)


async def test_nothing_is_sent_twice(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)

    again = await ready.journal.mark_sent(run, key, send_by=SEND_BY)

    assert (again.decision, again.code) == (Decision.REFUSE, "not_intended")
    assert ready.action(key)["status"] == "sent"


async def test_what_is_dropped_reserves_nothing_and_what_was_sent_is_not_dropped(ready: Fleet) -> None:
    run = await ready.open()
    dropped, sent = await ready.reply(run, rent(1), rent(2), offers=[offer(id=1), offer(id=2)])
    await ready.journal.mark_sent(run, sent.key, send_by=SEND_BY)
    for each in (dropped, sent):
        await ready.journal.drop(run, each.key, "offer 1 is gone")

    assert (ready.action(dropped.key)["status"], ready.action(sent.key)["status"]) == ("failed", "sent")
    assert (await ready.journal.in_flight(run))[0] == 1


async def overtaken(fleet: Fleet) -> tuple[Run, Run, str]:
    """An attempt that reads a price again while a retry of it sends the very rent; both, and its key."""
    older = await fleet.open(flow_run_id="retried")
    (ruled,) = await fleet.reply(older, rent(), offers=[offer()])
    newer = await fleet.open(flow_run_id="retried", attempt=2)
    await fleet.journal.mark_sent(newer, ruled.key, send_by=SEND_BY)
    return older, newer, ruled.key


async def test_who_was_overtaken_takes_nothing_back_that_another_one_has_sent(ready: Fleet) -> None:
    older, newer, key = await overtaken(ready)
    with pytest.raises(RunSuperseded):
        await ready.journal.drop(older, key, "offer 1 is gone")

    assert ready.action(key)["status"] == "sent"
    assert (await ready.journal.in_flight(newer))[0] == 1


async def test_who_tells_it_as_a_fact_frees_what_is_on_its_way(ready: Fleet) -> None:
    """The control: facts are not fenced, and it is none."""
    _, newer, key = await overtaken(ready)
    await ready.journal.record_outcome(key, ActionStatus.FAILED, "offer 1 is gone")

    assert (await ready.journal.in_flight(newer))[0] == 0


async def test_a_pause_stops_what_was_allowed_before_it(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, rent(), offers=[offer()])
    set_mode(ready, Mode.PAUSED)

    ruling = await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)

    assert (ruling.decision, ruling.code) == (Decision.REFUSE, "paused")
    assert ready.action(ruled.key)["status"] == "refused"
    assert ready.rows("box") == []


@pytest.mark.parametrize(
    ("drawn", "codes"),
    [
        ("scale_out_paused = true", ["scale_out_paused", "allowed"]),
        ("rent_breaker = 'rents kept failing'", ["rent_breaker", "allowed"]),
        ("scale_in_paused = true", ["allowed", "scale_in_paused"]),
        ("frozen_because = 'half of the boxes are missing'", ["frozen", "frozen"]),
    ],
)
async def test_a_brake_that_is_drawn_later_stops_what_it_is_there_for_and_nothing_else(
    ready: Fleet, drawn: str, codes: list[str]
) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101, offer_id=2)
    look = ready.look(ready.instance_of(101))
    ruled = await ready.reply(run, rent(), destroy(), step=2, offers=[offer()], inventory=look)
    with ready.database.transaction() as tx:
        tx.execute(text(f"UPDATE session_state SET {drawn}"))

    assert [(await ready.journal.mark_sent(run, each.key, send_by=SEND_BY)).code for each in ruled] == codes


@pytest.mark.parametrize("effect", ["rent", "destroy"])
async def test_a_policy_that_changed_stops_what_was_allowed_by_the_old_one(ready: Fleet, effect: str) -> None:
    """Control: a person may be told things under any policy."""
    run = await ready.open()
    await ready.rented(run, vast_id=101, offer_id=2)
    asked = rent() if effect == "rent" else destroy()
    look = ready.look(ready.instance_of(101))
    ruled = await ready.reply(run, asked, TELL, step=2, offers=[offer()], inventory=look)
    ready.set_policy(limits__max_boxes="1")

    codes = [(await ready.journal.mark_sent(run, each.key, send_by=SEND_BY)).code for each in ruled]

    assert codes == ["policy_changed", "allowed"]
    assert ready.action(ruled[0].key)["status"] == "refused"


async def test_what_was_judged_comes_with_the_ruling(ready: Fleet) -> None:
    run = await ready.open()
    seen = offer(usd_per_hour=Decimal("0.412"))
    rented, told = await ready.reply(run, rent(), TELL, offers=[seen])

    assert (rented.offer, told.offer) == (seen, None)
    assert rented.policy.launch.image == IMAGE


async def test_a_person_is_told_things_while_the_fleet_is_paused(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, TELL)
    set_mode(ready, Mode.PAUSED)

    assert (await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)).decision is Decision.ALLOW


async def test_a_dry_run_rules_and_sends_nothing(ready: Fleet) -> None:
    set_mode(ready, Mode.DRY_RUN)
    run = await ready.open()
    (ruled,) = await ready.reply(run, rent(), offers=[offer()])

    ruling = await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)

    row = ready.action(ruled.key)
    assert ruled.ruling.decision is Decision.ALLOW
    assert (ruling.decision, ruling.code) == (Decision.REFUSE, "dry_run")
    assert (row["status"], row["reserved_usd_per_hour"]) == ("dry", 0)
    assert not (await ready.close(run)).verdict.action


async def test_the_caps_of_a_run_hold_in_a_dry_run_too(ready: Fleet) -> None:
    ready.set_policy(limits__max_notifications_per_run="1")
    set_mode(ready, Mode.DRY_RUN)
    run = await ready.open()

    ruled = await ready.reply(run, TELL, TELL)

    assert [each.ruling.code for each in ruled] == ["allowed", "run_cap"]


async def test_a_dry_run_that_begins_after_the_ruling_sends_nothing_either(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, rent(), offers=[offer()])
    set_mode(ready, Mode.DRY_RUN)

    ruling = await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)

    assert ruling.code == "dry_run"
    assert ready.action(ruled.key)["status"] == "dry"
    assert await ready.journal.in_flight(run) == (0, Decimal(0))


async def test_a_box_that_a_person_ordered_to_be_destroyed_is_not_destroyed_by_the_run_too(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101)
    (ruled,) = await ready.reply(run, destroy(), step=2, inventory=ready.look(ready.instance_of(101)))
    with ready.database.exclusive(ready.name) as tx:
        actions.order_destroy(tx, ready.name, 101, now=ready.clock.now())

    assert (await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)).code == "already_destroying"


# --- in flight, from intent to box ------------------------------------------------------------------------------------


async def test_a_rent_counts_once_at_every_step_from_intent_to_box(ready: Fleet) -> None:
    run = await ready.open()
    counted: list[tuple[int, int]] = []

    async def count() -> None:
        counted.append(((await ready.journal.in_flight(run))[0], len(await ready.journal.boxes(run))))

    (ruled,) = await ready.reply(run, rent(), offers=[offer()])
    await count()
    await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)
    await count()
    await ready.journal.record_outcome(ruled.key, ActionStatus.UNKNOWN, "504 Gateway Timeout")
    await count()
    await ready.journal.record_outcome(ruled.key, ActionStatus.DONE, "rented", vast_id=101)
    await count()

    assert counted == [(1, 0), (1, 0), (1, 0), (0, 1)]


async def test_a_rent_that_was_refused_for_certain_reserves_nothing_more(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)

    await ready.journal.record_outcome(key, ActionStatus.FAILED, "no such offer")

    assert await ready.journal.in_flight(run) == (0, Decimal(0))
    assert (ready.box(key)["stage"], ready.box(key)["gone_because"]) == ("gone", "no such offer")


async def test_a_rent_whose_answer_was_lost_stays_reserved_for_the_runs_that_follow(ready: Fleet) -> None:
    ready.set_policy(limits__max_boxes="1")
    first = await ready.open()
    key = await ready.rent(first)
    await ready.journal.record_outcome(key, ActionStatus.UNKNOWN, "504 Gateway Timeout")
    await ready.close(first)
    second = await ready.open()

    (ruled,) = await ready.reply(second, rent(2), offers=[offer(id=2)])

    assert ruled.ruling.code == "max_boxes"
    assert [(open_question.key, open_question.label) for open_question in await ready.journal.unsettled(second)] == [
        (key, ready.label(key))
    ]


def may_still_appear(fleet: Fleet) -> int:
    with fleet.database.transaction() as tx:
        return ledger.may_still_appear(tx, fleet.name)


@pytest.mark.parametrize("status", [ActionStatus.FAILED, ActionStatus.EXPIRED])
async def test_a_rent_that_came_to_nothing_may_still_appear_until_its_grace_is_over(
    ready: Fleet, status: ActionStatus
) -> None:
    run = await ready.open()
    await ready.journal.record_outcome(await ready.rent(run), status, "no box, it seems")
    in_grace = may_still_appear(ready)
    ready.let_real_time_pass(GRACE)

    assert (in_grace, may_still_appear(ready)) == (1, 0)


async def test_a_rent_in_flight_may_still_appear_for_as_long_as_it_is_unsettled(ready: Fleet) -> None:
    run = await ready.open()
    await ready.journal.record_outcome(await ready.rent(run), ActionStatus.UNKNOWN, "504 Gateway Timeout")
    ready.let_real_time_pass(GRACE * 2)

    assert may_still_appear(ready) == 1


async def test_a_rent_whose_box_is_known_has_appeared(ready: Fleet) -> None:
    await ready.rented(await ready.open())

    assert may_still_appear(ready) == 0


async def test_an_intent_does_not_outlive_its_run(ready: Fleet) -> None:
    dead = await ready.open()
    (ruled,) = await ready.reply(dead, rent(), offers=[offer()])
    run = await ready.open()

    assert ready.action(ruled.key)["status"] == "expired"
    assert await ready.journal.in_flight(run) == (0, Decimal(0))


async def test_what_was_sent_outlives_its_run(ready: Fleet) -> None:
    dead = await ready.open()
    key = await ready.rent(dead)
    run = await ready.open()

    assert ready.action(key)["status"] == "sent"
    assert (await ready.journal.in_flight(run))[0] == 1


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [ActionStatus.FAILED, ActionStatus.UNKNOWN, ActionStatus.EXPIRED])
async def test_done_is_never_overwritten(ready: Fleet, later: ActionStatus) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.journal.record_outcome(key, later, "a late answer")

    assert (ready.action(key)["status"], ready.action(key)["outcome"]) == ("done", "rented")
    assert [box.vast_id for box in await ready.journal.boxes(run)] == [101]


async def test_a_late_answer_brings_back_a_box_that_was_thought_never_to_have_come(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    ready.let_real_time_pass(GRACE * 2)
    await ready.sees(run)
    expired = ready.action(key)["status"]

    await ready.journal.record_outcome(key, ActionStatus.DONE, "rented", vast_id=101)

    assert expired == "expired"
    assert [box.vast_id for box in await ready.journal.boxes(run)] == [101]


@pytest.mark.parametrize("settled", [ActionStatus.EXPIRED, ActionStatus.FAILED])
async def test_an_answer_that_is_lost_late_reopens_nothing(ready: Fleet, settled: ActionStatus) -> None:
    """No look would ever settle it again, and what it reserves would be reserved for ever."""
    run = await ready.open()
    key = await ready.rent(run)
    await ready.journal.record_outcome(key, settled, "no box, it seems")

    await ready.journal.record_outcome(key, ActionStatus.UNKNOWN, "the connection broke off")

    assert ready.action(key)["status"] == settled
    assert await ready.journal.in_flight(run) == (0, Decimal(0))


async def test_a_box_that_a_late_answer_brought_back_is_not_missing_from_before(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rent(run)
    await ready.loses(run)
    await ready.journal.record_outcome(key, ActionStatus.DONE, "rented", vast_id=101)

    await ready.sees(run)

    assert [box.vast_id for box in await ready.journal.boxes(run)] == [101]


async def test_an_outcome_is_recorded_for_a_run_that_lost_the_fence(ready: Fleet) -> None:
    stale = await ready.open()
    key = await ready.rent(stale)
    await ready.open()

    await ready.journal.record_outcome(key, ActionStatus.DONE, "rented", vast_id=101)

    assert ready.action(key)["status"] == "done"


async def test_a_box_whose_destroy_was_refused_is_there_after_all(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    order = await ready.destroy(run)
    going = ready.box(key)["stage"]
    await ready.journal.record_outcome(order, ActionStatus.FAILED, "no answer was possible")

    assert going == "destroying"
    assert ready.box(key)["stage"] != "destroying"


async def test_accepted_is_not_gone(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run)
    await ready.journal.record_outcome(await ready.destroy(run), ActionStatus.DONE, "accepted")

    assert [box.stage for box in await ready.journal.boxes(run)] == [Stage.DESTROYING]


async def test_a_message_that_reached_nobody_is_a_failed_action(ready: Fleet) -> None:
    run = await ready.open()
    (ruled,) = await ready.reply(run, TELL)
    await ready.journal.mark_sent(run, ruled.key, send_by=SEND_BY)
    await ready.journal.record_outcome(ruled.key, ActionStatus.FAILED, "nobody listens")

    assert ready.action(ruled.key)["status"] == "failed"
    assert not (await ready.close(run)).verdict.action


async def test_an_order_of_a_person_stands_in_the_ledger(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    with ready.database.exclusive(ready.name) as tx:
        order = actions.order_destroy(tx, ready.name, 101, now=ready.clock.now())

    row = ready.action(order)
    assert (row["actor"], row["run_id"], row["status"], row["box_key"]) == ("operator", None, "sent", key)
    assert order.startswith("operator101-")


async def test_one_key_names_one_action(ready: Fleet) -> None:
    run = await ready.open()
    await ready.reply(run, TELL, TELL)

    with pytest.raises(IntegrityError, match="action_key_key"), ready.database.transaction() as tx:
        tx.execute(text("UPDATE action SET key = 'the same'"))
