"""One installation at the beginning of a story, and how time passes over it.

A beginning is made once: its database is kept as a template, and the boxes that it made are made again, at the same
instants and so under the same numbers, in each new world. A case then costs what happens in it and nothing before.

Everything that looks at the provider's list goes through `Scene.looked`, so that it is known of each box how often it
was listed before the ledger knew of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.observation import Known
from fleet_agent.domain.watch import Seen
from fleet_agent.lookout import Lookout
from fleet_agent.ports import OfferQuery, Ports
from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import DemandScript, ProofQueue
from fleet_agent.sim.faults import ArmedFault, Faults
from fleet_agent.sim.market import MarketConfig, Order
from fleet_agent.sim.scenarios import Scenario
from fleet_agent.sim.world import World, open_world
from fleet_agent.steps.troubles import Troubles
from fleet_agent.store import session
from fleet_agent.store.watch import PostgresLogbook
from tests.chaos.cases import FAULTS
from tests.postgres import TemporaryPostgres
from tests.soundness import rows, usd_per_hour
from tests.story.killing import Fuse, Fused
from tests.story.saying import says
from tests.world import NOON, Installation, installation, living_in, opened

SEED = 1
A_LOT_OF_WORK = Scenario(
    name="a-lot-of-work",
    market=MarketConfig(loading=(timedelta(seconds=60), timedelta(seconds=75))),
    demand=DemandScript(waiting=400),
)
LIST_LAG = timedelta(seconds=60)
STRANGERS = ("", "somebody else's", "fa/other1/main/r1-s1-c1-aaaa")
"""Labels of boxes on the account that are none of our business."""

MOST_LOOKS = 2
"""Within so many looks that show it a box is known to the ledger, at least as a question."""

Wrap = Callable[[Ports], Ports]


def as_it_is(ports: Ports) -> Ports:
    return ports


@dataclass
class StruckFaults(Faults):
    """What is armed, and what has struck."""

    struck: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        super().__init__()

    def take(self, name: str, machine_id: int | None = None) -> ArmedFault | None:
        fault = super().take(name, machine_id)
        if fault is not None:
            self.struck[name] += 1
        return fault


@dataclass
class Scene:
    """The installation, and what is noted of it while the case lasts."""

    fleet: Installation
    database_url: str
    faults: StruckFaults
    idle: int
    """A box without a proof at hand, by its own word."""
    busy: int
    """A box with one."""
    strangers: tuple[int, ...]
    wrap: Wrap
    """What every process of the scene has around its ports: nothing, or what a control does otherwise."""
    broken: list[str] = field(default_factory=list[str])
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    """Of what must be another one each time."""
    _listed: Counter[int] = field(default_factory=Counter[int])
    _on_its_way: asyncio.Task[None] | None = None
    _may_land: asyncio.Event = field(default_factory=asyncio.Event)

    # --- who looks ----------------------------------------------------------------------------------------------------

    def watch(self, fuse: Fuse | None = None) -> Lookout:
        """One that remembers nothing, as after a restart; its calls go through the fuse."""
        ports = self.wrap(self.fleet.ports)
        logbook: Any = WatchedLogbook(PostgresLogbook(self.fleet.database, self.fleet.clock), self.looked)
        reached: list[Any] = [ports.market, ports.demand, logbook, ports.notifier]
        market, demand, logbook, notifier = [port if fuse is None else Fused(port, fuse) for port in reached]
        return Lookout(
            market=market,
            demand=demand,
            logbook=logbook,
            notifier=notifier,
            clock=self.fleet.clock,
            troubles=Troubles(lambda line: None),
            tell=lambda line: None,
        )

    def looked(self, inventory: Inventory) -> None:
        """A list was recorded in the ledger: what it shows of ours must be known soon (I11)."""
        listed = {instance.id for instance in inventory.instances}
        self._listed.update(box.id for box, _ in self.fleet.door.ours() if box.id in listed)
        late = {number for number in listed if self._listed[number] >= MOST_LOOKS}
        unknown = sorted(late - self.recorded())
        self.broken += [
            f"box {number} was listed {self._listed[number]} times and nobody knew it" for number in unknown
        ]

    def recorded(self) -> set[int]:
        """The boxes that the ledger knows to live, or asks a person about."""
        known = {row["vast_id"] for row in rows(self.fleet, "box") if row["stage"] != "gone"}
        return known | {row["vast_id"] for row in rows(self.fleet, "question")}

    # --- how time passes ----------------------------------------------------------------------------------------------

    async def pass_minutes(self, *ends: int) -> None:
        """The watch looks at the end of each of these minutes, counted from now."""
        watch = self.watch()
        for begin, end in itertools.pairwise((0, *ends)):
            self.fleet.pass_time(timedelta(minutes=end - begin))
            await watch.look()

    async def hold_a_create(self, sender: Coroutine[Any, Any, None]) -> None:
        """Begin `sender` and return when a create of its is at the provider's door, or it has ended without one."""
        arrived = asyncio.Event()

        async def wait_at_the_door() -> None:
            arrived.set()
            await self._may_land.wait()

        self.fleet.door.before_create = wait_at_the_door
        self._on_its_way = asyncio.create_task(sender)
        waiting = asyncio.create_task(arrived.wait())
        await asyncio.wait((self._on_its_way, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def let_it_land(self) -> None:
        """The create that is held is let in, and who sent it goes on to its end."""
        self._may_land.set()
        if self._on_its_way is not None:
            await self._on_its_way

    # --- what the provider does wrong ---------------------------------------------------------------------------------

    def arm(self, fault: str) -> None:
        """From now on; what is lost or ignored is so every time, what is refused or fails once."""
        for name in FAULTS[fault]:
            if name == "server_error":
                market: Any = TroubledMarket(self.fleet.ports.market, self.faults)
                self.fleet.ports = replace(self.fleet.ports, market=market)
                continue  # not whoever asks first
            self.faults.arm(name, times=1 if name in ONCE else None, lasting=LIST_LAG)

    def disarm(self, fault: str) -> None:
        for name in FAULTS[fault]:
            self.faults.disarm(name)


ONCE = ("destroy_ignored", "offer_gone", "credit_zero")


class Figures:
    """The demand as the simulator has it: how it is read is of no interest here, and takes a request a figure."""

    def __init__(self, queue: ProofQueue) -> None:
        self._queue = queue

    async def demand(self) -> Demand:
        figures, now = self._queue.figures(), self._queue.clock.now()
        return Demand(
            pending=figures.pending,
            running=figures.running,
            oldest_pending=figures.oldest_pending,
            done_per_hour=figures.done_per_hour,
            failed_per_hour=figures.failed_per_hour,
            seen_at=now,
        )


class TroubledMarket:
    """The market whose next effect is answered 500 and does nothing."""

    def __init__(self, market: Any, faults: Faults) -> None:
        self._market = market
        self._faults = faults
        self._left = 2

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._market, name)
        return self._troubled(call) if name in ("rent", "destroy") else call

    def _troubled(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def troubled(*args: Any) -> Any:
            if self._left:
                self._left -= 1
                self._faults.arm("server_error", times=1)
            return await call(*args)

        return troubled


class WatchedJournal:
    """The journal, with an eye on what is recorded of the provider's lists."""

    def __init__(self, journal: Any, looked: Callable[[Inventory], None]) -> None:
        self._journal = journal
        self._looked = looked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def record_sighting(self, run: Any, inventory: Inventory) -> Any:
        boxes = await self._journal.record_sighting(run, inventory)
        self._looked(inventory)
        return boxes


class WatchedLogbook:
    """The same for what the watch records."""

    def __init__(self, logbook: Any, looked: Callable[[Inventory], None]) -> None:
        self._logbook = logbook
        self._looked = looked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logbook, name)

    async def record_look(self, fleet: str, seen: Seen) -> Any:
        looked = await self._logbook.record_look(fleet, seen)
        if isinstance(seen.inventory, Known):
            self._looked(seen.inventory.value)
        return looked


# --- beginnings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beginning:
    """A database that is kept as a template, and what made the world that it lives in."""

    template: str
    now: datetime
    rented: tuple[tuple[datetime, int, Order], ...]
    idle: int
    busy: int
    strangers: tuple[int, ...]

    def world(self) -> tuple[World, ManualClock]:
        time = ManualClock(NOON)
        sim = open_world(time, A_LOT_OF_WORK, seed=SEED)
        for at, ask_id, order in self.rented:
            time.advance(at - time.now())
            sim.market.rent(ask_id, order)
        time.advance(self.now - time.now())
        return sim, time


GoesOn = Callable[[Installation, int, int], Awaitable[None]]
"""How a beginning goes on from two boxes at work: the installation, the idle box and the busy one."""


async def make_beginning(postgres: TemporaryPostgres, name: str, goes_on: GoesOn) -> Beginning:
    """Two boxes at work, strangers beside them on the account, and then what the story begins with."""
    async with installation(postgres.template(name), scenario=A_LOT_OF_WORK, seed=SEED) as fleet:
        sim = fleet.sim
        for label in STRANGERS:
            asks = [offer.lot for offer in sim.market.offers() if offer.rentable]
            dearest = max(asks, key=lambda lot: lot.usd_per_hour)
            sim.market.rent(dearest.ask_id, Order(image="somebody/elses", label=label or None))
        strangers = tuple(box.id for box in sim.market.instances())
        await fleet.run()  # the sensible model rents two
        says(fleet)
        for _ in range(2):
            fleet.pass_time(timedelta(minutes=5))
            await fleet.run()
        idle, busy = (row["vast_id"] for row in fleet.boxes())
        fleet.set_policy(await just_room_for_two_more(fleet))
        speak(fleet, {idle: 0, busy: 1})
        await goes_on(fleet, idle, busy)
        boxes = {box.id: box for box in sim.market.all_instances()}
        return Beginning(
            template=name,
            now=fleet.time.now(),
            rented=tuple((made.at, made.ask_id, boxes[made.instance_id].order) for made in sim.market.creates),
            idle=idle,
            busy=busy,
            strangers=strangers,
        )


async def just_room_for_two_more(fleet: Installation) -> dict[str, str]:
    """Caps of places and of dollars that two more boxes reach, be it that the two cheapest were just taken; no word of
    a person is needed for them, and none of them is too slow."""
    with fleet.database.transaction() as tx:
        policy = session.policy(tx, fleet.fleet)
    cheap = (await fleet.ports.market.offers(OfferQuery(policy=policy)))[2:4]
    burn = sum((usd_per_hour(box) for box, _ in fleet.door.ours()), Decimal(0))
    cap = burn + sum(offer.usd_per_hour for offer in cheap) + Decimal("0.01")
    return {
        "limits.max_boxes": "4",
        "limits.max_usd_per_hour": f"{cap:.4f}",
        "approvals.rent_above_usd_per_hour": "null",
        **{f"deadlines.{stage}": '"PT24H"' for stage in ("booting", "registering", "fetching", "benchmarking")},
    }


def speak(fleet: Installation, tasks: dict[int, int]) -> None:
    """Each box says by itself how many proofs it has at hand."""
    with fleet.database.transaction() as tx:
        for vast_id, number in tasks.items():
            said = "UPDATE box SET stage = 'proving', tasks = :tasks, reported_at = :now WHERE vast_id = :id"
            tx.execute(text(said), {"tasks": number, "now": fleet.time.now(), "id": vast_id})


@asynccontextmanager
async def at(postgres: TemporaryPostgres, beginning: Beginning, wrap: Wrap = as_it_is) -> AsyncGenerator[Scene]:
    """A scene of its own at this beginning."""
    sim, time = beginning.world()
    sim.market.faults = faults = StruckFaults()
    with postgres.clone(beginning.template) as url:
        database = opened(url)
        try:
            async with living_in(sim, time, database) as fleet:
                scene = Scene(fleet, url, faults, beginning.idle, beginning.busy, beginning.strangers, wrap)
                journal: Any = WatchedJournal(fleet.ports.journal, scene.looked)
                fleet.ports = replace(fleet.ports, journal=journal, demand=Figures(sim.queue))
                yield scene
        finally:
            database.close()
