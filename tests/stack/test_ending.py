"""However a tree ends, nothing of it is left. (That SIGTERM ends it well is checked wherever a test has a tree.)"""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import psutil
import pytest

from fleet_agent.stack.runtime import live_runtime
from tests.postgres import temporary_folder
from tests.stack.trees import ready, started
from tests.stack.waiting import alive, until

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]


def test_a_tree_whose_root_is_killed_leaves_no_process() -> None:
    with temporary_folder() as folder, ready(folder, "demo", settings={}) as tree:
        everything = tree.everything()
        assert len(everything) > 5  # the control: there was something to leave

        tree.root.kill()
        tree.root.wait()

        until(lambda: alive(everything) == [], seconds=30)
        # Its file is left, and no longer counts.
        assert (tree.data_dir / "runtime.json").exists()
        assert live_runtime(tree.data_dir) is None


def test_a_run_at_hand_is_finished_before_the_tree_ends() -> None:
    with temporary_folder() as folder, ready(folder, "demo", settings={}) as tree:
        assert tree.runtime.simulators is not None
        model = f"http://127.0.0.1:{tree.runtime.simulators.model_port}/sim"
        httpx.post(f"{model}/faults", json={"name": "slow", "seconds": 4}, trust_env=False).raise_for_status()
        assert tree.call("run-now").returncode == 0
        until(lambda: httpx.get(f"{model}/requests", trust_env=False).json())

        tree.root.terminate()
        tree.root.wait(60)

        assert "Finished in state Completed('#1 " in tree.log("worker")


def test_a_tree_that_is_ended_while_it_starts_leaves_no_process() -> None:
    with temporary_folder() as folder, started(folder, "demo", settings={}) as tree:
        until(lambda: "simulators ready" in tree.output.read_text())
        everything = [*descendants(tree.root.pid), *postgres_of(tree.data_dir)]

        tree.root.send_signal(signal.SIGINT)

        assert tree.root.wait(60) == 130
        assert alive(everything) == []
        assert "Traceback" not in tree.output.read_text()


@pytest.mark.soak
def test_a_demo_whose_worker_dies_ends_with_an_error_that_shows_its_last_words() -> None:
    with temporary_folder() as folder, ready(folder, "demo", settings={}) as tree:
        everything = tree.everything()
        tree.processes()["worker"].kill()

        assert tree.root.wait(60) == 1
        assert alive(everything) == []
        last = tree.output.read_text().strip().splitlines()[-1]
        assert last.startswith("fleet-agent: worker ended (killed by SIGKILL): ")
        assert last.endswith(f" → its log: {tree.data_dir / 'logs' / 'worker.log'}")


@pytest.mark.soak
def test_a_demo_goes_on_when_its_worker_finishes_its_run_and_begins_anew() -> None:
    """That the worker's death ends it is the control, above. A worker that has grown old ends in the same way."""
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", settings={}) as tree:
        assert tree.runtime.simulators is not None
        model = f"http://127.0.0.1:{tree.runtime.simulators.model_port}/sim"
        httpx.post(f"{model}/faults", json={"name": "slow", "seconds": 4}, trust_env=False).raise_for_status()
        assert tree.call("run-now").returncode == 0
        until(lambda: httpx.get(f"{model}/requests", trust_env=False).json())
        first = tree.processes()["worker"]

        first.terminate()

        until(lambda: "worker begins anew" in tree.output.read_text())
        until(lambda: tree.runtime.processes["worker"] != first.pid)
        assert "Finished in state Completed('#1 " in tree.log("worker")
        assert tree.call("run-now").returncode == 0
        until(lambda: "\n#2 " in tree.output.read_text())


@pytest.mark.soak
def test_a_demo_with_a_process_for_each_run_works_too() -> None:
    pool = {"FLEET_WORK_POOL": "fleet-agent-process"}
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "1", settings=pool) as tree:
        worker = tree.processes()["worker"]
        assert tree.call("run-now").returncode == 0
        until(lambda: worker.children(recursive=True))
        until(lambda: "\n#1 " in tree.output.read_text())
        with tree.api() as api:
            deployment = api.get("/deployments/name/agent-cycle/main").json()
        assert deployment["work_pool_name"] == "fleet-agent-process"


def descendants(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def postgres_of(data_dir: Path) -> list[psutil.Process]:
    """The database server is nobody's child."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"] == "postgres" and str(process.info["cwd"] or "").startswith(str(data_dir))
    ]
