"""What the schedule piled up while no worker ran: of twelve missed heartbeats one is enough."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from fleet_agent.deploy import our_deployments

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

NOT_BEGUN = ["Scheduled", "Late", "AwaitingConcurrencySlot"]
"""Not AwaitingRetry: that a person asked for."""

PAGE = 200

WHY = "No worker ran when this was due; the newest run of the schedule is carried out in its place."
"""The message of such a run: a run that a person cancels has none."""


async def cancel_piled_up(prefect: PrefectClient) -> int:
    """Cancel the late runs that a schedule made, but the newest of each; returns how many were cancelled.

    What was made by hand, by a wake or by an automation is left alone. Raises httpx.HTTPError.
    """
    late = [run async for run in _late_runs(prefect)]
    superfluous = all_but_the_newest(late)
    cancelled = 0
    for run in superfluous:
        with suppress(ObjectNotFound):  # somebody deleted it meanwhile
            await prefect.set_flow_run_state(run.id, Cancelled(message=WHY))
            cancelled += 1
    return cancelled


def all_but_the_newest(late: Iterable[FlowRun]) -> list[FlowRun]:
    """Of `late`, newest first, what a schedule made, but the first of each deployment and set of parameters.

    With the parameters, because somebody's second schedule may want something that the heartbeat does not.
    """
    superfluous: list[FlowRun] = []
    newest: list[tuple[object, object]] = []
    for run in late:
        if not run.auto_scheduled:
            continue
        kind = (run.deployment_id, run.parameters)
        if kind in newest:
            superfluous.append(run)
        else:
            newest.append(kind)
    return superfluous


async def _late_runs(prefect: PrefectClient) -> AsyncGenerator[FlowRun]:
    due = FlowRunFilterNextScheduledStartTime.model_validate({"before_": datetime.now(UTC)})
    offset = 0
    while True:
        page = await prefect.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(name=FlowRunFilterStateName(any_=NOT_BEGUN)),
                next_scheduled_start_time=due,
            ),
            deployment_filter=DeploymentFilter(
                name=DeploymentFilterName(any_=[ours["name"] for ours in our_deployments()])
            ),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=PAGE,
            offset=offset,
        )
        for run in page:
            yield run
        if len(page) < PAGE:
            return
        offset += PAGE
