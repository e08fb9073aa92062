"""The short form: every await point of every story once, with what happens there, the faults and what comes next taking
turns. `make chaos` tells every combination."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.chaos.cases import FAULTS, ONLY_LOOK, Case, Next, Point, What, nexts
from tests.chaos.killed import tell_killed
from tests.chaos.naive import CONTROLS
from tests.chaos.stories import AGENT, APPROVED, LOOK, STOP, STOP_WITH_A_CREATE, Story
from tests.chaos.telling import Teller
from tests.postgres import TemporaryPostgres

pytestmark = pytest.mark.timeout(600)  # dozens of cases in one test, each with a database of its own


@pytest.fixture(scope="module")
def teller(postgres: TemporaryPostgres) -> Teller:
    """One for all tests, whose beginnings are made once."""
    return Teller(postgres)


async def each_point_once(teller: Teller, story: Story) -> Sequence[Case]:
    """Every call, and all else in turns of different lengths, so that no two always come together. Calls that only look
    are the same in every story, and told of in the first."""
    cases: list[Case] = []
    faults, calls = itertools.cycle(FAULTS), await teller.calls(story, "none")
    for number, call in enumerate(calls, 1):
        fault, what = next(faults), story.whats[number % len(story.whats)]
        point = Point(number, call, after=number % 3 != 0)
        then = nexts(what)[number % len(nexts(what))]
        if story.may_strike(what, point, calls) and (story is AGENT or call not in ONLY_LOOK):
            cases.append(Case(story.name, point, what, fault, then))
    return cases


@pytest.mark.parametrize("story", [AGENT, APPROVED, LOOK, STOP, STOP_WITH_A_CREATE], ids=lambda story: story.name)
async def test_whatever_happens_at_any_point_of_it_no_promise_about_money_is_broken(
    teller: Teller, story: Story
) -> None:
    told = [await teller.tell(case) for case in await each_point_once(teller, story)]
    assert {str(each.case): each.broken for each in told if each.broken} == {}
    assert sum(each.reached for each in told) >= max(5, 0.9 * len(told))  # a fault may make a story shorter


AFTER_A_RENT = Point(30, "rent", after=True)


@pytest.mark.parametrize(
    ("fault", "broken"), [("create_lost", "2 boxes were made for"), ("list_lag", "5 boxes live and the cap is 4")]
)
async def test_one_habit_of_others_breaks_them(teller: Teller, fault: str, broken: str) -> None:
    """The control: to ask again when an answer is lost; to forget what is not in the first list."""
    case = Case(AGENT.name, AFTER_A_RENT, What.KILLED, fault, Next.OTHER)

    ours, theirs = await teller.tell(case), await teller.tell(case, CONTROLS[fault])

    assert (ours.reached, ours.broken) == (True, [])
    assert any(broken in sentence for sentence in theirs.broken), theirs.broken
    assert all(theirs.struck[name] for name in FAULTS[fault])


@pytest.mark.parametrize(
    ("point", "fault"),
    [
        (Point(29, "mark_sent", after=True), "none"),
        (AFTER_A_RENT, "create_lost"),
        (Point(31, "record_outcome", after=False), "label_dropped"),
    ],
)
async def test_a_process_that_is_killed_for_good_leaves_nothing_that_is_not_found(
    teller: Teller, point: Point, fault: str
) -> None:
    """`kill -9` of a process of its own, at what matters most; `make chaos` does it fifty times."""
    told = await tell_killed(teller, Case(AGENT.name, point, What.KILLED, fault, Next.OTHER))
    assert told.reached
    assert told.broken == []
