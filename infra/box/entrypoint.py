#!/usr/bin/env python3
"""What runs on a rented box: it makes a prover of a bare machine, and tells its owner how far it is.

    register → fetch the parameters → measure → prove → drain → wait to be destroyed

One file for Python 3.9 and later, without any dependency. Everything that it does is a command in its environment
(README.md has the table); the defaults are Curio with the proving daemon cuzk.

The owner has given it an address with a token of its own (FLEET_BOX_HOOK), to which it posts what it knows of itself:

    {"stage": "proving", "tasks": 2, "proofs_per_hour": 31.5}  →  {"drain": false}

The prover earns the money, not the talk. So nothing that becomes of the owner, of the network or of an answer touches
it: a post that is not heard is tried again, less and less often; who is told that nobody knows it falls silent and
goes on proving. Only two words are obeyed: `drain`, and SIGTERM.

A box is paid by the hour, so what cannot come to anything ends at once, with a reason and an exit status of its own:
parameters that stand still, a machine that is too slow for its price, a prover that dies again and again.

A stranger owns this machine, and its log is read by others. The token is kept from every command that is started, and
stars stand for it in every line, whoever wrote it. However much the commands write, the log grows slowly.

One thread has the whole story, from one tick to the next; others only carry the lines of the commands into the log.
It may be process 1 of its container, so it buries every dead process, whoever left it behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, NoReturn, cast
from urllib.parse import urlsplit

# --- what it is told --------------------------------------------------------------------------------------------------

HOOK: Final = "FLEET_BOX_HOOK"

DEFAULTS: Final[Mapping[str, str]] = {
    "BOX_FETCH": "curio fetch-params 32",
    "BOX_DAEMON": "cuzk",
    "BOX_BENCH": "until cuzk-bench status >/dev/null 2>&1; do sleep 2; done; "
    'cuzk-bench batch --type porep --c1 "${BOX_C1:-/data/zk/c1.json}" --count 12 --concurrency 2',
    "BOX_PROVE": 'exec curio run --name "${CURIO_NODE_NAME:-${VAST_CONTAINERLABEL:-$(hostname)}}"',
    "BOX_DRAIN": "curio cli --machine 127.0.0.1:12300 cordon",
    "BOX_STATUS": "http://127.0.0.1:12300/debug/metrics",
    "BOX_TASK_NAMES": "PoRep UpdateProve PSProve WdPost WinPost",
    "BOX_PARAMS": "/var/tmp/filecoin-proof-parameters",
    "BOX_PARAMS_GB": "145",
    "BOX_RATE_FILE": "/var/tmp/fleet-box-rate",
    "MIN_RATE": "0",
    "BOX_MIN_GB_PER_MINUTE": "0.05",
    "BOX_STALL": "600",
    "BOX_BENCH_WITHIN": "3600",
    "BOX_POLL": "30",
    "BOX_POST_WITHIN": "10",
    "BOX_SETTLE": "60",
    "BOX_RESTART_WINDOW": "3600",
    "BOX_END_WITHIN": "300",
}
"""What counts where a variable is not set. A command that is set to nothing is left out."""

# Exit statuses, for whoever reads the log of the provider: 128 and more are the signal that ended it.
NO_SETUP: Final = 2
NO_PARAMETERS: Final = 3
NO_RATE: Final = 4
TOO_SLOW: Final = 5
PROVER_DIES: Final = 6
OWN_FAULT: Final = 70


class GaveUp(Exception):
    """This box will come to nothing."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Ended(Exception):
    """A signal asks it to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class NoMoreWork(Exception):
    """It is to drain, and has not begun to prove."""


@dataclass(frozen=True)
class Settings:
    """Durations in seconds; `min_rate` in proofs an hour; `params_gb` of all parameter files, None: unknown."""

    hook: str
    fetch: str
    daemon: str
    bench: str
    prove: str
    drain: str
    status: str
    task_names: frozenset[str]
    params: str
    params_gb: float | None
    rate_file: str
    min_rate: float
    min_gb_per_minute: float
    stall: float
    bench_within: float
    poll: float
    post_within: float
    settle: float
    restart_window: float
    end_within: float

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Settings:
        """Raises GaveUp for what is no number, or no address."""

        def text(name: str) -> str:
            return env.get(name, DEFAULTS[name]).strip()

        def number(name: str) -> float:
            said = text(name) or DEFAULTS[name]
            value = _number(said)
            if value is None or value < 0:
                raise GaveUp(NO_SETUP, f"{name} is {said!r}, and must be a number")
            return value

        def expected_gb() -> float | None:
            """The default is what the default command fetches: of another one it says nothing."""
            is_known = env.get("BOX_PARAMS_GB", "").strip() or "BOX_FETCH" not in env
            return number("BOX_PARAMS_GB") or None if is_known else None

        hook = env.get(HOOK, "").strip()
        if hook and not _is_address(hook):
            raise GaveUp(NO_SETUP, f"{HOOK} is no address of the kind http://host/path")
        if not text("BOX_PROVE"):
            raise GaveUp(NO_SETUP, "BOX_PROVE names no command, so there is nothing to run")
        return cls(
            hook=hook,
            fetch=text("BOX_FETCH"),
            daemon=text("BOX_DAEMON"),
            bench=text("BOX_BENCH"),
            prove=text("BOX_PROVE"),
            drain=text("BOX_DRAIN"),
            status=text("BOX_STATUS"),
            task_names=frozenset(text("BOX_TASK_NAMES").split()),
            params=env.get("BOX_PARAMS") or env.get("FIL_PROOFS_PARAMETER_CACHE") or DEFAULTS["BOX_PARAMS"],
            params_gb=expected_gb(),
            rate_file=text("BOX_RATE_FILE"),
            min_rate=number("MIN_RATE"),
            min_gb_per_minute=number("BOX_MIN_GB_PER_MINUTE"),
            stall=number("BOX_STALL"),
            bench_within=number("BOX_BENCH_WITHIN"),
            poll=max(number("BOX_POLL"), SHORTEST_POLL),
            post_within=max(number("BOX_POST_WITHIN"), SHORTEST_POLL),
            settle=number("BOX_SETTLE"),
            restart_window=number("BOX_RESTART_WINDOW"),
            end_within=number("BOX_END_WITHIN"),
        )


SHORTEST_POLL: Final = 0.05


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


# --- the story --------------------------------------------------------------------------------------------------------

GB: Final = 1_000_000_000
FETCH_TRIES: Final = 3
"""A download that broke off goes on where it was, and costs less than another box."""
BETWEEN_TELLING: Final = 60.0
LONGEST_WAIT: Final = 1.0
ASKS_TO_BE_RESTARTED: Final = 100
"""Exit status of a Curio node that was asked, in Curio, to start anew."""
LONGEST_REASON: Final = 200


class Box:
    """One life of a box, from its start to the status with which it exits."""

    def __init__(self, settings: Settings, log: Log, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._log = log
        self._hook = Hook(settings.hook, poll=settings.poll, within=settings.post_within, log=log)
        self._commands = Commands({name: value for name, value in env.items() if name != HOOK}, log)
        self._work = Work(settings, self._commands, log)
        self._stage = "registered"
        self._fetched: float | None = None
        self._rate: float | None = None
        self._died_at = -math.inf

    def live(self) -> int:
        """Until it is ended, or comes to nothing; the status to exit with."""
        try:
            with contextlib.suppress(NoMoreWork):
                self._fetch()
                self._measure()
                self._prove()
            self._stop()
            return self._wait_to_be_destroyed()
        except Ended as end:
            self._log.say(f"ends, as signal {end.signal} asks")
            return 128 + end.signal
        except GaveUp as end:
            self._log.say(f"gives up: {end.reason}")
            self._stop()
            words = {**self._words(), "gave_up": self._log.one_line(end.reason)}
            self._hook.insist(words, is_over=lambda: self._commands.signal)
            return end.status
        finally:
            self._stop()

    # --- the way to the prover ----------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        self._enter("registered")
        for more_tries in reversed(range(FETCH_TRIES)):
            if not self._settings.fetch:
                return
            program = self._commands.start("fetch", self._settings.fetch)
            self._watch_fetch(program)
            self._commands.dismiss(program)
            if program.status == 0:
                self._fetched = 1.0
                return
            if not more_tries:
                raise GaveUp(NO_PARAMETERS, f"the parameters could not be fetched (status {program.status})")
            self._log.say(f"fetch ended with status {program.status}; it is tried again")
            self._pause(self._settings.poll)

    def _watch_fetch(self, program: Program) -> None:
        """Until it ends. Raises GaveUp where hardly a byte moves any more: it would be paid for and never be done."""
        settings = self._settings
        worth = settings.min_gb_per_minute * GB * settings.stall / 60
        progress = Progress(worth, settings.stall, time.monotonic())
        moved = Moved(program.pid)
        told_at, told_gb = time.monotonic(), _folder_gb(settings.params)
        while program.status is None:
            self._tick_before_work()
            now, gb = time.monotonic(), _folder_gb(settings.params)
            if settings.params_gb is not None:
                self._fetched = min(1.0, gb / settings.params_gb)
            if now - told_at >= BETWEEN_TELLING:
                speed = (gb - told_gb) / (now - told_at) * 60
                self._log.say(f"fetch: {gb:.1f} GB are here, {speed:.2f} GB/min")
                told_at, told_gb = now, gb
            if progress.stands_still(moved.count() + gb * GB, now):
                raise GaveUp(
                    NO_PARAMETERS,
                    f"the parameters stand still at {gb:.1f} GB: less than {settings.min_gb_per_minute:g} GB a minute"
                    f" for {settings.stall:g} s",
                )

    def _measure(self) -> None:
        settings = self._settings
        self._enter("params_ready")
        if not settings.bench:
            return
        self._rate = self._remembered_rate()
        if self._rate is None:
            self._rate = self._benchmark()
            self._remember(self._rate)
        self._log.say(f"this machine makes {self._rate:g} proofs an hour")
        self._enter("benchmarked")
        if self._rate < settings.min_rate:
            raise GaveUp(TOO_SLOW, f"{self._rate:g} proofs an hour are fewer than the {settings.min_rate:g} it needs")

    def _benchmark(self) -> float:
        rates: list[float] = []

        def hear(line: str) -> None:
            rate = rate_in(line)
            if rate is not None:
                rates[:] = [rate]

        self._start_daemon()
        program = self._commands.start("bench", self._settings.bench, on_line=hear)
        until = time.monotonic() + self._settings.bench_within
        while program.status is None:
            self._tick_before_work()
            dead = self._commands.dead()
            if dead is not None and dead is not program:
                raise GaveUp(NO_RATE, f"the {dead.name} died during the benchmark (status {dead.status})")
            if time.monotonic() > until:
                raise GaveUp(NO_RATE, f"the benchmark took more than {self._settings.bench_within:g} s")
        self._commands.dismiss(program)
        if program.status != 0:
            raise GaveUp(NO_RATE, f"the benchmark ended with status {program.status}")
        if not rates or rates[0] <= 0:
            raise GaveUp(NO_RATE, "the benchmark named no rate")
        return rates[0]

    def _remembered_rate(self) -> float | None:
        """What it measured before its container was started again: a box that boots anew is no other machine."""
        try:
            with open(self._settings.rate_file, encoding="ascii") as file:
                return _number(file.read(100).strip())
        except (OSError, ValueError):
            return None

    def _remember(self, rate: float) -> None:
        if self._settings.rate_file:
            try:
                with open(self._settings.rate_file, "w", encoding="ascii") as file:
                    file.write(f"{rate!r}\n")
            except OSError as error:
                self._log.say(f"cannot keep the rate ({error.strerror}); it is measured again after a restart")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick_before_work()

    def _tick_before_work(self, patience: float = LONGEST_WAIT) -> None:
        self._tick(patience)
        if self._hook.drain:
            raise NoMoreWork

    # --- at work ------------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Until it has drained."""
        self._tick_before_work(patience=0)
        self._start_daemon()
        prover = self._start_prover()
        while not (self._hook.drain and self._work.has_drained()):
            self._tick()
            dead = self._commands.dead()
            if dead is None:
                if self._stage != "proving" and prover.age() >= self._settings.poll:
                    self._enter("proving")
            elif self._hook.drain:
                self._log.say(f"the {dead.name} ended while it drained (status {dead.status})")
                return
            else:
                prover = self._start_again_after(dead)

    def _start_daemon(self) -> None:
        if self._settings.daemon and not self._commands.any_runs():
            self._commands.start("daemon", self._settings.daemon)

    def _start_prover(self) -> Program:
        self._work.begins()
        return self._commands.start("prover", self._settings.prove)

    def _start_again_after(self, dead: Program) -> Program:
        """Once; one that dies again soon has a trouble that no start will mend."""
        was_asked = dead.status == ASKS_TO_BE_RESTARTED and dead.age() > self._settings.settle
        if not was_asked:
            now = time.monotonic()
            if now - self._died_at <= self._settings.restart_window:
                raise GaveUp(PROVER_DIES, f"the {dead.name} died again (status {dead.status})")
            self._died_at = now
        self._log.say(f"the {dead.name} ended with status {dead.status}; all is started again")
        self._stop()
        self._start_daemon()
        return self._start_prover()

    def _stop(self) -> None:
        self._work.ends()
        self._commands.end_all(self._settings.end_within)

    def _wait_to_be_destroyed(self) -> NoReturn:
        """A container that exits could be started again, or pass for a failure; the owner destroys it."""
        self._log.say("has drained, and waits to be destroyed")
        self._hook.hurry()
        while True:
            self._tick()

    # --- one tick -----------------------------------------------------------------------------------------------------

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._hook.hurry()
        self._tick(patience=0)

    def _tick(self, patience: float = LONGEST_WAIT) -> None:
        """Wait for what comes next, for so many seconds at most; look and speak where it is time. Raises Ended."""
        next_at = min(self._work.due_at, self._hook.due_at)
        self._commands.wait(min(patience, next_at - time.monotonic()))
        if self._commands.signal:
            raise Ended(self._commands.signal)
        if time.monotonic() >= self._work.due_at:
            self._work.look()
        if time.monotonic() >= self._hook.due_at:
            self._hook.say(self._words())

    def _words(self) -> dict[str, Any]:
        """What is left out is as it was."""
        words: dict[str, Any] = {"stage": self._stage}
        at_hand = self._work.to_tell(self._hook.drain)
        if at_hand is not None:
            words["tasks"] = at_hand
        if self._fetched is not None:
            words["fetched"] = round(self._fetched, 3)
        if self._rate is not None:
            words["proofs_per_hour"] = self._rate
        if self._hook.drain and self._work.is_settled():
            words["draining"] = True
        return words


# --- proofs at hand ---------------------------------------------------------------------------------------------------

DRAIN_TRIES: Final = 5
MOST_TASKS: Final = 10_000


class Work:
    """How many proofs the prover has at hand, and whether any more can come.

    A prover is ended only when nothing is known to be at hand: Curio itself waits for no proof of the market. `due_at`
    (time.monotonic) is when to look again; never, while no prover runs.
    """

    def __init__(self, settings: Settings, commands: Commands, log: Log) -> None:
        self.due_at = math.inf
        self._settings = settings
        self._commands = commands
        self._log = log
        self._at_hand: int | None = None
        self._looked_at = -math.inf
        self._drain_from = math.inf
        self._drain_at = -math.inf
        self._drain_failures = 0
        self._takes_none_since = math.inf

    def begins(self) -> None:
        self.due_at = time.monotonic() + self._settings.poll

    def ends(self) -> None:
        self.due_at = math.inf

    def look(self) -> None:
        """A count that cannot be read any more is at least one: it may be proving."""
        self.due_at = time.monotonic() + self._settings.poll
        if not self._settings.status:
            return
        seen = self._count()
        if seen is not None:
            self._at_hand, self._looked_at = min(seen, MOST_TASKS), time.monotonic()
        elif self._at_hand is not None:
            self._at_hand = max(self._at_hand, 1)

    def _count(self) -> int | None:
        names = self._settings.task_names
        if not _is_address(self._settings.status):
            status, said = self._commands.run_briefly(self._settings.status)
            return tasks_in(said, names) if status == 0 else None
        try:
            status, said, _ = exchange(self._settings.status, None, self._settings.post_within, LARGEST_STATUS)
        except Exception:  # whatever goes wrong in looking, the prover goes on
            return None
        return tasks_in(said, names) if status == 200 else None

    def has_drained(self) -> bool:
        """Have the prover take no more work, and say whether it can be ended."""
        if self._drain_from == math.inf:
            self._log.say("is to drain: it takes no more work")
            self._drain_from = time.monotonic()
        if self._takes_none_since == math.inf and self._may_ask() and time.monotonic() >= self._drain_at:
            self._ask_prover_to_drain()
        return self._at_hand == 0 and self.is_settled()

    def _may_ask(self) -> bool:
        return bool(self._settings.drain) and self._drain_failures < DRAIN_TRIES

    def _ask_prover_to_drain(self) -> None:
        status, said = self._commands.run_briefly(self._settings.drain)
        if status == 0:
            self._takes_none_since = time.monotonic()
            return
        self._drain_failures += 1
        self._drain_at = time.monotonic() + self._settings.poll
        words = self._log.one_line(said.decode("utf-8", "replace"))
        self._log.say(f"the drain command does not work (status {status}): {words}")
        if not self._may_ask():
            self._log.say("drains without it: the prover is ended as soon as nothing is at hand")

    def is_settled(self) -> bool:
        """Whether the newest look is from when no further task could come. Curio may take one more after its cordon."""
        if self.due_at == math.inf:
            return True
        since = self._takes_none_since + self._settings.settle if self._may_ask() else self._drain_from
        return self._looked_at >= since

    def to_tell(self, drains: bool) -> int | None:
        """Until it is certain that no further one comes, a box that drains may have one more at hand than it sees."""
        if self.due_at == math.inf:
            return 0
        if self._at_hand is None or not drains or self.is_settled():
            return self._at_hand
        return max(self._at_hand, 1)


# --- what it speaks with ----------------------------------------------------------------------------------------------

LARGEST_ANSWER: Final = 16_384
LARGEST_STATUS: Final = 4_000_000
LONGEST_PAUSE: Final = 300.0
"""Seconds between two tries while nobody hears it: as long as it takes at most to be heard of again."""

NOT_IN_TIME: Final = "no answer in time"
UNKNOWN_HERE: Final = (401, 403, 404, 410)
ENOUGH_REFUSALS: Final = 3
"""In a row. One alone may be a proxy that has lost its way."""
LAST_TRIES: Final = 3


class Hook:
    """The owner's ear: what is said, when it is said again, and whether the answer was to drain.

    `due_at` (time.monotonic) is when there is something to say; never, where there is no address or nobody knows it.
    """

    def __init__(self, address: str, *, poll: float, within: float, log: Log) -> None:
        self.drain = False
        self.due_at = time.monotonic() if address else math.inf
        self._address = address
        self._poll = poll
        self._within = within
        self._log = log
        self._failures = 0
        self._refusals = 0
        self._told = ""

    def hurry(self) -> None:
        """There is news. Who is not heard at all need not hurry."""
        if not self._failures:
            self.due_at = min(self.due_at, time.monotonic()) if self._address else math.inf

    def say(self, words: Mapping[str, Any]) -> bool:
        """Whether it was heard."""
        status, trouble, may_come_after = self._post(words)
        if not trouble:
            if self._told:
                self._log.say("the owner hears again")
            self._failures, self._refusals, self._told = 0, 0, ""
            self.due_at = time.monotonic() + self._poll * random.uniform(0.9, 1.1)
            return True
        self._failures += 1
        self._refusals = self._refusals + 1 if status in UNKNOWN_HERE else 0
        self.due_at = time.monotonic() + pause(self._failures, self._poll, may_come_after, random.random())
        if self._refusals >= ENOUGH_REFUSALS:
            self._log.say(f"the owner does not know this box ({trouble}): it is silent from now on, and goes on")
            self._address, self.due_at = "", math.inf
        elif trouble != self._told:
            self._log.say(f"the owner does not hear ({trouble}); it is tried again")
            self._told = trouble
        return False

    def insist(self, words: Mapping[str, Any], *, is_over: Callable[[], object]) -> None:
        """For last words: a few tries in a row, for nothing comes after them."""
        for _ in range(LAST_TRIES):
            if not self._address or is_over() or self.say(words):
                return
            time.sleep(min(self._poll, 1))

    def _post(self, words: Mapping[str, Any]) -> tuple[int, str, float]:
        """The status, why it does not count as heard (empty where it does), and for how long not to come again."""
        try:
            body = json.dumps(words).encode()
            status, said, retry_after = exchange(self._address, body, self._within, LARGEST_ANSWER)
        except Exception as error:  # whatever goes wrong in talking, the prover goes on
            return 0, NOT_IN_TIME if isinstance(error, (TimeoutError, socket.timeout)) else type(error).__name__, 0
        if status != 200:
            return status, f"it answers {status}", _number(retry_after) or 0
        drain = drain_in(said)
        if drain is None:
            return status, "its answer makes no sense", 0
        self.drain = self.drain or drain
        return status, "", 0


def drain_in(said: bytes) -> bool | None:
    """None where it is no answer of the owner: that something answers at all does not mean that it was heard."""
    try:
        answer = json.loads(said)
    except ValueError:
        return None
    return answer["drain"] is True if isinstance(answer, dict) and "drain" in answer else None


def pause(failures: int, poll: float, may_come_after: float, luck: float) -> float:
    """Seconds until the next try. `luck`, from 0 to 1, keeps a whole fleet from coming back at once."""
    usual = min(poll * 2 ** min(failures, 20), LONGEST_PAUSE) * (0.5 + luck / 2)
    return max(usual, min(may_come_after, LONGEST_PAUSE))


def exchange(address: str, body: bytes | None, within: float, largest: int) -> tuple[int, bytes, str]:
    """One request and its answer within so many seconds, however slowly it comes; `body` makes it a post.

    Returns the status, as much of the answer as is wanted, and Retry-After. Follows no redirection: the token is for
    one server alone. Raises many things; a time-out is TimeoutError, in older versions of Python socket.timeout too.
    """
    parts = urlsplit(address)
    opened = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = opened(parts.hostname or "", parts.port, timeout=within)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with at_most(within), contextlib.closing(connection):
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(largest), response.headers.get("Retry-After", "")


@contextlib.contextmanager
def at_most(seconds: float) -> Generator[None, None, None]:
    """Raises TimeoutError here when they are over: a socket's own time-out begins anew with every byte."""

    def is_over(*_: object) -> None:
        raise TimeoutError(NOT_IN_TIME)

    before = signal.signal(signal.SIGALRM, is_over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- what it reads ----------------------------------------------------------------------------------------------------

_RATE: Final = re.compile(
    r"(?P<minute>[\d.]+(?:e[+-]?\d+)?)\s*proofs?\s*(?:/|per)\s*min"
    r"|(?P<hour>[\d.]+(?:e[+-]?\d+)?)\s*proofs?\s*(?:/|per)\s*h"
    r"|proofs_per_hour\W{1,4}(?P<named>[\d.]+(?:e[+-]?\d+)?)",
    re.IGNORECASE,
)


def rate_in(line: str) -> float | None:
    """Proofs an hour as a benchmark names them: `0.5 proofs/min`, `30 proofs/h`, `"proofs_per_hour": 30`."""
    found = _RATE.search(line)
    if found is None:
        return None
    if found["minute"] is not None:
        per_minute = _number(found["minute"])
        return None if per_minute is None else per_minute * 60
    return _number(found["hour"] if found["hour"] is not None else found["named"])


_ACTIVE: Final = re.compile(r'^curio_harmonytask_active_tasks\{[^}]*task_name="([^"]*)"[^}]*\}\s+(\S+)', re.MULTILINE)


def tasks_in(said: bytes, names: frozenset[str]) -> int | None:
    """Proofs at hand: by Curio's metrics those of its tasks that make proofs, by cuzk's status its jobs, or a number.

    None where it says none of these: what cannot be read is not zero.
    """
    text = said.decode("utf-8", "replace").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    if text.startswith("{"):
        return _jobs_in(text)
    counts = [(_number(value), name) for name, value in _ACTIVE.findall(text)]
    if not counts or any(value is None for value, _ in counts):
        return None
    return int(sum(value or 0 for value, name in counts if name in names))


def _jobs_in(text: str) -> int | None:
    """Of cuzk: those that wait, those that are not through, and what a worker is at."""
    try:
        status = cast("dict[str, Any]", json.loads(text))
        unfinished = {job["job_id"] for job in status["pipelines"] if job["partitions_done"] < job["total_partitions"]}
        worked_on = {worker["current_job"] for worker in status["gpu_workers"] if worker["state"] == "proving"}
        return len(unfinished | worked_on) + int(status["counters"]["queue_depth"])
    except (ValueError, KeyError, TypeError):
        return None


# --- whether a download goes on ---------------------------------------------------------------------------------------


class Progress:
    """Within every `window` seconds `worth` has to come."""

    def __init__(self, worth: float, window: float, now: float) -> None:
        self._worth = worth
        self._window = window
        self._mark: float | None = None
        self._since = now

    def stands_still(self, amount: float, now: float) -> bool:
        if self._mark is None or amount - self._mark >= self._worth:
            self._mark, self._since = amount, now
        return now - self._since > self._window


class Moved:
    """Bytes that the processes of a session have read and written, as the kernel counts them.

    The size of the files says less: some loaders reserve it before they begin, and to verify what came takes minutes.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._total = 0
        self._counted: dict[int, int] = {}

    def count(self) -> int:
        counts = {pid: _bytes_of(pid) for pid in _processes_of(self._session)}
        self._total += sum(max(0, count - self._counted.get(pid, 0)) for pid, count in counts.items())
        self._counted = counts
        return self._total


def _processes_of(session: int) -> list[int]:
    try:
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [pid for pid in processes if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _bytes_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            lines = [line.split(":") for line in file]
        return sum(int(value) for name, value in lines if name in ("rchar", "wchar"))
    except (OSError, ValueError):
        return 0


def _folder_gb(folder: str) -> float:
    """What is on the disk."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total / GB


# --- commands and their lines -----------------------------------------------------------------------------------------

COMMAND_WITHIN: Final = 20.0
"""Seconds for a command that is waited for: to drain, or to count tasks."""
LONGEST_LINE: Final = 4_096
READS_ON: Final = 2.0
"""Seconds for the last lines of a command: something that it left behind may hold its output open."""


class Commands:
    """All that was started and has not been dismissed, and the signals that this program gets.

    `signal` is the one that asks it to end, 0 as long as none has come.
    """

    def __init__(self, env: Mapping[str, str], log: Log) -> None:
        self.signal = 0
        self._env = env
        self._log = log
        self._programs: list[Program] = []
        self._bell = Bell()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _: object) -> None:
        """At once, whatever is being waited for; a second signal has no patience."""
        again, self.signal = self.signal, number
        for program in self._programs:
            if again:
                program.send(signal.SIGKILL)
            else:
                program.end()

    def start(self, name: str, command: str, on_line: Callable[[str], None] | None = None) -> Program:
        program = Program(name, command, self._env, self._log, on_line)
        self._programs.append(program)
        return program

    def any_runs(self) -> bool:
        return any(program.status is None for program in self._programs)

    def dead(self) -> Program | None:
        """The first that has ended and was not dismissed."""
        return next((program for program in self._programs if program.status is not None), None)

    def wait(self, seconds: float) -> None:
        """Until a signal comes or a command ends, but no longer than that."""
        self._bell.wait(seconds)
        self._bury_the_dead()

    def _bury_the_dead(self) -> None:
        """Ours, and what they left behind: process 1 inherits every orphan."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for program in self._programs:
                if program.pid == pid:
                    program.has_ended(os.waitstatus_to_exitcode(status))

    def run_briefly(self, command: str) -> tuple[int | None, bytes]:
        """Its exit status, None where it did not end in time, and the beginning of what it wrote."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(COMMAND_WITHIN)
            except subprocess.TimeoutExpired:
                status = None
            _signal_session(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            return status, output.read(LARGEST_STATUS)

    def dismiss(self, program: Program) -> None:
        """It has ended, or has to; what it left behind is in the way."""
        program.send(signal.SIGKILL)
        program.finish_reading()
        self._programs.remove(program)

    def end_all(self, within: float) -> None:
        """In their own time, but no longer than `within` seconds."""
        until = time.monotonic() + within
        for program in self._programs:
            program.end()
        while self.any_runs() and time.monotonic() < until:
            self.wait(LONGEST_WAIT)
        for program in list(self._programs):
            self.dismiss(program)


class Program:
    """A command with all that it starts: a session of its own, so that a signal reaches everything in it.

    `status` is None while it runs, and negative where a signal ended it; whoever buries the dead says so.
    """

    def __init__(
        self, name: str, command: str, env: Mapping[str, str], log: Log, on_line: Callable[[str], None] | None
    ) -> None:
        self.name = name
        self._started_at = time.monotonic()
        self._log = log
        self._on_line = on_line
        self._is_asked_to_end = False
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def has_ended(self, status: int) -> None:
        self._process.returncode = status

    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started_at

    def end(self) -> None:
        """Ask it, once: a second time many programs take for haste."""
        if not self._is_asked_to_end:
            self._is_asked_to_end = True
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        _signal_session(self.pid, number)

    def finish_reading(self) -> None:
        self._reader.join(READS_ON)

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            while True:
                chunk = output.readline(LONGEST_LINE)
                if not chunk:
                    return
                line = chunk.decode("utf-8", "replace").rstrip("\r\n")
                if self._on_line is not None:
                    self._on_line(line)
                self._log.pass_on(self.name, line)
                while chunk and not chunk.endswith(b"\n"):  # the rest of a line that is too long
                    chunk = output.readline(LONGEST_LINE)


def _signal_session(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class Bell:
    """Rings when a signal comes: a command has ended, or this program is to end."""

    def __init__(self) -> None:
        self._heard, rings = os.pipe()
        for end in (self._heard, rings):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _ignore)  # without a handler it would not ring
        signal.set_wakeup_fd(rings, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> None:
        if select.select([self._heard], [], [], max(0.0, seconds))[0]:
            os.read(self._heard, 4096)


def _ignore(*_: object) -> None: ...


MOST_AT_ONCE: Final = 262_144
PER_SECOND: Final = 1_024
"""Letters of the commands' lines: some dozens of MB a day, on a disk that fills for good."""
GOES_ON_AT: Final = 16_384
"""After too much came, so many letters are saved up first: else every single line would have a gap before it."""
SHORTEST_SECRET: Final = 8


class Log:
    """Lines for whoever reads the log of this box, without the token in any of them."""

    def __init__(self, hook: str, now: Callable[[], float] = time.monotonic) -> None:
        token = hook.rpartition("/")[2]
        self._secrets = [secret for secret in (hook, token) if len(secret) >= SHORTEST_SECRET]
        self._now = now
        self._lock = threading.Lock()
        self._allowance: float = MOST_AT_ONCE
        self._filled_at = now()
        self._left_out = 0

    def say(self, text: str) -> None:
        self._write("box", text)

    def pass_on(self, name: str, line: str) -> None:
        """A line of a command. What is too much is left out, and how much it was is said."""
        with self._lock:
            now = self._now()
            self._allowance = min(MOST_AT_ONCE, self._allowance + (now - self._filled_at) * PER_SECOND)
            self._filled_at = now
            if self._allowance < (GOES_ON_AT if self._left_out else len(line)):
                self._left_out += 1
                return
            self._allowance -= len(line) + 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._write("box", f"{left_out} lines of the commands were left out")
        self._write(name, line)

    def one_line(self, text: str) -> str:
        """Its beginning, without the secrets."""
        return " ".join(self._without_secrets(text).split())[:LONGEST_REASON]

    def _write(self, name: str, text: str) -> None:
        now = datetime.now(timezone.utc)
        line = f"{now:%Y-%m-%dT%H:%M:%SZ} {name}: {self._without_secrets(text)}\n"
        with contextlib.suppress(OSError), self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def main() -> int:
    cast("Any", sys.stdout).reconfigure(errors="replace")
    log = Log(os.environ.get(HOOK, "").strip())
    try:
        return Box(Settings.of(os.environ), log, os.environ).live()
    except GaveUp as end:
        log.say(f"cannot begin: {end.reason}")
        return end.status
    except Exception:
        for line in traceback.format_exc().splitlines():
            log.say(line)
        return OWN_FAULT


if __name__ == "__main__":
    sys.exit(main())
