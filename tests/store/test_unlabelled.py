"""A box that carries no label is ours only where nothing else explains it; otherwise a person is asked."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from fleet_agent.domain.fleet import Instance
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.run import Run
from fleet_agent.store.ledger import GRACE
from tests.store.rig import IMAGE, Fleet, instance

OVER = GRACE + timedelta(seconds=1)


async def lost_rent(fleet: Fleet, run: Run, *, step: int = 1) -> str:
    """A rent of machine 11 whose answer was lost; its key."""
    key = await fleet.rent(run, step=step)
    await fleet.journal.record_outcome(key, ActionStatus.UNKNOWN, "504 Gateway Timeout")
    return key


def unlabelled(fleet: Fleet, vast_id: int = 101, **changes: object) -> Instance:
    """A box on the machine of the rents, started now."""
    return instance(id=vast_id, **{"label": "", "started_at": fleet.clock.now()} | changes)


def notes(fleet: Fleet) -> list[str]:
    return [row["text"] for row in fleet.rows("audit") if row["what"] == "question"]


async def test_a_box_that_only_one_lost_rent_explains_is_ours_by_its_number(ready: Fleet) -> None:
    run = await ready.open()
    key = await lost_rent(ready, run)
    await ready.sees(run, unlabelled(ready))

    assert [(box.key, box.vast_id) for box in await ready.journal.boxes(run)] == [(key, 101)]
    assert (ready.action(key)["status"], await ready.journal.unsettled(run)) == ("done", ())
    assert ready.state()["questions"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"label": "somebody else's"},
        {"machine_id": 12},
        {"image": "example/other@sha256:" + "b" * 64},
        {"image": ""},
        {"started_at": timedelta(seconds=-1)},
        {"started_at": OVER},
    ],
    ids=str,
)
async def test_a_box_that_differs_in_anything_is_not_claimed(ready: Fleet, change: dict[str, object]) -> None:
    """Else a run could destroy what is somebody else's."""
    run = await ready.open()
    await lost_rent(ready, run)
    changes = {
        name: ready.clock.now() + value if isinstance(value, timedelta) else value for name, value in change.items()
    }
    await ready.sees(run, unlabelled(ready, **changes))

    assert await ready.journal.boxes(run) == ()
    assert (await ready.journal.in_flight(run))[0] == 1


@pytest.mark.parametrize(
    ("started", "asked"),
    [
        (timedelta(seconds=-59), True),
        (GRACE + timedelta(seconds=59), True),
        (timedelta(seconds=-61), False),
        (GRACE + timedelta(seconds=61), False),
    ],
)
async def test_what_the_clocks_of_two_explain_is_asked_about_and_not_claimed(
    ready: Fleet, started: timedelta, asked: bool
) -> None:
    """The provider's clock is not ours; a box of ours that is nobody's would be billed unseen."""
    run = await ready.open()
    await lost_rent(ready, run)
    await ready.sees(run, unlabelled(ready, started_at=ready.clock.now() + started))

    assert await ready.journal.boxes(run) == ()
    assert len(ready.state()["questions"]) == asked


async def test_what_may_be_ours_is_asked_about_and_noted_once(ready: Fleet) -> None:
    run = await ready.open()
    key = await lost_rent(ready, run)
    stranger = unlabelled(ready, image="example/other@sha256:" + "b" * 64)
    for _ in range(3):
        await ready.sees(run, stranger)

    (question,) = ready.state()["questions"]
    assert question.startswith("box 101 on machine 11 carries no label and may be ours")
    assert key in question
    assert notes(ready) == [question]


async def test_a_box_on_a_machine_that_we_never_rented_is_nobodys_question(ready: Fleet) -> None:
    """Control of the test above."""
    run = await ready.open()
    await lost_rent(ready, run)
    await ready.sees(run, unlabelled(ready, machine_id=12))

    assert ready.state()["questions"] == []


async def test_two_lost_rents_that_explain_one_box_stay_reserved_both(ready: Fleet) -> None:
    run = await ready.open()
    for step in (1, 2):
        await lost_rent(ready, run, step=step)
    await ready.sees(run, unlabelled(ready))

    assert await ready.journal.boxes(run) == ()
    assert (await ready.journal.in_flight(run))[0] == 2
    assert len(ready.state()["questions"]) == 1


async def test_two_boxes_that_one_lost_rent_explains_are_both_asked_about(ready: Fleet) -> None:
    run = await ready.open()
    await lost_rent(ready, run)
    await ready.sees(run, unlabelled(ready, 101), unlabelled(ready, 102))

    assert await ready.journal.boxes(run) == ()
    assert len(ready.state()["questions"]) == 2


async def test_a_lost_rent_of_another_fleet_may_explain_the_box_as_well(ready: Fleet) -> None:
    other = Fleet(ready.database, name="other", clock=ready.clock)
    other.set_policy(launch__image=IMAGE)
    run = await ready.open()
    await lost_rent(ready, run)
    await lost_rent(other, await other.open())
    await ready.sees(run, unlabelled(ready))

    assert await ready.journal.boxes(run) == ()
    assert len(ready.state()["questions"]) == 1


async def test_only_the_fleet_whose_rent_is_unsettled_may_claim_a_box(ready: Fleet) -> None:
    other = Fleet(ready.database, name="other", clock=ready.clock)
    other.set_policy(launch__image=IMAGE)
    run, others_run = await ready.open(), await other.open()
    await ready.journal.record_outcome(await ready.rent(run), ActionStatus.FAILED, "no such offer")
    await lost_rent(other, others_run)
    box = unlabelled(ready)
    await ready.sees(run, box)
    asked_at_first = len(ready.state()["questions"])
    await other.sees(others_run, box)
    await ready.sees(run, box)

    assert (asked_at_first, ready.state()["questions"]) == (1, [])
    assert [each.vast_id for each in await other.journal.boxes(others_run)] == [101]


async def test_a_box_that_a_rent_left_behind_after_it_expired_stays_a_question_until_it_is_gone(ready: Fleet) -> None:
    """It is billed, and no label will ever show it."""
    run = await ready.open()
    key = await lost_rent(ready, run)
    left_behind = unlabelled(ready)
    ready.let_real_time_pass(OVER)
    await ready.sees(run)
    ready.clock.advance(timedelta(hours=3))
    await ready.sees(run, left_behind)
    asked = ready.state()["questions"]
    await ready.sees(run)

    assert ready.action(key)["status"] == "expired"
    assert (len(asked), ready.state()["questions"]) == (1, [])


async def test_a_box_whose_number_is_known_is_no_question(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run, vast_id=101)
    await lost_rent(ready, run, step=2)
    await ready.sees(run, unlabelled(ready, 101))

    assert (await ready.journal.in_flight(run))[0] == 1
    assert ready.state()["questions"] == []


async def test_a_look_is_recorded_whatever_the_stored_policy_says(ready: Fleet) -> None:
    """The emergency stop looks too, and must not fail over a limit of a later version."""
    run = await ready.open()
    key = await lost_rent(ready, run)
    with ready.database.transaction() as tx:
        tx.execute(text("""UPDATE session_state SET policy = policy || '{"limits": "unreadable"}'"""))

    await ready.sees(run, unlabelled(ready))

    assert ready.action(key)["status"] == "done"


async def test_a_lost_label_is_not_looked_for_where_the_label_is_there(ready: Fleet) -> None:
    run = await ready.open()
    key = await lost_rent(ready, run)
    await ready.sees(run, ready.instance(key, 101), unlabelled(ready, 102))

    assert [box.vast_id for box in await ready.journal.boxes(run)] == [101]
