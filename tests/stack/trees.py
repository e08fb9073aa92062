"""A whole process tree, started as a person starts it: `fleet-agent demo` or `up` in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from fleet_agent.stack.runtime import Runtime, live_runtime
from tests.stack.waiting import alive, until

FLEET_AGENT = (sys.executable, "-c", "from fleet_agent.cli import main; main()")

PLANTED = {"FLEET_VAST_API_KEY": "planted-vast-key", "FLEET_MODEL_API_KEY": "planted-model-key"}
"""Keys by which a test recognises where they go."""


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

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command while the tree runs."""
        return subprocess.run(
            [*FLEET_AGENT, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )


@contextmanager
def started(folder: Path, *arguments: str, settings: Mapping[str, str]) -> Generator[Tree]:
    """The tree, as soon as its root process runs; asked to end afterwards."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "FLEET_DATA_DIR": str(folder / "data"), **settings}
    output = folder / f"{arguments[0]}.out"
    with output.open("w") as out:
        root = subprocess.Popen(
            [*FLEET_AGENT, *arguments],
            env=environment,
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            # As under nohup or in a script's background, where SIGINT is ignored from the start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
    data_dir = folder / ("data-demo" if arguments[0] == "demo" else "data")
    try:
        yield Tree(root, data_dir, output, environment)
    finally:
        root.terminate()
        try:
            root.wait(60)
        finally:
            root.kill()  # its guardian ends the rest


@contextmanager
def ready(folder: Path, *arguments: str, settings: Mapping[str, str]) -> Generator[Tree]:
    """The tree once it says that it is ready. Afterwards nothing of it may be left, whatever a test did to it."""
    everything: list[psutil.Process] = []
    with started(folder, *arguments, settings=settings) as tree:
        until(lambda: live_runtime(tree.data_dir) is not None or tree.root.poll() is not None, seconds=100)
        assert tree.root.poll() is None, tree.output.read_text()
        yield tree
        if tree.root.poll() is None:
            everything = tree.everything()
            assert len(everything) > 5  # the control: there is something to leave
    assert alive(everything) == []
    assert "Traceback" not in tree.output.read_text()
