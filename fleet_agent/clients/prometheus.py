"""Demand from Prometheus: five figures, each one instant query that yields one series.

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
from fleet_agent.domain.demand import Demand
from fleet_agent.errors import TryLater
from fleet_agent.ports import Clock

OLDEST_SAMPLE = timedelta(minutes=5)
DEADLINE = timedelta(seconds=20)
"""Real time for all five queries together."""

TOO_MUCH = 1e12
"""No queue holds so many proofs and none has waited so many seconds; what says so counts in another unit."""

SETTING = "FLEET_DEMAND_PROMETHEUS_URL"


@dataclass(frozen=True)
class DemandQueries:
    """PromQL of each figure. The first two are required."""

    pending: str = "fleet_demand_pending"
    running: str = "fleet_demand_running"
    oldest_pending_seconds: str = "fleet_demand_oldest_pending_seconds"
    done_per_hour: str = "fleet_demand_done_per_hour"
    failed_per_hour: str = "fleet_demand_failed_per_hour"


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
        seen_at = self._clock.now()
        oldest = await self._figure(self._queries.oldest_pending_seconds)
        return Demand(
            pending=round(await self._required(self._queries.pending)),
            running=round(await self._required(self._queries.running)),
            oldest_pending=None if oldest is None else timedelta(seconds=oldest),
            done_per_hour=await self._figure(self._queries.done_per_hour),
            failed_per_hour=await self._figure(self._queries.failed_per_hour),
            seen_at=seen_at,
        )

    async def _required(self, query: str) -> float:
        figure = await self._figure(query)
        if figure is None:
            raise TryLater(f"Prometheus has no series for `{query}`", "see whether the exporter runs and is scraped")
        return figure

    async def _figure(self, query: str) -> float | None:
        """The value of `query`, None where there is no such series."""
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
