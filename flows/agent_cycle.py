"""The Prefect flow of one run: wiring only.

It turns the flow run into a request, opens the ports, shows their calls as tasks, lets the story run, and tells Prefect
how it ended: a name that says why the run happened, a report, a table of the fleet, and the run's own summary. What
the run does is told in `fleet_agent/cycle.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from httpx import HTTPError
from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.states import Completed, Failed
from pydantic import Field

from fleet_agent.cycle import run_cycle
from fleet_agent.domain.report import Report
from fleet_agent.domain.run import RunRequest
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import FleetAgentError
from fleet_agent.settings import FLEET_NAME, Settings
from fleet_agent.wiring import open_ports, worker_id
from flows.tasked import tasked


# What it returns is in its state's message and in our database; asked where to keep it, Prefect would ask the server.
@flow(name="agent-cycle", flow_run_name="{fleet}: {trigger}", persist_result=False)
async def agent_cycle(
    fleet: Annotated[str, Field(pattern=FLEET_NAME)] = "main",
    trigger: Trigger = Trigger.MANUAL,
    wake_id: int | None = None,
    force_review: bool = False,
) -> State[Any]:
    """One run of the agent: look at demand, fleet and money, decide, act within the limits.

    Args:
        fleet: the fleet to look after.
        trigger: why this run happens; what a person starts by hand is `manual` and always asks the model.
        wake_id: the wake that this run answers, if it answers one.
        force_review: ask the model even if nothing has changed.
    """
    flow_run = _this_flow_run()
    try:
        settings = Settings.load().with_fleet(fleet)
        request = RunRequest(
            fleet=fleet,
            trigger=trigger,
            flow_run_id=str(flow_run.id),
            attempt=flow_run.run_count,
            wake_id=wake_id,
            due=flow_run.expected_start_time,
            force_review=force_review,
            worker_id=worker_id(),
        )
        async with open_ports(settings) as ports:
            report = await run_cycle(request, tasked(ports))
    except FleetAgentError as error:
        # No run could be opened, so no row tells of it; this line is all there is.
        return Failed(message=str(error))
    await _tell_prefect(flow_run, fleet, report)
    if report.failed is not None:
        return Failed(message=report.failed)
    return Completed(message=report.headline, data=report.summary)


def _this_flow_run() -> FlowRun:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return context.flow_run


async def _tell_prefect(flow_run: FlowRun, fleet: str, report: Report) -> None:
    """Name and report, as far as Prefect takes them: the run has ended as its row says, whatever becomes of these."""
    try:
        async with get_client() as prefect:
            await prefect.update_flow_run(flow_run.id, name=report.headline)
        await acreate_markdown_artifact(report.markdown, key=f"report-{fleet}", description=report.headline)
        if report.run_id is not None and report.failed is None:  # others have not looked: they would show "no box"
            await acreate_table_artifact(report.fleet_rows, key=f"fleet-{fleet}", description=report.headline)
    except (HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect did not take the report: %s: %s", type(error).__name__, error)
