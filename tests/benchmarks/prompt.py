"""How long a prompt takes: reading what stands in the tables, and composing it, after a hundred thousand runs.

    make bench-prompt

The history is written into a durable database at once; every fifth run is one that prompts carry. Each sample is the
prompt of one more run: some have room, some compact. `beside` has the first prompt, which finds a history that nobody
has compacted and counts it once, the two halves of a sample, and the time of this process's own CPU, which other work
on the machine does not lengthen. The last line is one JSON object, in seconds.
"""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import UTC, datetime

from fleet_agent.clients.counting import count_tokens
from fleet_agent.domain.context import Prompt, compose
from fleet_agent.domain.run import Message, MessageKind, Run
from fleet_agent.domain.triggers import Trigger
from fleet_agent.store import conversation, migrate, reading, tables
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.embedded import ensure_running
from fleet_agent.store.installation import found_installation
from fleet_agent.store.tables import RunStatus
from tests.benchmarks.run import quantile
from tests.history import BETWEEN_RUNS, write_history
from tests.postgres import temporary_folder

RUNS = 100_000
SAMPLES = 200
FLEET = "main"
NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
OPENING = Message(turn=1, step=0, role="user", kind=MessageKind.TRIGGER, content="Run, trigger: heartbeat.")


def main() -> None:
    count_tokens("the vocabulary is loaded with the first text")
    with temporary_folder() as folder, ensure_running(folder) as server:
        server.create_database("bench")
        url = server.url("bench")
        migrate.upgrade(url)
        database = open_database(url)
        found_installation(database, origin=NOON)
        write_history(database, runs=RUNS, until=NOON, every=5)
        first, *samples = [sample(database, number) for number in range(SAMPLES)]
        database.close()
    reads, composes, cpu = (sorted(figures) for figures in zip(*samples, strict=True))
    whole = sorted(reading + composing for reading, composing, _ in samples)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        json.dumps(
            {
                "p50": quantile(whole, 50),
                "p95": quantile(whole, 95),
                "runs": RUNS,
                "beside": {
                    "first": round(first[0] + first[1], 4),
                    "reading_p95": quantile(reads, 95),
                    "composing_p95": quantile(composes, 95),
                    "cpu_p50": quantile(cpu, 50),
                    "cpu_p95": quantile(cpu, 95),
                },
            }
        )
    )


def sample(database: Database, number: int) -> tuple[float, float, float]:
    """Seconds of reading, of composing, and of CPU for both; then one more run has closed, and the cut is kept."""
    began, cpu = time.perf_counter(), time.process_time()
    with database.transaction() as tx:
        standing = reading.standing(tx, FLEET, epoch=0, now=NOON)
    read = time.perf_counter()
    prompt = compose(standing=standing, steps=[OPENING], count_tokens=count_tokens)
    composed, cpu = time.perf_counter(), time.process_time() - cpu
    close_one_more(database, RUNS + number + 1, prompt)
    return read - began, composed - read, cpu


def close_one_more(database: Database, run_id: int, prompt: Prompt) -> None:
    at = NOON + (run_id - RUNS) * BETWEEN_RUNS
    run = Run(run_id=run_id, fleet=FLEET, epoch=0, trigger=Trigger.HEARTBEAT, force_review=False, opened_at=at)
    with database.transaction() as tx:
        conversation.keep_compaction(tx, run, prompt.compaction)
        tx.add(
            tables.Run(
                fleet=FLEET, run_id=run_id, flow_run_id=f"one-more-{run_id}", attempt=1, worker_id="test",
                trigger=run.trigger.value, epoch=0, opened_at=at, seen_at=at, closed_at=at,
                status=RunStatus.CLOSED.value, exit_reason="finished", in_prompt=True,
                summary=f"Run {run_id}: " + "two boxes prove, and I keep them. " * 6,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
