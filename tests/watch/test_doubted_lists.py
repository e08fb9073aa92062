"""Lists that lie, lag or fail: nothing is done on them by itself, and no fleet is rented twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from fleet_agent.domain.actions import DestroyBox, RentBox
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.triggers import Kind
from fleet_agent.store import looks, sightings, steering
from tests.watch.rented import HOUR, MINUTE, Rented, kinds, rented


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Rented]:
    async with rented(database_url) as made:
        yield made


# --- complete lists that cannot be true -------------------------------------------------------------------------------


async def test_a_list_in_which_the_whole_fleet_is_missing_freezes_everything_until_the_boxes_are_back(
    fleet: Rented,
) -> None:
    boxes = await fleet.rents_and_runs(3)
    fleet.faults.arm("list_lag", times=1, lasting=HOUR)

    await fleet.looks()
    frozen, kept = fleet.frozen(), {fleet.box(box)["stage"] for box in boxes}
    await fleet.looks()

    assert "3 of 3 boxes are missing" in frozen
    assert kept == {"proving"}
    assert fleet.frozen() == ""
    assert fleet.kinds() == kinds(Kind.LIST_FROZEN)
    assert [notice.partition(":")[0] for notice in fleet.notices()] == [
        "3 of 3 boxes are missing from the list at once, and nobody gave them up",
        "the list of boxes can be true again",
    ]


async def test_who_takes_one_absence_for_gone_has_lost_the_whole_fleet(
    fleet: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(sightings, "MISSES_UNTIL_GONE", 1)
    monkeypatch.setattr(sightings.ledger, "GRACE", timedelta(seconds=-1))
    boxes = await fleet.rents_and_runs(3)
    fleet.faults.arm("list_lag", times=1, lasting=HOUR)

    await fleet.looks()

    assert {fleet.box(box)["stage"] for box in boxes} == {"gone"}
    assert all(fleet.lives(box) for box in boxes)


async def test_while_the_list_is_doubted_nothing_is_rented_or_destroyed_by_itself(fleet: Rented) -> None:
    """Control: once the list is believed, the same is done."""
    *boxes, last = await fleet.rents_and_runs(5)
    for box in boxes:
        fleet.market.destroy(box.id)  # so that a list shows it; who did it, we cannot know
    await fleet.looks()
    offers = await fleet.offers()
    wanted = [RentBox(offer_id=offers[0].id, reason="work waits"), DestroyBox(id=last.id, reason="no work")]
    doubted = [ruled.ruling.code for ruled in await fleet.asks(wanted, offers)]
    await fleet.keeps_looking(3 * MINUTE)
    believed = [ruled.ruling.code for ruled in await fleet.asks(wanted, offers)]

    assert doubted == ["frozen", "frozen"]
    assert believed == ["allowed", "allowed"]


async def test_a_loss_that_is_told_three_times_is_believed(fleet: Rented) -> None:
    boxes = await fleet.rents_and_runs(4)
    for box in boxes[:3]:
        fleet.market.destroy(box.id)

    frozen: list[bool] = []
    for _ in range(6):
        await fleet.looks()
        frozen.append(bool(fleet.frozen()))

    assert frozen == [True, True, False, False, False, False]
    assert {fleet.box(box)["stage"] for box in boxes[:3]} == {"gone"}
    assert fleet.kinds() == kinds(Kind.LIST_FROZEN, Kind.BOX_GONE, Kind.BOX_GONE, Kind.BOX_GONE)


async def test_looks_that_orders_bring_forward_make_no_lie_believed(fleet: Rented) -> None:
    """A list that lags for half a minute may be read many times within it. Control: the test above, a minute apart."""
    boxes = await fleet.rents_and_runs(3)
    for box in boxes:
        fleet.market.destroy(box.id)

    frozen: list[bool] = []
    for _ in range(20):
        await fleet.looks(after=timedelta(seconds=1))
        frozen.append(bool(fleet.frozen()))

    assert frozen == [True] * 20


async def test_a_person_who_has_looked_is_not_told_the_same_again(fleet: Rented) -> None:
    """Control: without that word the next list is doubted too."""
    boxes = await fleet.rents_and_runs(4)
    for box in boxes[:3]:
        fleet.market.destroy(box.id)
    await fleet.looks()
    with fleet.fleet.database.exclusive("main") as tx:
        steering.resume(tx, "main", Mode.LIVE, who="ana", now=fleet.fleet.time.now())

    await fleet.looks()

    assert fleet.frozen() == ""
    assert fleet.kinds() == kinds(Kind.LIST_FROZEN)


async def test_boxes_that_were_given_up_are_no_reason_for_doubt(fleet: Rented) -> None:
    boxes = await fleet.rents_and_runs(2)
    for box in boxes:
        await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))

    await fleet.keeps_looking(5 * MINUTE)

    assert fleet.events() == []


# --- lists that could not be read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["list_success_false", "list_partial"])
async def test_a_list_that_cannot_be_read_whole_changes_nothing_and_is_told_after_five(
    fleet: Rented, fault: str
) -> None:
    boxes = await fleet.rents_and_runs(2)
    fleet.faults.arm("container_exits", times=1, machine_id=boxes[0].machine.machine_id)
    before = [(row["stage"], row["misses"]) for row in fleet.rows("box")]
    fleet.faults.arm(fault)

    told: list[int] = []
    for _ in range(8):
        await fleet.looks()
        told.append(len(fleet.notices()))

    assert told == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [(row["stage"], row["misses"]) for row in fleet.rows("box")] == before
    assert fleet.removals() == []
    assert fleet.rows("sample")[-1]["boxes"] is None

    fleet.faults.disarm(fault)  # the control: with a list, the box in trouble is given up
    await fleet.keeps_looking(6 * MINUTE)
    assert not fleet.lives(boxes[0])


async def test_a_list_that_lags_loses_no_new_box(fleet: Rented) -> None:
    fleet.faults.arm("list_lag", times=3, lasting=10 * MINUTE)
    boxes = await fleet.rents(2)

    await fleet.keeps_looking(5 * MINUTE)

    assert {fleet.box(box)["stage"] for box in boxes} == {"proving"}
    assert (fleet.events(), fleet.notices()) == ([], [])


# --- nothing is told twice, and nothing is lost -----------------------------------------------------------------------


async def test_a_look_that_dies_in_the_middle_has_told_nothing_and_the_next_one_tells_it(
    fleet: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.faults.arm("dud_host", times=1)
    await fleet.rents(1)

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(looks, "_sample", dies)  # the last thing of a look
        with pytest.raises(KeyboardInterrupt):
            await fleet.looks()
    told = fleet.events(), fleet.bans()
    await fleet.looks()

    assert told == ([], [])
    assert fleet.kinds() == kinds(Kind.BOX_FAILED)
    assert len(fleet.bans()) == 1
