"""The same cases with a real `kill -9`: what a process of its own leaves behind, and what becomes of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

from tests.chaos.cases import Case, What
from tests.chaos.scene import Scene
from tests.chaos.stories import AGENT, Story
from tests.chaos.telling import Teller, Told
from tests.chaos.victim import Orders
from tests.contract.serving import serving

LONGEST_LIFE = 120
"""Seconds; a victim that lives longer has missed its point, on whatever machine."""


async def tell_killed(teller: Teller, case: Case) -> Told:
    """One case of `AGENT` in which a process is killed for good."""
    assert (case.story, case.what) == (AGENT.name, What.KILLED), case
    return await teller.tell(case, interrupt=_killed_for_good)


async def _killed_for_good(scene: Scene, _: Story, case: Case) -> bool:
    with serving(scene.fleet.door) as url:
        orders = Orders(
            database_url=scene.database_url,
            provider_url=url,
            now=scene.fleet.time.now(),
            idle=scene.idle,
            busy=scene.busy,
            at=case.point.number,
            after=case.point.after,
        )
        victim = [sys.executable, "-m", "tests.chaos.victim", orders.model_dump_json()]
        ended = await asyncio.to_thread(subprocess.run, victim, timeout=LONGEST_LIFE, capture_output=True, text=True)
    if ended.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"the victim ended by itself ({ended.returncode}): {ended.stderr[-1000:]}")
    return ended.returncode == -signal.SIGKILL
