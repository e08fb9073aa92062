"""What the README promises: the demo of three runs, and a message that is answered at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.postgres import temporary_folder
from tests.stack.trees import Tree, ready, started
from tests.stack.waiting import until

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(240)]


def test_a_demo_of_three_runs_shows_a_rent_a_no_op_and_a_destroy_and_prefect_confirms() -> None:
    with temporary_folder() as folder, started(folder, "demo", "--runs", "3", settings={}) as tree:
        code = tree.root.wait(200)
        said = tree.output.read_text()
    assert code == 0, said
    rows = [line for line in said.splitlines() if line.startswith("#")]
    assert [row.split()[0] for row in rows] == ["#1", "#2", "#3"]
    assert "Rented 1x" in rows[0]
    assert sorted("no-op" in row for row in rows) == [False, False, True]
    assert any("accepted to destroy" in row for row in rows)
    assert "Prefect's API says of these 3 flow runs: 3 Completed." in said


def test_a_message_is_answered_by_the_run_that_is_asked_for_and_a_reset_changes_nothing_else() -> None:
    with (
        temporary_folder() as folder,
        ready(folder, "demo", "--speed", "5", "--scenario", "calm-day", settings={}) as tree,
    ):
        # The first heartbeat is over, and at this speed the next one is a minute away.
        until(lambda: [run["status"] for run in listed(tree, "runs")] == ["closed"])
        assert tree.call("policy", "set", "limits.max_boxes=3").returncode == 0
        assert tree.call("say", "How are we doing?").returncode == 0
        first = run_now(tree)
        assert "You wrote: “How are we doing?”" in first["summary"]

        assert tree.call("reset-session").returncode == 0
        pending = listed(tree, "status")["pending_wakes"]
        second = run_now(tree)

        assert second["run_id"] > first["run_id"]
        assert second["tokens_in"] > 0
        assert (first["epoch"], second["epoch"]) == (0, 1)
        assert listed(tree, "status")["pending_wakes"] == pending > 0
        assert listed(tree, "policy", "get")["limits.max_boxes"] == "3"
        asked = json.loads(tree.call("prompt", "--run", str(second["run_id"])).stdout)
        assert 0 < asked["tokens"] <= 30_000
        assert "Earlier runs, oldest first (runs that changed nothing are left out):\n(none)" in str(
            asked["body"]["messages"][1]["content"]
        )


def run_now(tree: Tree) -> dict[str, Any]:
    """The newest manual run, once it has ended."""
    before = len(manual(tree))
    assert tree.call("run-now").returncode == 0
    until(lambda: len(manual(tree)) > before and manual(tree)[-1]["status"] != "open")
    return manual(tree)[-1]


def manual(tree: Tree) -> list[dict[str, Any]]:
    return [run for run in listed(tree, "runs") if run["trigger"] == "manual"]


def listed(tree: Tree, *verb: str) -> Any:
    return json.loads(tree.call(*verb, "--json").stdout)
