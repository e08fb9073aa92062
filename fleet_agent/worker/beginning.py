"""How a run is begun, in both workers: what goes wrong there is the end of that beginning and of nothing else.

Prefect's own lets an error of its API end the worker, with every run at hand, and never gives back the place of a run
whose deployment is gone; a few of those, and the worker stands still for ever.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, TypeVar

from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult

if TYPE_CHECKING:
    from uuid import UUID

    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun

Configuration = TypeVar("Configuration", bound=BaseJobConfiguration)
Variables = TypeVar("Variables", bound=BaseVariables)
Result = TypeVar("Result", bound=BaseWorkerResult)


class BeginsOrGivesBack(BaseWorker[Configuration, Variables, Result], ABC):  # ABC: no type for Prefect to register
    """A worker in which a run is carried out, or its place is free again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._carried_out: set[UUID] = set()

    async def _submit_run(self, flow_run: FlowRun) -> None:
        try:
            await super()._submit_run(flow_run)
        except Exception as error:
            self._logger.warning("Could not begin flow run %s: %s: %s", flow_run.id, type(error).__name__, error)
            self._submitting_flow_run_ids.discard(flow_run.id)
            if self._cancelling_observer is not None:
                self._cancelling_observer.remove_in_flight_flow_run_id(flow_run.id)
        finally:
            if flow_run.id not in self._carried_out:
                self._release_limit_slot(flow_run.id)

    async def _submit_run_and_capture_errors(
        self, flow_run: FlowRun, task_status: TaskStatus[int | Exception] | None = None
    ) -> BaseWorkerResult | Exception:
        """From here on Prefect's own gives the place back."""
        self._carried_out.add(flow_run.id)
        try:
            return await super()._submit_run_and_capture_errors(flow_run, task_status)
        finally:
            self._carried_out.discard(flow_run.id)
