"""The lookout: one look a minute at everything that is rented, without a model and whatever became of Prefect.

    the world, once for all fleets  →  each fleet: list beside ledger, findings, told  →  what is to go, goes

It keeps the limits whether or not the agent runs, and only ever gives boxes up (I2). What it finds is decided in
`domain/lookout.py` and kept by `store/looks.py`; what it does about it goes the one way that every effect goes. It
carries out what persons ordered too: an order brings the next look forward, for ownership is seen only in a list.

It remembers how often the list could not be read, and which orders it has tried; it may forget both. So it can be
killed anywhere: what it had intended and not sent is expired at the next look, and what it had sent is looked for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.hosts import InVain
from fleet_agent.domain.ledger import ActionStatus, Ruled
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.observation import Known, Unknown
from fleet_agent.domain.rules import Actor, Decision, Removal, Ruling
from fleet_agent.domain.watch import Looked, Order, Seen
from fleet_agent.errors import FleetAgentError, PolicyInvalid
from fleet_agent.ports import Clock, DemandSource, Logbook, Market, Notifier
from fleet_agent.steps.act import Hands, act
from fleet_agent.steps.troubles import Troubles

BREATH: Final = timedelta(seconds=1)
"""Real time between two questions whether a person ordered something; no look follows the last one sooner."""

Part = TypeVar("Part")


@dataclass
class Lookout:
    """All fleets of one database, on one account. `demand` is None where nobody set where to read it."""

    market: Market
    demand: DemandSource | None
    logbook: Logbook
    notifier: Notifier
    clock: Clock
    troubles: Troubles
    tell: Callable[[str], None]
    _unread: int = 0
    _tried: set[str] = field(default_factory=set[str])

    async def keep_looking(self, every: timedelta, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Until it is cancelled; `every` is real time."""
        while True:
            await self.look()
            for _ in range(max(1, math.ceil(every / BREATH))):
                await sleep(BREATH.total_seconds())
                if await self._is_ordered_anew():
                    break

    async def look(self) -> Sequence[Looked]:
        """One look at every fleet. What fails for one of them holds up no other."""
        with self.troubles.at("orders"):
            self._tried = {order.key for order in await self.logbook.orders()}
        seen = await self._look_around()
        looked: list[Looked] = []
        with self.troubles.at("the look"):
            for fleet in await self.logbook.fleets():
                with self.troubles.at(f"the look at fleet {fleet}"):
                    looked.append(await self.logbook.record_look(fleet, seen))
        for each in looked:
            for news in each.news:
                self.tell(f"fleet {each.fleet}: {news}")
            await self._carry_out(each)
        return looked

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _look_around(self) -> Seen:
        taken_at = self.clock.now()
        inventory, account, demand = await asyncio.gather(
            self._part("the list of boxes", self.market.inventory()),
            self._part("the account", self.market.account()),
            self._demand(),
        )
        self._unread = 0 if isinstance(inventory, Known) else self._unread + 1
        return Seen(taken_at=taken_at, inventory=inventory, account=account, demand=demand, unread=self._unread)

    async def _demand(self) -> Known[Demand] | Unknown:
        if self.demand is None:
            return Unknown(reason="nobody set where to read it")
        return await self._part("the demand", self.demand.demand())

    async def _part(self, name: str, question: Awaitable[Part]) -> Known[Part] | Unknown:
        """Whatever keeps a part from being known, the others are looked at: safety does not wait for demand."""
        seen_at, why = self.clock.now(), ""
        with self.troubles.at(name):
            try:
                return Known(value=await question, seen_at=seen_at)
            except FleetAgentError as error:
                why = error.cause
                raise
        return Unknown(reason=why)

    async def _is_ordered_anew(self) -> bool:
        """What the last look knew of and still waits is tried again at the next one, not every second."""
        with self.troubles.at("orders"):
            return any(order.key not in self._tried for order in await self.logbook.orders())
        return False

    # --- doing --------------------------------------------------------------------------------------------------------

    async def _carry_out(self, looked: Looked) -> None:
        """What persons ordered comes first: the boxes it is about need no second reason to go."""
        place = f"what is to go of fleet {looked.fleet}"
        with self.troubles.at(place):
            if looked.unfit:
                raise PolicyInvalid(looked.unfit)
            for order in await self._orders_of(looked):
                ruled = await self.logbook.judge_order(order, looked.observation)
                result = await act(self._hands(looked), order.action, ruled)
                self.tell(f"fleet {looked.fleet}: {order.key}, ordered by a person: {result.sentence}")
            if looked.removals:
                ruled = await self.logbook.propose(looked.fleet, Actor.WATCH, looked.removals, looked.observation)
                for action, ruling in zip(looked.removals, ruled, strict=True):
                    await self._act(looked, action, ruling)

    async def _orders_of(self, looked: Looked) -> list[Order]:
        """None while ownership cannot be seen: they wait."""
        if not isinstance(looked.observation.inventory, Known):
            return []
        return [order for order in await self.logbook.orders() if order.fleet == looked.fleet]

    async def _act(self, looked: Looked, action: Removal, ruled: Ruled) -> None:
        """What is held back is no news at every look."""
        result = await act(self._hands(looked), action, ruled)
        if ruled.ruling.decision is Decision.ALLOW and ruled.status is ActionStatus.INTENDED:
            self.tell(f"fleet {looked.fleet}: {result.sentence}")

    def _hands(self, looked: Looked) -> Hands:
        return Hands(
            fleet=looked.fleet,
            installation=looked.installation,
            clock=self.clock,
            market=self.market,
            notifier=self.notifier,
            ledger=_OfFleet(looked.fleet, self.logbook),
        )


@dataclass(frozen=True)
class _OfFleet:
    """The ledger in the hands of the watch: no run's, so there is no fence."""

    fleet: str
    logbook: Logbook

    async def mark_sent(self, key: str, *, send_by: timedelta, hook_digest: str | None = None) -> Ruling:
        assert hook_digest is None, "the watch rents nothing"
        return await self.logbook.mark_sent(self.fleet, key, send_by=send_by)

    async def drop(self, key: str, why: str) -> None:
        raise AssertionError(f"the watch sends what it intends at once: {key}, {why}")

    async def record_outcome(
        self,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        await self.logbook.record_outcome(self.fleet, key, status, outcome, vast_id=vast_id, in_vain=in_vain)


def in_words(looked: Looked) -> list[str]:
    """What a look at one fleet has found, beside the news that it has told, for a person who asks."""
    place = f"fleet {looked.fleet}"
    wrong = [*([looked.unfit] if looked.unfit else []), *looked.findings]
    match looked.observation.inventory:
        case Unknown(reason=reason):
            head = f"{place}: the list of boxes is unknown ({reason})"
        case Known():
            count, rate = len(looked.observation.live_boxes()), show_rate(looked.observation.burn())
            head = f"{place}: {count} boxes, {rate}{'' if wrong else '; nothing is wrong'}"
    return [head, *(f"{place}: {each}" for each in wrong if each not in looked.news)]
