"""The simulators as a process: two ports, one clock, a clean end."""

import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx
import pytest

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.market import Order
from fleet_agent.sim.scenarios import FIRST_LIGHT
from fleet_agent.sim.server import business_now, main
from fleet_agent.sim.world import open_world

ORIGIN = datetime(2026, 11, 29, 8, tzinfo=UTC)
KEY = {"Authorization": "Bearer any"}


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def command(vast_port: int, model_port: int, *more: str) -> list[str]:
    ports = ["--vast-port", str(vast_port), "--model-port", str(model_port)]
    return [sys.executable, "-m", "fleet_agent.sim.server", *ports, *more]


@contextmanager
def simulators(vast_port: int, model_port: int, *more: str) -> Generator[subprocess.Popen[str]]:
    """The process, once it has said that it is ready."""
    with subprocess.Popen(
        command(vast_port, model_port, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("vast.ai")
            yield process
        finally:
            process.kill()


def test_both_faces_answer_on_their_own_ports_once_it_is_ready():
    vast, model = free_ports()
    with simulators(vast, model, "--scenario", "first-light", "--origin", ORIGIN.isoformat()):
        user = httpx.get(f"http://127.0.0.1:{vast}/api/v0/users/current/", headers=KEY)
        models = httpx.get(f"http://127.0.0.1:{model}/v1/models")
        pending = httpx.get(f"http://127.0.0.1:{vast}/demand/api/v1/query?query=fleet_demand_pending")
        assert user.json()["credit"] == 100
        assert models.json()["data"][0]["id"] == "simulated-operator"
        (sample,) = pending.json()["data"]["result"]
        assert sample["value"][1] == "14"
        assert datetime.fromtimestamp(sample["value"][0], UTC) >= ORIGIN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_it_without_an_error(number: signal.Signals):
    with simulators(*free_ports()) as process:
        process.send_signal(number)
        _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")


def test_a_port_in_use_is_one_line_that_names_it_and_no_traceback(capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--vast-port", str(port), "--model-port", "1"]) == 1
    assert capsys.readouterr().err == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use → choose another port\n"
    )


@pytest.mark.parametrize(
    "bad",
    [["--speed", "0"], ["--speed", "fast"], ["--origin", "2026-11-29T08:00:00"], ["--scenario", "storm"]],
    ids=str,
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(bad: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--vast-port", "1", "--model-port", "2", *bad])
    assert f"argument {bad[0]}: " in capsys.readouterr().err


def test_business_time_goes_on_from_its_origin_at_its_speed():
    since = datetime.now(UTC) - timedelta(seconds=10)
    assert business_now(ORIGIN, since=since, speed=15) >= ORIGIN + timedelta(seconds=150)


async def test_logs_can_be_fetched_from_where_the_provider_says_they_are():
    """The provider's face stays whole although the demand is mounted beside it."""
    world = open_world(ManualClock(ORIGIN), FIRST_LIGHT)
    offer = next(offer for offer in world.market.offers() if offer.rentable)
    box = world.market.rent(offer.lot.ask_id, Order("prover@sha256:0", disk_gb=Decimal(100)))
    transport = httpx.ASGITransport(world.vast_face)
    async with httpx.AsyncClient(transport=transport, base_url="http://vast", headers=KEY) as client:
        asked = await client.put(f"/api/v0/instances/request_logs/{box.id}/", json={"tail": "10"})
        for _ in range(3):
            logs = await client.get(asked.json()["result_url"])
        assert logs.status_code == 200


async def test_with_a_key_both_faces_refuse_any_other():
    world = open_world(ManualClock(ORIGIN), FIRST_LIGHT, api_key="right")
    for face, path in ((world.vast_face, "/api/v1/instances/"), (world.model_face, "/v1/models")):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(face), base_url="http://sim") as client:
            answers = [await client.get(path, headers={"Authorization": f"Bearer {key}"}) for key in ("wrong", "right")]
        assert [answer.status_code for answer in answers] == [401, 200]
