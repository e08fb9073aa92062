"""A wake fires once: at its time, whatever runs then, and whatever becomes of the flow run that shows it in Prefect."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.blackbox.house import House, Json

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]

FAR = timedelta(hours=2)


def shown(house: House, wake_id: int) -> str:
    """The flow run that shows a wake in Prefect, once there is one that is still to come."""
    return house.until(
        f"wake {wake_id} is shown in Prefect",
        lambda: (
            (flow_run := house.wake(wake_id)["flow_run_id"])
            and house.flow_run(flow_run)["state_type"] == "SCHEDULED"
            and flow_run
        ),
        30,
    )


def fires_once(house: House, wake_id: int, *, within: float) -> None:
    house.until(f"wake {wake_id} processed", lambda: house.wake(wake_id)["status"] == "processed", within)
    house.until_at_rest()
    assert house.wake(wake_id)["processed_by_run"] in {run["run_id"] for run in house.runs()}
    by_wake = [run for run in house.runs() if run["trigger"] == "wake"]
    assert len(by_wake) <= 1, house.picture()


@pytest.mark.parametrize(
    ("due_in", "run_lasts"), [(4, 7), pytest.param(8, 20, marks=pytest.mark.soak)], ids=["4 of 7 s", "8 of 20 s"]
)
@pytest.mark.any_prefetch
def test_a_wake_that_is_due_during_a_run_fires_once(house: House, due_in: int, run_lasts: int) -> None:
    house.close_gate()
    house.start_flow_run()
    house.until_in_step(1)
    ends = datetime.now(UTC) + timedelta(seconds=run_lasts)
    wake = house.plant_wake(timedelta(seconds=due_in))
    house.until("the run has lasted long enough", lambda: datetime.now(UTC) > ends, run_lasts + 5)
    house.open_gate()

    fires_once(house, wake, within=house.setup.answers_within)


@pytest.mark.any_prefetch
def test_a_wake_fires_at_its_time(house: House) -> None:
    wake = house.plant_wake(timedelta(seconds=6))
    flow_run = shown(house, wake)

    fires_once(house, wake, within=6 + house.setup.answers_within)

    (run,) = house.runs()
    assert (run["trigger"], run["flow_run_id"]) == ("wake", flow_run)
    assert run["opened_at"] >= house.wake(wake)["wake_at"]


@pytest.mark.soak
@pytest.mark.any_prefetch
def test_a_wake_that_is_pending_while_we_deploy_again_fires_once(house: House) -> None:
    wake = house.plant_wake(timedelta(seconds=25))
    shown(house, wake)
    again = house.tree.call("deploy")
    assert again.returncode == 0, again.stderr

    fires_once(house, wake, within=25 + house.setup.answers_within)


@pytest.mark.parametrize("state", ["CANCELLING", pytest.param("CANCELLED", marks=pytest.mark.soak)])
def test_who_cancels_a_future_wake_in_prefects_pages_cancels_it_here(house: House, state: str) -> None:
    wake = house.plant_wake(FAR)
    house.set_state(shown(house, wake), state)

    house.until("it is cancelled here", lambda: house.wake(wake)["status"] == "cancelled", 30)
    house.until_at_rest()

    assert house.runs() == []


ENDS: dict[str, Callable[[House, str], object]] = {
    "crashed": lambda house, flow_run: house.set_state(flow_run, "CRASHED", force=True),
    "failed": lambda house, flow_run: house.set_state(flow_run, "FAILED", force=True),
    "cancelled by Prefect": lambda house, flow_run: house.set_state(
        flow_run, "CANCELLED", force=True, message="Deployment concurrency limit reached."
    ),
    "deleted": lambda house, flow_run: house.ask("DELETE", f"/flow_runs/{flow_run}"),
}


@pytest.mark.parametrize("end", [pytest.param(end, marks=[] if end == "deleted" else pytest.mark.soak) for end in ENDS])
def test_any_other_end_of_its_flow_run_leaves_a_wake_pending_and_shown_anew(house: House, end: str) -> None:
    wake = house.plant_wake(FAR)
    first = shown(house, wake)
    ENDS[end](house, first)

    house.until("another flow run shows it", lambda: house.wake(wake)["flow_run_id"] not in (None, first), 60)
    second = shown(house, wake)

    assert house.wake(wake)["status"] == "pending"
    house.set_state(second, "CANCELLED")
    house.until("it is cancelled here", lambda: house.wake(wake)["status"] == "cancelled", 30)


@pytest.mark.parametrize("with_key", [True, False], ids=["our key", "no key"])
def test_a_wake_that_twenty_create_at_once_has_one_flow_run(house: House, with_key: bool) -> None:
    """Control: without the key there are twenty."""
    deployment = house.deployment()["id"]
    name = f"wake:{house.fleet}:{uuid4().int % 10**9}:0"

    def create(_: int) -> str:
        body = {
            "parameters": {"fleet": house.fleet, "trigger": "wake", "wake_id": 10**9},
            "state": {
                "type": "SCHEDULED",
                "state_details": {"scheduled_time": (datetime.now(UTC) + FAR).isoformat()},
            },
            **({"idempotency_key": name} if with_key else {}),
        }
        return house.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"]

    with ThreadPoolExecutor(20) as creators:
        made = set(creators.map(create, range(20)))

    assert len(made) == (1 if with_key else 20)
    for each in made:
        house.ask("DELETE", f"/flow_runs/{each}")


@pytest.mark.soak
def test_a_key_of_the_bell_that_meets_a_dead_flow_run_rings_anew(house: House) -> None:
    """With Prefect's automations off, so that the bell has to create the flow run itself."""
    automations: list[Json] = house.ask("POST", "/automations/filter", {})
    for automation in automations:
        house.ask("PATCH", f"/automations/{automation['id']}", {"enabled": False})
    try:
        coming = 1 + last_inbox_id(house)
        for number in (1, 2):
            house.set_state(dead_ring(house, coming, number), "CRASHED", force=True)
        message = house.post("does anybody hear the bell?")
        assert message == coming

        house.until_consumed(message, seconds=150)

        assert house.event(message)["rings"] >= 3
    finally:
        for automation in automations:
            house.ask("PATCH", f"/automations/{automation['id']}", {"enabled": automation["enabled"]})


def last_inbox_id(house: House) -> int:
    (sequence,) = house.query("SELECT last_value FROM pg_sequences WHERE sequencename = 'inbox_id_seq'")
    return sequence["last_value"]


def dead_ring(house: House, event_id: int, number: int) -> str:
    body = {
        "parameters": {"fleet": house.fleet, "trigger": "event"},
        "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": (datetime.now(UTC) + FAR).isoformat()}},
        "idempotency_key": f"ring:{house.fleet}:{event_id}:{number}",
    }
    return house.ask("POST", f"/deployments/{house.deployment()['id']}/create_flow_run", body)["id"]
