"""What a box may say of itself, and how its token is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fleet_agent.domain.box_reports import (
    WAY,
    BoxReport,
    OwnWord,
    could_report,
    digest_of,
    hook_of,
    is_to_drain,
    stage_after,
    without_tokens,
)
from fleet_agent.domain.fleet import LEAVING_STAGES, Stage

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
RANDOMNESS = "A" * 40 + "-_9"
WORDS = st.none() | st.sampled_from(get_args(OwnWord))


@given(st.sampled_from(WAY), st.lists(WORDS))
def test_a_box_that_speaks_only_ever_gets_further(stage: Stage, words: list[OwnWord | None]) -> None:
    for word in words:
        after = stage_after(stage, word, spoke_before=True)
        assert WAY.index(after) >= WAY.index(stage)
        stage = after


@given(st.sampled_from([*LEAVING_STAGES, Stage.GONE]), WORDS, st.booleans())
def test_no_word_of_a_box_brings_it_back(stage: Stage, word: OwnWord | None, spoke_before: bool) -> None:
    assert stage_after(stage, word, spoke_before=spoke_before) is stage
    assert is_to_drain(stage)


def test_the_first_word_of_a_box_puts_right_what_the_list_made_of_it() -> None:
    """A running box counts as proving as long as it never spoke; the same word later changes nothing."""
    assert stage_after(Stage.PROVING, "registered", spoke_before=False) is Stage.REGISTERED
    assert stage_after(Stage.PROVING, "registered", spoke_before=True) is Stage.PROVING


@pytest.mark.parametrize("stage", [Stage.RENTED, Stage.LOADING])
def test_a_box_that_speaks_runs_whatever_the_list_says(stage: Stage) -> None:
    assert stage_after(stage, None, spoke_before=False) is Stage.REGISTERED
    assert stage_after(stage, "proving", spoke_before=True) is Stage.PROVING


@pytest.mark.parametrize(
    "body",
    [
        *('{"stage": "gone"}', '{"stage": "draining"}', '{"stage": "Proving"}', '{"stage": 1}'),
        *('{"tasks": -1}', '{"tasks": "2"}', '{"tasks": true}', '{"tasks": 1.5}', '{"tasks": 10001}'),
        *('{"fetched": 1.1}', '{"fetched": -0.1}', '{"fetched": "all"}', '{"fetched": NaN}'),
        *('{"proofs_per_hour": NaN}', '{"proofs_per_hour": 1e7}', '{"proofs_per_hour": -1}', "[]", "1", "null"),
    ],
)
def test_what_no_box_can_mean_is_refused(body: str) -> None:
    with pytest.raises(ValidationError):
        BoxReport.model_validate_json(body)


def test_a_newer_box_may_say_more_than_we_understand() -> None:
    said = BoxReport.model_validate_json('{"tasks": 2, "stage": "proving", "proofs_per_hour": 31, "heat": 80}')
    assert (said.tasks, said.stage, said.proofs_per_hour) == (2, "proving", 31.0)


@pytest.mark.parametrize(
    ("has_hook", "after_the_first", "says_something"),
    [(True, 1, True), (True, 0, True), (True, -1, False), (False, 1, False), (True, None, False)],
)
def test_silence_says_something_of_a_box_that_could_speak(
    has_hook: bool, after_the_first: int | None, says_something: bool
) -> None:
    since = None if after_the_first is None else NOON - timedelta(hours=after_the_first)
    assert could_report(has_hook=has_hook, rented_at=NOON, reports_since=since) is says_something


def test_a_hook_shows_its_token_to_nobody_who_prints_it() -> None:
    hook = hook_of("https://fleet.example.net/", RANDOMNESS)
    address = hook.address.get_secret_value()

    assert address == f"https://fleet.example.net/box/box_{RANDOMNESS}"
    assert hook.digest == digest_of(address.rpartition("/")[2])
    assert RANDOMNESS not in f"{hook} {hook!r} {hook.model_dump_json()}"


def test_a_token_is_blanked_out_by_who_does_not_know_it() -> None:
    """Boxes print their environment. The control is any other long word."""
    address = hook_of("https://fleet.example.net", RANDOMNESS).address.get_secret_value()

    assert without_tokens(f"FLEET_BOX_HOOK={address}\nready") == (
        "FLEET_BOX_HOOK=https://fleet.example.net/box/***\nready"
    )
    assert without_tokens("a_toolbox_of_far_too_many_words box_7") == "a_toolbox_of_far_too_many_words box_7"
