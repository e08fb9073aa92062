"""What boxes tell their owner: each posts how far it is to the address in its environment, and obeys the answer.

    POST $FLEET_BOX_HOOK  {"stage": "proving", "tasks": 1, "proofs_per_hour": 31.5}  →  {"drain": false}

As a program on a real box would, it goes on while nobody answers, and tries again the next time.
"""

import asyncio
from datetime import timedelta
from typing import Any

import httpx

from fleet_agent.sim.boxes import proofs_per_hour, stage
from fleet_agent.sim.demand import ProofQueue
from fleet_agent.sim.market import Instance, Market

HOOK = "FLEET_BOX_HOOK"

BETWEEN_REPORTS = timedelta(seconds=15)
"""Business time; a program on a real box may take longer."""


async def keep_reporting(market: Market, queue: ProofQueue, *, speed: float) -> None:
    """Until it is cancelled. `speed`: business seconds per real second."""
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while True:
            await report(market, queue, client)
            await asyncio.sleep(BETWEEN_REPORTS.total_seconds() / speed)


async def report(market: Market, queue: ProofQueue, client: httpx.AsyncClient) -> None:
    """Every box that runs says once how far it is; one that is told to drain is given no more proofs."""
    for box in market.instances():
        words = _words(market, queue, box)
        if words is None or HOOK not in box.order.env:
            continue
        try:
            answer = await client.post(box.order.env[HOOK], json=words)
        except (httpx.HTTPError, httpx.InvalidURL):
            continue
        if _says_drain(answer):
            queue.no_more(box.id)


def _words(market: Market, queue: ProofQueue, box: Instance) -> dict[str, Any] | None:
    match stage(market, box, market.clock.now()):
        case "benchmarking":
            return {"stage": "params_ready", "tasks": 0}
        case "proving":
            return {
                "stage": "proving",
                "tasks": queue.at_hand(box.id),
                "proofs_per_hour": proofs_per_hour(box.machine),
            }
        case _:
            return None


def _says_drain(answer: httpx.Response) -> bool:
    try:
        return answer.is_success and answer.json()["drain"] is True
    except (ValueError, KeyError, TypeError):
        return False
