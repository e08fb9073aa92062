"""The port `Journal` on PostgreSQL: each call one transaction in one hop to a thread. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from fleet_agent.domain.actions import Effect, Tool
from fleet_agent.domain.fleet import Box, Inventory
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled, Unsettled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import Ruling
from fleet_agent.domain.run import Claimed, Closed, Closing, Message, NothingToDo, Run, RunRequest, Standing, Usage
from fleet_agent.errors import RunSuperseded
from fleet_agent.ports import Clock
from fleet_agent.store import conversation, ledger, reading, runs, sightings
from fleet_agent.store.database import Database
from fleet_agent.store.threads import LONGEST_CALL, in_thread

Answer = TypeVar("Answer")


class PostgresJournal:
    """Implements `fleet_agent.ports.Journal` for one fleet. No call lasts longer than `longest_call`, real time."""

    def __init__(self, database: Database, clock: Clock, fleet: str, *, longest_call: timedelta = LONGEST_CALL) -> None:
        self._database = database
        self._clock = clock
        self._fleet = fleet
        self._longest_call = longest_call

    async def open_run(self, request: RunRequest) -> Run | NothingToDo:
        assert request.fleet == self._fleet, "the lock is that of the journal's own fleet"
        return await self._exclusive(lambda tx: runs.open_run(tx, request, now=self._clock.now()))

    async def stay_alive(self, run: Run) -> None:
        await self._noticing(run, self._plain(lambda tx: runs.renew(tx, run)))

    async def about_to_ask(self, run: Run, body: Mapping[str, Any]) -> None:
        await self._noticing(run, self._plain(lambda tx: runs.about_to_ask(tx, run, body)))

    async def standing(self, run: Run) -> Standing:
        return await self._plain(lambda tx: reading.standing(tx, run.fleet, epoch=run.epoch))

    async def record_sighting(self, run: Run, inventory: Inventory) -> tuple[Box, ...]:
        def sight(tx: Session) -> tuple[Box, ...]:
            sightings.record_sighting(tx, run.fleet, inventory, now=self._clock.now())
            return ledger.boxes(tx, run.fleet)

        return await self._exclusive(sight)

    async def boxes(self, run: Run) -> tuple[Box, ...]:
        return await self._plain(lambda tx: ledger.boxes(tx, run.fleet))

    async def in_flight(self, run: Run) -> tuple[int, Decimal]:
        return await self._plain(lambda tx: ledger.in_flight(tx, run.fleet))

    async def unsettled(self, run: Run) -> tuple[Unsettled, ...]:
        return await self._plain(lambda tx: ledger.unsettled(tx, run.fleet))

    async def collect(self, run: Run, *, turn: int) -> Claimed:
        return await self._fenced(run, lambda tx: runs.collect(tx, run, turn=turn, now=self._clock.now()))

    async def record(self, run: Run, messages: Sequence[Message], *, usage: Usage | None = None) -> None:
        def log(tx: Session) -> None:
            conversation.append(tx, run, messages, now=self._clock.now())
            if usage is not None:
                runs.spend(tx, run, usage)

        await self._plain(log)

    async def record_reply(
        self,
        run: Run,
        reply: Message,
        *,
        usage: Usage,
        effects: Sequence[tuple[str, Effect]],
        observation: Observation,
        listing: Listing,
    ) -> tuple[Ruled, ...]:
        return await self._fenced(
            run,
            lambda tx: runs.record_reply(
                tx,
                run,
                reply,
                usage=usage,
                effects=effects,
                observation=observation,
                listing=listing,
                now=self._clock.now(),
            ),
        )

    async def mark_sent(self, run: Run, key: str, *, send_by: timedelta) -> Ruling:
        return await self._fenced(run, lambda tx: runs.mark_sent(tx, run, key, send_by=send_by, now=self._clock.now()))

    async def record_outcome(self, key: str, status: ActionStatus, outcome: str, *, vast_id: int | None = None) -> None:
        await self._exclusive(
            lambda tx: ledger.record_outcome(tx, key, status, outcome, vast_id=vast_id, now=self._clock.now())
        )

    async def write(self, run: Run, tool: Tool) -> str:
        return await self._fenced(run, lambda tx: runs.write(tx, run, tool, now=self._clock.now()))

    async def close_or_go_on(self, run: Run, closing: Closing, *, may_go_on: bool) -> Closed | Claimed:
        return await self._fenced(
            run, lambda tx: runs.close_or_go_on(tx, run, closing, may_go_on=may_go_on, now=self._clock.now())
        )

    async def fail_run(self, run: Run, *, exit_reason: str, summary: str) -> None:
        await self._exclusive(
            lambda tx: runs.fail_run(tx, run, exit_reason=exit_reason, summary=summary, now=self._clock.now())
        )

    async def _fenced(self, run: Run, work: Callable[[Session], Answer]) -> Answer:
        return await self._noticing(run, self._exclusive(work))

    async def _noticing(self, run: Run, call: Awaitable[Answer]) -> Answer:
        """A run that finds the fence gone leaves that in its row: the failed transaction could not."""
        try:
            return await call
        except RunSuperseded:
            await self._exclusive(lambda tx: runs.mark_superseded(tx, run))
            raise

    async def _exclusive(self, work: Callable[[Session], Answer]) -> Answer:
        return await in_thread(self._database.exclusive(self._fleet), work, within=self._longest_call)

    async def _plain(self, work: Callable[[Session], Answer]) -> Answer:
        return await in_thread(self._database.transaction(), work, within=self._longest_call)
