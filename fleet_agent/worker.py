"""The worker that carries out our flows and nothing else.

Whoever can write to Prefect's API can create a deployment, and a deployment names the code to run, the steps before it
and the environment it runs in. The worker holds the provider's key, so it does not take that from the API: it refuses
every entrypoint but ours, pull steps and job variables, and the command, the folder and the environment of a run are
this process's own whatever the work pool says. What it cannot refuse is a flow run of ours with chosen parameters;
those reach no further than a click in Prefect's pages.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from prefect.utilities.processutils import command_to_string, setup_signal_handlers_worker
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
"""One run and, beside it, an empty one that finds it open; Prefect's own limit of one is per deployment."""


class OurFlowsWorker(ProcessWorker):
    """Prefect's process worker, closed to everything but our flows."""

    @classmethod
    def __dispatch_key__(cls) -> str:
        # Not the type, `process`: Prefect would warn that this class takes the place of its own.
        return cls.__name__

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        if flow_run.deployment_id is None:
            raise FixSetup("a flow run without a deployment", "start runs from the deployments of `fleet-agent deploy`")
        refusal = refusal_of(await self.client.read_deployment(flow_run.deployment_id), flow_run)
        if refusal is not None:
            raise FixSetup(refusal, "this worker runs the deployments of `fleet-agent deploy` and nothing else")
        return await super().run(flow_run, confined(configuration), task_status)


def refusal_of(deployment: DeploymentResponse, flow_run: FlowRun) -> str | None:
    """Why this worker will not run it, or None."""
    if deployment.entrypoint not in {ours["entrypoint"] for ours in our_deployments()}:
        return f"deployment {deployment.name!r} names the entrypoint {deployment.entrypoint!r}"
    if deployment.pull_steps:
        return f"deployment {deployment.name!r} has pull steps"
    if deployment.job_variables or flow_run.job_variables:
        return f"deployment {deployment.name!r} or its run sets job variables"
    return None


def confined(configuration: ProcessJobConfiguration) -> ProcessJobConfiguration:
    """The same run with our command, our folder, and our environment plus what Prefect tells a run about itself."""
    about_the_run = {name: value for name, value in configuration.env.items() if name.startswith("PREFECT__")}
    own = configuration.model_copy(
        update={
            "command": command_to_string([sys.executable, "-m", "prefect.engine"]),
            "working_dir": PROJECT_DIR,
            "env": {**os.environ, **about_the_run},
        }
    )
    own._command_configured = True  # pyright: ignore[reportPrivateUsage]
    return own


async def work() -> None:
    """Work until SIGTERM, then finish the run at hand."""
    # Within the loop: the handler turns SIGTERM into a SIGINT for the handler it finds, and that must be the loop's.
    setup_signal_handlers_worker(os.getpid(), "the worker", print)
    worker = OurFlowsWorker(
        WORK_POOL, name=f"fleet-agent {socket.gethostname()}", limit=MOST_RUNS, prefetch_seconds=PREFETCH_SECONDS
    )
    with suppress(asyncio.CancelledError):
        await worker.start()


if __name__ == "__main__":
    asyncio.run(work())
