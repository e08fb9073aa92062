"""The bell: it alone rings for what waits, and it alone shows wakes in Prefect.

It looks when something was posted and every few seconds anyway, so nothing depends on a notification that arrives. It
keeps no truth: what waits is in the database, how often it rang is a memory that may be lost, and everything it asks of
Prefect may be asked twice. So it can be killed anywhere, and neither a dead Prefect nor a dead database ends it.
What it decides is in `domain/bell.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from fleet_agent.domain.bell import (
    TRAILING,
    CancelHere,
    LeaveIt,
    Ring,
    Rung,
    Show,
    ShownWake,
    Silence,
    StartRun,
    Waiting,
    Withdraw,
    decide,
    mend,
    pause_after,
    remember,
    ring_key,
    wake_key,
)
from fleet_agent.domain.flow_run import FlowRun
from fleet_agent.domain.triggers import Trigger
from fleet_agent.ports import Belfry, Clock, Orchestrator
from fleet_agent.steps.troubles import Troubles

LOOK_EVERY: Final = timedelta(seconds=5)
"""Real time between two looks when no news comes."""

BREATH: Final = timedelta(milliseconds=50)
"""Real time between two looks when news never ends: a flood of posts is looked at twenty times a second."""

MOST_DEAD_KEYS: Final = 5
"""Keys with a dead flow run behind them that one look passes over; after a restored backup there may be many."""


@dataclass
class Bell:
    """All fleets of one database, and one Prefect."""

    belfry: Belfry
    orchestrator: Orchestrator
    clock: Clock
    troubles: Troubles
    _rung: dict[str, Rung] = field(default_factory=dict[str, Rung])
    _mended_at: timedelta | None = None

    async def keep_ringing(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Until it is cancelled."""
        while True:
            pause = await self.look()
            await sleep(BREATH.total_seconds())
            await self.belfry.until_news(within=pause)

    async def look(self) -> timedelta:
        """Ring for what waits and mend how wakes are shown; how long, in real time, the next look may be away."""
        pause = LOOK_EVERY
        with self.troubles.at("the bell"):
            for waiting in await self.belfry.waiting():
                pause = min(pause, await self._answer(waiting))
            await self._mend_wakes(await self.belfry.shown_wakes())
        return pause

    # --- ringing ------------------------------------------------------------------------------------------------------

    async def _answer(self, waiting: Waiting) -> timedelta:
        """Ring, start a run or keep silent for one fleet; how long the next look at it may be away."""
        rung, elapsed = self._rung.get(waiting.fleet), self.clock.elapsed()
        decision = decide(waiting, rung, elapsed)
        if isinstance(decision, Silence):
            return LOOK_EVERY if decision.until is None else decision.until - elapsed
        with self.troubles.at(f"the bell of fleet {waiting.fleet}"):
            if rung is not None and _is_new(decision, waiting) and await self._is_on_its_way(waiting):
                self._rung[waiting.fleet] = rung.model_copy(update={"at": elapsed})
                return pause_after(rung, waiting.outlook)
            match decision:
                case Ring(doorbell=doorbell):
                    await self.orchestrator.ring(doorbell, fleet=waiting.fleet)
                case StartRun(number=number):
                    await self._start_run(waiting, number)
            # Never forgotten: what a run took and gave back is no news, or an outage of the model would be rung for
            # without a pause. Remembered only here: Prefect that is back after an outage is rung at the next look.
            self._rung[waiting.fleet] = after = remember(waiting, rung, elapsed)
            return pause_after(after, waiting.outlook)
        return LOOK_EVERY

    async def _is_on_its_way(self, waiting: Waiting) -> bool:
        """Whether a flow run waits that will take it: its process is starting, another run has its slot, or it is the
        later answer to a doorbell. What is due later than that, such as a heartbeat, nobody shall have to wait for."""
        return await self.orchestrator.on_its_way(waiting.fleet, within=TRAILING[waiting.doorbell])

    async def _start_run(self, waiting: Waiting, number: int) -> None:
        """Have a flow run that lives. A key whose flow run is dead is used up, and the next one is tried."""
        for candidate in range(number, number + MOST_DEAD_KEYS):
            if candidate != waiting.rings:
                await self.belfry.count_rings(waiting, candidate)
            flow_run = await self.orchestrator.start_run(
                fleet=waiting.fleet, trigger=Trigger.EVENT, key=ring_key(waiting, candidate)
            )
            if not flow_run.is_over:
                return

    # --- showing wakes ------------------------------------------------------------------------------------------------

    async def _mend_wakes(self, wakes: Sequence[ShownWake]) -> None:
        if not (self._is_time_to_mend() and wakes) and not any(map(self._is_news, wakes)):
            return
        self._mended_at = self.clock.elapsed()
        with self.troubles.at("wakes in Prefect"):
            flow_runs = await self.orchestrator.flow_runs({wake.flow_run_id for wake in wakes if wake.flow_run_id})
            for wake in wakes:
                with self.troubles.at(f"wake {wake.id} of fleet {wake.fleet}"):
                    await self._mend(wake, flow_runs.get(wake.flow_run_id or ""))

    async def _mend(self, wake: ShownWake, flow_run: FlowRun | None) -> None:
        match mend(wake, flow_run, now=self.clock.now()):
            case Show(generation=generation):
                await self._show(wake, generation)
            case CancelHere():
                await self.belfry.cancel_wake(wake)
            case Withdraw():
                if wake.flow_run_id is not None:
                    await self.orchestrator.withdraw(wake.flow_run_id, why=f"wake {wake.id} was cancelled")
                await self.belfry.show_wake(wake, generation=wake.generation, flow_run_id=None)
            case LeaveIt():
                pass

    async def _show(self, wake: ShownWake, generation: int) -> None:
        if generation != wake.generation:  # kept before the call, as for rings
            await self.belfry.show_wake(wake, generation=generation, flow_run_id=None)
        flow_run = await self.orchestrator.start_run(
            fleet=wake.fleet,
            trigger=Trigger.WAKE,
            key=wake_key(wake, generation),
            at=wake.wake_at,
            wake_id=wake.id,
            name=f"wake {wake.id}: {wake.reason}",
        )
        await self.belfry.show_wake(wake, generation=generation, flow_run_id=flow_run.id)

    def _is_time_to_mend(self) -> bool:
        return self._mended_at is None or self.clock.elapsed() - self._mended_at >= LOOK_EVERY

    def _is_news(self, wake: ShownWake) -> bool:
        return wake.is_cancelled or (wake.flow_run_id is None and self.clock.now() < wake.wake_at)


def _is_new(decision: Ring | StartRun, waiting: Waiting) -> bool:
    """It would make a flow run; asking for one by a known key only looks after it."""
    return isinstance(decision, Ring) or waiting.rings < decision.number
