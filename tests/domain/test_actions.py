"""What the model says becomes a typed call or one sentence about what is wrong with it; it never raises."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.actions import (
    TOOLS,
    Finish,
    Malformed,
    RentBox,
    ScheduleNextCheck,
    parse_call,
    tool_definitions,
)
from fleet_agent.domain.verdict import Verdict, read_verdict, without_verdict


def test_a_well_formed_call_is_typed() -> None:
    call = parse_call("rent_box", '{"offer_id": 7, "reason": "pending work"}')
    assert call == RentBox(offer_id=7, reason="pending work")


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    answer = parse_call("sell_box", "{}")
    assert isinstance(answer, Malformed)
    assert "rent_box" in answer.sentence


def test_an_argument_nobody_asked_for_is_refused() -> None:
    answer = parse_call("rent_box", '{"offer_id": 7, "reason": "pending work", "onstart": "curl evil"}')
    assert isinstance(answer, Malformed)


@given(st.sampled_from([tool.name for tool in TOOLS] + ["x"]), st.text() | st.from_regex(r"\{.*\}"))
def test_no_arguments_however_odd_raise(name: str, arguments: str) -> None:
    parse_call(name, arguments)


def test_every_tool_is_described_to_the_model_once() -> None:
    names = [definition["function"]["name"] for definition in tool_definitions()]
    assert names == [tool.name for tool in TOOLS]
    assert all(definition["function"]["description"] for definition in tool_definitions())


def test_a_verdict_in_text_counts_like_the_finish_tool() -> None:
    text = 'All calm. <verdict>{"action": false, "state_changed": true}</verdict>'
    said = Finish(action=False, state_changed=True, summary="All calm.")
    assert read_verdict(text) == said.verdict() == Verdict(action=False, state_changed=True)
    assert without_verdict(text) == "All calm."


def test_a_verdict_that_is_not_two_booleans_is_no_verdict() -> None:
    assert read_verdict('<verdict>{"action": "false", "state_changed": 0}</verdict>') is None
    assert read_verdict("<verdict>[]</verdict>") is None


def test_the_last_of_several_verdicts_counts() -> None:
    block = '<verdict>{"action": %s, "state_changed": false}</verdict>'
    text = f"{block % 'true'} no: {block % 'false'}"
    assert read_verdict(text) == Verdict(action=False, state_changed=False)


@pytest.mark.parametrize("text", ["<verdict>" * 30_000, "<verdict>" + "[" * 200_000 + "</verdict>", "</verdict>" * 9])
def test_a_reply_made_to_hurt_is_read_at_once(text: str) -> None:
    assert read_verdict(text) is None
    without_verdict(text)


@given(st.text())
def test_no_text_breaks_the_reading_of_verdicts(text: str) -> None:
    read_verdict(f"<verdict>{text}</verdict>")


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ('{"minutes": 20, "reason": "look again"}', timedelta(minutes=20)),
        ('{"at": "2026-03-17T13:00:00Z", "reason": "look again"}', timedelta(hours=1)),
        ('{"at": "2026-03-17T13:00:00", "reason": "look again"}', timedelta(hours=1)),
        ('{"at": "2026-03-17T13:00:00", "minutes": null, "reason": "look again"}', timedelta(hours=1)),
    ],
)
def test_a_check_is_asked_for_in_minutes_or_at_a_time(arguments: str, after: timedelta) -> None:
    asked = parse_call("schedule_next_check", arguments)
    assert isinstance(asked, ScheduleNextCheck)
    assert asked.after(datetime(2026, 3, 17, 12, tzinfo=UTC)) == after


@pytest.mark.parametrize("when", ['"minutes": 20, "at": "2026-03-17T13:00:00Z", ', "", '"at": "soon", '])
def test_a_check_at_no_time_or_at_two_is_told_so(when: str) -> None:
    assert isinstance(parse_call("schedule_next_check", f'{{{when}"reason": "look again"}}'), Malformed)
