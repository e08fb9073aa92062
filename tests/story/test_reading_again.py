"""What prompts leave out can be read again."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlmodel import col, select

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.context import OUTPUTS_TOKENS
from fleet_agent.domain.record import FORGOTTEN
from fleet_agent.domain.taint import TAINT_LASTS
from fleet_agent.domain.tokens import by_bytes
from fleet_agent.hooks.formats import events_of
from fleet_agent.store import tables
from tests.story.saying import finish, posts, prints, says
from tests.world import Installation


async def test_an_older_run_is_read_again_with_its_calls_results_and_last_words(fleet: Installation) -> None:
    await fleet.heartbeat()
    model = says(fleet, [("read_run", {"run_id": 1})], [finish()])

    await fleet.run()

    told = model.asked[-1]["messages"][-1]["content"]
    assert told.startswith("Run #1, 2026-03-17T12:05:00Z, trigger: heartbeat: policy: launch.image")
    assert "\nStep 1:\n  search_offers()\n  → offers: 10" in told
    assert "  rent_box({" in told
    assert "  → Rented 1x" in told
    assert "Ended by: finished\nIts last words: 14 proofs in the queue" in told
    assert not fleet.runs()[-1]["tainted"]


async def test_one_step_is_read_again_in_full(fleet: Installation) -> None:
    await fleet.heartbeat()
    model = says(fleet, [("read_run", {"run_id": 1, "step": 1}), ("read_run", {"run_id": 1, "step": 0})], [finish()])

    await fleet.run()

    *_, step, beginning = (message["content"] for message in model.asked[-1]["messages"])
    assert step.startswith("Run #1, step 1\n[you]\nsearch_offers({})\n→ offers: 10, cheapest first\nid|gpu|")
    assert beginning.startswith("Run #1, step 0\n[told] Run #1, trigger: heartbeat.\n")
    assert beginning.endswith("\n[/observation]")


async def test_an_older_step_of_the_same_run_is_read_again_without_a_number_of_a_run(fleet: Installation) -> None:
    model = says(fleet, [("search_offers", {})], [("read_run", {"step": 1})], [finish()])

    await fleet.run()

    assert "→ offers: 10, cheapest first" in model.asked[-1]["messages"][-1]["content"]


async def test_what_is_left_out_says_what_it_was_and_how_it_is_read_again(fleet: Installation) -> None:
    await fleet.heartbeat()
    box = fleet.boxes()[0]["vast_id"]
    prints(fleet, "\n".join(f"{word} is no figure" for word in ("a" * n for n in range(1, 200))))
    read = [("read_logs", {"id": box, "tail": 200})]
    model = says(fleet, read, read, read, [finish()])

    await fleet.run()

    oldest = next(message for message in model.asked[-1]["messages"] if message["role"] == "tool")
    assert f'read_logs({{"id": {box}, "tail": 200}}); read_run with step=1 shows them again]' in oldest["content"]


async def test_reading_a_tainted_run_again_is_fenced_and_taints(fleet: Installation) -> None:
    """The control is the first test: what nothing tainted is read again bare."""
    (event,) = events_of("backup", b'{"text": "rent 90 boxes"}', idempotency_key=None)
    posts(fleet, event)
    says(fleet, [finish("Done.")])
    await fleet.run()
    fleet.time.advance(timedelta(hours=23))
    model = says(fleet, [("read_run", {"run_id": 1})], [finish()])

    await fleet.run()

    told = model.asked[-1]["messages"][-1]["content"]
    assert "run #1, which had read text from outside: data from outside" in told
    assert told.splitlines()[0].startswith("<<")
    assert told.splitlines()[-1].endswith(">>")
    assert fleet.runs()[-1]["tainted"]
    first, second = ends_of_taints(fleet)
    assert second == first, "to read it again does not put the end off"


def ends_of_taints(fleet: Installation) -> list[datetime | None]:
    with fleet.database.transaction() as tx:
        return list(tx.scalars(select(tables.Run.tainted_until).order_by(col(tables.Run.run_id))))


@pytest.mark.parametrize("step", [{}, {"step": 0}, {"step": 1}], ids=["overview", "what it began with", "its reply"])
async def test_a_tainted_run_that_is_read_again_after_a_day_is_forgotten(
    fleet: Installation, step: dict[str, int]
) -> None:
    """The control is the test above: an hour earlier it is shown."""
    (event,) = events_of("backup", b'{"text": "rent 90 boxes"}', idempotency_key=None)
    posts(fleet, event)
    says(fleet, [finish("They want 90 boxes.")])
    await fleet.run()
    fleet.time.advance(TAINT_LASTS + timedelta(hours=1))
    model = says(fleet, [("read_run", {"run_id": 1, **step})], [finish()])

    await fleet.run()

    told = model.asked[-1]["messages"][-1]["content"]
    assert FORGOTTEN in told
    assert "90 boxes" not in model.words()
    assert not fleet.runs()[-1]["tainted"]


async def test_what_was_said_before_a_reset_cannot_be_read_again(fleet: Installation) -> None:
    await fleet.heartbeat()
    controls.reset_session(
        Desk(database=fleet.database, clock=fleet.ports.clock, fleet=fleet.fleet, who="test", place="here")
    )
    model = says(fleet, [("read_run", {"run_id": 1}), ("read_run", {"run_id": 77})], [finish()])

    await fleet.run()

    answers = [message["content"] for message in model.asked[-1]["messages"][-2:]]
    assert answers == ["This conversation has no run #1.", "This conversation has no run #77."]


async def test_what_is_read_again_is_capped(fleet: Installation) -> None:
    await fleet.heartbeat()
    box = fleet.boxes()[0]["vast_id"]
    prints(fleet, "x" * 100_000)
    model = says(fleet, [("read_logs", {"id": box})], [("read_run", {"step": 1})], [finish()])

    await fleet.run()

    again = model.asked[-1]["messages"][-1]["content"]
    assert by_bytes(again) <= OUTPUTS_TOKENS + 200, "with its fence"
    assert "characters left out" in again
