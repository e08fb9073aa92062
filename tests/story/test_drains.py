"""A box that is to go finishes what it has at hand: it asks its own hook, and is told to take no more work."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.box_reports import BoxHook, digest_of, hook_of
from fleet_agent.hooks.app import hooks_app
from fleet_agent.hooks.rate import Buckets
from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import Instance, MarketConfig
from fleet_agent.sim.reporting import HOOK, report
from fleet_agent.sim.scenarios import Scenario
from tests.story.killing import Fuse, Killed, fused
from tests.story.saying import says
from tests.watch.rented import Rented
from tests.world import Installation, installation

A_LONG_PROOF = Scenario(
    name="a-long-proof",
    market=MarketConfig(
        loading=(timedelta(seconds=60), timedelta(seconds=75)), productive_after=timedelta(seconds=120)
    ),
    demand=DemandScript(waiting=40),
)
"""Work for the whole story, a few minutes of a box for each proof."""


@dataclass
class Proving:
    """A fleet whose boxes speak with us, on the same clock as everything else."""

    fleet: Installation
    sender: httpx.AsyncClient

    async def goes_on(self, by: timedelta) -> None:
        """Time passes, and every quarter of a minute the boxes say how far they are."""
        for _ in range(by // timedelta(seconds=15)):
            self.fleet.time.advance(timedelta(seconds=15))
            await report(self.fleet.sim.market, self.fleet.sim.queue, self.sender)

    async def until_a_box_proves(self) -> Instance:
        """The first box, in the middle of a proof."""
        await self.fleet.run()
        await self.goes_on(timedelta(minutes=10))
        box = self.fleet.sim.market.instances()[0]
        assert self.fleet.sim.queue.at_hand(box.id) == 1
        return box

    async def agent_drains(self, box: Instance) -> None:
        says(self.fleet, [("drain_box", {"id": box.id, "reason": "it costs too much"})])
        await self.fleet.run()

    def row(self, box: Instance) -> dict[str, Any]:
        return next(row for row in self.fleet.boxes() if row["vast_id"] == box.id)


def hooks() -> Any:
    """A new one for each rent, so that a test can foretell it."""
    numbers = itertools.count(1)

    def draw() -> BoxHook:
        return hook_of("http://hooks.invalid", f"{next(numbers):043}")

    return draw


@asynccontextmanager
async def proving(database_url: str) -> AsyncGenerator[Proving]:
    async with installation(database_url, scenario=A_LONG_PROOF) as fleet:
        fleet.ports = replace(fleet.ports, draw_hook=hooks())
        app = hooks_app(fleet.database, fleet.clock, Buckets(fleet.clock.elapsed))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as sender:
            yield Proving(fleet, sender)


@pytest.fixture
async def story(database_url: str) -> AsyncGenerator[Proving]:
    async with proving(database_url) as made:
        yield made


# --- a drain ----------------------------------------------------------------------------------------------------------


async def test_a_box_that_drains_finishes_what_it_has_at_hand_and_takes_no_more(story: Proving) -> None:
    box = await story.until_a_box_proves()
    await story.agent_drains(box)
    await story.goes_on(timedelta(minutes=20))

    row = story.row(box)
    assert (row["stage"], row["tasks"], row["drain_because"]) == ("draining", 0, "it costs too much")
    assert (story.fleet.sim.queue.at_hand(box.id), story.fleet.sim.queue.lost()) == (0, 0)
    assert story.fleet.sim.queue.figures().pending > 0  # there was more to take


async def test_without_a_drain_the_proof_at_hand_is_lost(story: Proving) -> None:
    """The control: the same box is destroyed at the same moment."""
    box = await story.until_a_box_proves()
    story.fleet.sim.market.destroy(box.id)
    await story.goes_on(timedelta(minutes=1))

    assert story.fleet.sim.queue.lost() == 1


async def test_a_box_that_cannot_reach_us_goes_on_taking_work(story: Proving) -> None:
    """So a drain has a deadline. The control is the first story."""
    story.fleet.ports = replace(story.fleet.ports, draw_hook=lambda: None)
    box = await story.until_a_box_proves()
    await story.agent_drains(box)
    await story.goes_on(timedelta(minutes=20))

    assert HOOK not in box.order.env
    assert story.fleet.sim.queue.at_hand(box.id) == 1
    assert story.row(box)["drain_by"] is not None


async def test_what_a_box_says_of_its_way_stands_in_the_ledger(story: Proving) -> None:
    await story.fleet.run()
    seen: list[str] = []
    for _ in range(40):
        await story.goes_on(timedelta(seconds=15))
        stage = story.fleet.boxes()[0]["stage"]
        seen += [stage] if stage not in seen else []

    row = story.fleet.boxes()[0]
    assert seen == ["rented", "registered", "params_ready", "benchmarked", "proving"]
    assert row["proofs_per_hour"] > 0


# --- the token --------------------------------------------------------------------------------------------------------


async def test_a_box_gets_a_token_of_its_own_of_which_we_keep_a_digest(story: Proving) -> None:
    await story.fleet.run()
    tokens = {box.id: box.order.env[HOOK].rpartition("/")[2] for box in story.fleet.sim.market.instances()}

    assert len(set(tokens.values())) == len(tokens) == 2
    assert digests(story.fleet) == {vast_id: digest_of(token) for vast_id, token in tokens.items()}
    assert not [token for token in tokens.values() if token in everything_kept(story.fleet)]


async def test_a_rent_that_was_interrupted_before_it_was_sent_goes_out_with_a_token_that_is_known(
    story: Proving,
) -> None:
    """A token was drawn before the kill, and nobody has it any more: the rent that goes out has another."""
    ports = story.fleet.ports
    story.fleet.ports = fused(ports, KilledAtSent())
    with pytest.raises(Killed):
        await story.fleet.run(flow_run_id="interrupted")
    assert story.fleet.sim.market.creates == []
    story.fleet.ports = ports
    await story.fleet.run(flow_run_id="interrupted", attempt=2)
    await story.goes_on(timedelta(minutes=5))

    boxes = story.fleet.sim.market.instances()
    assert boxes
    assert digests(story.fleet) == {box.id: digest_of(box.order.env[HOOK].rpartition("/")[2]) for box in boxes}
    assert all(row["reported_at"] for row in story.fleet.boxes())


class KilledAtSent(Fuse):
    """Blows when the first effect is about to be sent: its token is drawn, and nothing is committed."""

    async def around(self, name: str, call: Any) -> Any:
        if name == "mark_sent":
            self.blown = True
        return await super().around(name, call)


# --- a person's orders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "lost"), [(controls.drain_box, 0), (controls.destroy_box, 1)])
async def test_a_box_that_a_person_has_drained_is_destroyed_once_it_is_idle(
    story: Proving, order: Callable[[Desk, int], None], lost: int
) -> None:
    """The control is the order to destroy it, which ends the same box in the middle of its proof."""
    box = await story.until_a_box_proves()
    watch = Rented(story.fleet)
    order(Desk(story.fleet.database, story.fleet.clock, "main", who="ana", place="here"), box.id)
    done_in: list[str] = []
    for _ in range(15):
        await watch.looks_now()
        await story.goes_on(timedelta(minutes=1))
        done_in += [row["stage"] for row in story.fleet.boxes() if row["vast_id"] == box.id]

    assert box not in story.fleet.sim.market.instances()
    assert story.fleet.sim.queue.lost() == lost
    assert ("draining" in done_in) == (lost == 0)


def digests(fleet: Installation) -> dict[int, str]:
    with fleet.database.transaction() as tx:
        rows = tx.execute(text("SELECT vast_id, hook_digest FROM box WHERE vast_id IS NOT NULL"))
        return dict(iter(rows))


def everything_kept(fleet: Installation) -> str:
    """Every row of every table, as text."""
    with fleet.database.transaction() as tx:
        tables = tx.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        return "\n".join(str(row) for table in tables for row in tx.execute(text(f'SELECT * FROM "{table}"')))
