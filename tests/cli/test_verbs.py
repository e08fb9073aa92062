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


def test_status_says_what_boxes_cost_what_they_may_and_how_long_the_credit_lasts(
    fleet_agent: Run, database_url: str
) -> None:
    fleet_agent("policy", "set", "limits.max_usd_per_day=12")
    before = fleet_agent("status").out
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO sample (fleet, at, credit_usd, in_flight, burn_usd_per_hour, bands, pending, running)"
            " VALUES ('main', '2026-03-17 12:30Z', 8.2, 0, 0, '{}', 12, 3)"
        )
    after = fleet_agent("status").out
    found = json.loads(fleet_agent("status", "--json").out)

    assert "burn       $0.000/h, and $0.000/h reserved\n" in before
    assert "spent      $0.00 of $12.00 in 24 h, $0.00 of it this hour\n" in before
    assert "credit     unknown" in before
    assert "credit     $8.20 at 03-17 12:30:00 UTC\n" in after
    assert "demand     unknown: the watch has not looked yet\n" in before
    assert "demand     12 pending, 3 running, at 03-17 12:30:00 UTC\n" in after
    assert (found["max_usd_per_day"], found["box_usd_of_day"], found["credit_usd"]) == (12, 0, 8.2)
    assert found["runway"] is None  # nothing burns
    assert (found["demand"]["pending"], found["demand"]["running"], found["demand"]["done_per_hour"]) == (12, 3, None)


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


def test_run_now_is_an_urgent_event_that_counts_up_and_needs_no_tree_to_be_kept(fleet_agent: Run) -> None:
    for _ in range(20):
        said = fleet_agent("run-now")
    assert (said.code, "no process tree runs" in said.out) == (0, True)
    (event,) = json.loads(fleet_agent("inbox", "list", "--json").out)
    assert (event["kind"], event["priority"], event["count"]) == ("run_now", 0, 20)


def test_a_wake_is_added_listed_and_cancelled(fleet_agent: Run) -> None:
    assert "Wake set for" in fleet_agent("wakes", "add", "45", "is the queue empty?").out
    assert "heartbeat" in fleet_agent("wakes", "add", "5", "is the queue empty?").out
    (wake,) = json.loads(fleet_agent("wakes", "list", "--json").out)
    assert (wake["status"], wake["asked_by"], wake["reason"]) == ("pending", "cli", "is the queue empty?")

    assert fleet_agent("wakes", "cancel", str(wake["id"])).code == 0
    (wake,) = json.loads(fleet_agent("wakes", "list", "--json").out)
    assert wake["status"] == "cancelled"
    assert "cancelled" in fleet_agent("wakes", "list").out
    assert "is cancelled already" in fleet_agent("wakes", "cancel", str(wake["id"])).err


def test_a_quarantined_event_is_listed_and_released_as_suspect(fleet_agent: Run, database_url: str) -> None:
    fleet_agent("say", "poison")
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        connection.execute("UPDATE inbox SET attempts = 5, quarantined_at = now()")
    assert "quarantined after 5 attempts" in fleet_agent("inbox", "list").out
    assert fleet_agent("inbox", "release", "1").code == 0
    (event,) = json.loads(fleet_agent("inbox", "list", "--json").out)
    assert (event["quarantined_at"], event["attempts"]) == (None, 2)
    assert "waiting" in fleet_agent("inbox", "list").out


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


def test_the_doctor_finds_what_is_missing_and_a_variable_that_is_no_setting(fleet_agent: Run) -> None:
    said = fleet_agent("doctor", FLEET_MODEL_ULR="http://127.0.0.1/v1")

    assert said.code == 1
    lines = said.out.splitlines()
    assert "BAD  settings: no setting is called FLEET_MODEL_ULR → did you mean FLEET_MODEL_URL?" in lines
    assert any(line.startswith("BAD  settings: missing FLEET_VAST_API_KEY") for line in lines)
    assert "ok   database: fit for this version, fleet main" in lines
    assert "BAD  tree: no process tree is running → fleet-agent up" in lines


def test_a_worker_for_another_tree_must_be_told_where_it_and_its_database_are(fleet_agent: Run) -> None:
    """With the server alone it would begin a ledger of its own, and rent by it."""
    neither = fleet_agent("worker", PREFECT_API_URL="")
    database_missing = fleet_agent("worker", PREFECT_API_URL="http://127.0.0.1:1/api", FLEET_DATABASE_URL="")

    assert (neither.code, database_missing.code) == (2, 2)
    assert "PREFECT_API_URL or FLEET_DATABASE_URL is not set" in database_missing.err


def test_a_light_verb_imports_neither_prefect_nor_openai() -> None:
    """They take seconds to import, and a person waits."""
    code = "import sys, fleet_agent.cli, fleet_agent.wiring; print({'prefect', 'openai'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "set()\n"
