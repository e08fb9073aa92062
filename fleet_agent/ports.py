"""What the story needs of the world. Each docstring is the contract that an adapter keeps and a test may rely on.

`Market`, `Model`, `DemandSource` and `Notifier` reach outside; `Journal` is our database; `Orchestrator` is Prefect
seen from our side; `Clock` is time. All are async but the clock. No adapter retries an effect: what may have happened
is looked for, never repeated (`LookFirst`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

from fleet_agent.domain.actions import Effect, Tool
from fleet_agent.domain.context import CountTokens
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Inventory, Offer
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled, Unsettled
from fleet_agent.domain.observation import Account, Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Ruling
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Closing,
    Message,
    ModelReply,
    NothingToDo,
    Run,
    RunRequest,
    Standing,
    Usage,
)
from fleet_agent.domain.triggers import Trigger
from fleet_agent.domain.values import Frozen


class Clock(Protocol):
    """Two faces of time that are never mixed."""

    def now(self) -> datetime:
        """Business time, aware UTC: rows, wakes, ages, deadlines of boxes. Runs faster than real in the demo."""
        ...

    def elapsed(self) -> timedelta:
        """Real, monotonic time since an arbitrary start: budgets of a run, HTTP deadlines, liveness."""
        ...


class OfferQuery(Frozen):
    """What to search for. The adapter filters again on its side: the provider's filters are not trusted."""

    policy: Policy
    gpu_name: str | None = None
    offer_id: int | None = None
    limit: int = 20


class RentOrder(Frozen):
    """One rental: the offer, the label that carries the key, and what runs on the box (from the policy).

    A value of `env` may be a reference `$NAME`; only the adapter looks it up, so no secret passes through here.
    """

    offer_id: int
    label: str
    image: str
    disk_gb: int
    runtype: str
    env: dict[str, str]
    onstart: str
    send_by: timedelta
    """Of `Clock.elapsed()`: an order that has not left by then must not leave at all. The grace of a lost answer counts
    from the moment it was committed as sent."""


class Market(Protocol):
    """The provider of boxes. Raises TryLater, SlowDown and KeyRefused anywhere."""

    async def inventory(self) -> Inventory:
        """Every instance of the account. Raises InventoryUnknown unless every page was read and the count agrees."""
        ...

    async def offers(self, query: OfferQuery) -> tuple[Offer, ...]:
        """Offers that meet the floors of the policy, cheapest first, one per machine."""
        ...

    async def account(self) -> Account: ...

    async def rent(self, order: RentOrder) -> int:
        """Rent and return the provider's id. Called at most once per label, never retried.

        Raises ChooseAnother (definitely refused), StopRenting (no credit), LookFirst (it may have been made), TryLater
        (it certainly never left, be it that `send_by` was over).
        """
        ...

    async def destroy(self, vast_id: int) -> None:
        """Ask for destruction. Accepted is not gone: only a later inventory proves it. AlreadyGone is success.

        May be repeated. Raises LookFirst when the answer was lost.
        """
        ...

    async def logs(self, vast_id: int, tail: int) -> str:
        """The last lines a box printed: untrusted text. Raises AlreadyGone."""
        ...


class Model(Protocol):
    """The LLM behind any OpenAI-compatible server."""

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The exact request body, so that it can be kept and shown before it is sent. Pure."""
        ...

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        """One reply, normalised: `calls` decides, never a finish reason.

        `within` is real time for everything, Retry-After included; an adapter may have a shorter bound of its own.
        Errors carry `spent` where tries were paid for.
        Raises ModelUnreachable, KeyRefused, FixSetup, RequestRefused, ContextTooLong, ModelUnusable.
        """
        ...


class DemandSource(Protocol):
    async def demand(self) -> Demand:
        """The proving work now. Raises TryLater when it cannot be read: unknown is not zero."""
        ...


class Notifier(Protocol):
    async def notify(self, text: str) -> str:
        """Tell the operator, and return in a sentence how; where no address is set, that it is only kept.

        Raises TryLater when nobody could be told.
        """
        ...


class Orchestrator(Protocol):
    """Prefect, seen from our side. Converts business time to real time; nobody else does."""

    async def start_run(self, *, fleet: str, trigger: Trigger, idempotency_key: str | None = None) -> str:
        """Create a flow run of `fleet`'s deployment now and return its id; the same key returns the same run."""
        ...


class Journal(Protocol):
    """Our database. One call is one transaction in one thread hop, shielded from cancellation.

    Calls that may lead to an effect take the fence lock and raise RunSuperseded when the fence is not the run's.
    Everything raises DatabaseUnreachable.
    """

    async def open_run(self, request: RunRequest) -> Run | NothingToDo:
        """Count the run up, take the fence, mark older open runs interrupted and release their claims."""
        ...

    async def stay_alive(self, run: Run) -> None:
        """Renew `seen_at`. Raises RunSuperseded."""
        ...

    async def about_to_ask(self, run: Run, body: Mapping[str, Any]) -> None:
        """Keep the request body (the newest of a run) before it is sent. Raises RunSuperseded: a stale run must not
        pay for a reply."""
        ...

    async def standing(self, run: Run) -> Standing: ...

    async def record_sighting(self, run: Run, inventory: Inventory) -> tuple[Box, ...]:
        """Lay the provider's list beside the ledger, update stages, and return the fleet's boxes as they now are.

        A box that was rented after the list was read is not missing from it: absence counts only after its grace.
        """
        ...

    async def boxes(self, run: Run) -> tuple[Box, ...]: ...

    async def in_flight(self, run: Run) -> tuple[int, Decimal]:
        """How many rents may still come into being, and the $/h reserved for them."""
        ...

    async def unsettled(self, run: Run) -> tuple[Unsettled, ...]: ...

    async def collect(self, run: Run, *, turn: int) -> Claimed:
        """Claim every waiting event and every due wake. Human messages enter the log in the same transaction."""
        ...

    async def record(self, run: Run, messages: Sequence[Message], *, usage: Usage | None = None) -> None:
        """Append to the log."""
        ...

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
        """Store the reply, judge its effects one after the other and store the intents: one transaction, before
        anything happens. `effects` are (call id, action) in the order of the reply. Raises RunSuperseded."""
        ...

    async def mark_sent(self, run: Run, key: str, *, send_by: timedelta) -> Ruling:
        """Last thing before a call: fence, mode and the action's own status are read again and `sent` is committed.

        A ruling other than allow means: do not send. Raises RunSuperseded."""
        ...

    async def record_outcome(self, key: str, status: ActionStatus, outcome: str, *, vast_id: int | None = None) -> None:
        """A fact about the world: never fenced. DONE is never overwritten, and UNKNOWN never reopens a settled row."""
        ...

    async def write(self, run: Run, tool: Tool) -> str:
        """Carry out a Write (wake, notes) and return the sentence for the model."""
        ...

    async def close_or_go_on(self, run: Run, closing: Closing, *, may_go_on: bool) -> Closed | Claimed:
        """End the run, or claim what arrived meanwhile and go on: one transaction, so nothing falls in between."""
        ...

    async def fail_run(self, run: Run, *, exit_reason: str, summary: str) -> None:
        """End the run as failed and release its claims."""
        ...


@dataclass(frozen=True)
class Ports:
    """Everything the story reaches the world through."""

    clock: Clock
    market: Market
    model: Model
    demand: DemandSource
    notifier: Notifier
    journal: Journal
    count_tokens: CountTokens
