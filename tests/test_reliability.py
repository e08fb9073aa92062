"""What docs/reliability.md says of tests is so: each one that it names is there, and no named fault is left out."""

from __future__ import annotations

import re
from pathlib import Path

from fleet_agent.sim.faults import FAULTS

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        name for path in HERE.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    assert len(named) > 50
    assert named - there == set()


def test_every_named_fault_of_the_simulator_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(FAULTS)


def test_each_of_the_24_problems_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \|.*`test_\w+`", PAGE, re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 25))
