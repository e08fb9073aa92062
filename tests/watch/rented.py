"""A fleet on the simulated market, with as many boxes as a test wants, and a lookout over it. Time moves by hand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, RentBox
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.ledger import Listing, Ruled
from fleet_agent.domain.policy import Launch, Policy
from fleet_agent.domain.rules import Decision, Removal
from fleet_agent.domain.run import Message, MessageKind, Run, RunRequest, Usage
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.watch import Looked
from fleet_agent.errors import SlowDown
from fleet_agent.lookout import Lookout
from fleet_agent.ports import Market, OfferQuery
from fleet_agent.sim.market import Instance, Order
from fleet_agent.sim.scenarios import IDLE, Scenario
from fleet_agent.steps.act import act, hands_of
from fleet_agent.steps.observe import observe
from fleet_agent.steps.troubles import Troubles
from fleet_agent.store import actions
from fleet_agent.store.watch import PostgresLogbook
from tests.store.rig import UNBOOKED
from tests.world import IMAGE, Installation, installation

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

ROOMY = {
    "limits.max_boxes": "50",
    "limits.max_usd_per_hour": "100",
    "limits.max_usd_per_day": "1000",
    "limits.max_usd_per_hour_per_box": "20",
    "limits.max_rents_per_run": "50",
    "limits.max_rents_per_hour": "50",
    "limits.max_destroys_per_run": "50",
    "limits.min_age": "PT0S",
    "limits.min_runway": "PT0S",
    "approvals.rent_above_usd_per_hour": "null",
}
"""So that only what a test is about holds anything back."""


@dataclass
class Rented:
    """`watch` looks after `fleet`; what it told its log is in `log`."""

    fleet: Installation
    log: list[str] = field(default_factory=list[str])
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.logbook = PostgresLogbook(self.fleet.database, self.fleet.clock)
        self.watch = self.another_watch()
        self.market = self.fleet.sim.market
        self.faults = self.market.faults

    def another_watch(self, market: Market | None = None) -> Lookout:
        """One that remembers nothing, as after a restart."""
        return Lookout(
            market=market or self.fleet.ports.market,
            demand=self.fleet.ports.demand,
            logbook=self.logbook,
            notifier=self.fleet.notifier,
            clock=self.fleet.clock,
            troubles=Troubles(self.log.append),
            tell=self.log.append,
        )

    # --- what happens -------------------------------------------------------------------------------------------------

    def passes(self, by: timedelta) -> None:
        """Time, business and real."""
        self.fleet.pass_time(by)

    async def looks(self, *, after: timedelta = MINUTE) -> Looked:
        """One look, so much later."""
        self.passes(after)
        return await self.looks_now()

    async def looks_now(self) -> Looked:
        return next(looked for looked in await self.watch.look() if looked.fleet == self.fleet.fleet)

    async def keeps_looking(self, span: timedelta, *, every: timedelta = MINUTE) -> None:
        for _ in range(span // every):
            await self.looks(after=every)

    async def offers(self) -> tuple[Offer, ...]:
        banned = frozenset(machine for machine, _ in self.bans())
        query = OfferQuery(policy=Policy(launch=Launch(image=IMAGE)), limit=20, banned=banned)
        return await self.fleet.ports.market.offers(query)

    async def asks(self, effects: Sequence[Effect], offers: Sequence[Offer] = ()) -> tuple[Ruled, ...]:
        """A run asks for these effects, and what is allowed is carried out."""
        ports = self.fleet.ports
        run = await ports.journal.open_run(
            RunRequest(
                fleet=self.fleet.fleet,
                trigger=Trigger.MANUAL,
                flow_run_id=f"by-hand-{next(self._numbers)}",
                worker_id="test",
            )
        )
        assert isinstance(run, Run)
        ruled = await ports.journal.record_reply(
            run,
            Message(turn=1, step=1, role="assistant", kind=MessageKind.TOOL_CALL, content="…"),
            booking=UNBOOKED,
            usage=Usage(),
            effects=[(f"call-{number}", effect) for number, effect in enumerate(effects)],
            observation=await observe(run, ports),
            listing=Listing(offers=tuple(offers)),
        )
        hands = hands_of(run, ports, await ports.journal.standing(run))
        for effect, ruling in zip(effects, ruled, strict=True):
            await act(hands, effect, ruling)
        await ports.journal.fail_run(run, exit_reason="finished", summary="")
        return ruled

    async def rents(self, boxes: int) -> list[Instance]:
        """A run rents so many boxes."""
        before = {box.id for box in self.market.instances()}
        offers = await self.offers()
        ruled = await self.asks([RentBox(offer_id=each.id, reason="work waits") for each in offers[:boxes]], offers)
        made = [box for box in self.market.instances() if box.id not in before]
        assert len(made) == boxes, [ruling.ruling for ruling in ruled]
        return made

    async def gives_up(self, removal: Removal) -> None:
        """A run drains or destroys a box."""
        (ruled,) = await self.asks([removal])
        assert ruled.ruling.decision is Decision.ALLOW, ruled.ruling

    async def rents_and_runs(self, boxes: int) -> list[Instance]:
        """… and the boxes are up and seen."""
        made = await self.rents(boxes)
        await self.keeps_looking(5 * MINUTE)
        assert {box.actual_status for box in made} == {"running"}
        return made

    def rents_past_the_ledger(self, label: str | None, bid: Decimal | None = None) -> Instance:
        """Somebody, or the provider by itself, makes a box on the account."""
        offer = next(each for each in self.market.offers() if each.rentable)
        return self.market.rent(offer.lot.ask_id, Order(image=IMAGE, label=label, bid_usd_per_hour=bid))

    def orders(self, action: Removal) -> str | None:
        """What a person says in the console; why it cannot be ordered, or None."""
        with self.fleet.database.exclusive(self.fleet.fleet) as tx:
            return actions.order(tx, self.fleet.fleet, action, who="console", now=self.fleet.time.now())

    def sets(self, statement: str, **values: Any) -> None:
        with self.fleet.database.transaction() as tx:
            tx.execute(text(statement), values)

    # --- what is there ------------------------------------------------------------------------------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        order = {"box": "rented_at, key", "sample": "at"}.get(table, "id")
        with self.fleet.database.transaction() as tx:
            query = text(f"SELECT * FROM {table} WHERE fleet = :fleet ORDER BY {order}")
            return [dict(row) for row in tx.execute(query, {"fleet": self.fleet.fleet}).mappings()]

    def events(self) -> list[tuple[str, str]]:
        """Kind and text of what the watch has posted, oldest first."""
        return [(row["kind"], row["text"]) for row in self.rows("inbox") if row["source"] == "watch"]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events()]

    def notices(self) -> list[str]:
        return [row["text"] for row in self.rows("notice")]

    def box(self, instance: Instance) -> dict[str, Any]:
        return next(row for row in self.rows("box") if row["vast_id"] == instance.id)

    def removals(self) -> list[tuple[str, int, str]]:
        """Tool, box and status of what the watch wanted to give up, oldest first."""
        return [
            (row["tool"], row["arguments"]["id"], row["status"])
            for row in self.rows("action")
            if row["actor"] == "watch"
        ]

    def bans(self) -> list[tuple[int, str]]:
        return [(row["machine_id"], row["failure"]) for row in self.rows("host_ban")]

    def lives(self, instance: Instance) -> bool:
        return instance.gone_at is None

    def frozen(self) -> str:
        return self.fleet.status()["frozen_because"]


class RefusesOnce:
    """A `Market` that asks for fewer requests when a box is to be destroyed, once: nothing was done."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._market, name)

    async def destroy(self, vast_id: int) -> None:
        if not self._refused:
            self._refused = True
            raise SlowDown("vast.ai asks for fewer requests")
        await self._market.destroy(vast_id)


@asynccontextmanager
async def rented(database_url: str, *, scenario: Scenario = IDLE) -> AsyncGenerator[Rented]:
    async with installation(database_url, scenario=scenario) as fleet:
        fleet.set_policy(ROOMY)
        yield Rented(fleet)


def destroys(boxes: Sequence[Instance]) -> list[tuple[str, int, str]]:
    """What `Rented.removals` says of boxes that were destroyed."""
    return [(DestroyBox.name, box.id, "done") for box in boxes]


def drains(boxes: Sequence[Instance]) -> list[tuple[str, int, str]]:
    return [(DrainBox.name, box.id, "done") for box in boxes]


def kinds(*of: Kind) -> list[str]:
    return [kind.value for kind in of]
