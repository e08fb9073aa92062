"""What a run costs by itself: wall and CPU seconds without the time of model, provider and demand.

    make bench-run

A manual run that asks the model once and changes nothing, on the simulated world with a durable database. `beside` has
the same runs with their simulated neighbours included. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import migrate
from fleet_agent.store.embedded import ensure_running
from tests.postgres import temporary_folder
from tests.world import Installation, installation

RUNS = 40


@dataclass
class Stopwatch:
    """Wall and CPU seconds while at least one call to a neighbour is under way: they are asked side by side."""

    wall: float = 0.0
    cpu: float = 0.0
    under_way: int = 0
    _began: tuple[float, float] = (0.0, 0.0)

    def __enter__(self) -> None:
        if self.under_way == 0:
            self._began = (time.perf_counter(), time.process_time())
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1
        if self.under_way == 0:
            wall, cpu = self._began
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu


class Timed:
    """A port whose calls are timed."""

    def __init__(self, port: object, watch: Stopwatch) -> None:
        self._port = port
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)
        return self._timed(call) if asyncio.iscoroutinefunction(call) else call

    def _timed(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timed(*args: Any, **kwargs: Any) -> Any:
            with self._watch:
                return await call(*args, **kwargs)

        return timed


async def main() -> None:
    with temporary_folder() as folder, ensure_running(folder) as server:
        server.create_database("bench")
        migrate.upgrade(server.url("bench"))
        async with installation(server.url("bench"), scenario=IDLE) as fleet:
            samples = [await sample(fleet) for _ in range(RUNS)][5:]
    whole, own, cpu = (sorted(figures) for figures in zip(*samples, strict=True))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        json.dumps(
            {
                "p50": quantile(own, 50),
                "p95": quantile(own, 95),
                "cpu_p50": quantile(cpu, 50),
                "cpu_p95": quantile(cpu, 95),
                "n": len(own),
                "beside": {"with_simulated_neighbours_p50": quantile(whole, 50), "p95": quantile(whole, 95)},
            }
        )
    )


async def sample(fleet: Installation) -> tuple[float, float, float]:
    """Seconds of one run: the whole, its own wall time, its own CPU time in this process."""
    watch = Stopwatch()
    ports = fleet.ports
    fleet.ports = replace(
        ports,
        market=Timed(ports.market, watch),
        model=Timed(ports.model, watch),
        demand=Timed(ports.demand, watch),
    )
    wall, cpu = time.perf_counter(), time.process_time()
    await fleet.run()
    whole, whole_cpu = time.perf_counter() - wall, time.process_time() - cpu
    fleet.ports = ports
    return whole, whole - watch.wall, whole_cpu - watch.cpu


def quantile(figures: list[float], percent: int) -> float:
    return round(statistics.quantiles(figures, n=100)[percent - 1], 4)


if __name__ == "__main__":
    asyncio.run(main())
