"""What must hold after every test, whatever it did: each truth is a function that yields what breaks it.

They look from outside, at our tables, at Prefect's own record of what ran when, and at what the simulated provider
counted for itself. A test that breaks one on purpose names it in `House.forced`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

from fleet_agent.domain.triggers import Priority
from tests.blackbox.house import House

CLOCKS_AGREE_WITHIN = timedelta(milliseconds=50)
"""Each process reads the database's clock once, and is behind it by as long as the answer took."""


def broken(house: House) -> list[str]:
    """Every breach, with the name of the truth."""
    return [
        f"{truth.__name__}: {breach}"
        for truth in TRUTHS
        if truth.__name__ not in house.forced
        for breach in truth(house)
    ]


def one_run_at_a_time(house: House) -> Iterator[str]:
    """Of a fleet, by our own record."""
    for earlier, later in pairwise(house.runs()):
        if earlier["closed_at"] is None or later["opened_at"] < earlier["closed_at"] - CLOCKS_AGREE_WITHIN:
            yield f"run #{later['run_id']} opened before #{earlier['run_id']} ended"


def one_flow_run_at_a_time(house: House) -> Iterator[str]:
    """By Prefect's record of what was Running when."""
    intervals = [(run["name"], *interval) for run in house.flow_runs() for interval in _running(house, run["id"])]
    for (one, began, ended), (other, other_began, other_ended) in combinations(intervals, 2):
        if began < other_ended and other_began < ended:
            yield f"{one!r} and {other!r} ran beside each other"


def _running(house: House, flow_run: str) -> Iterator[tuple[datetime, datetime]]:
    states = house.states(flow_run)
    times = [datetime.fromisoformat(state["timestamp"]) for state in states] + [datetime.max.replace(tzinfo=UTC)]
    for state, began, ended in zip(states, times, times[1:], strict=False):
        if state["type"] == "RUNNING":
            yield began, ended


def every_event_is_consumed_by_one_closed_run(house: House) -> Iterator[str]:
    """Or was quarantined, and a person is told so. Routine ones may wait for the next run."""
    statuses = {run["run_id"]: run["status"] for run in house.all_runs()}
    notices = {notice["key"] for notice in house.rows("notice")}
    for event in house.events_posted():
        if event["quarantined_at"] is not None:
            if f"quarantine:{event['id']}" not in notices:
                yield f"event {event['id']} is quarantined and nobody is told"
        elif event["consumed_by_run"] is None:
            if event["priority"] != Priority.ROUTINE:
                yield f"event {event['id']} was never consumed"
        elif statuses[event["consumed_by_run"]] != "closed":
            yield f"event {event['id']} was consumed by a run that is {statuses[event['consumed_by_run']]}"


def every_due_wake_is_processed_by_one_closed_run(house: House) -> Iterator[str]:
    statuses = {run["run_id"]: run["status"] for run in house.all_runs()}
    now = datetime.now(UTC)
    for wake in house.rows("wake"):
        if wake["status"] == "pending" and wake["wake_at"] < now:
            yield f"wake {wake['id']} was due at {wake['wake_at']} and is pending"
        if wake["status"] == "processed" and statuses[wake["processed_by_run"]] != "closed":
            yield f"wake {wake['id']} was processed by a run that is {statuses[wake['processed_by_run']]}"


def no_slot_is_stuck(house: House) -> Iterator[str]:
    taken, limit = house.slots()
    if (taken, limit) != (0, 1):
        yield f"{taken} of {limit} slots are taken"


def run_ids_only_grow(house: House) -> Iterator[str]:
    runs = house.all_runs()
    for earlier, later in pairwise(runs):
        if later["opened_at"] < earlier["opened_at"] - CLOCKS_AGREE_WITHIN:
            yield f"run #{later['run_id']} opened before #{earlier['run_id']}"
    counter = next(state["run_counter"] for state in house.rows("session_state", "fleet"))
    if counter != max((run["run_id"] for run in runs), default=0):
        yield f"the counter says {counter}"


def no_run_is_left_without_an_end(house: House) -> Iterator[str]:
    for run in house.runs():
        if run["status"] == "open" or not run["exit_reason"]:
            yield f"run #{run['run_id']} is {run['status']} without a reason"


def no_box_was_made_twice(house: House) -> Iterator[str]:
    """By the provider's own count, against the ledger: a rent makes one box, and every box has its rent."""
    labels = Counter(made["label"] for made in house.world.truth()["creates"])
    sent = {action["box_key"]: action for action in house.rows("action") if action["sent_at"] and action["box_key"]}
    for label, count in labels.items():
        if count > 1:
            yield f"{count} boxes were made for {label}"
        if label.rpartition("/")[2] not in sent:
            yield f"the ledger knows nothing of {label}"


def nothing_was_sent_without_an_intent(house: House) -> Iterator[str]:
    for action in house.rows("action"):
        if action["sent_at"] and action["sent_at"] < action["created_at"] - CLOCKS_AGREE_WITHIN:
            yield f"action {action['key']} was sent before it was ruled on"


def only_a_person_cancels(house: House) -> Iterator[str]:
    """A flow run that Prefect shows as Cancelled was cancelled by somebody, or says by whom."""
    for run in house.flow_runs():
        if run["state_type"] == "CANCELLED" and run["id"] not in house.cancelled and not run["state"]["message"]:
            yield f"{run['name']!r} ({run['parameters']}) is Cancelled, and nobody says why"


TRUTHS: tuple[Callable[[House], Iterator[str]], ...] = (
    one_run_at_a_time,
    one_flow_run_at_a_time,
    every_event_is_consumed_by_one_closed_run,
    every_due_wake_is_processed_by_one_closed_run,
    no_slot_is_stuck,
    run_ids_only_grow,
    no_run_is_left_without_an_end,
    no_box_was_made_twice,
    nothing_was_sent_without_an_intent,
    only_a_person_cancels,
)
