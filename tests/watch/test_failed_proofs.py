from __future__ import annotations

from tests.watch.rented import HOUR, MINUTE, rented


async def test_more_proofs_that_fail_are_told(database_url: str) -> None:
    """From outside it is the only sign of what goes wrong within a prover. That they fail no more is no hurry."""
    async with rented(database_url) as fleet:
        await fleet.rents_and_runs(2)
        fleet.fleet.sim.queue.fail(20)
        await fleet.keeps_looking(3 * MINUTE)
        told = fleet.events()
        await fleet.keeps_looking(2 * HOUR, every=10 * MINUTE)

        assert told == [("demand_band", "proofs that failed within an hour: 0 → 16–31")]
        assert fleet.rows("sample")[-1]["bands"]["demand.value.failed_per_hour"] == "0"
        assert fleet.events() == told
