"""Histories as they never should be, for the prompt to be composed of: long, foreign, broken off, and all at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import strategies as st

from fleet_agent.domain.context import turn_block
from fleet_agent.domain.run import Claimed, Message, MessageKind, Said, Standing, ToolCall
from fleet_agent.domain.tokens import CountTokens, shortened
from fleet_agent.domain.wakes import MOST_PENDING, Wake
from tests.domain.test_context import MARK, NOW, RUN, message_event, noted, observation, past_run, standing
from tests.domain.test_rules import box

OBJECTIVE_BYTES = 6_000
"""The longest that a person can set."""


@dataclass(frozen=True)
class History:
    """What a prompt is composed of."""

    standing: Standing
    steps: tuple[Message, ...]


PIECES = (
    "The queue is empty. ",
    "界限",
    "مرحبا بالعالم ",
    "🧑🏿‍💻",
    "\x1b[31mred\x1b[0m\r",
    "<|endoftext|>",
    "\ud83d",
    "8241",
    "AAAAAAAA",
    "0f9b-4d1e ",
    " \n\t",
    "\u200b",
)

texts = st.builds(
    lambda piece, size: (piece * (size // len(piece) + 1))[:size],
    st.sampled_from(PIECES),
    st.sampled_from((0, 1, 40, 40, 600, 4_000, 20_000)),
)
"""From nothing to 20,000 characters: of words, of other scripts, of digits, of what a terminal or a tokenizer obeys."""


@st.composite
def steps(draw: st.DrawFn, count_tokens: CountTokens) -> tuple[Message, ...]:
    """A run of some turns: blocks, replies, parallel calls with their results, corrections.

    Some results are missing, at the end or in the middle, and some have lost their call.
    """
    made: list[Message] = [_block(draw, 0, count_tokens)]
    for step in range(1, draw(st.integers(0, 8)) + 1):
        calls = tuple(
            ToolCall(
                id=f"c{step:03d}{number:05d}",
                name="list_boxes",
                arguments=json.dumps({"note": draw(texts)}) if draw(st.booleans()) else "{}",
                provider_id="call_0",
            )
            for number in range(draw(st.integers(0, 4)))
        )
        results = [_result(step, call.id, draw(texts)) for call in calls if draw(st.integers(0, 9))]
        strays = [_result(step, f"z{step:08d}", draw(texts))] if draw(st.integers(0, 9)) == 0 else []
        kind = MessageKind.TOOL_CALL if calls else MessageKind.NOTE
        made += [
            Message(turn=1, step=step, role="assistant", kind=kind, content=draw(texts), calls=calls),
            *results,
            *strays,
        ]
        if not calls:
            made.append(Message(turn=1, step=step, role="user", kind=MessageKind.NOTE, content="Call a tool."))
        if draw(st.integers(0, 3)) == 0:
            made.append(_block(draw, step, count_tokens))
    return tuple(made)


def _block(draw: st.DrawFn, step: int, count_tokens: CountTokens) -> Message:
    claimed = Claimed(events=tuple(message_event(number, draw(texts)) for number in range(draw(st.integers(0, 2)))))
    seen = observation(boxes=(box(),) * draw(st.sampled_from((1, 200))))
    content = turn_block(RUN, standing(), claimed, seen, (), NOW, count_tokens, mark=MARK)
    return Message(turn=1, step=step, role="user", kind=MessageKind.TRIGGER, content=content)


def _result(step: int, call_id: str, content: str) -> Message:
    return Message(turn=1, step=step, role="tool", kind=MessageKind.TOOL_RESULT, content=content, call_id=call_id)


@st.composite
def standings(draw: st.DrawFn, objective_bytes: int) -> Standing:
    """Everything pinned at its longest, or at nothing, and up to some dozens of earlier runs."""
    objective = draw(texts)
    words = [Said(run_id=number, text=draw(texts)) for number in range(draw(st.integers(0, 6)))]
    summaries = draw(st.lists(texts, max_size=12)) * draw(st.sampled_from((1, 1, 4)))
    return standing(
        objective=shortened(objective, objective_bytes, lambda text: len(text.encode("utf-8", "replace"))),
        notes=noted(draw(texts)),
        wakes=tuple(
            Wake(id=number, wake_at=NOW, reason=draw(texts), asked_by="agent")
            for number in range(draw(st.sampled_from((0, 1, MOST_PENDING))))
        ),
        words=tuple(words),
        words_in_all=len(words),
        past_runs=tuple(
            past_run(number, summary, reason="a person's words" * (number % 2), opened_at=NOW + timedelta(number))
            for number, summary in enumerate(summaries, 1)
        ),
    )


def histories(count_tokens: CountTokens, *, objective_bytes: int = OBJECTIVE_BYTES) -> st.SearchStrategy[History]:
    return st.builds(History, standings(objective_bytes), steps(count_tokens))
