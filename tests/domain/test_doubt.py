"""A list in which a fleet is missing is doubted until it was told three times, or until the boxes are back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.doubt import A_WHILE, Belief, Trust, judged, unread

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def look(before: Trust, *, of: int, listed: set[int], after: timedelta = MINUTE, overruled: bool = False) -> Trust:
    """So much later than the list that counted last."""
    now = (before.belief.since or NOON) + after
    belief = Belief.of(before.belief.band)  # as the next look has it, from the database
    return judged(belief, expected=of, missing=of - len(listed), listed=listed, now=now, overruled=overruled)


@pytest.mark.parametrize(
    ("expected", "missing", "is_doubted"),
    [(1, 1, False), (2, 1, False), (2, 2, True), (3, 2, False), (3, 3, True), (4, 2, False), (4, 3, True),
     (10, 5, False), (10, 6, True), (0, 0, False)],
)  # fmt: skip
def test_a_list_is_doubted_when_all_of_two_or_more_than_half_of_four_are_missing(
    expected: int, missing: int, is_doubted: bool
) -> None:
    trust = judged(Belief(), expected=expected, missing=missing, listed=range(expected - missing), now=NOON)
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
    assert look(doubted, of=2, listed={1, 2}, after=timedelta(0)) == Trust()


def test_a_list_that_could_not_be_read_breaks_the_row() -> None:
    first = look(Trust(), of=2, listed=set())
    second = look(first, of=2, listed=set())
    after_a_failure = look(Trust(belief=unread(second.belief)), of=2, listed=set())
    assert after_a_failure.doubt
    assert not look(second, of=2, listed=set()).doubt  # the control


@given(st.lists(st.integers(0, 29), min_size=2, max_size=20))
def test_lists_that_follow_each_other_quickly_are_one_list(seconds: list[int]) -> None:
    """An order brings a look forward, and somebody may run two watches: one lie lasts longer than that. Control: the
    first list after a while is another one, and with the next it is believed."""
    trust, at = look(Trust(), of=3, listed=set()), NOON + MINUTE
    for after in sorted(seconds):
        trust = judged(trust.belief, expected=3, missing=3, listed=(), now=at + timedelta(seconds=after))
        assert trust.doubt
    second = look(trust, of=3, listed=set(), after=A_WHILE)
    assert (bool(second.doubt), bool(look(second, of=3, listed=set(), after=A_WHILE).doubt)) == (True, False)


def test_who_counts_lists_alone_believes_a_lie_that_is_three_seconds_old() -> None:
    """The control."""

    def naive(lists: Sequence[set[int]]) -> bool:
        return len(lists) >= 3 and lists[-1] == lists[-2] == lists[-3]

    lists: list[set[int]] = []
    trust = Trust()
    for second in range(3):
        lists.append(set())
        trust = judged(trust.belief, expected=3, missing=3, listed=(), now=NOON + timedelta(seconds=second))

    assert (naive(lists), bool(trust.doubt)) == (True, True)


def test_a_clock_that_was_set_back_holds_up_no_belief() -> None:
    doubted = judged(Belief(), expected=2, missing=2, listed=(), now=NOON + 60 * MINUTE)
    second = judged(doubted.belief, expected=2, missing=2, listed=(), now=NOON)
    assert not judged(second.belief, expected=2, missing=2, listed=(), now=NOON + MINUTE).doubt


def test_a_person_who_lets_things_go_on_ends_the_doubt_of_this_list_and_of_no_other() -> None:
    doubted = look(Trust(), of=4, listed=set())
    believed = look(doubted, of=4, listed=set(), after=timedelta(seconds=1), overruled=True)
    assert not believed.doubt
    assert not look(believed, of=4, listed=set()).doubt
    assert look(believed, of=4, listed={1}).doubt  # the control


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
