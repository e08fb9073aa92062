"""Prefect over its REST API: what is repeated, what is not, and what a person is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from fleet_agent.clients.prefect_api import BUSY_TRIES, PrefectOrchestrator
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import FixSetup, KeyRefused, TryLater

Answer = Callable[[httpx.Request], httpx.Response]


class Server:
    """Answers in order, the last answer for ever, and keeps what was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []
        self.waited: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    def orchestrator(self) -> PrefectOrchestrator:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://127.0.0.1:4200/api")
        return PrefectOrchestrator(client, sleep=self._sleep)

    def keys(self) -> list[str]:
        bodies = [json.loads(request.content) for request in self.asked if request.method == "POST"]
        return [body["idempotency_key"] for body in bodies]


DEPLOYMENT = httpx.Response(200, json={"id": "d"})
MADE = httpx.Response(201, json={"id": "run"})
BUSY = httpx.Response(503)


async def test_a_run_is_made_of_the_fleets_own_deployment() -> None:
    server = Server(DEPLOYMENT, MADE)

    assert await server.orchestrator().start_run(fleet="second", trigger=Trigger.MANUAL) == "run"

    find, make = server.asked
    assert find.url.path == "/api/deployments/name/agent-cycle/second"
    assert make.url.path == "/api/deployments/d/create_flow_run"
    assert json.loads(make.content)["parameters"] == {"fleet": "second", "trigger": "manual"}


async def test_a_busy_server_is_asked_again_with_the_same_key() -> None:
    server = Server(DEPLOYMENT, BUSY, BUSY, MADE)

    await server.orchestrator().start_run(fleet="main", trigger=Trigger.EVENT, idempotency_key="ring:main:7:1")

    assert server.keys() == ["ring:main:7:1"] * 3
    assert len(server.waited) == 2


async def test_without_a_key_of_the_caller_each_run_has_its_own_and_a_repetition_has_the_same() -> None:
    server = Server(DEPLOYMENT, BUSY, MADE, DEPLOYMENT, MADE)
    orchestrator = server.orchestrator()

    await orchestrator.start_run(fleet="main", trigger=Trigger.MANUAL)
    await orchestrator.start_run(fleet="main", trigger=Trigger.MANUAL)

    first, repeated, second = server.keys()
    assert first == repeated != second


async def test_a_server_that_stays_busy_is_left_alone_after_a_few_tries() -> None:
    server = Server(BUSY)

    with pytest.raises(TryLater, match="is busy"):
        await server.orchestrator().flow_run("run")

    assert len(server.asked) == BUSY_TRIES


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (httpx.ConnectError("refused"), TryLater, r"does not answer \(ConnectError\) → is `fleet-agent up`"),
        (httpx.Response(401), KeyRefused, "does not accept the auth string"),
        (httpx.Response(404), FixSetup, "no deployment agent-cycle/main → make it with `fleet-agent deploy`"),
        (httpx.Response(409, text="Validation failed\nfor 'x'"), FixSetup, "refuses GET .*: 409 Validation failed for"),
    ],
)
async def test_what_cannot_be_mended_by_asking_again_is_one_line_with_its_remedy(
    answer: httpx.Response | Exception, error: type[Exception], words: str
) -> None:
    server = Server(answer)

    with pytest.raises(error, match=words) as raised:
        await server.orchestrator().start_run(fleet="main", trigger=Trigger.MANUAL)

    assert "\n" not in str(raised.value)
    assert len(server.asked) == 1


async def test_a_server_that_does_not_answer_yet_is_not_ready() -> None:
    assert await Server(httpx.ConnectError("refused")).orchestrator().is_ready() is False
    assert await Server(BUSY).orchestrator().is_ready() is False
    assert await Server(httpx.Response(200)).orchestrator().is_ready() is True


async def test_a_worker_counts_from_its_first_sign_of_life_after_the_start() -> None:
    start = datetime(2026, 3, 17, 12, tzinfo=UTC)

    async def has_worker(answer: httpx.Response | Exception) -> bool:
        return await Server(answer).orchestrator().has_worker("pool", since=start)

    assert await has_worker(httpx.Response(200, json=[{"last_heartbeat_time": "2026-03-17T12:00:01Z"}])) is True
    assert await has_worker(httpx.Response(200, json=[{"last_heartbeat_time": "2026-03-17T11:59:59Z"}])) is False
    assert await has_worker(httpx.Response(404)) is False
    assert await has_worker(httpx.ReadTimeout("busy")) is False
