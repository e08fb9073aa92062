"""The whole loop: work comes, boxes are rented, they prove, and when nothing is left to do they go."""

from __future__ import annotations

from tests.world import Installation


async def test_a_fleet_is_rented_watched_and_destroyed(fleet: Installation) -> None:
    """Three runs of first light: a rent, a run that changes nothing, a destroy."""
    rented = await fleet.heartbeat()
    watched = await fleet.heartbeat()
    ended = await fleet.heartbeat()

    assert [run["verdict"]["action"] for run in fleet.runs()] == [True, False, True]
    assert watched.summary["no_op"]
    assert [action["tool"] for action in fleet.actions()] == ["rent_box", "rent_box", "destroy_box", "destroy_box"]
    assert {action["status"] for action in fleet.actions()} == {"done"}
    assert (rented.headline, ended.headline) == ("#1 event: policy: launch.image  → …", "#3 heartbeat")
