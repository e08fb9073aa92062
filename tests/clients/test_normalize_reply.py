"""One reply from whatever a server sent: every way in which they were seen to go wrong, and every other one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.clients.model import MOST_CALLS, MOST_LETTERS, MOST_TOKENS, NoReply, normalize_reply
from fleet_agent.domain.run import ModelReply, Usage


def call(arguments: object = "{}", name: object = "rent_box", id: object = "call_1", **more: object) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def body(*calls: object, content: object = None, **more: object) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more}


def normalized(document: object, salt: str = "") -> ModelReply:
    reply = normalize_reply(document, salt=salt)
    assert isinstance(reply, ModelReply)
    return reply


# --- the pitfalls, one by one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "length", None, 7])
def test_calls_count_whatever_the_finish_reason_says(reason: object):
    document = body(call())
    document["choices"][0]["finish_reason"] = reason

    assert len(normalized(document).calls) == 1


@pytest.mark.parametrize(
    ("arguments", "canonical"),
    [
        ('{"offer_id": 5, "reason": "cheap"}', '{"offer_id":5,"reason":"cheap"}'),
        ('{"reason": "cheap", "offer_id": 5}', '{"offer_id":5,"reason":"cheap"}'),
        ({"offer_id": 5}, '{"offer_id":5}'),
        ('{"reason": "grün"}', '{"reason":"grün"}'),
        ("", "{}"),
        ("  ", "{}"),
        (None, "{}"),
        ("null", "{}"),
        ({}, "{}"),
    ],
)
def test_arguments_become_canonical_json_whether_they_came_as_text_or_as_an_object(arguments: object, canonical: str):
    [made] = normalized(body(call(arguments))).calls

    assert (made.arguments, made.malformed) == (canonical, False)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"reason": "it is',
        "[1, 2]",
        "5",
        '"text"',
        [1],
        7,
        True,
        '{"price": NaN}',
        {"price": float("inf")},
        '{"price": 1e999}',
        '{"n": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"a":' * 900 + "1" + "}" * 900,
        {"reason": "x" * MOST_LETTERS},
        '{"reason": "' + "x" * MOST_LETTERS + '"}',
    ],
    ids=lambda arguments: str(arguments)[:30],
)
def test_arguments_that_are_no_json_object_become_an_empty_one_and_are_marked(arguments: object):
    [made] = normalized(body(call(arguments))).calls

    assert (made.arguments, made.malformed) == ("{}", True)


def test_text_that_a_database_or_a_wire_would_refuse_is_made_storable():
    document = body(call({"a\x00": ["b\x00", "\ud800"]}, id="i\ud800"), content="t\x00\ud800")

    reply = normalized(document)

    assert json.loads(reply.calls[0].arguments) == {"a": ["b", "?"]}
    assert (reply.text, reply.calls[0].provider_id) == ("t?", "i?")


@pytest.mark.parametrize("given_id", [None, "", 5, "call_0", "abcdefghi", "x" * 200])
def test_whatever_id_a_server_gives_ours_is_used_and_its_own_kept(given_id: object):
    [made] = normalized(body(call(id=given_id))).calls

    assert re.fullmatch("[a-z0-9]{9}", made.id)
    assert made.provider_id == ("" if given_id is None else str(given_id))


def test_calls_with_the_same_id_get_different_ones():
    first, second = normalized(body(call(), call())).calls

    assert first.id != second.id


def test_control_keeping_the_servers_ids_repeats_them():
    document = body(call(), call())
    kept = [made["id"] for made in document["choices"][0]["message"]["tool_calls"]]

    assert len(set(kept)) < len(kept)


def test_ids_follow_from_the_salt_so_that_a_replay_has_the_same_and_the_next_request_has_others():
    document = body(call())
    [one], [same], [other] = (normalized(document, salt).calls for salt in ("a", "a", "b"))

    assert one.id == same.id != other.id


def test_more_calls_than_anybody_needs_are_cut():
    assert len(normalized(body(*[call()] * 20)).calls) == MOST_CALLS == 8


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("rent_box", "rent_box"), (None, "unnamed"), ("", "unnamed"), ("rm -rf /", "rm_-rf__"), ("x" * 99, "x" * 64)],
)
def test_a_name_that_servers_would_refuse_in_a_history_is_made_acceptable(given_name: object, name: str):
    assert normalized(body(call(name=given_name))).calls[0].name == name


def test_what_is_no_call_is_left_out():
    assert normalized(body(None, "text", 5, {}, {"function": None}, call())).calls[0].provider_id == "call_1"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Well.", "Well."),
        (None, ""),
        ("", ""),
        ([{"type": "text", "text": "We"}, {"type": "text", "text": "ll."}], "Well."),
        ([{"type": "thinking", "text": "hm"}, {"type": "output_text", "text": "Well."}], "Well."),
        (["We", "ll."], "Well."),
        ([None, 5, {"text": None}], ""),
        ({"text": "odd"}, ""),
    ],
)
def test_text_is_plain_whatever_it_came_in(content: object, text: str):
    assert normalized(body(content=content)).text == text


@pytest.mark.parametrize("content", ["y" * MOST_LETTERS + "zzz", ["y" * MOST_LETTERS, "zzz"]], ids=["whole", "parts"])
def test_of_an_endless_text_the_beginning_is_kept_and_the_rest_counted(content: object):
    text = normalized(body(content=content)).text

    assert text == "y" * MOST_LETTERS + "… (3 more letters were dropped)"


def test_a_long_text_that_is_not_too_long_is_kept_as_it_is():
    assert normalized(body(content="y" * MOST_LETTERS)).text == "y" * MOST_LETTERS


def test_of_an_endless_id_the_beginning_is_kept():
    assert len(normalized(body(call(id="x" * 10**6))).calls[0].provider_id) == 200


def test_reasoning_is_dropped():
    document = body(content="")
    document["choices"][0]["message"] |= {"reasoning_content": "secret thoughts", "reasoning": "more of them"}

    assert "thoughts" not in normalized(document).model_dump_json()


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(tokens_in=10, tokens_out=2)),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(tokens_in=10, tokens_out=2, tokens_cached=8),
        ),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(tokens_in=10, tokens_cached=10)),
        ({"prompt_tokens": 10, "completion_tokens": None}, Usage(tokens_in=10)),
        ({"prompt_tokens": -3, "completion_tokens": "many"}, Usage()),
        ({"prompt_tokens": float("nan"), "completion_tokens": 10**400}, Usage()),
        ({"prompt_tokens": MOST_TOKENS, "completion_tokens": MOST_TOKENS + 1}, Usage(tokens_in=MOST_TOKENS)),
        ({"prompt_tokens": 10**11, "completion_tokens": 2}, Usage(tokens_out=2)),
        (None, Usage()),
        ([], Usage()),
    ],
)
def test_tokens_are_counted_as_far_as_the_server_says_them(usage: object, counted: Usage):
    assert normalized(body(usage=usage)).usage == counted


@pytest.mark.parametrize(
    "document",
    [
        None,
        5,
        [],
        "<html>sign in</html>",
        "data: {}\n\ndata: [DONE]",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"message": None}]},
        {"choices": {"0": {}}},
        {"error": "overloaded"},
        {"error": {"message": "overloaded"}},
        body(call(), error={"message": "broke off"}),
        {"choices": [{"message": {"content": "half"}, "error": {"message": "broke off", "code": 502}}]},
    ],
    ids=lambda document: str(document)[:40],
)
def test_a_success_without_a_reply_is_no_reply_and_says_why(document: object):
    nothing = normalize_reply(document, salt="")

    assert isinstance(nothing, NoReply)
    assert nothing.cause


@pytest.mark.parametrize(
    ("code", "status"), [(502, 502), ("429", 429), (200, None), ("overloaded", None), (None, None)]
)
def test_the_status_of_the_server_behind_a_gateway_is_found(code: object, status: int | None):
    nothing = normalize_reply({"choices": None, "error": {"message": "no", "code": code}}, salt="")

    assert isinstance(nothing, NoReply)
    assert nothing.status == status


# --- every other way --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FUNCTIONS = JSON | st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON | st.text()})
CALLS = JSON | st.fixed_dictionaries({}, optional={"id": JSON, "type": JSON, "function": FUNCTIONS})
CONTENTS = JSON | st.lists(
    st.fixed_dictionaries({}, optional={"type": JSON | st.just("text"), "text": JSON}), max_size=3
)
MESSAGES = JSON | st.fixed_dictionaries({}, optional={"content": CONTENTS, "tool_calls": JSON | st.lists(CALLS)})
CHOICES = JSON | st.fixed_dictionaries({}, optional={"message": MESSAGES, "finish_reason": JSON, "error": JSON})
USAGES = JSON | st.fixed_dictionaries({}, optional={"prompt_tokens": JSON, "completion_tokens": JSON})
BODIES = JSON | st.fixed_dictionaries({"choices": JSON | st.lists(CHOICES)}, optional={"usage": USAGES, "error": JSON})


@settings(deadline=None)
@given(BODIES, st.text())
def test_no_answer_whatever_its_shape_raises(document: object, salt: str):
    assert isinstance(normalize_reply(document, salt=salt), ModelReply | NoReply)


@settings(deadline=None)
@given(st.lists(CALLS | st.builds(call, JSON | st.text(), JSON, JSON), max_size=12), st.text())
def test_what_leaves_can_be_replayed_to_any_server(calls: list[object], salt: str):
    reply = normalized(body(*calls), salt)

    ids = [made.id for made in reply.calls]
    assert len(ids) == len(set(ids)) <= MOST_CALLS
    for made in reply.calls:
        assert re.fullmatch("[a-z0-9]{9}", made.id)
        assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", made.name)
        assert isinstance(json.loads(made.arguments), dict)
        assert json.dumps(json.loads(made.arguments), ensure_ascii=False, sort_keys=True, separators=(",", ":")) == (
            made.arguments
        )
        assert not made.malformed or made.arguments == "{}"
        reply.model_dump_json().encode()


@settings(deadline=None)
@given(BODIES)
def test_the_same_answer_is_read_the_same_twice(document: object):
    assert normalize_reply(document, salt="") == normalize_reply(document, salt="")


def test_control_reading_an_answer_as_documented_raises_on_most_of_these():
    def as_documented(document: Any) -> tuple[str, list[Any]]:
        message = document["choices"][0]["message"]
        return message["content"], [json.loads(made["function"]["arguments"]) for made in message["tool_calls"]]

    odd: list[Any] = [None, {"choices": None}, {"choices": []}, body(call({})), body(call("")), body(call("{"))]
    for document in odd:
        with pytest.raises((TypeError, IndexError, ValueError)):
            as_documented(document)
        assert isinstance(normalize_reply(document, salt=""), ModelReply | NoReply)
