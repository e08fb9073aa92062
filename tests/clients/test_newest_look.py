"""A run begins with what somebody saw a moment ago, and from then on sees for itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from fleet_agent.clients.vast import LOOK_LASTS, VastMarket
from fleet_agent.domain.fleet import Inventory
from fleet_agent.errors import DatabaseUnreachable, InventoryUnknown
from tests.clients.world import SimulatedWorld, market_over

SECONDS_TO_READ_IT = timedelta(seconds=2)


@dataclass
class OneLook:
    """`Looks` in memory."""

    look: Inventory | None = None

    async def newest(self) -> Inventory | None:
        return self.look

    async def keep(self, look: Inventory) -> None:
        self.look = look


class Unreachable(OneLook):
    async def keep(self, look: Inventory) -> None:
        raise DatabaseUnreachable("the database does not answer")


class TwoOfOneAccount:
    """One has looked, and the other is about to."""

    def __init__(self, looks: OneLook | None = None) -> None:
        self.world = SimulatedWorld()
        self.looks = looks or OneLook()
        self.watch = self.another()

    def another(self, *, begins_with_newest: bool = False) -> VastMarket:
        return market_over(self.world.wire, self.world.time, looks=self.looks, begins_with_newest=begins_with_newest)

    def a_run(self) -> VastMarket:
        return self.another(begins_with_newest=True)

    def asked(self) -> int:
        return len(self.world.requests)


@pytest.fixture
def two() -> TwoOfOneAccount:
    return TwoOfOneAccount()


async def test_a_run_begins_with_the_look_of_somebody_else_and_asks_for_no_page(two: TwoOfOneAccount):
    two.world.rent_directly(30)
    seen = await two.watch.inventory()
    asked = two.asked()
    two.world.time.advance(LOOK_LASTS - SECONDS_TO_READ_IT)

    assert await two.a_run().inventory() == seen
    assert (asked, two.asked()) == (2, 2)


async def test_control_who_always_looks_for_himself_asks_for_every_page_again(two: TwoOfOneAccount):
    two.world.rent_directly(30)
    await two.watch.inventory()
    await two.another().inventory()

    assert two.asked() == 4


async def test_it_looks_for_itself_after_that_because_it_may_have_changed_what_it_looks_for(two: TwoOfOneAccount):
    await two.watch.inventory()
    run = two.a_run()
    before = await run.inventory()
    two.world.rent_directly(1)
    after = await run.inventory()

    assert (len(before.instances), len(after.instances)) == (0, 1)
    assert two.looks.look == after


@pytest.mark.parametrize("passed", [LOOK_LASTS, timedelta(hours=-1)])
async def test_what_is_older_or_of_a_time_to_come_is_not_begun_with(two: TwoOfOneAccount, passed: timedelta):
    """The clock may have been set back since."""
    await two.watch.inventory()
    two.world.time.advance(passed)
    two.world.rent_directly(1)

    assert len((await two.a_run().inventory()).instances) == 1


async def test_where_nobody_has_looked_the_run_does(two: TwoOfOneAccount):
    two.world.rent_directly(1)

    assert len((await two.a_run().inventory()).instances) == 1


@pytest.mark.parametrize("fault", ["list_partial", "list_success_false"])
async def test_only_a_complete_look_is_handed_on(two: TwoOfOneAccount, fault: str):
    two.world.rent_directly(4)
    two.world.truth.faults.arm(fault)
    with pytest.raises(InventoryUnknown):
        await two.watch.inventory()
    two.world.truth.faults.disarm(fault)

    assert two.looks.look is None
    assert len((await two.a_run().inventory()).instances) == 4


async def test_a_look_counts_though_nobody_else_can_hear_of_it():
    two = TwoOfOneAccount(Unreachable())
    two.world.rent_directly(1)

    assert len((await two.watch.inventory()).instances) == 1
