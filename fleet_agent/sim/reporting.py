"""What boxes tell their owner: each posts how far it is to the address in its environment, and obeys the answer.

    POST $FLEET_BOX_HOOK  {"stage": "proving", "tasks": 1, "proofs_per_hour": 31.5}  →  {"drain": false}

As a program on a real box would, it goes on while nobody answers, and tries again the next time.
"""

import asyncio
from datetime import timedelta
from typing import Any

import httpx

from fleet_agent.sim.boxes import proofs_per_hour, stage, way
from fleet_agent.sim.demand import ProofQueue
from fleet_agent.sim.market import Instance, Market

HOOK = "FLEET_BOX_HOOK"

BETWEEN_REPORTS = timedelta(seconds=15)
"""Business time; a program on a real box may take longer."""

FETCHED = 0.5
MEASURED = 0.75
"""Shares of the way from its start to its first proof at which a box has its parameters, and has measured itself."""


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
    now = market.clock.now()
    match stage(market, box, now):
        case "benchmarking":
            return _on_its_way(box, way(market, box, now)) | {"tasks": 0}
        case "proving":
            drains = {"draining": True} if queue.takes_no_more(box.id) else {}
            return _measured(box, "proving") | {"tasks": queue.at_hand(box.id)} | drains
        case _:
            return None


def _on_its_way(box: Instance, way: float) -> dict[str, Any]:
    """First it fetches its parameters, then it measures itself, then it starts its prover."""
    if way < FETCHED:
        return {"stage": "registered", "fetched": round(way / FETCHED, 3)}
    if way < MEASURED:
        return {"stage": "params_ready", "fetched": 1.0}
    return _measured(box, "benchmarked")


def _measured(box: Instance, stage: str) -> dict[str, Any]:
    return {"stage": stage, "fetched": 1.0, "proofs_per_hour": proofs_per_hour(box.machine)}


def _says_drain(answer: httpx.Response) -> bool:
    try:
        return answer.is_success and answer.json()["drain"] is True
    except (ValueError, KeyError, TypeError):
        return False
