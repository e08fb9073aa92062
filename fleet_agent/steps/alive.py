"""Signs of life: while a run goes on, its row says every few seconds that somebody still carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from fleet_agent.domain.run import Run
from fleet_agent.errors import FleetAgentError, StandDown
from fleet_agent.ports import Ports

LIVENESS = timedelta(seconds=5)
"""Real time between two signs of life; a run that is silent for 20 s counts as dead."""


@asynccontextmanager
async def signs_of_life(run: Run, ports: Ports) -> AsyncGenerator[None]:
    """Renew `seen_at` beside the run. What it finds out, the run learns from its own next fenced call."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(LIVENESS.total_seconds())
            try:
                await ports.journal.stay_alive(run)
            except StandDown:
                return
            except FleetAgentError:
                continue  # the database may be back at the next sign, and 20 s have not passed

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await renewing
