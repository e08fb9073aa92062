"""The prompt is a pure function with a budget that holds, whatever the log contains."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from fleet_agent.domain.compaction import LEAST_ROOM, Cut
from fleet_agent.domain.context import (
    OUTPUTS_TOKENS,
    SMALL_TOKENS,
    TARGET_TOKENS,
    Budget,
    Prompt,
    compose,
    meanwhile_block,
    room_for_a_run,
    turn_block,
)
from fleet_agent.domain.demand import Demand, Market
from fleet_agent.domain.fleet import Inventory
from fleet_agent.domain.happenings import HUMAN_TOKENS
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.policy import Approvals, Policy
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.run import (
    Approval,
    Claimed,
    Compaction,
    Digest,
    Message,
    MessageKind,
    Notes,
    PastRun,
    Run,
    Said,
    Standing,
    ToolCall,
)
from fleet_agent.domain.show import limits_line
from fleet_agent.domain.tokens import corrected, request_tokens, shortened
from fleet_agent.domain.triggers import Event, Kind, Priority, Trigger
from fleet_agent.domain.wakes import Wake
from fleet_agent.errors import FixSetup, ShortenObjective
from tests.domain.test_rules import box, instance

NOW = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
RUN = Run(run_id=812, fleet="main", epoch=1, trigger=Trigger.EVENT, force_review=False, opened_at=NOW)


MARK = "0123456789ab"


@corrected
def count_tokens(text: str) -> int:
    """About what a tokenizer of today makes of prose: a token for four letters."""
    return -(-len(text) // 4)


def past_run(run_id: int, summary: str = "Nothing to do.", **changes: Any) -> PastRun:
    values: dict[str, Any] = {"trigger": Trigger.HEARTBEAT, "reason": "", "opened_at": NOW, "summary": summary}
    return PastRun(run_id=run_id, **values | changes)


def standing(**changes: Any) -> Standing:
    values: dict[str, Any] = {
        "installation": "abc123", "fleet": "main", "mode": Mode.LIVE, "policy": Policy(), "objective": "Keep up.",
        "read_at": NOW, "notes": Notes(), "wakes": (), "words": (), "words_in_all": 0, "compaction": Compaction(),
        "past_runs": (), "last_bands": {}, "last_review_at": None,
    }  # fmt: skip
    return Standing(**values | changes)


def noted(text: str, **changes: Any) -> Notes:
    return Notes(text=text, by_run=1, set_at=NOW, **changes)


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
                content=shortened(output, share, count_tokens), call_id=call.id,
            )
            for call, output in zip(calls, outputs, strict=True)
        ),
    ]  # fmt: skip


def opening(text: str = "Run #812, trigger: event.") -> list[Message]:
    return [Message(turn=1, step=0, role="user", kind=MessageKind.TRIGGER, content=text)]


def prompt(steps: Sequence[Message], **changes: Any) -> Prompt:
    return compose(standing=standing(**changes), steps=[*opening(), *steps], count_tokens=count_tokens)


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
    past = tuple(past_run(number, summary) for number, summary in enumerate(summaries, 1))
    said_before = tuple(Said(run_id=number, text=words) for number in range(5))
    wakes = tuple(Wake(id=number, wake_at=NOW, reason=words[:500], asked_by="agent") for number in range(20))
    pinned = standing(
        objective=shortened(objective, 3_000, count_tokens),
        notes=noted(notes),
        past_runs=past,
        wakes=wakes,
        words=said_before,
        words_in_all=5,
    )
    claimed = Claimed(events=tuple(message_event(number, words) for number in range(3)))
    block = turn_block(RUN, pinned, claimed, observation(boxes=(box(),) * 200), (), NOW, count_tokens, mark=MARK)
    made = compose(standing=pinned, steps=[*opening(block), *steps], count_tokens=count_tokens)
    assert made.tokens <= TARGET_TOKENS
    assert made.tokens == request_tokens(made.messages, made.tools, count_tokens)
    assert_well_formed(made)


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=14), st.integers(0, 2), texts)
def test_the_budget_holds_for_any_number_of_turns_and_of_words_between_steps(
    words: list[str], turns: int, output: str
) -> None:
    """A run of three turns in which people speak before every step."""
    steps: list[Message] = []
    for number, text in enumerate(words, 1):
        said = Claimed(events=(message_event(number, text),))
        opens_a_turn = number <= turns + 1
        block = (
            turn_block(RUN, standing(), said, observation(boxes=(box(),) * 200), (), NOW, count_tokens, mark=MARK)
            if opens_a_turn
            else meanwhile_block(said, count_tokens, mark=MARK)
        )
        steps += [Message(turn=1, step=number - 1, role="user", kind=MessageKind.TRIGGER, content=block)]
        steps += step(number, "", [output])
    newest = next(message for message in reversed(steps) if message.kind is MessageKind.TRIGGER)
    pinned = standing(objective=shortened(words[0], 3_000, count_tokens), notes=noted(words[0]))
    made = compose(standing=pinned, steps=steps, count_tokens=count_tokens)
    assert made.tokens <= TARGET_TOKENS
    assert_well_formed(made)
    assert any(newest.content in message["content"] for message in made.messages), "the newest words stay whole"


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
    assert request_tokens(naive, (), count_tokens) > TARGET_TOKENS
    assert prompt(steps).tokens <= TARGET_TOKENS


def long_steps(count: int, letters: int = 5_000) -> list[Message]:
    return [
        message
        for number in range(1, count + 1)
        for message in step(number, "", [f"{number} " + "word " * (letters // 5)])
    ]


def runs(last: int, letters: int = 2_000) -> tuple[PastRun, ...]:
    return tuple(past_run(number, "word " * (letters // 5), rented=1) for number in range(1, last + 1))


def test_the_newest_answers_stay_whole_while_anything_else_can_give_way() -> None:
    """A model that loses its newest answer asks again."""
    steps = long_steps(8, letters=15_000)
    made = prompt(steps, past_runs=runs(40))

    assert made.messages[-1]["content"] == steps[-1].content
    assert "left out: 15002 characters" in made.messages[3]["content"]


def test_a_prompt_that_became_too_large_is_made_small_and_then_keeps_its_cut() -> None:
    """The control is a cut that only just fits: it would move with every step."""
    past = runs(60)
    made = prompt([], past_runs=past)
    next_run = prompt(long_steps(1), past_runs=(*past, past_run(61)), compaction=made.compaction)
    just_fits = compose(
        standing=standing(past_runs=past),
        steps=opening(),
        count_tokens=count_tokens,
        budget=Budget(small=TARGET_TOKENS),
    )

    assert made.tokens <= SMALL_TOKENS
    assert next_run.cut.runs == made.cut.runs > just_fits.cut.runs
    assert just_fits.tokens + 2 * 500 > TARGET_TOKENS


def test_the_oldest_runs_go_into_the_digest_and_are_counted_there() -> None:
    made = prompt([], past_runs=runs(60), compaction=Compaction(digest=Digest(runs=7, rented=2, since=NOW, until=NOW)))
    history = made.messages[1]["content"]
    left = made.cut.runs

    assert f"({left + 7} older runs from 2026-03-17 12:00" in history
    assert f"{left + 2} rents" in history
    assert f"#{left} " not in history
    assert f"#{left + 1} " in history
    assert made.compaction.digest.runs == left + 7


def test_neighbouring_prompts_begin_alike() -> None:
    past = runs(10)
    first = prompt(long_steps(1), past_runs=past)
    second = prompt(long_steps(2), past_runs=past)
    next_run = prompt([], past_runs=(*past, past_run(11)), notes=noted("changed"))

    assert second.messages[: len(first.messages)] == first.messages
    history = first.messages[1]["content"].partition("\nlimits: ")[0]
    assert next_run.messages[1]["content"].startswith(history.rstrip())


@settings(max_examples=40, deadline=None)
@given(st.lists(replies, max_size=6), st.lists(texts, max_size=12))
def test_a_larger_budget_never_loses_what_a_smaller_one_keeps(
    said: list[tuple[str, list[str]]], summaries: list[str]
) -> None:
    steps = [message for number, (text, outputs) in enumerate(said, 1) for message in step(number, text, outputs)]
    past = tuple(past_run(number, summary) for number, summary in enumerate(summaries, 1))

    def made(target: int) -> Cut:
        budget = Budget(target=target, small=target * 2 // 3)
        return compose(
            standing=standing(past_runs=past),
            steps=[*opening(), *steps],
            count_tokens=count_tokens,
            budget=budget,
        ).cut

    small, large = made(12_000), made(24_000)
    assert large.runs <= small.runs
    assert large.steps <= small.steps
    assert large.newest <= small.newest


def test_composing_again_with_the_cut_that_came_out_changes_nothing() -> None:
    past, steps = runs(60), [*opening(), *long_steps(6, letters=20_000)]
    first = compose(standing=standing(past_runs=past), steps=steps, count_tokens=count_tokens)
    again = compose(standing=standing(past_runs=past), steps=steps, count_tokens=count_tokens, cut=first.cut)

    assert again == first


def test_a_pinned_part_that_does_not_fit_is_a_matter_of_settings() -> None:
    with pytest.raises(FixSetup, match=r"the shortest prompt has \d+ tokens and may have 4000 → shorten the objective"):
        compose(
            standing=standing(objective="word " * 3_000),
            steps=opening(),
            count_tokens=count_tokens,
            budget=Budget(target=4_000, small=3_000),
        )


def test_a_run_has_room_beside_what_every_prompt_carries_however_long_the_history() -> None:
    nothing = room_for_a_run(standing(), count_tokens, 1.0)
    history = room_for_a_run(standing(past_runs=runs(40, letters=1_500)), count_tokens, 1.0)
    assert TARGET_TOKENS > nothing > history > nothing - 200


def test_a_pinned_part_without_room_for_a_run_is_found_before_any_run() -> None:
    """Beside it even a run that says nothing can be composed, and so nobody would find out before a run is about
    something."""
    crowded = standing(objective="word " * 4_000)
    pinned = TARGET_TOKENS - room_for_a_run(crowded, count_tokens, 1.0)
    factor = (TARGET_TOKENS - LEAST_ROOM + 1_000) / pinned
    with pytest.raises(ShortenObjective, match=r"what every prompt carries has \d+ tokens of 27000"):
        room_for_a_run(crowded, count_tokens, factor)
    compose(standing=crowded, steps=opening(), count_tokens=count_tokens, budget=Budget(factor=factor))


def test_a_server_that_counts_more_gets_less() -> None:
    past = runs(40, letters=1_500)
    plain = compose(standing=standing(past_runs=past), steps=opening(), count_tokens=count_tokens)
    dear = compose(
        standing=standing(past_runs=past), steps=opening(), count_tokens=count_tokens, budget=Budget(factor=1.5)
    )

    assert plain.cut.runs == 0
    assert dear.cut.runs > 0
    assert dear.tokens <= TARGET_TOKENS


def test_the_operators_words_of_earlier_runs_are_verbatim_and_the_newest_first_served() -> None:
    """Three that were said at once are all there the next day; a message is whole or missing, never half."""
    three = tuple(Said(run_id=812, text=text) for text in ("Stop renting.", "Destroy box 7.", "Tell me the cost."))
    long = tuple(Said(run_id=number, text="word " * 600) for number in range(1, 30))

    content = prompt([], words=(*long, *three), words_in_all=40).messages[1]["content"]

    assert all(f"[human, run #812]\n{said.text}\n[/human]" in content for said in three)
    shown = content.count("[/human]")
    assert f"({40 - shown} older messages do not fit)" in content
    assert content.count("word " * 600) == shown - 3
    assert 0 < (shown - 3) * 750 <= HUMAN_TOKENS


def test_what_is_cut_keeps_its_head_and_its_tail_and_says_how_much_is_missing() -> None:
    short = shortened("a" * 500 + "b" * 500, 100, count_tokens)
    assert count_tokens(short) <= 100
    assert short.startswith("aaa")
    assert short.endswith("bbb")
    assert "characters left out" in short


@given(texts, st.integers(0, 500))
def test_a_cut_is_never_longer_than_allowed(text: str, tokens: int) -> None:
    assert count_tokens(shortened(text, tokens, count_tokens)) <= tokens


def test_a_human_is_told_to_the_model_verbatim_and_the_newest_first_served() -> None:
    claimed = Claimed(events=(message_event(1, "old " * 4_000), message_event(2, "Stop renting, please.")))
    block = turn_block(RUN, standing(), claimed, observation(), (), NOW, count_tokens, mark=MARK)
    assert "[human]\nStop renting, please.\n[/human]" in block
    assert "characters left out" in block


def test_a_thousand_messages_do_not_make_a_run_impossible() -> None:
    claimed = Claimed(events=tuple(message_event(number, f"message {number}") for number in range(1000)))
    block = turn_block(RUN, standing(), claimed, observation(), (), NOW, count_tokens, mark=MARK)
    assert "older messages do not fit" in block
    assert "message 999" in block
    assert compose(standing=standing(), steps=opening(block), count_tokens=count_tokens).tokens <= TARGET_TOKENS


def test_a_turn_says_why_it_happens_and_what_is_seen() -> None:
    claimed = Claimed(
        events=(
            Event(
                id=1, kind=Kind.MESSAGE, source="cli", priority=Priority.URGENT, count=1, occurred_at=NOW,
                text="How are we doing?", payload={},
            ),
        )
    )  # fmt: skip
    assert turn_block(
        RUN, standing(), claimed, observation(), (), NOW + timedelta(seconds=2), count_tokens, mark=MARK
    ) == snapshot("""\
Run #812, trigger: event.
[human]
How are we doing?
[/human]
[observation]
time: 2026-03-17T12:00:02Z
demand: pending=12 running=3 oldest_pending_s=240 done_per_hour=20 failed_per_hour=? age_s=2
account: credit_usd=41.20 burn_usd_per_hour=0.400 runway_hours=103.0 age_s=2
boxes: live=1 in_flight=1 age_s=2
id|stage|gpu|usd_per_hour|age_min|status
101|proving|1x RTX 4090|0.400|60|running
[/observation]\
""")


def test_the_limits_that_bind_stand_in_one_line() -> None:
    """Only those that can be taken into account before an action is asked for."""
    assert limits_line(standing()) == snapshot(
        "limits: mode=live max_boxes=4 max_usd_per_hour=4.00 max_usd_per_hour_per_box=1.50 max_usd_per_day=50.00 "
        "min_runway_hours=2 max_rents_per_run=2 max_destroys_per_run=2 rents_wait_above_usd_per_hour=1.00"
    )


def test_a_brake_is_said_where_it_holds_and_what_always_waits_where_something_does() -> None:
    """Control: in the line above none of them is named."""
    waits = Policy(approvals=Approvals(always=("drain_box", "destroy_box"), rent_above_usd_per_hour=None))
    held = limits_line(standing(scale_out_paused=True, scale_in_paused=True, policy=waits))
    assert held.endswith(" max_destroys_per_run=2 always_wait=drain_box,destroy_box scale_out=paused scale_in=paused")

    broken = limits_line(standing(rent_breaker="5 rents in a row came to nothing,\nthe last one: no such image"))
    assert broken.endswith(
        " scale_out=paused\nRents kept failing, so a person must allow them again: "
        "5 rents in a row came to nothing, the last one: no such image"
    )


def test_what_is_unknown_is_never_shown_as_a_number() -> None:
    unseen = observation(
        inventory=Unknown(reason="page 2 failed"),
        demand=Unknown(reason="no answer"),
        account=Unknown(reason="no answer"),
    )
    block = turn_block(RUN, standing(), Claimed(), unseen, (), NOW, count_tokens, mark=MARK)
    assert "boxes: unknown (page 2 failed)" in block
    assert "demand: unknown" in block
    assert "pending=" not in block
    assert "id|stage" not in block


def test_figures_that_only_some_sources_have_are_shown_where_they_are_known_and_why_where_they_should_be() -> None:
    """Control: without them the line is as it is above."""
    plain = observation().demand
    assert isinstance(plain, Known)
    more = {
        "claimed": 4, "retrying": 1, "final_failures_per_hour": 2.0, "proof_p95": timedelta(seconds=96),
        "market": Market(waiting=4, computing=2, orphaned=0),
        "unread": {"done_per_hour": "no table", "dead_workers": "too\nslow", "failed_per_hour": "no table"},
    }  # fmt: skip
    seen = observation(demand=Known(value=plain.value.model_copy(update=more), seen_at=NOW))

    lines = turn_block(RUN, standing(), Claimed(), seen, (), NOW, count_tokens, mark=MARK).splitlines()

    assert [line for line in lines if "demand" in line or "market" in line] == snapshot(
        [
            "demand: pending=12 running=3 oldest_pending_s=240 done_per_hour=20 failed_per_hour=? claimed=4 "
            "retrying=1 final_failures_per_hour=2 proof_p95_s=96 age_s=0",
            "market: waiting=4 computing=2 orphaned=0",
            "not known of demand: done_per_hour, failed_per_hour: no table",
            "not known of demand: dead_workers: too slow",
        ]
    )


def test_open_approvals_stand_in_every_prompt_without_the_words_of_who_asked() -> None:
    approvals = tuple(
        Approval(
            key=f"r{number}-s1-c1-aaaa", tool="rent_box", arguments={"offer_id": number, "reason": "obey"},
            sentence="beyond the plan", asked_at=NOW,
        )
        for number in range(12)
    )  # fmt: skip
    content = prompt([], approvals=approvals).messages[1]["content"]

    assert (
        'Open approvals:\n- 2026-03-17T12:00:00Z r0-s1-c1-aaaa: rent_box({"offer_id": 0}); beyond the plan\n'
    ) in content
    assert "(7 more)" in content
    assert "obey" not in content
    assert "Open approvals:\n(none)" in prompt([]).messages[1]["content"]


def test_a_block_that_is_cut_loses_no_half_of_a_fence() -> None:
    stranger = Event(
        id=1, kind=Kind.WEBHOOK, source="prom", priority=Priority.CHANGE, count=1, occurred_at=NOW,
        text="obey " * 40, payload={}, tainted=True,
    )  # fmt: skip
    said = Claimed(events=(stranger, message_event(2, "word " * 600)))
    seen = observation(boxes=(box(),) * 200)
    block = turn_block(RUN, standing(), said, seen, (), NOW, count_tokens, mark=MARK)
    made = compose(standing=standing(), steps=opening(block) * 40, count_tokens=count_tokens)
    content = made.messages[-1]["content"]

    assert made.cut.blocks > 0
    assert content.count(f"<<{MARK}") == content.count(f"{MARK}>>") == 40 - made.cut.blocks
    assert content.count("(prom: 199 characters left out)") == made.cut.blocks


def test_one_message_that_is_longer_than_all_words_may_be_is_shortened_and_says_so() -> None:
    content = prompt([], words=(Said(run_id=3, text="w" * 20_000),), words_in_all=1).messages[1]["content"]

    assert "characters left out" in content
    assert "older messages" not in content
