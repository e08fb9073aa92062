"""What a signal means: first what comes before the end, then the end, then haste."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import pytest

from fleet_agent.stack.tree import _AskedToEnd, _signals  # pyright: ignore[reportPrivateUsage]


async def told(signals: int, *, before_the_end: bool) -> Sequence[str]:
    """What happens to a body under so many signals, one after the other."""
    seen: list[str] = []
    hurry = asyncio.Event()

    async def wind_up() -> None:
        seen.append("winding up")
        await asyncio.Event().wait()

    async def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10):  # until whoever answers has had a turn
            await asyncio.sleep(0)

    with suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as watchers:
            with _signals(watchers, hurry) as answers:
                if before_the_end:
                    answers.insert(0, wind_up)
                try:
                    for _ in range(signals):
                        await signalled()
                    seen.append("the body goes on")
                except asyncio.CancelledError:
                    seen.append("the body was ended")
                    raise
                finally:
                    answers.clear()
                    with suppress(asyncio.CancelledError):
                        await signalled()
                    seen.extend(["hurry"] if hurry.is_set() else [])
                    if "the body was ended" not in seen:
                        raise _AskedToEnd
    return seen


@pytest.mark.parametrize(
    ("signals", "before_the_end", "seen"),
    [
        (1, False, ["the body was ended", "hurry"]),
        (1, True, ["winding up", "the body goes on", "hurry"]),
        (2, True, ["winding up", "the body was ended", "hurry"]),
    ],
)
async def test_each_signal_means_the_next_thing(signals: int, before_the_end: bool, seen: Sequence[str]) -> None:
    assert await told(signals, before_the_end=before_the_end) == seen
