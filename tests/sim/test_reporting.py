"""Boxes that report: each to its own address, as long as it runs, and whatever is answered."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import Instance, Order
from fleet_agent.sim.reporting import HOOK, report
from tests.sim.test_demand import Bench

MINUTE = timedelta(minutes=1)
Answer = Callable[[httpx.Request], httpx.Response]


class Talking:
    """A bench whose boxes report, and what their owner heard."""

    def __init__(self, answer: Answer = lambda _: httpx.Response(200, json={"drain": False})) -> None:
        self.bench = Bench(DemandScript(waiting=1000))
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer

    def rent(self, **env: str) -> Instance:
        offer = next(offer for offer in self.bench.market.offers() if offer.rentable)
        return self.bench.market.rent(offer.lot.ask_id, Order("prover@sha256:0", env=env))

    async def report(self, after: timedelta) -> None:
        def hear(request: httpx.Request) -> httpx.Response:
            self.heard.append((str(request.url), json.loads(request.content)))
            return self._answer(request)

        self.bench.clock.advance(after)
        async with httpx.AsyncClient(transport=httpx.MockTransport(hear)) as client:
            await report(self.bench.market, self.bench.queue, client)


async def test_a_box_says_how_far_it_is_once_it_runs_and_nothing_once_it_is_gone():
    talking = Talking()
    box = talking.rent(**{HOOK: "http://hooks.test/box/1"})
    talking.rent()  # it has no address, and says nothing
    for _ in range(40):
        await talking.report(timedelta(seconds=10))
    stages = [words["stage"] for _, words in talking.heard]
    talking.bench.market.destroy(box.id)
    await talking.report(MINUTE)

    assert {address for address, _ in talking.heard} == {"http://hooks.test/box/1"}
    assert list(dict.fromkeys(stages)) == ["registered", "params_ready", "benchmarked", "proving"]
    assert stages == sorted(stages, key=["registered", "params_ready", "benchmarked", "proving"].index)
    assert len(talking.heard) == len(stages)
    assert talking.heard[-1][1]["tasks"] == 1
    assert talking.heard[-1][1]["proofs_per_hour"] > 0


async def test_a_box_that_is_told_to_drain_finishes_its_proof_and_gets_no_other():
    drains: list[bool] = [False]
    talking = Talking(lambda _: httpx.Response(200, json={"drain": drains[0]}))
    box = talking.rent(**{HOOK: "http://hooks.test/box/1"})
    await talking.report(10 * MINUTE)
    goes_on = [talking.bench.queue.at_hand(box.id)]
    drains[0] = True
    await talking.report(MINUTE)
    done = talking.bench.queue.figures().done_per_hour
    await talking.report(30 * MINUTE)

    assert (goes_on, talking.bench.queue.at_hand(box.id)) == ([1], 0)
    assert talking.bench.queue.figures().done_per_hour == done + 1
    assert talking.bench.queue.lost() == 0


def test_a_proof_whose_box_goes_away_is_lost_and_waits_again():
    bench = Bench(DemandScript(waiting=1000))
    box = bench.rent()
    before = bench.later(10 * MINUTE)
    bench.market.destroy(box)
    after = bench.later(MINUTE)

    assert (bench.queue.lost(), after.running) == (1, 0)
    assert after.pending == before.pending + before.running


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("nobody there", request=request)


@pytest.mark.parametrize(
    "answer",
    [
        unreachable,
        lambda _: httpx.Response(404, json={"drain": True}),
        lambda _: httpx.Response(200, text="hello"),
        lambda _: httpx.Response(200, json=["drain"]),
        lambda _: httpx.Response(200, json={"drain": "yes"}),
    ],
)
async def test_a_box_that_is_not_answered_goes_on(answer: Answer):
    talking = Talking(answer)
    box = talking.rent(**{HOOK: "http://hooks.test/box/1"})
    for _ in range(20):
        await talking.report(MINUTE)

    assert talking.bench.queue.at_hand(box.id) == 1


async def test_an_address_that_is_none_stops_nobody_else():
    talking = Talking()
    talking.rent(**{HOOK: "http://hooks.test:port/box/1"})
    talking.rent(**{HOOK: "http://hooks.test/box/2"})
    await talking.report(10 * MINUTE)

    assert [address for address, _ in talking.heard] == ["http://hooks.test/box/2"]
