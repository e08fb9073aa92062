"""Prefect over its REST API: what is repeated, what is not, and what a person is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.clients.prefect_api import PrefectOrchestrator, has_worker
from fleet_agent.clients.prefect_rest import BUSY_TRIES, PrefectRest
from fleet_agent.domain.flow_run import FlowRunState
from fleet_agent.domain.timeline import Timeline
from fleet_agent.domain.triggers import Doorbell, Trigger
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

    def rest(self) -> PrefectRest:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://127.0.0.1:4200/api")
        return PrefectRest(client, sleep=self._sleep)

    def orchestrator(self) -> PrefectOrchestrator:
        return PrefectOrchestrator(self.rest(), TIMELINE, real_now=lambda: REAL)

    def posted(self) -> list[Any]:
        return [json.loads(request.content) for request in self.asked if request.method == "POST"]


NOON = datetime(2026, 3, 17, 12, tzinfo=UTC)
REAL = datetime(2026, 3, 17, 20, tzinfo=UTC)
TIMELINE = Timeline(origin=NOON, started_at=REAL, speed=15)
"""Business time began at noon, at eight in the evening of real time, and runs 15 times as fast."""

FLOW_RUN_ID = "0d7e0e0e-3c0a-4c8e-9d5e-1f0f0f0f0f0f"
DEPLOYMENT = httpx.Response(200, json={"id": "d"})
BUSY = httpx.Response(503)


def shown(state: FlowRunState, *, message: str | None = None, since: datetime = REAL) -> dict[str, Any]:
    """A flow run as Prefect answers."""
    of_state = {"type": state.value, "name": state.value.title(), "message": message, "timestamp": since.isoformat()}
    return {"id": FLOW_RUN_ID, "name": "wise-owl", "deployment_id": "d", "state": of_state}


MADE = httpx.Response(201, json=shown(FlowRunState.SCHEDULED))


async def test_a_run_is_made_of_the_fleets_own_deployment() -> None:
    server = Server(DEPLOYMENT, MADE)

    made = await server.orchestrator().start_run(fleet="second", trigger=Trigger.EVENT, key="ring:second:7:1")

    find, make = server.asked
    assert made.id == FLOW_RUN_ID
    assert find.url.path == "/api/deployments/name/agent-cycle/second"
    assert make.url.path == "/api/deployments/d/create_flow_run"
    assert json.loads(make.content)["parameters"] == {"fleet": "second", "trigger": "event"}


async def test_a_busy_server_is_asked_again_with_the_same_key() -> None:
    server = Server(DEPLOYMENT, BUSY, BUSY, MADE)

    await server.orchestrator().start_run(fleet="main", trigger=Trigger.EVENT, key="ring:main:7:1")

    assert [body["idempotency_key"] for body in server.posted()] == ["ring:main:7:1"] * 3
    assert len(server.waited) == 2


async def test_a_wake_is_scheduled_in_real_time_and_shown_in_business_time() -> None:
    late = shown(FlowRunState.SCHEDULED, since=REAL + timedelta(minutes=1))
    server = Server(DEPLOYMENT, httpx.Response(201, json=late))

    made = await server.orchestrator().start_run(
        fleet="main",
        trigger=Trigger.WAKE,
        key="wake:main:3:0",
        at=NOON + timedelta(minutes=30),
        wake_id=3,
        name="n" * 100,
    )

    (body,) = server.posted()
    assert body["parameters"] == {"fleet": "main", "trigger": "wake", "wake_id": 3}
    assert body["state"]["state_details"]["scheduled_time"] == (REAL + timedelta(minutes=2)).isoformat()
    assert body["name"] == "n" * 80
    assert made.since == NOON + timedelta(minutes=15)


async def test_a_doorbell_has_real_time_and_an_id_of_its_own() -> None:
    server = Server(httpx.Response(204))

    await server.orchestrator().ring(Doorbell.URGENT, fleet="second")
    await server.orchestrator().ring(Doorbell.URGENT, fleet="second")

    (first,), (second,) = server.posted()
    assert first.pop("id") != second.pop("id")
    assert first == second
    assert first["event"] == "fleet-agent.doorbell.urgent"
    assert first["occurred"] == REAL.isoformat()
    assert first["resource"] == {"prefect.resource.id": "fleet-agent.fleet.second"}
    assert first["payload"] == {"fleet": "second"}


async def test_flow_runs_are_read_by_id_and_what_is_no_id_of_prefects_is_not_asked_for() -> None:
    server = Server(httpx.Response(200, json=[shown(FlowRunState.CANCELLED)]))

    found = await server.orchestrator().flow_runs([FLOW_RUN_ID, "once-0a1b"])

    assert found[FLOW_RUN_ID].state is FlowRunState.CANCELLED
    assert server.posted() == [{"flow_runs": {"id": {"any_": [FLOW_RUN_ID]}}, "limit": 200}]


async def test_without_an_id_of_prefects_nothing_is_asked() -> None:
    server = Server(BUSY)

    await server.orchestrator().crash("once-0a1b", why="silent")

    assert server.asked == []


@pytest.mark.parametrize("state", FlowRunState)
async def test_only_what_is_not_over_is_crashed_and_only_what_has_not_begun_withdrawn(state: FlowRunState) -> None:
    async def sent(verb: str) -> list[tuple[str, bool]]:
        server = Server(httpx.Response(200, json=[shown(state)]), httpx.Response(200))
        await getattr(server.orchestrator(), verb)(FLOW_RUN_ID, why="because")
        return [(body["state"]["type"], body["force"]) for body in server.posted() if "state" in body]

    over = {FlowRunState.COMPLETED, FlowRunState.FAILED, FlowRunState.CRASHED, FlowRunState.CANCELLED}
    assert await sent("crash") == ([] if state in over else [("CRASHED", True)])
    assert await sent("withdraw") == ([("CANCELLED", False)] if state is FlowRunState.SCHEDULED else [])


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
        await server.orchestrator().start_run(fleet="main", trigger=Trigger.EVENT, key="ring:main:7:1")

    assert "\n" not in str(raised.value)
    assert len(server.asked) == 1


async def test_a_server_that_does_not_answer_yet_is_not_ready() -> None:
    assert await Server(httpx.ConnectError("refused")).rest().is_ready() is False
    assert await Server(BUSY).rest().is_ready() is False
    assert await Server(httpx.Response(200)).rest().is_ready() is True


async def test_a_worker_counts_from_its_first_sign_of_life_after_the_start() -> None:
    start = datetime(2026, 3, 17, 12, tzinfo=UTC)

    async def reported(answer: httpx.Response | Exception) -> bool:
        return await has_worker(Server(answer).rest(), "pool", since=start)

    assert await reported(httpx.Response(200, json=[{"last_heartbeat_time": "2026-03-17T12:00:01Z"}])) is True
    assert await reported(httpx.Response(200, json=[{"last_heartbeat_time": "2026-03-17T11:59:59Z"}])) is False
    assert await reported(httpx.Response(404)) is False
    assert await reported(httpx.ReadTimeout("busy")) is False
