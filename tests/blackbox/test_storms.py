"""Much at once: it becomes few runs, one after the other, and nothing of it is lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet_agent.domain.triggers import Kind
from tests.blackbox.house import House

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

LONG_ENOUGH_TO_TRY = 3.0
"""Seconds in which a flow run that is due would have been refused its slot, where a refusal were its end."""


@pytest.mark.any_prefetch
def test_five_hundred_events_in_five_seconds_open_at_most_eight_runs_and_are_all_consumed(house: House) -> None:
    posted: list[int] = []
    began = time.monotonic()
    for number in range(500):
        posted.append(house.post(f"storm {number}", Kind.WEBHOOK if number % 5 else Kind.MESSAGE))
        time.sleep(max(0.0, began + (number + 1) * 0.01 - time.monotonic()))

    house.until_consumed(*posted, seconds=60)
    house.until_at_rest()

    assert len(set(posted)) == 500
    assert 1 <= len(house.runs()) <= 8, house.picture()
    assert {event["count"] for event in house.events_posted()} == {1}


@pytest.mark.any_prefetch
def test_twenty_times_run_now_at_once_are_at_most_two_runs_and_none_is_stuck(house: House) -> None:
    with ThreadPoolExecutor(20) as people:
        posted = list(people.map(lambda _: house.post(kind=Kind.RUN_NOW), range(20)))

    house.until_consumed(*posted)
    house.until_at_rest()

    assert 1 <= len(house.runs()) <= 2, house.picture()


def test_a_flow_run_for_each_of_them_would_be_a_run_for_each(house: House) -> None:
    """The control of the two above: the naive way, a click in Prefect's pages for everything that happens. They are
    carried out one after the other all the same, and none is cancelled."""
    flow_runs = [house.start_flow_run() for _ in range(3)]

    house.until_at_rest()

    assert {house.flow_run(each)["state_type"] for each in flow_runs} == {"COMPLETED"}
    assert len(house.runs()) == 3


@pytest.mark.any_prefetch
def test_a_run_that_is_started_in_prefects_pages_while_another_runs_is_carried_out(house: House) -> None:
    house.close_gate()
    first = house.start_flow_run()
    house.until_in_step(1)
    second = house.start_flow_run()
    time.sleep(LONG_ENOUGH_TO_TRY)
    house.open_gate()

    house.until_at_rest()

    assert [run["flow_run_id"] for run in house.runs()] == [first, second]
    assert house.flow_run(second)["state_type"] == "COMPLETED"


@pytest.mark.soak
@pytest.mark.process_worker
def test_with_prefects_other_strategy_it_would_be_cancelled(house: House) -> None:
    """The control. The resident worker proposes nothing that would find no slot, so it would hide the difference."""
    with house.cancelling_what_finds_no_slot():
        house.close_gate()
        first = house.start_flow_run()
        house.until_in_step(1)
        second = house.start_flow_run()
        house.until("it is cancelled", lambda: house.flow_run(second)["state_type"] == "CANCELLED", 30)
        house.open_gate()
        house.until_at_rest()

    assert [run["flow_run_id"] for run in house.runs()] == [first]
