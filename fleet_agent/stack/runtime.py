"""How a running process tree is found: one file and one lock in its data folder.

The tree holds the lock for as long as it lives; the kernel lets go of it even after `kill -9`. So the lock, and not a
process number that may have found another owner, says whether the file still tells the truth. The file holds the key to
Prefect's API and is readable by its owner alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from fleet_agent.errors import FixSetup
from fleet_agent.settings import simulated

WATCH = "watch"
"""The name of the process that rings: with it, what is posted is answered at once."""


class Simulators(BaseModel):
    """Where a simulated world is, on loopback."""

    model_config = ConfigDict(frozen=True)

    vast_port: int
    model_port: int

    def settings(self) -> dict[str, Any]:
        return simulated(
            vast_url=f"http://127.0.0.1:{self.vast_port}", model_url=f"http://127.0.0.1:{self.model_port}/v1"
        )


class Runtime(BaseModel):
    """What another command needs to speak with a running tree."""

    model_config = ConfigDict(frozen=True)

    pid: int
    data_dir: Path
    log_dir: Path
    database_url: str
    api_url: str
    auth_string: str
    """`user:password` of Prefect's API; Prefect's pages ask for it in this form."""
    ui_url: str
    hooks_bind: str
    """Where webhooks are taken in, as in the settings."""
    work_pool: Literal["fleet-agent", "fleet-agent-process"]
    """Whose worker the tree runs, as in the settings."""
    processes: dict[str, int]
    """Process number by name."""
    simulators: Simulators | None
    """A demo's world; None under `up`."""

    @property
    def prefect_home(self) -> Path:
        return self.data_dir / "prefect"

    def settings(self) -> dict[str, Any]:
        """What the tree's settings have in place of the caller's own, for `model_copy(update=…)`."""
        world: dict[str, Any] = {}
        if self.simulators is not None:
            world = self.simulators.settings() | {"hooks_public_url": f"http://{self.hooks_bind}"}
        return {
            **world,
            "data_dir": self.data_dir,
            "database_url": SecretStr(self.database_url),
            "hooks_bind": self.hooks_bind,
            "work_pool": self.work_pool,
        }


def live_runtime(data_dir: Path) -> Runtime | None:
    """The tree that runs on this data folder, or None: nothing runs, or it is not ready yet."""
    if not _is_held(data_dir):
        return None
    try:
        return Runtime.model_validate_json(_file(data_dir).read_text())
    except (FileNotFoundError, ValidationError):
        return None


@contextmanager
def only_tree(data_dir: Path) -> Generator[None]:
    """Be the only tree on this data folder. Raises FixSetup if another one lives, or the folder cannot be used."""
    with _opened_lock(data_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            live = live_runtime(data_dir)
            raise FixSetup(
                f"fleet-agent already runs on {data_dir}{f' (pid {live.pid})' if live else ''}",
                "stop it first, or set FLEET_DATA_DIR to another folder",
            ) from error
        _file(data_dir).unlink(missing_ok=True)  # a killed tree may have left it
        try:
            yield
        finally:
            _file(data_dir).unlink(missing_ok=True)


def _opened_lock(data_dir: Path) -> IO[str]:
    try:
        # Root's database runs under another account, which has to pass through; what is private inside closes itself.
        data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        return open(os.open(_lock(data_dir), os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise FixSetup(
            f"cannot keep files in {data_dir} ({error.strerror or error})",
            "let this account write there, or set FLEET_DATA_DIR to a folder where it may",
        ) from error


def publish(runtime: Runtime) -> None:
    """Let other commands find the tree."""
    unfinished = _file(runtime.data_dir).with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(runtime.model_dump_json(indent=2))
    unfinished.rename(_file(runtime.data_dir))


def _is_held(data_dir: Path) -> bool:
    try:
        lock = os.open(_lock(data_dir), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _file(data_dir: Path) -> Path:
    return data_dir / "runtime.json"


def _lock(data_dir: Path) -> Path:
    return data_dir / "runtime.lock"
