"""The prompt is a pure function with a budget that holds, whatever the log contains."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from fleet_agent.domain.context import OUTPUTS_TOKENS, TARGET_TOKENS, Prompt, compose, cut, estimate, turn_block
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.run import Claimed, Message, MessageKind, PastRun, Run, Standing, ToolCall
from fleet_agent.domain.triggers import Event, Kind, Priority, Trigger
from fleet_agent.domain.wakes import Wake
from fleet_agent.wiring import count_bytes
from tests.domain.test_rules import box, instance

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
RUN = Run(run_id=812, fleet="main", epoch=1, trigger=Trigger.EVENT, force_review=False, opened_at=NOW)


def past_run(run_id: int, summary: str = "Nothing to do.", human: tuple[str, ...] = ()) -> PastRun:
    return PastRun(run_id=run_id, trigger=Trigger.HEARTBEAT, reason="", opened_at=NOW, summary=summary, human=human)


def standing(**changes: Any) -> Standing:
    values: dict[str, Any] = {
        "installation": "abc123", "fleet": "main", "mode": Mode.LIVE, "policy": Policy(), "objective": "Keep up.",
        "notes": "", "wakes": (), "past_runs": (), "last_digest": None, "last_review_at": None,
    }  # fmt: skip
    return Standing(**values | changes)


def observation(**changes: Any) -> Observation:
    demand = Demand(
        pending=12, running=3, oldest_pending=timedelta(minutes=4), done_per_hour=20, failed_per_hour=None, seen_at=NOW
    )
    values: dict[str, Any] = {
        "taken_at": NOW,
        "inventory": Known(value=Inventory(instances=(instance(),), seen_at=NOW), seen_at=NOW),
        "demand": Known(value=demand, seen_at=NOW),
        "account": Known(value=Account(credit_usd=Decimal("41.2")), seen_at=NOW),
        "boxes": (box(),),
        "in_flight_count": 1,
        "in_flight_usd_per_hour": Decimal("0.4"),
    }
    return Observation(**values | changes)


def step(number: int, text: str, outputs: list[str]) -> list[Message]:
    """One reply with its calls and their results, as the story appends them."""
    calls = tuple(
        ToolCall(id=f"c{number:03d}{index:05d}", name="list_boxes", arguments="{}", provider_id="x")
        for index, _ in enumerate(outputs)
    )
    share = OUTPUTS_TOKENS // max(len(outputs), 1)
    return [
        Message(turn=1, step=number, role="assistant", kind=MessageKind.TOOL_CALL, content=text, calls=calls),
        *(
            Message(
                turn=1, step=number, role="tool", kind=MessageKind.TOOL_RESULT,
                content=cut(output, share, count_bytes), call_id=call.id,
            )
            for call, output in zip(calls, outputs, strict=True)
        ),
    ]  # fmt: skip


def opening(text: str = "Run #812, trigger: event.") -> list[Message]:
    return [Message(turn=1, step=0, role="user", kind=MessageKind.TRIGGER, content=text)]


def prompt(steps: Sequence[Message], **changes: Any) -> Prompt:
    return compose(standing=standing(**changes), steps=[*opening(), *steps], count_tokens=count_bytes)


def message_event(number: int, text: str) -> Event:
    return Event(
        id=number, kind=Kind.MESSAGE, source="cli", priority=Priority.URGENT, count=1, occurred_at=NOW,
        text=text, payload={},
    )  # fmt: skip


texts = st.builds(lambda text, times: text * times, st.text(max_size=20), st.integers(1, 3_000))
"""From nothing to 60,000 characters of any script, as logs, progress bars and messages come."""

replies = st.tuples(texts, st.lists(texts, max_size=8))


@settings(max_examples=60, deadline=None)
@given(st.lists(replies, max_size=6), st.lists(texts, max_size=6), texts, texts, texts)
def test_the_budget_holds_for_any_replies_outputs_words_and_past(
    said: list[tuple[str, list[str]]], summaries: list[str], objective: str, notes: str, words: str
) -> None:
    """I4: nothing that anybody says or prints can make a prompt too long, or a run impossible."""
    steps = [message for number, (text, outputs) in enumerate(said, 1) for message in step(number, text, outputs)]
    past = tuple(past_run(number, summary, human=(words,)) for number, summary in enumerate(summaries, 1))
    wakes = tuple(Wake(id=number, wake_at=NOW, reason=words[:500], asked_by="agent") for number in range(20))
    pinned = standing(objective=objective, notes=notes, past_runs=past, wakes=wakes)
    claimed = Claimed(events=tuple(message_event(number, words) for number in range(3)))
    block = turn_block(RUN, pinned, claimed, observation(boxes=(box(),) * 200), (), NOW, count_bytes)
    made = compose(standing=pinned, steps=[*opening(block), *steps], count_tokens=count_bytes)
    assert made.tokens <= TARGET_TOKENS
    assert made.tokens == estimate(made.messages, made.tools, count_bytes)
    assert_well_formed(made)


def assert_well_formed(made: Prompt) -> None:
    """I5: every call has exactly one result, in order; one system message, first; every content a string."""
    calls = [call["id"] for message in made.messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in made.messages if message["role"] == "tool"] == calls
    assert [message["role"] for message in made.messages].index("system") == 0
    assert [message["role"] for message in made.messages].count("system") == 1
    assert all(isinstance(message["content"], str) for message in made.messages)


def test_the_naive_prompt_does_not_hold_the_budget() -> None:
    """The control: the same messages without giving way."""
    steps = [message for number in range(1, 5) for message in step(number, "", ["█" * 4_000] * 2)]
    naive = [{"role": message.role, "content": message.content} for message in steps]
    assert estimate(naive, (), count_bytes) > TARGET_TOKENS
    assert prompt(steps).tokens <= TARGET_TOKENS


def test_the_newest_answers_stay_whole_while_anything_else_can_give_way() -> None:
    """A model that loses its newest answer asks again."""
    steps = [message for number in range(1, 8) for message in step(number, "", [f"{number} " + "x" * 5_000])]
    made = prompt(steps, past_runs=tuple(past_run(number, "y" * 2_000) for number in range(10)))
    assert made.messages[-1]["content"] == steps[-1].content
    assert "left out: 5002 characters" in made.messages[4]["content"]


def test_the_oldest_run_gives_way_first() -> None:
    past = tuple(past_run(number, "y" * 2_000) for number in range(1, 40))
    shown = prompt([], past_runs=past).messages[1]["content"]
    assert "#1 " not in shown
    assert "#39 " in shown


def test_what_is_cut_keeps_its_head_and_its_tail_and_says_how_much_is_missing() -> None:
    short = cut("a" * 500 + "b" * 500, 100, count_bytes)
    assert count_bytes(short) <= 100
    assert short.startswith("aaa")
    assert short.endswith("bbb")
    assert "characters left out" in short


@given(texts, st.integers(0, 500))
def test_a_cut_is_never_longer_than_allowed(text: str, tokens: int) -> None:
    assert count_bytes(cut(text, tokens, count_bytes)) <= tokens


def test_a_human_is_told_to_the_model_verbatim_and_the_newest_first_served() -> None:
    claimed = Claimed(events=(message_event(1, "old " * 2_000), message_event(2, "Stop renting, please.")))
    block = turn_block(RUN, standing(), claimed, observation(), (), NOW, count_bytes)
    assert "[human]\nStop renting, please.\n[/human]" in block
    assert "characters left out" in block


def test_a_thousand_messages_do_not_make_a_run_impossible() -> None:
    claimed = Claimed(events=tuple(message_event(number, f"message {number}") for number in range(1000)))
    block = turn_block(RUN, standing(), claimed, observation(), (), NOW, count_bytes)
    assert "older messages do not fit" in block
    assert "message 999" in block
    assert compose(standing=standing(), steps=opening(block), count_tokens=count_bytes).tokens <= TARGET_TOKENS


def test_a_turn_says_why_it_happens_and_what_is_seen() -> None:
    claimed = Claimed(
        events=(
            Event(
                id=1, kind=Kind.MESSAGE, source="cli", priority=Priority.URGENT, count=1, occurred_at=NOW,
                text="How are we doing?", payload={},
            ),
        )
    )  # fmt: skip
    assert turn_block(RUN, standing(), claimed, observation(), (), NOW + timedelta(seconds=2), count_bytes) == snapshot("""\
Run #812, trigger: event.
[human]
How are we doing?
[/human]
[observation]
time: 2026-03-17T12:00:02Z
demand: pending=12 running=3 oldest_pending_s=240 done_per_hour=20 failed_per_hour=? age_s=2
account: credit_usd=41.20 burn_usd_per_hour=0.400 runway_hours=103.0 age_s=2
limits: mode=live max_boxes=4 max_usd_per_hour=4.00 max_usd_per_hour_per_box=1.50 max_rents_per_run=2 max_destroys_per_run=2
boxes: live=1 in_flight=1 age_s=2
id|stage|gpu|usd_per_hour|age_min|status
101|proving|1x RTX 4090|0.400|0|running
[/observation]\
""")  # noqa: E501


def test_what_is_unknown_is_never_shown_as_a_number() -> None:
    unseen = observation(
        inventory=Unknown(reason="page 2 failed"),
        demand=Unknown(reason="no answer"),
        account=Unknown(reason="no answer"),
    )
    block = turn_block(RUN, standing(), Claimed(), unseen, (), NOW, count_bytes)
    assert "boxes: unknown (page 2 failed)" in block
    assert "demand: unknown" in block
    assert "pending=" not in block
    assert "id|stage" not in block


def test_the_digest_ignores_what_no_decision_hangs_on() -> None:
    later = observation(
        taken_at=NOW + timedelta(minutes=5), account=Known(value=Account(credit_usd=Decimal(40)), seen_at=NOW)
    )
    assert later.digest() == observation().digest()
    assert observation(boxes=()).digest() != observation().digest()
    assert observation(inventory=Unknown(reason="x")).digest() != observation().digest()
