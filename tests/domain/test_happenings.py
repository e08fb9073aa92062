"""However much happens, the model reads a bounded text in which everything is shown or counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from fleet_agent.domain.happenings import EVENTS_TOKENS, HUMAN_TOKENS, MOST_TOLD, happenings, told
from fleet_agent.domain.tokens import by_bytes as count_tokens
from fleet_agent.domain.triggers import Event, Kind, Priority, priority_of

MARK = "0123456789ab"
NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)


def event(
    number: int, kind: Kind = Kind.ALERT_FIRING, source: str = "alertmanager", text: str = "", count: int = 1
) -> Event:
    return Event(
        id=number,
        kind=kind,
        source=source,
        priority=priority_of(kind),
        count=count,
        occurred_at=NOON + timedelta(seconds=number % 60),
        text=text,
        payload={},
    )


others = st.sampled_from([kind for kind in Kind if kind is not Kind.MESSAGE])
sources = st.one_of(st.sampled_from(["cli", "alertmanager"]), st.text(max_size=200))
texts = st.builds(lambda text, times: text * times, st.text(max_size=10), st.integers(1, 500))
floods = st.lists(st.tuples(others, sources, texts, st.integers(1, 1_000)), max_size=60).map(
    lambda values: [event(number, *value) for number, value in enumerate(values, 1)]
)


@settings(max_examples=150, deadline=None)
@given(floods)
def test_every_event_is_shown_or_counted_and_the_text_is_bounded(events: list[Event]) -> None:
    lines = told(events, count_tokens, mark=MARK)
    assert sum(map(count_tokens, lines)) <= EVENTS_TOKENS
    assert accounted_for(lines, events)


def accounted_for(lines: Sequence[str], events: Sequence[Event]) -> bool:
    """By the lines alone: each event has its own, or the rows of the table add up to all that happened."""
    in_all = sum(event.count for event in events)
    if not lines or not lines[0].startswith("Events: "):
        return len([line for line in lines if line.startswith("Event: ")]) == len(events)
    rows = [line for line in lines[1:] if re.search(r": \d+ times, first ", line) and not line.startswith("Event: ")]
    counted = sum(int(re.findall(r": (\d+) times, first ", row)[-1]) for row in rows)
    return lines[0].startswith(f"Events: {in_all} happened") and counted == in_all


@settings(max_examples=50, deadline=None)
@given(floods)
def test_a_list_of_the_newest_alone_loses_sight_of_the_rest(events: list[Event]) -> None:
    """The control: what fits, the newest first, and no count."""
    lines: list[str] = []
    for each in reversed(events):
        line = f"Event: {each.kind.value}: {each.text}"
        if sum(map(count_tokens, lines)) + count_tokens(line) <= EVENTS_TOKENS:
            lines.insert(0, line)
    assert accounted_for(lines, events) == (len(lines) == len(events))


def test_a_storm_is_one_table_and_a_few_words() -> None:
    storm = [event(number, text=f"box {number} is hot", count=2) for number in range(1, 500)]
    storm.append(event(500, Kind.RUN_NOW, "cli", "look now"))
    assert told(storm, count_tokens, mark=MARK) == snapshot(
        [
            "Events: 999 happened; by kind and source, and the newest in words:",
            "alert_firing from alertmanager: 998 times, first 2026-03-17T12:00:00Z, newest 2026-03-17T12:00:59Z",
            "run_now from cli: 1 times, first 2026-03-17T12:00:20Z, newest 2026-03-17T12:00:20Z",
            "Event: alert_firing (2 times): box 496 is hot",
            "Event: alert_firing (2 times): box 497 is hot",
            "Event: alert_firing (2 times): box 498 is hot",
            "Event: alert_firing (2 times): box 499 is hot",
            "Event: run_now: look now",
        ]
    )


def test_a_dozen_events_are_told_one_by_one() -> None:
    lines = told([event(number, text=f"box {number}") for number in range(MOST_TOLD)], count_tokens, mark=MARK)
    assert lines == [f"Event: alert_firing: box {number}" for number in range(MOST_TOLD)]


def test_where_sources_are_many_the_smallest_share_a_row() -> None:
    storm = [event(number, source=f"stranger {number} " + "x" * 100) for number in range(300)]
    lines = told(storm, count_tokens, mark=MARK)
    (rest,) = [line for line in lines if "other kinds and sources" in line]
    shown = [line for line in lines if line.startswith("alert_firing from stranger")]
    assert rest.startswith(f"{300 - len(shown)} other kinds and sources: {300 - len(shown)} times")


@settings(max_examples=60, deadline=None)
@given(floods, st.lists(st.text(min_size=1, max_size=300), max_size=8))
def test_the_words_of_people_are_never_summarised(events: list[Event], words: list[str]) -> None:
    said = [event(1_000 + number, Kind.MESSAGE, "cli", text) for number, text in enumerate(words)]
    lines = happenings([*said, *events], count_tokens, mark=MARK)
    blocks = Counter(line for line in lines if line.startswith("[human]\n"))
    if sum(count_tokens(f"[human]\n{text}\n[/human]") for text in words) <= HUMAN_TOKENS:
        assert all(blocks[f"[human]\n{text}\n[/human]"] >= 1 for text in words)
    assert sum(blocks.values()) <= len(words)


def test_the_most_urgent_are_in_words() -> None:
    routine = [event(number, Kind.BOX_PROGRESS, "box") for number in range(2, 40)]
    lines = told([event(1, Kind.CONFIG_CHANGE, "cli", "mode: live → paused"), *routine], count_tokens, mark=MARK)
    assert "Event: config_change: mode: live → paused" in lines
    assert event(1, Kind.CONFIG_CHANGE).priority is Priority.URGENT
