"""Posting is a row and a notification, and what repeats is counted."""

from __future__ import annotations

import json
from datetime import timedelta

import psycopg
import pytest
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fleet_agent.domain.triggers import PRIORITY, Kind, Priority, priority_of
from fleet_agent.store.database import BELL_CHANNEL
from fleet_agent.store.inbox import LARGEST_PAYLOAD, OCCURRENCES_KEPT, Post, post
from tests.postgres import plain
from tests.store.rig import Fleet


async def test_an_event_carries_the_priority_of_its_kind(fleet: Fleet) -> None:
    for kind in Kind:
        fleet.post(kind)

    assert {Kind(row["kind"]): row["priority"] for row in fleet.rows("inbox")} == PRIORITY


async def test_numbers_that_json_does_not_know_are_kept_as_text(fleet: Fleet) -> None:
    payload = {"value": float("nan"), "values": [float("inf"), {"low": float("-inf")}, 1.5]}
    with fleet.database.shared(fleet.name) as tx:
        post(tx, fleet.name, Post(kind=Kind.BOX_FAILED, source="test", payload=payload), now=fleet.clock.now())

    assert [row["payload"] for row in fleet.rows("inbox")] == [
        {"value": "nan", "values": ["inf", {"low": "-inf"}, 1.5]}
    ]


async def test_what_repeats_while_it_waits_is_counted_and_keeps_its_first_time(fleet: Fleet) -> None:
    began = fleet.clock.now()
    first = fleet.post(Kind.DEMAND_BAND, "demand is 40", dedupe_key="demand")
    fleet.clock.advance(timedelta(minutes=1))
    second = fleet.post(Kind.DEMAND_BAND, "demand is 80", dedupe_key="demand")

    (row,) = fleet.rows("inbox")

    assert first == second == row["id"]
    assert (row["count"], row["text"], row["occurred_at"]) == (2, "demand is 80", began)


async def test_what_repeats_more_urgently_becomes_more_urgent(fleet: Fleet) -> None:
    fleet.post(Kind.BOX_PROGRESS, dedupe_key="box 101")
    fleet.post(Kind.BOX_FAILED, dedupe_key="box 101")
    fleet.post(Kind.BOX_PROGRESS, dedupe_key="box 101")

    assert [row["priority"] for row in fleet.rows("inbox")] == [Priority.CHANGE]


async def test_what_repeats_after_it_was_claimed_is_a_new_event(fleet: Fleet) -> None:
    first = fleet.post(Kind.DEMAND_BAND, dedupe_key="demand")
    await fleet.journal.collect(await fleet.open(), turn=1)

    assert fleet.post(Kind.DEMAND_BAND, dedupe_key="demand") != first


async def test_an_occurrence_that_is_told_again_changes_nothing_whatever_became_of_it(fleet: Fleet) -> None:
    """Control, two tests above: a state that recurs after it was claimed is a new event."""
    first = fleet.post(Kind.ALERT_FIRING, "the queue is starved", occurrence_id="alert 1")
    waiting = fleet.post(Kind.ALERT_FIRING, "told again", occurrence_id="alert 1")
    await fleet.run_through()
    consumed = fleet.post(Kind.ALERT_FIRING, "told again", occurrence_id="alert 1")

    (row,) = fleet.rows("inbox")

    assert first == waiting == consumed == row["id"]
    assert (row["count"], row["text"]) == (1, "the queue is starved")


async def test_an_occurrence_that_is_told_again_rings_for_nobody(fleet: Fleet, database_url: str) -> None:
    with psycopg.connect(plain(database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {BELL_CHANNEL}")
        fleet.post(occurrence_id="alert 1")
        fleet.post(occurrence_id="alert 1")
        fleet.post(occurrence_id="alert 2")

        assert len(list(listener.notifies(timeout=5, stop_after=2))) == 2
        assert list(listener.notifies(timeout=0)) == []


async def test_an_occurrence_is_forgotten_after_a_day(fleet: Fleet) -> None:
    first = fleet.post(occurrence_id="alert 1")
    fleet.clock.advance(OCCURRENCES_KEPT - timedelta(seconds=1))
    within = fleet.post(occurrence_id="alert 1")
    fleet.clock.advance(timedelta(seconds=1))
    after = fleet.post(occurrence_id="alert 1")

    assert within == first != after


async def test_each_fleet_has_occurrences_of_its_own(fleet: Fleet) -> None:
    assert fleet.post(occurrence_id="alert 1") != Fleet(fleet.database, name="other").post(occurrence_id="alert 1")


def test_an_event_cannot_both_repeat_and_occur_once() -> None:
    with pytest.raises(ValidationError, match="give one key, not both"):
        Post(kind=Kind.WEBHOOK, source="test", dedupe_key="a", occurrence_id="b")


def test_the_severity_of_an_alert_decides_where_the_table_knows_it() -> None:
    assert priority_of(Kind.ALERT_FIRING, "INFO") is Priority.ROUTINE
    assert priority_of(Kind.ALERT_FIRING, "critical") is Priority.CHANGE
    assert priority_of(Kind.ALERT_FIRING, "sev-7") is PRIORITY[Kind.ALERT_FIRING]


@pytest.mark.parametrize("letter", ["x", "é", '"'])
async def test_of_a_payload_that_is_too_large_the_beginning_is_kept_and_the_text_says_so(
    fleet: Fleet, letter: str
) -> None:
    """Control: one that just fits is kept whole."""
    one = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    fits = {"log": letter * ((LARGEST_PAYLOAD - len('{"log": ""}')) // one)}
    fleet.post(text="it fits", payload=fits)
    fleet.post(text="too much", payload={"log": letter * (LARGEST_PAYLOAD * 2 // one)})

    whole, cut = fleet.rows("inbox")

    assert (whole["text"], whole["payload"]) == ("it fits", fits)
    assert cut["text"] == "too much [the first 256 of 512 KB are kept]"
    assert cut["payload"]["bytes"] > 2 * LARGEST_PAYLOAD
    assert cut["payload"]["beginning"].startswith('{"log": "' + json.dumps(letter, ensure_ascii=False)[1:-1])
    assert len(cut["payload"]["beginning"].encode()) in (LARGEST_PAYLOAD, LARGEST_PAYLOAD - 1)


async def test_messages_of_a_person_are_never_taken_for_repetitions(fleet: Fleet) -> None:
    fleet.post(Kind.MESSAGE, "yes")
    fleet.post(Kind.MESSAGE, "yes")

    assert [row["count"] for row in fleet.rows("inbox")] == [1, 1]


async def test_a_post_is_heard_on_the_bell_channel_when_it_is_committed(fleet: Fleet, database_url: str) -> None:
    with psycopg.connect(plain(database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {BELL_CHANNEL}")
        fleet.post()

        (heard,) = listener.notifies(timeout=5, stop_after=1)

    assert heard.payload == fleet.name


async def test_a_run_that_ends_rings_when_something_is_left(fleet: Fleet, database_url: str) -> None:
    """Control: a run that leaves nothing rings for nobody."""
    await fleet.run_through()
    run = await fleet.open()
    fleet.post()
    with psycopg.connect(plain(database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {BELL_CHANNEL}")
        await fleet.close(run)
        leaving = list(listener.notifies(timeout=5, stop_after=1))
        await fleet.run_through()
        empty = list(listener.notifies(timeout=0))

    assert (len(leaving), len(empty)) == (1, 0)


async def test_the_database_itself_refuses_a_second_waiting_event_of_a_key(fleet: Fleet) -> None:
    fleet.post(Kind.DEMAND_BAND, dedupe_key="demand")
    fleet.post(Kind.DEMAND_BAND, dedupe_key="other")

    with pytest.raises(IntegrityError, match="inbox_one_waiting_a_dedupe_key"), fleet.database.transaction() as tx:
        tx.execute(text("UPDATE inbox SET dedupe_key = 'demand'"))


async def test_a_fleet_whose_name_fits_no_label_is_refused(fleet: Fleet) -> None:
    with pytest.raises(IntegrityError, match="fleet_fits_labels"):
        Fleet(fleet.database, name="Main/2").post()
