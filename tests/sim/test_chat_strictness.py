"""The simulated model takes only what every server takes: each bad request here is one change away from a good one."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from fleet_agent.sim.chat import MAX_TOKENS, BadRequest, message_tokens, read_request, tokens_in

Body = dict[str, Any]
GOOD: Body = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "You operate a fleet."},
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "aaaaaaaaa", "type": "function", "function": {"name": "list_boxes", "arguments": "{}"}},
                {"id": "bbbbbbbbb", "type": "function", "function": {"name": "read_logs", "arguments": '{"id": 7}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "aaaaaaaaa", "content": "boxes: live=0"},
        {"role": "tool", "tool_call_id": "bbbbbbbbb", "content": "There is no box 7."},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": {"name": "list_boxes", "parameters": {"type": "object"}}}],
}


def orphan_tool_message(body: Body) -> None:
    body["messages"].append({"role": "tool", "tool_call_id": "ccccccccc", "content": "nobody asked"})


def second_result_for_one_call(body: Body) -> None:
    body["messages"].insert(5, dict(body["messages"][4]))


def call_without_result(body: Body) -> None:
    del body["messages"][4]


def call_without_result_at_the_end(body: Body) -> None:
    body["messages"] = body["messages"][:3]


def result_after_the_next_message(body: Body) -> None:
    body["messages"].append(body["messages"].pop(4))


def the_same_id_twice(body: Body) -> None:
    body["messages"] += deepcopy(body["messages"][2:5])


def null_content(body: Body) -> None:
    body["messages"][2]["content"] = None


def missing_content(body: Body) -> None:
    del body["messages"][1]["content"]


def content_in_parts(body: Body) -> None:
    body["messages"][1]["content"] = [{"type": "text", "text": "Look."}]


def no_system_message(body: Body) -> None:
    del body["messages"][0]


def two_system_messages(body: Body) -> None:
    body["messages"].insert(1, {"role": "system", "content": "And be quick."})


def late_system_message(body: Body) -> None:
    body["messages"].append(body["messages"].pop(0))


def developer_role(body: Body) -> None:
    body["messages"][0]["role"] = "developer"


def arguments_that_are_not_json(body: Body) -> None:
    body["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{"id": '


def arguments_that_are_no_object(body: Body) -> None:
    body["messages"][2]["tool_calls"][0]["function"]["arguments"] = "[7]"


def arguments_as_a_dict(body: Body) -> None:
    body["messages"][2]["tool_calls"][0]["function"]["arguments"] = {"id": 7}


def empty_tool_calls(body: Body) -> None:
    body["messages"].append({"role": "assistant", "content": "Well.", "tool_calls": []})


def calls_by_the_user(body: Body) -> None:
    body["messages"][2]["role"] = "user"


def two_tools_of_one_name(body: Body) -> None:
    body["tools"] *= 2


def a_stream(body: Body) -> None:
    body["stream"] = True


def messages_missing(body: Body) -> None:
    del body["messages"]


BAD: dict[Callable[[Body], None], str] = {
    orphan_tool_message: "'ccccccccc' answers no open tool call",
    second_result_for_one_call: "'bbbbbbbbb' answers no open tool call",
    call_without_result: "without a result before it: bbbbbbbbb",
    call_without_result_at_the_end: "without a result at the end: aaaaaaaaa, bbbbbbbbb",
    result_after_the_next_message: "without a result before it: bbbbbbbbb",
    the_same_id_twice: "tool call ids must be unique: 'aaaaaaaaa'",
    null_content: "messages[2].content must be a string, not null",
    missing_content: "messages[1].content must be a string",
    content_in_parts: "messages[1].content must be a string",
    no_system_message: "exactly one system message",
    two_system_messages: "exactly one system message",
    late_system_message: "exactly one system message, and it comes first",
    developer_role: "'developer' is not one of",
    arguments_that_are_not_json: "arguments is not JSON",
    arguments_that_are_no_object: "arguments must be a JSON object",
    arguments_as_a_dict: "arguments must be a string",
    empty_tool_calls: "tool_calls is empty",
    calls_by_the_user: "only the assistant calls tools",
    two_tools_of_one_name: "tool names must be unique",
    a_stream: "does not stream",
    messages_missing: "messages must be a list",
}


def test_a_well_formed_request_is_read_into_values():
    request = read_request(GOOD)
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert request.messages[2].calls[1].arguments == {"id": 7}
    assert request.tools == ("list_boxes",)


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_a_malformed_request_is_refused_with_the_place_and_the_reason(spoil: Callable[[Body], None]):
    body = deepcopy(GOOD)
    spoil(body)
    with pytest.raises(BadRequest) as refusal:
        read_request(body)
    assert BAD[spoil] in str(refusal.value)


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(BadRequest, match="the body must be a JSON object"):
        read_request(["hello"])


def test_a_request_of_exactly_the_limit_is_taken_and_one_token_more_is_refused():
    body: Body = {"model": "any", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": ""}]}
    room = MAX_TOKENS - sum(message_tokens(message) for message in body["messages"])
    body["messages"][1]["content"] = "x" * (4 * (room + 1))
    assert read_request(body).tokens == MAX_TOKENS
    body["messages"][1]["content"] += "x"
    with pytest.raises(BadRequest, match="maximum context length is 30000") as refusal:
        read_request(body)
    assert refusal.value.code == "context_length_exceeded"


def test_tool_definitions_count_towards_the_limit():
    with_tools = read_request(GOOD).tokens
    assert read_request({**GOOD, "tools": []}).tokens < with_tools


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("abcd", 1), ("abcde", 2), ("日本", 2), ("\ud800", 1)])
def test_text_is_counted_by_the_four_bytes_begun(text: str, tokens: int):
    assert tokens_in(text) == tokens
