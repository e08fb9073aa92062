"""`destroy-all` while other things happen. (That it leaves nothing behind on a quiet day is in `test_limits`.)"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.rules import Brake, Mode
from fleet_agent.errors import SlowDown
from fleet_agent.ports import Market, OfferQuery, RentOrder
from fleet_agent.store.ledger import GRACE
from tests.story.saying import says
from tests.world import Installation, installation, skip


def desk_of(fleet: Installation) -> Desk:
    return Desk(fleet.database, fleet.clock, fleet.fleet, who="ana", place="here")


async def let_others_go_on(_: float) -> None:
    await asyncio.sleep(0)


async def stop(
    fleet: Installation,
    market: Market | None = None,
    *,
    sleep: Callable[[float], Awaitable[None]] = skip,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    await controls.destroy_all(desk_of(fleet), market or fleet.ports.market, sleep=sleep, tell=tell)


class Passing:
    """The market as it is; what is told about one call comes in a subclass."""

    def __init__(self, market: Market) -> None:
        self.market = market

    def __getattr__(self, name: str) -> Any:
        return getattr(self.market, name)


class StoppedWhileRenting(Passing):
    """A person stops everything while a create is on its way to the provider."""

    def __init__(self, fleet: Installation, stop: Callable[[Callable[[str], None]], Awaitable[None]]) -> None:
        super().__init__(fleet.ports.market)
        self.stop = stop
        self.stopping: asyncio.Task[None] | None = None
        self.looked = asyncio.Event()

    async def rent(self, order: RentOrder) -> int:
        if self.stopping is None:
            self.stopping = asyncio.ensure_future(self.stop(lambda _: self.looked.set()))
            await self.looked.wait()
        return await self.market.rent(order)


async def test_it_waits_for_a_box_that_is_still_on_its_way(fleet: Installation) -> None:
    real = fleet.ports.market
    market = StoppedWhileRenting(fleet, lambda tell: stop(fleet, real, sleep=let_others_go_on, tell=tell))
    fleet.ports = replace(fleet.ports, market=market)  # pyright: ignore[reportArgumentType]
    await fleet.run()
    assert market.stopping is not None
    await market.stopping

    assert len(fleet.sim.market.creates) == 1  # what was intended after it was never sent
    assert fleet.sim.market.instances() == []
    assert (fleet.boxes(), fleet.status()["mode"]) == ([], "paused")


async def test_who_destroys_only_what_the_list_shows_leaves_it_running(fleet: Installation) -> None:
    """The control: paused first as well, and one look."""
    real = fleet.ports.market

    async def naive(tell: Callable[[str], None]) -> None:
        for instance in (await real.inventory()).instances:
            await real.destroy(instance.id)
        tell("done")

    market = StoppedWhileRenting(fleet, naive)
    fleet.ports = replace(fleet.ports, market=market)  # pyright: ignore[reportArgumentType]
    await fleet.run()

    assert fleet.sim.market.instances()


async def test_what_was_intended_or_ordered_before_it_is_not_done_after_it(fleet: Installation) -> None:
    await fleet.heartbeat()
    box = fleet.boxes()[0]["vast_id"]
    controls.drain_box(desk_of(fleet), box)
    await stop(fleet)

    assert [action["status"] for action in fleet.actions("drain_box")] == ["expired"]
    assert {action["sentence"] for action in fleet.actions("destroy_box")} == {"Ordered by ana."}


async def test_what_was_approved_before_it_is_not_rented_when_the_fleet_is_resumed(fleet: Installation) -> None:
    """Control: an approval outlives any other pause."""
    fleet.set_policy({"approvals.always": '["rent_box"]'})
    cheapest, next_one, *_ = await fleet.ports.market.offers(OfferQuery(policy=controls.policy(desk_of(fleet))))
    rents = [("rent_box", {"offer_id": each.id, "reason": "work waits"}) for each in (cheapest, next_one)]
    says(fleet, [("search_offers", {})], rents)
    await fleet.heartbeat()
    desk = desk_of(fleet)
    first, second = controls.approvals(desk)
    controls.approve(desk, first.key)
    controls.set_mode(desk, Mode.PAUSED)
    controls.resume(desk, Mode.LIVE)
    says(fleet)
    await fleet.heartbeat()
    rented = len(fleet.sim.market.creates)
    controls.approve(desk, second.key)
    await stop(fleet)
    controls.resume(desk, Mode.LIVE)
    says(fleet)
    await fleet.heartbeat()

    assert (rented, len(fleet.sim.market.creates)) == (1, 1)
    assert [action["status"] for action in fleet.actions("rent_box")] == ["done", "expired"]


async def test_a_number_that_is_another_fleets_box_by_now_is_left_alone_and_told(fleet: Installation) -> None:
    """Control: its neighbour, which only lost its label, goes."""
    await fleet.heartbeat()
    others, mine = fleet.sim.market.instances()
    fleet.sim.market.set_label(others.id, "fa/other1/main/r1-s1-c1-aaaa")
    fleet.sim.market.set_label(mine.id, "")
    told: list[str] = []
    await stop(fleet, tell=told.append)

    assert fleet.sim.market.instances() == [others]
    assert any(line.startswith(f"QUESTION box {others.id} was ours") for line in told)


async def test_a_protected_box_is_destroyed_too(fleet: Installation) -> None:
    await fleet.heartbeat()
    for box in fleet.boxes():
        controls.protect_box(desk_of(fleet), box["vast_id"], True)
    await stop(fleet)

    assert fleet.sim.market.instances() == []


async def test_a_box_that_outlives_its_order_is_ordered_away_anew(fleet: Installation) -> None:
    """The provider accepts, and does nothing, for longer than anything may lag. Each order has an end."""
    await fleet.heartbeat()
    fleet.sim.market.faults.arm("destroy_ignored")
    passes = 0

    async def longer_than_the_grace(_: float) -> None:
        nonlocal passes
        passes += 1
        fleet.time.advance(timedelta(seconds=5))
        with fleet.database.transaction() as tx:
            tx.execute(text("UPDATE action SET sent_at = sent_at - :by"), {"by": GRACE + timedelta(seconds=1)})
        if passes == 2:
            fleet.sim.market.faults.disarm("destroy_ignored")

    await stop(fleet, sleep=longer_than_the_grace)

    assert (fleet.sim.market.instances(), fleet.boxes()) == ([], [])
    assert [action["status"] for action in fleet.actions("destroy_box")] == ["done"] * 6


class Slow(Passing):
    """Takes one destruction, then asks for fewer requests, once."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self.asked: list[int] = []

    async def destroy(self, vast_id: int) -> None:
        self.asked.append(vast_id)
        if len(self.asked) == 2:
            raise SlowDown("no turn for the destruction of a box within 15 s")
        await self.market.destroy(vast_id)


async def test_where_the_provider_wants_fewer_requests_the_boxes_that_still_run_come_first(database_url: str) -> None:
    async with installation(database_url) as fleet:
        await fleet.heartbeat()
        first, second = sorted(box["vast_id"] for box in fleet.boxes())
        market = Slow(fleet.ports.market)
        await stop(fleet, market)  # pyright: ignore[reportArgumentType]

        assert market.asked[:3] == [first, second, second]
        assert fleet.sim.market.instances() == []


async def test_it_stays_paused_until_a_person_resumes_the_fleet(fleet: Installation) -> None:
    """To let go of a brake is not enough."""
    await fleet.heartbeat()
    await stop(fleet)
    controls.resume_scaling(desk_of(fleet), Brake.SCALE_OUT)
    await fleet.heartbeat()
    assert fleet.sim.market.instances() == []

    controls.resume(desk_of(fleet), Mode.LIVE)
    await fleet.heartbeat()
    assert fleet.sim.market.instances()
