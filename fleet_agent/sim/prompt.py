"""What an operator model can read in a request: the observation, the human's words, and its own steps since.

Only the last observation counts: what follows it are the steps taken on it, what comes before is history. The limits
stand before it, and once.
The text is read as a model reads it, by its form alone: nothing here knows the code that wrote it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from fleet_agent.sim.chat import Message

OBSERVATION = re.compile(r"\[observation\]\n(.*?)\n\[/observation\]", re.DOTALL)
LIMITS = re.compile(r"^limits: (mode=.*)$", re.MULTILINE)
APPROVALS = re.compile(r"^Open approvals:\n((?:- .*\n?)*)", re.MULTILINE)
APPROVAL = re.compile(r"^- \S+ \S+: (\w+)\(", re.MULTILINE)
HUMAN = re.compile(r"\[human\]\n(.*?)\n\[/human\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """One `name: key=value …` line of an observation, or `name: unknown (reason)`."""

    values: Mapping[str, str]
    unknown_because: str | None = None

    def number(self, key: str) -> Decimal | None:
        """None where the figure is missing or `?`: not known is not zero."""
        return _number(self.values.get(key, "?"))


MISSING = Line({}, "it is not in the observation")


@dataclass(frozen=True, slots=True)
class BoxRow:
    """`id` and `usd_per_hour` are None while the provider has not shown the box yet."""

    id: int | None
    stage: str
    gpu: str
    usd_per_hour: Decimal | None
    age_minutes: Decimal | None
    status: str


@dataclass(frozen=True, slots=True)
class OfferRow:
    id: int
    gpu: str
    usd_per_hour: Decimal
    location: str


@dataclass(frozen=True, slots=True)
class Observation:
    demand: Line
    account: Line
    limits: Line
    boxes: Line
    rows: tuple[BoxRow, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of the present run with its result."""

    tool: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """`observation` is None when the request has none, such as a connection test."""

    observation: Observation | None
    human: tuple[str, ...]
    steps: tuple[Step, ...]
    tools: tuple[str, ...]
    waiting: frozenset[str]
    """Tools of which an action waits for the operator's word."""

    def results(self, tool: str) -> list[str]:
        return [step.result for step in self.steps if step.tool == tool]


def read_prompt(messages: tuple[Message, ...], tools: tuple[str, ...]) -> Prompt:
    observed_at = max(
        (n for n, m in enumerate(messages) if m.role == "user" and OBSERVATION.search(m.content)), default=0
    )
    run = messages[observed_at:]
    words = "\n".join(message.content for message in run if message.role == "user")
    blocks = OBSERVATION.findall(words)
    return Prompt(
        observation=_observation(blocks[-1], _limits(messages)) if blocks else None,
        human=tuple(text.strip() for text in HUMAN.findall(words)),
        steps=_steps(run),
        tools=tools,
        waiting=_waiting(messages),
    )


def read_offers(listing: str) -> list[OfferRow]:
    """The rows of a search result, in its order (cheapest first). What cannot be read is no offer."""
    return [offer for line in listing.splitlines() if (offer := _offer(line.split("|"))) is not None]


def _limits(messages: tuple[Message, ...]) -> Line:
    found = LIMITS.search("\n".join(message.content for message in messages if message.role == "user"))
    return _line(found and found[1])


def _waiting(messages: tuple[Message, ...]) -> frozenset[str]:
    found = APPROVALS.search("\n".join(message.content for message in messages if message.role == "user"))
    return frozenset(APPROVAL.findall(found[1]) if found else ())


def _observation(block: str, limits: Line) -> Observation:
    lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and "|" not in line)
    rows = [line.split("|") for line in block.splitlines() if line.count("|") == 5]
    return Observation(
        demand=_line(lines.get("demand")),
        account=_line(lines.get("account")),
        limits=limits,
        boxes=_line(lines.get("boxes")),
        rows=tuple(_box(cells) for cells in rows if cells[0] != "id"),
    )


def _line(text: str | None) -> Line:
    if text is None:
        return MISSING
    if unknown := re.match(r"unknown\b\s*\(?(.*?)\)?$", text):
        return Line({}, unknown[1] or "no reason given")
    return Line(dict(pair.split("=", 1) for pair in text.split() if "=" in pair))


def _box(cells: list[str]) -> BoxRow:
    number = _number(cells[0])
    return BoxRow(
        id=None if number is None else int(number),
        stage=cells[1],
        gpu=cells[2],
        usd_per_hour=_number(cells[3]),
        age_minutes=_number(cells[4]),
        status=cells[5],
    )


def _offer(cells: list[str]) -> OfferRow | None:
    number, price = (_number(cells[0]), _number(cells[2])) if len(cells) == 6 else (None, None)
    return None if number is None or price is None else OfferRow(int(number), cells[1], price, cells[5])


def _steps(run: tuple[Message, ...]) -> tuple[Step, ...]:
    results = {message.answers: message.content for message in run if message.role == "tool"}
    return tuple(Step(call.name, call.arguments, results[call.id]) for message in run for call in message.calls)


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
