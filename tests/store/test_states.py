"""What an inbox event is, step by step, as its columns say it."""

from __future__ import annotations

from fleet_agent.store.claims import QUARANTINE_FROM, state_of
from fleet_agent.store.tables import Inbox, InboxState
from tests.store.rig import Fleet


def state(fleet: Fleet, event: int) -> InboxState:
    with fleet.database.transaction() as tx:
        return state_of(tx.get_one(Inbox, event))


async def test_an_event_waits_is_claimed_given_back_and_consumed(fleet: Fleet) -> None:
    event = fleet.post()
    seen = [state(fleet, event)]
    run = await fleet.open()
    await fleet.journal.collect(run, turn=1)
    seen.append(state(fleet, event))
    await fleet.journal.fail_run(run, exit_reason="model unreachable", summary="no answer")
    seen.append(state(fleet, event))
    await fleet.run_through()
    seen.append(state(fleet, event))

    assert seen == [InboxState.WAITING, InboxState.CLAIMED, InboxState.WAITING, InboxState.CONSUMED]


async def test_an_event_over_which_runs_keep_dying_is_quarantined(fleet: Fleet) -> None:
    event = fleet.post()
    for _ in range(QUARANTINE_FROM):
        run = await fleet.open()
        await fleet.journal.collect(run, turn=1)
        await fleet.reply(run)
        await fleet.journal.fail_run(run, exit_reason="model unusable", summary="no sense in it")

    assert state(fleet, event) is InboxState.QUARANTINED
