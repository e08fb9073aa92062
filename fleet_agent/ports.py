"""What the story needs of the world. Each docstring is the contract that an adapter keeps and a test may rely on.

`Market`, `Model`, `DemandSource` and `Notifier` reach outside; `Journal`, `Belfry`, `Logbook` and `Books` are our
database as a run, the bell, the watch and the housekeeping see it; `Orchestrator` is Prefect seen from our side;
`Clock` is time. All are async but the clock. No adapter retries an effect: what may have happened is looked for, never
repeated (`LookFirst`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol, Self

from pydantic import SecretStr

from fleet_agent.domain.actions import Effect, Tool
from fleet_agent.domain.bell import ShownWake, Waiting
from fleet_agent.domain.box_reports import BoxHook, no_hook
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Inventory, Offer
from fleet_agent.domain.flow_run import FlowRun
from fleet_agent.domain.hosts import Ban, InVain
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled, Unsettled
from fleet_agent.domain.observation import Account, Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Actor, Removal, Ruling
from fleet_agent.domain.run import (
    Approved,
    Claimed,
    Closed,
    Closing,
    Meanwhile,
    Message,
    ModelReply,
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
from fleet_agent.domain.spending import Booking, Terms
from fleet_agent.domain.spent import Charge, Reckoning
from fleet_agent.domain.tokens import CountTokens
from fleet_agent.domain.triggers import Doorbell, Trigger
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.watch import DeadRun, Looked, Order, Seen, Untold


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
    num_gpus: int | None = None
    offer_id: int | None = None
    limit: int = 20
    banned: frozenset[int] = frozenset()
    """Machines of which no offer is wanted."""


class Offers(tuple[Offer, ...]):
    """What a search found, in its order. `left_out`: on how many machines more, had these not been banned."""

    left_out: int

    def __new__(cls, offers: Iterable[Offer] = (), *, left_out: int = 0) -> Self:
        made = super().__new__(cls, offers)
        made.left_out = left_out
        return made


class RentOrder(Frozen):
    """One rental: the offer, the label that carries the key, and what runs on the box (from the policy).

    A value of `env` may be a reference `$NAME`; only the adapter looks it up, so no secret of ours passes through here.
    `hook` is the box's own: the adapter adds it to the environment, and it prints as stars.
    """

    offer_id: int
    label: str
    image: str
    disk_gb: int
    runtype: str
    env: dict[str, str]
    hook: SecretStr | None = None
    onstart: str
    send_by: timedelta
    """Of `Clock.elapsed()`: an order that has not left by then must not leave at all. The grace of a lost answer counts
    from the moment it was committed as sent."""


class Market(Protocol):
    """The provider of boxes. Raises TryLater, SlowDown and KeyRefused anywhere."""

    async def inventory(self) -> Inventory:
        """Every instance of the account. Raises InventoryUnknown unless every page was read and the count agrees.

        Where a run begins it may be a complete look of a moment ago; `seen_at` says when it was taken."""
        ...

    async def offers(self, query: OfferQuery) -> Offers:
        """Offers that meet the floors of the policy, cheapest first, one per machine and none of a banned one."""
        ...

    async def account(self) -> Account: ...

    async def charges(self, since: datetime, until: datetime) -> tuple[Charge, ...]:
        """What the provider charged for each box of the account, gone ones too, from the UTC day of `since` to `until`.

        A box may have one charge or several; what is charged late comes in a later answer. TryLater unless every page
        was read and their number agrees.
        """
        ...

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
    """The LLM behind any OpenAI-compatible server, or one of several of which the first that is well answers."""

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The exact request body, so that it can be kept and shown before it is sent. Pure.

        Where there are several models it is that of the first; another is asked the same under its own name."""
        ...

    async def terms(self) -> Terms:
        """How whoever would be asked now counts, and what a request may cost at most. Raises DatabaseUnreachable."""
        ...

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        """One reply, normalised: `calls` decides, never a finish reason; `model` is who gave it.

        `within` is real time for everything, Retry-After and other models included; an adapter may have a shorter bound
        of its own. A prompt that may exceed 30,000 tokens never leaves: ContextTooLong says by `fits` how many tokens,
        counted as `Ports.count_tokens` does, a shorter one may have, and by `said` whether a server refused this one.
        Errors carry `spent` where tries were paid for.
        Raises ModelUnreachable, KeyRefused, FixSetup, RequestRefused, ContextTooLong, ModelUnusable.
        """
        ...


class DemandSource(Protocol):
    async def demand(self) -> Demand:
        """The proving work now, or at most five minutes ago. Raises TryLater when it cannot be read, or is older:
        unknown is not zero."""
        ...


class Notifier(Protocol):
    @property
    def has_an_address(self) -> bool:
        """Whether there is anybody to tell."""
        ...

    async def notify(self, text: str) -> str:
        """Tell the operator, and return in a sentence how; where no address is set, that it is only kept.

        Raises TryLater when nobody could be told though there is an address.
        """
        ...


class Orchestrator(Protocol):
    """Prefect, seen from our side. Converts business time to real time; nobody else does.

    Everything may be repeated. Raises TryLater where Prefect does not answer, KeyRefused and FixSetup where a person
    must mend something.
    """

    async def ring(self, doorbell: Doorbell, *, fleet: str) -> None:
        """Emit a doorbell. That it was taken is not that it has an effect: an event can be lost."""
        ...

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
        """The flow run of this key: made for business time `at`, or now, unless there is one already, be it dead."""
        ...

    async def flow_runs(self, ids: Collection[str]) -> dict[str, FlowRun]:
        """By id; what Prefect does not have is left out."""
        ...

    async def on_its_way(self, fleet: str, *, within: timedelta) -> bool:
        """Whether a flow run of the fleet is due, or will be within this (real) time, and has not begun: it will take
        what waits."""
        ...

    async def withdraw(self, flow_run_id: str, *, why: str) -> None:
        """Cancel a flow run that has not begun; any other is left alone."""
        ...

    async def crash(self, flow_run_id: str, *, why: str) -> None:
        """Say that a flow run is dead, which frees its slot; one that is over is left alone."""
        ...


class Belfry(Protocol):
    """Our database as the bell sees it: all fleets. Everything raises DatabaseUnreachable but `until_news`."""

    async def until_news(self, *, within: timedelta) -> None:
        """Return as soon as something was posted since the last call, and after `within` of real time anyway.

        News can be lost with the connection, so nobody relies on it.
        """
        ...

    async def waiting(self) -> tuple[Waiting, ...]:
        """What waits for a run, fleet by fleet."""
        ...

    async def count_rings(self, waiting: Waiting, number: int) -> None:
        """Keep the number of the key that is about to be used, so that a bell that forgets knows which are used up."""
        ...

    async def shown_wakes(self) -> tuple[ShownWake, ...]:
        """Pending wakes, and cancelled ones that still have a flow run."""
        ...

    async def show_wake(self, wake: ShownWake, *, generation: int, flow_run_id: str | None) -> None:
        """Keep which flow run shows the wake; None while it is on its way, or withdrawn."""
        ...

    async def cancel_wake(self, wake: ShownWake) -> None:
        """A person cancelled it in Prefect. A wake that a run has taken meanwhile is left alone."""
        ...


class Logbook(Protocol):
    """Our database as the watch sees it: all fleets. Everything raises DatabaseUnreachable."""

    async def dead_runs(self) -> tuple[DeadRun, ...]:
        """Open runs that gave no sign of life for 20 s of real time."""
        ...

    async def untold(self) -> tuple[Untold, ...]:
        """What a person is still to be told, oldest first."""
        ...

    async def told(self, notice: Untold, *, how: str) -> None: ...

    async def fleets(self) -> tuple[str, ...]:
        """Those that somebody has begun."""
        ...

    async def record_look(self, fleet: str, seen: Seen) -> Looked:
        """Lay the list beside the ledger, find what is wrong, and have it told: events, notices, bans, a doubted list.

        What the watch had intended before and never sent is expired, and so are approvals that came too late. One
        transaction, so that nothing is told twice."""
        ...

    async def propose(
        self, fleet: str, actor: Actor, wanted: Sequence[Removal], observation: Observation
    ) -> tuple[Ruled, ...]:
        """Judge removals one after the other, and store the intents. One that is ruled on as it was the last time adds
        no row."""
        ...

    async def orders(self) -> tuple[Order, ...]:
        """What persons ordered and nobody has carried out yet, oldest first."""
        ...

    async def judge_order(self, order: Order, observation: Observation) -> Ruled:
        """Judge a person's order by the look at hand; its row becomes the intent, or is refused."""
        ...

    async def mark_sent(self, fleet: str, key: str, *, send_by: timedelta) -> Ruling:
        """As `Ledger.mark_sent`; there is no run, and no fence."""
        ...

    async def record_outcome(
        self,
        fleet: str,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        """As `Ledger.record_outcome`."""
        ...


class Ledger(Protocol):
    """An action from sending to outcome, whoever asked for it: what `steps/act.py` needs of our database.

    Everything raises DatabaseUnreachable.
    """

    async def mark_sent(self, key: str, *, send_by: timedelta, hook_digest: str | None = None) -> Ruling:
        """Last thing before a call: what may have changed since the ruling is read again and `sent` is committed.

        `hook_digest`: of a rent, by which its box will be known when it speaks to us. A ruling other than allow means:
        do not send. Raises RunSuperseded where a run acts that lost the fence."""
        ...

    async def drop(self, key: str, why: str) -> None:
        """What was intended is not sent after all. That is no fact about the world but a decision, so it is fenced, and
        leaves alone what somebody has sent. Raises RunSuperseded as `mark_sent` does."""
        ...

    async def record_outcome(
        self,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        """A fact about the world: never fenced. DONE is never overwritten, and UNKNOWN never reopens a settled row.

        `in_vain`: what follows from a rent that failed, where anything does."""
        ...


class Books(Protocol):
    """Our database as the housekeeping sees it: all fleets. Everything raises DatabaseUnreachable."""

    async def charges_from(self, now: datetime) -> datetime:
        """From when on charges are to be read, so that the bill of each box is whole that may still change."""
        ...

    async def compare(self, charges: Sequence[Charge], *, since: datetime, read_at: datetime) -> Reckoning:
        """Keep what was charged for each box, and have a person told, once, of what does not fit.

        `charges` are all from `since` on, as they stood at `read_at`.
        """
        ...


class Journal(Protocol):
    """Our database. One call is one transaction in one thread hop, shielded from cancellation.

    Calls that may lead to an effect take the fence lock and raise RunSuperseded when the fence is not the run's.
    Everything raises DatabaseUnreachable.
    """

    async def open_run(self, request: RunRequest) -> Run | NothingToDo:
        """Count the run up, take the fence, mark older open runs interrupted and release their claims.

        A retry of a flow run whose run is still open, still holds the fence and was alive within the last 10 minutes
        (real time) goes on with that run instead (`resumed`); from then on the attempt before it is held out.
        """
        ...

    async def recall(self, run: Run, observation: Observation) -> Progress:
        """How far the attempt before this one had come. `observation` is the look that a resumed run begins with: what
        it has settled is known, and by it every effect is judged anew that was intended and not sent, for time has
        passed. Raises RunSuperseded."""
        ...

    async def stay_alive(self, run: Run) -> None:
        """Renew `seen_at`. Raises RunSuperseded."""
        ...

    async def about_to_ask(self, run: Run, request: ModelRequest) -> Booking:
        """Before a request is sent: enter in the books of the day and of the run the most it may use, keep its body
        (the newest of a run), and that the run is tainted where it is. A run that dies from here on has used that.

        Raises RunSuperseded: a stale run must not pay for a reply; and BudgetSpent: then nothing may be sent."""
        ...

    async def standing(self, run: Run) -> Standing: ...

    async def record_of(self, run: Run, run_id: int) -> RunRecord | None:
        """A run of this run's conversation, itself included; None where there is none, as after a reset."""
        ...

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

    async def approved(self, run: Run) -> tuple[Approved, ...]:
        """What a person approved and nobody has carried out yet, oldest first; what came too late is expired."""
        ...

    async def carry_out_approved(
        self, run: Run, key: str, action: Effect, *, observation: Observation, listing: Listing
    ) -> Ruled:
        """Judge an approved action anew, within its bound, and make its row the intent; used once. `action` is what
        lies within the bound now. Raises RunSuperseded."""
        ...

    async def bans(self, run: Run) -> tuple[Ban, ...]:
        """Those in force at this moment: what has failed since the run began is banned too."""
        ...

    async def collect(self, run: Run, *, turn: int) -> Claimed:
        """Claim every waiting event and every due wake. Human messages enter the log in the same transaction."""
        ...

    async def meanwhile(self, run: Run, *, turn: int) -> Meanwhile:
        """Before each step: claim the urgent events that came since, unless the session was reset.

        Raises RunSuperseded: a stale run must not pay for a reply.
        """
        ...

    async def record(self, run: Run, message: Message) -> None:
        """Append to the log. Raises RunSuperseded: a call has one result, whoever is still breathing."""
        ...

    async def spend(self, run: Run, booking: Booking, usage: Usage | None) -> None:
        """A request got no reply: put what was paid for all the same in the place of what was booked, None where it
        never left. Never fenced: it was used."""
        ...

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
        """Store the reply with its `usage` in the place of what was booked, judge its effects one after the other and
        store the intents: one transaction, before anything happens. `effects` are (call id, action) in the order of the
        reply. Raises RunSuperseded."""
        ...

    async def mark_sent(self, run: Run, key: str, *, send_by: timedelta, hook_digest: str | None = None) -> Ruling:
        """Last thing before a call: fence, mode and the action's own status are read again and `sent` is committed.

        `hook_digest`: of a rent, by which its box will be known when it speaks to us. A ruling other than allow means:
        do not send. Raises RunSuperseded."""
        ...

    async def drop(self, run: Run, key: str, why: str) -> None:
        """As `Ledger.drop`."""
        ...

    async def record_outcome(
        self,
        key: str,
        status: ActionStatus,
        outcome: str,
        *,
        vast_id: int | None = None,
        in_vain: InVain | None = None,
    ) -> None:
        """A fact about the world: never fenced. DONE is never overwritten, and UNKNOWN never reopens a settled row.

        `in_vain`: what follows from a rent that failed, where anything does."""
        ...

    async def write(self, run: Run, tool: Tool, *, answer: Message | None = None) -> Result:
        """Carry out a Write (wake, notes). What it came to enters the log as what `answer` says, in the same
        transaction, so that no interruption can have it carried out twice."""
        ...

    async def close_or_go_on(self, run: Run, closing: Closing, *, may_go_on: bool) -> Closed | Claimed:
        """End the run, or claim what arrived meanwhile and go on: one transaction, so nothing falls in between."""
        ...

    async def fail_run(self, run: Run, *, exit_reason: str, summary: str, reason: str = "", tell: bool = False) -> None:
        """End the run as failed and release its claims; `reason` as in a Closing. `tell`: a person must hear of it,
        once a day."""
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
    draw_mark: Callable[[], str]
    """A new mark for `hygiene.fence`, which nobody can guess."""
    draw_hook: Callable[[], BoxHook | None] = no_hook
    """A hook of its own for a box that is about to be rented; None where boxes cannot reach us."""
