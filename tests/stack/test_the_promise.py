"""What the README promises first: the demo of three runs."""

from __future__ import annotations

import pytest

from tests.postgres import temporary_folder
from tests.stack.trees import started

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]


def test_a_demo_of_three_runs_shows_a_rent_a_no_op_and_a_destroy_and_prefect_confirms() -> None:
    with temporary_folder() as folder, started(folder, "demo", "--runs", "3", settings={}) as tree:
        code = tree.root.wait(200)
        said = tree.output.read_text()
    assert code == 0, said
    rows = [line for line in said.splitlines() if line.startswith("#")]
    assert [row.split()[0] for row in rows] == ["#1", "#2", "#3"]
    assert "Rented 1x" in rows[0]
    assert sorted("no-op" in row for row in rows) == [False, False, True]
    assert any("accepted to destroy" in row for row in rows), said
    assert "Prefect's API says of these 3 flow runs: 3 Completed." in said
