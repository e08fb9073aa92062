"""The resident worker against a real Prefect server: what wakes it, what ends a run, and what it survives.

The deployments name our entrypoint, for it refuses every other one; what is loaded there is a probe.
"""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.context import SyncClientContext
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_WORKER_QUERY_SECONDS,
    temporary_settings,
)

from fleet_agent.deploy import PROCESS_POOL, PROJECT_DIR, WORK_POOL
from fleet_agent.worker.announced import MOST_MISSES, Announced
from fleet_agent.worker.life import leaving_nothing
from fleet_agent.worker.piled_up import all_but_the_newest, cancel_piled_up
from fleet_agent.worker.process import OurFlowsWorker
from fleet_agent.worker.resident import ResidentWorker, to_begin
from tests.postgres import TemporaryPostgres, temporary_folder
from tests.stack.prefect_server import PrefectServer, prefect_server

pytestmark = [
    pytest.mark.prefect,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # of Prefect's own parts, which run in this process here
]

NEVER = 3600.0
"""Seconds between two slow looks, where a test is about what happens without one."""

WITHIN = 30.0
"""Seconds in which only a broken program does not do it."""

LEFT_BEHIND: ContextVar[str] = ContextVar("LEFT_BEHIND", default="nothing")


class Probe:
    """A flow whose runs tell what they do and end when they are told."""

    def __init__(self) -> None:
        self.begun: dict[str, datetime] = {}
        self.under_way = 0
        self.most_under_way = 0
        self.cleaned_up: list[str] = []
        self.found_behind: list[str] = []
        self.clients: list[SyncPrefectClient] = []
        self._may_end: dict[str, asyncio.Event] = {}

        @flow(name="probe")
        async def probe(fleet: str = "main", do: str = "") -> str:
            return await self._run(fleet, do)

        self.flow = probe

    def let_end(self, name: str) -> None:
        self._may_end.setdefault(name, asyncio.Event()).set()

    async def until_begun(self, name: str) -> None:
        await eventually(lambda: name in self.begun)

    async def _run(self, fleet: str, do: str) -> str:
        name = f"{fleet} {do}".strip()
        self.begun[name] = datetime.now(UTC)
        self.found_behind.append(LEFT_BEHIND.get())
        self.clients.append(get_client(sync_client=True))
        LEFT_BEHIND.set(name)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if do == "exit":
                sys.exit(3)
            if do == "fail":
                raise ValueError("of the flow")
            if do.startswith("wait"):
                await self._may_end.setdefault(name, asyncio.Event()).wait()
            return name
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # cleaning up takes time, and gets it
            self.cleaned_up.append(name)
            raise
        finally:
            self.under_way -= 1


class ProbingWorker(ResidentWorker):
    @classmethod
    def __dispatch_key__(cls) -> str:
        return cls.__name__

    def __init__(self, probe: Probe, **options: Any) -> None:
        super().__init__(WORK_POOL, limit=4, **{"prefetch_seconds": 0, **options})
        self._probe = probe

    async def flow(self, entrypoint: str) -> Any:
        return self._probe.flow


class DeafWorker(ProbingWorker):
    """The control: without the subscription."""

    async def _keep_listening(self) -> None:
        await asyncio.Event().wait()


class StartsProcesses(OurFlowsWorker):
    """The other kind. It looks when it starts and when a test asks it to."""

    def __init__(self, _: Probe, **options: Any) -> None:
        super().__init__(PROCESS_POOL, limit=4, prefetch_seconds=0, **options)


both_kinds = pytest.mark.parametrize(
    ("kind", "pool"), [(DeafWorker, WORK_POOL), (StartsProcesses, PROCESS_POOL)], ids=["resident", "process"]
)


@pytest.fixture(scope="module")
def server(postgres: TemporaryPostgres) -> Generator[PrefectServer]:
    with temporary_folder() as folder, prefect_server(folder, postgres.server) as server:
        server.has_pools()
        yield server


@pytest.fixture
def probe() -> Generator[Probe]:
    yield Probe()
    gc.collect()  # what Prefect's threads leave open is found here, where it is no error of ours


@asynccontextmanager
async def working(
    server: PrefectServer,
    probe: Probe,
    *,
    kind: type[ProbingWorker | StartsProcesses] = ProbingWorker,
    **options: Any,
) -> AsyncGenerator[ProbingWorker | StartsProcesses]:
    """A worker at work, past its first look."""
    told = {
        PREFECT_API_URL: server.place.api_url,
        PREFECT_API_AUTH_STRING: server.place.auth_string,
        PREFECT_WORKER_QUERY_SECONDS: NEVER,
    }
    with temporary_settings(told):
        worker = kind(probe, **options)
        task = asyncio.create_task(worker.start(printer=lambda *_: None))
        await eventually(lambda: worker.is_setup or task.done())
        await asyncio.sleep(1)
        try:
            yield worker
        finally:
            assert not task.done(), task
            worker.end_runs_now()
            task.cancel()
            _, unended = await asyncio.wait({task}, timeout=WITHIN)
            assert not unended, asyncio.all_tasks()


async def eventually(holds: Callable[[], object], *, within: float = WITHIN) -> None:
    async with asyncio.timeout(within):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 (another process has no event)
            await asyncio.sleep(0.05)


async def is_in(server: PrefectServer, run: str, *states: str, within: float = WITHIN) -> None:
    await eventually(lambda: server.state(run) in states, within=within)


# --- what wakes it ----------------------------------------------------------------------------------------------------


async def test_a_run_begins_because_of_its_event_without_any_slow_look(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("woken")
    async with working(server, probe):
        run = server.run_of(deployment)
        await is_in(server, run, "Completed")


async def test_without_the_subscription_it_does_not(server: PrefectServer, probe: Probe) -> None:
    """The control of the test above; and the slow look that finds it all the same."""
    deployment = server.deployment("deaf")
    async with working(server, probe, kind=DeafWorker) as worker:
        run = server.run_of(deployment)
        await asyncio.sleep(5)
        assert server.state(run) == "Scheduled"

        await worker.get_and_submit_flow_runs()  # what Prefect calls every ten seconds
        await is_in(server, run, "Completed")


class BelievesItsLook(ProbingWorker):
    """The control: what its look did not find is not there."""

    def __init__(self, probe: Probe, **options: Any) -> None:
        super().__init__(probe, **options)
        self._announced = NothingIsAnnounced()


class NothingIsAnnounced(Announced):
    def hear(self, run: str) -> None:
        pass


@contextmanager
def commits_that_take_a_second(server: PrefectServer) -> Generator[None]:
    """Of new flow runs, in Prefect's database: the event of a run is out long before the run can be found."""
    with psycopg.connect(server.database_url, autocommit=True) as database:
        database.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END';"
            "CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON flow_run DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION dawdle()"
        )
        try:
            yield
        finally:
            database.execute("DROP FUNCTION dawdle CASCADE")


async def test_a_run_begins_whose_event_came_before_it_could_be_found(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("early-event")
    with commits_that_take_a_second(server):
        async with working(server, probe):
            run = await asyncio.to_thread(server.run_of, deployment)
            await is_in(server, run, "Completed")


async def test_whoever_believes_the_first_look_leaves_it_to_the_slow_one(server: PrefectServer, probe: Probe) -> None:
    """The control of the test above."""
    deployment = server.deployment("early-event-believed")
    with commits_that_take_a_second(server):
        async with working(server, probe, kind=BelievesItsLook) as worker:
            run = await asyncio.to_thread(server.run_of, deployment)
            await asyncio.sleep(5)
            assert server.state(run) == "Scheduled"

            await worker.get_and_submit_flow_runs()
            await is_in(server, run, "Completed")


async def test_what_waits_for_the_slot_begins_when_the_run_before_it_ends(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("queue")
    async with working(server, probe, kind=DeafWorker) as worker:
        runs = [server.run_of(deployment, do=f"wait {number}") for number in range(3)]
        await worker.get_and_submit_flow_runs()
        for number in range(3):
            await probe.until_begun(f"main wait {number}")
            probe.let_end(f"main wait {number}")
        for run in runs:
            await is_in(server, run, "Completed")
        assert probe.most_under_way == 1
        assert "AwaitingConcurrencySlot" not in [state for run in runs for state in server.states(run)]


async def test_runs_of_two_fleets_go_on_side_by_side(server: PrefectServer, probe: Probe) -> None:
    east, west = server.deployment("east"), server.deployment("west")
    async with working(server, probe):
        server.run_of(east, fleet="east", do="wait")
        server.run_of(west, fleet="west", do="wait")
        await probe.until_begun("east wait")
        await probe.until_begun("west wait")
        assert probe.most_under_way == 2


async def test_a_slot_that_somebody_else_holds_is_tried_again(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("held")
    foreign = server.run_of(deployment)
    server.ask("POST", f"/flow_runs/{foreign}/set_state", {"state": {"type": "PENDING"}})
    async with working(server, probe):
        run = server.run_of(deployment)
        await is_in(server, run, "AwaitingConcurrencySlot")
        server.ask("POST", f"/flow_runs/{foreign}/set_state", {"state": {"type": "CRASHED"}, "force": True})
        await is_in(server, run, "Completed")


@pytest.mark.parametrize("prefetch", [0, 10])
async def test_a_scheduled_run_begins_at_its_time_and_not_before(
    server: PrefectServer, probe: Probe, prefetch: int
) -> None:
    deployment = server.deployment(f"scheduled-{prefetch}")
    async with working(server, probe, prefetch_seconds=prefetch):
        due = datetime.now(UTC) + timedelta(seconds=4)
        run = server.run_of(deployment, scheduled_time=due.isoformat())
        await is_in(server, run, "Completed")
        assert probe.begun["main"] >= due - timedelta(seconds=0.5)  # Prefect waits for whole seconds


async def test_the_subscription_comes_back_after_a_restart_of_the_server(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("restarted")
    async with working(server, probe):
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        run = server.run_of(deployment)
        await is_in(server, run, "Completed", within=60)


# --- what ends a run --------------------------------------------------------------------------------------------------


async def test_a_run_that_a_person_cancels_is_cancelled_and_no_other(server: PrefectServer, probe: Probe) -> None:
    one, other = server.deployment("cancelled"), server.deployment("not-cancelled")
    async with working(server, probe):
        cancelled, goes_on = server.run_of(one, do="wait 1"), server.run_of(other, do="wait 2")
        await probe.until_begun("main wait 1")
        await probe.until_begun("main wait 2")

        server.cancel(cancelled)

        await is_in(server, cancelled, "Cancelled")
        assert probe.cleaned_up == ["main wait 1"]
        assert "Crashed" not in server.states(cancelled)
        assert server.state(goes_on) == "Running"
        probe.let_end("main wait 2")
        await is_in(server, goes_on, "Completed")


async def test_a_cancellation_that_nobody_heard_is_found_by_the_slow_look(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("unheard")
    async with working(server, probe, kind=DeafWorker) as worker:
        run = server.run_of(deployment, do="wait")
        await worker.get_and_submit_flow_runs()
        await probe.until_begun("main wait")
        server.cancel(run)

        await worker.get_and_submit_flow_runs()

        await is_in(server, run, "Cancelled")


@pytest.mark.parametrize(("do", "state"), [("exit", "Crashed"), ("fail", "Failed")])
async def test_what_a_flow_raises_is_the_end_of_its_run_and_of_nothing_else(
    server: PrefectServer, probe: Probe, do: str, state: str
) -> None:
    deployment = server.deployment(f"raises-{do}")
    async with working(server, probe):
        await is_in(server, server.run_of(deployment, do=do), state)
        await is_in(server, server.run_of(deployment), "Completed")


async def test_a_lease_that_is_lost_is_the_end_of_its_run_and_of_nothing_else(
    server: PrefectServer, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's engine cancels its own run then, where the worker would see the same exception when it is to end."""
    is_lost = threading.Event()
    leases: list[UUID] = []

    def renew(lease: UUID, *_: object) -> None:
        leases.append(lease)
        if lease == leases[0]:
            is_lost.wait(WITHIN)
            raise TimeoutError("made up: the lease could not be renewed")

    monkeypatch.setattr("prefect.concurrency._leases._lease_renewal_loop", renew)
    one, other = server.deployment("lease-lost"), server.deployment("lease-kept")
    async with working(server, probe):
        loses = server.run_of(one, do="wait 1")
        await probe.until_begun("main wait 1")
        goes_on = server.run_of(other, do="wait 2")
        await probe.until_begun("main wait 2")

        is_lost.set()

        await is_in(server, loses, "Crashed")
        probe.let_end("main wait 2")
        await is_in(server, goes_on, "Completed")
        await is_in(server, server.run_of(one), "Completed")


async def test_a_run_that_is_not_waited_for_is_reported_as_crashed(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("hurried")
    async with working(server, probe) as worker:
        run = server.run_of(deployment, do="wait")
        await probe.until_begun("main wait")
        worker.take_no_more()
        assert not worker.is_done()

        worker.end_runs_now()

        await is_in(server, run, "Crashed")
        await eventually(worker.is_done)


async def test_a_worker_that_drains_finishes_what_it_has_and_takes_no_more(server: PrefectServer, probe: Probe) -> None:
    one, other = server.deployment("drained"), server.deployment("not-taken")
    async with working(server, probe) as worker:
        run = server.run_of(one, do="wait")
        await probe.until_begun("main wait")
        worker.take_no_more()
        late = server.run_of(other)
        await asyncio.sleep(2)
        probe.let_end("main wait")
        await is_in(server, run, "Completed")
        await eventually(worker.is_done)
        assert server.state(late) == "Scheduled"
    server.ask("DELETE", f"/flow_runs/{late}")


async def test_what_one_run_leaves_in_its_context_the_next_does_not_find(server: PrefectServer, probe: Probe) -> None:
    deployment = server.deployment("private")
    async with working(server, probe):
        for _ in range(3):
            await is_in(server, server.run_of(deployment), "Completed")
    assert probe.found_behind == ["nothing"] * 3


# --- what is left of a run --------------------------------------------------------------------------------------------


class LendsNoClient(ProbingWorker):
    """The control: whatever of Prefect's engine wants a client makes its own."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        SyncClientContext.__var__.set(cast("Any", None))  # in a context that this run has for itself
        return await super().run(*args, **kwargs)


@pytest.mark.parametrize(("kind", "clients"), [(ProbingWorker, 1), (LendsNoClient, 3)])
async def test_what_a_run_calls_without_awaiting_finds_one_client_for_all_runs(
    server: PrefectServer, probe: Probe, kind: type[ProbingWorker], clients: int
) -> None:
    deployment = server.deployment("client")
    async with working(server, probe, kind=kind):
        for _ in range(3):
            await is_in(server, server.run_of(deployment), "Completed")
    assert len(set(probe.clients)) == clients


async def clients_after_each_run(
    server: PrefectServer, probe: Probe, around_a_run: Callable[[], AbstractContextManager[object]]
) -> list[int]:
    """How many clients have come to stay since the worker started, while Python does not look for cycles by itself."""
    deployment = server.deployment("leaves")
    counts: list[int] = []
    async with working(server, probe, around_a_run=around_a_run) as worker:
        from_before = prefect_clients()  # held, so that the end of an earlier test's thread does not count as one fewer
        gc.disable()
        try:
            while len(counts) < 4:
                server.run_of(deployment)
                await eventually(lambda: worker.runs_ended > len(counts))
                counts.append(len(prefect_clients()) - len(from_before))
        finally:
            gc.enable()
    return counts


def prefect_clients() -> list[PrefectClient]:
    return [each for each in gc.get_objects() if isinstance(each, PrefectClient)]


async def test_what_a_run_leaves_in_cycles_is_gone_with_it(server: PrefectServer, probe: Probe) -> None:
    counts = await clients_after_each_run(server, probe, leaving_nothing)
    assert counts == [counts[0]] * 4


async def test_what_is_left_to_the_collector_piles_up(server: PrefectServer, probe: Probe) -> None:
    """The control of the test above."""
    counts = await clients_after_each_run(server, probe, nullcontext)
    assert counts == sorted(set(counts))


# --- what it does not run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "differs",
    [
        {"entrypoint": "os.system"},
        {"pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "true"}}]},
        {"job_variables": {"command": "true"}},
    ],
    ids=lambda differs: next(iter(differs)),
)
async def test_a_run_of_a_foreign_deployment_is_refused(
    server: PrefectServer, probe: Probe, differs: dict[str, Any]
) -> None:
    deployment = server.deployment(f"foreign-{next(iter(differs))}", **differs)
    async with working(server, probe):
        run = server.run_of(deployment)
        await is_in(server, run, "Crashed")
        assert (
            "runs the deployments of `fleet-agent deploy`" in server.ask("GET", f"/flow_runs/{run}")["state"]["message"]
        )
        assert probe.begun == {}


# --- what goes wrong when a run is begun ------------------------------------------------------------------------------


@both_kinds
async def test_a_run_whose_deployment_is_deleted_under_it_keeps_no_place(
    server: PrefectServer, probe: Probe, monkeypatch: pytest.MonkeyPatch, kind: type[DeafWorker], pool: str
) -> None:
    deployment = server.deployment(f"deleted-{kind.__name__}", work_pool_name=pool)
    async with working(server, probe, kind=kind) as worker:
        read = worker.client.read_deployment
        read_by_then: list[UUID] = []

        async def delete_and_read(deployment: UUID) -> Any:
            read_by_then.append(deployment)
            server.ask("DELETE", f"/deployments/{deployment}")
            return await read(deployment)

        monkeypatch.setattr(worker.client, "read_deployment", delete_and_read)
        server.run_of(deployment)
        await worker.get_and_submit_flow_runs()

        await eventually(lambda: read_by_then)
        await eventually(lambda: worker.limiter.borrowed_tokens == 0)
        worker.take_no_more()
        await eventually(worker.is_done)


@both_kinds
async def test_an_error_of_the_api_ends_no_worker_and_the_run_is_tried_again(
    server: PrefectServer, probe: Probe, monkeypatch: pytest.MonkeyPatch, kind: type[DeafWorker], pool: str
) -> None:
    run = server.run_of(server.deployment(f"unread-{kind.__name__}", work_pool_name=pool))
    tries: list[UUID] = []

    async def fail(_: PrefectClient, deployment: UUID) -> Any:
        tries.append(deployment)
        raise httpx.ConnectError("made up")

    monkeypatch.setattr(PrefectClient, "read_deployment", fail)
    async with working(server, probe, kind=kind) as worker:
        await eventually(lambda: len(tries) >= 1 and worker.limiter.borrowed_tokens == 0)
        await worker.get_and_submit_flow_runs()
        await eventually(lambda: len(tries) >= 2)
        worker.take_no_more()
        await eventually(worker.is_done)
    server.ask("DELETE", f"/flow_runs/{run}")


# --- what piled up ----------------------------------------------------------------------------------------------------


async def test_of_the_heartbeats_that_were_missed_only_the_newest_is_left(server: PrefectServer) -> None:
    deployment = server.deployment("main")
    now = datetime.now(UTC)
    missed = [server.run_of(deployment, scheduled_time=(now - timedelta(minutes=5 * n)).isoformat()) for n in range(12)]
    by_hand = [server.run_of(deployment, do="by hand") for _ in range(2)]
    to_come = server.run_of(deployment, scheduled_time=(now + timedelta(minutes=5)).isoformat())
    with psycopg.connect(server.database_url) as database:  # only its own scheduler may say so of a run
        database.execute("UPDATE flow_run SET auto_scheduled = true WHERE id = ANY(%s::uuid[])", [[*missed, to_come]])

    with temporary_settings({PREFECT_API_URL: server.place.api_url, PREFECT_API_AUTH_STRING: server.place.auth_string}):
        async with get_client() as prefect:
            assert await cancel_piled_up(prefect) == 11
            assert await cancel_piled_up(prefect) == 0

    newest, *older = missed
    assert {server.state(run) for run in older} == {"Cancelled"}
    # The control: what a person made is as late, and is not touched.
    assert {server.state(run) for run in (newest, to_come, *by_hand)} == {"Scheduled"}
    for run in (newest, to_come, *by_hand):
        server.ask("DELETE", f"/flow_runs/{run}")


async def test_a_late_run_that_somebody_deletes_meanwhile_is_passed_over(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = server.deployment("main")
    now = datetime.now(UTC)
    newest, deleted, older = [
        server.run_of(deployment, scheduled_time=(now - timedelta(minutes=n)).isoformat()) for n in (5, 10, 15)
    ]
    with psycopg.connect(server.database_url) as database:
        database.execute(
            "UPDATE flow_run SET auto_scheduled = true WHERE id = ANY(%s::uuid[])", [[newest, deleted, older]]
        )

    with temporary_settings({PREFECT_API_URL: server.place.api_url, PREFECT_API_AUTH_STRING: server.place.auth_string}):
        async with get_client() as prefect:
            read = prefect.read_flow_runs

            async def read_and_delete(**filters: Any) -> list[FlowRun]:
                late = await read(**filters)
                server.ask("DELETE", f"/flow_runs/{deleted}")
                return late

            monkeypatch.setattr(prefect, "read_flow_runs", read_and_delete)
            assert await cancel_piled_up(prefect) == 1

    assert server.state(older) == "Cancelled"
    server.ask("DELETE", f"/flow_runs/{newest}")


# --- its process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "why"), [("--most-runs=2", "after 2 runs: "), ("--most-megabytes=1", r"at \d+ MB: ")], ids=["runs", "size"]
)
def test_a_worker_begins_anew_after_so_many_runs_or_when_so_large_and_ends_well(
    server: PrefectServer, most: str, why: str
) -> None:
    """With our real flow, which has no settings here, so that its runs fail at once."""
    deployment = server.deployment(f"lifetime{most}")
    runs = [server.run_of(deployment, fleet="lifetime") for _ in range(2)]
    environment = {"PATH": "", **server.client_environment}

    said = subprocess.run(
        [sys.executable, "-m", "fleet_agent.worker", most],
        env=environment,
        cwd=PROJECT_DIR,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    ).stdout

    assert re.search(f"^{why}taking no more runs", said, re.MULTILINE)
    # The control of the size, which every worker has: not before its first run.
    assert server.state(runs[0]) == "Failed"
    for run in runs:
        server.ask("DELETE", f"/flow_runs/{run}")


def test_prefect_knows_the_type_by_its_entry_point_and_imports_little_for_it() -> None:
    code = (
        "import sys; from prefect.workers.base import BaseWorker;"
        "print(BaseWorker.get_worker_class_from_type('fleet-agent').__name__);"
        "heavy = {'openai', 'flows', 'fleet_agent.wiring', 'fleet_agent.store', 'fleet_agent.settings'};"
        "print(heavy & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines() == ["ResidentWorker", "set()"]


# --- what is decided without a server ---------------------------------------------------------------------------------

NOW = datetime(2026, 3, 17, 12, tzinfo=UTC)


def found(deployment: UUID, seconds: int) -> WorkerFlowRunResponse:
    """What Prefect answers of a run that is due in so many seconds."""
    due = NOW + timedelta(seconds=seconds)
    run = {"flow_id": uuid4(), "deployment_id": deployment, "next_scheduled_start_time": due}
    return WorkerFlowRunResponse.model_validate({"work_pool_id": uuid4(), "work_queue_id": uuid4(), "flow_run": run})


def test_the_oldest_due_run_of_each_deployment_that_has_none_at_hand_is_begun() -> None:
    east, west, busy = uuid4(), uuid4(), uuid4()
    answer = [found(east, -9), found(busy, -8), found(east, -5), found(west, 0), found(west, 1), found(east, 7)]

    begin, next_due = to_begin(answer, until=NOW, taken={uuid4(): busy})

    assert begin == [answer[0], answer[3]]
    assert next_due == NOW + timedelta(seconds=1)


class Beginning(ProbingWorker):
    async def looks_while_it_begins(self, run: WorkerFlowRunResponse) -> list[FlowRun]:
        self._submitting_flow_run_ids.add(run.flow_run.id)
        return await self._submit_scheduled_flow_runs([run])


async def test_a_run_that_is_still_being_begun_is_not_taken_a_second_time() -> None:
    """It may have ended already, and then nobody would give its deployment back."""
    worker = Beginning(Probe())
    assert await worker.looks_while_it_begins(found(uuid4(), -1)) == []
    worker.take_no_more()
    assert worker.is_done()


class IsTold(ProbingWorker):
    async def ends(self, until_woken: Callable[[], Awaitable[None]], *, ticks: int) -> bool:
        """Whether it is over when it is told to end so many ticks of the loop after it was woken."""

        async def go_on() -> None:
            while True:
                await until_woken()
                self._wake.clear()

        going_on = asyncio.create_task(go_on())
        await asyncio.sleep(0.01)
        self._wake.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        going_on.cancel()
        ended, _ = await asyncio.wait({going_on}, timeout=0.1)
        going_on.cancel()
        return bool(ended)

    async def until_woken(self) -> None:
        await self._until_woken()

    async def until_woken_naively(self) -> None:
        await asyncio.wait_for(self._wake.wait(), WITHIN)


MOMENTS = range(6)


async def test_who_is_told_to_end_while_it_is_woken_ends() -> None:
    worker = IsTold(Probe())
    assert all([await worker.ends(worker.until_woken, ticks=ticks) for ticks in MOMENTS])


async def test_control_waiting_with_wait_for_it_would_go_on_before_python_3_12() -> None:
    worker = IsTold(Probe())
    ends = all([await worker.ends(worker.until_woken_naively, ticks=ticks) for ticks in MOMENTS])
    assert ends == (sys.version_info >= (3, 12))


class CannotLook(ProbingWorker):
    async def gives_up(self) -> bool:
        """Whether, having heard of a run, it comes to rest although each of its looks fails."""
        self._has_successfully_synced = True
        self._announced.hear("run")
        looking = asyncio.create_task(self._keep_looking())
        await eventually(lambda: self._announced.look_again_after is None)
        looking.cancel()
        return self.looks == MOST_MISSES

    looks = 0

    async def _get_scheduled_flow_runs(self) -> list[WorkerFlowRunResponse]:
        self.looks += 1
        raise httpx.ConnectError("made up")


@pytest.mark.parametrize("drains", [False, True])
async def test_looks_that_fail_are_not_repeated_for_ever(drains: bool) -> None:
    worker = CannotLook(Probe())
    if drains:
        worker.take_no_more()
    assert await worker.gives_up() is not drains


def test_a_look_that_misses_a_run_is_repeated_less_and_less_often_and_in_the_end_no_more() -> None:
    announced = Announced()
    assert announced.look_again_after is None

    announced.hear("run")
    pauses: list[float | None] = []
    for _ in range(MOST_MISSES):
        announced.looked(["another"])
        pauses.append(announced.look_again_after)

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, None]


def test_what_a_look_has_found_is_looked_for_no_more_and_the_newest_sets_the_pace() -> None:
    announced = Announced()
    announced.hear("old")
    announced.looked([])
    announced.looked([])
    assert announced.look_again_after == 0.1

    announced.hear("new")
    announced.looked([])
    assert announced.look_again_after == 0.05

    announced.looked(["new"])
    assert announced.look_again_after == 0.4
    announced.looked(["old"])
    assert announced.look_again_after is None


def test_where_nothing_is_to_come_there_is_no_time_to_wake_at() -> None:
    assert to_begin([], until=NOW, taken={}) == ([], None)


def test_of_late_runs_the_newest_of_each_deployment_and_set_of_parameters_stays() -> None:
    main, other = uuid4(), uuid4()

    def late(deployment: UUID, *, auto: bool = True, **parameters: str) -> FlowRun:
        run = {"flow_id": uuid4(), "deployment_id": deployment, "auto_scheduled": auto, "parameters": parameters}
        return FlowRun.model_validate(run)

    newest, nightly, by_hand = late(main, trigger="heartbeat"), late(main, trigger="review"), late(main, auto=False)
    older, elsewhere = late(main, trigger="heartbeat"), late(other, trigger="heartbeat")

    assert all_but_the_newest([newest, nightly, by_hand, older, elsewhere, by_hand]) == [older]
