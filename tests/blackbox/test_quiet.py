"""An idle fleet keeps still: a run that changes nothing causes nothing (I7)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.blackbox.house import DOORBELLS, House
from tests.stack.waiting import PATIENCE

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]


@pytest.mark.parametrize("heartbeats", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_idle_heartbeats_cause_no_event_no_wake_and_no_run_besides(house: House, heartbeats: int) -> None:
    house.until_silent()  # so that nothing is the late answer to what another test rang for
    house.begin()
    wakes = house.rows("wake")
    shown = {run["id"] for run in house.flow_runs()}  # wakes that another test has planted for later

    house.heartbeats_every(timedelta(seconds=10 if house.setup.is_process else 3) * PATIENCE)
    house.until(f"{heartbeats} heartbeats", lambda: len(house.runs()) >= heartbeats, 200)
    house.pause_heartbeats()
    house.until_silent()

    assert {(run["trigger"], run["status"], run["no_op"]) for run in house.runs()} == {("heartbeat", "closed", True)}
    assert house.events("fleet-agent.") == []
    made = [run for run in house.flow_runs() if run["id"] not in shown]
    assert [run for run in made if not run["auto_scheduled"]] == []
    assert house.rows("wake") == wakes
    assert house.events_posted() == []


def test_a_message_does_what_an_idle_heartbeat_must_not(house: House) -> None:
    """The control: the same looks see something where something happens."""
    house.post("hello?")
    house.until("its run", house.runs, house.setup.answers_within)
    house.until_silent()

    assert house.events(DOORBELLS) != []
    assert [run for run in house.flow_runs() if not run["auto_scheduled"]] != []
