"""What a fleet depends on is away for a while. What came meanwhile is dealt with afterwards, once."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from fleet_agent.domain.triggers import Kind
from tests.blackbox.house import House, Setup

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

ATTEMPTS_THAT_WOULD_QUARANTINE = 6


@pytest.mark.soak
def test_an_outage_of_the_model_quarantines_no_event(house: House) -> None:
    house.world.model_fault("http_500", times=100_000)
    posted = [
        house.post(f"during the outage {number}", kind) for number, kind in enumerate((Kind.MESSAGE, Kind.WEBHOOK))
    ]
    for _ in range(ATTEMPTS_THAT_WOULD_QUARANTINE):  # the bell backs off; a person does not
        house.start_flow_run()
    house.until(
        "more failed runs than quarantine an event that is their cause",
        lambda: sum(run["status"] == "failed" for run in house.runs()) >= ATTEMPTS_THAT_WOULD_QUARANTINE,
        200,
    )
    assert not any(house.consumed(each) for each in posted)
    house.world.no_more("http_500")
    house.start_flow_run()

    house.until_consumed(*posted, seconds=120)

    assert {event["attempts"] for event in house.events_posted()} == {0}
    assert all(event["quarantined_at"] is None for event in house.events_posted())


HEARTBEATS = 12


@pytest.mark.soak
@pytest.mark.parametrize(
    "own_house", [Setup(), Setup(pool="fleet-agent-process")], indirect=True, ids=["resident", "process"]
)
def test_a_worker_that_was_down_across_twelve_heartbeats_opens_one_run(own_house: House) -> None:
    house = own_house
    before = house.tree.processes()
    before["worker"].send_signal(signal.SIGSTOP)  # were it dead, it would be started again at once
    house.heartbeats_every(timedelta(seconds=5 if house.setup.is_process else 2))
    house.until("twelve heartbeats are due", lambda: len(overdue(house)) >= HEARTBEATS, 90)
    house.kill("worker")
    house.until_back("worker", than=before)
    house.until("a run", lambda: [run for run in house.runs() if run["status"] == "closed"], 60)
    back = datetime.now(UTC)
    house.pause_heartbeats()
    house.until_at_rest()

    for_what_was_missed = [run for run in house.runs() if run["opened_at"] <= back]
    assert len(for_what_was_missed) == 1, house.picture()


def overdue(house: House) -> list[str]:
    now = datetime.now(UTC)
    return [
        run["id"]
        for run in house.flow_runs()
        if run["auto_scheduled"]
        and run["state_type"] == "SCHEDULED"
        and datetime.fromisoformat(run["expected_start_time"]) < now
    ]
