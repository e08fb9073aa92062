"""The tree of `up`: it needs its settings, keeps its keys, and starts again what dies. Its world here is simulated."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import psutil
import psycopg
import pytest

from tests.postgres import plain, temporary_folder
from tests.stack.canaries import found
from tests.stack.trees import PLANTED, Tree, free_ports, ready, simulators, started
from tests.stack.waiting import A_COMMAND, until

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

SECRETS = PLANTED | {
    "FLEET_BOX_ENV": '{"TOKEN": "planted-box-token"}',
    "FLEET_NOTIFY_URLS": "json://planted-notify-url",
}


@contextmanager
def an_up(*options: str) -> Generator[Tree]:
    """With marked secrets and with work for two boxes; it rents nothing until a test sets the image."""
    prefect, hooks, vast, model = free_ports(4)
    settings = {
        **SECRETS,
        "FLEET_PREFECT_PORT": str(prefect),
        "FLEET_HOOKS_BIND": f"127.0.0.1:{hooks}",
        "FLEET_HOOKS_PUBLIC_URL": f"http://127.0.0.1:{hooks}",
        "FLEET_VAST_URL": f"http://127.0.0.1:{vast}",
        "FLEET_MODEL_URL": f"http://127.0.0.1:{model}/v1",
        "FLEET_MODEL_NAME": "simulated-operator",
        "FLEET_DEMAND_PROMETHEUS_URL": f"http://127.0.0.1:{vast}/demand",
        "FLEET_WATCH_EVERY": "10",
    }
    with (
        temporary_folder() as folder,
        simulators(folder, vast, model, "first-light"),
        ready(folder, "up", *options, settings=settings) as tree,
    ):
        until(lambda: "Ready." in tree.output.read_text())
        assert tree.call("status").returncode == 0
        yield tree


@pytest.fixture(scope="module")
def up() -> Generator[Tree]:
    with an_up() as tree:
        yield tree


def knows(process: psutil.Process) -> set[str]:
    """Which of the planted secrets are in its environment or on its command line."""
    told = " ".join([*process.environ().values(), *process.cmdline()])
    return set(re.findall(r"planted-\w+-\w+", told))


ALL_SECRETS = {"planted-vast-key", "planted-model-key", "planted-box-token", "planted-notify-url"}


def test_the_keys_reach_the_worker_and_those_of_the_provider_and_of_people_the_watch_and_nobody_else(up: Tree) -> None:
    worker, watch = up.processes()["worker"], up.processes()["watch"]
    others = [process for process in up.everything() if process.pid not in {worker.pid, watch.pid, up.root.pid}]

    assert knows(worker) == ALL_SECRETS
    assert knows(watch) == ALL_SECRETS - {"planted-model-key"}
    assert {" ".join(process.cmdline()): knows(process) for process in others if knows(process)} == {}


def test_no_secret_is_in_a_log_or_in_what_is_printed(up: Tree) -> None:
    assert "a run takes it now" in up.call("run-now").stdout
    until(lambda: "Finished in state" in up.log("worker"))

    for text in [up.output, *(up.data_dir / "logs").iterdir()]:
        assert not re.findall(r"planted-\w+-\w+", text.read_text()), text


def test_a_second_up_on_the_same_folder_is_refused_in_one_line(up: Tree) -> None:
    second = up.call("up")

    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert f"already runs on {up.data_dir} (pid {up.root.pid})" in second.stderr


def test_a_webhook_with_the_token_becomes_an_event_and_the_token_is_in_no_log(up: Tree) -> None:
    token = up.call("token", "rotate", "hooks").stdout.splitlines()[1]

    def post(token: str) -> int:
        address = f"http://{up.runtime.hooks_bind}/hooks/prom/{token}"
        return httpx.post(address, json={"text": "the queue is starved"}, trust_env=False).status_code

    assert (post("guess"), post(token)) == (401, 200)
    with psycopg.connect(plain(up.runtime.database_url)) as connection:
        texts = connection.execute("SELECT text FROM inbox WHERE source = 'prom'").fetchall()
    assert texts == [("prom: the queue is starved",)]
    assert [log.name for log in (up.data_dir / "logs").iterdir() if token in log.read_text()] == []


def test_the_door_for_webhooks_is_opened_again_when_it_dies(up: Tree) -> None:
    dead = up.processes()["hooks"]
    dead.kill()

    until(lambda: up.runtime.processes["hooks"] != dead.pid)

    assert httpx.post(f"http://{up.runtime.hooks_bind}/hooks/prom", trust_env=False).status_code == 401


def test_a_watch_that_dies_is_started_again_and_rings_for_what_was_posted_meanwhile(up: Tree) -> None:
    dead = up.processes()["watch"]
    dead.kill()
    assert up.call("say", "Is anybody there?").returncode == 0

    until(lambda: up.runtime.processes["watch"] != dead.pid)
    until(lambda: "Is anybody there?" in up.call("runs", "--json").stdout, every=A_COMMAND)


def test_a_worker_that_dies_is_started_again(up: Tree) -> None:
    dead = up.processes()["worker"]
    dead.kill()

    until(lambda: up.runtime.processes["worker"] != dead.pid)

    assert "worker ended (killed by SIGKILL)" in up.output.read_text()
    assert up.processes()["worker"].is_running()


def test_a_database_that_dies_is_started_again(up: Tree) -> None:
    dead = up.processes()["PostgreSQL"]
    dead.kill()

    until(lambda: up.runtime.processes["PostgreSQL"] != dead.pid)

    assert "PostgreSQL ended; starting it again" in up.output.read_text()
    assert up.call("status").returncode == 0


# --- canaries ---------------------------------------------------------------------------------------------------------

IMAGE = "example.invalid/prover@sha256:" + "0" * 64


def rents(tree: Tree, *, boxes: int) -> None:
    """A person says what boxes are to run, and a run rents so many of them."""
    said = tree.call("policy", "set", f"launch.image={IMAGE}", 'launch.env={"TOKEN": "$TOKEN"}')
    assert said.returncode == 0, said.stderr
    until(lambda: len(listed_boxes(tree)) >= boxes, seconds=180, picture=lambda: tree.call("ledger").stdout)


def listed_boxes(tree: Tree) -> list[dict[str, str]]:
    """The environment of each box, as its owner on the other side has it."""
    market = f"{tree.environment['FLEET_VAST_URL']}/api/v1/instances/"
    rows = httpx.get(market, headers={"Authorization": "Bearer any"}, trust_env=False).json()["instances"]
    return [dict(row["extra_env"]) for row in rows]


def everything_that_shows(tree: Tree) -> str:
    """What the verbs print that show most."""
    newest = json.loads(tree.call("runs", "--json").stdout)[-1]["run_id"]
    lists = (["runs"], ["ledger"], ["boxes", "list"], ["inbox", "list"])
    said = [
        *(tree.call(*verb, "--json") for verb in lists),
        *(tree.call("status"), tree.call("policy", "get"), tree.call("doctor")),
        *(tree.call("prompt"), tree.call("prompt", "--run", str(newest))),
    ]
    return "".join(each.stdout + each.stderr for each in said)


def test_no_secret_stands_anywhere_after_boxes_were_rented_and_everybody_has_spoken(up: Tree) -> None:
    """Keys, the secret of a box, the address of a person, the token of the door and those of boxes: in no file of the
    data folder, no log, no table of ours or of Prefect's, and in nothing that is printed. Control: the word of a person
    is found in both databases, and a key that somebody leaves in a file there."""
    hooks_token = up.call("token", "rotate", "hooks").stdout.splitlines()[1]
    rents(up, boxes=1)
    boxes = listed_boxes(up)
    door = f"http://{up.runtime.hooks_bind}/hooks/prom"

    def post(address: str, body: object) -> int:
        return httpx.post(address, json=body, trust_env=False).status_code

    heard = [post(box["FLEET_BOX_HOOK"], body) for box in boxes for body in ({"stage": "registered"}, ["no report"])]
    heard += [post(f"{boxes[0]['FLEET_BOX_HOOK']}x", {})]
    heard += [post(f"{door}/{token}", {"text": "the queue is starved"}) for token in (hooks_token, "guess")]
    assert up.call("say", "canary-word").returncode == 0
    until(lambda: json.loads(up.call("inbox", "list", "--json").stdout) == [], seconds=120, every=A_COMMAND)
    secrets = {*ALL_SECRETS, hooks_token, *(box["FLEET_BOX_HOOK"].rpartition("/")[2] for box in boxes)}

    assert heard == [*[200, 400] * len(boxes), 404, 200, 401]
    assert {box["TOKEN"] for box in boxes} == {"planted-box-token"}  # the control: it was there to be kept
    assert not {value for box in boxes for value in box.values()} & {"planted-vast-key", "planted-model-key"}
    assert found(up, secrets, said=everything_that_shows(up)) == set()

    assert {"fleet", "prefect"} <= {place.partition(".")[0] for place, _ in found(up, ["canary-word"])}
    left = up.data_dir / "left-behind"
    left.write_text("planted-vast-key")
    assert found(up, secrets) == {(str(left.relative_to(up.data_dir.parent)), "planted-vast")}
    left.unlink()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "left", "words"),
    [
        (["--drain"], 0, ["Still to go: ", "No box of fleet main is left but protected ones.", "nothing bills."]),
        ([], 2, ["2 box(es) go on billing"]),
    ],
)
def test_up_with_drain_ends_when_every_box_has_finished_and_gone(
    options: list[str], left: int, words: list[str]
) -> None:
    """Control: without it the boxes go on billing."""
    with an_up(*options) as up:
        rents(up, boxes=2)
        up.root.terminate()
        until(lambda: up.root.poll() is not None, seconds=240, picture=up.last_words)

        said = up.output.read_text()
        assert up.root.returncode == 0
        assert len(listed_boxes(up)) == left
        assert [word for word in words if word not in said] == []


@pytest.mark.parametrize("setting", ["FLEET_PREFECT_PORT", "FLEET_HOOKS_BIND"])
def test_a_port_in_use_is_named_with_its_setting_and_nothing_is_left_running(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, temporary_folder() as folder:
        port, free = taken.getsockname()[1], free_ports(1)[0]
        needed = {
            "FLEET_PREFECT_PORT": str(port if setting == "FLEET_PREFECT_PORT" else free),
            "FLEET_HOOKS_BIND": f"127.0.0.1:{port if setting == 'FLEET_HOOKS_BIND' else free}",
            "FLEET_VAST_API_KEY": "k",
            "FLEET_MODEL_URL": "http://127.0.0.1:1/v1",
            "FLEET_MODEL_NAME": "m",
            "FLEET_DEMAND_PROMETHEUS_URL": "http://127.0.0.1:1",
        }
        with started(folder, "up", settings=needed) as tree:
            assert tree.root.wait(60) == 2
            assert tree.output.read_text() == (
                f"fleet-agent: port {port} on 127.0.0.1 is in use → "
                f"stop what uses it, or set {setting} to another port\n"
            )
