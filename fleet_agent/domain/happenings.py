"""What happened, as the model reads it: a person's words verbatim, and everything else as lines that never overflow.

What strangers wrote freely stands in a fence; `mark` is drawn for the message that shows it.

A few events are told one by one. A storm (an alert of five hundred boxes, a flapping link) is counted instead, so that
it costs one short table and not the prompt: by kind and source, with the number, the first and the newest time, and of
the most urgent the newest in words. Nothing is left out of the count; the events themselves stay in the inbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fleet_agent.domain.hygiene import clean, fence
from fleet_agent.domain.show import one_line, utc
from fleet_agent.domain.tokens import CountTokens, shortened
from fleet_agent.domain.triggers import Event, Kind

MOST_TOLD = 12
"""Events of one turn that are told one by one; beyond that it is a storm."""

TOLD_OF_A_STORM = 5

EVENTS_TOKENS = 2_000
TABLE_TOKENS = 1_000
"""Of EVENTS_TOKENS, for the table of a storm."""
LINE_TOKENS = EVENTS_TOKENS // 8

HUMAN_TOKENS = 3_000


def happenings(events: Sequence[Event], count_tokens: CountTokens, *, mark: str) -> list[str]:
    """Everything that happened: events first, then the words of people."""
    words = [event.text for event in events if event.kind is Kind.MESSAGE]
    others = [event for event in events if event.kind is not Kind.MESSAGE]
    return [*told(others, count_tokens, mark=mark), *_human(words, count_tokens)]


def told(events: Sequence[Event], count_tokens: CountTokens, *, mark: str) -> list[str]:
    """Each event in words where that fits; else all of them counted, and a few in words. Within EVENTS_TOKENS."""
    one_by_one = [_in_words(event, count_tokens, mark) for event in events]
    if len(events) <= MOST_TOLD and sum(map(count_tokens, one_by_one)) <= EVENTS_TOKENS:
        return one_by_one
    return _storm(events, count_tokens, mark)


def _in_words(event: Event, count_tokens: CountTokens, mark: str) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    text = shortened(clean(event.text), LINE_TOKENS, count_tokens)
    if event.tainted:
        return f"Event: {event.kind.value}{times}:\n{fence(text, source=_name(event), mark=mark)}"
    return f"Event: {event.kind.value}{times}: {text}"


def _storm(events: Sequence[Event], count_tokens: CountTokens, mark: str) -> list[str]:
    table = _counted(events, count_tokens)
    left = EVENTS_TOKENS - sum(map(count_tokens, table))
    in_words: dict[int, str] = {}
    for event in sorted(events, key=lambda event: (event.priority, -event.id))[:TOLD_OF_A_STORM]:
        line = _in_words(event, count_tokens, mark)
        left -= count_tokens(line)
        if left < 0:
            break
        in_words[event.id] = line
    return [*table, *(in_words[number] for number in sorted(in_words))]


def _counted(events: Sequence[Event], count_tokens: CountTokens) -> list[str]:
    """A row a kind and source, the largest first; where there are too many sources, the rest is one row."""
    groups = [list(group) for _, group in groupby(sorted(events, key=_kind_and_source), key=_kind_and_source)]
    groups.sort(key=_occurrences, reverse=True)
    rows = [f"Events: {_occurrences(events)} happened; by kind and source, and the newest in words:"]
    left = TABLE_TOKENS - count_tokens(rows[0]) - 2 * LINE_TOKENS  # room for the row of the rest
    for number, group in enumerate(groups):
        row = f"{_source(group[0])}: {_figures(group)}"
        left -= count_tokens(row)
        if left < 0:
            rest = [event for others in groups[number:] for event in others]
            return [*rows, f"{len(groups) - number} other kinds and sources: {_figures(rest)}"]
        rows.append(row)
    return rows


def _kind_and_source(event: Event) -> tuple[str, str]:
    return event.kind.value, event.source


def _source(event: Event) -> str:
    return f"{event.kind.value} from {_name(event)}"


def _name(event: Event) -> str:
    return one_line(event.source)[:60]


def _figures(events: Sequence[Event]) -> str:
    times = [event.occurred_at for event in events]
    return f"{_occurrences(events)} times, first {utc(min(times))}, newest {utc(max(times))}"


def _occurrences(events: Sequence[Event]) -> int:
    return sum(event.count for event in events)


def _human(words: Sequence[str], count_tokens: CountTokens) -> list[str]:
    """The human's words verbatim, the newest first served; what does not fit is cut and says so."""
    blocks: list[str] = []
    left = HUMAN_TOKENS
    for text in reversed(words):
        shown = shortened(text, left, count_tokens)
        if not shown:
            return [f"({len(words) - len(blocks)} older messages do not fit; say so to the operator)", *blocks]
        block = f"[human]\n{shown}\n[/human]"
        left -= count_tokens(block)
        blocks.insert(0, block)
    return blocks
