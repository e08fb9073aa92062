"""How conversations of other agents broke in public, and that ours does not: each failure small, and by its name.

Where a naive version fits into a few lines it stands beside as the control, and fails what ours passes; the judge of a
request is the simulated server, which takes only what every server takes and counts for itself. Held elsewhere:

    usage that is null teaches nothing        tests/domain/test_model_server.py, tests/clients/test_normalize_reply.py
    an error inside a success, HTML with 200  tests/clients/test_chat_model.py, tests/story/test_bad_days.py
    input and reserved output over the window tests/cli/test_models.py
    a server with less room than we thought   tests/story/test_conversation.py
    the newest result, whatever gives way     tests/domain/test_compaction.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from fleet_agent.clients.model import normalize_reply
from fleet_agent.domain.context import (
    SMALL_TOKENS,
    TARGET_TOKENS,
    Budget,
    Prompt,
    compose,
)
from fleet_agent.domain.guards import STOPPED_AT, Guard, Stop
from fleet_agent.domain.run import Compaction, Message, ModelReply, PastRun, ToolCall
from fleet_agent.domain.tokens import request_tokens, shortened
from fleet_agent.sim.chat import BadRequest, read_request
from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import reading
from tests.domain.test_context import count_tokens, long_steps, opening, past_run, standing, step
from tests.world import installation

Wire = dict[str, Any]

SYSTEM: Wire = {"role": "system", "content": "You operate a fleet."}


def taken(messages: Sequence[Wire], tools: Sequence[Wire] = ()) -> bool:
    """Whether the strictest server takes these messages."""
    try:
        read_request({"model": "any", "messages": list(messages), "tools": list(tools)})
    except BadRequest:
        return False
    return True


def composed(steps: Sequence[Message], budget: Budget | None = None, **changes: Any) -> Prompt:
    """As the next step of a run sends it."""
    return compose(standing=standing(**changes), steps=[*opening(), *steps], count_tokens=count_tokens, budget=budget)


def on_the_wire(steps: Sequence[Message]) -> list[Wire]:
    """A log as it is, without giving way to anything."""
    return [*composed([]).messages, *composed(steps, Budget(target=10**9, small=10**9)).messages[2:]]


def room_of(tokens: int) -> Budget:
    """For a model with that much, a tenth of it to spare."""
    return Budget(target=tokens * 9 // 10, small=tokens * 6 // 10)


def call(call_id: str, name: str = "list_boxes", arguments: object = "{}") -> Wire:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# --- calls and their results ------------------------------------------------------------------------------------------


def test_a_trim_keeps_no_result_without_its_call() -> None:
    """The control keeps the newest messages, by number."""
    steps = long_steps(8, letters=20_000)
    trimmed = [SYSTEM, *on_the_wire(steps)[-3:]]

    assert taken(composed(steps).messages)
    assert trimmed[1]["role"] == "tool"
    assert not taken(trimmed)


def test_a_trim_keeps_no_call_without_its_result() -> None:
    """The mirror; the control leaves out the longest message."""
    steps = long_steps(8, letters=20_000)
    everything = on_the_wire(steps)
    trimmed = sorted(everything, key=lambda message: len(message["content"]))[-1]

    assert taken(composed(steps).messages)
    assert trimmed["role"] == "tool"
    assert not taken([message for message in everything if message is not trimmed])


def test_no_result_is_lost_while_everything_fits() -> None:
    """The control previews old results whether or not there is room."""
    steps = [message for number in range(1, 5) for message in step(number, "", [f"box {number} proves. " * 60])]
    previews = [message["content"][:200] for message in on_the_wire(steps) if message["role"] == "tool"]
    results = [message["content"] for message in composed(steps).messages if message["role"] == "tool"]

    assert results == [message.content for message in steps if message.role == "tool"]
    assert previews != results


@pytest.mark.parametrize("open_calls", [1, 2, 3])
def test_a_history_that_ends_in_open_calls_is_sent_with_a_word_for_each(open_calls: int) -> None:
    """A process that died between a reply and its results leaves such a log; the control sends it as it is."""
    reply, *results = step(1, "", ["one", "two", "three", "four"])
    broken = [reply, *results[: 4 - open_calls]]
    sent = composed(broken).messages
    as_logged = [message for message in sent if "no result was recorded" not in message["content"]]

    assert taken(sent)
    assert len(sent) - len(as_logged) == open_calls
    assert not taken(as_logged)


def test_ids_that_a_provider_repeats_in_the_next_turn_are_unique_in_a_history() -> None:
    """The control replays the ids as they came."""
    answer = {"choices": [{"message": {"content": "", "tool_calls": [call("call_0")]}}]}
    replies = [normalize_reply(answer, salt=f"request {number}") for number in (1, 2)]

    def history(ids: Sequence[str]) -> list[Wire]:
        turns = [
            [
                {"role": "assistant", "content": "", "tool_calls": [call(number)]},
                {"role": "tool", "tool_call_id": number, "content": "none"},
            ]
            for number in ids
        ]
        return [SYSTEM, *(message for turn in turns for message in turn)]

    assert taken(history([reply.calls[0].id for reply in replies if isinstance(reply, ModelReply)]))
    assert not taken(history(["call_0", "call_0"]))


@pytest.mark.parametrize("arguments", ['{"limit": 2', "", "[1]", None, {"limit": 2}])
def test_arguments_that_are_malformed_do_not_poison_the_history(arguments: object) -> None:
    """They are replayed in every later step: a server that parses them refuses all of these. The control replays."""
    answer = {"choices": [{"message": {"tool_calls": [call("call_0", arguments=arguments)]}}]}
    reply = normalize_reply(answer, salt="any")
    assert isinstance(reply, ModelReply)

    def history(made: Wire) -> list[Wire]:
        return [
            SYSTEM,
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": made["id"], "content": "none"},
        ]

    assert taken(history(call(reply.calls[0].id, arguments=reply.calls[0].arguments)))
    assert not taken(history(call("call_0", arguments=arguments)))


def test_content_that_is_null_is_replayed_as_text() -> None:
    """The control replays the message of the server."""
    message = {"role": "assistant", "content": None, "tool_calls": [call("call_0")]}
    reply = normalize_reply({"choices": [{"message": message}]}, salt="any")
    assert isinstance(reply, ModelReply)
    result = {"role": "tool", "tool_call_id": "call_0", "content": "none"}

    assert taken([SYSTEM, {**message, "content": reply.text}, result])
    assert not taken([SYSTEM, message, result])


@pytest.mark.parametrize(
    "fault",
    ["finish_reason_stop", "null_usage", "error_in_200", "html_200", "duplicate_ids", "bad_arguments", "list_content"],
)
async def test_a_server_with_the_fault_in_every_other_reply_is_worked_with(database_url: str, fault: str) -> None:
    """Through a whole run: whether there are calls is decided by the calls, and what is no reply is asked for again."""
    async with installation(database_url) as fleet:
        for _ in range(4):
            fleet.sim.model_faults.arm(fault)
            report = await fleet.run()
            assert (report.failed, report.summary["exit_reason"]) == (None, "finished")


# --- too long ---------------------------------------------------------------------------------------------------------


def test_one_message_that_is_larger_than_the_window_does_not_stick() -> None:
    """The control drops the oldest until it fits, which leaves nothing, or never ends."""
    steps = step(1, "", ["short"])
    steps[-1] = steps[-1].model_copy(update={"content": "a line of a log " * 20_000})
    left = on_the_wire(steps)
    while left and request_tokens(left, (), count_tokens) > TARGET_TOKENS:
        left = left[1:]
    made = composed(steps)

    assert left == []
    assert made.tokens <= TARGET_TOKENS
    assert "characters left out" in made.messages[-1]["content"]


def test_a_call_that_is_larger_than_the_window_does_not_stick() -> None:
    """Not every server bounds its replies; the arguments of a call are replayed with it."""
    reply, result = step(1, "", ["Refused: the text is too long."])
    endless = json.dumps({"text": "a line of a log " * 20_000})
    reply = reply.model_copy(
        update={"calls": (ToolCall(id=reply.calls[0].id, name="notify_human", arguments=endless, provider_id=""),)}
    )
    made = composed([reply, result])

    assert made.tokens <= TARGET_TOKENS < count_tokens(endless)
    assert taken(made.messages)


def test_a_smaller_model_gets_a_smaller_prompt_from_the_same_history() -> None:
    """The control sends what the larger one had."""
    runs = tuple(past_run(number, "Nothing waits. " * 40) for number in range(1, 120))
    large = composed(long_steps(3), past_runs=runs)
    small = compose(
        standing=standing(past_runs=runs),
        steps=[*opening(), *long_steps(3)],
        count_tokens=count_tokens,
        cut=large.cut,
        budget=room_of(10_000),
    )

    assert large.tokens > 10_000
    assert small.tokens <= 9_000
    assert taken(small.messages, small.tools)


def test_a_pinned_part_of_60_percent_of_the_window_is_no_reason_to_compact_at_every_run() -> None:
    """What cannot be compacted is larger than what is aimed at. The control aims at what just fits."""
    objective = shortened("word " * TARGET_TOKENS, TARGET_TOKENS * 6 // 10, count_tokens)

    def cuts(budget: Budget) -> list[int]:
        compaction, runs = Compaction(), [past_run(number, "word " * 150) for number in range(1, 60)]
        seen: list[int] = []
        for number in range(60, 84):
            made = composed([], budget, objective=objective, past_runs=_after(compaction, runs), compaction=compaction)
            assert made.tokens <= TARGET_TOKENS
            seen.append(made.cut.runs)
            compaction = made.compaction
            runs.append(past_run(number, "word " * 150))
        return seen

    assert _changes(cuts(Budget())) < 0.3 * _changes(cuts(Budget(small=TARGET_TOKENS)))


def _after(compaction: Compaction, runs: Sequence[PastRun]) -> tuple[PastRun, ...]:
    return tuple(run for run in runs if run.run_id > compaction.through)


def _changes(cuts: Sequence[int]) -> int:
    return sum(before != after for before, after in pairwise(cuts))


def test_after_a_compaction_the_next_prompts_leave_out_the_same() -> None:
    """An agent that is compacted again at once does nothing but compact."""
    runs = [past_run(number, "word " * 300) for number in range(1, 80)]
    first = composed([], past_runs=tuple(runs))
    later = composed([], past_runs=_after(first.compaction, [*runs, past_run(80)]), compaction=first.compaction)

    assert first.tokens <= SMALL_TOKENS
    assert later.cut == first.cut


# --- what must outlive compaction -------------------------------------------------------------------------------------


def test_the_guard_against_repetition_remembers_what_compaction_left_out() -> None:
    """It is a value beside the transcript; the control reads the calls from the prompt."""
    steps = long_steps(STOPPED_AT, letters=30_000)
    steps = [message if message.role == "tool" else _the_same_call(message) for message in steps]
    left = composed(steps, room_of(12_000)).messages
    in_prompt = [made for message in left for made in message.get("tool_calls", ())]

    assert len(in_prompt) < STOPPED_AT
    assert isinstance(_guarded([made for message in steps for made in message.calls]).finding(), Stop)
    assert not isinstance(
        _guarded(
            [
                ToolCall(
                    id=made["id"],
                    name=made["function"]["name"],
                    arguments=made["function"]["arguments"],
                    provider_id="",
                )
                for made in in_prompt
            ]
        ).finding(),
        Stop,
    )


def _the_same_call(reply: Message) -> Message:
    calls = tuple(made.model_copy(update={"arguments": '{"limit":5}'}) for made in reply.calls)
    return reply.model_copy(update={"calls": calls})


def _guarded(calls: Sequence[ToolCall]) -> Guard:
    guard = Guard()
    for made in calls:
        guard = guard.called(made)
    return guard


async def test_of_three_messages_that_came_at_once_none_is_forgotten_the_next_day(database_url: str) -> None:
    """Whatever the summary of their run made of them: they are carried word by word, in a part of their own."""
    said = ["Never rent in Norway.", "Keep two boxes over night.", "My name is Ada."]
    async with installation(database_url, scenario=IDLE) as fleet:
        for text in said:
            fleet.say(text)
        await fleet.run()
        for _ in range(3):
            fleet.time.advance(timedelta(hours=8))
            await fleet.run()
        with fleet.database.transaction() as tx:
            body = reading.request(tx, fleet.fleet, fleet.runs()[-1]["run_id"])
    assert body is not None
    prompt = "\n".join(message["content"] for message in body["messages"])

    assert all(f"\n{text}\n[/human]" in prompt for text in said)
