"""What a whole tree weighs, and how long `run-now` takes to the first line of its run.

    make bench-tree

Starts a demo at business speed 1, so that no heartbeat comes between, asks for runs one after the other, and reads the
times back: from the answer of Prefect's API to `run-now` until the run's row is opened. Memory is the resident set of
each process at the end. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from typing import LiteralString, NamedTuple

import httpx
import psycopg
from psycopg.sql import SQL

from tests.postgres import plain, temporary_folder
from tests.stack.trees import OVER, Tree, ready
from tests.stack.waiting import until

STARTS = 12

FOR_EVER = 120.0
"""Seconds after which a run that does not begin, or does not end, never will."""


def main() -> None:
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", "--scenario", "idle", settings={}) as tree:
        seconds = sorted(run_now(tree) for _ in range(STARTS))
        memory = {
            name: round(sum(p.memory_info().rss for p in (top, *top.children(recursive=True))) / 1e6)
            for name, top in tree.processes().items()
        }
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        json.dumps(
            {
                "run_now_to_first_line": {
                    "p50": round(statistics.median(seconds), 2),
                    "max": round(max(seconds), 2),
                    "n": len(seconds),
                },
                "memory_mb": memory,
            }
        )
    )


def run_now(tree: Tree) -> float:
    """Seconds from the creation of a flow run to the opening of its run; returns when it is over."""
    with tree.api() as api:
        asked = datetime.now(UTC)
        made = create_flow_run(api, trigger="manual")
        opened = until_opened(tree, "flow_run_id = %s", made)
        until_over(api, made)
    return (opened.at - asked).total_seconds()


def create_flow_run(api: httpx.Client, trigger: str) -> str:
    """Its id."""
    deployment = api.get("/deployments/name/agent-cycle/main").json()["id"]
    run = {"parameters": {"trigger": trigger}, "state": {"type": "SCHEDULED"}}
    return api.post(f"/deployments/{deployment}/create_flow_run", json=run).json()["id"]


def until_over(api: httpx.Client, flow_run: str) -> None:
    until(lambda: api.get(f"/flow_runs/{flow_run}").json()["state_type"] in OVER, seconds=FOR_EVER)


class Opened(NamedTuple):
    """A run, when it was opened."""

    at: datetime
    flow_run_id: str


def until_opened(tree: Tree, which: LiteralString, *values: object) -> Opened:
    """The oldest run that `which`, a condition on its row, is true of; a broken tree is not waited for."""
    opened = SQL("SELECT opened_at, flow_run_id FROM run WHERE {} ORDER BY run_id LIMIT 1").format(SQL(which))
    with psycopg.connect(plain(tree.runtime.database_url), autocommit=True) as database:
        deadline = time.monotonic() + FOR_EVER
        while time.monotonic() < deadline:
            row = database.execute(opened, values).fetchone()
            if row:
                return Opened(*row)
            time.sleep(0.02)
    raise AssertionError(f"no run of {values} was opened within {FOR_EVER:.0f} s:\n{tree.output.read_text()}")


if __name__ == "__main__":
    main()
