"""What the worker runs is decided by the worker."""

from __future__ import annotations

import os
import sys
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.workers.process import ProcessJobConfiguration

from fleet_agent.deploy import PROJECT_DIR, our_deployments
from fleet_agent.worker.process import confined
from fleet_agent.worker.refusal import refusal_of

OURS = {"name": "main", "flow_id": uuid4(), "entrypoint": "flows.agent_cycle.agent_cycle"}


def refusal(run: dict[str, object] | None = None, **differs: object) -> str | None:
    flow_run = FlowRun.model_validate({"flow_id": OURS["flow_id"], **(run or {})})
    return refusal_of(DeploymentResponse.model_validate({**OURS, **differs}), flow_run)


@pytest.mark.parametrize("entrypoint", [each["entrypoint"] for each in our_deployments()])
def test_our_deployments_as_they_are_made_are_not_refused(entrypoint: str) -> None:
    assert refusal(entrypoint=entrypoint) is None


@pytest.mark.parametrize(
    ("differs", "reason"),
    [
        ({"entrypoint": "os.system"}, "names the entrypoint 'os.system'"),
        ({"entrypoint": None}, "names the entrypoint None"),
        ({"entrypoint": "flows/agent_cycle.py:agent_cycle"}, "names the entrypoint"),
        ({"pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "true"}}]}, "has pull steps"),
        ({"job_variables": {"command": "true"}}, "sets job variables"),
        ({"run": {"job_variables": {"env": {"LD_PRELOAD": "/tmp/x.so"}}}}, "sets job variables"),
    ],
)
def test_what_differs_from_it_is_refused_with_a_reason(differs: dict[str, object], reason: str) -> None:
    assert reason in (refusal(**differs) or "")  # pyright: ignore[reportArgumentType]


def test_a_run_gets_our_command_folder_and_environment_whatever_the_work_pool_says() -> None:
    of_the_pool = ProcessJobConfiguration(
        command="touch /tmp/x",
        env={
            "LD_PRELOAD": "/tmp/x.so",
            "PATH": "/tmp",
            "PREFECT__FLOW_RUN_ID": "1",
            "PREFECT__FLOW_ENTRYPOINT": "/tmp/evil.py:evil",
        },
        working_dir="/tmp",
    )

    own = confined(of_the_pool, "flows.agent_cycle.agent_cycle")

    assert own.command == f"{sys.executable} -m prefect.engine"
    assert own.working_dir == PROJECT_DIR
    about_the_run = {"PREFECT__FLOW_RUN_ID": "1", "PREFECT__FLOW_ENTRYPOINT": "flows.agent_cycle.agent_cycle"}
    assert own.env == {**os.environ, **about_the_run}
