"""What cuzk says of itself becomes a look, and what is no cuzk becomes none."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.clients.cuzk import look
from fleet_agent.domain.prover_health import GpuWorker, Job, ProverLook
from fleet_agent.errors import TryLater
from tests.clients.world import NOON, PassingTime

STATUS: dict[str, Any] = {
    "uptime_secs": 3600.5,
    "memory": {"total_bytes": 256, "used_bytes": 200, "available_bytes": 56},
    "synthesis": {"max_concurrent": 4, "active": 1},
    "pipelines": [
        {
            "job_id": "a",
            "proof_kind": "porep-c2",
            "started_secs_ago": 41.0,
            "total_partitions": 3,
            "partitions_done": 1,
            "partitions": [
                {"index": 0, "state": "done", "synth_ms": 29000, "gpu_ms": 3100},
                {"index": 1, "state": "gpu", "synth_ms": 29000, "gpu_ms": 900},
                {"index": 2, "state": "synthesizing", "synth_ms": 12000, "gpu_ms": None},
            ],
        }
    ],
    "gpu_workers": [
        {
            "worker_id": 0,
            "gpu_ordinal": 0,
            "state": "proving",
            "current_job": "a",
            "current_partition": 1,
            "busy_secs": 0.9,
        },
        {
            "worker_id": 1,
            "gpu_ordinal": 0,
            "state": "idle",
            "current_job": None,
            "current_partition": None,
            "busy_secs": None,
        },
    ],
    "allocations": {"srs": [], "pce": []},
    "counters": {
        "total_completed": 8,
        "total_failed": 1,
        "completed_by_kind": {"porep-c2": 8},
        "failed_by_kind": {},
        "queue_depth": 2,
    },
    "buffers": {"synth_in_flight": 1},
}


async def looked_at(answer: httpx.Response | type[httpx.RequestError]) -> ProverLook:
    asked: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("no", request=request)

    async with httpx.AsyncClient(base_url="http://box.test:9821", transport=httpx.MockTransport(serve)) as client:
        seen = await look(client, clock=PassingTime())
    assert [(request.method, request.url.path) for request in asked] == [("GET", "/status")]
    return seen


async def test_a_status_is_a_look() -> None:
    assert await looked_at(httpx.Response(200, json=STATUS)) == ProverLook(
        seen_at=NOON,
        uptime=timedelta(seconds=3600.5),
        memory_total_bytes=256,
        memory_free_bytes=56,
        jobs=(Job(id="a", partitions=3, done=1, synthesizing=1),),
        workers=(GpuWorker(id=0, busy=timedelta(seconds=0.9)), GpuWorker(id=1, busy=None)),
        gpu_times=(timedelta(milliseconds=3100),),
        waiting=2,
        completed=8,
        failed=1,
    )


async def test_a_worker_that_just_began_is_not_idle() -> None:
    begins = STATUS | {"gpu_workers": [{"worker_id": 0, "state": "proving"}]}
    assert (await looked_at(httpx.Response(200, json=begins))).workers == (GpuWorker(id=0, busy=timedelta(0)),)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.ConnectError, "cannot be reached"),
        (httpx.ReadTimeout, "cannot be reached"),
        (httpx.Response(500), "answers 500"),
        (httpx.Response(404, json=STATUS), "answers 404"),
        (httpx.Response(200, text="hello"), "no cuzk"),
        (httpx.Response(200, json={}), "no cuzk"),
        (httpx.Response(200, json=STATUS | {"uptime_secs": -1}), "no cuzk"),
        (httpx.Response(200, text=json.dumps(STATUS | {"uptime_secs": float("nan")})), "no cuzk"),
        (httpx.Response(200, json=STATUS | {"uptime_secs": 1e300}), "no cuzk"),
        (httpx.Response(200, json=STATUS | {"counters": {"total_completed": 8, "total_failed": 0}}), "no cuzk"),
        (httpx.Response(200, json=STATUS | {"gpu_workers": [{"worker_id": 0, "state": "asleep"}]}), "no cuzk"),
    ],
)
async def test_what_cannot_be_read_is_unknown_and_never_idle(
    answer: httpx.Response | type[httpx.RequestError], words: str
) -> None:
    with pytest.raises(TryLater, match=words):
        await looked_at(answer)
