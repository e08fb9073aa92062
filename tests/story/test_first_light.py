"""The whole loop: work comes, boxes are rented, they prove, and when nothing is left to do they go."""

from __future__ import annotations

from tests.world import Installation


async def test_a_fleet_is_rented_watched_and_destroyed(fleet: Installation) -> None:
    for _ in range(3):
        await fleet.heartbeat()

    assert [run["run_id"] for run in fleet.runs()] == [1, 2, 3]
    assert [run["verdict"]["action"] for run in fleet.runs()] == [True, False, True]
    assert [run["no_op"] for run in fleet.runs()] == [False, True, False]
    assert [action["tool"] for action in fleet.actions()] == ["rent_box", "rent_box", "destroy_box", "destroy_box"]
    assert {action["status"] for action in fleet.actions()} == {"done"}
    assert fleet.sim.market.usd_per_hour() == 0


async def test_every_effect_has_a_ruling_and_a_reason_in_the_ledger(fleet: Installation) -> None:
    await fleet.heartbeat()
    for action in fleet.actions("rent_box"):
        assert (action["ruling"], action["code"]) == ("allow", "allowed")
        assert "in the queue" in action["arguments"]["reason"]


async def test_a_box_carries_the_key_of_its_intent_as_its_label(fleet: Installation) -> None:
    await fleet.heartbeat()
    labels = {f"fa/{fleet.status()['installation']}/main/{action['key']}" for action in fleet.actions("rent_box")}
    assert {create.label for create in fleet.sim.market.creates} == labels


async def test_a_report_tells_a_person_what_happened(fleet: Installation) -> None:
    report = await fleet.heartbeat()
    assert report.headline.startswith("#1 heartbeat")
    assert "**Acted**" in report.markdown
    assert "Rented 1x" in report.markdown
