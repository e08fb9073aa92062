"""Bad input and absent neighbours: one clear line, a run marked failed with that reason, and the next run works."""

from __future__ import annotations

import pytest

from fleet_agent.domain.report import Report
from tests.world import Installation, installation


async def healed(fleet: Installation) -> Report:
    """The next run, which must work."""
    report = await fleet.run()
    assert report.failed is None
    return report


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unauthorized", "does not accept the API key"),
        ("http_500", "answered 500"),
        ("empty_choices", "no usable reply"),
        ("html_200", "no usable reply"),
    ],
)
async def test_a_model_that_fails_fails_the_run_and_says_why(fleet: Installation, fault: str, said: str) -> None:
    fleet.sim.model_faults.arm(fault, times=4)
    report = await fleet.run()
    assert report.failed is not None
    assert said in report.failed
    assert "\n" not in report.failed
    assert (fleet.runs()[-1]["status"], fleet.runs()[-1]["summary"]) == ("failed", report.failed)
    fleet.sim.model_faults.disarm(fault)
    await healed(fleet)


async def test_a_message_that_met_a_failing_run_is_answered_by_the_next(fleet: Installation) -> None:
    fleet.say("Are you there?")
    fleet.sim.model_faults.arm("unauthorized", times=1)
    assert (await fleet.run()).failed is not None
    assert "Are you there?" in (await healed(fleet)).summary["summary"]


async def test_a_wrong_key_of_the_provider_is_named(database_url: str) -> None:
    async with installation(database_url, key_wanted="another") as fleet:
        report = await fleet.run()
        assert report.failed is not None
        assert "FLEET_VAST_API_KEY" in report.failed
        assert fleet.runs()[-1]["exit_reason"] == "key refused"


async def test_a_provider_that_does_not_answer_stops_nothing_but_itself(fleet: Installation) -> None:
    """The run goes on without an inventory, changes nothing, and answers the human all the same."""
    fleet.sim.market.faults.arm("server_error")
    fleet.say("Hello?")
    report = await fleet.run()
    assert report.failed is None
    assert "You wrote" in report.summary["summary"]
    assert fleet.actions() == []


async def test_a_model_that_only_talks_is_corrected_twice_and_then_ended(database_url: str) -> None:
    async with installation(database_url, model="prose") as fleet:
        report = await fleet.run()
        assert report.summary["exit_reason"] == "no tool call and no verdict"
        assert fleet.runs()[-1]["steps"] == 3
        assert fleet.sim.market.creates == []


@pytest.mark.parametrize("fault", ["bad_arguments", "unknown_tool", "dict_arguments", "missing_ids", "duplicate_ids"])
async def test_a_malformed_call_does_nothing_and_the_run_goes_on(fleet: Installation, fault: str) -> None:
    fleet.sim.model_faults.arm(fault, times=1)
    report = await fleet.run()
    assert report.failed is None
    assert report.summary["exit_reason"] == "finished"
    assert {action["status"] for action in fleet.actions()} <= {"done"}


async def test_a_run_ends_at_its_bound_of_steps(database_url: str) -> None:
    async with installation(database_url, model="hostile") as fleet:
        fleet.set_policy({"run.max_steps": "4"})
        report = await fleet.run()
        assert report.summary["exit_reason"] == "the bound of 4 steps"
        assert "without a conclusion of the model" in report.summary["summary"]
