"""What the resident worker becomes over two hundred runs, and what an idle tree costs.

    make bench-worker          RUNS=400 for more

Cheap runs (nothing has changed, nobody is asked) one after the other in one worker of a demo at speed 1. A trend shows
in `mb_per_100_runs`, the slope over the second half, when caches are warm. Idle CPU is that of the whole tree over the
given seconds, in percent of one core. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time

from tests.benchmarks.tree import create_flow_run, until_over
from tests.postgres import temporary_folder
from tests.stack.trees import Tree, ready

RUNS = int(os.environ.get("RUNS", "200"))
LOOK_EVERY = 10
IDLE_SECONDS = 40


def main() -> None:
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", "--scenario", "idle", settings={}) as tree:
        idle_before = idle_cpu(tree)
        worker = tree.processes()["worker"]
        sizes: list[tuple[int, float]] = []
        with tree.api() as api:
            for number in range(1, RUNS + 1):
                until_over(api, create_flow_run(api, trigger="heartbeat"))
                if number % LOOK_EVERY == 0:
                    sizes.append((number, worker.memory_info().rss / 1e6))
        descriptors, threads = worker.num_fds(), worker.num_threads()
        idle_after = idle_cpu(tree)
    late = sizes[len(sizes) // 2 :]
    slope = statistics.linear_regression([number for number, _ in late], [size for _, size in late]).slope
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        json.dumps(
            {
                "name": "worker",
                "runs": RUNS,
                "resident_mb": {"first": round(sizes[0][1]), "half": round(late[0][1]), "last": round(late[-1][1])},
                "mb_per_100_runs": round(100 * slope, 2),
                "descriptors": descriptors,
                "threads": threads,
                "idle_cpu_percent": {"before": idle_before, "after": idle_after, "seconds": IDLE_SECONDS},
            }
        )
    )


def idle_cpu(tree: Tree) -> float:
    """Percent of one core that everything but this process takes while nothing happens."""
    tree.until_idle()
    time.sleep(15)  # what a start or a run leaves to be done afterwards
    processes = tree.everything()
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    time.sleep(IDLE_SECONDS)
    after = sum(sum(process.cpu_times()[:2]) for process in processes)
    return round(100 * (after - before) / IDLE_SECONDS, 2)


if __name__ == "__main__":
    main()
