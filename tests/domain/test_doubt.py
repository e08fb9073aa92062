"""A list in which a fleet is missing is doubted until it was told three times, or until the boxes are back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.doubt import Trust, judged, unread


def look(before: Trust, *, of: int, listed: set[int]) -> Trust:
    return judged(before.state, expected=of, missing=of - len(listed), listed=listed)


@pytest.mark.parametrize(
    ("expected", "missing", "is_doubted"),
    [(1, 1, False), (2, 1, False), (2, 2, True), (3, 2, False), (3, 3, True), (4, 2, False), (4, 3, True),
     (10, 5, False), (10, 6, True), (0, 0, False)],
)  # fmt: skip
def test_a_list_is_doubted_when_all_of_two_or_more_than_half_of_four_are_missing(
    expected: int, missing: int, is_doubted: bool
) -> None:
    trust = judged("", expected=expected, missing=missing, listed=range(expected - missing))
    assert bool(trust.doubt) is is_doubted


def test_it_is_believed_once_two_further_lists_in_a_row_agree() -> None:
    first = look(Trust(), of=4, listed=set())
    second = look(first, of=4, listed={1})
    third = look(second, of=4, listed=set())
    fourth = look(third, of=4, listed=set())
    assert [bool(each.doubt) for each in (first, second, third, fourth)] == [True, True, True, False]


def test_what_was_believed_is_not_doubted_again_while_it_stays_as_it_is() -> None:
    trust = Trust()
    doubts: list[bool] = []
    for _ in range(6):
        trust = look(trust, of=2, listed=set())
        doubts.append(bool(trust.doubt))
    assert doubts == [True, True, False, False, False, False]


def test_boxes_that_are_back_end_the_doubt_at_once() -> None:
    doubted = look(Trust(), of=2, listed=set())
    assert look(doubted, of=2, listed={1, 2}) == Trust()


def test_a_list_that_could_not_be_read_breaks_the_row() -> None:
    first = look(Trust(), of=2, listed=set())
    second = look(first, of=2, listed=set())
    after_a_failure = look(Trust(state=unread(second.state)), of=2, listed=set())
    assert after_a_failure.doubt
    assert not look(second, of=2, listed=set()).doubt  # the control


@given(st.lists(st.sets(st.integers(1, 6), max_size=6), min_size=1, max_size=8))
def test_no_list_that_lacks_most_of_six_boxes_is_believed_that_says_another_thing_than_the_one_before(
    lists: list[set[int]],
) -> None:
    trust, before = Trust(), None
    for listed in lists:
        trust = look(trust, of=6, listed=listed)
        if len(listed) > 2:
            assert not trust.doubt
        elif listed != before:
            assert trust.doubt
        before = listed
