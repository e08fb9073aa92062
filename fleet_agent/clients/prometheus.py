"""Demand from Prometheus: each figure is one instant query that yields one series.

What cannot be read is not zero: a query that fails, yields nothing or is ambiguous is an error that names the query.
Only a figure that nobody exports may be absent, and only where decisions can do without it.

Prometheus stamps an answer with the time of the question and itself forgets a series after five minutes without a
sample; stores that are compatible with it, and caches in front of them, may answer with an older sample and its time.
Hence the check of the age, which also finds a Prometheus whose clock is behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, Field, ValidationError

from fleet_agent.clients.address import usable_address
from fleet_agent.clients.secrecy import quoted
from fleet_agent.clients.tls import trusted
from fleet_agent.domain.demand import Demand, Market
from fleet_agent.errors import TryLater
from fleet_agent.ports import Clock

OLDEST_SAMPLE = timedelta(minutes=5)
DEADLINE = timedelta(seconds=20)
"""Real time for all queries together."""

TOO_MUCH = 1e12
"""No queue holds so many proofs and none has waited so many seconds; what says so counts in another unit."""

SETTING = "FLEET_DEMAND_PROMETHEUS_URL"


@dataclass(frozen=True)
class DemandQueries:
    """PromQL of each figure. The first two are required; what is None is not asked for."""

    pending: str = "fleet_demand_pending"
    running: str = "fleet_demand_running"
    oldest_pending_seconds: str = "fleet_demand_oldest_pending_seconds"
    done_per_hour: str = "fleet_demand_done_per_hour"
    failed_per_hour: str = "fleet_demand_failed_per_hour"
    claimed: str | None = None
    retrying: str | None = None
    final_failures_per_hour: str | None = None
    dead_workers: str | None = None
    proof_p95_seconds: str | None = None
    market_waiting: str | None = None
    market_computing: str | None = None
    market_unsubmitted: str | None = None
    market_orphaned: str | None = None
    market_slots: str | None = None


def open_client(base_url: str) -> httpx.AsyncClient:
    """A client for `PrometheusDemand`; close it when done. `base_url` is the address without /api/v1.

    Raises FixSetup where no server can be at `base_url`.
    """
    timeout = httpx.Timeout(10, connect=5)
    return httpx.AsyncClient(base_url=usable_address(base_url, SETTING), timeout=timeout, verify=trusted())


class PrometheusDemand:
    """`ports.DemandSource` over one Prometheus. `client` is one from `open_client`."""

    def __init__(
        self, client: httpx.AsyncClient, queries: DemandQueries, *, clock: Clock, deadline: timedelta = DEADLINE
    ) -> None:
        self._client = client
        self._queries = queries
        self._clock = clock
        self._deadline = deadline

    async def demand(self) -> Demand:
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                return await self._read()
        except TimeoutError as error:
            cause = f"Prometheus took over {self._deadline.total_seconds():.0f} s"
            raise TryLater(cause, "see whether it is busy") from error

    async def _read(self) -> Demand:
        seen_at, queries = self._clock.now(), self._queries
        return Demand(
            pending=round(await self._required(queries.pending)),
            running=round(await self._required(queries.running)),
            oldest_pending=await self._duration(queries.oldest_pending_seconds),
            done_per_hour=await self._figure(queries.done_per_hour),
            failed_per_hour=await self._figure(queries.failed_per_hour),
            claimed=await self._count(queries.claimed),
            retrying=await self._count(queries.retrying),
            final_failures_per_hour=await self._figure(queries.final_failures_per_hour),
            dead_workers=await self._count(queries.dead_workers),
            proof_p95=await self._duration(queries.proof_p95_seconds),
            market=await self._market(),
            seen_at=seen_at,
        )

    async def _market(self) -> Market | None:
        queries = self._queries
        market = Market(
            waiting=await self._count(queries.market_waiting),
            computing=await self._count(queries.market_computing),
            unsubmitted=await self._count(queries.market_unsubmitted),
            orphaned=await self._count(queries.market_orphaned),
            slots=await self._count(queries.market_slots),
        )
        return None if market == Market() else market

    async def _required(self, query: str) -> float:
        figure = await self._figure(query)
        if figure is None:
            raise TryLater(f"Prometheus has no series for `{query}`", "see whether the exporter runs and is scraped")
        return figure

    async def _count(self, query: str | None) -> int | None:
        figure = await self._figure(query)
        return None if figure is None else round(figure)

    async def _duration(self, query: str | None) -> timedelta | None:
        seconds = await self._figure(query)
        return None if seconds is None else timedelta(seconds=seconds)

    async def _figure(self, query: str | None) -> float | None:
        """The value of `query`, None where there is no such series, or no query."""
        if query is None:
            return None
        try:
            response = await self._client.get("/api/v1/query", params={"query": query})
        except httpx.RequestError as error:
            raise TryLater(f"Prometheus cannot be reached ({type(error).__name__})", f"check {SETTING}") from error
        sample = _only_sample(response, query)
        if sample is None:
            return None
        age = self._clock.now() - sample.taken_at
        if age > OLDEST_SAMPLE:
            raise TryLater(
                f"the newest sample of `{query}` is {age.total_seconds() / 60:.0f} min old",
                "see whether the exporter runs and both clocks agree",
            )
        return sample.value


@dataclass(frozen=True)
class Sample:
    value: float
    taken_at: datetime


def _only_sample(response: httpx.Response, query: str) -> Sample | None:
    """The one sample that `query` yields, None where it yields none. Raises TryLater for anything else."""
    try:
        answer = Answer.model_validate_json(response.content)
    except ValidationError as error:
        raise TryLater(
            f"what answers {response.status_code} to `{query}` is no Prometheus", f"check {SETTING}"
        ) from error
    if answer.status == "error":
        raise TryLater(f"Prometheus refuses `{query}`: {quoted(answer.error)}", "correct the query")
    match answer.data:
        case Vector(result=[]):
            return None
        case Vector(result=[series]):
            return _sample(series.value, query)
        case Vector(result=several):
            raise TryLater(f"`{query}` yields {len(several)} series and one is expected", "wrap it in sum(…)")
        case Scalar(result=value):
            return _sample(value, query)
        case _:
            raise TryLater(f"`{query}` yields neither a number nor an instant vector", "correct the query")


def _sample(stamped: tuple[float, str], query: str) -> Sample:
    try:
        value = float(stamped[1])
        taken_at = datetime.fromtimestamp(stamped[0], UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise TryLater(f"`{query}` yields {quoted(str(stamped))}", "correct the query") from error
    if not 0 <= value < TOO_MUCH:  # nor is NaN
        raise TryLater(f"`{query}` yields {value:g}", f"correct the query: a figure is from 0 to below {TOO_MUCH:g}")
    return Sample(value, taken_at)


# --- the wire: https://prometheus.io/docs/prometheus/latest/querying/api/ ---------------------------------------------


class Series(BaseModel):
    value: tuple[float, str]


class Vector(BaseModel):
    kind: Annotated[Literal["vector"], Field(alias="resultType")]
    result: list[Series]


class Scalar(BaseModel):
    kind: Annotated[Literal["scalar"], Field(alias="resultType")]
    result: tuple[float, str]


class Other(BaseModel):
    kind: Annotated[Literal["matrix", "string"], Field(alias="resultType")]
    result: Any


class Answer(BaseModel):
    status: Literal["success", "error"]
    error: str = ""
    data: Annotated[Vector | Scalar | Other, Field(discriminator="kind")] | None = None
