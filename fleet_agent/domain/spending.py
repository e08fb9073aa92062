"""What models may cost: booked before a request is sent, put right by its answer.

    terms of the model  →  the most that one request may cost  →  booked, or refused  →  sent  →  put right

A cost that is counted only when the answer is there is counted never where the run dies in between, and a run that dies
again and again would cost without end. So a request is in the books with its whole prompt and the longest reply before
it leaves; whoever dies has spent that. Only an answer, or a failure that is known to have cost less, takes it back.

A day is the current hour and the 24 before it, in business time: a day that begins at midnight lets two be spent around
midnight, and has a time zone. Hours and not moments, because that is how spending is kept; the error is on the side of
counting too much. What is bounded is what is asked for: one request is booked, and the few tries that the client may
make of it (`clients/model.py`) are paid for when they are known.

Prices are what the person set. Where none is set a model counts as free, as one's own server is, and only calls and
tokens bound it; the doctor says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from fleet_agent.domain.money import show_usd
from fleet_agent.domain.policy import ModelBounds
from fleet_agent.domain.run import Usage
from fleet_agent.domain.tokens import rendered
from fleet_agent.domain.values import Frozen

DAY = timedelta(hours=24)


class Prices(NamedTuple):
    usd_per_million_tokens_in: Decimal = Decimal(0)
    usd_per_million_tokens_out: Decimal = Decimal(0)

    def of(self, tokens_in: int, tokens_out: int) -> Decimal:
        return (tokens_in * self.usd_per_million_tokens_in + tokens_out * self.usd_per_million_tokens_out) / 1_000_000


class Terms(Frozen):
    """On what terms a request would be answered now; of several models, those of the first that is well, and the
    highest prices of all, since another may answer."""

    model: str = ""
    """Its name and its server."""
    factor: float = 1.0
    """By which our count of a prompt is multiplied for it."""
    max_output_tokens: int = 0
    prices: Prices = Prices()

    def most(self, prompt_tokens: int) -> Usage:
        """What one request with a prompt of so many tokens may use."""
        cost = self.prices.of(prompt_tokens, self.max_output_tokens)
        return Usage(tokens_in=prompt_tokens, tokens_out=self.max_output_tokens, cost_usd=cost)


class Booking(Frozen):
    """A request that is about to be sent, as it stands in the books."""

    model: str
    """Who was to be asked; another of a list may answer."""
    hour: datetime
    most: Usage
    chars: int = 0
    """Of the request body."""
    chars_as_before: int = 0
    """Up to which it is the body of the request before it, be it another run's: what a provider can have cached."""


class Spent(NamedTuple):
    """Of a stretch of time, what is under way included."""

    calls: int = 0
    tokens: int = 0
    usd: Decimal = Decimal(0)


def hour_of(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0)


def day_before(now: datetime) -> datetime:
    """The first hour that counts for the day's bounds."""
    return hour_of(now) - DAY


def beyond_the_day(spent: Spent, most: Usage, bounds: ModelBounds) -> str | None:
    """Which bound of the day one more request could break, and what to set for more of it; None where it may leave."""
    if spent.calls + 1 > bounds.max_calls_per_day:
        return f"{spent.calls:,} requests of model.max_calls_per_day={bounds.max_calls_per_day}"
    if spent.tokens + most.tokens > bounds.max_tokens_per_day:
        return f"{spent.tokens:,} tokens of model.max_tokens_per_day={bounds.max_tokens_per_day}"
    if spent.usd + most.cost_usd > bounds.max_usd_per_day:
        return f"{show_usd(spent.usd)} of model.max_usd_per_day={bounds.max_usd_per_day}"
    return None


def alike(before: Mapping[str, Any] | None, body: Mapping[str, Any]) -> tuple[int, int]:
    """Characters of a request body, and up to which it is like the one before it."""
    text = rendered(body)
    return len(text), _common_prefix(rendered(before), text) if before else 0


def _common_prefix(one: str, other: str) -> int:
    """By halving: bodies have a hundred thousand characters, and comparing slices is one step each."""
    same, longest = 0, min(len(one), len(other))
    while same < longest:
        middle = (same + longest + 1) // 2
        same, longest = (middle, longest) if one[same:middle] == other[same:middle] else (same, middle - 1)
    return same
