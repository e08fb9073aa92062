"""What a person orders is a row that the watch judges by a look and carries out at once; and what waits for a word."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.rules import Removal
from tests.watch.rented import HOUR, MINUTE, RefusesOnce, Rented, rented


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Rented]:
    async with rented(database_url) as made:
        yield made


def rent(offer_id: int) -> RentBox:
    return RentBox(offer_id=offer_id, reason="work waits")


def status(fleet: Rented, key: str) -> str:
    return next(row["status"] for row in fleet.rows("action") if row["key"] == key)


def order(fleet: Rented) -> dict[str, object]:
    return orders(fleet)[-1]


def orders(fleet: Rented) -> list[dict[str, object]]:
    """What a person ordered, oldest first."""
    return [row for row in fleet.rows("action") if row["actor"] == "operator"]


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE session_state SET mode = 'paused'",
        "UPDATE session_state SET mode = 'dry_run'",
        "UPDATE session_state SET frozen_because = 'the list cannot be true'",
        "UPDATE session_state SET scale_in_paused = true",
        "UPDATE session_state SET policy_version = policy_version + 1",
    ],
)
async def test_no_brake_holds_back_what_a_person_orders(fleet: Rented, change: str) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    fleet.sets(change)

    await fleet.looks()

    assert not fleet.lives(box)
    assert (order(fleet)["status"], order(fleet)["box_key"]) == ("done", fleet.box(box)["key"])
    await fleet.keeps_looking(6 * MINUTE)
    assert fleet.events() == []


async def test_a_stranger_is_not_ordered_away(fleet: Rented) -> None:
    """Control: nothing but the number differs from the order that was carried out."""
    await fleet.rents(1)
    stranger = fleet.rents_past_the_ledger("somebody else's")

    assert fleet.orders(DestroyBox(id=stranger.id, reason="I want it so")) == (
        f"fleet main has no live box {stranger.id}"
    )
    await fleet.looks()
    assert fleet.lives(stranger)


async def test_ownership_is_looked_at_when_an_order_is_carried_out(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    fleet.market.set_label(box.id, "fa/other1/main/r1-s1-c1-aaaa")

    await fleet.looks()

    assert fleet.lives(box)
    assert (order(fleet)["status"], order(fleet)["code"]) == ("refused", "not_ours")


async def test_a_box_that_a_person_protects_after_the_order_is_kept(fleet: Rented) -> None:
    """Control: the order that it takes back is carried out by the first look that nobody protects it from."""
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    fleet.sets("UPDATE box SET protected = true")
    await fleet.looks()
    kept = fleet.lives(box), order(fleet)["status"], order(fleet)["code"]
    fleet.sets("UPDATE box SET protected = false")
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    await fleet.looks()

    assert kept == (True, "refused", "protected")
    assert not fleet.lives(box)


async def test_a_box_that_is_drained_by_order_goes_when_it_is_idle(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DrainBox(id=box.id, reason="I want it so"))

    await fleet.looks()
    draining = fleet.box(box)["stage"], fleet.lives(box)
    await fleet.looks()

    assert draining == ("draining", True)
    assert not fleet.lives(box)


BRAKES = [
    "UPDATE session_state SET mode = 'paused'",
    "UPDATE session_state SET mode = 'dry_run'",
    "UPDATE session_state SET scale_in_paused = true",
    "UPDATE session_state SET policy_version = policy_version + 1",
]


@pytest.mark.parametrize("brake", BRAKES)
async def test_what_a_person_had_drained_is_the_persons_to_the_end(fleet: Rented, brake: str) -> None:
    """Else it would have finished its work, and be billed for as long as the brake is on."""
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DrainBox(id=box.id, reason="I want it so"))
    await fleet.looks()
    fleet.sets(brake)

    await fleet.looks()

    assert not fleet.lives(box)
    assert [(row["tool"], row["status"], row["sentence"]) for row in orders(fleet)] == [
        ("drain_box", "done", "Ordered by console."),
        ("destroy_box", "done", "Ordered by console."),
    ]


async def test_what_the_agent_had_drained_waits_while_the_fleet_is_paused(fleet: Rented) -> None:
    """The control."""
    box, _ = await fleet.rents_and_runs(2)
    await fleet.gives_up(DrainBox(id=box.id, reason="no work"))
    fleet.sets(BRAKES[0])

    await fleet.keeps_looking(3 * MINUTE)

    assert fleet.lives(box)
    assert orders(fleet) == []


async def test_who_protects_a_box_that_he_had_drained_keeps_it(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.orders(DrainBox(id=box.id, reason="I want it so"))
    await fleet.looks()
    fleet.sets("UPDATE box SET protected = true WHERE vast_id = :id", id=box.id)

    await fleet.keeps_looking(3 * MINUTE)

    assert fleet.lives(box)
    assert sum("is held back" in notice for notice in fleet.notices()) == 1


async def test_an_order_that_the_provider_refused_is_given_again_at_the_next_look(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.watch = fleet.another_watch(RefusesOnce(fleet.fleet.ports.market))
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))

    await fleet.looks()
    refused = fleet.lives(box)
    await fleet.looks()

    assert (refused, fleet.lives(box)) == (True, False)
    assert [(row["status"], row["sentence"]) for row in orders(fleet)] == [
        ("failed", "Ordered by console."),
        ("done", "Ordered by console."),
    ]


async def test_who_protects_a_box_after_an_order_was_refused_has_thought_better_of_it(fleet: Rented) -> None:
    """And is not surprised when he protects it no more. Control: the test above, without that word."""
    box, _ = await fleet.rents_and_runs(2)
    fleet.watch = fleet.another_watch(RefusesOnce(fleet.fleet.ports.market))
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    await fleet.looks()
    for protected in (True, False):
        fleet.sets("UPDATE box SET protected = :protected WHERE vast_id = :id", protected=protected, id=box.id)
        await fleet.looks()

    assert fleet.lives(box)
    assert [row["status"] for row in orders(fleet)] == ["failed"]


async def test_an_order_that_was_refused_waits_for_a_list_and_is_not_forgotten(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.watch = fleet.another_watch(RefusesOnce(fleet.fleet.ports.market))
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))
    await fleet.looks()
    fleet.faults.arm("list_success_false", times=2)
    await fleet.keeps_looking(2 * MINUTE)
    unseen = fleet.lives(box)
    await fleet.looks()

    assert (unseen, fleet.lives(box)) == (True, False)


async def test_what_the_provider_refused_a_run_is_the_runs_to_decide_anew(fleet: Rented) -> None:
    """The control: it is told, and nobody repeats it."""
    box, _ = await fleet.rents_and_runs(2)
    ports = fleet.fleet.ports
    fleet.fleet.ports = replace(ports, market=RefusesOnce(ports.market))
    await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))

    await fleet.keeps_looking(3 * MINUTE)

    assert fleet.lives(box)
    assert [row["status"] for row in fleet.rows("action") if row["tool"] == "destroy_box"] == ["failed"]


async def test_an_order_waits_while_another_call_about_its_box_is_on_its_way(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.sets("UPDATE box SET busy_action = 'drain_box', busy_until = now() + interval '70 s'")
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))

    await fleet.looks()
    waiting = order(fleet)["status"], fleet.lives(box)
    await fleet.looks()

    assert waiting == ("intended", True)
    assert (order(fleet)["status"], fleet.lives(box)) == ("done", False)


async def test_two_orders_about_one_box_are_one_destruction(fleet: Rented) -> None:
    """And an order to drain that came before one to destroy does not stand in its way."""
    box, _ = await fleet.rents_and_runs(2)
    said = [fleet.orders(DrainBox(id=box.id, reason="I want it so"))]
    said += [fleet.orders(DestroyBox(id=box.id, reason="I want it so")) for _ in range(2)]

    await fleet.looks()

    ordered = [(row["tool"], row["status"]) for row in fleet.rows("action") if row["actor"] == "operator"]
    assert said == [None, None, f"destroy_box of box {box.id} is ordered already"]
    assert ordered == [("drain_box", "done"), ("destroy_box", "done")]


async def test_an_order_waits_while_ownership_cannot_be_seen(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("list_success_false", times=1)
    fleet.orders(DestroyBox(id=box.id, reason="I want it so"))

    await fleet.looks()
    waiting = order(fleet)["status"]
    await fleet.looks()

    assert (waiting, order(fleet)["status"]) == ("intended", "done")


@pytest.mark.parametrize("removal", [DestroyBox, DrainBox])
async def test_an_order_brings_the_next_look_forward_and_is_tried_once_in_it(
    fleet: Rented, removal: type[Removal]
) -> None:
    """Control: without one the watch waits its minute."""
    box, _ = await fleet.rents_and_runs(2)
    look, looks, breaths = fleet.watch.look, itertools.count(), itertools.count(1)
    half_a_minute, almost_two = asyncio.Event(), asyncio.Event()
    looked = 0

    async def sleep(seconds: float) -> None:
        assert seconds == 1
        number = next(breaths)
        if number == 30:
            half_a_minute.set()
        if number == 85:
            almost_two.set()
        await asyncio.sleep(0)

    async def counted() -> object:
        nonlocal looked
        looked = next(looks) + 1
        return await look()

    fleet.watch.look = counted  # type: ignore[assignment, method-assign]
    fleet.faults.arm("list_success_false")  # it stays intended: nobody can see whose box it is
    keeping = asyncio.create_task(fleet.watch.keep_looking(MINUTE, sleep))
    await half_a_minute.wait()
    before = looked
    fleet.orders(removal(id=box.id, reason="I want it so"))
    await almost_two.wait()
    keeping.cancel()

    assert (before, looked) == (1, 2)


# --- what waits for a word --------------------------------------------------------------------------------------------


async def test_what_waits_for_a_word_is_told_once_and_expires(fleet: Rented) -> None:
    fleet.fleet.set_policy({"approvals.rent_above_usd_per_hour": "0.01", "approvals.expire_after": "PT1H"})
    offers = await fleet.offers()
    (asked,) = await fleet.asks([rent(offers[0].id)], offers)

    for _ in range(5):
        await fleet.looks(after=10 * MINUTE)
    told, waiting = fleet.notices(), status(fleet, asked.key)
    await fleet.looks(after=HOUR)

    (notice,) = told
    assert f"rent_box {asked.key} waits for your word" in notice
    assert f"fleet-agent approve {asked.key}" in notice
    assert (waiting, status(fleet, asked.key)) == ("awaiting_approval", "expired")


async def test_a_box_without_a_label_that_may_be_ours_is_asked_about_once(fleet: Rented) -> None:
    fleet.faults.arm("label_dropped", times=1)
    fleet.faults.arm("create_lost", times=1)
    fleet.fleet.set_policy({"launch.image": "another/image@sha256:" + "b" * 64})
    offers = await fleet.offers()
    await fleet.asks([rent(offers[0].id)], offers)
    fleet.fleet.set_policy({"launch.image": "a-third/image@sha256:" + "c" * 64})  # so that it is not claimed

    await fleet.keeps_looking(3 * MINUTE)

    assert sum("carries no label and may be ours" in notice for notice in fleet.notices()) == 1
    assert not any("are not of this installation" in notice for notice in fleet.notices())
