"""Banning a machine by hand, letting it go, and what is shown of machines."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Run
from tests.cli.test_bad_input import one_line
from tests.postgres import plain


def listed(fleet_agent: Run) -> dict[str, list[dict[str, Any]]]:
    return json.loads(fleet_agent("hosts", "list", "--json").out)


def test_a_machine_is_banned_listed_and_let_go(fleet_agent: Run) -> None:
    said = fleet_agent("hosts", "ban", "4711", "deterministic", "its driver is too old")
    (ban,) = listed(fleet_agent)["host_ban"]

    assert said.out.startswith("Machine 4711 is not rented until ")
    assert said.out.endswith("Z (deterministic).\n")
    assert (ban["machine_id"], ban["failure"], ban["banned_by"]) == (4711, "deterministic", "cli")
    assert (ban["reason"], ban["lifted_by"]) == ("its driver is too old", None)
    assert "its driver is too old" in fleet_agent("hosts", "list").out

    assert fleet_agent("hosts", "lift", "4711").out == "Machine 4711 may be rented again.\n"
    assert listed(fleet_agent) == {"host_ban": [], "host": []}


def test_who_banned_and_who_lifted_is_kept(fleet_agent: Run, database_url: str) -> None:
    fleet_agent("hosts", "ban", "4711", "transient", "slow line")
    fleet_agent("hosts", "lift", "4711")
    with psycopg.connect(plain(database_url)) as connection:
        rows = connection.execute("SELECT who, text FROM audit WHERE what = 'host' ORDER BY id").fetchall()
    assert rows == [
        ("cli", "banned machine 4711 (transient): slow line"),
        ("cli", "lifted the ban of machine 4711"),
    ]


def test_a_shorter_ban_by_hand_says_until_when_the_longer_one_holds(fleet_agent: Run) -> None:
    fleet_agent("hosts", "ban", "4711", "security", "it mines")
    assert "(security)" in fleet_agent("hosts", "ban", "4711", "transient", "slow line").out


def test_what_a_machine_has_shown_is_listed(fleet_agent: Run, database_url: str) -> None:
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO host (fleet, machine_id, num_gpus, gpu_name, best_proofs_per_hour, measured_at, failures,"
            " last_failure) VALUES ('main', 4711, 2, 'RTX 4090', 31.5, now(), '{\"transient\": 3}', 'no line')"
        )
    (host,) = listed(fleet_agent)["host"]
    assert (host["machine_id"], host["num_gpus"], host["best_proofs_per_hour"]) == (4711, 2, 31.5)
    shown = fleet_agent("hosts", "list").out
    assert all(words in shown for words in ("2x RTX 4090", "31.5", "3 transient", "no line"))


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (["ban", "0", "transient", "slow"], ["0 is the number of no machine", "hosts ban 4711"]),
        (["ban", "9" * 30, "transient", "slow"], ["is the number of no machine"]),
        (["ban", "4711", "transient", " "], ["needs a reason"]),
        (["ban", "4711", "ugly", "slow"], ["ugly", "--help"]),
        (["lift", "4711"], ["machine 4711 of fleet main is not banned", "hosts list"]),
    ],
)
def test_what_cannot_be_banned_or_let_go_is_said_in_a_line(fleet_agent: Run, verb: list[str], words: list[str]) -> None:
    one_line(fleet_agent("hosts", *verb), 2, *words)
    assert listed(fleet_agent)["host_ban"] == []
