"""What the proving daemon cuzk says of itself: `GET /status` at the address of its `daemon.status_listen`.

It asks for no key and is for the inside of a box: reach it through a tunnel. A finished job stays listed for half a
minute, and all counters begin anew with each start of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

import httpx
from pydantic import BaseModel, Field, ValidationError

from fleet_agent.domain.prover_health import GpuWorker, Job, ProverLook
from fleet_agent.errors import TryLater
from fleet_agent.ports import Clock

TIMEOUT = timedelta(seconds=5)
REMEDY = "see whether the box runs and its tunnel stands"

_Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


async def look(client: httpx.AsyncClient, *, clock: Clock) -> ProverLook:
    """One look. `client` has the address of the daemon as its base. Raises TryLater."""
    try:
        response = await client.get("/status", timeout=TIMEOUT.total_seconds())
    except httpx.RequestError as error:
        raise TryLater(f"the prover cannot be reached ({type(error).__name__})", REMEDY) from error
    if not response.is_success:
        raise TryLater(f"the prover answers {response.status_code}", REMEDY)
    try:
        status = _Status.model_validate_json(response.content)
    except ValidationError as error:
        raise TryLater(
            "what answers is no cuzk daemon", "check the port: `status_listen`, not the one for proofs"
        ) from error
    return ProverLook(
        seen_at=clock.now(),
        uptime=timedelta(seconds=status.uptime_secs),
        memory_total_bytes=status.memory.total_bytes,
        memory_free_bytes=status.memory.available_bytes,
        jobs=tuple(map(_job, status.pipelines)),
        workers=tuple(map(_worker, status.gpu_workers)),
        gpu_times=tuple(_gpu_times(status)),
        waiting=status.counters.queue_depth,
        completed=status.counters.total_completed,
        failed=status.counters.total_failed,
    )


# --- the wire ---------------------------------------------------------------------------------------------------------


class _Memory(BaseModel):
    total_bytes: _Count
    available_bytes: _Count


class _Partition(BaseModel):
    state: str
    gpu_ms: Annotated[int | None, Field(ge=0, lt=10**12)] = None


class _Pipeline(BaseModel):
    job_id: str
    total_partitions: _Count
    partitions_done: _Count
    partitions: list[_Partition]


class _Worker(BaseModel):
    worker_id: int
    state: Literal["idle", "proving"]
    busy_secs: _Seconds | None = None


class _Counters(BaseModel):
    total_completed: _Count
    total_failed: _Count
    queue_depth: _Count


class _Status(BaseModel):
    uptime_secs: _Seconds
    memory: _Memory
    pipelines: list[_Pipeline]
    gpu_workers: list[_Worker]
    counters: _Counters


def _job(pipeline: _Pipeline) -> Job:
    return Job(
        id=pipeline.job_id,
        partitions=pipeline.total_partitions,
        done=pipeline.partitions_done,
        synthesizing=sum(partition.state == "synthesizing" for partition in pipeline.partitions),
    )


def _worker(worker: _Worker) -> GpuWorker:
    busy = timedelta(seconds=worker.busy_secs or 0) if worker.state == "proving" else None
    return GpuWorker(id=worker.worker_id, busy=busy)


def _gpu_times(status: _Status) -> Iterator[timedelta]:
    for pipeline in status.pipelines:
        for partition in pipeline.partitions:
            if partition.state == "done" and partition.gpu_ms is not None:
                yield timedelta(milliseconds=partition.gpu_ms)
