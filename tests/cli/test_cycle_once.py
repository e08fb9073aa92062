"""`cycle --once`: one run over real HTTP, without Prefect, against the simulators as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from tests.cli.conftest import Run
from tests.cli.test_bad_input import closed_port

IMAGE = "example.invalid/prover@sha256:" + "0" * 64


@contextmanager
def simulators(*options: str) -> Generator[dict[str, str]]:
    """The settings that reach them, from the moment both ports answer."""
    vast, model = closed_port(), closed_port()
    command = [sys.executable, "-m", "fleet_agent.sim.server", "--vast-port", str(vast), "--model-port", str(model)]
    process = subprocess.Popen([*command, "--scenario", "first-light", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("vast.ai")
        yield {
            "FLEET_VAST_URL": f"http://127.0.0.1:{vast}",
            "FLEET_VAST_API_KEY": "made-up-key",
            "FLEET_MODEL_URL": f"http://127.0.0.1:{model}/v1",
            "FLEET_MODEL_NAME": "simulated",
            "FLEET_DEMAND_PROMETHEUS_URL": f"http://127.0.0.1:{vast}/demand",
        }
    finally:
        process.terminate()
        process.communicate()


def test_one_run_rents_over_real_http(fleet_agent: Run) -> None:
    with simulators("--speed", "60") as settings:
        fleet_agent("policy", "set", f"launch.image={IMAGE}")
        said = fleet_agent("cycle", "--once", **settings)
    assert said.code == 0, said.out + said.err
    assert "Rented 1x" in said.out
    rents = json.loads(fleet_agent("ledger", "--json").out)
    assert [row["status"] for row in rents] == ["done", "done"]
    assert [(row["spent_usd"], row["charged_usd"]) for row in rents] == [(0, None)] * 2  # no look has seen them yet


def test_a_wrong_key_is_one_line_and_a_failed_run(fleet_agent: Run) -> None:
    with simulators("--api-key", "the-right-key") as settings:
        said = fleet_agent("cycle", "--once", **settings)
    assert said.code == 1
    assert "FLEET_VAST_API_KEY" in said.out
    (run,) = json.loads(fleet_agent("runs", "--json").out)
    assert (run["status"], run["exit_reason"]) == ("failed", "key refused")
    assert "made-up-key" not in said.out + run["summary"]
