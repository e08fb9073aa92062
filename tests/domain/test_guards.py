"""A model that runs in a circle is told so, and then stopped."""

from __future__ import annotations

import pytest

from fleet_agent.domain.guards import ALIKE_STOPPED_AT, STOPPED_AT, Guard, Nudge, Stop, says_something
from fleet_agent.domain.run import Message, MessageKind, Result, ToolCall


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id="abcdefghi", name=name, arguments=arguments, provider_id="x")


def reply(*calls: ToolCall, step: int = 1) -> Message:
    return Message(turn=1, step=step, role="assistant", kind=MessageKind.TOOL_CALL, content="", calls=calls)


def told(of: ToolCall, sentence: str = "as asked", *, failed: bool = False, step: int = 1) -> Message:
    blank = Message(turn=1, step=step, role="tool", kind=MessageKind.TOOL_RESULT, content="", call_id=of.id)
    return blank.telling(Result(sentence=sentence, failed=failed))


def after(*calls: ToolCall) -> Guard:
    guard = Guard()
    for each in calls:
        guard = guard.called(each)
    return guard


def not_a_box(number: int, *, step: int) -> Message:
    return told(LIST, f"Box {number} is not a live box of this fleet.", failed=True, step=step)


LIST, SEARCH = call("list_boxes"), call("search_offers")


def test_two_calls_alike_are_carried_out_a_third_is_not_and_a_fifth_ends_the_turn() -> None:
    found = [after(*[LIST] * times).finding() for times in range(1, STOPPED_AT + 1)]

    assert found[:2] == [None, None]
    assert isinstance(found[2], Nudge)
    assert "call 3 in a row of list_boxes" in found[2].sentence
    assert found[4] == Stop(reason="list_boxes called 5 times in a row with the same arguments")


def test_another_call_in_between_means_that_something_moves() -> None:
    assert after(LIST, LIST, SEARCH, LIST, LIST).finding() is None


def test_nothing_is_carried_out_after_the_call_that_ended_the_turn() -> None:
    assert isinstance(after(*[LIST] * STOPPED_AT, SEARCH).finding(), Stop)


def test_arguments_that_differ_only_in_what_names_nothing_are_nearly_the_same() -> None:
    calls = [call("search_offers", f'{{"gpu_name": "RTX 4090", "limit": {n}}}') for n in range(1, 9)]

    assert after(*calls[:7]).finding() is None
    assert after(*calls).finding() == Stop(
        reason="search_offers called 8 times in a row with nearly the same arguments"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        '{"id": %d, "reason": "idle"}', '{"gpu_name": "RTX %d90"}', '{"step": %d}', '{"id": 7, "tail": %d}',
        '{"minutes": %d, "reason": "hourly"}', '{"at": "2026-03-17T1%d:00:00Z", "reason": "hourly"}',
    ],
)  # fmt: skip
def test_what_is_named_is_told_apart(arguments: str) -> None:
    """The control of the test above: as many calls, each about another box, card, step, time or length."""
    calls = [call("a_tool", arguments % n) for n in range(ALIKE_STOPPED_AT)]

    assert after(*calls).finding() is None


def test_two_calls_that_take_turns_are_stopped() -> None:
    assert after(*[LIST, SEARCH] * 3, LIST).finding() is None
    assert after(*[LIST, SEARCH] * 4).finding() == Stop(reason="list_boxes and search_offers taking turns 4 times")


def test_the_same_error_three_times_ends_the_turn_and_a_success_forgives() -> None:
    guard = after(LIST).answered(LIST, not_a_box(7, step=1)).answered(LIST, not_a_box(8, step=2))
    assert guard.finding() is None
    forgiven = guard.answered(LIST, told(LIST, step=3))

    assert guard.answered(LIST, not_a_box(9, step=3)).finding() == Stop(reason="the same error 3 times in a row")
    assert forgiven.answered(LIST, not_a_box(9, step=4)).finding() is None


def test_the_same_error_of_parallel_calls_counts_once() -> None:
    """The model has seen none of them when it makes the others."""
    guard = after(LIST)
    for number in range(6):
        guard = guard.answered(LIST, not_a_box(number, step=1))

    assert guard.errors == 1


def test_two_corrections_are_the_most() -> None:
    guard = Guard().replied(reply())
    assert guard.may_correct()
    assert guard.replied(reply()).may_correct()
    assert not guard.replied(reply()).replied(reply()).may_correct()


def test_a_finish_is_sent_back_once_and_is_none_of_the_calls_that_are_counted() -> None:
    finish = call("finish")
    guard = Guard()
    for _ in range(2):
        assert guard.may_send_back()
        guard = guard.called(finish).answered(finish, told(finish, "the summary says nothing", failed=True))

    assert not guard.may_send_back()
    assert (guard.calls, guard.finding()) == ((), None)


def test_a_guard_is_read_back_from_the_log_as_it_was() -> None:
    """Control: without the log it knows nothing, and the model may begin its circle anew."""
    said: list[Message] = []
    guard = Guard()
    for step in range(1, 5):
        calls = [LIST.model_copy(update={"id": f"call{step:05d}"}), SEARCH.model_copy(update={"id": f"seek{step:05d}"})]
        asked = reply(*calls, step=step)
        said.append(asked)
        guard = guard.replied(asked)
        for each in calls:
            answer = told(each, "Not available: timeout", failed=each.name == "search_offers", step=step)
            said.append(answer)
            guard = guard.called(each).answered(each, answer)

    assert guard.stopped
    assert Guard.after(said) == guard
    assert Guard.after(said[:-1]).finding() is None, "the last call has no result yet and is still to come"
    assert Guard().finding() is None


@pytest.mark.parametrize("summary", ["Done.", "ok", "…", "N/A", "Run finished.", "   ", "done done done"])
def test_a_summary_without_content_says_nothing(summary: str) -> None:
    assert not says_something(summary)


@pytest.mark.parametrize(
    "summary",
    ["Queue empty, 2 boxes idle.", "Alles ruhig heute", "Rented.", "Rented box 7: 40 pending", "队列为空两台机器空闲"],
)
def test_a_summary_with_content_says_something(summary: str) -> None:
    assert says_something(summary)


def test_a_finish_that_says_something_and_is_refused_is_an_error_and_not_sent_back() -> None:
    """Control: one that says nothing is."""
    said, empty = call("finish", '{"summary": "All boxes prove."}'), call("finish", '{"summary": "Done."}')

    assert Guard().called(said).answered(said, told(said, "action: missing", failed=True)).sent_back == 0
    assert Guard().called(empty).answered(empty, told(empty, "says nothing", failed=True)).sent_back == 1
