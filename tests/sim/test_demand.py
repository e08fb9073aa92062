"""The proof queue: it depends on the clock and on the boxes, and on nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from fleet_agent.sim.boxes import productive
from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import HOUR, DemandScript, Figures, ProofQueue, create_app
from fleet_agent.sim.market import Market, Order

MORNING = datetime(2026, 11, 29, 8, tzinfo=UTC)
SECOND = timedelta(seconds=1)
STEADY = DemandScript(waiting=5, per_hour=(40.0,) * 24)


class Bench:
    """A market and a queue on a clock that stands still until it is told to move."""

    def __init__(self, script: DemandScript, *, seed: int = 3) -> None:
        self.clock = ManualClock(MORNING)
        self.market = Market(self.clock, seed=seed)
        self.queue = ProofQueue(self.clock, self.market, script, seed)

    def rent(self) -> int:
        offer = next(offer for offer in self.market.offers() if offer.rentable)
        return self.market.rent(offer.lot.ask_id, Order("prover@sha256:0", disk_gb=Decimal(100))).id

    def later(self, by: timedelta, *, reading_every: timedelta | None = None) -> Figures:
        end = self.clock.now() + by
        while reading_every and self.clock.now() + reading_every < end:
            self.clock.advance(reading_every)
            self.queue.figures()
        self.clock.advance(end - self.clock.now())
        return self.queue.figures()


def test_work_waits_until_a_box_proves():
    bench = Bench(DemandScript(waiting=5))
    figures = bench.later(HOUR)
    assert (figures.pending, figures.running, figures.done_per_hour) == (5, 0, 0)


def test_a_box_proves_at_its_own_rate():
    bench = Bench(DemandScript(waiting=1000))
    bench.rent()
    bench.later(timedelta(minutes=10))
    (box,) = productive(bench.market, bench.clock.now())
    done = bench.later(HOUR).done_per_hour
    assert done == pytest.approx(box.proofs_per_hour, abs=1)


def test_a_proof_of_half_the_effort_takes_half_the_time():
    def done(effort: float) -> int:
        bench = Bench(DemandScript(waiting=1000, effort=effort))
        bench.rent()
        bench.later(timedelta(minutes=10))
        return bench.later(HOUR).done_per_hour

    assert done(0.5) == pytest.approx(2 * done(1.0), abs=2)


def test_the_oldest_pending_proof_gives_its_age():
    bench = Bench(DemandScript(waiting=5))
    assert bench.later(timedelta(minutes=7)).oldest_pending == timedelta(minutes=7)


def test_an_empty_queue_has_no_age():
    assert Bench(DemandScript()).later(HOUR).oldest_pending == timedelta(0)


def test_work_arrives_by_the_hour_of_the_day():
    only_at_nine = DemandScript(per_hour=tuple(60.0 if hour == 9 else 0.0 for hour in range(24)))
    bench = Bench(only_at_nine)
    assert bench.later(HOUR).pending == 0
    assert bench.later(HOUR).pending == pytest.approx(60, rel=0.4)


def test_more_work_than_one_proof_a_tick_arrives_in_full():
    assert Bench(DemandScript(per_hour=(7200.0,) * 24)).later(HOUR).pending == 7200


def test_the_same_seed_brings_the_same_work_and_another_seed_other_work():
    def arrived(seed: int) -> list[int]:
        bench = Bench(STEADY, seed=seed)
        return [bench.later(HOUR / 6).pending for _ in range(12)]

    assert arrived(1) == arrived(1)
    assert arrived(1) != arrived(2)


def test_a_proof_whose_box_goes_away_returns_to_the_head_of_the_queue():
    bench = Bench(DemandScript(waiting=5))
    box_id = bench.rent()
    while bench.later(5 * SECOND).running == 0:
        pass
    bench.market.destroy(box_id)
    figures = bench.later(5 * SECOND)
    assert (figures.pending, figures.running) == (5, 0)
    assert figures.oldest_pending == bench.clock.now() - MORNING


def test_no_proof_is_lost_or_made_up():
    bench = Bench(replace(STEADY, per_hour=(0.0,) * 24, waiting=60, failing=0.2))
    bench.rent()
    first = bench.rent()
    bench.later(timedelta(minutes=20))
    bench.market.destroy(first)
    figures = bench.later(timedelta(minutes=30))
    assert figures.pending + figures.running + figures.done_per_hour == 60
    assert figures.failed_per_hour > 0


def test_what_was_done_is_counted_for_one_hour():
    bench = Bench(DemandScript(waiting=3, effort=0.1))
    bench.rent()
    assert bench.later(timedelta(minutes=30)).done_per_hour == 3
    assert bench.later(HOUR).done_per_hour == 0


# --- reading changes nothing ------------------------------------------------------------------------------------------


class ReadDrivenQueue(ProofQueue):
    """The control: it credits the boxes of the moment with all the time since it was last read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._read_at = MORNING

    def figures(self) -> Figures:
        now = self.clock.now()
        rates = {box.instance.id: box.proofs_per_hour for box in productive(self._market, now)}
        for box_id, proofs_per_hour in rates.items():
            self._prove(box_id, proofs_per_hour * ((now - self._read_at) / HOUR), now)
        self._read_at = self._counted_until = now
        return super().figures()


def an_hour(queue: type[ProofQueue], *, reading_every: timedelta | None) -> Figures:
    """Two boxes, one of which is destroyed after 20 minutes."""
    bench = Bench(DemandScript(waiting=500))
    bench.queue = queue(bench.clock, bench.market, DemandScript(waiting=500), 3)
    box_id = bench.rent()
    bench.rent()
    for minutes in range(20):
        bench.clock.advance(timedelta(minutes=1))
        if reading_every and minutes % (reading_every // timedelta(minutes=1)) == 0:
            bench.queue.figures()
    bench.market.destroy(box_id)
    return bench.later(timedelta(minutes=40), reading_every=reading_every)


def test_the_queue_does_not_depend_on_how_often_it_is_read():
    assert an_hour(ProofQueue, reading_every=timedelta(minutes=1)) == an_hour(ProofQueue, reading_every=None)


def test_a_queue_that_counts_when_it_is_read_would_depend_on_it():
    often = an_hour(ReadDrivenQueue, reading_every=timedelta(minutes=1))
    assert often != an_hour(ReadDrivenQueue, reading_every=None)


# --- the Prometheus face ----------------------------------------------------------------------------------------------


async def query(bench: Bench, name: str | None) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(bench.queue))
    async with httpx.AsyncClient(transport=transport, base_url="http://demand") as client:
        return await client.get("/api/v1/query", params={} if name is None else {"query": name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fleet_demand_pending", 5),
        ("fleet_demand_running", 0),
        ("fleet_demand_oldest_pending_seconds", 90),
        ("fleet_demand_done_per_hour", 0),
        ("fleet_demand_failed_per_hour", 0),
    ],
)
async def test_each_gauge_is_an_instant_vector_of_one_sample_at_business_time(name: str, value: float):
    bench = Bench(DemandScript(waiting=5))
    bench.clock.advance(90 * SECOND)
    answer = (await query(bench, name)).json()
    assert answer["status"] == "success"
    assert answer["data"]["resultType"] == "vector"
    (sample,) = answer["data"]["result"]
    assert sample["metric"] == {"__name__": name}
    assert sample["value"][0] == (MORNING + 90 * SECOND).timestamp()
    assert isinstance(sample["value"][1], str)
    assert float(sample["value"][1]) == value


async def test_an_unknown_name_is_an_empty_vector_as_in_prometheus():
    answer = (await query(Bench(DemandScript()), "fleet_demand_mood")).json()
    assert answer["data"] == {"resultType": "vector", "result": []}


async def test_a_missing_query_is_bad_data():
    answer = await query(Bench(DemandScript()), None)
    assert answer.status_code == 400
    assert answer.json()["errorType"] == "bad_data"
