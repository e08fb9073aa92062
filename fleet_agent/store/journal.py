"""The port `Journal` on PostgreSQL: each call one transaction in one hop to a thread. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TypeVar

from sqlalchemy.orm import Session

from fleet_agent.domain.actions import Effect, Tool
from fleet_agent.domain.fleet import Box, Inventory
from fleet_agent.domain.hosts import Ban, InVain
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled, Unsettled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import Ruling
from fleet_agent.domain.run import (
    Approved,
    Claimed,
    Closed,
    Closing,
    Meanwhile,
    Message,
    ModelRequest,
    NothingToDo,
    Progress,
    Result,
    Run,
    RunRecord,
    RunRequest,
    Standing,
    Usage,
)
from fleet_agent.domain.spending import Booking
from fleet_agent.errors import RunSuperseded
from fleet_agent.ports import Clock
from fleet_agent.store import actions, conversation, hosts, ledger, reading, runs, sightings
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

    async def recall(self, run: Run, observation: Observation) -> Progress:
        return await self._fenced(run, lambda tx: runs.recall(tx, run, observation, now=self._clock.now()))

    async def stay_alive(self, run: Run) -> None:
        await self._noticing(run, self._plain(lambda tx: runs.renew(tx, run)))

    async def about_to_ask(self, run: Run, request: ModelRequest) -> Booking:
        return await self._noticing(
            run, self._plain(lambda tx: runs.about_to_ask(tx, run, request, now=self._clock.now()))
        )

    async def standing(self, run: Run) -> Standing:
        return await self._plain(lambda tx: reading.standing(tx, run.fleet, epoch=run.epoch, now=self._clock.now()))

    async def record_of(self, run: Run, run_id: int) -> RunRecord | None:
        return await self._plain(lambda tx: conversation.record_of(tx, run, run_id))

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

    async def approved(self, run: Run) -> tuple[Approved, ...]:
        def approved(tx: Session) -> tuple[Approved, ...]:
            actions.expire_approvals(tx, run.fleet, now=self._clock.now())
            return actions.approved(tx, run.fleet)

        return await self._fenced(run, approved)

    async def carry_out_approved(
        self, run: Run, key: str, action: Effect, *, observation: Observation, listing: Listing
    ) -> Ruled:
        return await self._fenced(
            run,
            lambda tx: runs.carry_out_approved(
                tx, run, key, action, observation=observation, listing=listing, now=self._clock.now()
            ),
        )

    async def bans(self, run: Run) -> tuple[Ban, ...]:
        return await self._plain(lambda tx: hosts.bans(tx, run.fleet, now=self._clock.now()))

    async def collect(self, run: Run, *, turn: int) -> Claimed:
        return await self._fenced(run, lambda tx: runs.collect(tx, run, turn=turn, now=self._clock.now()))

    async def meanwhile(self, run: Run, *, turn: int) -> Meanwhile:
        return await self._fenced(run, lambda tx: runs.meanwhile(tx, run, turn=turn, now=self._clock.now()))

    async def record(self, run: Run, message: Message) -> None:
        await self._noticing(run, self._plain(lambda tx: runs.record(tx, run, message, now=self._clock.now())))

    async def spend(self, run: Run, booking: Booking, usage: Usage | None) -> None:
        await self._plain(lambda tx: runs.spend(tx, run, booking, usage))

    async def record_reply(
        self,
        run: Run,
        reply: Message,
        *,
        booking: Booking,
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
                booking=booking,
                usage=usage,
                effects=effects,
                observation=observation,
                listing=listing,
                now=self._clock.now(),
            ),
        )

    async def mark_sent(self, run: Run, key: str, *, send_by: timedelta, hook_digest: str | None = None) -> Ruling:
        return await self._fenced(
            run,
            lambda tx: runs.mark_sent(tx, run, key, send_by=send_by, hook_digest=hook_digest, now=self._clock.now()),
        )

    async def drop(self, run: Run, key: str, why: str) -> None:
        await self._fenced(run, lambda tx: runs.drop(tx, run, key, why, now=self._clock.now()))

    async def record_outcome(
        self,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        await self._exclusive(
            lambda tx: actions.record_outcome(
                tx, key, status, outcome, vast_id=vast_id, in_vain=in_vain, now=self._clock.now()
            )
        )

    async def write(self, run: Run, tool: Tool, *, answer: Message | None = None) -> Result:
        return await self._fenced(run, lambda tx: runs.write(tx, run, tool, answer=answer, now=self._clock.now()))

    async def close_or_go_on(self, run: Run, closing: Closing, *, may_go_on: bool) -> Closed | Claimed:
        return await self._fenced(
            run, lambda tx: runs.close_or_go_on(tx, run, closing, may_go_on=may_go_on, now=self._clock.now())
        )

    async def fail_run(self, run: Run, *, exit_reason: str, summary: str, reason: str = "", tell: bool = False) -> None:
        now = self._clock.now()
        await self._exclusive(
            lambda tx: runs.fail_run(
                tx, run, exit_reason=exit_reason, summary=summary, reason=reason, tell=tell, now=now
            )
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
