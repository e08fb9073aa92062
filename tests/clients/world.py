"""What the tests of the clients stand on: time that passes only when somebody sleeps, and the simulated market."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import httpx

from fleet_agent.clients.pace import MemoryTurns, Pace, Turns
from fleet_agent.clients.vast import EXCHANGE_DEADLINE, LIMITS, READ_DEADLINE, Looks, VastMarket, open_client
from fleet_agent.domain.pace import Limit
from fleet_agent.domain.policy import Launch, Policy
from fleet_agent.ports import RentOrder
from fleet_agent.sim.market import Market, Order
from fleet_agent.sim.vast_app import create_app

KEY = "made-up-vast-key-0123456789abcdef"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
IMAGE = f"registry.example/cuzk@sha256:{'ab' * 32}"
POLICY = Policy(launch=Launch(image=IMAGE))


class PassingTime:
    """Both faces of a clock, and the sleep that moves them. `slept` lists every sleep in seconds."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._passed = timedelta(0)

    def now(self) -> datetime:
        return NOON + self._passed

    def elapsed(self) -> timedelta:
        return self._passed

    def advance(self, by: timedelta) -> None:
        self._passed += by

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(timedelta(seconds=seconds))


def market_over(
    transport: httpx.AsyncBaseTransport,
    time: PassingTime,
    *,
    key: str = KEY,
    box_env: Mapping[str, str] | None = None,
    limits: Mapping[str, Limit] = LIMITS,
    turns: Turns | None = None,
    looks: Looks | None = None,
    begins_with_newest: bool = False,
    exchange_deadline: timedelta = EXCHANGE_DEADLINE,
    read_deadline: timedelta = READ_DEADLINE,
) -> VastMarket:
    """The client under test over any wire."""
    client = open_client("http://vast.test", key, transport=transport)
    pace = Pace(limits, turns or MemoryTurns(time.now), sleep=time.sleep)
    return VastMarket(
        client,
        clock=time,
        pace=pace,
        box_env=box_env or {},
        looks=looks,
        begins_with_newest=begins_with_newest,
        sleep=time.sleep,
        exchange_deadline=exchange_deadline,
        read_deadline=read_deadline,
    )


def answering(*answers: httpx.Response | Exception, asked: list[httpx.Request] | None = None) -> httpx.MockTransport:
    """A wire that gives each answer once, in order, and the last one for ever."""
    waiting = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        given = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(given, Exception):
            raise given
        return httpx.Response(given.status_code, headers=given.headers, content=given.content)

    return httpx.MockTransport(answer)


class SimulatedWorld:
    """A seeded market, its HTTP face, and our client in front of it, all in one time."""

    def __init__(
        self, *, key: str = KEY, box_env: Mapping[str, str] | None = None, limits: Mapping[str, Limit] = LIMITS
    ) -> None:
        self.time = PassingTime()
        self.truth = Market(self.time, seed=7, api_key=KEY)
        self.requests: list[httpx.Request] = []
        app = create_app(self.truth, elapsed=lambda: self.time.elapsed().total_seconds())
        self.wire = Recording(httpx.ASGITransport(app), self.requests)
        self.market = market_over(self.wire, self.time, key=key, box_env=box_env, limits=limits)

    def rent_directly(self, boxes: int) -> None:
        """Boxes that somebody made without our client."""
        asks = [offer.lot.ask_id for offer in self.truth.offers() if offer.rentable]
        for number, ask_id in enumerate(asks[:boxes]):
            self.truth.rent(ask_id, Order(image=IMAGE, label=f"fa/abc123/main/r{number}-s1-c0-wxyz"))

    def effects(self) -> list[httpx.Request]:
        return [request for request in self.requests if "/asks/" in request.url.path or request.method == "DELETE"]


class Recording(httpx.AsyncBaseTransport):
    """Passes requests on and remembers them."""

    def __init__(self, inner: httpx.AsyncBaseTransport, requests: list[httpx.Request]) -> None:
        self._inner = inner
        self._requests = requests

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._requests.append(request)
        return await self._inner.handle_async_request(request)


def order(offer_id: int, **changes: object) -> RentOrder:
    fields: dict[str, object] = {
        "offer_id": offer_id,
        "label": "fa/abc123/main/r1-s1-c0-wxyz",
        "image": IMAGE,
        "disk_gb": 100,
        "runtype": "args",
        "env": {"PROVER": "cuzk"},
        "onstart": "",
        "send_by": timedelta(days=1),
    }
    return RentOrder.model_validate(fields | changes)
