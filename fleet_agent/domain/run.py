"""The values of one run: why it happens, what it carries, what it leaves behind.

These are what the story (`cycle.py`), the prompt (`context.py`) and the journal exchange; none of them does anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from fleet_agent.domain.actions import Effect
from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.hosts import Ban, Benchmark
from fleet_agent.domain.ledger import Deed, Ruled
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.taint import Taint
from fleet_agent.domain.triggers import Event, Kind, Priority, Trigger
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.verdict import Verdict
from fleet_agent.domain.wakes import Wake


class RunRequest(Frozen):
    """Why a run is asked for, and which flow run carries it out."""

    fleet: str
    trigger: Trigger
    flow_run_id: str
    attempt: int = 1
    wake_id: int | None = None
    due: datetime | None = None
    """Real time at which Prefect was to start the flow run; the journal sets it beside business time."""
    force_review: bool = False
    worker_id: str


class Run(Frozen):
    """An opened run: the fence is this run's as long as `current_run_id` says so, and this attempt's as long as the
    run's row says so.

    `resumed`: an earlier attempt of the same flow run had opened it and was interrupted; it is to be gone on with.
    `wake_id`: the wake that the flow run was scheduled for, which it takes even if it comes a little early.
    """

    run_id: int
    fleet: str
    epoch: int
    trigger: Trigger
    force_review: bool
    opened_at: datetime
    attempt: int = 1
    resumed: bool = False
    wake_id: int | None = None


class NothingToDo(Frozen):
    """An empty flow run: no run was opened; `reason` is for the report."""

    reason: str


class Claimed(Frozen):
    """What a turn is about."""

    events: tuple[Event, ...] = ()
    wakes: tuple[Wake, ...] = ()

    def __add__(self, other: Claimed) -> Claimed:
        return Claimed(events=self.events + other.events, wakes=self.wakes + other.wakes)

    def without(self, events: Collection[int], wakes: Collection[int]) -> Claimed:
        """What is left when those with these ids are taken out."""
        return Claimed(
            events=tuple(event for event in self.events if event.id not in events),
            wakes=tuple(wake for wake in self.wakes if wake.id not in wakes),
        )

    def is_tainted(self) -> bool:
        """Whether there are words of a stranger in it, or such as these may once have led."""
        return any(event.tainted for event in self.events) or any(wake.taint for wake in self.wakes)

    def __bool__(self) -> bool:
        return bool(self.events or self.wakes)


class Meanwhile(Frozen):
    """What a run learns before each of its steps: what came since, and whether its session still lasts."""

    claimed: Claimed = Claimed()
    session_was_reset: bool = False


def reason_of(claimed: Claimed) -> str:
    """Why a run happens, in a few words: a person's words, then the most urgent event, then a wake; else empty. What is
    routine is no reason."""
    events = [event for event in claimed.events if event.priority is not Priority.ROUTINE]
    events.sort(key=lambda event: (event.kind is not Kind.MESSAGE, event.priority, event.id))
    reasons = [event.text.strip() or event.kind.value.replace("_", " ") for event in events]
    return first_of([*reasons, *(wake.reason for wake in claimed.wakes)])


def first_of(reasons: Sequence[str]) -> str:
    """The first reason, and how many more there are; empty where there is none."""
    if not reasons:
        return ""
    more = f" (+{len(reasons) - 1})" if len(reasons) > 1 else ""
    return _first_line(reasons[0]) + more


def _first_line(text: str, width: int = 60) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= width else line[: width - 1] + "…"


class PastRun(Frozen):
    """An older run as prompts carry it: why it happened, and what it concluded or had done when it ended."""

    run_id: int
    trigger: Trigger
    reason: str
    opened_at: datetime
    summary: str
    rented: int = 0
    destroyed: int = 0
    told: int = 0
    cost_usd: Decimal = Decimal(0)
    taint: Taint | None = None


def unfinished(summary: str, exit_reason: str, deeds: Sequence[Deed], written: Sequence[str] = ()) -> str:
    """What stands in for the conclusion of a run that came to none: what it had done and written all the same."""
    done = [*(deed.in_words() for deed in deeds), *written]
    head = f"(did not finish: {exit_reason}; what it did, do not repeat:)"
    return "\n".join(filter(None, [head, *done, summary]))


class Digest(Frozen):
    """What is left of runs that prompts no longer tell one by one: counted, never summarised by a model."""

    runs: int = 0
    rented: int = 0
    destroyed: int = 0
    told: int = 0
    cost_usd: Decimal = Decimal(0)
    since: datetime | None = None
    until: datetime | None = None

    def plus(self, runs: Sequence[PastRun]) -> Digest:
        if not runs:
            return self
        return Digest(
            runs=self.runs + len(runs),
            rented=self.rented + sum(run.rented for run in runs),
            destroyed=self.destroyed + sum(run.destroyed for run in runs),
            told=self.told + sum(run.told for run in runs),
            cost_usd=self.cost_usd + sum((run.cost_usd for run in runs), Decimal(0)),
            since=self.since or runs[0].opened_at,
            until=runs[-1].opened_at,
        )

    def in_words(self) -> str:
        assert self.since is not None
        assert self.until is not None
        return (
            f"({self.runs} older runs from {self.since:%Y-%m-%d %H:%M} to {self.until:%Y-%m-%d %H:%M} UTC: "
            f"{self.rented} rents, {self.destroyed} destroys, {self.told} messages to the operator, "
            f"model cost ${self.cost_usd:.2f})"
        )


class Compaction(Frozen):
    """Which earlier runs prompts no longer tell, up to that id, and what is left of them."""

    through: int = 0
    digest: Digest = Digest()


class Said(Frozen):
    """A person's words, and the run that took them."""

    run_id: int
    text: str


NOTES_LAST = timedelta(days=7)
"""Business time since they were set. What still holds after a week is worth saying again, and what holds for good
belongs in the objective: notes that nobody renews would steer every run by a world that is gone."""


class Notes(Frozen):
    """The agent's own, replaced whole. Those of a tainted run end with its taint, if that is sooner."""

    text: str = ""
    by_run: int = 0
    set_at: datetime | None = None
    taint: Taint | None = None

    def expire_at(self) -> datetime | None:
        """None for notes that were never set."""
        if self.set_at is None:
            return None
        end = self.set_at + NOTES_LAST
        return end if self.taint is None else min(end, self.taint.until)


class Approval(Frozen):
    """An action that waits for a person's word, or has it and waits for its time."""

    key: str
    tool: str
    arguments: dict[str, Any]
    sentence: str
    asked_at: datetime
    bound: str = ""
    """What a person's word would grant, in words."""
    approved_by: str | None = None


@dataclass(frozen=True)
class Approved:
    """An action that a person approved and nobody has carried out yet; `offer` is the one that was asked about."""

    key: str
    action: Effect
    offer: Offer | None
    grant: Grant


class Standing(Frozen):
    """What is pinned into every prompt, rendered from the tables each time; `read_at` is when."""

    installation: str
    fleet: str
    mode: Mode
    policy: Policy
    objective: str
    read_at: datetime
    notes: Notes
    approvals: tuple[Approval, ...] = ()
    wakes: tuple[Wake, ...]
    words: tuple[Said, ...]
    """The newest of this epoch that a run has dealt with, oldest first; `words_in_all` counts the others too."""
    words_in_all: int
    compaction: Compaction
    past_runs: tuple[PastRun, ...]
    """Those after the compacted ones, oldest first."""
    last_bands: dict[str, str]
    """Of the newest look that somebody decided on, see `domain.waking`; empty before the first."""
    last_review_at: datetime | None
    too_soon: tuple[str, ...] = ()
    """What the newest run that asked the model was refused for the time being; the tools, in its order."""
    bans: tuple[Ban, ...] = ()
    """In force, newest first."""
    benchmarks: tuple[Benchmark, ...] = ()
    scale_out_paused: bool = False
    scale_in_paused: bool = False
    rent_breaker: str = ""
    """Why renting pauses by itself until a person closes the breaker; empty where it does not."""


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

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            tokens_in=self.tokens_in - other.tokens_in,
            tokens_out=self.tokens_out - other.tokens_out,
            tokens_cached=self.tokens_cached - other.tokens_cached,
            cost_usd=self.cost_usd - other.cost_usd,
        )

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


class ToolCall(Frozen):
    """One call as the model made it; `id` is ours (unique, `[a-z0-9]{9}`), `arguments` canonical JSON or `{}`."""

    id: str
    name: str
    arguments: str
    provider_id: str
    malformed: bool = False


class Result(Frozen):
    """What a call came to. `sentence` is what the model is told; `failed` that what it asked for was not done, or may
    not have been; `outside` names whose words the sentence is, where they are not ours, and `tainted_until` how long
    these taint, where they had been read before: to read them again does not put the end off."""

    sentence: str
    failed: bool = False
    outside: str | None = None
    tainted_until: datetime | None = None


class ModelRequest(Frozen):
    """What is about to be sent to the model."""

    body: dict[str, Any]
    compaction: Compaction
    """What the prompt leaves out of earlier runs."""
    taint: Taint | None
    """Where the prompt carries text from outside: that of the run from now on."""
    model: str
    """Who would answer: its name and its server."""
    most: Usage
    """What it may use at most."""


class ModelReply(Frozen):
    """One normalised reply: whether it calls tools is decided by `calls` alone."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    """What it cost, tries before it included."""
    model: str = ""
    """Who answered: the model's name and its server."""
    estimate: int = 0
    """Tokens of its prompt by our count."""
    reported: int = 0
    """Tokens of its prompt by the server's count; 0 where it did not say."""


class MessageKind(StrEnum):
    TRIGGER = "trigger"
    HUMAN = "human"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    NOTE = "note"


class Message(Frozen):
    """One row of the conversation log. `call_id` ties a tool's result to its call.

    `events` and `wakes` are the ids of what this message shows the model, or of whose words it is; `failed` is that of
    the result it tells; `tainted_until` is set where there is text from outside in it; `model`, `estimate` and
    `reported` are those of a `ModelReply`.
    """

    turn: int
    step: int
    role: str
    kind: MessageKind
    content: str
    call_id: str | None = None
    failed: bool = False
    calls: tuple[ToolCall, ...] = ()
    events: tuple[int, ...] = ()
    wakes: tuple[int, ...] = ()
    tainted_until: datetime | None = None
    model: str = ""
    estimate: int = 0
    reported: int = 0

    def telling(self, result: Result) -> Message:
        """The same as the answer of a call that came to `result`."""
        return self.model_copy(update={"content": result.sentence, "failed": result.failed})


class RunRecord(Frozen):
    """A run as it can be read again."""

    run_id: int
    trigger: Trigger
    reason: str
    opened_at: datetime
    ended_by: str
    """Its status or, where it closed, its exit reason."""
    summary: str
    said: tuple[Message, ...]
    tainted_until: datetime | None
    """Of the run, whose own words text from outside may have led; each message has its own besides."""


class Progress(Frozen):
    """How far an interrupted attempt of a run had come, as log, claims and ledger tell: the run goes on from here.

    `turn` is the one under way, `step` the last one that the model answered, `ruled` the effects of its last reply.
    """

    turn: int
    step: int
    usage: Usage
    claimed: Claimed
    said: tuple[Message, ...]
    ruled: tuple[Ruled, ...]

    def unshown(self) -> Claimed:
        """What is in hand and no message carries yet."""
        return _not_carried(self.claimed, self.said)

    def unseen(self) -> Claimed:
        """What is in hand and no answered request carried: the model has not had its say on it."""
        replies = [index for index, message in enumerate(self.said) if message.role == "assistant"]
        return _not_carried(self.claimed, self.said[: replies[-1]] if replies else ())

    def reply_at_hand(self) -> Message | None:
        """The model's last reply, unless it has been dealt with wholly: then something was said to it since, or another
        turn has begun. Its calls may have some of their results."""
        for message in reversed(self.said):
            if message.role == "user":
                return None
            if message.role == "assistant":
                return message if message.turn == self.turn else None
        return None

    def results(self) -> list[tuple[ToolCall, str]]:
        """Each answered call with its result, in order."""
        calls = {call.id: call for message in self.said for call in message.calls}
        return [(calls[message.call_id], message.content) for message in self.said if message.call_id in calls]


def _not_carried(claimed: Claimed, messages: Sequence[Message]) -> Claimed:
    return claimed.without(
        events={number for message in messages for number in message.events},
        wakes={number for message in messages for number in message.wakes},
    )


class Closing(Frozen):
    """How a run ends, or what it carries into its next turn."""

    verdict: Verdict
    summary: str
    exit_reason: str
    quiet: bool
    bands: dict[str, str]
    """Of the look that it was decided on, see `domain.waking`."""
    asked_model: bool
    unseen: tuple[int, ...] = ()
    """Ids of inbox events that were claimed and that no request to the model carried: they are not dealt with."""
    unseen_wakes: tuple[int, ...] = ()
    reason: str = ""
    """Why the run happened, where nothing that it claimed says it."""


class Closed(Frozen):
    """What the closing transaction wrote; `verdict` is OR-ed with the ledger."""

    verdict: Verdict
    no_op: bool
    usage: Usage
    turns: int
    summary: str
    exit_reason: str
    tainted: bool = False
