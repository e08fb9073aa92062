"""Tell Prefect what to run and when: the work pool and the deployments of `prefect.yaml`.

`prefect.yaml` is the only source. This reads the part of its language that it uses, through Prefect's own classes, in a
quarter of the time of `prefect deploy`. What it adds is the demo's time: business time may run faster than real time,
Prefect's clock does not, so the demo's schedule is shortened instead. Doing it again changes nothing: a deployment is
updated in place, and its schedule, which has a slug, keeps its identity and stays paused if somebody paused it.

Prefect is imported inside the functions: it takes a second, and commands that do not deploy import this module too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from fleet_agent.errors import FixSetup, FleetAgentError, TryLater

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

PROJECT_DIR = Path(__file__).parents[1]
WORK_POOL = "fleet-agent-process"

HEARTBEAT = timedelta(minutes=5)
"""Business time between two scheduled runs: what the cron line in `prefect.yaml` says."""

FIRST_HEARTBEAT = timedelta(seconds=8)
"""Real time to a demo's first scheduled run: Prefect's scheduler looks every 5 s, and nobody wants to watch nothing."""


def our_deployments() -> list[dict[str, Any]]:
    """The `deployments` of `prefect.yaml`. Raises FixSetup where that file is missing."""
    path = PROJECT_DIR / "prefect.yaml"
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise FixSetup(f"{path} is missing", "run fleet-agent from a checkout: pip install -e .") from error
    return cast("list[dict[str, Any]]", document["deployments"])


async def deploy(speed: float = 1) -> list[str]:
    """Make or update everything at the server that PREFECT_API_URL names; returns a line for each thing done.

    speed: business seconds per real second; what recurs in business time is divided by it.
    Raises TryLater where the server does not answer, FixSetup where it refuses.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.deployments.runner import DeploymentApplyError
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    done: list[str] = []
    try:
        async with get_client() as prefect:
            pool = WorkPoolCreate(
                name=WORK_POOL, type="process", base_job_template=ProcessWorker.get_default_base_job_template()
            )
            try:
                await prefect.create_work_pool(pool)
                done.append(f"work pool {WORK_POOL} made")
            except ObjectAlreadyExists:
                done.append(f"work pool {WORK_POOL} was there")
        for spec in our_deployments():
            deployment = _deployment(spec)
            await deployment.aapply(schedules=[_schedule(each, speed) for each in spec["schedules"]])
            done.append(f"deployment {deployment.full_name}")
    except DeploymentApplyError as error:
        raise FixSetup(f"Prefect refuses the deployment: {error}", "correct prefect.yaml") from error
    except HTTPError as error:
        where = os.environ.get("PREFECT_API_URL", "Prefect")
        raise TryLater(f"{where} does not answer ({type(error).__name__})", "start it with `fleet-agent up`") from error
    return done


def _deployment(spec: dict[str, Any]) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment

    return RunnerDeployment.from_entrypoint(
        spec["entrypoint"],
        name=spec["name"],
        description=spec["description"],
        tags=spec["tags"],
        parameters=spec["parameters"],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(spec["concurrency_limit"]),
        work_pool_name=spec["work_pool"]["name"],
    )


def _schedule(spec: dict[str, Any], speed: float) -> dict[str, Any]:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    if speed == 1:
        schedule = CronSchedule(cron=spec["cron"], timezone=spec["timezone"])
    else:
        schedule = IntervalSchedule(interval=HEARTBEAT / speed, anchor_date=datetime.now(UTC) + FIRST_HEARTBEAT)
    # `active` is left out, so that a schedule which somebody paused stays paused.
    return {"schedule": schedule, "slug": spec["slug"], "parameters": spec["parameters"]}


def main() -> int:
    """Deploy and say what was done; run as a process of its own, so that its caller need not import Prefect."""
    parser = argparse.ArgumentParser(description=deploy.__doc__)
    parser.add_argument("--speed", type=float, default=1, help="business seconds per real second")
    try:
        done = asyncio.run(deploy(parser.parse_args().speed))
    except FleetAgentError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
