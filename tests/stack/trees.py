"""A whole process tree, started as a person starts it: `fleet-agent demo` or `up` in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil

from fleet_agent.stack.runtime import Runtime, live_runtime
from tests.stack.waiting import alive, until

FLEET_AGENT = (sys.executable, "-c", "from fleet_agent.cli import main; main()")

PLANTED = {"FLEET_VAST_API_KEY": "planted-vast-key", "FLEET_MODEL_API_KEY": "planted-model-key"}
"""Keys by which a test recognises where they go."""


OVER = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
"""States that a flow run does not leave by itself."""


@dataclass
class Tree:
    root: subprocess.Popen[str]
    data_dir: Path
    output: Path
    environment: Mapping[str, str]

    @property
    def runtime(self) -> Runtime:
        found = live_runtime(self.data_dir)
        assert found is not None, self.output.read_text()
        return found

    def processes(self) -> dict[str, psutil.Process]:
        """By name, as the tree says; `root` is the one that supervises."""
        named = {name: psutil.Process(pid) for name, pid in self.runtime.processes.items()}
        return {"root": psutil.Process(self.root.pid), **named}

    def everything(self) -> list[psutil.Process]:
        """Every process that must be gone after the end, whoever its parent is."""
        tops = self.processes().values()
        return [each for top in tops for each in (top, *top.children(recursive=True))]

    def api(self) -> httpx.Client:
        """Prefect's API, for somebody who may enter."""
        user, password = self.runtime.auth_string.split(":")
        return httpx.Client(base_url=self.runtime.api_url, auth=(user, password), timeout=20, trust_env=False)

    def until_idle(self, deployment: str | None = None) -> None:
        """No flow run goes on and none is due within the next seconds: a doorbell's second answer has come too.

        deployment: its id, to look at its runs alone.
        """
        of_it = {} if deployment is None else {"deployments": {"id": {"any_": [deployment]}}}

        def open_runs() -> list[tuple[str, str, str]]:
            soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
            open_ones = {"state": {"type": {"not_any_": sorted(OVER)}}, "expected_start_time": {"before_": soon}}
            found = api.post("/flow_runs/filter", json={**of_it, "flow_runs": open_ones}).raise_for_status().json()
            return [(run["name"], run["state_name"], run["expected_start_time"]) for run in found]

        with self.api() as api:
            # A run that was killed before it opened is crashed after 90 s.
            until(lambda: not open_runs(), seconds=150, picture=open_runs)

    def log(self, process: str) -> str:
        """What a process of it has printed so far."""
        return (self.data_dir / "logs" / f"{process}.log").read_text()

    def last_words(self, lines: int = 40) -> str:
        """The ends of what it printed and of its logs, for a failure to show."""
        files = [self.output, *sorted((self.data_dir / "logs").glob("*.log"))]
        return "\n".join(
            f"--- {file.name}\n" + "\n".join(file.read_text().splitlines()[-lines:]) for file in files if file.exists()
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command while the tree runs."""
        return subprocess.run(
            [*FLEET_AGENT, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )


@contextmanager
def started(folder: Path, *arguments: str, settings: Mapping[str, str], first: str = "") -> Generator[Tree]:
    """The tree, as soon as its root process runs; asked to end afterwards.

    first: Python that the root process runs before anything else, by which a control makes it naive.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "FLEET_DATA_DIR": str(folder / "data"), **settings}
    output = folder / f"{arguments[0]}.out"
    with output.open("w") as out:
        root = subprocess.Popen(
            [*FLEET_AGENT[:-1], f"{first}\n{FLEET_AGENT[-1]}", *arguments],
            env=environment,
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            # As under nohup or in a script's background, where SIGINT is ignored from the start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
    data_dir = folder / ("data-demo" if arguments[0] == "demo" else "data")
    tree = Tree(root, data_dir, output, environment)
    try:
        yield tree
    finally:
        root.terminate()
        try:
            root.wait(60)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it does not end:\n{tree.last_words()}") from error
        finally:
            root.kill()  # its guardian ends the rest
            root.wait()


@contextmanager
def ready(folder: Path, *arguments: str, settings: Mapping[str, str], first: str = "") -> Generator[Tree]:
    """The tree once it says that it is ready. Afterwards nothing of it may be left, whatever a test did to it."""
    everything: list[psutil.Process] = []
    with started(folder, *arguments, settings=settings, first=first) as tree:
        until(lambda: live_runtime(tree.data_dir) is not None or tree.root.poll() is not None, seconds=240)
        assert tree.root.poll() is None, tree.output.read_text()
        yield tree
        if tree.root.poll() is None:
            everything = tree.everything()
            assert len(everything) > 5  # the control: there is something to leave
    assert alive(everything) == []
    assert "Traceback" not in tree.output.read_text()


@contextmanager
def simulators(folder: Path, vast_port: int, model_port: int, scenario: str = "idle") -> Generator[None]:
    """The world, run by somebody else than the tree: to `up` it is as real as any."""
    arguments = [*FLEET_AGENT, "sim", f"--vast-port={vast_port}", f"--model-port={model_port}", "--scenario", scenario]
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.kill()  # it has nothing to finish, and a reply that it holds back would keep it


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
