"""Waiting for what other processes do: by looking, with a deadline that only a broken program reaches.

On a machine that does much else, everything is slower: PATIENCE=3 waits three times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

import psutil

PATIENCE = float(os.environ.get("PATIENCE", "1"))


A_COMMAND = 1.0
"""Seconds between two looks that each start a program: it takes a second of the processor itself."""


def until(
    holds: Callable[[], object],
    *,
    seconds: float = 60,
    every: float = 0.05,
    picture: Callable[[], object] | None = None,
) -> None:
    """Look until `holds()` is true; fail after `seconds`, or so much later as the machine needs, and show what
    `picture` finds then."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {picture() if picture else holds}"
        time.sleep(every)


def alive(processes: Iterable[psutil.Process]) -> list[str]:
    """The command lines of those that still run."""
    return [
        _shown(process) for process in processes if process.is_running() and _status(process) != psutil.STATUS_ZOMBIE
    ]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid}"
