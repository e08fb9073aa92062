"""Each bad input gives one line that names the cause and the remedy, an exit code, and never a traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Said


def one_line(said: Said, code: int, *words: str) -> None:
    assert said.code == code
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def test_an_unknown_verb(fleet_agent: Run) -> None:
    one_line(fleet_agent("frobnicate"), 2, "frobnicate", "--help")


def test_an_option_that_is_no_number(fleet_agent: Run) -> None:
    one_line(fleet_agent("runs", "--last", "many"), 2, "--help")


@pytest.mark.parametrize("change", ["limits.max_boxes=-1", "limits.nonsense=1", "launch.image=prover:latest"])
def test_an_invalid_policy_value_stores_nothing(fleet_agent: Run, change: str) -> None:
    before = fleet_agent("policy", "get").out
    one_line(fleet_agent("policy", "set", "limits.max_boxes=7", change), 2, change.split("=")[0], "policy get")
    assert fleet_agent("policy", "get").out == before


@pytest.mark.parametrize("verb", [["pause"], ["destroy-all", "--yes"], ["say", "hi"], ["status"], ["policy", "get"]])
def test_a_fleet_that_nobody_began_is_no_fleet(fleet_agent: Run, verb: list[str]) -> None:
    """A brake with a misspelt name must not say that it braked."""
    one_line(fleet_agent(*verb, "--fleet", "mian"), 2, "no fleet 'mian'", "fleets: main")


@pytest.mark.parametrize("verb", [["pause"], ["destroy-all", "--yes"], ["status"], ["runs"]])
def test_a_folder_without_an_installation_is_named_and_left_alone(
    fleet_agent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.delenv("FLEET_DATABASE_URL")
    elsewhere = tmp_path / "elsewhere"
    one_line(fleet_agent(*verb, FLEET_DATA_DIR=str(elsewhere)), 2, "no installation in", str(elsewhere))
    assert not elsewhere.exists()


def test_one_port_for_both_faces_of_the_simulator(fleet_agent: Run) -> None:
    one_line(fleet_agent("sim", "--vast-port", "8101", "--model-port", "8101"), 2, "8101")


def test_a_port_that_is_no_port(fleet_agent: Run) -> None:
    one_line(fleet_agent("sim", "--vast-port", "99999", "--model-port", "8101"), 2, "sim --help")


def test_an_objective_that_would_crowd_out_everything_else(fleet_agent: Run) -> None:
    before = fleet_agent("objective", "get").out
    one_line(fleet_agent("objective", "set", "é" * 3_001), 2, "has 6002 bytes and may have 6000")
    assert fleet_agent("objective", "get").out == before


def test_an_empty_message(fleet_agent: Run) -> None:
    one_line(fleet_agent("say", "  "), 2, "empty")


def test_a_fleet_name_that_does_not_fit_a_label(fleet_agent: Run) -> None:
    one_line(fleet_agent("status", "--fleet", "Über fleet"), 2, "name of a fleet")


def test_a_database_that_is_down(fleet_agent: Run) -> None:
    said = fleet_agent("status", FLEET_DATABASE_URL=f"postgresql://me:secret@127.0.0.1:{closed_port()}/fleet")
    one_line(said, 1, "does not answer")
    assert "secret" not in said.err


def test_a_database_that_is_not_postgresql(fleet_agent: Run) -> None:
    one_line(fleet_agent("status", FLEET_DATABASE_URL="mysql://127.0.0.1/fleet"), 2, "mysql", "use PostgreSQL")


def test_a_watch_without_a_tree(fleet_agent: Run) -> None:
    one_line(fleet_agent("watch", "--once"), 2, "no process tree", "fleet-agent up")


def test_a_wake_at_no_time(fleet_agent: Run) -> None:
    one_line(fleet_agent("wakes", "add", "soon", "look again"), 2, "'soon'", "2026-03-17T14:00")


def test_a_wake_without_a_reason(fleet_agent: Run) -> None:
    one_line(fleet_agent("wakes", "add", "20", " "), 2, "reason")


def test_a_wake_that_is_not_there(fleet_agent: Run) -> None:
    one_line(fleet_agent("wakes", "cancel", "7"), 2, "no wake 7", "wakes list")


def test_an_event_that_is_not_there_or_is_not_quarantined(fleet_agent: Run) -> None:
    one_line(fleet_agent("inbox", "release", "7"), 2, "no inbox event 7", "inbox list")
    fleet_agent("say", "hello")
    one_line(fleet_agent("inbox", "release", "1"), 2, "is not quarantined", "inbox list")


def test_a_cycle_without_settings_names_each(fleet_agent: Run) -> None:
    one_line(fleet_agent("cycle", "--once"), 2, "FLEET_VAST_API_KEY", "FLEET_MODEL_URL", "FLEET_DEMAND_PROMETHEUS_URL")


def test_up_without_settings_starts_nothing_and_names_each(fleet_agent: Run) -> None:
    said = fleet_agent("up")
    one_line(said, 2, "settings are missing")
    for name in ("FLEET_VAST_API_KEY", "FLEET_MODEL_URL", "FLEET_MODEL_NAME", "FLEET_DEMAND_PROMETHEUS_URL"):
        assert name in said.out


def test_a_setting_that_cannot_be_read(fleet_agent: Run) -> None:
    one_line(fleet_agent("status", FLEET_PREFECT_PORT="none"), 2, "FLEET_PREFECT_PORT")


def test_a_port_in_use(fleet_agent: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = fleet_agent("sim", "--vast-port", port, "--model-port", str(closed_port()))
    one_line(said, 1, port, "choose another port")


def test_a_port_for_webhooks_that_is_in_use(fleet_agent: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        one_line(fleet_agent("hooks", FLEET_HOOKS_BIND=bind), 2, bind, "FLEET_HOOKS_BIND")


def test_a_token_for_nothing_that_there_is(fleet_agent: Run) -> None:
    one_line(fleet_agent("token", "rotate", "doors"), 2, "hooks")


def test_a_run_that_sent_no_request_has_no_prompt(fleet_agent: Run) -> None:
    one_line(fleet_agent("prompt", "--run", "12"), 2, "#12")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
