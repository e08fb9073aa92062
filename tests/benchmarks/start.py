"""How long a person waits: from the commit of an event to the first line of the run that answers it.

    make bench-start

An idle tree (a demo at business speed 1, so that no heartbeat comes between), one event after the other: the bell hears
of it, Prefect's automation answers, the resident worker begins the run. `beside` has the same through Prefect's stock
process worker at its defaults, with a pool and a deployment of its own, and its flow run is made at the commit: what
the bell and the automation need is not counted against it. The first line is the opening of the run's row, by the
database's clock. `hops` has when, in the median, each station on the way was reached, in seconds since the commit; what
is slow stands out whatever the machine. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from prefect.workers.process import ProcessWorker

from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.settings import Settings
from fleet_agent.stack import environments
from fleet_agent.store.database import open_database
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.installation import read_clock
from tests.benchmarks.tree import until_opened
from tests.postgres import temporary_folder
from tests.stack.trees import Tree, ready

TRIES = 32
TRIES_BESIDE = 10
"""Each takes some fifteen seconds."""

STOCK = "stock"

UNTIL_EVENTS_ARE_KEPT = 7.0
"""Seconds: Prefect's server writes them down every five."""


@dataclass(frozen=True)
class Try:
    committed: datetime
    opened: datetime
    flow_run_id: str

    @property
    def seconds(self) -> float:
        return self.since_commit(self.opened)

    def since_commit(self, then: datetime) -> float:
        return (then - self.committed).total_seconds()


def main() -> None:
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", "--scenario", "idle", settings={}) as tree:
        try_once(tree, "main")  # the first run of a process makes its connections
        ours = [try_once(tree, "main") for _ in range(TRIES)]
        on_the_way = hops(tree, ours)
        with stock_worker(tree):
            try_once(tree, STOCK)
            stock = [try_once(tree, STOCK) for _ in range(TRIES_BESIDE)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        json.dumps(
            {"name": "start", **figures(ours), "hops": on_the_way, "beside": {"stock_process_worker": figures(stock)}}
        )
    )


def try_once(tree: Tree, fleet: str) -> Try:
    """From the commit of an event to the opening of the run that answers it; the tree is idle afterwards."""
    with tree.api() as api:
        deployment = api.get(f"/deployments/name/agent-cycle/{fleet}").raise_for_status().json()["id"]
        committed = commit_event(tree, fleet)
        if fleet == STOCK:
            start_run(api, deployment, fleet)
        opened = until_opened(tree, "fleet = %s AND opened_at >= %s", fleet, committed)
    tree.until_idle(deployment)
    time.sleep(0.5)  # so that the worker has done with it
    return Try(committed, opened.at, opened.flow_run_id)


def commit_event(tree: Tree, fleet: str) -> datetime:
    """A message for the agent; returns when it was committed (real time, which is business time here)."""
    database = open_database(tree.runtime.database_url)
    try:
        now = read_clock(database).now()
        with database.shared(fleet) as tx:
            post(tx, fleet, Post(kind=Kind.MESSAGE, source="bench", text="How are we doing?"), now=now)
        return datetime.now(UTC)
    finally:
        database.close()


def start_run(api: httpx.Client, deployment: str, fleet: str) -> None:
    run = {"parameters": {"fleet": fleet, "trigger": Trigger.EVENT}, "state": {"type": "SCHEDULED"}}
    api.post(f"/deployments/{deployment}/create_flow_run", json=run).raise_for_status()


def hops(tree: Tree, tries: Sequence[Try]) -> dict[str, float]:
    """The median of each station: the bell rings, the flow run is made, a worker takes it, Prefect begins it."""
    time.sleep(UNTIL_EVENTS_ARE_KEPT)
    reached: dict[str, list[float]] = {"rung": [], "made": [], "Pending": [], "Running": []}
    with tree.api() as api:
        for each in tries:
            if (rung := first_ring(api, each)) is not None:
                reached["rung"].append(each.since_commit(rung))
            flow_run = api.get(f"/flow_runs/{each.flow_run_id}").json()
            reached["made"].append(each.since_commit(datetime.fromisoformat(flow_run["created"])))
            for state in api.get("/flow_run_states/", params={"flow_run_id": each.flow_run_id}).json():
                if state["name"] in reached:
                    reached[state["name"]].append(each.since_commit(datetime.fromisoformat(state["timestamp"])))
    return {station.lower(): round(statistics.median(seconds), 3) for station, seconds in reached.items() if seconds}


def first_ring(api: httpx.Client, each: Try) -> datetime | None:
    """None where something else opened the run that took the event: a heartbeat, or the bell itself."""
    wanted = {
        "event": {"prefix": ["fleet-agent.doorbell."]},
        "occurred": {"since": each.committed.isoformat(), "until": each.opened.isoformat()},
        "order": "ASC",
    }
    found = api.post("/events/filter", json={"filter": wanted, "limit": 1}).json()["events"]
    return datetime.fromisoformat(found[0]["occurred"]) if found else None


@contextmanager
def stock_worker(tree: Tree) -> Generator[None]:
    """Prefect's own process worker as anybody starts it, and a deployment of the same flow on its pool."""
    with tree.api() as api:
        template = ProcessWorker.get_default_base_job_template()
        api.post("/work_pools/", json={"name": STOCK, "type": "process", "base_job_template": template})
        ours = api.get("/deployments/name/agent-cycle/main").json()
        deployment = {
            "name": STOCK,
            "flow_id": ours["flow_id"],
            "entrypoint": ours["entrypoint"],
            "work_pool_name": STOCK,
            "pull_steps": [],
            "parameters": {"fleet": STOCK},
        }
        api.post("/deployments/", json=deployment).raise_for_status()
    settings = Settings().model_copy(update=tree.runtime.settings())
    environment = environments.of_worker(tree.runtime, settings)
    del environment["PREFECT_WORKER_QUERY_SECONDS"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", STOCK],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(30)


def figures(tries: Sequence[Try]) -> dict[str, Any]:
    seconds = [each.seconds for each in tries]
    p50, p95 = (round(statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1], 3) for percent in (50, 95))
    return {"p50": p50, "p95": p95, "max": round(max(seconds), 3), "n": len(seconds)}


if __name__ == "__main__":
    main()
