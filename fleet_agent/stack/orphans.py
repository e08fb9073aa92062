"""Ends what a process tree leaves behind when the process at its root is killed and cannot clean up.

It reads from a pipe which only the root holds open: `+PGID` when a process group begins, `-PGID` when it has ended.
When the pipe closes, the root is gone; what then still runs is ended, the last started first. After an orderly stop
there is nothing left to end. Only the standard library, so that it is there before anything else and costs little:

    python -I fleet_agent/stack/orphans.py
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

PATIENCE_SECONDS = 10.0


def read_groups(lines: Iterable[str]) -> list[int]:
    """The process groups that had begun and not ended when the lines stopped, in the order in which they began."""
    groups: list[int] = []
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.append(group)
        elif group in groups:
            groups.remove(group)
    return groups


def end(groups: list[int]) -> None:
    """Ask each group to end, the last first; after PATIENCE_SECONDS it is killed."""
    for group in reversed(groups):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(0.05)
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    # Whoever ends the root with its whole group, a terminal for instance, must not end this one first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end(read_groups(sys.stdin))


if __name__ == "__main__":
    main()
