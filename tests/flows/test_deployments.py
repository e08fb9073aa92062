"""`prefect.yaml` and the flows that it names agree with each other and with what the code relies on."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.server.schemas.schedules import CronSchedule

from fleet_agent.clients.prefect_api import ALL_FLEETS, FLOW, HOUSEKEEPING
from fleet_agent.deploy import RECURS_EVERY, our_deployments
from fleet_agent.domain.triggers import Doorbell, Trigger, rung_at
from fleet_agent.settings import FLEET_NAME

*OF_FLEETS, OF_ALL_FLEETS = our_deployments()


def of(*deployments: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("deployment", deployments, ids=lambda deployment: deployment["name"])


of_fleets = of(*OF_FLEETS)
of_any = of(*OF_FLEETS, OF_ALL_FLEETS)


@pytest.fixture
def flow(deployment: dict[str, Any]) -> Flow[..., Any]:
    return load_flow_from_entrypoint(deployment["entrypoint"])


# --- all of them ------------------------------------------------------------------------------------------------------


@of_any
def test_one_run_at_a_time_and_what_comes_meanwhile_waits(deployment: dict[str, Any]) -> None:
    limit = deployment["concurrency_limit"]
    assert (limit["limit"], limit["collision_strategy"]) == (1, "ENQUEUE")


@of_any
async def test_a_schedule_has_a_slug_and_recurs_as_the_code_counts_with(deployment: dict[str, Any]) -> None:
    """The demo shortens it by its slug. Without one, each deployment would make the schedule anew."""
    [schedule] = deployment["schedules"]
    cron = CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])

    dates = await cron.get_dates(n=20, start=datetime(2026, 3, 29, tzinfo=UTC))  # a change to summer time in Europe

    seconds = {(later - earlier).total_seconds() for earlier, later in itertools.pairwise(dates)}
    assert seconds == {RECURS_EVERY[schedule["slug"]].total_seconds()}


@of_any
def test_the_worker_fetches_no_code_and_the_setting_names_the_pool(deployment: dict[str, Any]) -> None:
    assert "pull" not in deployment  # the file's own `pull: []` holds for all
    assert deployment["work_pool"] == {"name": "{{ $FLEET_WORK_POOL }}"}


@of_any
def test_nothing_is_repeated_or_kept_by_prefect(flow: Flow[..., Any]) -> None:
    assert not flow.retries
    assert not flow.persist_result


@of_any
def test_what_is_deployed_and_scheduled_are_parameters_that_the_flow_takes(
    deployment: dict[str, Any], flow: Flow[..., Any]
) -> None:
    for schedule in deployment["schedules"]:
        flow.validate_parameters(deployment["parameters"] | schedule["parameters"])


# --- the housekeeping -------------------------------------------------------------------------------------------------


@of(OF_ALL_FLEETS)
def test_the_housekeeping_is_one_for_all_fleets_and_no_fleet_can_have_its_name(
    deployment: dict[str, Any], flow: Flow[..., Any]
) -> None:
    assert (flow.name, deployment["name"]) == (HOUSEKEEPING, ALL_FLEETS)
    assert not re.fullmatch(FLEET_NAME, deployment["name"])


@of(OF_ALL_FLEETS)
def test_the_housekeeping_begins_between_two_heartbeats(deployment: dict[str, Any]) -> None:
    """Both are carried out by one process, and a heartbeat is what is waited for."""
    [schedule] = deployment["schedules"]
    assert int(schedule["cron"].split()[0]) % 5 != 0


# --- fleets -----------------------------------------------------------------------------------------------------------


@of_fleets
def test_a_deployment_is_named_for_its_fleet(deployment: dict[str, Any]) -> None:
    assert deployment["name"] == deployment["parameters"]["fleet"]


@of_fleets
def test_the_heartbeat_says_why_its_runs_happen(deployment: dict[str, Any]) -> None:
    assert [(each["slug"], each["parameters"]) for each in deployment["schedules"]] == [
        ("heartbeat", {"trigger": Trigger.HEARTBEAT})
    ]


@of_fleets
@pytest.mark.parametrize("doorbell", list(Doorbell))
def test_every_doorbell_of_the_fleet_has_a_run_behind_its_window(
    deployment: dict[str, Any], doorbell: Doorbell
) -> None:
    """Within the window Prefect drops what rings again; only a run that starts behind it finds that in the inbox."""
    answers = [each for each in deployment["triggers"] if each["expect"] == [doorbell]]

    assert {each["match"]["prefect.resource.id"] for each in answers} == {rung_at(deployment["name"])}
    assert [each["parameters"] for each in answers] == [{"trigger": Trigger.EVENT}] * len(answers)
    assert any(each["schedule_after"] >= each["within"] for each in answers)
    assert any(each["schedule_after"] == 0 for each in answers) == (doorbell is Doorbell.URGENT)


@of_fleets
def test_every_automation_has_a_name_that_no_other_fleet_has(deployment: dict[str, Any]) -> None:
    names = [each["name"] for each in deployment["triggers"]]

    assert len(set(names)) == len(names)
    assert all(name.startswith(f"fleet-agent {deployment['name']}: ") for name in names)


@of_fleets
def test_the_flow_has_the_name_by_which_its_runs_are_started(flow: Flow[..., Any]) -> None:
    assert flow.name == FLOW


@of_fleets
@pytest.mark.parametrize("trigger", list(Trigger))
def test_the_flow_takes_every_trigger(flow: Flow[..., Any], trigger: Trigger) -> None:
    given = {"fleet": "main", "trigger": trigger.value, "wake_id": None, "force_review": False}
    assert flow.validate_parameters(given)["trigger"] is trigger


@of_fleets
def test_a_run_that_a_person_starts_is_manual(flow: Flow[..., Any]) -> None:
    assert flow.parameters.properties["trigger"]["default"] == Trigger.MANUAL
