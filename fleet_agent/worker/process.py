"""The worker that starts a process for each run: Prefect's own, closed to everything but our flows.

What a run's process is given (command, folder, environment, entrypoint) is decided here, whatever the work pool or a
deployment that was changed meanwhile says.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessVariables, ProcessWorker, ProcessWorkerResult

from fleet_agent.deploy import PROJECT_DIR
from fleet_agent.worker.beginning import BeginsOrGivesBack
from fleet_agent.worker.refusal import our_entrypoint

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun

PREFETCH_SECONDS = 5
"""A run's process starts this long before the run is due, for it takes about as long to import what it needs."""


class OurFlowsWorker(BeginsOrGivesBack[ProcessJobConfiguration, ProcessVariables, ProcessWorkerResult], ProcessWorker):
    """Prefect's process worker, closed to everything but our flows."""

    @classmethod
    def __dispatch_key__(cls) -> str:
        # Not the type, `process`: Prefect would warn that this class takes the place of its own.
        return cls.__name__

    runs_ended = 0
    """It has nothing to gain from beginning anew: each run has a process of its own."""

    _takes_more = True
    _is_in_a_hurry = False

    def take_no_more(self) -> None:
        """From now on only the runs at hand are carried out."""
        self._takes_more = False

    def is_done(self) -> bool:
        at_hand = self._limiter.borrowed_tokens if self._limiter else 0
        return not self._takes_more and (at_hand == 0 or self._is_in_a_hurry)

    def end_runs_now(self) -> None:
        """Prefect's worker, when it ends, ends the processes of its runs too."""
        self._is_in_a_hurry = True

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        return await super().get_and_submit_flow_runs() if self._takes_more else []

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        deployment = None
        if flow_run.deployment_id is not None:
            deployment = await self.client.read_deployment(flow_run.deployment_id)
        return await super().run(flow_run, confined(configuration, our_entrypoint(deployment, flow_run)), task_status)


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
