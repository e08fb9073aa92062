"""A small owner for a box: it hears what is posted, answers as a test says, and shows the metrics of its prover."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.stack.waiting import until

TOKEN = "box_" + "T" * 43


@dataclass(frozen=True)
class Answer:
    """`drips` sends the body byte by byte, for ever; `hangs` sends nothing at all."""

    status: int = 200
    body: bytes = b'{"drain": false}'
    headers: tuple[tuple[str, str], ...] = ()
    drips: bool = False
    hangs: bool = False


WELL = Answer()
DRAIN = Answer(body=b'{"drain": true}')


@dataclass
class Owner:
    address: str = ""
    status_address: str = ""
    answer: Callable[[int], Answer] = lambda _: WELL
    """By the number of posts before."""
    tasks: int | None = 0
    """What the metrics of the prover show; None: they cannot be read."""
    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    counted: int = 0
    """How often the metrics were read."""
    over: threading.Event = field(default_factory=threading.Event)

    def stages(self) -> list[str]:
        """Each once, in the order in which they came."""
        return list(dict.fromkeys(words["stage"] for words in self.heard))

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first words that hold, of those that come from now on."""
        since = len(self.heard)
        until(lambda: any(map(holds, self.heard[since:])), every=0.01, picture=lambda: self.heard[-3:])
        return next(filter(holds, self.heard[since:]))

    def posts(self, more: int) -> None:
        """Wait until so many more came."""
        since = len(self.heard)
        until(lambda: len(self.heard) >= since + more, every=0.01)


@contextmanager
def owning(port: int = 0) -> Generator[Owner]:
    owner = Owner()
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler_of(owner))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    origin = f"http://127.0.0.1:{server.server_address[1]}"
    owner.address, owner.status_address = f"{origin}/box/{TOKEN}", f"{origin}/debug/metrics"
    try:
        yield owner
    finally:
        owner.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def metrics(tasks: int) -> str:
    """Beside those that make proofs others run all the time, and do not count."""
    return (
        "# HELP curio_harmonytask_active_tasks Current number of active tasks.\n"
        "# TYPE curio_harmonytask_active_tasks gauge\n"
        f'curio_harmonytask_active_tasks{{task_name="PSProve"}} {tasks}\n'
        'curio_harmonytask_active_tasks{task_name="SendMessage"} 7\n'
    )


def _handler_of(owner: Owner) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = owner.answer(len(owner.heard)) if self.path == f"/box/{TOKEN}" else Answer(404)
            owner.heard.append(json.loads(body))
            self._give(answer)

        def do_GET(self) -> None:
            owner.counted += 1
            shown = Answer(500) if owner.tasks is None else Answer(body=metrics(owner.tasks).encode())
            self._give(shown if self.path == "/debug/metrics" else Answer(404))

        def _give(self, answer: Answer) -> None:
            if answer.hangs:
                owner.over.wait()
                return
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(10**6 if answer.drips else len(answer.body)))
            self.end_headers()
            try:
                self.wfile.write(answer.body)
                while answer.drips and not owner.over.wait(0.02):
                    self.wfile.write(b" ")
            except OSError:
                pass  # nobody waits for the rest

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler
