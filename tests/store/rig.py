"""What the store's tests share: a fleet whose journal is driven by hand, and the values that go in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from fleet_agent.domain.actions import DestroyBox, Effect, NotifyHuman, RentBox
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Instance, Inventory, Offer
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.run import (
    Closing,
    Compaction,
    Message,
    MessageKind,
    ModelRequest,
    NothingToDo,
    Run,
    RunRequest,
    Usage,
)
from fleet_agent.domain.spending import Booking
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.verdict import NOTHING, Verdict
from fleet_agent.domain.waking import Look, bands
from fleet_agent.store import reading, steering
from fleet_agent.store.database import Database
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.installation import installation, timeline
from fleet_agent.store.journal import PostgresJournal
from fleet_agent.store.ledger import GRACE

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
IMAGE = "example/prover@sha256:" + "a" * 64
SEND_BY = timedelta(seconds=20)
MODEL = "wise-one at http://model.test/v1"
UNBOOKED = Booking(model=MODEL, hour=NOON, most=Usage())
"""Of a reply that a test has without having asked."""


class HandClock:
    """Business time that a test moves."""

    def __init__(self) -> None:
        self._now = NOON
        self._elapsed = timedelta()

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> timedelta:
        return self._elapsed

    def advance(self, by: timedelta) -> None:
        self._now += by
        self._elapsed += by

    def jump(self, by: timedelta) -> None:
        """Somebody sets the clock: business time is another, and no time has passed."""
        self._now += by


@dataclass
class Fleet:
    """One fleet of one database."""

    database: Database
    name: str = "main"
    clock: HandClock = field(default_factory=HandClock)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.journal = PostgresJournal(self.database, self.clock, self.name)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def ask_for_run(self, trigger: Trigger = Trigger.MANUAL, **request: Any) -> Run | NothingToDo:
        values: dict[str, Any] = {
            "fleet": self.name,
            "trigger": trigger,
            "flow_run_id": f"{self.name}-flow-run-{next(self._numbers)}",
            "worker_id": "test",
        }
        return await self.journal.open_run(RunRequest(**values | request))

    async def open(self, trigger: Trigger = Trigger.MANUAL, **request: Any) -> Run:
        opened = await self.ask_for_run(trigger, **request)
        assert isinstance(opened, Run), opened
        return opened

    async def reply(
        self,
        run: Run,
        *effects: Effect,
        step: int = 1,
        offers: Sequence[Offer] = (),
        inventory: Known[Inventory] | Unknown | None = None,
        usage: Usage | None = None,
        booking: Booking | None = None,
    ) -> tuple[Ruled, ...]:
        return await self.journal.record_reply(
            run,
            Message(turn=1, step=step, role="assistant", kind=MessageKind.TOOL_CALL, content="…"),
            booking=booking or UNBOOKED,
            usage=usage or Usage(),
            effects=[(f"call-{number}", effect) for number, effect in enumerate(effects)],
            observation=self.observation(inventory),
            listing=Listing(offers=tuple(offers)),
        )

    async def ask(self, run: Run, body: Mapping[str, Any] | None = None, most: Usage | None = None) -> Booking:
        """A request that is about to be sent."""
        request = ModelRequest(
            body=dict(body or {}), compaction=Compaction(), taint=None, model=MODEL, most=most or Usage()
        )
        return await self.journal.about_to_ask(run, request)

    async def close(self, run: Run, *, may_go_on: bool = False, **closing: Any) -> Any:
        return await self.journal.close_or_go_on(run, self.closing(**closing), may_go_on=may_go_on)

    async def run_through(self, trigger: Trigger = Trigger.MANUAL, **request: Any) -> Run:
        """A run that takes what waits and closes."""
        run = await self.open(trigger, **request)
        await self.journal.collect(run, turn=1)
        await self.close(run)
        return run

    # --- effects ------------------------------------------------------------------------------------------------------

    async def rent(self, run: Run, *, offer_id: int = 1, step: int = 1, hook_digest: str | None = None) -> str:
        """A rent that was ruled on and marked as sent; its key."""
        (ruled,) = await self.reply(
            run, RentBox(offer_id=offer_id, reason="work waits"), step=step, offers=[offer(id=offer_id)]
        )
        await self.journal.mark_sent(run, ruled.key, send_by=SEND_BY, hook_digest=hook_digest)
        return ruled.key

    async def rented(self, run: Run, *, vast_id: int = 101, offer_id: int = 1, step: int = 1) -> str:
        """A rent whose box the provider confirmed; its key."""
        key = await self.rent(run, offer_id=offer_id, step=step)
        await self.journal.record_outcome(key, ActionStatus.DONE, "rented", vast_id=vast_id)
        return key

    async def destroy(self, run: Run, *, vast_id: int = 101, step: int = 2) -> str:
        """A destroy that was ruled on and marked as sent; its key."""
        (ruled,) = await self.reply(
            run,
            DestroyBox(id=vast_id, reason="no work"),
            step=step,
            inventory=self.look(self.instance_of(vast_id)),
        )
        await self.journal.mark_sent(run, ruled.key, send_by=SEND_BY)
        return ruled.key

    # --- what happens outside of runs ---------------------------------------------------------------------------------

    def post(self, kind: Kind = Kind.MESSAGE, text: str = "", **values: Any) -> int:
        event = Post(kind=kind, source="test", text=text, **values)
        with self.database.shared(self.name) as tx:
            return post(tx, self.name, event, now=self.clock.now())

    def set_policy(self, **changes: str) -> None:
        with self.database.exclusive(self.name) as tx:
            steering.change_policy(
                tx,
                self.name,
                {key.replace("__", "."): value for key, value in changes.items()},
                who="test",
                now=self.clock.now(),
            )

    def cancel_wake(self, wake_id: int) -> None:
        with self.database.exclusive(self.name) as tx:
            tx.execute(text("UPDATE wake SET status = 'cancelled' WHERE id = :id"), {"id": wake_id})

    def let_real_time_pass(self, by: timedelta) -> None:
        """Date back what is measured in real time, as if `by` had passed since."""
        with self.database.transaction() as tx:
            tx.execute(text("UPDATE run SET seen_at = seen_at - :by"), {"by": by})
            tx.execute(text("UPDATE action SET sent_at = sent_at - :by"), {"by": by})
            tx.execute(
                text("UPDATE box SET missed_since = missed_since - :by, busy_until = busy_until - :by"), {"by": by}
            )

    def real(self, business: datetime) -> datetime:
        return timeline(self.database).real(business)

    # --- what is there ------------------------------------------------------------------------------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of this fleet in the order in which they were made."""
        order = {"run": "run_id", "message": "seq", "box": "rented_at, key", "host": "machine_id"}.get(table, "id")
        with self.database.transaction() as tx:
            query = text(f"SELECT * FROM {table} WHERE fleet = :fleet ORDER BY {order}")
            return [dict(row) for row in tx.execute(query, {"fleet": self.name}).mappings()]

    def state(self) -> dict[str, Any]:
        with self.database.transaction() as tx:
            return reading.status(tx, self.name, now=self.clock.now())

    def statuses(self) -> dict[int, str]:
        return {row["run_id"]: row["status"] for row in self.rows("run")}

    def action(self, key: str) -> dict[str, Any]:
        return next(row for row in self.rows("action") if row["key"] == key)

    def box(self, key: str) -> dict[str, Any]:
        return next(row for row in self.rows("box") if row["key"] == key)

    # --- values -------------------------------------------------------------------------------------------------------

    def label(self, key: str) -> str:
        with self.database.transaction() as tx:
            return f"fa/{installation(tx).name}/{self.name}/{key}"

    def instance(self, key: str, vast_id: int = 101, **changes: Any) -> Instance:
        return instance(id=vast_id, label=self.label(key), **changes)

    def instance_of(self, vast_id: int) -> Instance:
        row = next(row for row in self.rows("box") if row["vast_id"] == vast_id)
        return self.instance(row["key"], vast_id)

    def look(self, *instances: Instance) -> Known[Inventory]:
        """A complete look a second after the last one."""
        self.clock.advance(timedelta(seconds=1))
        inventory = Inventory(instances=instances, seen_at=self.clock.now())
        return Known(value=inventory, seen_at=inventory.seen_at)

    async def loses(self, run: Run) -> None:
        """Looks in which every box is missing, for long enough that each is gone."""
        await self.sees(run)
        self.let_real_time_pass(GRACE + timedelta(seconds=1))
        await self.sees(run)

    async def sees(self, run: Run, *instances: Instance) -> None:
        await self.journal.record_sighting(run, self.look(*instances).value)

    def observation(self, inventory: Known[Inventory] | Unknown | None = None) -> Observation:
        return Observation(
            taken_at=self.clock.now(),
            inventory=inventory or self.look(),
            demand=Known(value=idle(self.clock.now()), seen_at=self.clock.now()),
            account=Known(value=Account(credit_usd=Decimal(100)), seen_at=self.clock.now()),
            boxes=(),
            in_flight_count=0,
            in_flight_usd_per_hour=Decimal(0),
        )

    def closing(self, **changes: Any) -> Closing:
        values: dict[str, Any] = {
            "verdict": NOTHING,
            "summary": "Nothing to do.",
            "exit_reason": "finished",
            "quiet": False,
            "bands": bands(Look(self.observation()), {}),
            "asked_model": True,
        }
        return Closing(**values | changes)


ACTED = Verdict(action=True, state_changed=False)
CHANGED = Verdict(action=False, state_changed=True)
TELL = NotifyHuman(text="The credit is low.")


def idle(now: datetime) -> Demand:
    """No proof waits and none is under way."""
    return Demand(pending=0, running=0, oldest_pending=None, done_per_hour=None, failed_per_hour=None, seen_at=now)


def offer(**changes: Any) -> Offer:
    values: dict[str, Any] = {
        "id": 1, "machine_id": 11, "host_id": 21, "gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram_mb": 24_576,
        "gpu_share": 1.0, "usd_per_hour": Decimal("0.40"), "reliability": 0.99, "verified": True, "datacenter": False,
        "location": "Texas, US", "cpu_cores": 16, "ram_mb": 64_000, "disk_gb": 500, "inet_down_mbps": 900,
        "inet_up_mbps": 500, "cuda": 12.8, "rentable_until": None,
    }  # fmt: skip
    return Offer(**values | changes)


def instance(**changes: Any) -> Instance:
    values: dict[str, Any] = {
        "id": 101, "label": "", "machine_id": 11, "host_id": 21, "gpu_name": "RTX 4090", "num_gpus": 1,
        "gpu_share": 1.0, "usd_per_hour": Decimal("0.41"), "interruptible": False, "image": IMAGE,
        "actual_status": "running", "intended_status": "running", "contract_status": "running", "status_message": "",
        "started_at": NOON,
    }  # fmt: skip
    return Instance(**values | changes)
