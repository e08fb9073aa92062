"""How many tokens a request has, bounded from above for tokenizers that we do not know.

One tokenizer's count is no bound for another's: some give every digit a token of its own, which makes half as much
again of exactly what we send, and some spend several tokens on a character that is not Latin. So the count of the one
tokenizer we can carry (o200k) is corrected by what those were measured to add, and where we carry none, bytes are
counted: no byte-level tokenizer makes more tokens than there are bytes. What chat templates add to each message and
tool is charged as the dearest of the usual ones was measured to add.

All functions are pure. The counter of a text is passed in; `wiring` chooses it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CountTokens = Callable[[str], int]
"""Tokens of one text, an upper bound; never more than it has bytes."""

HARD_TOKENS = 30_000
"""No request with more leaves the house, whatever a model could take."""

SHORT_TOKENS = 15_000
"""By our own count. So short a prompt is sent whatever its server is believed to count, where no shorter one can be
made: the belief may be wrong, and only a reply can correct it. No tokenizer in use makes twice as many."""

PER_MESSAGE = 32
"""Role marks and what wraps a message: the most that usual chat templates add."""

PER_CALL = 16

FOR_TOOLS = 200
TOOLS_FACTOR = 1.1
"""Templates write tools in indented JSON, with words around it."""

MOST_CHARACTERS_OF_A_TOKEN = 8
"""On average of a whole prompt, for the most frugal tokenizer: prose has between four and five."""

MARGIN = 1.12
"""What tokenizers were measured to make more of fleet JSON, logs, tables and base64 than o200k, digits aside."""

_DIGITS = re.compile(r"\d+")
_BLANKS = re.compile(r"\s{3,}")
_REPEATS = re.compile(r"([^\s\d])\1{8,}")
_PIECE = re.compile(r" +|\t+|\n+|\r+|[\v\f]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def request_tokens(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], count_tokens: CountTokens
) -> int:
    """A whole request: contents, names, arguments, and what templates add."""
    total = sum(message_tokens(message, count_tokens) for message in messages)
    return total + tools_tokens(tools, count_tokens)


def message_tokens(message: Mapping[str, Any], count_tokens: CountTokens) -> int:
    total = PER_MESSAGE + count_tokens(str(message.get("content") or ""))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        total += PER_CALL + count_tokens(f"{call['id']}{function['name']}{function['arguments']}")
    return total + count_tokens(str(message.get("tool_call_id", "")))


def tools_tokens(tools: Sequence[Mapping[str, Any]], count_tokens: CountTokens) -> int:
    if not tools:
        return 0
    return FOR_TOOLS + math.ceil(TOOLS_FACTOR * count_tokens(json.dumps(tools, indent=4, ensure_ascii=False)))


def rendered(body: Mapping[str, Any]) -> str:
    """A request as one text in the order in which templates write it: the tools, then message after message."""
    return json.dumps([body.get("tools", ()), *body.get("messages", ())], ensure_ascii=False)


def fewest_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """Of the contents of a request, however good the tokenizer: whoever reports less has not read them all."""
    return sum(len(str(message.get("content") or "")) for message in messages) // MOST_CHARACTERS_OF_A_TOKEN


def most_tokens(body: Mapping[str, Any]) -> int:
    """Of a request, however bad the tokenizer: whoever reports more does not report tokens."""
    return request_tokens(body["messages"], body.get("tools", ()), by_bytes)


def window_needed(max_output_tokens: int) -> int:
    """Prompt and reply share a model's window; the reply's part must be free however long the prompt is."""
    return HARD_TOKENS + max_output_tokens


def factor_within(tokens: int) -> float:
    """Where a prompt may have no more than `tokens` by our count: what that count is multiplied by, so that the usual
    bounds hold it back."""
    return max(1.0, HARD_TOKENS / max(tokens, 1))


def by_bytes(text: str) -> int:
    """Where no tokenizer is at hand: a byte-level one never makes more tokens than bytes, and with text of digits some
    make as many. Prose costs a quarter of that, which is the price of not knowing."""
    return len(_utf8(text))


def corrected(o200k: Callable[[str], int]) -> CountTokens:
    """A bound from the count of o200k: every digit is charged by itself, every foreign character by its bytes, mixed
    white space by its pieces, a letter held down by the pair, and the rest with a margin for vocabularies that split
    more finely."""

    def count(text: str) -> int:
        size = len(_utf8(text))
        latin, foreign = text, 0
        if not text.isascii():
            latin = _NOT_ASCII.sub(" ", text)
            foreign = sum(len(_utf8(run)) for run in _NOT_ASCII.findall(text))
        digits = sum(len(run) - math.ceil(len(run) / 3) for run in _DIGITS.findall(latin))
        pieces = sum(max(0, len(_PIECE.findall(run)) - 2) for run in _BLANKS.findall(latin))
        repeats = sum(len(run[0]) // 2 for run in _REPEATS.finditer(latin))
        return min(size, math.ceil(MARGIN * (o200k(latin) + digits + pieces)) + repeats + foreign)

    return count


def shortened(text: str, tokens: int, count_tokens: CountTokens) -> str:
    """At most `tokens` of `text`: its head and its tail, and between them how much is left out."""
    keep = len(text)
    short = text
    while short and len(_utf8(short)) > tokens and (size := count_tokens(short)) > tokens:
        keep = min(keep - 1, keep * tokens // size)
        head, tail = (keep + 1) // 2, keep // 2
        if keep <= 0:
            return ""
        short = f"{text[:head]}[… {len(text) - keep} characters left out …]{text[len(text) - tail :]}"
    return short


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
