"""The values of one run: why it happens, what it carries, what it leaves behind.

These are what the story (`cycle.py`), the prompt (`context.py`) and the journal exchange; none of them does anything.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from fleet_agent.domain.observation import Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.triggers import Event, Kind, Trigger
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


def reason_of(claimed: Claimed) -> str:
    """Why a run happens, in a few words: a person's words, then the most urgent event, then a wake; else empty."""
    events = sorted(claimed.events, key=lambda event: (event.kind is not Kind.MESSAGE, event.priority, event.id))
    reasons = [_first_line(event.text) or event.kind.value.replace("_", " ") for event in events]
    reasons += [_first_line(wake.reason) for wake in claimed.wakes]
    if not reasons:
        return ""
    more = f" (+{len(reasons) - 1})" if len(reasons) > 1 else ""
    return reasons[0] + more


def _first_line(text: str, width: int = 60) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= width else line[: width - 1] + "…"


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


class ToolCall(Frozen):
    """One call as the model made it; `id` is ours (unique, `[a-z0-9]{9}`), `arguments` canonical JSON or `{}`."""

    id: str
    name: str
    arguments: str
    provider_id: str
    malformed: bool = False


class ModelReply(Frozen):
    """One normalised reply: whether it calls tools is decided by `calls` alone."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage


class MessageKind(StrEnum):
    TRIGGER = "trigger"
    HUMAN = "human"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
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


class Closing(Frozen):
    """How a run ends, or what it carries into its next turn."""

    verdict: Verdict
    summary: str
    exit_reason: str
    quiet: bool
    observation: Observation
    asked_model: bool
    unseen: tuple[int, ...] = ()
    """Ids of inbox events that were claimed and that no request to the model carried: they are not dealt with."""
    unseen_wakes: tuple[int, ...] = ()


class Closed(Frozen):
    """What the closing transaction wrote; `verdict` is OR-ed with the ledger."""

    verdict: Verdict
    no_op: bool
    usage: Usage
    turns: int
    summary: str
    exit_reason: str
