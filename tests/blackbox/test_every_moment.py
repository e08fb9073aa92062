"""An event at every moment of a run: wherever it falls, a run consumes it without waiting for the heartbeat.

The moment between a run's last look and its end is one of the database alone: `tests/store/test_last_look.py`.
"""

from __future__ import annotations

import time

import pytest

from fleet_agent.domain.triggers import Kind
from tests.blackbox.house import House, Json

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

STEPS = 3


@pytest.mark.any_prefetch
def test_an_event_while_nothing_runs_gets_a_run_at_once(house: House) -> None:
    message = house.post("while nothing runs")

    house.until_consumed(message)
    house.until_at_rest()

    assert [run["trigger"] for run in house.runs()] == ["event"]


MOMENTS = [
    pytest.param(step, kind, id=f"{kind} in step {step}", marks=[] if kind is Kind.MESSAGE else pytest.mark.soak)
    for kind in (Kind.MESSAGE, Kind.WEBHOOK)
    for step in range(1, STEPS + 1)
]


@pytest.mark.parametrize(("step", "kind"), MOMENTS)
@pytest.mark.any_prefetch
def test_an_event_in_any_step_of_a_run_is_consumed(house: House, step: int, kind: Kind) -> None:
    house.close_gate()
    house.more_steps(STEPS - 1)
    house.start_flow_run()
    run = walked_to(house, step)
    posted = house.post_by_hook(f"in step {step}") if kind is Kind.WEBHOOK else house.post(f"in step {step}", kind)
    house.open_gate()

    house.until_consumed(posted)

    if step < STEPS and kind is Kind.MESSAGE:  # what is urgent is shown at the next step already
        assert house.event(posted)["consumed_by_run"] == run["run_id"]


AFTER = [1.0, *(pytest.param(delay, marks=pytest.mark.soak) for delay in (0.0, 1.9, 2.1))]
AFTER_A_CHANGE = [pytest.param(delay, marks=pytest.mark.soak) for delay in (0.0, 5.0, 9.5, 10.5)]


@pytest.mark.parametrize("delay", AFTER)
@pytest.mark.any_prefetch
def test_a_message_in_the_shadow_of_the_one_before_is_consumed(house: House, delay: float) -> None:
    """Prefect fires on the first event and drops what follows within two seconds."""
    in_the_shadow(house, Kind.MESSAGE, delay)


@pytest.mark.parametrize("delay", AFTER_A_CHANGE)
def test_a_change_in_the_shadow_of_the_one_before_is_consumed(house: House, delay: float) -> None:
    """Here it drops what follows within ten."""
    in_the_shadow(house, Kind.WEBHOOK, delay)


def in_the_shadow(house: House, kind: Kind, delay: float) -> None:
    first = house.post("the first", kind)
    house.until_consumed(first, seconds=house.setup.answers_within + 10)
    time.sleep(delay)
    second = house.post("right after a run", kind)
    house.until_consumed(second, seconds=house.setup.answers_within + 10 * (kind is not Kind.MESSAGE))


@pytest.mark.any_prefetch
def test_what_recurs_while_a_run_has_it_in_hand_is_news(house: House) -> None:
    """Control in `tests/store/test_inbox.py`: what recurs while it waits is only counted."""
    house.close_gate()
    first = house.post("the queue is starved", Kind.WEBHOOK, dedupe_key="starved")
    run = house.until_in_step(1)
    assert house.event(first)["claimed_by_run"] == run["run_id"]
    again = house.post("the queue is starved", Kind.WEBHOOK, dedupe_key="starved")
    house.open_gate()

    house.until_consumed(first, again)

    assert again != first
    assert [event["count"] for event in house.events_posted()] == [1, 1]


def test_what_recurs_while_it_waits_is_counted(house: House) -> None:
    house.close_gate()
    house.start_flow_run()
    house.until_in_step(1)
    posted = [house.post("the queue is starved", Kind.WEBHOOK, dedupe_key="again") for _ in range(3)]
    house.open_gate()

    house.until_consumed(*posted)

    assert [event["count"] for event in house.events_posted()] == [3]


@pytest.mark.soak
def test_an_event_is_consumed_though_prefects_server_is_away_when_it_comes(own_house: House) -> None:
    house = own_house
    before = house.tree.processes()
    house.kill("Prefect server")
    posted = house.post("while the server is down")
    house.until_back("Prefect server", than=before)

    house.until_consumed(posted, seconds=60)


def walked_to(house: House, step: int) -> Json:
    """The open run, standing in this step."""
    run = house.until_in_step(1)
    for further in range(2, step + 1):
        house.next_step()
        house.until_in_step(further, run_id=run["run_id"])
    return run
