"""A part of all cases, told by one process, and what comes of it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fleet_agent.store import migrate
from tests.chaos.cases import FAULTS, Case, What
from tests.chaos.killed import tell_killed
from tests.chaos.naive import CONTROLS
from tests.chaos.stories import AGENT, STORIES
from tests.chaos.telling import Teller, Told
from tests.postgres import temporary_postgres

KILLED_FOR_GOOD = 50
"""Cases with a process that ends itself with SIGKILL."""


@dataclass(frozen=True)
class Asked:
    """What is to be told: each `every`-th case of these stories from the `first` on, of which one process tells its
    `share` of `shares`."""

    stories: tuple[str, ...]
    every: int
    only: str
    shares: int
    share: int = 0
    first: int = 0


@dataclass
class Tally:
    """What came of it, by fault."""

    cases: Counter[str] = field(default_factory=Counter[str])
    violations: Counter[str] = field(default_factory=Counter[str])
    faults_struck: Counter[str] = field(default_factory=Counter[str])
    killed_for_good: int = 0
    not_reached: int = 0
    control_cases: Counter[str] = field(default_factory=Counter[str])
    control_violations: Counter[str] = field(default_factory=Counter[str])

    def __iadd__(self, other: Tally) -> Tally:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def count(self, told: Told) -> None:
        """A case whose point was not reached is none; what it broke all the same is no less broken."""
        fault = told.case.fault
        self.cases[fault] += told.reached
        self.not_reached += not told.reached
        self.violations[fault] += bool(told.broken)
        self.faults_struck += told.struck
        for sentence in told.broken:
            print(f"{told.case}: {sentence}", file=sys.stderr, flush=True)

    def count_control(self, told: Told) -> None:
        self.control_cases[told.case.fault] += told.reached
        self.control_violations[told.case.fault] += bool(told.broken)


def tell_a_share(asked: Asked) -> Tally:
    """One process's part: a server, the beginnings, and its cases one after the other."""
    with temporary_postgres(migrate.upgrade) as postgres:
        return asyncio.run(_tell(Teller(postgres), asked))


async def _tell(teller: Teller, asked: Asked) -> Tally:
    gc.freeze()  # the libraries stay; looking through them again and again is a tenth of the time
    gc.set_threshold(200_000, 50, 50)
    tally = Tally()
    for case in await _cases(teller, asked):
        tally.count(await teller.tell(case))
    for case in await _kills(teller, asked):
        told = await tell_killed(teller, case)
        tally.count(told)
        tally.killed_for_good += told.reached
    for case in await _controls(teller, asked):
        tally.count_control(await teller.tell(case, CONTROLS[case.fault]))
    return tally


async def _cases(teller: Teller, asked: Asked) -> Sequence[Case]:
    cases = [case for name in asked.stories for fault in FAULTS for case in await teller.cases(STORIES[name], fault)]
    return list(_part(cases, asked))


async def _kills(teller: Teller, asked: Asked) -> Sequence[Case]:
    """Evenly spread over the run's calls and the faults."""
    cases = [
        case
        for fault in FAULTS
        for case in await teller.cases(AGENT, fault)
        if case.what is What.KILLED and fault != "server_error"
    ]
    return list(_part(cases[:: max(1, len(cases) // KILLED_FOR_GOOD)][:KILLED_FOR_GOOD], asked))


async def _controls(teller: Teller, asked: Asked) -> Sequence[Case]:
    cases = [case for fault in CONTROLS for case in await teller.cases(AGENT, fault) if case.what is What.KILLED]
    return list(_part(cases, asked))


def _part(cases: Sequence[Case], asked: Asked) -> Iterator[Case]:
    for case in cases[asked.first :: asked.every][asked.share :: asked.shares]:
        if asked.only in str(case):
            yield case
