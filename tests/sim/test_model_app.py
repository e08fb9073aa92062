"""The model's HTTP face: what it answers, what it remembers, and how it misbehaves when told to."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.gate import Gate
from fleet_agent.sim.model_app import create_app
from fleet_agent.sim.model_faults import FAULTS, ModelFaults

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
BODY: dict[str, Any] = {
    "model": "any",
    "messages": [{"role": "system", "content": "You operate a fleet."}, {"role": "user", "content": "Hello?"}],
    "tools": [{"type": "function", "function": {"name": "list_boxes", "parameters": {"type": "object"}}}],
}

OF_A_RUN = [*BODY["messages"], {"role": "user", "content": "[observation]\nboxes: live=0\n[/observation]"}]


def client(**options: Any) -> httpx.AsyncClient:
    app = create_app(clock=ManualClock(NOON), **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://model")


@pytest.fixture
async def model() -> AsyncGenerator[httpx.AsyncClient]:
    async with client() as opened:
        yield opened


async def ask(model: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await model.post("/v1/chat/completions", json=BODY | changes)


async def ask_with_fault(model: httpx.AsyncClient, name: str, **arming: Any) -> httpx.Response:
    armed = await model.post("/sim/faults", json={"name": name, **arming})
    assert armed.status_code == 200
    return await ask(model)


def the_call(response: httpx.Response) -> dict[str, Any]:
    return response.json()["choices"][0]["message"]["tool_calls"][0]


async def test_a_good_request_gets_a_completion_with_a_tool_call(model: httpx.AsyncClient):
    reply = (await ask(model)).json()
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "list_boxes", "arguments": "{}"}
    assert reply["created"] == NOON.timestamp()


async def test_a_bad_request_gets_400_with_the_reason_in_openais_envelope(model: httpx.AsyncClient):
    refused = await ask(model, messages=[{"role": "user", "content": "Hello?"}])
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "messages: exactly one system message, and it comes first"


async def test_a_body_that_is_not_json_gets_400(model: httpx.AsyncClient):
    assert (await model.post("/v1/chat/completions", content=b"{")).status_code == 400


async def test_the_same_request_gets_the_same_reply(model: httpx.AsyncClient):
    assert the_call(await ask(model)) == the_call(await ask(model))


async def test_a_longer_conversation_gets_new_call_ids(model: httpx.AsyncClient):
    longer = [*BODY["messages"], {"role": "user", "content": "Still there?"}]
    assert the_call(await ask(model))["id"] != the_call(await ask(model, messages=longer))["id"]


async def test_usage_adds_up_and_grows_with_the_request(model: httpx.AsyncClient):
    short = (await ask(model)).json()["usage"]
    longer = [*BODY["messages"], {"role": "user", "content": "x" * 400}]
    long = (await ask(model, messages=longer)).json()["usage"]
    assert short["total_tokens"] == short["prompt_tokens"] + short["completion_tokens"]
    assert long["prompt_tokens"] >= short["prompt_tokens"] + 100


async def test_the_prefix_shared_with_the_last_request_is_reported_as_cached(model: httpx.AsyncClient):
    def cached(response: httpx.Response) -> int:
        return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    other_system = [{"role": "system", "content": "You run a bakery."}, *BODY["messages"][1:]]
    assert cached(await ask(model)) == 0
    assert cached(await ask(model, messages=[*BODY["messages"], {"role": "user", "content": "And now?"}])) > 0
    assert cached(await ask(model, messages=other_system)) == 0


async def test_the_model_list_names_one_model(model: httpx.AsyncClient):
    listed = (await model.get("/v1/models")).json()["data"]
    assert [each["id"] for each in listed] == ["simulated-operator"]


async def test_with_an_api_key_no_other_key_is_accepted():
    async with client(api_key="right") as model:
        model.headers["Authorization"] = "Bearer wrong"
        assert (await ask(model)).status_code == 401
        assert (await model.get("/v1/models")).status_code == 401
        model.headers["Authorization"] = "Bearer right"
        assert (await ask(model)).status_code == 200


async def test_requests_are_kept_with_what_became_of_them(model: httpx.AsyncClient):
    await ask(model)
    await ask(model, messages=[])
    await ask_with_fault(model, "http_500")
    kept = (await model.get("/sim/requests")).json()
    assert kept[0] == {"body": BODY, "refused": None, "fault": None}
    assert kept[1]["refused"] == "messages: exactly one system message, and it comes first"
    assert kept[2]["fault"] == "http_500"


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="no policy is named 'clever'"):
        create_app(clock=ManualClock(NOON), policy="clever")


async def test_an_unknown_fault_is_refused_by_name(model: httpx.AsyncClient):
    refused = await model.post("/sim/faults", json={"name": "gremlins"})
    assert refused.status_code == 400
    assert "no fault is named 'gremlins'" in refused.json()["error"]["message"]


async def test_a_fault_strikes_as_often_as_it_was_armed_and_then_no_more(model: httpx.AsyncClient):
    await model.post("/sim/faults", json={"name": "http_500", "times": 2})
    assert [(await ask(model)).status_code for _ in range(3)] == [500, 500, 200]


async def test_faults_strike_in_the_order_of_arming():
    faults = ModelFaults()
    faults.arm("http_500")
    faults.arm("unauthorized")
    async with client(faults=faults) as model:
        assert [(await ask(model)).status_code for _ in range(3)] == [500, 401, 200]


async def test_a_refused_request_uses_up_no_fault(model: httpx.AsyncClient):
    await model.post("/sim/faults", json={"name": "http_500"})
    assert (await ask(model, messages=[])).status_code == 400
    assert (await ask(model)).status_code == 500


async def test_a_disarmed_fault_strikes_no_more(model: httpx.AsyncClient):
    await model.post("/sim/faults", json={"name": "http_500", "times": 1000})
    assert (await ask(model)).status_code == 500
    await model.delete("/sim/faults/http_500")
    assert (await ask(model)).status_code == 200


async def test_a_fault_of_runs_leaves_a_test_of_the_connection_alone(model: httpx.AsyncClient):
    await model.post("/sim/faults", json={"name": "http_500", "of_runs": True})
    assert (await ask(model)).status_code == 200
    assert (await ask(model, messages=OF_A_RUN)).status_code == 500
    assert (await ask(model, messages=OF_A_RUN)).status_code == 200


# --- the gate ---------------------------------------------------------------------------------------------------------


async def waiting(model: httpx.AsyncClient, number: int) -> None:
    """Until so many replies wait before the gate."""
    while (await model.get("/sim/gate")).json() != {"waiting": number}:  # noqa: ASYNC110 as a client sees it
        await asyncio.sleep(0)


async def test_a_closed_gate_holds_replies_until_they_may_pass(model: httpx.AsyncClient):
    await model.put("/sim/gate", json={"pass": 0})
    asking = [asyncio.create_task(ask(model, messages=OF_A_RUN)) for _ in range(3)]
    await waiting(model, 3)
    await model.put("/sim/gate", json={"pass": 1})
    await waiting(model, 2)
    assert sum(each.done() for each in asking) <= 1
    await model.put("/sim/gate", json={"pass": None})
    assert [(await each).status_code for each in asking] == [200, 200, 200]
    await waiting(model, 0)


async def test_a_test_of_the_connection_passes_a_closed_gate(model: httpx.AsyncClient):
    await model.put("/sim/gate", json={"pass": 0})
    assert (await ask(model)).status_code == 200


@pytest.mark.parametrize("body", [{"pass": -1}, {"pass": "all"}, {}])
async def test_a_gate_that_is_told_nonsense_stays_as_it_was(model: httpx.AsyncClient, body: dict[str, Any]):
    assert (await model.put("/sim/gate", json=body)).status_code == 400
    assert (await ask(model)).status_code == 200


async def test_who_was_held_and_hung_up_uses_up_no_pass():
    gate = Gate()
    await gate.let(0)
    killed, alive = asyncio.create_task(gate.go_through()), asyncio.create_task(gate.go_through())
    while gate.waiting < 2:  # noqa: ASYNC110 it has no event for this
        await asyncio.sleep(0)
    killed.cancel()
    await gate.let(1)
    await alive
    assert gate.waiting == 0


# --- the faults, one by one: what a client sees of each ---------------------------------------------------------------

PARTS = ("prompt_tokens", "completion_tokens")
SEEN: dict[str, Callable[[httpx.Response], bool]] = {
    "http_500": lambda r: r.status_code == 500,
    "http_429": lambda r: r.status_code == 429 and r.headers["retry-after"] == "7",
    "insufficient_quota": lambda r: r.status_code == 429 and r.json()["error"]["code"] == "insufficient_quota",
    "unauthorized": lambda r: r.status_code == 401,
    "model_not_found": lambda r: r.status_code == 404,
    "context_length_400": lambda r: r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded",
    "error_in_200": lambda r: r.status_code == 200 and r.json()["choices"] is None and "error" in r.json(),
    "html_200": lambda r: r.status_code == 200 and r.text.startswith("<!doctype html>"),
    "sse_200": lambda r: r.status_code == 200 and r.text.startswith("data: {"),
    "truncated_json": lambda r: r.status_code == 200 and not is_json(r.text) and r.text.startswith('{"id"'),
    "empty_choices": lambda r: r.json()["choices"] == [],
    "finish_reason_stop": lambda r: r.json()["choices"][0]["finish_reason"] == "stop" and bool(the_call(r)),
    "call_in_text": lambda r: "<tool_call>" in message(r)["content"] and "tool_calls" not in message(r),
    "reasoning_only": lambda r: message(r)["content"] == "" and "reasoning_content" in message(r),
    "list_content": lambda r: isinstance(message(r)["content"], list),
    "bad_arguments": lambda r: not is_json(the_call(r)["function"]["arguments"]),
    "empty_arguments": lambda r: the_call(r)["function"]["arguments"] == "",
    "list_arguments": lambda r: isinstance(json.loads(the_call(r)["function"]["arguments"]), list),
    "dict_arguments": lambda r: the_call(r)["function"]["arguments"] == {},
    "missing_ids": lambda r: the_call(r)["id"] is None and "type" not in the_call(r),
    "duplicate_ids": lambda r: the_call(r)["id"] == "call_0",
    "unknown_tool": lambda r: the_call(r)["function"]["name"] == "run_shell_command",
    "many_calls": lambda r: len(message(r)["tool_calls"]) == 20,
    "null_usage": lambda r: r.json()["usage"] is None,
    "cut_prompt": lambda r: 2 * sum(r.json()["usage"][part] for part in PARTS) < r.json()["usage"]["total_tokens"],
    "dropped_tools": lambda r: "tool_calls" not in message(r) and message(r)["content"] != "",
    "partial_usage": lambda r: r.json()["usage"]["prompt_tokens"] is None,
}


def message(response: httpx.Response) -> dict[str, Any]:
    return response.json()["choices"][0]["message"]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def holds(check: Callable[[httpx.Response], bool], response: httpx.Response) -> bool:
    """A check that cannot even read a response does not hold for it."""
    try:
        return check(response)
    except (KeyError, TypeError, ValueError, IndexError):
        return False


def test_every_fault_is_shown_here():
    assert SEEN.keys() | {"slow"} == FAULTS.keys()


@pytest.mark.parametrize("name", SEEN)
async def test_a_fault_shows_its_symptom_and_a_good_reply_does_not(model: httpx.AsyncClient, name: str):
    spoiled, good = await ask_with_fault(model, name, seconds=7), await ask(model)
    assert holds(SEEN[name], spoiled)
    assert not holds(SEEN[name], good)


async def test_a_slow_reply_is_a_good_reply_after_a_wait():
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async with client(sleep=sleep) as model:
        slow, good = await ask_with_fault(model, "slow", seconds=30), await ask(model)
    assert message(slow) == message(good)
    assert waited == [30]
