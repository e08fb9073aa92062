from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.box.door import Owner, owning
from tests.stack.waiting import PATIENCE, until

ENTRYPOINT = Path(__file__).parents[2] / "infra" / "box" / "entrypoint.py"

PYTHON = os.environ.get("BOX_PYTHON", sys.executable)
"""Images have older ones: `BOX_PYTHON=python3.9 make test ARGS=tests/box` shows whether it still runs there."""

CURIO = """#!/bin/sh
echo "curio $*" >> "$NOTES"
case "$1" in
fetch-params) head -c 2000000 /dev/zero > "$BOX_PARAMS/v28-stub.params" ;;
run)
    trap 'echo "curio ends" >> "$NOTES"; exit 0' TERM
    echo "the prover listens"
    while :; do sleep 0.02; done
    ;;
esac
"""

CUZK = """#!/bin/sh
echo "cuzk" >> "$NOTES"
exec sleep 1000
"""

CUZK_BENCH = """#!/bin/sh
echo "cuzk-bench $1" >> "$NOTES"
case "$1" in
batch)
    echo "  [1/12] COMPLETED - 120.0s (prove=118000 ms, queue=0 ms)"
    echo "throughput:    0.500 proofs/min (120.0s/proof)"
    ;;
esac
"""


@pytest.fixture(scope="session")
def entrypoint() -> ModuleType:
    """The file as a module, for its pure parts."""
    spec = importlib.util.spec_from_file_location("entrypoint", ENTRYPOINT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def owner() -> Generator[Owner]:
    with owning() as one:
        yield one


@dataclass
class Machine:
    """A rented machine with stubs of the proving stack, on which the real entrypoint is started."""

    folder: Path
    owner: Owner
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def starts(self, *, before: Callable[[], None] | None = None, **env: str) -> Life:
        (self.folder / "params").mkdir(exist_ok=True)
        log = (self.folder / "log").open("wb")
        with log:
            process = subprocess.Popen(
                [PYTHON, "-W", "error", str(ENTRYPOINT)],
                env=self._env() | env,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=before,
            )
        self.processes.append(process)
        return Life(self, process)

    def _env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "NOTES": str(self.folder / "notes"),
            "VAST_CONTAINERLABEL": "C.101",
            "FLEET_BOX_HOOK": self.owner.address,
            "BOX_STATUS": self.owner.status_address,
            "BOX_PARAMS": str(self.folder / "params"),
            "BOX_RATE_FILE": str(self.folder / "rate"),
            "BOX_POLL": "0.05",
            "BOX_SETTLE": "0",
            "BOX_END_WITHIN": "20",
        }

    def stub(self, name: str, script: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        path = self.folder / "bin" / name
        path.write_text(script)
        path.chmod(0o755)

    def notes(self) -> list[str]:
        """What the stubs were called with, and what they have to say."""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []


@dataclass
class Life:
    """One life of a box."""

    machine: Machine
    process: subprocess.Popen[bytes]

    def ends(self) -> int:
        return self.process.wait(60 * PATIENCE)

    def lives(self) -> bool:
        return self.process.poll() is None

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def log(self) -> str:
        return (self.machine.folder / "log").read_text()

    def says(self, words: str) -> None:
        """Wait until its log has them."""
        until(lambda: words in self.log(), every=0.01, picture=self.log)

    def noted(self, words: str, times: int = 1) -> None:
        """Wait until the stubs have noted them so often."""
        until(
            lambda: self.machine.notes().count(words) >= times,
            every=0.01,
            picture=lambda: (self.machine.notes(), self.log()),
        )

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def machine(tmp_path: Path, owner: Owner) -> Generator[Machine]:
    made = Machine(tmp_path, owner)
    for name, script in (("curio", CURIO), ("cuzk", CUZK), ("cuzk-bench", CUZK_BENCH)):
        made.stub(name, script)
    yield made
    for process in made.processes:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait()
