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
from enum import StrEnum
from typing import Any, Protocol

from fleet_agent.domain.actions import Effect, Tool
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Frozen, Inventory, Offer
from fleet_agent.domain.observation import Account, Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode, Ruling
from fleet_agent.domain.triggers import Event, Trigger
from fleet_agent.domain.verdict import Verdict
from fleet_agent.domain.wakes import Wake


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
    """One rental: the offer, the label that carries the key, and what runs on the box (from the policy)."""

    offer_id: int
    label: str
    image: str
    disk_gb: int
    runtype: str
    env: dict[str, str]
    onstart: str


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

        Raises ChooseAnother (definitely refused), StopRenting (no credit), LookFirst (it may have been made).
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


class ToolCall(Frozen):
    """One call as the model made it; `id` is ours (unique, `[a-z0-9]{9}`), `arguments` canonical JSON or `{}`."""

    id: str
    name: str
    arguments: str
    provider_id: str
    malformed: bool = False


class ModelReply(Frozen):
    text: str
    calls: tuple[ToolCall, ...]
    tokens_in: int
    tokens_out: int
    tokens_cached: int


class Model(Protocol):
    """The LLM behind any OpenAI-compatible server."""

    name: str

    async def reply(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> ModelReply:
        """One reply, normalised: `calls` decides, never a finish reason.

        Bounded by a total deadline in real time, Retry-After included.
        Raises ModelUnreachable, KeyRefused, ContextTooLong, ModelUnusable.
        """
        ...


class DemandSource(Protocol):
    async def demand(self) -> Demand:
        """The proving work now. Raises TryLater when it cannot be read: unknown is not zero."""
        ...


class Notifier(Protocol):
    async def notify(self, text: str) -> None:
        """Tell the operator. Raises TryLater when nobody could be told."""
        ...


class Orchestrator(Protocol):
    """Prefect, seen from our side. Converts business time to real time; nobody else does."""

    async def start_run(self, *, fleet: str, trigger: Trigger, idempotency_key: str | None = None) -> str:
        """Create a flow run of `fleet`'s deployment now and return its id; the same key returns the same run."""
        ...


# --- the journal -----------------------------------------------------------------------------------------------------


class RunRequest(Frozen):
    """Why a run is asked for, and which flow run carries it out."""

    fleet: str
    trigger: Trigger
    flow_run_id: str
    attempt: int = 1
    wake_id: int | None = None
    scheduled_for: datetime | None = None
    force_review: bool = False
    worker_id: str


class Run(Frozen):
    """An opened run: the fence is this run's as long as `current_run_id` says so."""

    run_id: int
    fleet: str
    epoch: int
    trigger: Trigger
    force_review: bool
    opened_at: datetime


class NothingToDo(Frozen):
    """An empty flow run: no run was opened; `reason` is for the report."""

    reason: str


class Claimed(Frozen):
    """What a turn is about."""

    events: tuple[Event, ...] = ()
    wakes: tuple[Wake, ...] = ()

    def __add__(self, other: Claimed) -> Claimed:
        return Claimed(events=self.events + other.events, wakes=self.wakes + other.wakes)


class PastRun(Frozen):
    """An older run as prompts carry it: why it happened and what it concluded."""

    run_id: int
    trigger: Trigger
    reason: str
    opened_at: datetime
    summary: str
    human: tuple[str, ...]


class Standing(Frozen):
    """What is pinned into every prompt, rendered from the tables each time."""

    installation: str
    fleet: str
    mode: Mode
    policy: Policy
    objective: str
    notes: str
    wakes: tuple[Wake, ...]
    past_runs: tuple[PastRun, ...]
    last_digest: str | None
    last_review_at: datetime | None


class Usage(Frozen):
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    cost_usd: Decimal = Decimal(0)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            tokens_cached=self.tokens_cached + other.tokens_cached,
            cost_usd=self.cost_usd + other.cost_usd,
        )

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


class MessageKind(StrEnum):
    TRIGGER = "trigger"
    OBSERVATION = "observation"
    HUMAN = "human"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    FINAL = "final"
    NOTE = "note"


class Message(Frozen):
    """One row of the conversation log. `call_id` ties a tool's result to its call."""

    turn: int
    step: int
    role: str
    kind: MessageKind
    content: str
    call_id: str | None = None
    calls: tuple[ToolCall, ...] = ()


class Ruled(Frozen):
    """An effect with its ruling; `key` names the intent row, for refused ones too."""

    key: str
    call_id: str
    action: dict[str, Any]
    tool: str
    ruling: Ruling


class ActionStatus(StrEnum):
    PROPOSED = "proposed"
    REFUSED = "refused"
    AWAITING_APPROVAL = "awaiting_approval"
    INTENDED = "intended"
    DRY = "dry"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


class Unsettled(Frozen):
    """An action whose outcome nobody saw: the call may have reached the provider. `sent_for` is real time."""

    key: str
    tool: str
    label: str
    vast_id: int | None
    sent_for: timedelta


class Closing(Frozen):
    """How a run ends, or what it carries into its next turn."""

    verdict: Verdict
    summary: str
    exit_reason: str
    quiet: bool
    observation: Observation
    asked_model: bool


class Closed(Frozen):
    """What the closing transaction wrote; `verdict` is OR-ed with the ledger."""

    verdict: Verdict
    no_op: bool
    usage: Usage
    turns: int
    summary: str
    exit_reason: str


@dataclass(frozen=True)
class Listing:
    """The offers of the run's last search, and when they were seen."""

    offers: tuple[Offer, ...] = ()


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

    async def standing(self, run: Run) -> Standing: ...

    async def record_sighting(self, run: Run, inventory: Inventory) -> tuple[Box, ...]:
        """Lay the provider's list beside the ledger, update stages, and return the fleet's boxes as they now are.

        The ledger is read before and after the list by the caller's order of calls: what was rented in between is
        never missing.
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
        """A fact about the world: never fenced, and DONE is never overwritten."""
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
