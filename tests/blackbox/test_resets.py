"""Silence after "Reset session": the failure this project was born from.

A reset ends a conversation, and nothing else.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet_agent.domain.triggers import Kind, Trigger
from tests.blackbox.house import House
from tests.blackbox.test_every_moment import STEPS, walked_to

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

IN_STEPS = [1, *(pytest.param(step, marks=pytest.mark.soak) for step in range(2, STEPS + 1))]


@pytest.mark.soak
def test_after_a_reset_while_nothing_runs_every_trigger_works(house: House) -> None:
    house.reset_session()

    every_trigger_works(house)


@pytest.mark.parametrize("step", IN_STEPS)
def test_after_a_reset_in_any_step_of_a_run_every_trigger_works(house: House, step: int) -> None:
    house.close_gate()
    house.more_steps(STEPS - 1)
    house.start_flow_run()
    run = walked_to(house, step)
    house.reset_session()
    said = house.post("after the reset")
    house.open_gate()
    house.world.no_more("unknown_tool")

    house.until_consumed(said)
    house.until_at_rest()

    answered = next(each for each in house.runs() if each["run_id"] == house.event(said)["consumed_by_run"])
    assert answered["epoch"] == run["epoch"] + 1
    assert answered["run_id"] > run["run_id"]
    every_trigger_works(house)


def every_trigger_works(house: House) -> None:
    """Heartbeat, manual, event, wake: each leads to a closed run of its own, with a higher number than all before."""
    for lead, trigger in {
        "heartbeat": lambda: house.start_flow_run(Trigger.HEARTBEAT),
        "manual": house.start_flow_run,
        "event": lambda: house.post("are you there?", Kind.MESSAGE),
        "wake": lambda: house.plant_wake(timedelta(seconds=1)),
    }.items():
        newest = max(run["run_id"] for run in house.all_runs())
        trigger()
        run = house.until(
            f"a run by {lead} after #{newest}",
            lambda newest=newest, lead=lead: next(
                (
                    run
                    for run in house.all_runs()
                    if run["run_id"] > newest and run["trigger"] == lead and run["status"] == "closed"
                ),
                None,
            ),
            house.setup.answers_within,
        )
        assert run["epoch"] == next(state["epoch"] for state in house.rows("session_state", "fleet"))
        house.until_at_rest()
