"""What a person sets is in force at once, audited, and wakes the agent."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Brake, Mode
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


# --- brakes -----------------------------------------------------------------------------------------------------------


def brakes(fleet: Fleet) -> dict[str, object]:
    names = ("mode", "scale_out_paused", "scale_in_paused", "rent_breaker", "rent_failures", "frozen_because")
    return {name: fleet.state()[name] for name in names}


NO_BRAKES = {
    "mode": "live",
    "scale_out_paused": False,
    "scale_in_paused": False,
    "rent_breaker": "",
    "rent_failures": 0,
    "frozen_because": "",
}


def draw_every_brake(fleet: Fleet) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        steering.set_mode(tx, fleet.name, Mode.PAUSED, who="ana", now=fleet.clock.now())
        steering.pause_scaling(tx, fleet.name, tuple(Brake), who="ana", now=fleet.clock.now())
        state = session.state(tx, fleet.name)
        state.rent_breaker, state.rent_failures, state.frozen_because = (
            "5 rents in a row failed",
            5,
            "the list is empty",
        )


@pytest.mark.parametrize("brake", Brake)
def test_each_half_of_scaling_is_paused_alone(fleet: Fleet, brake: Brake) -> None:
    with fleet.database.exclusive(fleet.name) as tx:
        steering.pause_scaling(tx, fleet.name, [brake], who="ana", now=fleet.clock.now())

    assert brakes(fleet) == {**NO_BRAKES, f"{brake}_paused": True}
    assert [row["text"] for row in fleet.rows("inbox")] == [f"brakes: {brake}_paused off → on"]
    assert [(row["who"], row["what"]) for row in fleet.rows("audit")] == [("ana", "brakes")]


def test_to_resume_renting_closes_the_breaker_and_leaves_every_other_brake(fleet: Fleet) -> None:
    draw_every_brake(fleet)
    before = brakes(fleet)
    with fleet.database.exclusive(fleet.name) as tx:
        steering.resume_scaling(tx, fleet.name, [Brake.SCALE_OUT], who="ana", now=fleet.clock.now())

    assert brakes(fleet) == {**before, "scale_out_paused": False, "rent_breaker": "", "rent_failures": 0}


@pytest.mark.parametrize("mode", [Mode.LIVE, Mode.DRY_RUN])
def test_to_resume_lets_go_of_every_brake(fleet: Fleet, mode: Mode) -> None:
    draw_every_brake(fleet)
    with fleet.database.exclusive(fleet.name) as tx:
        steering.resume(tx, fleet.name, mode, who="ana", now=fleet.clock.now())

    assert brakes(fleet) == {**NO_BRAKES, "mode": mode}


def test_a_brake_that_is_drawn_twice_is_news_once_and_what_strangers_said_is_none(fleet: Fleet) -> None:
    draw_every_brake(fleet)
    for _ in range(2):
        with fleet.database.exclusive(fleet.name) as tx:
            steering.resume(tx, fleet.name, Mode.LIVE, who="ana", now=fleet.clock.now())

    assert [row["text"] for row in fleet.rows("inbox")] == [
        "mode: live → paused",
        "brakes: scale_out_paused off → on, scale_in_paused off → on",
        "mode: paused → live",
        "brakes: scale_out_paused on → off, scale_in_paused on → off, rent_breaker on → off, frozen_because on → off",
    ]
