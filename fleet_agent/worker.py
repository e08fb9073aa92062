"""The worker that carries out our flows and nothing else.

Whoever can write to Prefect's API can create a deployment, and a deployment names the code to run, the steps before it
and the environment it runs in. The worker holds the provider's key, so it does not take that from the API: it refuses
every entrypoint but ours, pull steps and job variables, and what a run's process is given (command, folder,
environment, entrypoint) is decided here, whatever the work pool or a deployment that was changed meanwhile says. What
it cannot refuse is a run of ours with chosen parameters; those reach no further than a click in Prefect's pages.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from fleet_agent.deploy import PROJECT_DIR, WORK_POOL, our_deployments
from fleet_agent.errors import FixSetup

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

PREFETCH_SECONDS = 5
"""A run's process starts this long before the run is due, for it takes about as long to import what it needs."""

MOST_RUNS = 2
"""More than a deployment's limit of one: it is that limit that holds a run back, and never this one."""

LOOK_FOR_THE_END = 0.2
"""Seconds between two looks whether the last run has ended."""


class OurFlowsWorker(ProcessWorker):
    """Prefect's process worker, closed to everything but our flows."""

    @classmethod
    def __dispatch_key__(cls) -> str:
        # Not the type, `process`: Prefect would warn that this class takes the place of its own.
        return cls.__name__

    _takes_more = True

    def take_no_more(self) -> None:
        """From now on only the runs at hand are carried out."""
        self._takes_more = False

    def is_done(self) -> bool:
        at_hand = self._limiter.borrowed_tokens if self._limiter else 0
        return not self._takes_more and at_hand == 0

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        return await super().get_and_submit_flow_runs() if self._takes_more else []

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        if flow_run.deployment_id is None:
            raise FixSetup("a flow run without a deployment", "start runs from the deployments of `fleet-agent deploy`")
        deployment = await self.client.read_deployment(flow_run.deployment_id)
        refusal = refusal_of(deployment, flow_run)
        if refusal is not None:
            raise FixSetup(refusal, "this worker runs the deployments of `fleet-agent deploy` and nothing else")
        return await super().run(flow_run, confined(configuration, deployment.entrypoint or ""), task_status)


def refusal_of(deployment: DeploymentResponse, flow_run: FlowRun) -> str | None:
    """Why this worker will not run it, or None."""
    if deployment.entrypoint not in {ours["entrypoint"] for ours in our_deployments()}:
        return f"deployment {deployment.name!r} names the entrypoint {deployment.entrypoint!r}"
    if deployment.pull_steps:
        return f"deployment {deployment.name!r} has pull steps"
    if deployment.job_variables or flow_run.job_variables:
        return f"deployment {deployment.name!r} or its run sets job variables"
    return None


def confined(configuration: ProcessJobConfiguration, entrypoint: str) -> ProcessJobConfiguration:
    """The same run with our command, our folder, and our environment plus what Prefect tells a run about itself.

    With the entrypoint in its environment, the run's process does not ask the API for it again.
    """
    about_the_run = {name: value for name, value in configuration.env.items() if name.startswith("PREFECT__")}
    own = configuration.model_copy(
        update={
            "command": command_to_string([sys.executable, "-m", "prefect.engine"]),
            "working_dir": PROJECT_DIR,
            "env": {**os.environ, **about_the_run, "PREFECT__FLOW_ENTRYPOINT": entrypoint},
        }
    )
    own._command_configured = True  # pyright: ignore[reportPrivateUsage]
    return own


async def work() -> None:
    """Work until SIGTERM or SIGINT, then finish the runs at hand. Prefect's own worker would kill them."""
    worker = OurFlowsWorker(
        WORK_POOL, name=f"fleet-agent {socket.gethostname()}", limit=MOST_RUNS, prefetch_seconds=PREFETCH_SECONDS
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.take_no_more)
    working = asyncio.create_task(worker.start())
    while not working.done() and not worker.is_done():  # noqa: ASYNC110 (Prefect has no event for it)
        await asyncio.sleep(LOOK_FOR_THE_END)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


if __name__ == "__main__":
    asyncio.run(work())
