"""Demand from Prometheus: figures that were asked for, and never a zero that nobody measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.clients.prometheus import DemandQueries, PrometheusDemand
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.demand import Market as ProofMarket
from fleet_agent.errors import TryLater
from fleet_agent.sim.demand import DemandScript, ProofQueue, create_app
from fleet_agent.sim.market import Market
from tests.clients.world import NOON, PassingTime

ALL = {
    "fleet_demand_pending": "14",
    "fleet_demand_running": "3",
    "fleet_demand_oldest_pending_seconds": "90.5",
    "fleet_demand_done_per_hour": "7.25",
    "fleet_demand_failed_per_hour": "0",
}


def demand_over(
    transport: httpx.AsyncBaseTransport, queries: DemandQueries | None = None, **options: Any
) -> PrometheusDemand:
    client = httpx.AsyncClient(base_url="http://prometheus.test/demand", transport=transport)
    return PrometheusDemand(client, queries or DemandQueries(), clock=PassingTime(), **options)


def vector(*values: object, at: float = NOON.timestamp()) -> dict[str, Any]:
    series = [{"metric": {"box": str(number)}, "value": [at, value]} for number, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": series}}


def exporting(figures: Mapping[str, str], **instead: httpx.Response | dict[str, Any]) -> httpx.MockTransport:
    """A Prometheus with these series; `instead` gives whole answers by the last word of the query's name."""

    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        special = instead.get(query.removeprefix("fleet_demand_"))
        if isinstance(special, httpx.Response):
            return special
        return httpx.Response(200, text=json.dumps(special or vector(*filter(None, [figures.get(query)]))))

    return httpx.MockTransport(answer)


async def test_five_queries_make_one_reading():
    assert await demand_over(exporting(ALL)).demand() == Demand(
        pending=14,
        running=3,
        oldest_pending=timedelta(seconds=90.5),
        done_per_hour=7.25,
        failed_per_hour=0.0,
        seen_at=NOON,
    )


MORE = {
    "fleet_demand_claimed": "5",
    "fleet_demand_retrying": "1",
    "fleet_demand_final_failures_per_hour": "0.5",
    "fleet_demand_dead_workers": "2",
    "fleet_demand_proof_p95_seconds": "96",
    "fleet_demand_market_waiting": "4",
    "fleet_demand_market_slots": "12",
}


async def test_further_queries_are_asked_where_they_are_set():
    """Control: the same Prometheus, asked by default, tells only what is above."""
    queries = replace(DemandQueries(), **{name.removeprefix("fleet_demand_"): name for name in MORE})

    asked = await demand_over(exporting(ALL | MORE), queries).demand()
    default = await demand_over(exporting(ALL | MORE)).demand()

    assert asked == default.model_copy(
        update={
            "claimed": 5,
            "retrying": 1,
            "final_failures_per_hour": 0.5,
            "dead_workers": 2,
            "proof_p95": timedelta(seconds=96),
            "market": ProofMarket(waiting=4, slots=12),
        }
    )
    assert (default.claimed, default.market, default.unread) == (None, None, {})


async def test_the_figures_of_the_simulated_proving_stack_are_read():
    time = PassingTime()
    queue = ProofQueue(time, Market(time), DemandScript(waiting=14), 0)
    app = create_app(queue)
    client = httpx.AsyncClient(base_url="http://sim.test", transport=httpx.ASGITransport(app))
    time.advance(timedelta(minutes=3))

    demand = await PrometheusDemand(client, DemandQueries(), clock=time).demand()

    assert (demand.pending, demand.running, demand.oldest_pending) == (14, 0, timedelta(minutes=3))


@pytest.mark.parametrize("query", ["pending", "running"])
async def test_a_required_figure_that_nobody_exports_is_an_error_that_names_the_query(query: str):
    figures = {name: value for name, value in ALL.items() if not name.endswith(f"demand_{query}")}

    with pytest.raises(TryLater, match=f"fleet_demand_{query}"):
        await demand_over(exporting(figures)).demand()


def test_control_a_reader_with_a_default_takes_a_missing_series_for_no_work():
    missing = vector()

    assert sum(float(series["value"][1]) for series in missing["data"]["result"]) == 0


async def test_a_figure_that_decisions_can_do_without_may_be_missing():
    required = {name: ALL[name] for name in ("fleet_demand_pending", "fleet_demand_running")}

    demand = await demand_over(exporting(required)).demand()

    assert (demand.oldest_pending, demand.done_per_hour, demand.failed_per_hour) == (None, None, None)


async def test_a_query_may_yield_a_plain_number():
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [NOON.timestamp(), "9"]}}

    assert (await demand_over(exporting(ALL, pending=scalar)).demand()).pending == 9


REFUSED = httpx.Response(400, json={"status": "error", "errorType": "bad_data", "error": "parse error at char 3"})


@pytest.mark.parametrize("query", ["pending", "oldest_pending_seconds", "done_per_hour"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (vector("1", "2"), "2 series"),
        (vector("NaN"), "nan"),
        (vector("+Inf"), "inf"),
        (vector("-1"), "-1"),
        (vector("1e12"), "1e\\+12"),
        (vector("1732881600000000"), "1.73288e\\+15"),
        (vector("1e999"), "inf"),
        (vector("many"), "many"),
        (vector("1", at=1e300), "1e\\+300"),
        (vector("1", at=NOON.timestamp() - 301), "5 min old"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "neither a number"),
        ({"status": "success"}, "neither a number"),
        (REFUSED, "parse error"),
        (httpx.Response(200, html="<title>Sign in</title>"), "no Prometheus"),
        (httpx.Response(503, text="busy"), "503"),
        (httpx.Response(302, headers={"location": "/login"}), "302"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_an_answer_that_is_no_figure_is_an_error_even_where_the_figure_may_be_missing(
    query: str, answer: httpx.Response | dict[str, Any], words: str
):
    with pytest.raises(TryLater, match=words) as error:
        await demand_over(exporting(ALL, **{query: answer})).demand()

    assert f"fleet_demand_{query}" in error.value.cause


def test_control_a_reader_that_takes_every_finite_figure_fails_on_one_in_microseconds():
    with pytest.raises(OverflowError):
        timedelta(seconds=float("1732881600000000"))


async def test_the_largest_figures_that_are_taken_can_be_reckoned_with():
    demand = await demand_over(exporting(dict.fromkeys(ALL, "999999999999"))).demand()

    assert demand.oldest_pending == timedelta(seconds=999_999_999_999)


async def test_a_sample_of_five_minutes_is_fresh_enough():
    old = vector("14", at=NOON.timestamp() - 300)

    assert (await demand_over(exporting(ALL, pending=old)).demand()).pending == 14


async def test_a_prometheus_that_is_not_there_is_told_with_the_remedy():
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(TryLater, match="FLEET_DEMAND_PROMETHEUS_URL"):
        await demand_over(httpx.MockTransport(refuse)).demand()


async def test_a_prometheus_that_never_answers_is_given_up_at_the_deadline():
    async def silence(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    with pytest.raises(TryLater, match="took over"):
        await demand_over(httpx.MockTransport(silence), deadline=timedelta(0)).demand()
