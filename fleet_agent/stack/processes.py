"""Child processes that end when they should: one process group and one log file each.

A child is started by `begin`, is ready when its own sign says so, and is ended by `stop`: asked first, killed when it
does not end in time. `Guardian` ends the children of a parent that was killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from fleet_agent.errors import FleetAgentError
from fleet_agent.stack import orphans

LARGEST_LOG = 5_000_000
"""Bytes of a log from which the next start begins a new one and keeps this one as the only older one."""


READY_LOOK = 0.1
"""Seconds between two looks whether a process is ready."""

LEFTOVERS_MAY_TAKE = timedelta(seconds=5)
"""What a dead process left in its group is asked to end, so that it can still tell Prefect, and killed after this."""


@dataclass(frozen=True)
class Command:
    """What to start.

    is_ready: asked again and again with the (real) time of the start; None for what is done when it has ended.
    may_take_to_end: from SIGTERM on.
    begins_anew: its end with 0 is no death but the wish to be started again.
    tries: how often it is started before it counts as one that cannot.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    is_ready: Callable[[datetime], Awaitable[bool]] | None
    may_take_to_start: timedelta
    may_take_to_end: timedelta
    begins_anew: bool = False
    tries: int = 1


async def begin(
    command: Command,
    log_dir: Path,
    guardian: Guardian,
    *,
    begun: Callable[[Process], object],
    tell: Callable[[str], object],
) -> None:
    """Start it and wait until it is ready, as often as it may be tried. Raises FleetAgentError for the last try.

    begun: is told of each process before it is waited for, to end it whatever becomes of the waiting.
    """
    for tries_left in reversed(range(command.tries)):
        process = await Process.start(command, log_dir, guardian)
        begun(process)
        try:
            return await process.until_ready()
        except FleetAgentError as error:
            if not tries_left:
                raise
            tell(f"{error}; starting it once more")
            await process.stop(hurry=asyncio.Event())


class Process:
    """One running child. Its process group has its number, for it leads a session of its own."""

    def __init__(self, command: Command, process: asyncio.subprocess.Process, log: Path, guardian: Guardian) -> None:
        self.command = command
        self.pid = process.pid
        self.log = log
        self._process = process
        self._guardian = guardian
        self._started_at = datetime.now(UTC)
        self._end = asyncio.create_task(self._end_with_leftovers())

    @classmethod
    async def start(cls, command: Command, log_dir: Path, guardian: Guardian) -> Self:
        log = log_dir / f"{command.name.lower().replace(' ', '-')}.log"
        if log.exists() and log.stat().st_size > LARGEST_LOG:
            log.rename(log.with_suffix(".log.1"))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command.arguments,
                env=command.environment,
                cwd=command.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
            )
        guardian.began(process.pid)
        return cls(command, process, log, guardian)

    async def until_ready(self) -> None:
        """Raises FleetAgentError if it fails instead, or takes longer than it may."""
        try:
            async with asyncio.timeout(self.command.may_take_to_start.total_seconds()):
                if self.command.is_ready is None:
                    await self.until_ended()
                else:
                    await self._until(self.command.is_ready)
        except TimeoutError as error:
            patience = self.command.may_take_to_start.total_seconds()
            raise FleetAgentError(
                f"{self.command.name} was not ready within {patience:.0f} s", f"its log: {self.log}"
            ) from error
        code = self._process.returncode
        if code or (code == 0 and self.command.is_ready is not None):
            raise self.failure()

    async def _until(self, is_ready: Callable[[datetime], Awaitable[bool]]) -> None:
        while self._process.returncode is None and not await is_ready(self._started_at):  # noqa: ASYNC110
            await asyncio.sleep(READY_LOOK)

    async def until_ended(self) -> None:
        """Until it has ended, and with it what it left in its group: a run outlives a killed worker."""
        await asyncio.shield(self._end)

    async def _end_with_leftovers(self) -> None:
        await self._process.wait()
        deadline = time.monotonic() + LEFTOVERS_MAY_TAKE.total_seconds()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                await asyncio.sleep(0.05)
            os.killpg(self.pid, signal.SIGKILL)
        self._guardian.ended(self.pid)

    @property
    def wants_to_begin_anew(self) -> bool:
        return self.command.begins_anew and self._process.returncode == 0

    def failure(self) -> FleetAgentError:
        """Why an ended process ended, as far as it said so: its last words."""
        return FleetAgentError(
            f"{self.command.name} ended ({_exit(self._process.returncode)}): {last_words(self.log)}",
            f"its log: {self.log}",
        )

    async def stop(self, hurry: asyncio.Event) -> None:
        """Ask it to end, and kill the whole group when it may not take longer, or when `hurry` is set."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait(
            {self._end, hurried},
            timeout=self.command.may_take_to_end.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurried.cancel()
        if not self._end.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self.until_ended()


class Guardian:
    """The parent's end of the pipe to `orphans.py`. Leaving the context lets it go: by then nothing is left to end."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 (our own file)
            [sys.executable, "-I", orphans.__file__],
            env={},  # it needs to know nothing
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def began(self, group: int) -> None:
        self._say(f"+{group}\n")

    def ended(self, group: int) -> None:
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it: nothing to do about that here
            self._process.stdin.write(line.encode())


def last_words(log: Path) -> str:
    """The line of a log that says best why its process ended: its last error, or else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return next(reversed(errors or lines), "it said nothing")


def _exit(code: int | None) -> str:
    return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
