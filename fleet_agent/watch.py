"""The watch: what goes on without a model, whether or not Prefect, the model or the agent lives.

Four things go on beside each other, so that none waits for what another one misses: the bell; the lookout, which sees
to everything that is rented; a look for runs that died, whose flow runs Prefect is told of, because it would hold their
slot for minutes; and the telling of what a person must know. An error of ours ends none of them. A defect ends the
process, which is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from fleet_agent.bell import Bell
from fleet_agent.lookout import Lookout, in_words
from fleet_agent.ports import Belfry, Clock, DemandSource, Logbook, Market, Notifier, Orchestrator
from fleet_agent.steps.troubles import Troubles

DEAD_RUNS_EVERY: Final = timedelta(seconds=5)
"""Real time. With the 20 s of silence that make a run dead, its flow run is crashed well before the lease of its slot
can end, after which Prefect would free a slot that is another run's by then."""

SHORTEST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Real time between two tries to tell a person; the longest where nobody can be reached."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class WatchPorts:
    """Everything the watch reaches the world through. `look_every` and the seconds of `sleep` are real time, `tell` is
    for the log. `demand` is None where nobody set where to read it."""

    clock: Clock
    market: Market
    demand: DemandSource | None
    look_every: timedelta
    belfry: Belfry
    logbook: Logbook
    orchestrator: Orchestrator
    notifier: Notifier
    sleep: Sleep
    tell: Callable[[str], None]


@dataclass
class Watch:
    ports: WatchPorts
    _seen_dead: set[str] = field(default_factory=set[str])
    _crashed: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._troubles = Troubles(self.ports.tell)
        self._bell = Bell(self.ports.belfry, self.ports.orchestrator, self.ports.clock, self._troubles)
        self._lookout = Lookout(
            market=self.ports.market,
            demand=self.ports.demand,
            logbook=self.ports.logbook,
            notifier=self.ports.notifier,
            clock=self.ports.clock,
            troubles=self._troubles,
            tell=self.ports.tell,
        )

    async def keep(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as goes_on:
            goes_on.create_task(self._bell.keep_ringing(self.ports.sleep))
            goes_on.create_task(self._lookout.keep_looking(self.ports.look_every, self.ports.sleep))
            goes_on.create_task(self._keep_crashing_dead_runs())
            goes_on.create_task(self._keep_telling())

    async def once(self) -> None:
        """One look of each, one after the other; at dead runs two, for that is what it takes. Says what it found."""
        await self._bell.look()
        for looked in await self._lookout.look():
            for line in in_words(looked):
                self.ports.tell(line)
        await self.crash_dead_runs()
        await self.ports.sleep(DEAD_RUNS_EVERY.total_seconds())
        await self.crash_dead_runs()
        await self.tell_people()

    async def crash_dead_runs(self) -> None:
        """Tell Prefect once of each death: a flow run that is retried can die again."""
        with self._troubles.at("dead runs"):
            dead = await self.ports.logbook.dead_runs()
            seen_before, self._seen_dead = self._seen_dead, {run.flow_run_id for run in dead}
            self._crashed &= self._seen_dead
            for run in dead:
                # In two looks: after an outage of the database every run has been silent, and signs again in a moment.
                if run.flow_run_id not in seen_before or run.flow_run_id in self._crashed:
                    continue
                why = f"run #{run.run_id} of fleet {run.fleet} gave no sign of life any more"
                await self.ports.orchestrator.crash(run.flow_run_id, why=why)
                self._crashed.add(run.flow_run_id)
                self.ports.tell(f"{why}; Prefect was told")

    async def tell_people(self) -> bool:
        """Tell what a person was not told yet; whether that was possible.

        Where there is no address nobody is told, and nothing is marked as told: `status` goes on to show it.
        """
        if not self.ports.notifier.has_an_address:
            return True
        with self._troubles.at("notices"):
            for notice in await self.ports.logbook.untold():
                how = await self.ports.notifier.notify(f"fleet {notice.fleet}: {notice.text}")
                await self.ports.logbook.told(notice, how=how)
        return not self._troubles.last("notices")

    async def _keep_crashing_dead_runs(self) -> None:
        while True:
            await self.crash_dead_runs()
            await self.ports.sleep(DEAD_RUNS_EVERY.total_seconds())

    async def _keep_telling(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            pause = SHORTEST_PAUSE if await self.tell_people() else min(2 * pause, LONGEST_PAUSE)
            await self.ports.sleep(pause.total_seconds())
