"""A fleet as simple as it can be while a plan still matters: machines of strangers, a queue, and a clock of minutes.

It shares the catalogue of machines with the simulator, for prices, memory, lines and speeds that vary as they do in the
world, and nothing else. A box boots, fetches its parameters over the line of its host, measures itself, and then proves
one proof after the other. Some machines never come up, and some boxes break. A stand-in for the watch gives up what
failed and what has drained; nobody else removes anything but the policy that is being tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Instance, Inventory, Offer, Stage
from fleet_agent.domain.hosts import Ban, Benchmark, Failure
from fleet_agent.domain.observation import Account, Known
from fleet_agent.domain.plan import Move, Reading
from fleet_agent.domain.planner import Grounds, make_plan
from fleet_agent.domain.policy import Launch, Policy
from fleet_agent.domain.rules import REMOVED_WITHIN, Actor, Mode, Situation
from fleet_agent.domain.worth import StartUp
from fleet_agent.sim.boxes import proofs_per_hour
from fleet_agent.sim.catalogue import Machine, catalogue, seeded

DAWN = datetime(2026, 3, 17, 0, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
IMAGE = "example/prover@sha256:" + "a" * 64
DEADLINE = timedelta(minutes=45)
GIVEN_UP_AFTER = timedelta(minutes=30)
"""A machine on which nothing comes up."""
OFFERED_AGAIN_AFTER = timedelta(minutes=15)
"""A proof whose box went away waits so long until the proving stack notices."""
DUDS = 0.06
BREAKS_EVERY_HOURS = 150
PARAMETERS_GB = 78
DISK_GB = 100


@dataclass(frozen=True)
class Host:
    """A machine as it really is, beside the offer that shows it."""

    machine: Machine
    offer: Offer
    rate: float
    lead: timedelta
    is_dud: bool


@dataclass(eq=False)
class ToyBox:
    host: Host
    id: int
    rented_at: datetime
    breaks_at: datetime
    draining: bool = False
    proof: list[Any] | None = None
    """When it came in, and how much of it is left."""

    def stage(self, now: datetime) -> Stage:
        if self.draining:
            return Stage.DRAINING
        way = (now - self.rented_at) / self.host.lead
        if self.host.is_dud:
            return Stage.LOADING
        steps = ((0.15, Stage.LOADING), (0.2, Stage.REGISTERED), (0.6, Stage.REGISTERED), (1.0, Stage.PARAMS_READY))
        return next((stage for until, stage in steps if way < until), Stage.PROVING)


@dataclass
class Tally:
    """What a day came to."""

    usd: Decimal = Decimal(0)
    proofs: int = 0
    backlog_hours: float = 0.0
    deadline_misses: int = 0
    busy_killed: int = 0
    changes: list[datetime] = field(default_factory=list[datetime])
    """When a box was rented or given up by whoever decides."""
    most_boxes: int = 0


class ToyFleet:
    def __init__(
        self,
        policy: Policy,
        *,
        seed: int = 0,
        machines: int = 150,
        start: datetime = DAWN,
        reliable: bool = False,
        hosts: Sequence[Host] | None = None,
    ) -> None:
        self.policy = policy.model_copy(update={"launch": Launch(image=IMAGE)})
        self.seed = seed
        self.now = start
        self.hosts = list(hosts) if hosts is not None else offered(seed, machines, reliable=reliable)
        self.reliable = reliable
        self.boxes: list[ToyBox] = []
        self.tally = Tally()
        self.benchmarks: dict[int, Benchmark] = {}
        self.startups: dict[int, StartUp] = {}
        self.bans: list[Ban] = []
        self.waiting: deque[datetime] = deque()
        self._later: list[tuple[datetime, datetime]] = []
        self._done: deque[datetime] = deque()
        self._rents: list[datetime] = []
        self._removals: list[datetime] = []
        self._spent: deque[tuple[datetime, Decimal]] = deque()
        self._numbers = 1000

    # --- time -------------------------------------------------------------------------------------------------------

    def minute(self, arriving: int) -> None:
        """One minute passes, in which so many proofs come in."""
        self.waiting.extend([self.now] * arriving)
        self._offer_again()
        for box in list(self.boxes):
            self._live(box)
        usd = sum((box.host.offer.usd_per_hour for box in self.boxes), Decimal(0)) / 60
        self.tally.usd += usd
        self._spent.append((self.now, usd))
        self.tally.backlog_hours += len(self.waiting) / 60
        self.tally.most_boxes = max(self.tally.most_boxes, len(self.boxes))
        self.now += MINUTE

    def _offer_again(self) -> None:
        due = sorted(arrived for at, arrived in self._later if at <= self.now)
        self._later = [(at, arrived) for at, arrived in self._later if at > self.now]
        for arrived in reversed(due):
            self.waiting.appendleft(arrived)

    def _live(self, box: ToyBox) -> None:
        age = self.now - box.rented_at
        if box.host.is_dud and age >= GIVEN_UP_AFTER:
            self._remove(box)
            self._ban(box.host, Failure.DETERMINISTIC)
        elif self.now >= box.breaks_at and age >= box.host.lead:
            self._remove(box)
            self._ban(box.host, Failure.TRANSIENT)
        elif box.draining and box.proof is None:
            self._remove(box)
        elif box.proof is not None or box.stage(self.now) is Stage.PROVING:
            self._learn(box)
            self._prove(box)

    def _prove(self, box: ToyBox) -> None:
        able = box.host.rate / 60
        while able > 0:
            if box.proof is None:
                if box.draining or not self.waiting:
                    return
                box.proof = [self.waiting.popleft(), 1.0]
            spent = min(able, box.proof[1])
            able -= spent
            box.proof[1] -= spent
            if box.proof[1] <= 1e-9:
                self._conclude(box.proof[0])
                box.proof = None

    def _conclude(self, arrived: datetime) -> None:
        self.tally.proofs += 1
        self.tally.deadline_misses += self.now - arrived > DEADLINE
        self._done.append(self.now)

    def _learn(self, box: ToyBox) -> None:
        machine = box.host.machine
        self.benchmarks[machine.machine_id] = Benchmark(
            machine_id=machine.machine_id,
            num_gpus=machine.gpus_per_lot,
            proofs_per_hour=box.host.rate,
            measured_at=self.now,
        )
        self.startups[machine.machine_id] = StartUp(
            machine_id=machine.machine_id, num_gpus=machine.gpus_per_lot, took=box.host.lead
        )

    def _ban(self, host: Host, failure: Failure) -> None:
        lasts = self.policy.bans.lasts(failure)
        self.bans.append(
            Ban(
                machine_id=host.machine.machine_id, failure=failure, reason="it failed", banned_by="watch",
                banned_at=self.now, expires_at=self.now + lasts,
            )
        )  # fmt: skip

    def _remove(self, box: ToyBox) -> None:
        self.boxes.remove(box)
        if box.proof is not None:
            self._later.append((self.now + OFFERED_AGAIN_AFTER, box.proof[0]))
            box.proof = None

    # --- what whoever decides can do --------------------------------------------------------------------------------

    def carry_out(self, moves: Sequence[Move]) -> None:
        for move in moves:
            match move:
                case RentBox(offer_id=offer_id):
                    self._rent(next(host for host in self.free() if host.offer.id == offer_id))
                case DrainBox(id=number):
                    self._box(number).draining = True
                    self._removals.append(self.now)
                case DestroyBox(id=number):
                    box = self._box(number)
                    self.tally.busy_killed += box.proof is not None
                    self._remove(box)
                    self._removals.append(self.now)
            self.tally.changes.append(self.now)

    def _rent(self, host: Host) -> None:
        self._numbers += 1
        hours = seeded(self.seed, "breaks", host.machine.machine_id, self.now).expovariate(1 / BREAKS_EVERY_HOURS)
        breaks_at = datetime.max.replace(tzinfo=UTC) if self.reliable else self.now + hours * HOUR
        self.boxes.append(ToyBox(host=host, id=self._numbers, rented_at=self.now, breaks_at=breaks_at))
        self._rents.append(self.now)

    def _box(self, number: int) -> ToyBox:
        return next(box for box in self.boxes if box.id == number)

    # --- what it looks like -----------------------------------------------------------------------------------------

    def free(self) -> list[Host]:
        """Machines on which no box of ours is."""
        taken = {box.host.machine.machine_id for box in self.boxes}
        return [host for host in self.hosts if host.machine.machine_id not in taken]

    def situation(self) -> Situation:
        rented, removed = self._since(self._rents, HOUR), self._since(self._removals, HOUR)
        while self._spent and self.now - self._spent[0][0] > 24 * HOUR:
            self._spent.popleft()
        return Situation(
            actor=Actor.PLANNER,
            now=self.now,
            installation="abc123",
            fleet="main",
            mode=Mode.LIVE,
            policy=self.policy,
            inventory=Known(value=Inventory(instances=self._instances(), seen_at=self.now), seen_at=self.now),
            demand=Known(value=self.demand(), seen_at=self.now),
            account=Known(value=Account(credit_usd=Decimal(10_000)), seen_at=self.now),
            boxes=tuple(self._ledger(box) for box in self.boxes),
            in_flight_count=0,
            in_flight_usd_per_hour=Decimal(0),
            listing=tuple(host.offer for host in self.free()),
            bans=tuple(self.bans),
            benchmarks=tuple(self.benchmarks.values()),
            effects_of_run={},
            rents_of_hour=rented,
            destroys_of_hour=removed,
            removed_lately=self._since(self._removals, REMOVED_WITHIN),
            spent_of_day_usd=sum((usd for _, usd in self._spent), Decimal(0)),
        )

    def demand(self) -> Demand:
        while self._done and self.now - self._done[0] > HOUR:
            self._done.popleft()
        return Demand(
            pending=len(self.waiting),
            running=sum(box.proof is not None for box in self.boxes),
            oldest_pending=self.now - self.waiting[0] if self.waiting else None,
            done_per_hour=len(self._done),
            failed_per_hour=0,
            seen_at=self.now,
        )

    def _since(self, times: Sequence[datetime], duration: timedelta) -> int:
        return sum(self.now - at < duration for at in times)

    def _ledger(self, box: ToyBox) -> Box:
        spoke = box.stage(self.now) is not Stage.LOADING
        return Box(
            key=f"r1-s1-c0-{box.id}", label=f"fa/abc123/main/r1-s1-c0-{box.id}", vast_id=box.id,
            machine_id=box.host.machine.machine_id, gpu_name=box.host.offer.gpu_name, num_gpus=box.host.offer.num_gpus,
            usd_per_hour=box.host.offer.usd_per_hour, agreed_usd_per_hour=box.host.offer.usd_per_hour,
            stage=box.stage(self.now), stage_since=box.rented_at, rented_at=box.rented_at, protected=False,
            tasks=int(box.proof is not None) if spoke else None, reported_at=self.now if spoke else None,
        )  # fmt: skip

    def _instances(self) -> tuple[Instance, ...]:
        return tuple(
            Instance(
                id=box.id, label=f"fa/abc123/main/r1-s1-c0-{box.id}", machine_id=box.host.machine.machine_id,
                host_id=box.host.machine.host_id, gpu_name=box.host.offer.gpu_name, num_gpus=box.host.offer.num_gpus,
                gpu_share=box.host.offer.gpu_share, usd_per_hour=box.host.offer.usd_per_hour, interruptible=False,
                image=IMAGE, actual_status="running", intended_status="running", contract_status="running",
                status_message="", started_at=box.rented_at,
            )
            for box in self.boxes
        )  # fmt: skip


Decider = Callable[[ToyFleet], Sequence[Move]]

LOOKS_EVERY = 5
"""Minutes between two heartbeats."""


def live(fleet: ToyFleet, arriving: Sequence[int], decide: Decider) -> None:
    """So many proofs come in, minute by minute, and somebody decides at every heartbeat."""
    for minute, proofs in enumerate(arriving):
        if minute % LOOKS_EVERY == 0:
            fleet.carry_out(decide(fleet))
        fleet.minute(proofs)


def planner_alone(policy: Policy | None = None) -> Decider:
    """The plan, carried out; `policy` where it is made by another than the fleet's."""
    readings: list[Reading] = []

    def decide(fleet: ToyFleet) -> Sequence[Move]:
        situation = fleet.situation()
        if policy is not None:
            situation = situation.model_copy(update={"policy": policy})
        plan = make_plan(
            Grounds(situation=situation, startups=tuple(fleet.startups.values()), history=tuple(readings[-24:]))
        )
        readings.extend([] if plan.reading is None else [plan.reading])
        return plan.actions

    return decide


def offered(seed: int, machines: int, *, reliable: bool = False) -> list[Host]:
    return [_host(seed, machine, number, reliable=reliable) for number, machine in enumerate(catalogue(seed, machines))]


def _host(seed: int, machine: Machine, number: int, *, reliable: bool) -> Host:
    dice = seeded(seed, "toy", machine.machine_id)
    fetching = timedelta(seconds=PARAMETERS_GB * 8000 / machine.down_mbit_per_s)
    around = timedelta(minutes=dice.uniform(2, 15) + 3 + dice.uniform(26, 39))
    usd = machine.usd_per_gpu_hour * machine.gpus_per_lot + machine.usd_per_gb_month * DISK_GB / 730
    return Host(
        machine=machine,
        offer=Offer(
            id=number + 1, machine_id=machine.machine_id, host_id=machine.host_id, gpu_name=machine.gpu.name,
            num_gpus=machine.gpus_per_lot, gpu_ram_mb=machine.gpu.ram_mb, gpu_share=machine.share,
            usd_per_hour=usd.quantize(Decimal("0.0001")), reliability=machine.reliability,
            verified=machine.verification == "verified", datacenter=machine.datacenter, location=machine.geolocation,
            cpu_cores=machine.cpu_cores, ram_mb=int(machine.cpu_ram_mb * machine.share), disk_gb=machine.disk_gb,
            inet_down_mbps=machine.down_mbit_per_s, inet_up_mbps=machine.up_mbit_per_s, cuda=machine.cuda_max_good,
            rentable_until=None,
        ),
        rate=proofs_per_hour(machine),
        lead=fetching + around,
        is_dud=not reliable and dice.random() < DUDS,
    )  # fmt: skip
