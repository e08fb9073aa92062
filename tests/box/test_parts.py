"""The pure parts of the entrypoint, and what its page and its file promise."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.box.conftest import ENTRYPOINT
from tests.box.door import metrics

README = ENTRYPOINT.parent / "README.md"
NAMES = frozenset({"PoRep", "PSProve"})


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("throughput:    0.513 proofs/min (117.0s/proof)", 30.78),
        ("31.5 proofs/h", 31.5),
        ("31.5 proofs per hour", 31.5),
        ("1 proof/hour", 1.0),
        ('{"proofs_per_hour": 31.5, "gpus": 2}', 31.5),
        ("proofs_per_hour=3e1", 30.0),
        ("  [1/12] COMPLETED - 117.0s (prove=115000 ms, queue=0 ms)", None),
        ("wall time:     avg=117.0s min=93.1s max=130.0s", None),
        ("completed:     12", None),
        ("... proofs/h", None),
        ("1e999 proofs/h", None),
        ("", None),
    ],
)
def test_the_rate_of_a_benchmark(entrypoint: ModuleType, line: str, rate: float | None) -> None:
    assert entrypoint.rate_in(line) == (None if rate is None else pytest.approx(rate))


@given(st.text(max_size=300))
def test_no_line_is_no_trouble_for_who_looks_for_a_rate(entrypoint: ModuleType, line: str) -> None:
    rate = entrypoint.rate_in(line)
    assert rate is None or rate >= 0


# --- proofs at hand ---------------------------------------------------------------------------------------------------


def status(**but: Any) -> bytes:
    """Of cuzk: one job at work in a card, one under way, one that is through and still shown, one that waits."""
    job = {"proof_kind": "porep", "started_secs_ago": 30.0, "total_partitions": 10, "partitions": []}
    whole = {
        "pipelines": [job | {"job_id": "a", "partitions_done": 3}, job | {"job_id": "b", "partitions_done": 10}],
        "gpu_workers": [
            {"worker_id": 0, "state": "proving", "current_job": "a"},
            {"worker_id": 1, "state": "proving", "current_job": "c"},
            {"worker_id": 2, "state": "idle", "current_job": None},
        ],
        "counters": {"total_completed": 8, "total_failed": 0, "queue_depth": 1},
    }
    return json.dumps(whole | but).encode()


@pytest.mark.parametrize(
    ("said", "tasks"),
    [
        (metrics(3).encode(), 3),
        (metrics(3).encode() + b'curio_harmonytask_active_tasks{instance="x",task_name="PoRep"} 2e0\n', 5),
        (metrics(0).encode(), 0),
        (b"# HELP go_goroutines\ngo_goroutines 12\n", None),  # a node that shows no tasks
        (b'curio_harmonytask_active_tasks{task_name="PSProve"} NaN\n', None),
        (status(), 3),
        (status(pipelines=[], gpu_workers=[], counters={"queue_depth": 0}), 0),
        (status(pipelines=None), None),
        (b"{}", None),
        (b"{", None),
        (b" 4\n", 4),
        (b"", None),
        (b"-1", None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_the_proofs_at_hand(entrypoint: ModuleType, said: bytes, tasks: int | None) -> None:
    """What cannot be read is not zero."""
    assert entrypoint.tasks_in(said, NAMES) == tasks


# --- progress ---------------------------------------------------------------------------------------------------------


def stands_still(entrypoint: ModuleType, *amounts: float) -> list[bool]:
    """One a second, where ten are to come within five."""
    progress = entrypoint.Progress(worth=10, window=5, now=0)
    return [progress.stands_still(amount, second) for second, amount in enumerate(amounts)]


def test_what_comes_as_fast_as_it_must_never_stands_still(entrypoint: ModuleType) -> None:
    assert not any(stands_still(entrypoint, *range(0, 200, 2)))


def test_what_comes_too_slowly_stands_still_after_a_window(entrypoint: ModuleType) -> None:
    assert stands_still(entrypoint, *range(8)) == [False] * 6 + [True] * 2


def test_what_came_at_once_buys_one_window_and_not_ten(entrypoint: ModuleType) -> None:
    assert stands_still(entrypoint, 0, 100, 100, 100, 100, 100, 100, 100) == [False] * 7 + [True]


# --- pauses -----------------------------------------------------------------------------------------------------------

LUCK = st.floats(0, 1)


@given(st.integers(1, 10**9), st.floats(0.05, 1000), st.floats(-1e9, 1e9), LUCK)
def test_a_try_is_never_more_than_five_minutes_away(
    entrypoint: ModuleType, failures: int, poll: float, may_come_after: float, luck: float
) -> None:
    assert 0 < entrypoint.pause(failures, poll, may_come_after, luck) <= entrypoint.LONGEST_PAUSE == 300


@given(st.integers(1, 100), LUCK)
def test_pauses_grow(entrypoint: ModuleType, failures: int, luck: float) -> None:
    pauses = [entrypoint.pause(number, 30, 0, luck) for number in range(1, failures + 2)]
    assert pauses == sorted(pauses)


@given(LUCK, LUCK)
def test_a_fleet_does_not_come_back_at_once(entrypoint: ModuleType, one: float, other: float) -> None:
    first, second = (entrypoint.pause(10, 30, 0, luck) for luck in (one, other))
    assert abs(first - second) == pytest.approx(150 * abs(one - other))


def test_who_asks_for_time_is_given_it(entrypoint: ModuleType) -> None:
    assert entrypoint.pause(1, 30, 120, 0) == 120


# --- the log ----------------------------------------------------------------------------------------------------------


def test_of_a_flood_the_beginning_is_kept_and_what_is_missing_is_counted(
    entrypoint: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control is the same number of lines over a day."""
    now = [0.0]
    log = entrypoint.Log("", now=lambda: now[0])

    def lines(number: int, *, every: float) -> list[str]:
        for _ in range(number):
            now[0] += every
            log.pass_on("prover", "x" * 100)
        return [line.partition("Z ")[2] for line in capsys.readouterr().out.splitlines()]

    flooded = lines(10_000, every=0.0001)
    now[0] += 60
    after = lines(2, every=1)

    assert flooded == ["prover: " + "x" * 100] * len(flooded)
    assert 2_500 < len(flooded) < 2_700
    assert after == [f"box: {10_000 - len(flooded)} lines of the commands were left out", *flooded[:2]]
    assert len(lines(10_000, every=8.64)) == 10_000


def test_the_address_and_its_token_are_stars(entrypoint: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A short end of an address is no secret: stars would stand in every line."""
    log = entrypoint.Log("http://owner.test/box/box_secret")
    log.say("at http://owner.test/box/box_secret, that is box_secret")
    entrypoint.Log("http://owner.test/a").say("http://owner.test/a, that is a")

    assert [line.partition("Z ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "box: at ***, that is ***",
        "box: ***, that is a",
    ]


# --- its file and its page --------------------------------------------------------------------------------------------


def test_it_is_one_file_for_python_3_9_that_needs_nothing_else() -> None:
    """The control is syntax that 3.9 does not know."""
    tree = ast.parse(ENTRYPOINT.read_text(), feature_version=(3, 9))
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case _: pass", feature_version=(3, 9))

    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_its_page_names_every_variable_with_its_default(entrypoint: ModuleType) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*?)\| ", README.read_text(), flags=re.MULTILINE))
    special = {entrypoint.HOOK, "BOX_PARAMS"}
    told = {name: default.strip(" `") for name, default in rows.items() if name not in special}

    assert told == {name: default for name, default in entrypoint.DEFAULTS.items() if name not in special}
    assert entrypoint.DEFAULTS["BOX_PARAMS"] in rows["BOX_PARAMS"]
    assert entrypoint.HOOK in rows


def test_its_page_names_every_status_with_which_it_gives_up(entrypoint: ModuleType) -> None:
    told = {int(status) for status in re.findall(r"^\| (\d+) \| ", README.read_text(), flags=re.MULTILINE)}
    names = ("NO_SETUP", "NO_PARAMETERS", "NO_RATE", "TOO_SLOW", "PROVER_DIES", "OWN_FAULT")

    assert told == {getattr(entrypoint, name) for name in names}


def test_its_folder_holds_nothing_else() -> None:
    assert {path.name for path in Path(ENTRYPOINT.parent).iterdir() if path.is_file()} == {"README.md", "entrypoint.py"}
