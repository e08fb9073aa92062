"""The prompt is a pure function with a budget that holds, whatever the log contains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from fleet_agent.domain.context import TARGET_TOKENS, Prompt, capped, compose, estimate, turn_block
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.run import Claimed, Message, MessageKind, PastRun, Run, Standing, ToolCall
from fleet_agent.domain.triggers import Event, Kind, Priority, Trigger
from fleet_agent.errors import FixSetup
from tests.domain.test_rules import box, instance

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
RUN = Run(run_id=812, fleet="main", epoch=1, trigger=Trigger.EVENT, force_review=False, opened_at=NOW)


def count_tokens(text: str) -> int:
    return math.ceil(len(text.encode("utf-8", "replace")) / 2)


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


def step(number: int, output: str) -> list[Message]:
    call = ToolCall(id=f"call{number:05d}", name="list_boxes", arguments="{}", provider_id="x")
    return [
        Message(turn=1, step=number, role="assistant", kind=MessageKind.TOOL_CALL, content="", calls=(call,)),
        Message(turn=1, step=number, role="tool", kind=MessageKind.TOOL_RESULT, content=output, call_id=call.id),
    ]


def opening(text: str = "Run #812, trigger: event.") -> list[Message]:
    return [Message(turn=1, step=0, role="user", kind=MessageKind.TRIGGER, content=text)]


def prompt(steps: Sequence[Message], **changes: Any) -> Prompt:
    return compose(standing=standing(**changes), steps=[*opening(), *steps], count_tokens=count_tokens)


texts = st.builds(lambda text, times: text * times, st.text(max_size=20), st.integers(1, 3_000))


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, max_size=6), st.lists(texts, max_size=6))
def test_the_budget_holds_for_any_outputs_and_any_past(outputs: list[str], summaries: list[str]) -> None:
    steps = [message for number, text in enumerate(outputs, 1) for message in step(number, capped(text))]
    past = tuple(past_run(number, summary[:2000]) for number, summary in enumerate(summaries, 1))
    made = prompt(steps, past_runs=past)
    assert made.tokens <= TARGET_TOKENS
    assert made.tokens == estimate(made.messages, made.tools, count_tokens)


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=8))
def test_every_tool_call_keeps_exactly_one_result(outputs: list[str]) -> None:
    """I5, and the last step's results are never replaced: a model that loses them asks again."""
    steps = [message for number, text in enumerate(outputs, 1) for message in step(number, capped(text))]
    made = prompt(steps).messages
    calls = [call["id"] for message in made for call in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in made if message["role"] == "tool"]
    assert calls == results
    assert [message["role"] for message in made].count("system") == 1
    assert made[-1]["content"] == capped(outputs[-1])


def test_a_pinned_part_that_cannot_fit_is_a_setting_to_fix() -> None:
    with pytest.raises(FixSetup, match="shorten the objective"):
        prompt([], objective="x" * 100_000)


def test_the_oldest_run_gives_way_first() -> None:
    past = tuple(past_run(number, "y" * 9_000) for number in range(1, 8))
    shown = prompt([], past_runs=past).messages[1]["content"]
    assert "#1 " not in shown
    assert "#7 " in shown


def test_a_turn_says_why_it_happens_and_what_is_seen() -> None:
    claimed = Claimed(
        events=(
            Event(
                id=1, kind=Kind.MESSAGE, source="cli", priority=Priority.URGENT, count=1, occurred_at=NOW,
                text="How are we doing?", payload={},
            ),
        )
    )  # fmt: skip
    assert turn_block(RUN, standing(), claimed, observation(), NOW + timedelta(seconds=2)) == snapshot("""\
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
    block = turn_block(RUN, standing(), Claimed(), unseen, NOW)
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
