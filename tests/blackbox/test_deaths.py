"""`kill -9` in the middle of a run: the next one comes soon, and nothing is lost, doubled or stuck.

The run under test is the first of a fleet for which work waits: it searches in its first step, rents two boxes in its
second and ends in its third. Killed in any of them, two boxes are what there is in the end.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.blackbox.house import AT_HAND, House, Json, Setup
from tests.blackbox.variants import LEASES_IN_MEMORY
from tests.stack.waiting import alive

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

FIRST_RUN = Setup(scenario="first-light", held=True)
with_either_worker = pytest.mark.parametrize(
    "own_house", [FIRST_RUN, replace(FIRST_RUN, pool="fleet-agent-process")], indirect=True, ids=["resident", "process"]
)

BOXES_FOR_THE_WORK = 2
WHERE_THE_WATCH_LIVED, OTHERWISE = 40.0, 120.0
"""Seconds from a death to the next run."""

A_PROCESS_STARTS = 30.0
"""So much longer it takes where a run is a process."""


def in_the_middle_of_a_run(house: House, *killed: str, step: int = 2, next_run_within: float) -> None:
    """Kill them in this step; then what the run had claimed is consumed, and what is said now too."""
    run = house.until_in_step(1)
    for further in range(2, step + 1):
        house.next_step()
        house.until_in_step(further, run_id=run["run_id"])
    claimed = [event["id"] for event in house.rows("inbox") if event["claimed_by_run"] == run["run_id"]]
    before = house.tree.processes()

    house.kill(*killed)
    house.open_gate()
    said = house.until("one can speak with it", lambda: house.post("are you all right?"), 60)
    house.until_consumed(*claimed, said, seconds=next_run_within + A_PROCESS_STARTS * house.setup.is_process)
    house.until_back(*killed, than=before)
    house.until_at_rest()

    assert claimed
    two_boxes_for_the_work(house)


def two_boxes_for_the_work(house: House) -> None:
    truth = house.world.truth()
    assert len(truth["creates"]) == BOXES_FOR_THE_WORK, house.picture()
    assert len([box for box in truth["instances"] if box["gone_at"] is None]) == BOXES_FOR_THE_WORK


@pytest.mark.soak
@with_either_worker
@pytest.mark.parametrize("step", [1, 2, 3])
def test_of_the_worker(own_house: House, step: int) -> None:
    in_the_middle_of_a_run(own_house, "worker", step=step, next_run_within=WHERE_THE_WATCH_LIVED)


@pytest.mark.soak
@with_either_worker
@pytest.mark.parametrize("victim", ["Prefect server", "hooks", "PostgreSQL"])
def test_of_another_process(own_house: House, victim: str) -> None:
    in_the_middle_of_a_run(own_house, victim, next_run_within=OTHERWISE)


@pytest.mark.soak
@with_either_worker
@pytest.mark.parametrize(
    "victims",
    [("watch",), ("watch", "worker"), ("Prefect server", "worker"), ("PostgreSQL", "worker", "watch")],
    ids="+".join,
)
def test_of_the_watch_or_of_several(own_house: House, victims: tuple[str, ...]) -> None:
    in_the_middle_of_a_run(own_house, *victims, next_run_within=OTHERWISE)


@pytest.mark.soak
@with_either_worker
@pytest.mark.parametrize("step", [1, 2, 3])
def test_of_everything(own_house: House, step: int) -> None:
    house = own_house
    run = house.until_in_step(1)
    for further in range(2, step + 1):
        house.next_step()
        house.until_in_step(further, run_id=run["run_id"])
    claimed = [event["id"] for event in house.rows("inbox") if event["claimed_by_run"] == run["run_id"]]

    house.kill_everything()
    house.open_gate()
    house.start()
    house.until_consumed(*claimed, seconds=OTHERWISE + A_PROCESS_STARTS * house.setup.is_process)
    house.until_at_rest()

    assert claimed
    two_boxes_for_the_work(house)


@pytest.mark.soak
def test_of_the_worker_of_an_idle_fleet(house: House) -> None:
    """The one of these tests that is short enough for every commit."""
    house.close_gate()
    message = house.post("before the death")
    house.until_in_step(1)
    before = house.tree.processes()
    killed = house.kill("worker")
    house.open_gate()

    house.until_consumed(message, seconds=WHERE_THE_WATCH_LIVED + A_PROCESS_STARTS * house.setup.is_process)
    house.until_back("worker", than=before)

    run, after = house.runs()
    assert run["status"] == "interrupted"
    assert after["opened_at"] > killed
    assert alive([before["worker"]]) == []


# --- the control ------------------------------------------------------------------------------------------------------

LEASE = timedelta(seconds=300)
LOOK_FOR_DEAD_LEASES = timedelta(seconds=40)


@pytest.mark.soak
@pytest.mark.timeout(1200)  # the control waits for the whole of a lease, in vain
@pytest.mark.parametrize(
    ("own_house", "is_freed"),
    [(Setup(), True), (Setup(differs=LEASES_IN_MEMORY), False)],
    indirect=["own_house"],
    ids=["ours", "in memory"],
)
def test_a_slot_whose_run_and_server_died_is_freed_when_its_lease_ends(own_house: House, is_freed: bool) -> None:
    """With every other line of defence out of the way: no watch that looks, no automation that fires.

    Control: leases that only the server's memory knew wedge the deployment for good.
    """
    house = own_house
    house.forced.add("one_flow_run_at_a_time")
    house.tree.processes()["watch"].suspend()
    switch_automations(house, on=False)
    house.close_gate()
    stuck = house.start_flow_run()
    house.until_in_step(1)
    before = house.tree.processes()
    house.kill("worker", "Prefect server")
    house.until_back("worker", "Prefect server", than=before)
    house.open_gate()

    waited = (LEASE + LOOK_FOR_DEAD_LEASES).total_seconds()
    try:
        house.until("the slot is free", lambda: house.slots()[0] == 0, waited)
        freed = True
    except AssertionError:
        freed = False

    assert freed is is_freed
    dead = house.flow_run(stuck)
    assert dead["state_type"] in AT_HAND  # nobody told Prefect
    house.set_state(stuck, "CRASHED", force=True, message="the end of the test")
    house.tree.processes()["watch"].resume()
    switch_automations(house, on=True)
    house.start_flow_run()  # nothing else waits that would bring the next run


def switch_automations(house: House, *, on: bool) -> None:
    automations: list[Json] = house.ask("POST", "/automations/filter", {})
    for automation in automations:
        house.ask("PATCH", f"/automations/{automation['id']}", {"enabled": on})
