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

import psycopg

from tests.postgres import plain, temporary_folder
from tests.stack.trees import Tree, ready

STARTS = 12


def main() -> None:
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", "--scenario", "idle", settings={}) as tree:
        seconds = sorted(run_now(tree) for _ in range(STARTS))[:]
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
    """Seconds from the creation of a flow run to the opening of its run."""
    with tree.api() as api:
        deployment = api.get("/deployments/name/agent-cycle/main").json()["id"]
        asked = datetime.now(UTC)
        made = api.post(f"/deployments/{deployment}/create_flow_run", json={"state": {"type": "SCHEDULED"}}).json()
        opened = until_opened(tree, made["id"])
        while api.get(f"/flow_runs/{made['id']}").json()["state_type"] not in {"COMPLETED", "FAILED", "CRASHED"}:
            time.sleep(0.2)
    return (opened - asked).total_seconds()


def until_opened(tree: Tree, flow_run_id: str) -> datetime:
    with psycopg.connect(plain(tree.runtime.database_url), autocommit=True) as database:
        while True:
            row = database.execute("SELECT opened_at FROM run WHERE flow_run_id = %s", [flow_run_id]).fetchone()
            if row:
                return row[0]
            time.sleep(0.02)


if __name__ == "__main__":
    main()
