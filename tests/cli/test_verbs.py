"""The verbs of a person, on a database of their own and without a running tree."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import psycopg

from tests.cli.conftest import Run
from tests.postgres import plain


def test_status_says_that_nothing_runs(fleet_agent: Run) -> None:
    assert "not running: nothing watches" in fleet_agent("status").out


def test_the_objective_is_set_and_read_back(fleet_agent: Run) -> None:
    fleet_agent("objective", "set", "No box at night.")
    assert fleet_agent("objective", "get").out == "No box at night.\n"


def test_a_policy_key_is_set_and_read_back(fleet_agent: Run) -> None:
    assert fleet_agent("policy", "set", "limits.max_boxes=7", "run.max_turns=2").code == 0
    values = json.loads(fleet_agent("policy", "get", "--json").out)
    assert (values["limits.max_boxes"], values["run.max_turns"]) == ("7", "2")


def test_pause_and_resume_set_the_mode(fleet_agent: Run) -> None:
    modes = []
    for verb in (["pause"], ["resume", "--dry-run"], ["resume"]):
        fleet_agent(*verb)
        modes.append(json.loads(fleet_agent("status", "--json").out)["mode"])
    assert modes == ["paused", "dry_run", "live"]


def test_a_message_waits_for_the_next_run(fleet_agent: Run) -> None:
    fleet_agent("say", "hello")
    assert json.loads(fleet_agent("status", "--json").out)["waiting_events"] == 1


def test_fleets_do_not_see_each_other(fleet_agent: Run) -> None:
    fleet_agent("objective", "set", "Only east.", "--fleet", "east")
    assert fleet_agent("objective", "get").out == "(none set)\n"
    assert fleet_agent("objective", "get", "--fleet", "east").out == "Only east.\n"


def test_a_new_token_is_shown_once_and_the_database_has_only_its_digest(fleet_agent: Run, database_url: str) -> None:
    said = fleet_agent("token", "rotate", "hooks").out
    token = said.splitlines()[1]
    with psycopg.connect(plain(database_url)) as connection:
        ((fleet, digest),) = connection.execute("SELECT fleet, digest FROM token").fetchall()

    assert (fleet, digest) == ("main", hashlib.sha256(token.encode()).hexdigest())
    assert "http://127.0.0.1:8300/hooks/SOURCE" in said


def test_a_light_verb_imports_neither_prefect_nor_openai() -> None:
    """They take seconds to import, and a person waits."""
    code = "import sys, fleet_agent.cli, fleet_agent.wiring; print({'prefect', 'openai'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "set()\n"
