"""What each answer teaches of a model: the count is only ever raised, and who fails is left alone for a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.model_server import (
    GREATEST_RATIO,
    LONGEST_PAUSE,
    NO_TOOL_CALL,
    PAUSE,
    RATIOS_KEPT,
    Asked,
    ModelName,
    ModelState,
    news,
)
from fleet_agent.domain.tokens import HARD_TOKENS
from fleet_agent.errors import FixSetup, KeyRefused, ModelUnreachable, ModelUnusable

NOW = datetime(2026, 3, 17, 12, tzinfo=UTC)
NAME = ModelName("http://model.test/v1", "wise-one")
UNREACHABLE = ModelUnreachable("the model server cannot be reached")
FRESH = ModelState()


def asked(
    reported: int, estimate: int = 10_000, *, at_least: int = 3_000, at_most: int = 40_000, called: bool = True
) -> Asked:
    return Asked(estimate=estimate, at_least=at_least, at_most=at_most, reported=reported, called_a_tool=called)


def after(*reports: Asked, state: ModelState = FRESH) -> ModelState:
    return reduce(lambda known, report: known.answered(report, NOW), reports, state)


def failed(times: int, error: FixSetup | ModelUnreachable | ModelUnusable = UNREACHABLE) -> ModelState:
    return reduce(lambda known, _: known.failed(error, NOW), range(times), FRESH)


# --- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "factor"),
    [(9_000, 1.0), (9_800, 1.0), (10_000, 1.02), (12_000, 1.224), (0, 1.0), (100, 1.0), (9_000_000, 1.0)],
)
def test_a_report_raises_the_factor_with_a_margin_and_never_lowers_it(reported: int, factor: float) -> None:
    assert after(asked(reported)).factor == pytest.approx(factor)


def test_the_dearest_of_the_newest_reports_decides() -> None:
    assert after(asked(11_000), asked(13_000), asked(9_000)).factor == pytest.approx(1.02 * 1.3)


def test_what_was_reported_long_ago_is_forgotten() -> None:
    dear = after(asked(13_000))
    assert after(*[asked(9_000)] * (RATIOS_KEPT - 1), state=dear).factor == pytest.approx(1.02 * 1.3)
    assert after(*[asked(9_000)] * RATIOS_KEPT, state=dear).factor == 1.0


def test_a_server_that_says_nothing_teaches_nothing() -> None:
    assert after(asked(0)).ratios == ()


def test_control_a_discount_would_believe_a_server_that_cuts() -> None:
    """Whoever followed reports downwards would send such a server ever more of what it throws away."""
    cut = after(asked(2_000))
    assert min(cut.ratios) < 1 <= cut.factor


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, HARD_TOKENS))))
def test_whatever_servers_report_the_factor_stays_within_bounds(reports: list[tuple[int, int]]) -> None:
    """Never below 1, and never so high that no prompt could be sent: no reply would ever correct it."""
    state = after(*(asked(reported, estimate) for reported, estimate in reports))

    assert 1.0 <= state.factor <= GREATEST_RATIO
    assert len(state.ratios) <= RATIOS_KEPT
    assert HARD_TOKENS // GREATEST_RATIO <= state.fits() <= HARD_TOKENS


@given(st.integers(HARD_TOKENS // 3, HARD_TOKENS), st.lists(st.integers(1, 12_000), max_size=5))
def test_a_prompt_that_was_refused_as_too_long_is_not_sent_again(estimate: int, reports: list[int]) -> None:
    known = after(*map(asked, reports))
    state = known.found_too_long(estimate)

    assert state.fits() < estimate
    assert state.factor >= known.factor


def test_a_report_of_more_than_a_request_has_bytes_teaches_nothing() -> None:
    """The control is one that may be true."""
    assert after(asked(200_000, 9_000)).factor == 1.0
    assert after(asked(40_000, 9_000)).factor == GREATEST_RATIO


def test_what_a_refusal_suggested_ends_with_a_self_test_that_passes_and_what_was_counted_stays() -> None:
    state = after(asked(12_000)).found_too_long(9_000)
    assert state.factor == GREATEST_RATIO
    assert state.tested("no", NOW, passed=False).factor == GREATEST_RATIO
    assert state.tested("well", NOW, passed=True).factor == pytest.approx(1.224)


def test_a_report_beyond_the_hard_bound_is_recorded_and_the_same_prompt_would_not_leave_again() -> None:
    state = after(asked(31_000, 29_500))

    assert state.exceeded_at == NOW
    assert state.fits() < 29_500
    assert after(asked(29_999, 29_500)).exceeded_at is None


@pytest.mark.parametrize(
    ("report", "alarm"),
    [
        (asked(4_096, 27_000, at_least=8_000), True),
        (asked(8_001, 27_000, at_least=8_000), False),
        (asked(0, 27_000, at_least=8_000), False),
        (asked(100, 1_900, at_least=500), False),
    ],
    ids=["far fewer than can be", "a good tokenizer", "not said", "a short prompt"],
)
def test_a_server_that_reports_less_than_can_be_has_cut_the_prompt(report: Asked, alarm: bool) -> None:
    assert (after(report).truncates_since is not None) is alarm


def test_the_alarm_goes_on_through_short_prompts_and_ends_with_a_long_one_that_is_read_whole() -> None:
    cuts = after(asked(4_096, 27_000, at_least=8_000))

    assert after(asked(100, 1_900), state=cuts).truncates_since == NOW
    assert after(asked(20_000, 27_000, at_least=8_000), state=cuts).truncates_since is None


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "pause"),
    [(0, None), (1, None), (2, None), (3, PAUSE), (4, 2 * PAUSE), (5, 4 * PAUSE), (60, LONGEST_PAUSE)],
)
def test_who_fails_again_and_again_is_left_alone_ever_longer(failures: int, pause: timedelta | None) -> None:
    assert failed(failures).asked_again_at == (None if pause is None else NOW + pause)


def test_after_the_pause_it_is_asked_once_more_and_one_answer_heals() -> None:
    state = failed(3)

    assert state.left_alone(NOW)
    assert not state.left_alone(NOW + PAUSE)
    healed = after(asked(9_000), state=state)
    assert (healed.failures, healed.trouble, healed.failing_since, healed.asked_again_at) == (0, "", None, None)


def test_answers_without_a_tool_call_are_failures_for_a_server_may_drop_the_tools() -> None:
    state = after(*[asked(9_000, called=False)] * 3)

    assert state.left_alone(NOW)
    assert state.trouble == NO_TOOL_CALL
    assert len(state.ratios) == 3


@given(st.lists(st.booleans()))
def test_it_is_left_alone_only_after_failures_in_a_row(successes: list[bool]) -> None:
    state = reduce(
        lambda known, well: known.answered(asked(9_000), NOW) if well else known.failed(UNREACHABLE, NOW),
        successes,
        FRESH,
    )
    assert state.left_alone(NOW) is (len(successes) >= 3 and not any(successes[-3:]))


# --- what a person is told --------------------------------------------------------------------------------------------


def told(*states: ModelState) -> list[str]:
    """The keys that are new on the way through the states, without their times."""
    keys = {item.key: None for before, now in pairwise(states) for item in news(NAME, before, now)}
    return [key.partition(":")[0] for key in keys]


def test_a_key_that_is_refused_is_told_at_once_and_once() -> None:
    once = FRESH.failed(KeyRefused("the key is refused", "check it"), NOW)
    twice = once.failed(KeyRefused("the key is refused", "check it"), NOW)

    assert told(FRESH, once, twice) == ["model needs a person"]


def test_a_passing_failure_is_told_when_the_model_is_left_alone() -> None:
    assert told(*(failed(times) for times in range(6))) == ["model left alone"]


@pytest.mark.parametrize(("alone", "words"), [(False, "is left alone for a while"), (True, "is asked all the same")])
def test_what_is_told_of_a_failing_model_is_what_becomes_of_it(alone: bool, words: str) -> None:
    (item,) = news(NAME, failed(2), failed(3), alone=alone)
    assert words in item.text


def test_a_failure_of_a_time_to_come_leaves_nobody_alone() -> None:
    """The clock was set back since. Control: a failure of just now does."""
    assert failed(3).left_alone(NOW)
    assert not failed(3).left_alone(NOW - timedelta(hours=1))


def test_a_second_outage_is_news_again() -> None:
    later = NOW + timedelta(hours=2)
    states = [failed(times) for times in range(4)]
    states.append(states[-1].answered(asked(9_000), later))
    for _ in range(3):
        states.append(states[-1].failed(UNREACHABLE, later))

    assert told(*states) == ["model left alone", "model left alone"]


def test_a_server_that_cuts_a_count_that_is_exceeded_and_a_test_that_fails_are_told() -> None:
    assert told(FRESH, after(asked(4_096, 27_000, at_least=8_000))) == ["model truncates"]
    assert told(FRESH, after(asked(31_000, 29_500))) == ["model counts more"]
    assert told(FRESH, FRESH.tested("it calls no tool", NOW, passed=False)) == ["model failed its test"]
    assert told(FRESH, FRESH.tested("well", NOW, passed=True)) == []


def test_a_model_that_calls_a_tool_in_a_run_has_passed_whatever_its_test_found() -> None:
    """The server may have been starting then. Controls: an answer without a tool call leaves the finding as it
    is, and so does a verdict in writing, by which a server that drops the tools would look well for ever."""
    found_wanting = FRESH.tested("it calls no tool", NOW, passed=False)

    assert found_wanting.answered(asked(9_000), NOW).test_passed is None
    assert found_wanting.answered(asked(9_000, called=False), NOW).test_passed is False
    verdict_in_writing = asked(9_000, called=False)._replace(needed_to=False)
    assert found_wanting.answered(verdict_in_writing, NOW).failures == 0
    assert found_wanting.answered(verdict_in_writing, NOW).test_passed is False
    assert FRESH.tested("well", NOW, passed=True).answered(asked(9_000), NOW).test_passed is True
