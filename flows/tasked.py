"""The ports, each call a named Prefect task: decorate the port, not the loop.

The story (`fleet_agent/cycle.py`) does not know Prefect; whoever opens a run in Prefect still sees every look at the
world, every question to the model and every change of state, in order and by name. A task here is a window, never a
guarantee: nothing is retried, cached or persisted, because an effect must happen at most once per intent, and our own
database is what remembers it. Housekeeping calls (signs of life, appending to the log) are no tasks: they would bury
what a person looks for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed

from fleet_agent.domain.actions import Effect
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Inventory, Offer
from fleet_agent.domain.ledger import Listing, Ruled
from fleet_agent.domain.money import show_rate
from fleet_agent.domain.observation import Account, Observation
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Closing,
    Meanwhile,
    Message,
    ModelReply,
    NothingToDo,
    Progress,
    Run,
    RunRequest,
    Usage,
)
from fleet_agent.domain.show import gpu
from fleet_agent.domain.spending import Booking
from fleet_agent.domain.spent import Charge
from fleet_agent.errors import FleetAgentError
from fleet_agent.ports import DemandSource, Journal, Market, Model, Notifier, OfferQuery, Offers, Ports, RentOrder

Answer = TypeVar("Answer")


def tasked(ports: Ports) -> Ports:
    """The same ports with their calls shown as tasks; for use inside a flow run."""
    return replace(
        ports,
        market=TaskedMarket(ports.market),
        model=TaskedModel(ports.model),
        demand=TaskedDemand(ports.demand),
        notifier=TaskedNotifier(ports.notifier),
        # What it does not name it passes on by `__getattr__`, which a type checker cannot follow.
        journal=cast("Journal", TaskedJournal(ports.journal)),
    )


async def _shown(kind: str, name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run `call` as a task run called `name`; `kind` is the task's own name, the same for all of its runs."""
    raised: FleetAgentError | None = None

    async def step() -> Any:
        nonlocal raised
        try:
            return await call()
        except FleetAgentError as error:
            # Raised below, and not through Prefect, which would log a traceback where this state is one line.
            raised = error
            return Failed(message=str(error))

    # The name as a function, because Prefect would fill in the braces of a text.
    shown = Task(step, name=kind, task_run_name=lambda: name, retries=0, cache_policy=NO_CACHE, persist_result=False)
    answer = await shown()
    if raised is not None:
        raise raised
    return answer


class TaskedMarket:
    def __init__(self, market: Market) -> None:
        self._market = market
        self._seen: dict[int, Offer] = {}

    async def inventory(self) -> Inventory:
        return await _shown("list boxes", "list the boxes", self._market.inventory)

    async def offers(self, query: OfferQuery) -> Offers:
        wanted = (
            f"look at offer {query.offer_id} again" if query.offer_id else f"search {query.gpu_name or 'all'} offers"
        )
        offers = await _shown("search offers", wanted, lambda: self._market.offers(query))
        self._seen |= {offer.id: offer for offer in offers}
        return offers

    async def account(self) -> Account:
        return await _shown("read account", "read the account", self._market.account)

    async def charges(self, since: datetime, until: datetime) -> tuple[Charge, ...]:
        name = f"read the charges since {since:%Y-%m-%d}"
        return await _shown("read charges", name, lambda: self._market.charges(since, until))

    async def rent(self, order: RentOrder) -> int:
        offer = self._seen[order.offer_id]
        name = f"rent offer {offer.id} ({gpu(offer.num_gpus, offer.gpu_name)}, {show_rate(offer.usd_per_hour)})"
        return await _shown("rent", name, lambda: self._market.rent(order))

    async def destroy(self, vast_id: int) -> None:
        return await _shown("destroy", f"destroy box {vast_id}", lambda: self._market.destroy(vast_id))

    async def logs(self, vast_id: int, tail: int) -> str:
        return await _shown("read logs", f"read the log of box {vast_id}", lambda: self._market.logs(vast_id, tail))


class TaskedModel:
    def __init__(self, model: Model) -> None:
        self.body, self.terms = model.body, model.terms  # nothing to see
        self._model = model
        self._step = 0

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        self._step += 1
        name = f"ask the model (step {self._step})"
        return await _shown("ask the model", name, lambda: self._model.reply(body, within=within))


class TaskedDemand:
    def __init__(self, demand: DemandSource) -> None:
        self._demand = demand

    async def demand(self) -> Demand:
        return await _shown("read demand", "read the demand", self._demand.demand)


class TaskedNotifier:
    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    async def notify(self, text: str) -> str:
        return await _shown("notify", "notify the operator", lambda: self._notifier.notify(text))


class TaskedJournal:
    """The changes of state that make up a run: opened, collected, judged, closed.

    That a run failed is no task: it must be written when Prefect cancels everything it knows of, and the flow run's own
    state says it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._claimed = Claimed()

    def __getattr__(self, call: str) -> Any:
        return getattr(self._journal, call)

    async def open_run(self, request: RunRequest) -> Run | NothingToDo:
        return await _shown("open run", f"open run ({request.trigger})", lambda: self._journal.open_run(request))

    async def collect(self, run: Run, *, turn: int) -> Claimed:
        name = f"collect events and wakes for run #{run.run_id}"
        claimed = await _shown("collect", name, lambda: self._journal.collect(run, turn=turn))
        self._claimed += claimed
        return claimed

    async def meanwhile(self, run: Run, *, turn: int) -> Meanwhile:
        found = await self._journal.meanwhile(run, turn=turn)
        self._claimed += found.claimed
        return found

    async def recall(self, run: Run, observation: Observation) -> Progress:
        name = f"go on with run #{run.run_id}, interrupted earlier"
        progress = await _shown("recall", name, lambda: self._journal.recall(run, observation))
        self._claimed += progress.claimed
        return progress

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
        wanted = ", ".join(effect.name for _, effect in effects) or "no effect wanted"
        return await _shown(
            "record and judge",
            f"record the reply, judge it: {wanted}",
            lambda: self._journal.record_reply(
                run, reply, booking=booking, usage=usage, effects=effects, observation=observation, listing=listing
            ),
        )

    async def close_or_go_on(self, run: Run, closing: Closing, *, may_go_on: bool) -> Closed | Claimed:
        events, wakes = len(self._claimed.events), len(self._claimed.wakes)
        end = await _shown(
            "close run",
            f"close run #{run.run_id}: {_count(events, 'event')}, {_count(wakes, 'wake')}",
            lambda: self._journal.close_or_go_on(run, closing, may_go_on=may_go_on),
        )
        if isinstance(end, Claimed):
            self._claimed += end
        return end


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
