"""Tell Prefect what to run and when: the work pool, the deployments of `prefect.yaml`, and the standing automations.

`prefect.yaml` is the only source of the first two. This reads the part of its language that it uses, through Prefect's
own classes, in a quarter of the time of `prefect deploy`. What it adds is the demo's time: business time may run faster
than real time, Prefect's clock does not, so the demo's schedules are shortened instead. And the automations that no
deployment may reset, which `prefect.yaml` has no place for (`automations.py`). Doing it again changes nothing: a
deployment is updated in place, and its schedule, which has a slug, keeps its identity and stays paused if somebody
paused it; only the automations of its `triggers:` are made anew, as Prefect itself does.

Prefect is imported inside the functions: it takes a second, and commands that do not deploy import this module too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from fleet_agent.automations import bootstrap, guards
from fleet_agent.clients.prefect_admin import PrefectAdmin
from fleet_agent.clients.prefect_rest import PrefectRest, open_client
from fleet_agent.domain.triggers import HEARTBEAT
from fleet_agent.errors import FixSetup, FleetAgentError, TryLater
from fleet_agent.housekeeping import HOUSEKEEPING_EVERY

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.workers.base import BaseWorker

PROJECT_DIR = Path(__file__).parents[1]
WORK_POOL = "fleet-agent"
"""Of the resident worker, which runs the flows in its own process."""
PROCESS_POOL = "fleet-agent-process"
"""Of the worker that starts a process for each run."""


RECURS_EVERY = {"heartbeat": HEARTBEAT, "hourly": HOUSEKEEPING_EVERY}
"""Business time, by the slug of a schedule: what its cron line says."""


def our_deployments() -> list[dict[str, Any]]:
    """The `deployments` of `prefect.yaml`, those of fleets first. Raises FixSetup where that file is missing."""
    path = PROJECT_DIR / "prefect.yaml"
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise FixSetup(f"{path} is missing", "run fleet-agent from a checkout: pip install -e .") from error
    return cast("list[dict[str, Any]]", document["deployments"])


async def deploy(speed: float = 1, pool: str = WORK_POOL) -> list[str]:
    """Make or update everything at the server that PREFECT_API_URL names; returns a line for each thing done.

    speed: business seconds per real second; what recurs in business time is divided by it.
    pool: the work pool whose worker carries the deployments out, where `prefect.yaml` has $FLEET_WORK_POOL.
    Raises TryLater where the server does not answer, FixSetup where it refuses.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.deployments.runner import DeploymentApplyError
    from prefect.exceptions import ObjectAlreadyExists

    done: list[str] = []
    try:
        async with get_client() as prefect:
            kind = _kind_of_worker(pool)
            template = kind.get_default_base_job_template()
            try:
                await prefect.create_work_pool(WorkPoolCreate(name=pool, type=kind.type, base_job_template=template))
                done.append(f"work pool {pool} made")
            except ObjectAlreadyExists:
                done.append(f"work pool {pool} was there")
        for spec in our_deployments():
            deployment = _deployment(spec, pool)
            await deployment.aapply(schedules=[_schedule(each, speed) for each in spec["schedules"]])
            done.append(f"deployment {deployment.full_name}")
        done += await _guard()
    except DeploymentApplyError as error:
        raise FixSetup(f"Prefect refuses the deployment: {error}", "correct prefect.yaml") from error
    except HTTPError as error:
        where = os.environ.get("PREFECT_API_URL", "Prefect")
        raise TryLater(f"{where} does not answer ({type(error).__name__})", "start it with `fleet-agent up`") from error
    return done


def _kind_of_worker(pool: str) -> type[BaseWorker[Any, Any, Any]]:
    from prefect.workers.base import BaseWorker
    from prefect.workers.process import ProcessWorker

    if pool == PROCESS_POOL:
        return ProcessWorker
    # Through Prefect's register, as Prefect itself finds it: the worker is a room above this one.
    resident = BaseWorker.get_worker_class_from_type("fleet-agent")
    if resident is None:
        raise FixSetup("Prefect does not know the worker type fleet-agent", "install anew: pip install -e .")
    return resident


async def _guard() -> list[str]:
    from prefect.settings import get_current_settings

    api = get_current_settings().api
    auth_string = api.auth_string.get_secret_value() if api.auth_string else None
    async with open_client(api.url or "", auth_string) as client:
        done = await bootstrap(PrefectAdmin(PrefectRest(client)), guards())
    return done or ["automations as they should be"]


def _deployment(spec: dict[str, Any], pool: str) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.events import DeploymentEventTrigger

    return RunnerDeployment.from_entrypoint(
        spec["entrypoint"],
        name=spec["name"],
        description=spec["description"],
        tags=spec["tags"],
        parameters=spec["parameters"],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(spec["concurrency_limit"]),
        work_pool_name=pool,
        triggers=[DeploymentEventTrigger.model_validate(each) for each in spec["triggers"]],
    )


def _schedule(spec: dict[str, Any], speed: float) -> dict[str, Any]:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    if speed == 1:
        schedule = CronSchedule(cron=spec["cron"], timezone=spec["timezone"])
    else:
        schedule = IntervalSchedule(interval=RECURS_EVERY[spec["slug"]] / speed, anchor_date=datetime.now(UTC))
    # `active` is left out, so that a schedule which somebody paused stays paused.
    return {"schedule": schedule, "slug": spec["slug"], "parameters": spec["parameters"]}


def main() -> int:
    """Deploy and say what was done; run as a process of its own, so that its caller need not import Prefect."""
    parser = argparse.ArgumentParser(description=deploy.__doc__)
    parser.add_argument("--speed", type=float, default=1, help="business seconds per real second")
    parser.add_argument("--pool", default=WORK_POOL, help="the work pool that the deployments use")
    arguments = parser.parse_args()
    try:
        done = asyncio.run(deploy(arguments.speed, arguments.pool))
    except FleetAgentError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
