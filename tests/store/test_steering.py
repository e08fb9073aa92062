"""What a person sets is in force at once, audited, and wakes the agent."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.errors import PolicyInvalid
from fleet_agent.store import session, steering
from tests.store.rig import Fleet


def policy(fleet: Fleet) -> Policy:
    with fleet.database.transaction() as tx:
        return session.policy(tx, fleet.name)


def test_a_fleet_begins_with_the_default_policy(fleet: Fleet) -> None:
    assert policy(fleet) == Policy()


def test_a_policy_value_is_in_force_and_counted_as_a_version(fleet: Fleet) -> None:
    fleet.set_policy(limits__max_boxes="6")
    fleet.set_policy(limits__max_usd_per_hour="2.5")

    assert policy(fleet).limits.max_boxes == 6
    assert fleet.state()["policy_version"] == 2


def test_an_invalid_policy_value_changes_nothing_and_wakes_nobody(fleet: Fleet) -> None:
    with pytest.raises(PolicyInvalid, match="max_boxes"):
        fleet.set_policy(limits__max_boxes="-1")

    assert policy(fleet) == Policy()
    assert fleet.rows("inbox") == fleet.rows("audit") == []


@pytest.mark.parametrize("what", ["policy", "mode", "objective"])
def test_a_change_is_audited_and_becomes_an_urgent_event(fleet: Fleet, what: str) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        match what:
            case "policy":
                steering.change_policy(tx, fleet.name, {"limits.max_boxes": "6"}, who="ana", now=fleet.clock.now())
            case "mode":
                steering.set_mode(tx, fleet.name, Mode.PAUSED, who="ana", now=fleet.clock.now())
            case _:
                steering.set_objective(tx, fleet.name, "stay small", who="ana", now=fleet.clock.now())

    said = {"policy": "limits.max_boxes 4 → 6", "mode": "live → paused", "objective": "stay small"}[what]
    assert [(row["who"], row["what"], row["text"]) for row in fleet.rows("audit")] == [("ana", what, said)]
    assert [(row["kind"], row["priority"], row["text"]) for row in fleet.rows("inbox")] == [
        ("config_change", 0, f"{what}: {said}")
    ]


def test_a_reset_begins_an_epoch_and_wakes_nobody(fleet: Fleet) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        epoch = steering.reset_session(tx, fleet.name, who="ana", now=fleet.clock.now())

    assert epoch == fleet.state()["epoch"] == 1
    assert fleet.rows("inbox") == []


def test_a_stored_policy_of_another_version_is_said_and_never_guessed(fleet: Fleet) -> None:
    fleet.set_policy(limits__max_boxes="6")
    with fleet.database.transaction() as tx:
        tx.execute(text("""UPDATE session_state SET policy = policy || '{"sounds": {"volume": 11}}'"""))

    with pytest.raises(PolicyInvalid, match="stored policy of fleet main cannot be read: sounds"):
        policy(fleet)


def test_asking_for_the_status_of_a_fleet_does_not_make_it(fleet: Fleet) -> None:
    assert fleet.state()["mode"] == "live"
    with fleet.database.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM session_state")).scalar_one() == 0
