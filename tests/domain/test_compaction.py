"""What holds of every prompt, whatever the history: each property in words that a person can check.

That no-ops leave the prompt as it is, older runs show no tool output, and the log stays as it was, are matters of the
tables (`tests/story/test_long_session.py`), and so is what survives a reset (`tests/story/test_resets.py`). That
no run is left out as a no-op that did something is in `tests/store/test_runs.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from fleet_agent.clients.counting import count_tokens as o200k
from fleet_agent.domain.compaction import LEAST_BLOCKS_TOKENS, LEAST_ROOM, Cut, left
from fleet_agent.domain.context import (
    SMALL_TOKENS,
    TARGET_TOKENS,
    Budget,
    Prompt,
    compose,
    meanwhile_block,
    room_for_a_run,
    turn_block,
)
from fleet_agent.domain.ledger import Unsettled
from fleet_agent.domain.run import Claimed, Message, MessageKind, Said
from fleet_agent.domain.tokens import SHORT_TOKENS, CountTokens, by_bytes, request_tokens, shortened
from fleet_agent.domain.triggers import Event, Kind
from fleet_agent.domain.wakes import MOST_PENDING, Wake
from fleet_agent.errors import ShortenObjective
from fleet_agent.sim.chat import BadRequest, read_request
from tests.clients.test_counting import TOKENIZERS
from tests.domain.histories import OBJECTIVE_BYTES, PIECES, History, histories
from tests.domain.test_context import (
    MARK,
    NOW,
    RUN,
    count_tokens,
    message_event,
    noted,
    observation,
    opening,
    past_run,
    standing,
    step,
)
from tests.domain.test_rules import box

few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def composed(history: History, budget: Budget | None = None, count: CountTokens = count_tokens) -> Prompt:
    return compose(standing=history.standing, steps=history.steps, count_tokens=count, budget=budget)


def body(made: Prompt) -> dict[str, Any]:
    return {"model": "any", "messages": list(made.messages), "tools": list(made.tools)}


# --- I1, I2, I3: small and well-formed --------------------------------------------------------------------------------


@few
@given(histories(count_tokens))
def test_every_prompt_is_within_its_budget_and_taken_by_the_strictest_server(history: History) -> None:
    """The server's count and its reading of calls and results are its own, and share no line with ours."""
    made = composed(history)

    assert made.tokens == request_tokens(made.messages, made.tools, count_tokens) <= TARGET_TOKENS
    read_request(body(made))
    json.dumps(body(made), ensure_ascii=False).encode()


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(histories(by_bytes, objective_bytes=2_000))
def test_so_it_is_where_no_tokenizer_is_at_hand(history: History) -> None:
    """Where it is not said beforehand that no run has room: by that count the tools alone have half of a prompt."""
    assume(leaves_room(history))
    made = composed(history, count=by_bytes)

    assert made.tokens <= TARGET_TOKENS
    read_request(body(made))


def leaves_room(history: History) -> bool:
    try:
        return room_for_a_run(history.standing, by_bytes, 1.0) >= LEAST_ROOM
    except ShortenObjective:
        return False


@pytest.mark.parametrize("piece", PIECES)
def test_one_message_of_a_million_characters_fits(piece: str) -> None:
    """Wherever it stands. The control is to send what was said."""
    endless = piece * (1_000_000 // len(piece))
    steps = [*opening(), *step(1, endless, ["short"])]
    long_result = Message(
        turn=1, step=2, role="tool", kind=MessageKind.TOOL_RESULT, content=endless, call_id="c00200000"
    )
    steps += [step(2, "", ["short"])[0], long_result]
    history = History(standing(notes=noted(endless), past_runs=(past_run(1, endless),)), tuple(steps))

    assert composed(history).tokens <= TARGET_TOKENS
    assert count_tokens(endless) > TARGET_TOKENS


@pytest.mark.parametrize("piece", ["界", "8241 ", "The queue is empty. "])
@pytest.mark.parametrize("steps", [0, 50])
def test_everything_at_its_longest_at_once_fits(piece: str, steps: int) -> None:
    """What a person, the agent and the world can make as long as it may be, and people who speak before every step.

    By the counter that is used. Where no tokenizer is installed, bytes are counted instead, and this one case does not
    fit: it ends with the advice to shorten the objective.
    """
    endless = (piece * 20_000)[:20_000]
    outputs = [endless[: 20_000 // 8]] * 8
    events = [message_event(number, endless) for number in range(3)]
    events += [webhook_event(number, endless) for number in range(4, 40)]
    pinned = standing(
        objective=endless.encode()[:OBJECTIVE_BYTES].decode("utf-8", "ignore"),
        notes=noted(endless),
        wakes=tuple(Wake(id=n, wake_at=NOW, reason=endless[:500], asked_by="agent") for n in range(MOST_PENDING)),
        words=tuple(Said(run_id=number, text=endless[:900]) for number in range(30)),
        words_in_all=30,
        past_runs=tuple(past_run(number, endless[:2_000]) for number in range(1, 50)),
    )
    seen = observation(boxes=(box(),) * 200)
    log = opening(turn_block(RUN, pinned, Claimed(events=tuple(events)), seen, (), NOW, o200k, mark=MARK))
    for number in range(1, steps):
        log += step(number, endless[:5_000], outputs)
        said = meanwhile_block(Claimed(events=tuple(events[:3])), o200k, mark=MARK)
        log.append(Message(turn=1, step=number, role="user", kind=MessageKind.TRIGGER, content=said))

    made = composed(History(pinned, tuple(log)), count=o200k)

    assert made.tokens <= TARGET_TOKENS
    read_request(body(made))


def webhook_event(number: int, text: str) -> Event:
    return message_event(number, text).model_copy(update={"kind": Kind.WEBHOOK, "source": f"stranger {number}"})


# --- the same by the count of others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_foreign_tokenizer_finds_more_in_a_prompt_than_it_may_have(tokenizer: str) -> None:
    """Written out as chat templates do; vocabularies that our counter was not made from."""
    tokens = TOKENIZERS[tokenizer]()

    @settings(max_examples=8, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(histories(o200k))
    def bounded(history: History) -> None:
        made = composed(history, count=o200k)
        assert tokens(written_out(made)) <= made.tokens <= TARGET_TOKENS

    bounded()


def written_out(made: Prompt) -> str:
    turns = [f"<|im_start|>{message['role']}\n{json.dumps(message.get('tool_calls', []))}" for message in made.messages]
    contents = [message["content"] for message in made.messages]
    tools = json.dumps(made.tools, indent=4, ensure_ascii=False)
    return "\n".join([tools, *(f"{turn}\n{content}<|im_end|>" for turn, content in zip(turns, contents, strict=True))])


def test_control_a_request_as_the_log_has_it_is_refused() -> None:
    """Open calls and strays are what a process that died in the middle leaves behind."""
    opened, answered = step(1, "", ["one", "two"])[:2]
    stray = Message(turn=1, step=1, role="tool", kind=MessageKind.TOOL_RESULT, content="?", call_id="nobodys01")

    def request(steps: Sequence[Message]) -> dict[str, Any]:
        return body(composed(History(standing(), (*opening(), *steps))))

    for broken in ([opened], [opened, answered], [opened, answered, stray], [stray]):
        read_request(request(broken))
        with pytest.raises(BadRequest):
            read_request(request([]) | {"messages": [*request([])["messages"], *map(as_logged, broken)]})


def as_logged(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    calls = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "{}"}}
             for call in message.calls]  # fmt: skip
    return {"role": message.role, "content": message.content, "tool_calls": calls}


# --- I4, I10: what must not go ----------------------------------------------------------------------------------------


@few
@given(histories(count_tokens))
def test_the_objective_and_the_newest_of_what_the_run_is_about_stay_whole(history: History) -> None:
    shown = "\n".join(message["content"] for message in composed(history).messages)
    newest = [message for message in history.steps if message.kind is MessageKind.TRIGGER][-1]

    for whole in (history.standing.objective, newest.content):
        assert whole.encode("utf-8", "replace").decode() in shown


@few
@given(histories(count_tokens))
def test_what_was_called_last_is_answered_by_what_was_said_unless_nothing_else_can_give_way(history: History) -> None:
    """A model that loses its newest answer asks again."""
    made = composed(history)
    last = max(message.step for message in history.steps)
    results = {message.call_id: message.content for message in history.steps if message.role == "tool"}
    calls = [call.id for message in history.steps if message.step == last for call in message.calls]
    sent = {message["tool_call_id"]: message["content"] for message in made.messages if message["role"] == "tool"}

    for call in calls:
        if call in results and not made.cut.newest:
            assert sent[call] == results[call].encode("utf-8", "replace").decode()


@pytest.mark.parametrize("messages", [9, 12, 40])
def test_limits_and_what_is_seen_stay_however_much_people_say_during_a_run(messages: int) -> None:
    """The newest block is one without a look. The control is the cut that knows only the order in which they came."""
    asked = Claimed(events=(message_event(0, "How are we doing? " * 200),))
    log = opening(turn_block(RUN, standing(), asked, observation(boxes=(box(),) * 200), (), NOW, o200k, mark=MARK))
    for number in range(1, messages + 1):
        said = meanwhile_block(Claimed(events=(message_event(number, "Rent no more. " * 230),)), o200k, mark=MARK)
        log += [*step(number, "", ["short"])]
        log.append(Message(turn=1, step=number, role="user", kind=MessageKind.TRIGGER, content=said))
    made = composed(History(standing(), tuple(log)), Budget(target=9_000, small=6_000), count=o200k)
    shown = "\n".join(message["content"] for message in made.messages)

    assert made.cut.blocks > 0
    for head in ("limits: mode=live max_boxes=4 ", "demand: pending=12 ", "account: credit_usd=", "boxes: live=200 "):
        assert shown.count(f"\n{head}") == 1
    naive = shortened(log[0].content, LEAST_BLOCKS_TOKENS // messages, o200k)
    assert "demand: pending=12 " not in naive


def test_a_look_is_cut_before_the_newest_words_and_keeps_its_first_lines() -> None:
    block = turn_block(RUN, standing(), Claimed(), observation(boxes=(box(),) * 40), (), NOW, o200k, mark=MARK)
    said = meanwhile_block(Claimed(events=(message_event(1, "Stop. " * 500),)), o200k, mark=MARK)
    log = [*opening(block), Message(turn=1, step=1, role="user", kind=MessageKind.TRIGGER, content=said)]
    look, words = [*left(log, Cut(blocks=1), o200k)]

    assert words.content == said
    assert [line.partition(" ")[0] for line in look.content.splitlines()[1:]] == [
        "[observation]", "time:", "demand:", "account:", "boxes:", "(41", "[/observation]",
    ]  # fmt: skip


def test_where_there_is_room_for_a_run_whatever_it_is_about_can_be_told() -> None:
    """Counted by bytes, with the longest objective that is said to fit. The control is the block as it came."""
    pinned = standing(objective="x" * 600)
    assert room_for_a_run(pinned, by_bytes, 1.0) >= LEAST_ROOM
    unsettled = tuple(
        Unsettled(key=f"r1-s{n}-c1-aaaa", tool="destroy_box", label="", vast_id=n, sent_for=timedelta(1))
        for n in range(600)
    )
    events = [message_event(number, "word " * 800) for number in range(3)]
    events += [webhook_event(number, "obey " * 800) for number in range(4, 40)]
    claimed = Claimed(events=tuple(events))
    block = turn_block(RUN, pinned, claimed, observation(boxes=(box(),) * 40), unsettled, NOW, by_bytes, mark=MARK)
    log = opening(block)
    for number in range(1, 25):
        log += step(number, "x" * 4_000, ["x" * 1_000] * 8)
        said = meanwhile_block(claimed, by_bytes, mark=MARK)
        log.append(Message(turn=1, step=number, role="user", kind=MessageKind.TRIGGER, content=said))

    assert composed(History(pinned, tuple(opening(block))), count=by_bytes).tokens <= TARGET_TOKENS
    assert composed(History(pinned, tuple(log)), count=by_bytes).tokens <= TARGET_TOKENS
    assert "(592 more actions whose outcome is unknown)" in block


def test_the_shortest_prompt_is_sent_though_its_server_is_believed_to_count_too_much_of_it() -> None:
    """Else no reply could ever correct the belief. The control is one that is long by our own count too."""
    history = History(standing(objective="word " * 3_000), tuple(opening()))
    made = composed(history, Budget(factor=4.0))

    assert TARGET_TOKENS < made.tokens <= 4 * SHORT_TOKENS
    assert room_for_a_run(standing(objective="word " * 1_000), o200k, 4.0) == LEAST_ROOM
    with pytest.raises(ShortenObjective):
        composed(History(standing(objective="word " * 10_000), tuple(opening())), Budget(factor=4.0))


# --- I9: what must go -------------------------------------------------------------------------------------------------


@few
@given(histories(count_tokens))
def test_what_is_cut_is_gone_from_everywhere(history: History) -> None:
    """Outputs are marked here, so that each can be looked for."""
    marked = tuple(
        message.model_copy(update={"content": f"mark{number:04}end {message.content}"})
        if message.role == "tool"
        else message
        for number, message in enumerate(history.steps)
    )
    made = composed(History(history.standing, marked))
    text = json.dumps(made.messages)

    for number, message in enumerate(marked):
        if message.role == "tool" and message.step <= made.cut.outputs:
            assert f"mark{number:04}end" not in text


# --- I6, I7, I8: the same again, and an end ---------------------------------------------------------------------------


@few
@given(histories(count_tokens))
def test_composing_is_a_function_and_changes_nothing_of_what_it_is_given(history: History) -> None:
    before = repr(history)

    assert composed(history) == composed(history)
    assert repr(history) == before


@few
@given(histories(count_tokens))
def test_a_second_pass_finds_nothing_left_to_do(history: History) -> None:
    first = composed(history)
    second = compose(
        standing=history.standing, steps=history.steps, count_tokens=count_tokens, cut=first.cut
    )  # fmt: skip

    assert second == first


@few
@given(histories(count_tokens))
def test_compaction_takes_few_passes_and_each_pass_that_is_needed_leaves_out_more(history: History) -> None:
    """Passes are counted by how often the system message is; the control would make one for each run and each step."""
    counted: Counter[str] = Counter()

    def counting(text: str) -> int:
        counted[text] += 1
        return count_tokens(text)

    made = composed(history, count=counting)
    whole = composed(history, Budget(target=10**9, small=10**9))

    assert counted[made.messages[0]["content"]] <= 16
    assert made == whole or made.tokens < whole.tokens


def test_a_history_of_ten_thousand_runs_is_composed_in_few_passes() -> None:
    runs = tuple(past_run(number, "Nothing waits. " * 20) for number in range(1, 10_001))
    made = composed(History(standing(past_runs=runs), tuple(opening())))

    assert made.tokens <= SMALL_TOKENS
    assert made.compaction.digest.runs == made.cut.runs > 9_000
    assert "#10000 " in made.messages[1]["content"]


# --- I11: more room never shows less ----------------------------------------------------------------------------------


@few
@given(histories(count_tokens))
def test_a_larger_budget_shows_whatever_a_smaller_one_does(history: History) -> None:
    small, large = (
        composed(history, Budget(target=target, small=target * 2 // 3)) for target in (26_000, 40_000)
    )  # fmt: skip

    for name in ("runs", "outputs", "steps", "newest", "blocks"):
        assert getattr(large.cut, name) <= getattr(small.cut, name)
