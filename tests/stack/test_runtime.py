"""A running tree is found by one file and one lock, and the lock decides."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_agent.errors import FixSetup
from fleet_agent.settings import Settings
from fleet_agent.stack.runtime import Runtime, Simulators, live_runtime, only_tree, publish


def runtime_in(data_dir: Path, simulators: Simulators | None = None) -> Runtime:
    return Runtime(
        pid=4711,
        data_dir=data_dir,
        log_dir=data_dir / "logs",
        database_url="postgresql:///fleet",
        api_url="http://127.0.0.1:4200/api",
        auth_string="fleet:made-up",
        ui_url="http://127.0.0.1:4200",
        work_pool="fleet-agent",
        hooks_bind="127.0.0.1:8300",
        processes={"worker": 4712},
        simulators=simulators,
    )


def test_a_tree_that_said_where_it_is_can_be_found(tmp_path: Path) -> None:
    with only_tree(tmp_path):
        publish(runtime_in(tmp_path))
        assert live_runtime(tmp_path) == runtime_in(tmp_path)


def test_a_tree_that_is_not_ready_yet_is_not_found(tmp_path: Path) -> None:
    with only_tree(tmp_path):
        assert live_runtime(tmp_path) is None


def test_a_tree_that_ended_is_not_found_and_leaves_no_key_behind(tmp_path: Path) -> None:
    with only_tree(tmp_path):
        publish(runtime_in(tmp_path))

    assert live_runtime(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["runtime.lock"]


def test_what_a_killed_tree_left_is_not_believed_even_if_its_number_lives_again(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from fleet_agent.stack.runtime import only_tree, publish
from tests.stack.test_runtime import runtime_in
with only_tree(Path({str(tmp_path)!r})):
    publish(runtime_in(Path({str(tmp_path)!r})).model_copy(update={{"pid": {1}}}))
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=30)

    # The control: whoever trusts the number in the file takes process 1 for the tree.
    assert '"pid": 1' in (tmp_path / "runtime.json").read_text()
    assert live_runtime(tmp_path) is None


def test_a_second_tree_on_the_same_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with only_tree(tmp_path):
        publish(runtime_in(tmp_path))
        with (
            pytest.raises(FixSetup, match=r"already runs on .* \(pid 4711\) → stop it first") as refused,
            only_tree(tmp_path),
        ):
            pass

    assert "\n" not in str(refused.value)


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused = pytest.raises(FixSetup, match=r"^cannot keep files in .*file/data \(Not a directory\) → let this account")
    with refused, only_tree(tmp_path / "file" / "data"):
        pass


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with only_tree(tmp_path):
        publish(runtime_in(tmp_path))
        assert stat.S_IMODE((tmp_path / "runtime.json").stat().st_mode) == 0o600


def test_other_commands_see_the_world_that_the_tree_sees(tmp_path: Path) -> None:
    mine = Settings.model_construct(fleet="main", vast_url="https://console.vast.ai", data_dir=Path("/mine"))
    demo = runtime_in(tmp_path, Simulators(vast_port=1, model_port=2))

    seen = mine.model_copy(update=demo.settings())

    assert seen.data_dir == tmp_path
    assert (seen.vast_url, seen.model_url) == ("http://127.0.0.1:1", "http://127.0.0.1:2/v1")
    assert mine.model_copy(update=runtime_in(tmp_path).settings()).vast_url == "https://console.vast.ai"
