"""What a prompt leaves out where not everything fits. It needs no model, and it always comes to an end.

A `Cut` says how much is left out; it goes in and comes out again, so that neighbouring prompts leave out the same and
share their beginning. While a prompt fits the target, its cut stays. When it does not, more is left out in a fixed
order, and more than needed, so that the next prompts have room:

    outputs of older steps become placeholders → the oldest runs go into the digest          until it is small again
    → the last runs too → the oldest steps go as whole groups → the newest outputs are cut
    → the blocks of earlier turns are cut → the newest look → the newest words               until it fits

What is seen now comes last but one, and even then keeps its first lines: demand, money and how many boxes there are. A
request without them would ask for decisions on nothing. The limits are no part of a look: they are pinned.

The bounds of what is left in the end add up to LEAST_ROOM. Where what every prompt carries leaves that much, every run
can be told, whatever it is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fleet_agent.domain.hygiene import without_fenced
from fleet_agent.domain.run import Message, MessageKind, Standing, ToolCall
from fleet_agent.domain.show import CLOSES_A_LOOK, OPENS_A_LOOK, brief_call
from fleet_agent.domain.tokens import PER_CALL, PER_MESSAGE, CountTokens, shortened
from fleet_agent.domain.values import Frozen

LAST_RUNS = 3
"""Runs that go into the digest only where nothing else helps."""

LEAST_OUTPUT_TOKENS = 150
"""What is left of each newest output where nothing else can give way."""
LEAST_BLOCK_TOKENS = 500
"""What is left, in the same case, of what a turn was about, or of what came in the middle of one …"""
LEAST_BLOCKS_TOKENS = 4_000
"""… and of all of these together but the newest: people may speak before every step."""
LEAST_HEAD_TOKENS = 150
"""Of each of the first lines of a look, which are four; only the words of an error make one longer."""

_MOST_CALLS = 8
"""Of one reply, as it is normalised."""
_LEAST_LOOK = 2 * LEAST_BLOCK_TOKENS + 5 * LEAST_HEAD_TOKENS
_LEAST_STEP = LEAST_OUTPUT_TOKENS + _MOST_CALLS * (2 * LEAST_OUTPUT_TOKENS + PER_CALL + PER_MESSAGE + 60)

LEAST_ROOM = LEAST_BLOCKS_TOKENS + _LEAST_LOOK + LEAST_BLOCK_TOKENS + _LEAST_STEP + 8 * PER_MESSAGE
"""Of a prompt, for what a run is about, everything cut: its earlier blocks, a look, the newest words, and a step."""

MEANWHILE = "Meanwhile:"
"""How a block begins that has no look."""


class Cut(Frozen):
    """What is left out of a prompt. Within an epoch the runs, within a run the rest only ever grow."""

    runs: int = 0
    """Earlier runs up to this id are in the digest alone."""
    outputs: int = 0
    """Tool outputs of steps up to this one are placeholders."""
    steps: int = 0
    """Steps up to this one are gone, all but what opened a turn and the newest look."""
    newest: bool = False
    """The newest outputs are cut short."""
    blocks: int = 0
    """So many of what turns were about, or came in the middle of one, are cut short: the oldest first, then the newest
    look, and the newest words last."""


def gentle_cuts(cut: Cut, standing: Standing, steps: Sequence[Message]) -> list[Cut]:
    """Ever deeper cuts that cost little; the first of them that makes the prompt small is enough."""
    last = max((message.step for message in steps), default=0)
    cut = cut.model_copy(update={"outputs": max(cut.outputs, last - 1)})
    runs = _runs_left(cut, standing)[:-LAST_RUNS]
    return [cut, *(cut.model_copy(update={"runs": run_id}) for run_id in runs)]


def drastic_cuts(cut: Cut, standing: Standing, steps: Sequence[Message]) -> list[Cut]:
    """The cuts after those; the first of them that makes the prompt fit is enough."""
    cuts = [cut]

    def deeper(**more: Any) -> None:
        cuts.append(cuts[-1].model_copy(update=more))

    for run_id in _runs_left(cut, standing):
        deeper(runs=run_id)
    for step in range(cut.steps + 1, max((message.step for message in steps), default=0)):
        deeper(steps=step)
    deeper(newest=True)
    for blocks in range(cut.blocks + 1, len(_blocks(steps)) + 1):
        deeper(blocks=blocks)
    return cuts


def left(steps: Sequence[Message], cut: Cut, count_tokens: CountTokens) -> Iterator[Message]:
    """What the cut leaves of the steps: calls and their results stay or go together."""
    blocks, look = _blocks(steps), _newest_look(steps)
    short, whole = blocks[: cut.blocks], blocks[cut.blocks :]
    kept = min(LEAST_BLOCK_TOKENS, LEAST_BLOCKS_TOKENS // max(cut.blocks, 1))
    calls = {call.id: call for message in steps for call in message.calls}
    for position, message in enumerate(steps):
        if position in whole:
            yield message
        elif position in short and position == look:
            yield _with(message, _heads(message.content, count_tokens))
        elif position in short:
            room = LEAST_BLOCK_TOKENS if position == blocks[-1] else kept
            yield _with(message, shortened(without_fenced(message.content), room, count_tokens))
        elif message.step <= cut.steps:
            continue
        elif message.role == "tool" and message.step <= cut.outputs:
            yield _with(message, _left_out(message, calls.get(message.call_id or "")))
        elif cut.newest:  # a fence is the whole output, so that both of its ends stay
            yield _cut_short(message, count_tokens)
        else:
            yield message


def _runs_left(cut: Cut, standing: Standing) -> list[int]:
    return [run.run_id for run in standing.past_runs if run.run_id > cut.runs]


def _blocks(steps: Sequence[Message]) -> list[int]:
    """Where what must not go while the turn lasts stands, in the order in which it is cut short."""
    look = _newest_look(steps)
    said = [position for position, message in enumerate(steps) if message.kind is MessageKind.TRIGGER]
    older, newest = said[:-1], said[-1:]
    if look is None or look in newest:
        return [*older, *newest]
    return [*(position for position in older if position != look), look, *newest]


def _newest_look(steps: Sequence[Message]) -> int | None:
    """Where the newest message stands that says what is seen. It is told by its form, which nobody else can give it:
    only we begin a message of the user's, and what begins without MEANWHILE and has a look in it has our own."""
    for position in reversed(range(len(steps))):
        role, content = steps[position].role, steps[position].content
        if role == "user" and not content.startswith(MEANWHILE) and f"\n{OPENS_A_LOOK}\n" in content:
            return position
    return None


def _heads(block: str, count_tokens: CountTokens) -> str:
    """A block that has a look, with the first lines of that in full, and little of what stands around it."""
    before, _, rest = block.rpartition(f"\n{OPENS_A_LOOK}\n")
    seen, _, after = rest.rpartition(f"\n{CLOSES_A_LOOK}")
    lines = seen.split("\n")
    heads = next((number for number, line in enumerate(lines, 1) if line.startswith("boxes: ")), len(lines))
    rows = len(lines) - heads
    return "\n".join(
        [
            shortened(without_fenced(before), LEAST_BLOCK_TOKENS, count_tokens),
            OPENS_A_LOOK,
            *(shortened(line, LEAST_HEAD_TOKENS, count_tokens) for line in lines[:heads]),
            *([f"({rows} lines of boxes are left out; list_boxes shows them)"] if rows else []),
            CLOSES_A_LOOK,
            *([shortened(after.strip("\n"), LEAST_BLOCK_TOKENS, count_tokens)] if after else []),
        ]
    )


def _with(message: Message, content: str) -> Message:
    return message.model_copy(update={"content": content})


def _cut_short(message: Message, count_tokens: CountTokens) -> Message:
    """What is said and what is asked for: arguments stay an object, for servers read them."""
    calls = tuple(
        call
        if count_tokens(call.arguments) <= LEAST_OUTPUT_TOKENS
        else call.model_copy(update={"arguments": json.dumps({"left_out": f"{len(call.arguments)} characters"})})
        for call in message.calls
    )
    content = shortened(message.content, LEAST_OUTPUT_TOKENS, count_tokens)
    return message.model_copy(update={"content": content, "calls": calls})


def _left_out(message: Message, call: ToolCall | None) -> str:
    what = "a tool's output" if call is None else brief_call(call.name, call.arguments)
    size = len(message.content)
    return f"[left out: {size} characters, {what}; read_run with step={message.step} shows them again]"
