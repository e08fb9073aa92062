"""The estimate bounds tokenizers that nobody told us of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.tokens import by_bytes, corrected, request_tokens


def o200k(text: str) -> int:
    """A stand-in of the right shape: three digits or four letters a token, a foreign character one."""
    return sum(-(-len(word) // 3) if word.isdigit() else -(-len(word) // 4) for word in text.split()) + text.count(" ")


count = corrected(o200k)


def test_every_digit_is_charged_by_itself() -> None:
    """As tokenizers do that make a token of each digit; the plain count is the control."""
    digits = "1234567890" * 30

    assert count(digits) == len(digits)
    assert o200k(digits) < len(digits)


def test_foreign_text_is_charged_by_its_bytes() -> None:
    arabic = "مرحبا بالعالم " * 50

    assert count(arabic) >= 0.75 * len("".join(arabic.split()).encode())


@given(st.text(st.characters(codec="utf-8")))
def test_no_text_costs_more_than_its_bytes(text: str) -> None:
    """A byte-level tokenizer never makes more tokens than bytes."""
    assert count(text) <= len(text.encode())


def test_a_request_costs_its_parts_and_what_templates_add() -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "list_boxes", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x" * 11},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "none"},
    ]

    plain = request_tokens(messages, [], by_bytes)

    assert plain == 3 * 32 + by_bytes("x" * 11) + 16 + by_bytes("abcdefghilist_boxes{}") + by_bytes(
        "abcdefghi"
    ) + by_bytes("none")
    assert request_tokens(messages, [{"type": "function"}], by_bytes) > plain + 200


@pytest.mark.parametrize("text", ["\ud83d", "a\ud800b"])
def test_half_a_surrogate_pair_is_counted_and_not_refused(text: str) -> None:
    assert by_bytes(text) > 0
    assert count(text) > 0


def test_without_a_tokenizer_a_text_of_digits_is_still_bounded() -> None:
    """Some tokenizers make a token of each digit; the control is the count that four characters a token would give."""
    digits = "8241" * 100

    assert by_bytes(digits) >= len(digits) > len(digits) / 4
