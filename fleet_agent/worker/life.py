"""A worker's life: what it does before its first run, how it drains, and when it begins anew.

The first SIGTERM or SIGINT means: take no more, finish the runs at hand, end with 0. A second one, or a drain that
takes longer than a run may, ends them. Having carried out many runs, or grown large, it drains by itself and ends with
0 too: whoever keeps it starts a fresh one. So 0 always means "I am well, start me again if you want me"; everything
else is a death.

The signals are the main thread's and the event loop has a thread of its own. Prefect's flow engine, where it finds
itself in the main thread, installs a handler that turns SIGTERM into an exception in the middle of whatever runs, and
would make a crash of every drain; in another thread it leaves signals alone.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

import psutil

from fleet_agent.deploy import PROCESS_POOL, our_deployments
from fleet_agent.errors import FleetAgentError

if TYPE_CHECKING:
    from fleet_agent.settings import Settings
    from fleet_agent.wiring import HeldStore
    from fleet_agent.worker.resident import ResidentWorker

MOST_RUNS = 2
"""Runs at a time for each deployment. More than a deployment's limit of one: it is that limit that holds a run back."""

LOOK_AFTER_IT = 0.5
"""Seconds between two looks at a worker and at what it was asked to do."""

SERVER_AWAY = 5.0
"""Seconds until a server that does not answer is asked again."""

MAY_TAKE_TO_FINISH = timedelta(seconds=260)
"""For the runs at hand: a run's own bound is 240 s of real time."""


@dataclass(frozen=True)
class Lifetime:
    """After so many runs, or once it is so large (resident memory), a worker begins anew."""

    runs: int = 500
    megabytes: int = 600


class OurWorker(Protocol):
    """What both kinds have beside what Prefect's base class has."""

    @property
    def runs_ended(self) -> int: ...
    def take_no_more(self) -> None: ...
    def is_done(self) -> bool: ...
    def end_runs_now(self) -> None: ...
    async def start(self) -> None: ...


class Asked:
    """What signals have asked for; set in the main thread, read in the loop's."""

    def __init__(self) -> None:
        self._times = 0

    def __call__(self, *_: object) -> None:
        self._times += 1

    @property
    def to_end(self) -> bool:
        return self._times > 0

    @property
    def to_hurry(self) -> bool:
        return self._times > 1


def work(settings: Settings, lifetime: Lifetime) -> None:
    """Be the worker of the settings' pool until asked to end, or until its lifetime is over."""
    asked = Asked()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    with ThreadPoolExecutor(1, thread_name_prefix="worker") as thread:
        thread.submit(lambda: asyncio.run(_lead(settings, lifetime, asked))).result()


async def _lead(settings: Settings, lifetime: Lifetime, asked: Asked) -> None:
    if await _clear_what_piled_up(asked):
        async with _worker(settings) as worker:
            await _let_work(worker, lifetime, asked)


async def _let_work(worker: OurWorker, lifetime: Lifetime, asked: Asked) -> None:
    working = asyncio.create_task(worker.start())
    draining_since: float | None = None
    while not working.done() and not worker.is_done():
        await asyncio.sleep(LOOK_AFTER_IT)
        reason = "asked to end" if asked.to_end else _over(lifetime, worker)
        if reason and draining_since is None:
            print(f"{reason}: taking no more runs, finishing those at hand", flush=True)
            worker.take_no_more()
            draining_since = time.monotonic()
        too_long = draining_since and time.monotonic() - draining_since > MAY_TAKE_TO_FINISH.total_seconds()
        if asked.to_hurry or too_long:
            worker.end_runs_now()
    if working.done():
        await working  # it never ends by itself but with an error
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


def _over(lifetime: Lifetime, worker: OurWorker) -> str | None:
    """Why this worker should begin anew, or None."""
    if worker.runs_ended >= lifetime.runs:
        return f"after {worker.runs_ended} runs"
    megabytes = psutil.Process().memory_info().rss / 1e6
    if worker.runs_ended and megabytes >= lifetime.megabytes:  # a fresh one that is as large is no remedy
        return f"at {megabytes:.0f} MB"
    return None


async def _clear_what_piled_up(asked: Asked) -> bool:
    """Before the first run is taken, however long the server is away; False if asked to end before that."""
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    from fleet_agent.worker.piled_up import cancel_piled_up

    while not asked.to_end:
        try:
            async with get_client() as prefect:
                cancelled = await cancel_piled_up(prefect)
        except (HTTPError, RuntimeError) as error:  # Prefect's client raises both for a server that is away
            print(f"Prefect does not answer yet ({type(error).__name__})", flush=True)
            await asyncio.sleep(SERVER_AWAY)
        else:
            if cancelled:
                print(f"cancelled {cancelled} late runs of a schedule, whose newest is carried out", flush=True)
            return True
    return False


@asynccontextmanager
async def _worker(settings: Settings) -> AsyncGenerator[OurWorker]:
    pool, name = settings.work_pool, f"fleet-agent {socket.gethostname()}"
    if pool == PROCESS_POOL:
        from fleet_agent.worker.process import PREFETCH_SECONDS, OurFlowsWorker

        yield OurFlowsWorker(pool, name=name, limit=_limit(), prefetch_seconds=PREFETCH_SECONDS)
        return

    from fleet_agent.wiring import HeldStore
    from fleet_agent.worker.resident import ResidentWorker

    with closing(HeldStore(settings)) as store:
        worker = ResidentWorker(
            pool, name=name, limit=_limit(), prefetch_seconds=0, around_a_run=partial(_around_a_run, store)
        )
        await _make_ready(worker, store)
        yield worker


def _limit() -> int:
    return MOST_RUNS * len(our_deployments())


async def _make_ready(worker: ResidentWorker, store: HeldStore) -> None:
    """Do before it takes a run what the first one would have to wait for."""
    with suppress(FleetAgentError):  # what is wrong with the database is said by the run that wants it
        store.database()
    for entrypoint in {ours["entrypoint"] for ours in our_deployments()}:
        await worker.flow(entrypoint)
    # What stands by now stays as long as the process; looking through it after each run would take a fifth of a second.
    gc.collect()
    gc.freeze()


@contextmanager
def _around_a_run(store: HeldStore) -> Generator[None]:
    with leaving_nothing(), store.lent():
        yield


@contextmanager
def leaving_nothing() -> Generator[None]:
    """Around a run: what it leaves behind in cycles is gone with it.

    Prefect's engine leaves clients of its API so, with half a megabyte of certificates each. Python looks for cycles
    when objects have become many, not when they are large: after some forty runs, by which time the heap has grown and
    has holes that stay.
    """
    try:
        yield
    finally:
        gc.collect()
