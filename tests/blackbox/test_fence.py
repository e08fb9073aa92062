"""Two runs at once all the same: Prefect's limit can be beaten, the fence cannot.

A worker is stopped in the middle of a run, as a machine is that swaps or whose guest is paused. The watch takes the run
for dead and tells Prefect, another worker begins the next one, and then the first goes on as if nothing had happened.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.blackbox.house import House, Setup
from tests.stack.trees import FLEET_AGENT

pytestmark = [pytest.mark.prefect, pytest.mark.soak, pytest.mark.timeout(600)]

WITH_WORK = Setup(scenario="first-light", held=True)
BOXES_FOR_THE_WORK = 2


@pytest.mark.parametrize("own_house", [WITH_WORK], indirect=True, ids=["with work"])
@pytest.mark.parametrize("step", [2, 3])
def test_of_two_runs_beside_each_other_the_stale_one_does_nothing_more(own_house: House, step: int) -> None:
    """It wants to rent in its second step, and to write and close in its third."""
    house = own_house
    stale = house.until_in_step(1)
    for further in range(2, step + 1):
        house.next_step()
        house.until_in_step(further, run_id=stale["run_id"])
    done_before = actions_of(house, stale["run_id"])
    claimed = [event["id"] for event in house.rows("inbox") if event["claimed_by_run"] == stale["run_id"]]
    worker = house.tree.processes()["worker"]
    worker.suspend()
    with another_worker(house):
        house.until(
            "another run has the fence",
            lambda: (house.open_run() or stale)["run_id"] != stale["run_id"],
            90,
        )
        house.until("both wait for the model", lambda: house.world.waiting() == 2, 30)
        said = house.post("for whom?")
        worker.resume()
        house.open_gate()
        house.until_consumed(*claimed, said, seconds=60)
        house.until_at_rest()

    assert claimed
    assert actions_of(house, stale["run_id"]) == done_before
    assert status_of(house, stale["run_id"]) == "superseded"
    assert stale["run_id"] not in {event["consumed_by_run"] for event in house.rows("inbox")}
    assert len(house.world.truth()["creates"]) == BOXES_FOR_THE_WORK


@contextmanager
def another_worker(house: House) -> Generator[None]:
    """As a person starts one beside the tree."""
    with subprocess.Popen(
        [*FLEET_AGENT, "worker"],
        env=house.tree.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def actions_of(house: House, run_id: int) -> list[tuple[str, str]]:
    return [(action["key"], action["tool"]) for action in house.rows("action") if action["run_id"] == run_id]


def status_of(house: House, run_id: int) -> str:
    return next(run["status"] for run in house.all_runs() if run["run_id"] == run_id)
