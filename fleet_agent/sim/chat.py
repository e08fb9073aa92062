"""Chat completions as the strictest of servers would take them.

Servers differ in what they forgive: one accepts an orphan tool message, the next answers 400, a third renders it into
nonsense. What passes here passes all of them, so every test that runs against the simulated model proves the shape of
every request it sent. A request is read once, into values that cannot be malformed; the first fault ends the reading.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

MAX_TOKENS = 30_000
"""The context window, in tokens of `tokens_in`."""

TOKENS_PER_MESSAGE = 4
"""What a chat template adds around one message."""

ROLES = ("system", "user", "assistant", "tool")


class BadRequest(Exception):
    """What the server answers 400 to; `code` is the machine-readable code of the error body."""

    def __init__(self, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant message."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `calls` only of the assistant, `answers` (the id of a call) only of a tool message."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that every server takes; `tools` are the names that may be called."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    tokens: int


def read_request(body: object) -> ChatRequest:
    """The request as a value. Raises BadRequest, whose text says what is wrong and where."""
    fields = _object(body, "the body")
    if fields.get("stream"):
        raise BadRequest("stream: this server does not stream")
    raw_messages = _objects(fields.get("messages"), "messages")
    raw_tools = _objects(fields.get("tools", []), "tools")
    messages = tuple(_message(raw, f"messages[{n}]") for n, raw in enumerate(raw_messages))
    tools = tuple(_tool(raw, f"tools[{n}]") for n, raw in enumerate(raw_tools))
    _exactly_one_system_message_first(messages)
    _unique([call.id for message in messages for call in message.calls], "tool call ids")
    _unique(tools, "tool names")
    _every_call_has_exactly_one_result(messages)
    tokens = request_tokens(raw_messages, raw_tools)
    if tokens > MAX_TOKENS:
        raise BadRequest(
            f"this model's maximum context length is {MAX_TOKENS} tokens, the request has {tokens}",
            "context_length_exceeded",
        )
    return ChatRequest(_text(fields, "model", "the body"), messages, tools, tokens)


def request_tokens(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
    """The size of a prompt by this server's own measure: every text of the messages, and the tools as JSON."""
    in_tools = tokens_in(json.dumps(tools, ensure_ascii=False)) if tools else 0
    return in_tools + sum(message_tokens(message) for message in messages)


def message_tokens(message: dict[str, Any]) -> int:
    return TOKENS_PER_MESSAGE + sum(tokens_in(text) for text in _texts(message))


def tokens_in(text: str) -> int:
    """One token for every four bytes begun, and at least one: coarse, and independent of the product's estimate."""
    return max(1, -(-len(text.encode("utf-8", "replace")) // 4))


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for inner in cast("dict[str, Any]", value).values() for text in _texts(inner)]
        case list():
            return [text for inner in cast("list[Any]", value) for text in _texts(inner)]
        case _:
            return []


def _message(raw: dict[str, Any], where: str) -> Message:
    role = raw.get("role")
    if role not in ROLES:
        raise BadRequest(f"{where}.role: {role!r} is not one of {', '.join(ROLES)}")
    content = _text(raw, "content", where)
    if role == "tool":
        return Message(role, content, answers=_text(raw, "tool_call_id", where))
    if "tool_calls" not in raw:
        return Message(role, content)
    if role != "assistant":
        raise BadRequest(f"{where}.tool_calls: only the assistant calls tools")
    calls = _objects(raw["tool_calls"], f"{where}.tool_calls")
    if not calls:
        raise BadRequest(f"{where}.tool_calls is empty; leave it out")
    return Message(role, content, calls=tuple(_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)))


def _call(raw: dict[str, Any], where: str) -> Call:
    if raw.get("type") != "function":
        raise BadRequest(f"{where}.type must be 'function'")
    function = _object(raw.get("function"), f"{where}.function")
    text = _text(function, "arguments", f"{where}.function")
    try:
        arguments: object = json.loads(text)
    except ValueError:
        raise BadRequest(f"{where}.function.arguments is not JSON") from None
    return Call(
        id=_named(_text(raw, "id", where), f"{where}.id"),
        name=_named(_text(function, "name", f"{where}.function"), f"{where}.function.name"),
        arguments=_object(arguments, f"{where}.function.arguments"),
    )


def _tool(raw: dict[str, Any], where: str) -> str:
    if raw.get("type") != "function":
        raise BadRequest(f"{where}.type must be 'function'")
    function = _object(raw.get("function"), f"{where}.function")
    _object(function.get("parameters"), f"{where}.function.parameters")
    return _named(_text(function, "name", f"{where}.function"), f"{where}.function.name")


def _exactly_one_system_message_first(messages: Sequence[Message]) -> None:
    """Templates of the Qwen family raise on a later one, and none is rendered as a foreign default by others."""
    if [n for n, message in enumerate(messages) if message.role == "system"] != [0]:
        raise BadRequest("messages: exactly one system message, and it comes first")


def _every_call_has_exactly_one_result(messages: Sequence[Message]) -> None:
    open_calls: set[str] = set()
    for n, message in enumerate(messages):
        if message.role == "tool":
            if message.answers not in open_calls:
                raise BadRequest(f"messages[{n}]: tool result {message.answers!r} answers no open tool call")
            open_calls.remove(message.answers)
        elif open_calls:
            raise BadRequest(f"messages[{n}]: tool calls without a result before it: {', '.join(sorted(open_calls))}")
        else:
            open_calls = {call.id for call in message.calls}
    if open_calls:
        raise BadRequest(f"messages: tool calls without a result at the end: {', '.join(sorted(open_calls))}")


def _unique(names: Sequence[str], what: str) -> None:
    for n, name in enumerate(names):
        if name in names[:n]:
            raise BadRequest(f"{what} must be unique: {name!r} occurs twice")


def _named(name: str, where: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        raise BadRequest(f"{where}: {name!r} is not 1 to 64 letters, digits, _ or -")
    return name


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name} must be a string, not {json.dumps(value)[:40]}")
    return value


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be a JSON object, not {json.dumps(value)[:40]}")
    return cast("dict[str, Any]", value)


def _objects(value: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a list, not {json.dumps(value)[:40]}")
    return [_object(item, f"{where}[{n}]") for n, item in enumerate(cast("list[object]", value))]
