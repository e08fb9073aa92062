"""Wakes as flow runs: the picture follows the table, and one stroke of a person in it counts here too."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fleet_agent.domain.flow_run import FlowRunState
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import FixSetup
from fleet_agent.store import wakes
from tests.store.rig import NOON, Fleet
from tests.watch.rig import Tower
from tests.watch.test_bell import set_wake


@pytest.fixture
def tower(fleet: Fleet) -> Tower:
    return Tower(fleet)


def shown(tower: Tower) -> dict[str, object]:
    (row,) = tower.fleet.rows("wake")
    return {name: row[name] for name in ("status", "generation", "flow_run_id")}


async def test_a_new_wake_becomes_one_flow_run_for_its_time(tower: Tower) -> None:
    wake = set_wake(tower.fleet)
    for _ in range(5):
        await tower.look(after=5)
    assert tower.prefect.made == [
        {
            "fleet": "main",
            "trigger": Trigger.WAKE,
            "key": f"wake:main:{wake}:0",
            "at": NOON + timedelta(minutes=20),
            "wake_id": wake,
        }
    ]
    assert shown(tower) == {"status": "pending", "generation": 0, "flow_run_id": tower.prefect.living()[0]}


async def test_twenty_bells_at_once_make_one_flow_run_of_a_wake(tower: Tower) -> None:
    set_wake(tower.fleet)
    await asyncio.gather(*(tower.another_bell().look() for _ in range(20)))
    assert len(tower.prefect.living()) == 1
    assert len(tower.prefect.asked_for) > 1  # the control: it is the key that makes it one
    assert shown(tower)["flow_run_id"] == tower.prefect.living()[0]


async def test_a_flow_run_that_was_deleted_is_made_again(tower: Tower) -> None:
    set_wake(tower.fleet)
    await tower.look()
    tower.prefect.delete(tower.prefect.living()[0])
    await tower.look(after=5)
    assert shown(tower) == {"status": "pending", "generation": 0, "flow_run_id": tower.prefect.living()[0]}


async def test_a_wake_that_is_cancelled_here_is_withdrawn_there_once(tower: Tower) -> None:
    wake = set_wake(tower.fleet)
    await tower.look()
    (flow_run,) = tower.prefect.living()
    with tower.fleet.database.exclusive("main") as tx:
        assert wakes.cancel(tx, "main", wake, who="cli", now=tower.fleet.clock.now()) is None
    await tower.look()
    assert tower.prefect.state_of(flow_run).state is FlowRunState.CANCELLED
    assert tower.prefect.state_of(flow_run).message is not None  # or it would look like a person's
    assert shown(tower) == {"status": "cancelled", "generation": 0, "flow_run_id": None}

    reads = tower.prefect.reads
    await tower.looks(seconds=60)
    assert tower.prefect.reads == reads


async def test_a_withdrawal_while_prefect_is_down_is_made_up_for(tower: Tower) -> None:
    wake = set_wake(tower.fleet)
    await tower.look()
    tower.prefect.is_down = True
    with tower.fleet.database.exclusive("main") as tx:
        wakes.cancel(tx, "main", wake, who="cli", now=tower.fleet.clock.now())
    await tower.looks(seconds=20)
    tower.prefect.is_down = False
    await tower.look()
    assert tower.prefect.living() == []


async def test_a_wake_that_a_person_cancels_in_prefect_is_cancelled_here(tower: Tower) -> None:
    set_wake(tower.fleet)
    await tower.look()
    (flow_run,) = tower.prefect.living()
    tower.prefect.becomes(flow_run, FlowRunState.CANCELLED)
    await tower.look(after=5)

    assert shown(tower)["status"] == "cancelled"
    (audit,) = tower.fleet.rows("audit")
    assert (audit["who"], audit["what"]) == ("Prefect", "wake")
    await tower.looks(seconds=60 * 60)
    assert tower.rings() == len(tower.prefect.living()) == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (FlowRunState.CANCELLED, "Deployment concurrency limit reached."),
        (FlowRunState.CRASHED, None),
        (FlowRunState.FAILED, "no such flow"),
        (FlowRunState.COMPLETED, "empty: no event and no wake waits"),
    ],
)
async def test_any_other_end_before_its_time_is_followed_by_a_new_flow_run(
    tower: Tower, state: FlowRunState, message: str | None
) -> None:
    wake = set_wake(tower.fleet)
    await tower.look()
    tower.prefect.becomes(tower.prefect.living()[0], state, message)
    await tower.look(after=5)

    assert tower.prefect.keys_made() == [f"wake:main:{wake}:0", f"wake:main:{wake}:1"]
    assert tower.prefect.made[1]["at"] == NOON + timedelta(minutes=20)
    assert shown(tower) == {"status": "pending", "generation": 1, "flow_run_id": tower.prefect.living()[0]}


async def test_an_end_after_its_time_leaves_the_wake_to_the_doorbell(tower: Tower) -> None:
    """A run that fails over a wake must not start the next one at once, and again, and again."""
    wake = set_wake(tower.fleet)
    await tower.look()
    tower.fleet.clock.advance(timedelta(minutes=20))
    tower.prefect.becomes(tower.prefect.living()[0], FlowRunState.FAILED)
    await tower.looks(seconds=29)
    assert tower.prefect.keys_made() == [f"wake:main:{wake}:0"]
    await tower.look(after=5)
    assert tower.rings() == 1


async def test_a_generation_is_committed_before_its_key_is_used(tower: Tower) -> None:
    wake = set_wake(tower.fleet)
    await tower.look()
    tower.prefect.becomes(tower.prefect.living()[0], FlowRunState.CRASHED)
    before = tower.prefect.start_run

    async def dies(**asked: object) -> None:
        raise KeyboardInterrupt

    tower.prefect.start_run = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await tower.look(after=5)
    assert shown(tower) == {"status": "pending", "generation": 1, "flow_run_id": None}

    tower.prefect.start_run = before  # type: ignore[method-assign]
    tower.bell = tower.another_bell()
    await tower.look(after=5)
    assert tower.prefect.keys_made() == [f"wake:main:{wake}:0", f"wake:main:{wake}:1"]


async def test_an_old_database_s_keys_lead_to_new_flow_runs(tower: Tower) -> None:
    """Prefect remembers a wake of this number, cancelled by a person an hour before this one was asked for."""
    tower.fleet.clock.advance(-timedelta(hours=1))
    old = await tower.prefect.start_run(fleet="main", trigger=Trigger.WAKE, key="wake:main:1:0")
    tower.prefect.becomes(old.id, FlowRunState.CANCELLED)
    tower.fleet.clock.advance(timedelta(hours=1))

    assert set_wake(tower.fleet) == 1
    await tower.look()
    await tower.look(after=5)

    assert shown(tower) == {"status": "pending", "generation": 1, "flow_run_id": tower.prefect.living()[0]}


async def test_a_wake_in_the_hand_of_a_run_is_not_cancelled(tower: Tower) -> None:
    wake = set_wake(tower.fleet, minutes=1)
    await tower.look()
    tower.prefect.becomes(tower.prefect.living()[0], FlowRunState.CANCELLED)
    tower.fleet.clock.advance(timedelta(minutes=1))
    run = await tower.fleet.open(Trigger.HEARTBEAT)
    await tower.fleet.journal.collect(run, turn=1)
    await tower.look()
    await tower.fleet.close(run)
    assert shown(tower)["status"] == "processed"
    with tower.fleet.database.exclusive("main") as tx:
        assert "processed already" in (wakes.cancel(tx, "main", wake, who="cli", now=tower.fleet.clock.now()) or "")


async def test_what_was_processed_is_left_alone(tower: Tower) -> None:
    set_wake(tower.fleet)
    await tower.look()
    tower.fleet.clock.advance(timedelta(minutes=20))
    await tower.fleet.run_through(Trigger.WAKE, wake_id=1)
    made = len(tower.prefect.made)
    await tower.looks(seconds=600)
    assert (len(tower.prefect.made), tower.rings()) == (made, 0)


async def test_one_wake_that_prefect_refuses_does_not_hold_up_the_next(tower: Tower) -> None:
    first, second = set_wake(tower.fleet, minutes=20), set_wake(tower.fleet, minutes=40)
    before = tower.prefect.start_run

    async def refuses_the_first(**asked: object) -> object:
        if asked["wake_id"] == first:
            raise FixSetup("Prefect refuses it")
        return await before(**asked)  # type: ignore[arg-type]

    tower.prefect.start_run = refuses_the_first  # type: ignore[assignment, method-assign]
    await tower.look()
    assert tower.prefect.keys_made() == [f"wake:main:{second}:0"]
    assert tower.told == [f"wake {first} of fleet main: Prefect refuses it"]
