"""The market: machines, the boxes rented on them, what happens to a box, and what it costs.

A discrete-event simulation read through one clock. Nothing runs between calls: each call first settles the world up to
`clock.now()`, event by event in the order of their instants, so that the same seed and the same calls at the same times
give the same world to the microsecond, whether the clock steps or runs.

What a box was at any time is kept as a list of segments (status, $/h for the GPUs, $/h for the disk). Bills, credit
and proving time are read from those segments and from nothing else. Billing follows the provider's published rules: the
disk from creation on in every state but offline, the GPUs only while running, traffic when it flows.

Who holds the GPUs of a lot is one decision (`_holder`): on-demand before interruptible, higher bid before lower, older
before younger. Being outbid, waiting to be scheduled and resuming when a rival leaves are consequences of it.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal
from functools import partial
from itertools import count
from typing import Literal

from fleet_agent.sim.catalogue import Machine, catalogue, seeded
from fleet_agent.sim.clock import SimClock
from fleet_agent.sim.faults import Faults

Status = Literal["created", "loading", "running", "stopped", "exited", "rebooting", "recycling", "unknown", "offline"]
Span = tuple[timedelta, timedelta]

NOTHING = Decimal(0)
CENT = Decimal("0.01")
MICROSECOND = timedelta(microseconds=1)
MICROSECONDS_PER_HOUR = 3_600_000_000
HOURS_PER_MONTH = 730
HOURS_FORESEEN = 24 * 366 * 100
"""Credit that lasts longer than this never runs out: calendars end."""
LEAST_PRICE = BID_STEP = Decimal("0.001")
HEARTBEAT_LOST = timedelta(seconds=60)
"""A host that is silent is `unknown` for this long before it counts as offline."""
DELETED_AFTER = timedelta(hours=48)
"""A box that was stopped for want of credit, or because its contract ended, is deleted this much later."""


@dataclass(frozen=True, slots=True)
class MarketConfig:
    """The size and the tempo of the world. The delays of a box are drawn between the two ends of their span."""

    machines: int = 80
    taken_share: float = 0.2
    credit_usd: Decimal = Decimal(100)
    provisioning: Span = (timedelta(seconds=3), timedelta(seconds=9))
    creating: Span = (timedelta(seconds=2), timedelta(seconds=6))
    loading: Span = (timedelta(seconds=45), timedelta(seconds=180))
    restarting: Span = (timedelta(seconds=10), timedelta(seconds=30))
    halting: Span = (timedelta(seconds=2), timedelta(seconds=8))
    start_up_traffic_gb: int = 60
    productive_after: timedelta = timedelta(seconds=60)
    double_sale: timedelta = timedelta(seconds=30)
    """How long a sold offer still accepts a create: on the real market two creates of one offer have both succeeded."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer asks for; with a bid the box is interruptible, without one it is on demand."""

    image: str
    disk_gb: Decimal = Decimal(10)
    label: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    onstart: str | None = None
    runtype: str = "ssh"
    args: list[str] = field(default_factory=list[str])
    bid_usd_per_hour: Decimal | None = None
    cancel_unavailable: bool = False


@dataclass(eq=False, slots=True)
class Lot:
    """A part of a machine that is rented as a whole, under one offer at a time, with the boxes made on it."""

    machine: Machine
    ask_id: int
    taken: bool
    sold: bool = False
    rival_bid_usd_per_hour: Decimal | None = None
    boxes: "list[Instance]" = field(default_factory=list["Instance"], repr=False)

    @property
    def usd_per_hour(self) -> Decimal:
        """On demand, for the GPUs alone."""
        return self.machine.usd_per_gpu_hour * self.machine.gpus_per_lot

    @property
    def reserve_usd_per_hour(self) -> Decimal:
        """The least that the host takes from a bidder."""
        return (self.usd_per_hour * Decimal("0.6")).quantize(BID_STEP)

    def disk_usd_per_hour(self, disk_gb: Decimal) -> Decimal:
        return self.machine.usd_per_gb_month * disk_gb / HOURS_PER_MONTH


@dataclass(slots=True)
class Segment:
    """A stretch of a box's life during which neither its status nor its price changed."""

    since: datetime
    status: Status | None
    gpu_usd_per_hour: Decimal
    disk_usd_per_hour: Decimal
    until: datetime | None = None

    def usd(self, since: datetime, until: datetime) -> tuple[Decimal, Decimal]:
        """What the GPUs and the disk cost within a window."""
        start, end = max(since, self.since), min(until, self.until or until)
        microseconds = max(end - start, timedelta(0)) // MICROSECOND
        return (
            self.gpu_usd_per_hour * microseconds / MICROSECONDS_PER_HOUR,
            self.disk_usd_per_hour * microseconds / MICROSECONDS_PER_HOUR,
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a box will never run: the last status that it reaches, and what the provider says about it."""

    stops_at: Literal["created", "loading"]
    message: str


@dataclass(eq=False, slots=True)
class Instance:
    """A rented box, as it really is. `gone_at` is set once it is destroyed; the record stays."""

    id: int
    lot: Lot
    order: Order
    created_at: datetime
    ends_at: datetime
    trouble: Trouble | None
    segments: list[Segment]
    intended_status: Literal["running", "stopped"] = "running"
    cur_state: Literal["running", "stopped"] = "stopped"
    traffic: list[tuple[datetime, Decimal]] = field(default_factory=list[tuple[datetime, Decimal]])
    gone_at: datetime | None = None
    plan: int = 0
    """Number of the current plan of transitions; a transition of an earlier plan is void."""

    @property
    def machine(self) -> Machine:
        return self.lot.machine

    @property
    def label(self) -> str | None:
        return self.order.label

    @property
    def actual_status(self) -> Status | None:
        return self.segments[-1].status

    @property
    def has_run(self) -> bool:
        return any(segment.status == "running" for segment in self.segments)

    @property
    def is_bid(self) -> bool:
        return self.order.bid_usd_per_hour is not None

    @property
    def gpu_usd_per_hour(self) -> Decimal:
        """The agreed price of the GPUs while running: the bid, or the offer's price on demand."""
        bid = self.order.bid_usd_per_hour
        return self.lot.usd_per_hour if bid is None else bid

    @property
    def disk_usd_per_hour(self) -> Decimal:
        return self.lot.disk_usd_per_hour(self.order.disk_gb)


@dataclass(frozen=True, slots=True)
class Offer:
    """A lot as the market shows it now. `min_bid_usd_per_hour` is what wins it today."""

    lot: Lot
    rentable: bool
    min_bid_usd_per_hour: Decimal
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Create:
    """One rent that took effect, as it was ordered: the answer to "how many boxes did that order make"."""

    at: datetime
    instance_id: int
    ask_id: int
    label: str | None


@dataclass(frozen=True, slots=True)
class Charge:
    """What one box cost between two instants."""

    instance: Instance
    since: datetime
    until: datetime
    gpu_usd: Decimal
    disk_usd: Decimal
    traffic_usd: Decimal

    @property
    def usd(self) -> Decimal:
        return self.gpu_usd + self.disk_usd + self.traffic_usd


class Refused(Exception):
    """The market says no, and nothing was done. `code` names the reason: the methods of Market say which are theirs."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class Market:
    """One customer's account on the market, and behind it the truth.

    `api_key` is the only key that the HTTP face accepts; with None it accepts any.
    """

    def __init__(
        self,
        clock: SimClock,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        api_key: str | None = None,
        config: MarketConfig | None = None,
    ) -> None:
        self.clock = clock
        self.seed = seed
        self.faults = faults or Faults()
        self.api_key = api_key
        self.config = config or MarketConfig()
        self.opened_at = clock.now()
        self.creates: list[Create] = []
        self.deposits: list[tuple[datetime, Decimal]] = [(self.opened_at, self.config.credit_usd)]
        self._settled_at = self.opened_at
        self._ask_ids = count(40_000_000)
        self._instance_ids = count(30_000_000)
        self._lots = self._open_lots()
        self._asks = {lot.ask_id: lot for lot in self._lots}
        self._instances: dict[int, Instance] = {}
        self._alive: dict[int, Instance] = {}
        self._offline_until: dict[int, datetime] = {}
        self._events: list[tuple[datetime, int, Callable[[datetime], None]]] = []
        self._event_numbers = count()
        self._usd_settled = NOTHING

    def _open_lots(self) -> list[Lot]:
        random = seeded(self.seed, "lots")
        return [
            Lot(machine, ask_id=next(self._ask_ids), taken=random.random() < self.config.taken_share)
            for machine in catalogue(self.seed, self.config.machines)
            for _ in range(machine.lots)
        ]

    # --- what a customer sees -----------------------------------------------------------------------------------------

    def offers(self) -> list[Offer]:
        """Every lot, rentable or not. An offer is used once: GPUs that came free are listed under a new number."""
        now = self.settle()
        offers: list[Offer] = []
        for lot in self._lots:
            rentable = self._is_rentable(lot, now)
            if rentable and lot.sold:
                self._list_anew(lot)
            offers.append(Offer(lot, rentable, self._winning_bid(lot), self._contract_end(lot.machine, now)))
        return offers

    def seen_instances(self) -> list[Instance]:
        """The boxes that a read of the account shows: those that exist, or existed when a lagging read was taken."""
        now = self.settle()
        lag = self.faults.take("list_lag")
        if lag is None:
            return list(self._alive.values())
        then = now - lag.lasting
        return [box for box in self._instances.values() if box.created_at <= then and not _is_gone(box, then)]

    def credit_usd(self) -> Decimal:
        """What is left to spend. Below zero the disks of stopped boxes go on being billed."""
        return self._credit_at(self.settle())

    def charges(self, since: datetime, until: datetime) -> list[Charge]:
        """What each box, gone or not, cost within a window, oldest box first; those that cost nothing are left out."""
        now = self.settle()
        bills = [_bill(box, since, min(until, now)) for box in self._instances.values()]
        return [bill for bill in bills if bill.usd]

    # --- what a customer does -----------------------------------------------------------------------------------------

    def rent(self, ask_id: int, order: Order) -> Instance:
        """Makes a box from an offer.

        Raises Refused: `no_credit`; `invalid_price`; `no_such_ask` for an offer that never was, is sold or has expired;
        and, if the order says `cancel_unavailable`, `unavailable` for one whose GPUs would go to somebody else. Without
        that flag the last case makes a stopped box whose disk is billed, as the provider documents it.
        """
        now = self.settle()
        self._check_credit(now)
        if order.bid_usd_per_hour is not None:
            _check_price(order.bid_usd_per_hour, most=Decimal(128))
        lot = self._asks.get(ask_id)
        if lot and self.faults.take("offer_gone", lot.machine.machine_id):
            lot.taken = True
            self._withdraw(ask_id)
            lot = None
        if lot is None:
            raise Refused("no_such_ask", f"no_such_ask Instance type by id {ask_id} is not available.")
        if order.cancel_unavailable and not self._would_get_gpus(lot, order, now):
            raise Refused("unavailable", f"no_such_ask Instance type by id {ask_id} is no longer available.")
        return self._make(lot, ask_id, order, now)

    def destroy(self, instance_id: int) -> None:
        """Ends a box and its billing. Raises Refused `no_such_instance`."""
        now = self.settle()
        box = self.instance(instance_id)
        if not self.faults.take("destroy_ignored", box.machine.machine_id):
            self._remove(box, now)

    def stop(self, instance_id: int) -> None:
        """Halts a box and gives its GPUs back; the disk stays and is billed. Raises Refused `no_such_instance`."""
        now = self.settle()
        self._halt(self.instance(instance_id), now)

    def start(self, instance_id: int) -> None:
        """Asks for a stopped box's GPUs again, which may be taken. Raises Refused `no_such_instance`, `no_credit`."""
        now = self.settle()
        box = self.instance(instance_id)
        self._check_credit(now)
        box.intended_status = "running"
        self._award(box.lot, now)

    def reboot(self, instance_id: int) -> None:
        """Restarts the container of a box that has its GPUs. Raises Refused `no_such_instance`."""
        now = self.settle()
        box = self.instance(instance_id)
        if box.cur_state == "running":
            self._become(box, "rebooting", now)
            self._follow(box, now, (self.config.restarting, "running"))

    def recycle(self, instance_id: int) -> None:
        """Pulls the image and makes the container anew, if the box has its GPUs. Raises Refused `no_such_instance`."""
        now = self.settle()
        box = self.instance(instance_id)
        if box.cur_state == "running":
            self._become(box, "recycling", now)
            self._follow(box, now, (self.config.creating, "loading"), (self.config.loading, "running"))

    def rebuild(self, instance_id: int, **amendments: object) -> None:
        """Changes what the container runs (fields of Order) and recycles it. Raises Refused `no_such_instance`."""
        box = self.instance(instance_id)
        box.order = replace(box.order, **amendments)
        self.recycle(instance_id)

    def set_label(self, instance_id: int, label: str) -> None:
        """Raises Refused `no_such_instance`, `label_too_long`."""
        box = self.instance(instance_id)
        if len(label) > 1024:
            raise Refused("label_too_long", "label must be at most 1024 characters")
        box.order = replace(box.order, label=label)

    def change_bid(self, instance_id: int, usd_per_hour: Decimal | None) -> None:
        """Bids anew for an interruptible box; None bids what wins now. Raises `no_such_instance`, `invalid_price`."""
        now = self.settle()
        box = self.instance(instance_id)
        if not box.is_bid:
            raise Refused("invalid_price", "an on-demand instance has no bid; its type cannot be changed")
        bid = self._winning_bid(box.lot, besides=box) if usd_per_hour is None else usd_per_hour
        _check_price(bid, most=Decimal(32 * box.machine.gpus_per_lot))
        box.order = replace(box.order, bid_usd_per_hour=bid)
        self._become(box, box.actual_status, now)
        self._award(box.lot, now)

    def deposit(self, usd: Decimal) -> None:
        """Buys credit. Boxes that were stopped for want of it stay stopped until they are started."""
        self.deposits.append((self.settle(), usd))

    # --- the truth: for tests, for the proving side and for the control plane -----------------------------------------

    def instance(self, instance_id: int) -> Instance:
        """Raises Refused `no_such_instance` for a box that never was or is gone."""
        self.settle()
        if instance_id not in self._alive:
            raise Refused("no_such_instance", f"no_such_instance: instance {instance_id} not found")
        return self._alive[instance_id]

    def instances(self) -> list[Instance]:
        """Every box that exists now, whatever a list says, oldest first."""
        self.settle()
        return list(self._alive.values())

    def all_instances(self) -> list[Instance]:
        """Every box that ever was, oldest first."""
        self.settle()
        return list(self._instances.values())

    def usd_billed(self) -> Decimal:
        """What all boxes together have cost until now."""
        return self._usd_billed_at(self.settle())

    def usd_per_hour(self) -> Decimal:
        """What is being billed at this moment."""
        self.settle()
        return self._burn()

    # --- time ---------------------------------------------------------------------------------------------------------

    def settle(self) -> datetime:
        """Brings the world to the present, which it returns. Every call does so; who kept a record from before asks."""
        now = self.clock.now()
        while (due := self._next_due()) is not None and due <= now:
            self._settled_at = due
            if self._events and self._events[0][0] == due:
                _, _, event = heapq.heappop(self._events)
                event(due)
            else:
                self._run_dry(due)
        self._settled_at = now
        self._strike(now)
        return now

    def _next_due(self) -> datetime | None:
        instants = [self._events[0][0]] if self._events else []
        dry_at = self._dry_at()
        if dry_at is not None:
            instants.append(dry_at)
        return min(instants, default=None)

    def _dry_at(self) -> datetime | None:
        """When the credit runs out at the present burn, if there is anything left to stop."""
        if not any(box.intended_status == "running" for box in self._alive.values()):
            return None
        credit, burn = self._credit_at(self._settled_at), self._burn()
        if credit <= 0:
            return self._settled_at
        if credit > burn * HOURS_FORESEEN:
            return None
        return self._settled_at + (int(credit / burn * MICROSECONDS_PER_HOUR) + 1) * MICROSECOND

    def _run_dry(self, at: datetime) -> None:
        for box in list(self._alive.values()):
            if box.intended_status == "running":
                self._expire(box, at)

    def _strike(self, now: datetime) -> None:
        """Lets the faults happen that wait for no call of the customer's."""
        if self.faults.take("credit_zero"):
            self.deposits.append((now, -max(NOTHING, self._credit_at(now)).quantize(CENT, ROUND_UP)))
            self._run_dry(now)
        for box in self._alive.values():
            if box.actual_status == "running":
                self._strike_running(box, now)

    def _strike_running(self, box: Instance, now: datetime) -> None:
        machine_id = box.machine.machine_id
        if box.is_bid and box.cur_state == "running" and (fault := self.faults.take("outbid", machine_id)):
            self._outbid(box, now, fault.lasting)
        elif self.faults.take("container_exits", machine_id):
            self._follow(box, now)
            self._become(box, "exited", now)
        elif fault := self.faults.take("host_offline", machine_id):
            self._cut_off(box.machine, now, fault.lasting)

    def _outbid(self, box: Instance, now: datetime, lasting: timedelta) -> None:
        box.lot.rival_bid_usd_per_hour = box.gpu_usd_per_hour + BID_STEP
        self._award(box.lot, now)
        self._schedule(now + lasting, partial(self._rival_leaves, box.lot))

    def _rival_leaves(self, lot: Lot, at: datetime) -> None:
        lot.rival_bid_usd_per_hour = None
        self._award(lot, at)

    def _cut_off(self, machine: Machine, now: datetime, lasting: timedelta) -> None:
        """The host disappears; what ran on it runs again when it is back."""
        self._offline_until[machine.machine_id] = now + lasting
        unknown = min(HEARTBEAT_LOST, lasting)
        offline = lasting - unknown
        for box in self._alive.values():
            if box.machine is machine and box.actual_status == "running":
                self._become(box, "unknown", now)
                self._follow(box, now, ((unknown, unknown), "offline"), ((offline, offline), "running"))

    def _schedule(self, at: datetime, event: Callable[[datetime], None]) -> None:
        heapq.heappush(self._events, (at, next(self._event_numbers), event))

    # --- the life of a box --------------------------------------------------------------------------------------------

    def _make(self, lot: Lot, ask_id: int, order: Order, now: datetime) -> Instance:
        instance_id = next(self._instance_ids)
        self.creates.append(Create(now, instance_id, ask_id, order.label))
        if self.faults.take("label_dropped", lot.machine.machine_id):
            order = replace(order, label=None)
        box = Instance(
            id=instance_id,
            lot=lot,
            order=order,
            created_at=now,
            ends_at=self._contract_end(lot.machine, now),
            trouble=self._trouble(lot.machine.machine_id),
            segments=[Segment(now, None, NOTHING, lot.disk_usd_per_hour(order.disk_gb))],
        )
        self._instances[box.id] = self._alive[box.id] = box
        lot.boxes.append(box)
        lot.sold = True
        self._schedule(box.ends_at, partial(self._end_contract, box))
        self._schedule(now + self.config.double_sale, lambda _: self._withdraw(ask_id))
        self._award(lot, now)
        if box.cur_state == "stopped":
            self._become(box, "stopped", now)
        return box

    def _trouble(self, machine_id: int) -> Trouble | None:
        if self.faults.take("dud_host", machine_id):
            return Trouble("created", "Error response from daemon: failed to create task: OCI runtime create failed")
        if self.faults.take("stuck_loading", machine_id):
            return Trouble("loading", "Pulling fs layer: connection reset by peer. Retrying in {seconds} seconds")
        return None

    def _award(self, lot: Lot, at: datetime) -> None:
        """Gives the GPUs of a lot to the box that should hold them, and takes them from any other."""
        holder = self._holder(lot)
        for box in lot.boxes:
            if box is holder and box.cur_state == "stopped":
                box.cur_state = "running"
                self._follow(box, at, *self._start_up(box))
            elif box is not holder and box.cur_state == "running":
                box.cur_state = "stopped"
                self._follow(box, at, (self.config.halting, "stopped"))

    def _start_up(self, box: Instance) -> list[tuple[Span, Status]]:
        if box.has_run:
            return [(self.config.provisioning, "loading"), (self.config.restarting, "running")]
        return [
            (self.config.provisioning, "created"),
            (self.config.creating, "loading"),
            (self.config.loading, "running"),
        ]

    def _follow(self, box: Instance, at: datetime, *steps: tuple[Span, Status]) -> None:
        """Replaces what was planned for a box by these statuses, each after its delay."""
        box.plan += 1
        random = seeded(self.seed, box.id, box.plan)
        for (least, most), status in steps:
            at += least + (most - least) * round(random.random(), 3)
            if not _prevents(box.trouble, status):
                self._schedule(at, partial(self._arrive, box, box.plan, status))

    def _arrive(self, box: Instance, plan: int, status: Status, at: datetime) -> None:
        if plan != box.plan or box.gone_at is not None:
            return
        if status == "running" and not box.has_run:
            self._fetch(box, at)
        self._become(box, status, at)

    def _fetch(self, box: Instance, at: datetime) -> None:
        """Image and parameters came over the host's paid line."""
        usd = box.machine.usd_per_gb_down * self.config.start_up_traffic_gb
        box.traffic.append((at, usd))
        self._usd_settled += usd

    def _become(self, box: Instance, status: Status | None, at: datetime) -> None:
        """Ends the present segment and opens the next: status and price change nowhere else."""
        self._close(box, at)
        gpu = box.gpu_usd_per_hour if status == "running" else NOTHING
        disk = NOTHING if status == "offline" else box.disk_usd_per_hour
        box.segments.append(Segment(at, status, gpu, disk))

    def _close(self, box: Instance, at: datetime) -> None:
        segment = box.segments[-1]
        segment.until = at
        self._usd_settled += sum(segment.usd(segment.since, at))

    def _halt(self, box: Instance, at: datetime) -> None:
        box.intended_status = "stopped"
        self._award(box.lot, at)

    def _end_contract(self, box: Instance, at: datetime) -> None:
        if box.gone_at is None:
            self._expire(box, at)

    def _expire(self, box: Instance, at: datetime) -> None:
        self._halt(box, at)
        self._schedule(at + DELETED_AFTER, partial(self._delete_expired, box))

    def _delete_expired(self, box: Instance, at: datetime) -> None:
        if box.gone_at is None and box.intended_status == "stopped":
            self._remove(box, at)

    def _remove(self, box: Instance, at: datetime) -> None:
        self._close(box, at)
        box.gone_at = at
        del self._alive[box.id]
        box.lot.boxes.remove(box)
        self._award(box.lot, at)

    # --- lots and offers ----------------------------------------------------------------------------------------------

    def _holder(self, lot: Lot) -> Instance | None:
        """The box to which the GPUs of a lot belong, by the provider's order of priority."""
        if lot.taken:
            return None
        claims = [
            box
            for box in lot.boxes
            if box.intended_status == "running" and (not box.is_bid or box.gpu_usd_per_hour >= _floor_bid(lot))
        ]
        return max(claims, key=lambda box: (not box.is_bid, box.gpu_usd_per_hour, -box.id), default=None)

    def _is_rentable(self, lot: Lot, now: datetime) -> bool:
        """On demand: interruptible boxes make way."""
        holder = self._holder(lot)
        online = self._offline_until.get(lot.machine.machine_id, now) <= now
        return online and not lot.taken and (holder is None or holder.is_bid)

    def _would_get_gpus(self, lot: Lot, order: Order, now: datetime) -> bool:
        """Whether the provider believes so: of an offer sold a moment ago it does not yet know that it is sold."""
        if not self._is_rentable(lot, now):
            return lot.sold
        return order.bid_usd_per_hour is None or order.bid_usd_per_hour >= self._winning_bid(lot)

    def _winning_bid(self, lot: Lot, besides: Instance | None = None) -> Decimal:
        others = [box.gpu_usd_per_hour + BID_STEP for box in lot.boxes if box.is_bid and box is not besides]
        return max([_floor_bid(lot), *others])

    def _list_anew(self, lot: Lot) -> None:
        lot.sold = False
        lot.ask_id = next(self._ask_ids)
        self._asks[lot.ask_id] = lot

    def _withdraw(self, ask_id: int) -> None:
        self._asks.pop(ask_id, None)

    def _contract_end(self, machine: Machine, now: datetime) -> datetime:
        """Hosts renew their offers: the end is the next whole multiple of the time that they are offered for."""
        periods = (now - self.opened_at) // machine.offered_for + 1
        return self.opened_at + periods * machine.offered_for

    # --- money --------------------------------------------------------------------------------------------------------

    def _check_credit(self, now: datetime) -> None:
        if self._credit_at(now) <= 0:
            raise Refused("no_credit", "Your account lacks credit; see the billing page.")

    def _credit_at(self, at: datetime) -> Decimal:
        return sum((usd for _, usd in self.deposits), NOTHING) - self._usd_billed_at(at)

    def _usd_billed_at(self, at: datetime) -> Decimal:
        """`at` is not before the last change: closed segments are summed up once, open ones are read."""
        return self._usd_settled + sum(sum(box.segments[-1].usd(box.created_at, at)) for box in self._alive.values())

    def _burn(self) -> Decimal:
        meters = [box.segments[-1] for box in self._alive.values()]
        return sum((meter.gpu_usd_per_hour + meter.disk_usd_per_hour for meter in meters), NOTHING)


def _is_gone(box: Instance, at: datetime) -> bool:
    return box.gone_at is not None and box.gone_at <= at


def _check_price(usd_per_hour: Decimal, *, most: Decimal) -> None:
    if not LEAST_PRICE <= usd_per_hour <= most:
        raise Refused("invalid_price", f"price must be between {LEAST_PRICE} and {most} $/hour")


def _prevents(trouble: Trouble | None, status: Status) -> bool:
    if trouble is None:
        return False
    return status == "running" or (status == "loading" and trouble.stops_at == "created")


def _floor_bid(lot: Lot) -> Decimal:
    """What a bid must reach even if nobody else of ours bids."""
    rival = lot.rival_bid_usd_per_hour
    return lot.reserve_usd_per_hour if rival is None else max(lot.reserve_usd_per_hour, rival + BID_STEP)


def _bill(box: Instance, since: datetime, until: datetime) -> Charge:
    costs = [segment.usd(since, until) for segment in box.segments]
    return Charge(
        instance=box,
        since=max(since, box.created_at),
        until=min(until, box.gone_at or until),
        gpu_usd=sum((gpu for gpu, _ in costs), NOTHING),
        disk_usd=sum((disk for _, disk in costs), NOTHING),
        traffic_usd=sum((usd for at, usd in box.traffic if since < at <= until), NOTHING),
    )
