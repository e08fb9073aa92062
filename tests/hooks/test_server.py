"""The process of the door, as a sender meets it: over real connections, with the logs that it really writes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

from fleet_agent.deploy import PROJECT_DIR
from fleet_agent.hooks.app import LARGEST_BODY
from fleet_agent.hooks.server import MOST_AT_ONCE
from tests.hooks.bodies import alert, group
from tests.hooks.conftest import token_of
from tests.postgres import plain
from tests.stack.waiting import until
from tests.store.rig import Fleet

AS_THE_TREE_DOES = ("-m", "fleet_agent.hooks.server")
AS_A_PERSON_DOES = ("-c", "from fleet_agent.cli import main; main()", "hooks")


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    log: Path
    origin: str

    def post(self, token: str, **request: object) -> httpx.Response:
        return httpx.post(f"{self.origin}/hooks/prom/{token}", timeout=20, trust_env=False, **request)


@contextmanager
def serving(database_url: str, folder: Path, *command: str) -> Generator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    log = folder / "hooks.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=PROJECT_DIR,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONUNBUFFERED": "1",
                "FLEET_DATABASE_URL": database_url,
                "FLEET_HOOKS_BIND": f"127.0.0.1:{port}",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "Webhooks are taken in" in log.read_text() or process.poll() is not None, seconds=30)
        yield Server(process, log, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Generator[Server]:
    with serving(database_url, tmp_path, *AS_THE_TREE_DOES) as running:
        yield running


@pytest.mark.parametrize("command", [AS_THE_TREE_DOES, AS_A_PERSON_DOES])
def test_it_takes_posts_in_and_ends_when_asked_to(
    command: Sequence[str], fleet: Fleet, database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, *command) as server:
        assert server.post(token_of(fleet), json=group(alert())).status_code == 200
        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(20) == 0
    assert [row["kind"] for row in fleet.rows("inbox")] == ["alert_firing"]


def test_whatever_goes_wrong_the_token_is_in_no_log(server: Server, fleet: Fleet, database_url: str) -> None:
    token = token_of(fleet)
    origin = server.origin
    statuses = [server.post(token, json={}).status_code, server.post(f"{token}x", json={}).status_code]
    statuses += [httpx.post(f"{origin}/hooks/{token}", trust_env=False).status_code]
    statuses += [httpx.post(f"{origin}/elsewhere/{token}", trust_env=False).status_code]
    with socket.create_connection(("127.0.0.1", int(origin.rpartition(":")[2]))) as rude:
        rude.sendall(f"POST /hooks/prom/{token} HTTP/9\r\n\r\n".encode())
        statuses += [int(rude.recv(1000).split()[1])]
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        connection.execute("ALTER TABLE inbox RENAME TO outbox")  # a defect, with a traceback
    statuses += [server.post(token, json={}).status_code]
    until(lambda: "UndefinedTable" in server.log.read_text(), seconds=20)

    said = server.log.read_text()

    assert statuses == [200, 401, 401, 404, 400, 500]
    assert "refused a post of prom" in said  # the control: it does log
    assert token not in said


def test_uvicorns_own_access_log_would_have_the_token(database_url: str, fleet: Fleet, tmp_path: Path) -> None:
    """Control of the test above."""
    naive = (
        "import uvicorn; from starlette.applications import Starlette; import os;"
        "print('Webhooks are taken in', flush=True);"
        "uvicorn.run(Starlette(), port=int(os.environ['FLEET_HOOKS_BIND'].rpartition(':')[2]))"
    )
    token = token_of(fleet)
    with serving(database_url, tmp_path, "-c", naive) as server:
        until(lambda: "Uvicorn running" in server.log.read_text(), seconds=20)
        assert server.post(token).status_code == 404
        until(lambda: token in server.log.read_text(), seconds=20)


def test_a_sender_of_too_much_hears_that_it_was_too_much(server: Server, fleet: Fleet) -> None:
    assert server.post(token_of(fleet), content=b"x" * (4 * LARGEST_BODY)).status_code == 413


def test_more_senders_than_it_can_hold_are_sent_away_and_asked_to_come_again(server: Server, fleet: Fleet) -> None:
    token = token_of(fleet)
    address = ("127.0.0.1", int(server.origin.rpartition(":")[2]))
    with ExitStack() as crowd:
        for _ in range(MOST_AT_ONCE):
            crowd.enter_context(socket.create_connection(address)).sendall(b"POST /hooks/prom HTTP/1.1\r\n")
        beyond = server.post(token, json={})
    until(lambda: server.post(token, json={}).status_code == 200, seconds=20)

    assert beyond.status_code == 503
