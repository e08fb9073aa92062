"""The simulated provider on a free loopback port, with a record of what was asked of it."""

import json
import socket
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.market import Market, Offer


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


@dataclass
class Recorder:
    """Passes requests on and remembers them."""

    app: ASGIApp
    asked: list[Asked] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks: list[bytes] = []

        async def overhear() -> Message:
            message = await receive()
            chunks.append(message.get("body", b""))
            return message

        async def note_and_send(message: Message) -> None:
            # Noted before the answer leaves, so that whoever has the answer finds the note.
            if message["type"] == "http.response.start":
                self.asked.append(_asked(scope, b"".join(chunks)))
            await send(message)

        await self.app(scope, overhear, note_and_send)


def _asked(scope: Scope, body: bytes) -> Asked:
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    query = scope["query_string"].decode()
    return Asked(scope["method"], scope["path"], query, headers, json.loads(body) if body else None)


@dataclass(frozen=True)
class Provider:
    """A running provider: where it is, its truth, its clock and its record."""

    url: str
    market: Market
    clock: ManualClock
    recorder: Recorder

    def asked(self, method: str, path: str) -> list[Asked]:
        return [asked for asked in self.recorder.asked if (asked.method, asked.path) == (method, path)]


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serves an app on a port that the kernel chose. Connections queue from the first line on: nobody has to wait."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def with_charset(app: ASGIApp) -> ASGIApp:
    """The same replies with a `Content-Type` that is equivalent by the book and not byte for byte."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def spell_out(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, value + b"; charset=utf-8" if name == b"content-type" else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        await app(scope, receive, spell_out)

    return wrapped


def until_running(market: Market, clock: ManualClock, instance_id: int) -> None:
    """Lets time pass until a box runs; fails if it does not within an hour."""
    for _ in range(360):
        if market.instance(instance_id).actual_status == "running":
            return
        clock.advance(timedelta(seconds=10))
    raise AssertionError(f"instance {instance_id} did not come up: {market.instance(instance_id).actual_status}")


def rentable(market: Market) -> list[Offer]:
    """What can be rented now, cheapest first."""
    return sorted((offer for offer in market.offers() if offer.rentable), key=lambda offer: offer.lot.usd_per_hour)
