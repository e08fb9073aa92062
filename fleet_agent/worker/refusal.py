"""What a worker runs is decided by the worker.

Whoever can write to Prefect's API can create a deployment, and a deployment names the code to run, the steps before it
and the environment it runs in. The worker holds the provider's key, so it does not take that from the API: it refuses
every entrypoint but ours, pull steps and job variables. What it cannot refuse is a run of ours with chosen parameters;
those reach no further than a click in Prefect's pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_agent.deploy import our_deployments
from fleet_agent.errors import FixSetup

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse


def our_entrypoint(deployment: DeploymentResponse | None, flow_run: FlowRun) -> str:
    """The entrypoint to run. Raises FixSetup for what this worker will not run."""
    if deployment is None:
        raise FixSetup("a flow run without a deployment", "start runs from the deployments of `fleet-agent deploy`")
    refusal = refusal_of(deployment, flow_run)
    if refusal is not None:
        raise FixSetup(refusal, "this worker runs the deployments of `fleet-agent deploy` and nothing else")
    assert deployment.entrypoint is not None
    return deployment.entrypoint


def refusal_of(deployment: DeploymentResponse, flow_run: FlowRun) -> str | None:
    """Why a worker will not run it, or None."""
    if deployment.entrypoint not in {ours["entrypoint"] for ours in our_deployments()}:
        return f"deployment {deployment.name!r} names the entrypoint {deployment.entrypoint!r}"
    if deployment.pull_steps:
        return f"deployment {deployment.name!r} has pull steps"
    if deployment.job_variables or flow_run.job_variables:
        return f"deployment {deployment.name!r} or its run sets job variables"
    return None
