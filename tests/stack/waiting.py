"""Waiting for what other processes do: by looking, with a deadline that only a broken program reaches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil


def until(holds: Callable[[], object], *, seconds: float = 60) -> None:
    """Look until `holds()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {holds}"
        time.sleep(0.05)


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
