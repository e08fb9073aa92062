"""The resident worker: a Prefect worker type that runs our flows inside its own process.

    events of Prefect ──► wake ──► look: what is due? ──► begin it ──► run ends ──► wake
    the next due time ──►  ▲ ◄──── not what the event named? soon again
    every ten seconds ─────┘

A process for each run costs three CPU seconds and ten seconds of waiting. Here a flow is loaded once and a run is
a coroutine; Prefect's engine makes a normal flow run of it, with its limit, states, tasks and logs.

**One look at a time.** Whatever wakes the worker sets one flag, and one task looks for runs that are due: so a hundred
events make a few looks, and no run begins inside another one's context. Looks see some seconds ahead, so that a run
that is scheduled begins at its time and not at the next look. Events are only ever a reason to look sooner: a dead
subscription costs seconds, never a run. An event may come before its run can be found (`announced.py`): then the look
is repeated.

**One run per deployment.** Our deployments have a limit of one, so what waits behind a run that is carried out here is
not even proposed until that run ends; then the look that follows begins it at once. Proposed earlier, Prefect would
put it off by its slot wait again and again.

**A run is its own.** It gets a task and a context of its own, and shares nothing but the flow's code and a client of
Prefect's API. A person's cancellation is reported as Cancelled, a crash as Crashed (`at_hand.py`); neither reaches the
worker or another run. The loop must not run in the main thread: there Prefect's engine turns SIGTERM into an exception
in the middle of whatever runs (`life.py` sees to it).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.context import AsyncClientContext, SyncClientContext
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import Cancelled
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorkerResult
from pydantic import PrivateAttr

from fleet_agent.worker.announced import Announced
from fleet_agent.worker.at_hand import RunAtHand
from fleet_agent.worker.beginning import BeginsOrGivesBack
from fleet_agent.worker.refusal import our_entrypoint

if TYPE_CHECKING:
    from uuid import UUID

    from anyio.abc import TaskStatus
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse, WorkerFlowRunResponse
    from prefect.events import Event
    from prefect.flows import Flow

LOOK_AHEAD = timedelta(seconds=30)
"""What becomes due within this time is known, and begins at its time. Longer than the time between two looks."""

BETWEEN_LOOKS = 0.05
"""Seconds between two looks at least: a storm of events is no reason for a storm of questions."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds before a lost subscription is tried again: doubled each time."""

ANY_RUN = "a subscription that has just begun"
"""Announced where events may have been missed; as no run is called so, the look is repeated to the last."""

CANCELLING = "prefect.flow-run.Cancelling"
MAKES_DUE = (
    "prefect.flow-run.Scheduled",
    "prefect.flow-run.Late",
    "prefect.flow-run.AwaitingConcurrencySlot",
    "prefect.flow-run.AwaitingRetry",
)


class OurFlowsConfiguration(BaseJobConfiguration):
    """Nothing to configure: what differs from it is refused. It only carries the deployment from Prefect to us."""

    _deployment: DeploymentResponse | None = PrivateAttr(default=None)

    @property
    def deployment(self) -> DeploymentResponse | None:
        return self._deployment

    @classmethod
    async def resolve_for_flow_run(
        cls, flow_run: FlowRun, *, client: PrefectClient, deployment: DeploymentResponse | None = None, **_: Any
    ) -> Self:
        """Without the work pool's template, and without asking for the flow: a person waits for what comes after."""
        if deployment is None and flow_run.deployment_id is not None:
            deployment = await client.read_deployment(flow_run.deployment_id)
        configuration = cls()
        configuration._deployment = deployment
        return configuration


class ResidentResult(BaseWorkerResult):
    """How a run ended is in its state; the worker has nothing to add."""


class ResidentWorker(BeginsOrGivesBack[OurFlowsConfiguration, BaseVariables, ResidentResult]):
    """The work pool type `fleet-agent`: used as Prefect's own workers are, but for the three calls that end it."""

    type = "fleet-agent"
    job_configuration = OurFlowsConfiguration

    _display_name = "Fleet agent"
    _description = "Runs the flows of Fleet agent inside the worker's own process, woken by events."
    _documentation_url = ""
    _logo_url = ""

    def __init__(
        self, *args: Any, around_a_run: Callable[[], AbstractContextManager[object]] = nullcontext, **kwargs: Any
    ) -> None:
        """As Prefect's own. Each run is carried out within a context of `around_a_run`, by which it may be lent things
        that live as long as the worker."""
        super().__init__(*args, **kwargs)
        self._around_a_run = around_a_run
        self.runs_ended = 0
        self._flows: dict[str, Flow[..., Any]] = {}
        self._at_hand: dict[UUID, RunAtHand] = {}
        self._deployments_taken: dict[UUID, UUID] = {}  # by flow run, from the moment it is begun
        self._wake = asyncio.Event()
        self._announced = Announced()
        self._found: frozenset[str] = frozenset()
        self._next_due: datetime | None = None
        self._takes_more = True
        self._own_tasks: list[asyncio.Task[None]] = []

    # --- its life -----------------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        """Prefect's own call before the first run: from here on it listens and looks."""
        await super().setup()
        # For all runs one client of Prefect's API, and one for what is called without awaiting: otherwise each run
        # reads certificates four times instead of once, connects anew, and leaves all that to the garbage collector.
        await self._exit_stack.enter_async_context(AsyncClientContext())
        self._exit_stack.enter_context(SyncClientContext())
        self._own_tasks = [asyncio.create_task(self._keep_looking()), asyncio.create_task(self._keep_listening())]

    async def teardown(self, *exc_info: Any) -> None:
        """Prefect's own call at the end: looks and listens no more, and waits for the runs at hand."""
        for task in self._own_tasks:
            task.cancel()
        await asyncio.gather(*self._own_tasks, return_exceptions=True)
        await super().teardown(*exc_info)

    def take_no_more(self) -> None:
        """From now on only the runs at hand are carried out."""
        self._takes_more = False

    def is_done(self) -> bool:
        """Whether it takes no more and has nothing at hand."""
        return not self._takes_more and not self._deployments_taken

    def end_runs_now(self) -> None:
        """End the runs at hand as crashed: for whoever cannot wait for them."""
        for run in self._at_hand.values():
            run.end_now()

    # --- what wakes it ------------------------------------------------------------------------------------------------

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """What Prefect calls every `PREFECT_WORKER_QUERY_SECONDS`: the slow look that needs no event."""
        self._wake.set()
        try:
            await self._look_for_cancelled()
        except Exception as error:
            self._logger.warning("Could not look for cancelled runs: %s: %s", type(error).__name__, error)
        return []

    async def _keep_listening(self) -> None:
        """Be subscribed to Prefect's events, whatever becomes of the server."""
        pause = SHORTEST_PAUSE
        while True:
            heard = EventFilter(event=EventNameFilter(name=[*MAKES_DUE, CANCELLING]))
            try:
                async with get_events_subscriber(filter=heard, reconnection_attempts=0) as events:
                    pause = SHORTEST_PAUSE
                    # For what happened while nobody listened; again and again, because the server has yet to read what
                    # we want to hear.
                    self._announced.hear(ANY_RUN)
                    self._wake.set()
                    async for event in events:
                        self._hear(event)
            except Exception as error:
                self._logger.info("Not subscribed to events (%s); the slow look goes on", type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _hear(self, event: Event) -> None:
        named = event.resource.id.removeprefix("prefect.flow-run.")
        if event.event == CANCELLING:
            for run in self._at_hand.values():
                if named == str(run.flow_run_id):
                    run.cancel()
        else:
            if named not in map(str, self._deployments_taken):  # else an earlier look has found it already
                self._announced.hear(named)
            self._wake.set()

    async def _look_for_cancelled(self) -> None:
        """The runs at hand that were cancelled while nobody listened."""
        if not self._at_hand:
            return
        cancelling = await self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                id=FlowRunFilterId(any_=list(self._at_hand)),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
            )
        )
        for flow_run in cancelling:
            if flow_run.id in self._at_hand:
                self._at_hand[flow_run.id].cancel()

    def _release_limit_slot(self, flow_run_id: UUID) -> None:
        """Prefect's own call for a run that has ended, or was not begun after all."""
        super()._release_limit_slot(flow_run_id)
        self._deployments_taken.pop(flow_run_id, None)
        self._wake.set()

    # --- what it does when awake --------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            self._wake.clear()
            self._found, self._next_due = frozenset(), None
            try:
                if self._takes_more:
                    await super().get_and_submit_flow_runs()
            except Exception as error:
                self._logger.warning("Could not look for runs: %s: %s", type(error).__name__, error)
            self._announced.looked(self._found)  # a look that failed found nothing: it is not repeated for ever
            await asyncio.sleep(BETWEEN_LOOKS)
            await self._until_woken()

    async def _until_woken(self) -> None:
        seconds = [] if self._next_due is None else [(self._next_due - datetime.now(UTC)).total_seconds()]
        if (again := self._announced.look_again_after) is not None:
            seconds.append(again)
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with what it waits for, and
            # a worker that was told to end went on looking.
            async with asyncio.timeout(max(0.0, min(seconds)) if seconds else None):
                await self._wake.wait()

    async def _get_scheduled_flow_runs(self) -> list[WorkerFlowRunResponse]:
        """What to begin now, in the order in which it became due; notes when the next is due."""
        now = datetime.now(UTC)
        prefetch = timedelta(seconds=self._prefetch_seconds)
        try:
            found = await self.client.get_scheduled_flow_runs_for_work_pool(
                work_pool_name=self._work_pool_name,
                scheduled_before=now + prefetch + LOOK_AHEAD,
                work_queue_names=list(self._work_queues),
            )
        except ObjectNotFound:  # the pool; it is made with the next heartbeat
            found = []
        self._found = frozenset(str(response.flow_run.id) for response in found)
        due, self._next_due = to_begin(found, until=datetime.now(UTC) + prefetch, taken=self._deployments_taken)
        if self._next_due is not None:
            self._next_due -= prefetch
        return due

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        # Prefect answers with runs that an earlier look has begun too. Of those one may have ended already, and nobody
        # would give its deployment back a second time.
        before = frozenset(self._submitting_flow_run_ids)
        submitting = await super()._submit_scheduled_flow_runs(flow_run_response)
        begun = [run for run in submitting if run.id not in before]
        self._deployments_taken |= {run.id: run.deployment_id or run.id for run in begun}
        return begun

    async def _propose_submitting_state(self, flow_run: FlowRun) -> None:
        """Nothing is submitted anywhere: the run begins."""

    def _emit_flow_run_submitted_event(self, configuration: BaseJobConfiguration) -> None:
        """Nor is there anything to tell of it: the server, which has one thread, would take it before the run."""

    async def _give_worker_labels_to_flow_run(self, flow_run_id: UUID) -> None:
        """After the run (`_label`), for the same reason."""

    async def _label(self, flow_run_id: UUID) -> None:
        try:
            await super()._give_worker_labels_to_flow_run(flow_run_id)
        except Exception as error:
            self._logger.info("Flow run %s has no labels: %s", flow_run_id, type(error).__name__)

    # --- one run ------------------------------------------------------------------------------------------------------

    async def run(
        self, flow_run: FlowRun, configuration: OurFlowsConfiguration, task_status: TaskStatus[Any] | None = None
    ) -> ResidentResult:
        """Prefect's own call for a run that is pending: carry it out, whatever becomes of it.

        Raises FixSetup for what is none of our flows, before anything of it is loaded; Prefect makes a crash of that.
        """
        flow = await self.flow(our_entrypoint(configuration.deployment, flow_run))
        place = f"{socket.gethostname()}:{os.getpid()}"
        run = self._at_hand[flow_run.id] = RunAtHand(flow_run)
        try:
            with self._around_a_run():
                state = await run.carry_out(flow)
            if state is not None and state.is_cancelling():  # cancelled before its first line or after its last
                await self.client.set_flow_run_state(flow_run.id, Cancelled(), force=True)
        except Abort as error:
            self._logger.info("Flow run %s was called off by Prefect: %s", flow_run.id, error)
        except Exception as error:
            self._logger.exception("Flow run %s ended without a state", flow_run.id)
            await self._propose_crashed_state(flow_run, f"{type(error).__name__}: {error}")
        finally:
            del self._at_hand[flow_run.id]
            self.runs_ended += 1
        # Prefect now writes down where it was begun. Until then it counts as being begun, and no look takes it again.
        if task_status is not None:
            task_status.started(place)
        if self._runs_task_group is not None:
            self._runs_task_group.start_soon(self._label, flow_run.id)
        return ResidentResult(status_code=0, identifier=place)

    async def flow(self, entrypoint: str) -> Flow[..., Any]:
        """Loaded once; importing it takes seconds, during which other runs go on."""
        if entrypoint not in self._flows:
            from prefect.flows import load_flow_from_entrypoint

            self._flows[entrypoint] = await asyncio.to_thread(
                load_flow_from_entrypoint, entrypoint, use_placeholder_flow=False
            )
        return self._flows[entrypoint]


def to_begin(
    found: Sequence[WorkerFlowRunResponse], *, until: datetime, taken: dict[UUID, UUID]
) -> tuple[list[WorkerFlowRunResponse], datetime | None]:
    """Of what was found, oldest first: the first due run of each deployment that has none at hand, and when the next
    run becomes due, None if that is further away than the look saw."""
    busy = set(taken.values())
    begin: list[WorkerFlowRunResponse] = []
    next_due: datetime | None = None
    for response in found:
        run = response.flow_run
        due = run.next_scheduled_start_time or until
        if due > until:
            next_due = min(due, next_due or due)
        elif run.deployment_id not in busy:
            begin.append(response)
            busy.add(run.deployment_id or run.id)
    return begin, next_due
