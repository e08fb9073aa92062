"""A Prefect that does what a test says, and a bell on a real database beside it."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from fleet_agent.bell import Bell
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.flow_run import FlowRun, FlowRunState
from fleet_agent.domain.observation import Account
from fleet_agent.domain.triggers import Doorbell, Trigger
from fleet_agent.errors import InventoryUnknown, TryLater
from fleet_agent.ports import Clock
from fleet_agent.steps.troubles import Troubles
from fleet_agent.store.bell import PostgresBelfry
from tests.store.rig import Fleet


@dataclass
class ScriptedPrefect:
    """`ports.Orchestrator` in memory: one flow run a key, be it dead. `is_down` until a test says otherwise."""

    clock: Clock
    is_down: bool = False
    rings: list[tuple[str, Doorbell]] = field(default_factory=list[tuple[str, Doorbell]])
    made: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What each new flow run was made of."""
    asked_for: list[str] = field(default_factory=list[str])
    """The key of each request for a flow run, new or not."""
    reads: int = 0
    loses_starts: bool = False
    is_slow: bool = False
    """What was rung for has a flow run, and no worker has begun it yet."""
    next_is_due: timedelta | None = None
    """Until the next run of the schedule."""
    crashed: list[str] = field(default_factory=list[str])
    born_as: FlowRunState = FlowRunState.SCHEDULED
    _by_key: dict[str, str] = field(default_factory=dict[str, str])
    _flow_runs: dict[str, FlowRun] = field(default_factory=dict[str, FlowRun])
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- the port -----------------------------------------------------------------------------------------------------

    async def ring(self, doorbell: Doorbell, *, fleet: str) -> None:
        self._answers()
        self.rings.append((fleet, doorbell))

    async def start_run(
        self,
        *,
        fleet: str,
        trigger: Trigger,
        key: str,
        at: datetime | None = None,
        wake_id: int | None = None,
        name: str | None = None,
    ) -> FlowRun:
        self._answers()
        if self.loses_starts:
            raise TryLater("the answer was lost")
        self.asked_for.append(key)
        if key not in self._by_key:
            self._by_key[key] = f"flow-run-{next(self._numbers)}"
            self.made.append({"fleet": fleet, "trigger": trigger, "key": key, "at": at, "wake_id": wake_id})
            self._put(self._by_key[key], self.born_as, None)
        return self._flow_runs[self._by_key[key]]

    async def flow_runs(self, ids: Collection[str]) -> dict[str, FlowRun]:
        self._answers()
        self.reads += 1
        return {each: self._flow_runs[each] for each in ids if each in self._flow_runs}

    async def on_its_way(self, fleet: str, *, within: timedelta) -> bool:
        self._answers()
        return self.is_slow or (self.next_is_due is not None and self.next_is_due <= within)

    async def withdraw(self, flow_run_id: str, *, why: str) -> None:
        self._answers()
        if self._flow_runs[flow_run_id].state is FlowRunState.SCHEDULED:
            self._put(flow_run_id, FlowRunState.CANCELLED, why)

    async def crash(self, flow_run_id: str, *, why: str) -> None:
        self._answers()
        self.crashed.append(flow_run_id)

    # --- what a test does ---------------------------------------------------------------------------------------------

    def becomes(self, flow_run_id: str, state: FlowRunState, message: str | None = None) -> None:
        self._put(flow_run_id, state, message)

    def delete(self, flow_run_id: str) -> None:
        del self._flow_runs[flow_run_id]
        self._by_key = {key: of for key, of in self._by_key.items() if of != flow_run_id}

    def living(self) -> list[str]:
        return [each.id for each in self._flow_runs.values() if not each.is_over]

    def state_of(self, flow_run_id: str) -> FlowRun:
        return self._flow_runs[flow_run_id]

    def keys_made(self) -> list[str]:
        return [each["key"] for each in self.made]

    def _put(self, flow_run_id: str, state: FlowRunState, message: str | None) -> None:
        self._flow_runs[flow_run_id] = FlowRun(
            id=flow_run_id,
            name=flow_run_id,
            state=state,
            state_name=state.value.title(),
            message=message,
            since=self.clock.now(),
            has_deployment=True,
        )

    def _answers(self) -> None:
        if self.is_down:
            raise TryLater("Prefect does not answer")


@dataclass
class BareMarket:
    """`ports.Market` of an account with some credit and no box. `is_down` until a test says otherwise."""

    clock: Clock
    is_down: bool = False
    looks: int = 0

    async def inventory(self) -> Inventory:
        self.looks += 1
        if self.is_down:
            raise InventoryUnknown("vast.ai does not answer")
        return Inventory(instances=(), seen_at=self.clock.now())

    async def account(self) -> Account:
        return Account(credit_usd=Decimal(100))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody has a reason to ask for {name}")


@dataclass
class Tower:
    """The bell of one database, and its Prefect; `look` as often as a test wants, time moves by hand."""

    fleet: Fleet
    told: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.prefect = ScriptedPrefect(self.fleet.clock)
        self.belfry = PostgresBelfry(self.fleet.database, self.fleet.clock)
        self.bell = self.another_bell()

    def another_bell(self) -> Bell:
        """One that remembers nothing, as after a restart."""
        return Bell(self.belfry, self.prefect, self.fleet.clock, Troubles(self.told.append))

    async def look(self, *, after: float = 0) -> timedelta:
        """One look, so many seconds later; how long the next one may be away."""
        self.fleet.clock.advance(timedelta(seconds=after))
        return await self.bell.look()

    async def looks(self, *, seconds: float) -> None:
        """Looks as the bell itself would time them, for so long."""
        end = self.fleet.clock.elapsed() + timedelta(seconds=seconds)
        while self.fleet.clock.elapsed() < end:
            pause = await self.bell.look()
            self.fleet.clock.advance(max(pause, timedelta(milliseconds=50)))

    def rings(self) -> int:
        return len(self.prefect.rings)
