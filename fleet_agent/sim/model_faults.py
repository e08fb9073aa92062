"""The ways in which servers spoil a good completion, each seen on a real one that calls itself OpenAI-compatible.

A fault is a function from the completion that should have been sent to the response that is sent instead. `seconds`
is the length of what has one (Retry-After, the wait of a slow answer).
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

Completion = dict[str, Any]
Fault = Callable[[Completion, float], Response]

CALLS_AT_ONCE = 20


@dataclass(slots=True)
class Armed:
    name: str
    times: int
    seconds: float
    of_runs: bool


class ModelFaults:
    """What is armed. The fault that was armed first strikes first, one fault a request."""

    def __init__(self) -> None:
        self._armed: list[Armed] = []

    def arm(self, name: str, *, times: int = 1, seconds: float = 1.0, of_runs: bool = False) -> None:
        """`of_runs`: only requests of a run meet it, and no test of the connection.

        Raises ValueError for a name that is not in FAULTS, and for `times` below 1."""
        if name not in FAULTS:
            raise ValueError(f"no fault is named {name!r}; the faults are {', '.join(FAULTS)}")
        if times < 1:
            raise ValueError("times must be at least 1")
        self._armed.append(Armed(name, times, seconds, of_runs))

    def disarm(self, name: str) -> None:
        self._armed = [armed for armed in self._armed if armed.name != name]

    def take(self, *, of_a_run: bool = False) -> Armed | None:
        """The fault that strikes this request, if one is armed; one occurrence of it is used up."""
        armed = next((each for each in self._armed if of_a_run or not each.of_runs), None)
        if armed is not None:
            armed.times -= 1
            if armed.times == 0:
                self._armed.remove(armed)
        return armed


def error(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's envelope."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return JSONResponse(body, status_code=status, headers=headers)


# --- instead of a completion ------------------------------------------------------------------------------------------


def http_500(_: Completion, __: float) -> Response:
    """An internal error."""
    return error(500, "The server had an error while processing your request", "server_error")


def http_429(_: Completion, seconds: float) -> Response:
    """Too many requests, with the wait that is asked for."""
    return error(429, "Rate limit reached", "rate_limit_exceeded", {"Retry-After": f"{seconds:g}"})


def insufficient_quota(_: Completion, __: float) -> Response:
    """A 429 that no wait cures."""
    return error(429, "You exceeded your current quota, please check your plan", "insufficient_quota")


def unauthorized(_: Completion, __: float) -> Response:
    """The key is refused."""
    return error(401, "Incorrect API key provided", "invalid_api_key")


def model_not_found(_: Completion, __: float) -> Response:
    """The server has no such model."""
    return error(404, "The model does not exist", "model_not_found")


def context_length_400(_: Completion, __: float) -> Response:
    """The server's window is smaller than the client believes."""
    return error(400, "This model's maximum context length is 8192 tokens", "context_length_exceeded")


def error_in_200(_: Completion, __: float) -> Response:
    """A gateway reports the failure of the server behind it as a success."""
    return JSONResponse({"choices": None, "error": {"message": "Provider returned error", "code": 502}})


def html_200(_: Completion, __: float) -> Response:
    """A proxy's own page."""
    return HTMLResponse("<!doctype html><title>Sign in</title><p>Please sign in to continue.")


def sse_200(completion: Completion, _: float) -> Response:
    """A stream that nobody asked for."""
    return PlainTextResponse(f"data: {json.dumps(completion)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")


def truncated_json(completion: Completion, _: float) -> Response:
    """The answer breaks off, as from a server that was restarted."""
    return Response(json.dumps(completion)[:-40], media_type="application/json")


def empty_choices(completion: Completion, _: float) -> Response:
    """A completion of nothing."""
    return JSONResponse({**completion, "choices": []})


def slow(completion: Completion, _: float) -> Response:
    """A good answer, later: the face waits `seconds` of real time before it sends anything."""
    return JSONResponse(completion)


# --- a spoiled completion ---------------------------------------------------------------------------------------------


def finish_reason_stop(completion: Completion, _: float) -> Response:
    """There are tool calls, and the finish reason denies it."""
    return _with(completion, lambda choice: choice.update(finish_reason="stop"))


def call_in_text(completion: Completion, _: float) -> Response:
    """The server did not parse the model's tool call and left it in the text."""

    def spoil(choice: dict[str, Any]) -> None:
        functions = [call["function"] for call in choice["message"].pop("tool_calls", [])]
        text = "".join(f"<tool_call>\n{json.dumps(function)}\n</tool_call>\n" for function in functions)
        choice["message"]["content"] = text
        choice["finish_reason"] = "stop"

    return _with(completion, spoil)


def reasoning_only(completion: Completion, _: float) -> Response:
    """All tokens went into thinking: there is neither an answer nor a call."""

    def spoil(choice: dict[str, Any]) -> None:
        choice["message"] = {"role": "assistant", "content": "", "reasoning_content": "The operator wants me to…"}
        choice["finish_reason"] = "length"

    return _with(completion, spoil)


def list_content(completion: Completion, _: float) -> Response:
    """The text comes in parts, as requests may send it."""
    return _with(completion, lambda choice: choice["message"].update(content=[{"type": "text", "text": "Let me see."}]))


def bad_arguments(completion: Completion, _: float) -> Response:
    """Arguments that break off in the middle."""
    return _with_calls(completion, lambda call: call["function"].update(arguments='{"reason": "it is'))


def empty_arguments(completion: Completion, _: float) -> Response:
    """An empty text where an empty object is meant."""
    return _with_calls(completion, lambda call: call["function"].update(arguments=""))


def list_arguments(completion: Completion, _: float) -> Response:
    """JSON, but no object."""
    return _with_calls(completion, lambda call: call["function"].update(arguments="[1, 2]"))


def dict_arguments(completion: Completion, _: float) -> Response:
    """Arguments as an object instead of its text."""
    return _with_calls(
        completion, lambda call: call["function"].update(arguments=json.loads(call["function"]["arguments"]))
    )


def missing_ids(completion: Completion, _: float) -> Response:
    """Calls without id and type."""

    def spoil(call: dict[str, Any]) -> None:
        call["id"] = None
        del call["type"]

    return _with_calls(completion, spoil)


def duplicate_ids(completion: Completion, _: float) -> Response:
    """The same id for every call, in this reply and in the next."""
    return _with_calls(completion, lambda call: call.update(id="call_0"))


def unknown_tool(completion: Completion, _: float) -> Response:
    """The model calls what it was never offered."""
    return _with_calls(completion, lambda call: call["function"].update(name="run_shell_command"))


def many_calls(completion: Completion, _: float) -> Response:
    """The first call over and over, under ids of its own each time."""

    def spoil(choice: dict[str, Any]) -> None:
        calls = choice["message"].get("tool_calls", [])[:1] * CALLS_AT_ONCE
        choice["message"]["tool_calls"] = [{**call, "id": f"{call['id']}{n}"} for n, call in enumerate(calls)]

    return _with(completion, spoil)


def null_usage(completion: Completion, _: float) -> Response:
    """No word about tokens."""
    return JSONResponse({**completion, "usage": None})


def partial_usage(completion: Completion, _: float) -> Response:
    """Fields of the usage without a value."""
    usage = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": completion["usage"]["total_tokens"]}
    return JSONResponse({**completion, "usage": usage})


def cut_prompt(completion: Completion, _: float) -> Response:
    """The prompt is longer than the window: the server keeps its end, here a quarter, and counts what it kept."""
    usage = {**completion["usage"], "prompt_tokens": completion["usage"]["prompt_tokens"] // 4}
    return JSONResponse({**completion, "usage": usage})


def dropped_tools(completion: Completion, _: float) -> Response:
    """The model was never shown the tools, and says in words what it would do with some."""

    def spoil(choice: dict[str, Any]) -> None:
        choice["message"] = {"role": "assistant", "content": "I would look at the boxes, if only I could."}
        choice["finish_reason"] = "stop"

    return _with(completion, spoil)


def _with(completion: Completion, spoil: Callable[[dict[str, Any]], None]) -> Response:
    spoiled = deepcopy(completion)
    spoil(spoiled["choices"][0])
    return JSONResponse(spoiled)


def _with_calls(completion: Completion, spoil: Callable[[dict[str, Any]], None]) -> Response:
    def spoil_calls(choice: dict[str, Any]) -> None:
        for call in choice["message"].get("tool_calls", []):
            spoil(call)

    return _with(completion, spoil_calls)


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        http_500,
        http_429,
        insufficient_quota,
        unauthorized,
        model_not_found,
        context_length_400,
        error_in_200,
        html_200,
        sse_200,
        truncated_json,
        empty_choices,
        slow,
        finish_reason_stop,
        call_in_text,
        reasoning_only,
        list_content,
        bad_arguments,
        empty_arguments,
        list_arguments,
        dict_arguments,
        missing_ids,
        duplicate_ids,
        unknown_tool,
        many_calls,
        null_usage,
        partial_usage,
        cut_prompt,
        dropped_tools,
    )
}
