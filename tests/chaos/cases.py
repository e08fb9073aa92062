"""What a case is, and which there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    """What happens at the await point."""

    KILLED = "killed"
    """The process is gone: nothing tidies up, and no call of it is made any more."""
    OVERTAKEN = "overtaken"
    """Another run takes the fence and does all it wants; then the first one wakes up and goes on."""
    BESIDE = "beside"
    """Another run has taken the fence and is about to act when the first one wakes up and goes on."""
    RETRIED = "retried"
    """The flow run is retried although its first attempt lives; that one wakes up when the retry has ended."""
    SLEPT = "slept"
    """The process stands still for longer than the grace while others look, and goes on, the fence still its own."""

    LANDED = "landed"
    """A create that another process had sent arrives at the provider."""


class Next(StrEnum):
    """What comes next."""

    RETRY = "a retry"
    OTHER = "another run"
    TIME = "nothing but time"


FAULTS: Mapping[str, Sequence[str]] = {
    "none": (),
    "create_lost": ("create_lost",),
    "create_refused_but_made": ("create_refused_but_made",),
    "list_lag": ("list_lag",),
    "label_dropped": ("label_dropped",),
    "label_dropped, create_lost": ("label_dropped", "create_lost"),
    "destroy_ignored": ("destroy_ignored",),
    "server_error": ("server_error",),
    "offer_gone": ("offer_gone",),
    "credit_zero": ("credit_zero",),
}
"""What the provider does wrong meanwhile, by the simulator's names."""


@dataclass(frozen=True, order=True)
class Point:
    """An await point: before or after the call of this number (from 1)."""

    number: int
    call: str
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.number}, {self.call}"


@dataclass(frozen=True)
class Case:
    story: str
    point: Point
    what: What
    fault: str
    next: Next

    def __str__(self) -> str:
        return f"{self.story}: {self.what} {self.point}; {self.fault}; then {self.next}"


ONLY_LOOK = frozenset({
    "standing", "inventory", "demand", "account", "offers", "boxes", "bans", "in_flight", "unsettled", "terms",
    "orders", "fleets",
})  # fmt: skip
"""Calls that leave nothing behind, here or at the provider: after one of them all is as before the next."""


def points(calls: Sequence[str]) -> Iterator[Point]:
    """Before each call, and after each that leaves something behind."""
    for number, call in enumerate(calls, 1):
        yield Point(number, call, after=False)
        if call not in ONLY_LOOK:
            yield Point(number, call, after=True)


def nexts(what: What) -> Sequence[Next]:
    """Who was not killed has ended by himself."""
    return tuple(Next) if what is What.KILLED else (Next.TIME,)
