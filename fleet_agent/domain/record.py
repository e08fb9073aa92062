"""A run as the model reads it again: why it happened, what it called and got, and how it ended.

An overview has each step in a few lines; a single step is there in full, as far as the cap of an output allows. What
text from outside may have led is forgotten when its taint is over (`domain.taint`): then lines say that it was there.
"""

from __future__ import annotations

from datetime import datetime

from fleet_agent.domain.run import Message, RunRecord
from fleet_agent.domain.show import brief_call, utc
from fleet_agent.domain.taint import newest
from fleet_agent.domain.tokens import CountTokens, shortened

BRIEF_TOKENS = 80
"""Of each text in an overview."""


FORGOTTEN = "(no longer shown, text from outside may have led it)"


def as_of(record: RunRecord, now: datetime) -> tuple[RunRecord, datetime | None]:
    """The record without what is forgotten by `now`, and until when the rest taints whoever reads it."""
    said = tuple(_remembered(message, record.tainted_until, now) for message in record.said)
    shown = record.model_copy(update={"said": said})
    if _is_over(record.tainted_until, now):
        shown = shown.model_copy(update={"reason": FORGOTTEN, "summary": FORGOTTEN})
    ends = (record.tainted_until, *(message.tainted_until for message in record.said))
    return shown, newest(end for end in ends if not _is_over(end, now))


def _remembered(message: Message, run_until: datetime | None, now: datetime) -> Message:
    """The run's own words last as long as its taint, whenever it was that it said them."""
    if not _is_over(run_until if message.role == "assistant" else message.tainted_until, now):
        return message
    calls = tuple(call.model_copy(update={"arguments": FORGOTTEN}) for call in message.calls)
    return message.model_copy(update={"content": FORGOTTEN, "calls": calls})


def _is_over(until: datetime | None, now: datetime) -> bool:
    return until is not None and until <= now


def overview(record: RunRecord, count_tokens: CountTokens) -> str:
    reason = f": {record.reason}" if record.reason else ""
    replies = [message for message in record.said if message.role != "user"]
    return "\n".join(
        [
            f"Run #{record.run_id}, {utc(record.opened_at)}, trigger: {record.trigger.value}{reason}",
            *(_in_brief(message, count_tokens) for message in replies),
            f"Ended by: {record.ended_by}",
            f"Its last words: {record.summary or '(none)'}",
        ]
    )


def one_step(record: RunRecord, step: int) -> str:
    """All that was said in the step, the calls with their whole arguments; or which steps there are."""
    messages = [message for message in record.said if message.step == step]
    if not messages:
        last = max((message.step for message in record.said), default=0)
        return f"Run #{record.run_id} has no step {step}; its steps are 0 to {last}."
    return "\n".join([f"Run #{record.run_id}, step {step}", *map(_in_full, messages)])


def _in_brief(message: Message, count_tokens: CountTokens) -> str:
    text = shortened(message.content, BRIEF_TOKENS, count_tokens)
    if message.role == "tool":
        return f"  → {text}"
    calls = [f"  {brief_call(call.name, call.arguments)}" for call in message.calls]
    return "\n".join([f"Step {message.step}: {text}".rstrip(), *calls])


def _in_full(message: Message) -> str:
    if message.role == "tool":
        return f"→ {message.content}"
    calls = [f"{call.name}({call.arguments})" for call in message.calls]
    speaker = "you" if message.role == "assistant" else "told"
    return "\n".join([f"[{speaker}] {message.content}".rstrip(), *calls])
