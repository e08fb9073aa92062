"""The client of the model: what it asks, what it makes of every answer, how long and how often it tries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from fleet_agent.clients.model import ATTEMPTS, DEADLINE, MOST_CALLS, ChatModel, ChatOptions, open_client
from fleet_agent.domain.run import ModelReply
from fleet_agent.domain.tokens import HARD_TOKENS, by_bytes, request_tokens
from fleet_agent.errors import (
    ContextTooLong,
    FixSetup,
    FleetAgentError,
    KeyRefused,
    ModelUnreachable,
    ModelUnusable,
    RequestRefused,
    Spent,
)
from fleet_agent.sim.model_app import create_app
from fleet_agent.sim.model_faults import FAULTS, ModelFaults
from tests.clients.world import PassingTime

KEY = "made-up-model-key-0123456789"
URL = "http://model.test:8000/v1"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You operate a fleet."},
    {"role": "user", "content": "Hello?"},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "list_boxes", "parameters": {"type": "object"}}}
]


def model_over(
    transport: httpx2.AsyncBaseTransport,
    time: PassingTime,
    *,
    options: ChatOptions | None = None,
    key: str = KEY,
) -> ChatModel:
    client = open_client(URL, key, transport=transport)
    options = options or ChatOptions(model="wise-one")
    return ChatModel(client, options, count_tokens=by_bytes, elapsed=time.elapsed, sleep=time.sleep)


class SimulatedModel:
    """The simulated server and our client in front of it."""

    def __init__(self, *, key: str = KEY, options: ChatOptions | None = None) -> None:
        self.time = PassingTime()
        self.faults = ModelFaults()
        app = create_app(clock=self.time, faults=self.faults, api_key=KEY, sleep=self.time.sleep)
        self.model = model_over(httpx2.ASGITransport(app), self.time, options=options, key=key)

    async def reply(self) -> ModelReply:
        return await self.model.reply(self.model.body(MESSAGES, TOOLS), within=DEADLINE)


class Scripted:
    """A server that gives each answer once, in order, and the last one for ever."""

    def __init__(self, *answers: httpx2.Response | Exception, options: ChatOptions | None = None) -> None:
        self.asked = 0
        self.time = PassingTime()
        self._answers = list(answers)
        self.model = model_over(httpx2.MockTransport(self._answer), self.time, options=options)

    def _answer(self, _: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        given = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(given, Exception):
            raise given
        return httpx2.Response(given.status_code, headers=given.headers, content=given.content)

    async def reply(self, within: timedelta = DEADLINE) -> ModelReply:
        return await self.model.reply(self.model.body(MESSAGES, TOOLS), within=within)


def refused(status: int, message: str = "no", code: str | None = None, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json={"error": {"message": message, "code": code}}, headers=headers)


GOOD = httpx2.Response(
    200,
    json={
        "choices": [{"message": {"role": "assistant", "content": "Well."}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 5},
    },
)
USAGE = {"usage": {"prompt_tokens": 100, "completion_tokens": 0}}
NOTHING = httpx2.Response(200, json={"choices": [], **USAGE})


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_the_body_names_the_model_the_messages_the_tools_and_the_longest_reply_and_nothing_else():
    model = SimulatedModel().model

    assert model.body(MESSAGES, TOOLS) == {
        "model": "wise-one",
        "messages": MESSAGES,
        "tools": TOOLS,
        "max_tokens": 2000,
    }


def test_servers_that_want_another_name_for_the_longest_reply_get_it():
    options = ChatOptions(model="wise-one", max_output_tokens=500, max_output_tokens_name="max_completion_tokens")

    body = SimulatedModel(options=options).model.body(MESSAGES, [])

    assert body == {"model": "wise-one", "messages": MESSAGES, "max_completion_tokens": 500}


async def test_what_is_sent_is_the_body_to_the_byte():
    sent: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content)
        return httpx2.Response(200, content=GOOD.content)

    model = model_over(httpx2.MockTransport(answer), PassingTime())
    body = model.body(MESSAGES, TOOLS)
    await model.reply(body, within=DEADLINE)

    assert httpx2.Response(200, content=sent[0]).json() == body


# --- a good reply -----------------------------------------------------------------------------------------------------


async def test_a_reply_carries_its_calls_its_tokens_and_their_price():
    options = ChatOptions(
        model="wise-one", usd_per_million_tokens_in=Decimal("2.50"), usd_per_million_tokens_out=Decimal(10)
    )

    reply = await SimulatedModel(options=options).reply()

    [call] = reply.calls
    assert (call.name, call.arguments, call.malformed) == ("list_boxes", "{}", False)
    usage = reply.usage
    assert usage.tokens_in > 0
    assert usage.cost_usd == (usage.tokens_in * Decimal("2.50") + usage.tokens_out * 10) / 1_000_000


async def test_the_reply_to_the_same_request_has_the_same_call_ids_and_to_another_request_others():
    first, again = await SimulatedModel().reply(), await SimulatedModel().reply()
    model = SimulatedModel().model
    later = await model.reply(model.body([*MESSAGES, {"role": "user", "content": "And now?"}], TOOLS), within=DEADLINE)

    assert first.calls[0].id == again.calls[0].id != later.calls[0].id


# --- every fault that the simulated server knows ----------------------------------------------------------------------

CURED_BY_ANOTHER_TRY = {
    "http_500",
    "http_429",
    "error_in_200",
    "html_200",
    "sse_200",
    "truncated_json",
    "empty_choices",
}
LASTING = {
    "insufficient_quota": FixSetup,
    "unauthorized": KeyRefused,
    "model_not_found": FixSetup,
    "context_length_400": ContextTooLong,
}


def is_charged_by_our_count(reply: ModelReply) -> bool:
    """A server that says nothing must not be free: a budget would never end."""
    return reply.reported == 0 and reply.usage.tokens_in == reply.estimate > 0 and reply.usage.tokens_out > 0


USABLE_AS_IT_IS: Mapping[str, Callable[[ModelReply], bool]] = {
    "slow": lambda reply: len(reply.calls) == 1,
    "finish_reason_stop": lambda reply: len(reply.calls) == 1,
    "call_in_text": lambda reply: not reply.calls and "<tool_call>" in reply.text,
    "reasoning_only": lambda reply: not reply.calls and reply.text == "",
    "list_content": lambda reply: reply.text == "Let me see.",
    "bad_arguments": lambda reply: reply.calls[0].malformed and reply.calls[0].arguments == "{}",
    "empty_arguments": lambda reply: not reply.calls[0].malformed and reply.calls[0].arguments == "{}",
    "list_arguments": lambda reply: reply.calls[0].malformed and reply.calls[0].arguments == "{}",
    "dict_arguments": lambda reply: not reply.calls[0].malformed and reply.calls[0].arguments == "{}",
    "missing_ids": lambda reply: len(reply.calls[0].id) == 9 and reply.calls[0].provider_id == "",
    "duplicate_ids": lambda reply: len(reply.calls[0].id) == 9 and reply.calls[0].provider_id == "call_0",
    "unknown_tool": lambda reply: reply.calls[0].name == "run_shell_command",
    "many_calls": lambda reply: len(reply.calls) == MOST_CALLS,
    "null_usage": lambda reply: is_charged_by_our_count(reply),
    "cut_prompt": lambda reply: 0 < reply.reported < reply.estimate / 4,
    "dropped_tools": lambda reply: not reply.calls and reply.text != "",
    "partial_usage": lambda reply: is_charged_by_our_count(reply),
}


def test_every_fault_of_the_simulated_server_has_its_expectation_here():
    assert CURED_BY_ANOTHER_TRY | set(LASTING) | set(USABLE_AS_IT_IS) == set(FAULTS)


@pytest.mark.parametrize("fault", sorted(CURED_BY_ANOTHER_TRY))
async def test_a_passing_fault_is_cured_by_another_try(fault: str):
    world = SimulatedModel()
    world.faults.arm(fault)

    assert (await world.reply()).calls[0].name == "list_boxes"


@pytest.mark.parametrize("fault", sorted(LASTING))
async def test_a_lasting_fault_is_told_at_once(fault: str):
    world = SimulatedModel()
    world.faults.arm(fault)

    with pytest.raises(FleetAgentError) as error:
        await world.reply()

    assert type(error.value) is LASTING[fault]
    assert world.time.slept == []


@pytest.mark.parametrize("fault", sorted(USABLE_AS_IT_IS))
async def test_a_spoiled_reply_is_used_as_far_as_it_goes(fault: str):
    world = SimulatedModel()
    world.faults.arm(fault)

    assert USABLE_AS_IT_IS[fault](await world.reply())


# --- how often and how long -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_status_that_passes_is_tried_four_times_and_then_means_unreachable(status: int):
    server = Scripted(refused(status))

    with pytest.raises(ModelUnreachable, match=f"answered {status}"):
        await server.reply()

    assert server.asked == 4


@pytest.mark.parametrize("status", [302, 400, 401, 402, 403, 404, 413, 422])
async def test_a_status_that_lasts_is_tried_once(status: int):
    server = Scripted(refused(status))

    with pytest.raises((FixSetup, ContextTooLong, RequestRefused)):
        await server.reply()

    assert server.asked == 1


async def test_the_wait_that_the_server_asks_for_is_kept():
    server = Scripted(refused(429, **{"retry-after": "17"}), GOOD)

    await server.reply()

    assert server.time.slept == [17]


async def test_a_wait_beyond_the_deadline_is_not_begun():
    server = Scripted(refused(429, **{"retry-after": "121"}), GOOD)

    with pytest.raises(ModelUnreachable, match="429"):
        await server.reply()

    assert (server.asked, server.time.slept) == (1, [])


@pytest.mark.parametrize(("within", "slept"), [(60, [50]), (110, [50, 50]), (1000, [50, 50])])
async def test_waits_add_up_to_no_more_than_the_caller_has_nor_than_the_deadline(within: int, slept: list[float]):
    server = Scripted(refused(503, **{"retry-after": "50"}))

    with pytest.raises(ModelUnreachable):
        await server.reply(timedelta(seconds=within))

    assert server.time.slept == slept


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-3)])
async def test_a_caller_without_time_is_told_so_and_the_server_is_not_asked(within: timedelta):
    server = Scripted(GOOD)

    with pytest.raises(ModelUnreachable, match="no time was left"):
        await server.reply(within)

    assert server.asked == 0


async def test_a_server_that_never_answers_is_given_up_at_the_deadline():
    async def silence(_: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    model = model_over(httpx2.MockTransport(silence), PassingTime())

    with pytest.raises(ModelUnreachable, match="did not answer in time"):
        await model.reply(model.body(MESSAGES, TOOLS), within=timedelta(milliseconds=1))


async def test_a_server_that_is_not_there_is_named_with_the_remedy():
    server = Scripted(httpx2.ConnectError("connection refused"))

    with pytest.raises(ModelUnreachable) as error:
        await server.reply()

    assert "http://model.test:8000/v1 cannot be reached (connection refused)" in error.value.cause
    assert "FLEET_MODEL_URL" in error.value.remedy


async def test_an_unknown_model_is_named_with_the_address_where_it_was_asked_for():
    with pytest.raises(FixSetup) as error:
        await Scripted(refused(404, "no such model")).reply()

    assert "'wise-one' at http://model.test:8000/v1" in error.value.cause
    assert "FLEET_MODEL_NAME" in error.value.remedy


@pytest.mark.parametrize(
    "answer",
    [
        refused(400, "This model's maximum context length is 8192 tokens", "context_length_exceeded"),
        refused(400, "the request exceeds the available context size"),
        refused(500, "prompt is too long for the context window"),
        refused(413),
        httpx2.Response(400, json={"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}}),
        httpx2.Response(400, json={"detail": "Requested token count exceeds the model's maximum context length"}),
    ],
    ids=lambda answer: answer.text[:60],
)
async def test_a_prompt_that_does_not_fit_is_told_from_other_refusals(answer: httpx2.Response):
    with pytest.raises(ContextTooLong):
        await Scripted(answer).reply()


async def test_too_many_tokens_a_minute_is_no_matter_of_length():
    server = Scripted(refused(429, "too many tokens per minute for this context window"), GOOD)

    assert (await server.reply()).text == "Well."


async def test_an_error_inside_a_success_means_what_its_code_means():
    inside = httpx2.Response(200, json={"choices": None, "error": {"message": "bad key", "code": 401}})

    with pytest.raises(KeyRefused):
        await Scripted(inside).reply()


# --- what is too long -------------------------------------------------------------------------------------------------


def long_body(tokens: int) -> dict[str, Any]:
    """A body whose prompt has so many tokens by our count, which here is that of bytes."""
    message = {"role": "user", "content": ""}
    around = request_tokens([MESSAGES[0], message], [], by_bytes)
    message["content"] = "x" * (tokens - around)
    return {"model": "wise-one", "messages": [MESSAGES[0], message], "max_tokens": 2000}


@pytest.mark.parametrize(
    ("tokens", "factor", "leaves"),
    [(HARD_TOKENS, 1.0, True), (HARD_TOKENS + 1, 1.0, False), (20_000, 1.5, True), (20_001, 1.5, False)],
)
async def test_no_request_beyond_the_hard_bound_leaves(tokens: int, factor: float, leaves: bool):
    server = Scripted(GOOD)

    if leaves:
        assert (await server.model.reply(long_body(tokens), within=DEADLINE, factor=factor)).estimate == tokens
    else:
        with pytest.raises(ContextTooLong, match="was not sent") as error:
            await server.model.reply(long_body(tokens), within=DEADLINE, factor=factor)
        assert error.value.said == ""

    assert server.asked == (1 if leaves else 0)


@pytest.mark.parametrize(("tokens", "leaves"), [(10_000, True), (10_001, False)])
async def test_no_prompt_leaves_that_has_no_room_for_its_reply_in_the_window(tokens: int, leaves: bool):
    server = Scripted(GOOD, options=ChatOptions(model="small", window_tokens=12_000, max_output_tokens=2_000))
    if leaves:
        await server.model.reply(long_body(tokens), within=DEADLINE)
    else:
        with pytest.raises(ContextTooLong, match="may have 10000 beside a reply of 2000; it was not sent"):
            await server.model.reply(long_body(tokens), within=DEADLINE)
    assert server.asked == leaves


async def test_the_request_is_counted_again_before_every_try():
    """A body is a plain object, and whoever holds it may add to it while a try is waited for."""
    body = long_body(20_000)
    server = Scripted(refused(503), GOOD)

    async def growing(seconds: float) -> None:
        body["messages"].append({"role": "user", "content": "x" * 20_000})
        await server.time.sleep(seconds)

    model = ChatModel(
        open_client(URL, KEY, transport=httpx2.MockTransport(server._answer)),
        ChatOptions(model="wise-one"),
        count_tokens=by_bytes,
        elapsed=server.time.elapsed,
        sleep=growing,
    )
    with pytest.raises(ContextTooLong, match="was not sent"):
        await model.reply(body, within=DEADLINE)

    assert server.asked == 1


async def test_what_the_server_said_of_a_prompt_that_is_too_long_is_carried_on():
    with pytest.raises(ContextTooLong) as error:
        await Scripted(refused(400, "This model's maximum context length is 8192 tokens")).reply()

    assert error.value.said == "This model's maximum context length is 8192 tokens"


async def test_a_reply_says_who_answered_and_both_counts_of_its_prompt_alone():
    reply = await Scripted(NOTHING, GOOD).reply()

    assert reply.model == f"wise-one at {URL}"
    assert reply.estimate == request_tokens(MESSAGES, TOOLS, by_bytes)
    assert (reply.reported, reply.usage.tokens_in) == (100, 200)


# --- what is paid for -------------------------------------------------------------------------------------------------


async def test_replies_that_could_not_be_used_are_paid_for_too():
    reply = await Scripted(NOTHING, NOTHING, GOOD).reply()

    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (300, 5)


PRICED = ChatOptions(model="wise-one", usd_per_million_tokens_in=Decimal("2.50"))


@pytest.mark.parametrize(
    ("answers", "raised", "paid_for"),
    [
        ([NOTHING], ModelUnusable, 4),
        ([NOTHING, NOTHING, httpx2.ConnectError("gone")], ModelUnreachable, 2),
        ([NOTHING, refused(400)], RequestRefused, 1),
        ([NOTHING, refused(401)], KeyRefused, 1),
        ([NOTHING, refused(413)], ContextTooLong, 1),
        ([httpx2.Response(200, json={"error": {"message": "no", "code": 400}, **USAGE})], RequestRefused, 1),
    ],
    ids=str,
)
async def test_a_failure_tells_what_the_replies_before_it_had_cost(
    answers: list[httpx2.Response | Exception], raised: type[FleetAgentError], paid_for: int
):
    with pytest.raises(raised) as error:
        await Scripted(*answers, options=PRICED).reply()

    assert type(error.value) is raised
    assert error.value.spent == Spent(100 * paid_for, 0, Decimal("0.00025") * paid_for)


@pytest.mark.parametrize("trouble", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow")], ids=repr)
async def test_a_request_that_never_left_says_so(trouble: Exception):
    with pytest.raises(ModelUnreachable) as error:
        await Scripted(trouble).reply()

    assert error.value.spent is None


@pytest.mark.parametrize(
    "trouble",
    [
        httpx2.ReadTimeout("slow"),
        httpx2.RemoteProtocolError("server disconnected"),
        refused(503),
        refused(401),
        refused(400),
    ],
    ids=repr,
)
async def test_a_request_that_left_counts_as_one_though_nobody_says_what_it_cost(trouble: httpx2.Response | Exception):
    """Tokens are not guessed: a server that hangs would use up the day's."""
    with pytest.raises(FleetAgentError) as error:
        await Scripted(trouble).reply()

    assert error.value.spent == Spent(0, 0, Decimal(0))


async def test_an_earlier_try_that_left_counts_where_the_last_did_not():
    with pytest.raises(ModelUnreachable) as error:
        await Scripted(httpx2.ReadTimeout("slow"), httpx2.ConnectError("refused")).reply()

    assert error.value.spent == Spent(0, 0, Decimal(0))


async def test_a_success_without_a_reply_or_a_figure_costs_the_prompt_as_we_count_it():
    scripted = Scripted(httpx2.Response(200, json={"choices": []}), options=PRICED)
    with pytest.raises(ModelUnusable) as error:
        await scripted.reply()

    prompt = scripted.model.estimate(scripted.model.body(MESSAGES, TOOLS))
    assert error.value.spent is not None
    assert error.value.spent.tokens_in == ATTEMPTS * prompt > 0


# --- cheap to import --------------------------------------------------------------------------------------------------


def imports_openai(statement: str) -> bool:
    program = f"{statement}; import sys; print('openai' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return shown.stdout.strip() == "True"


def test_the_sdk_is_not_loaded_by_importing_the_client():
    assert not imports_openai("import fleet_agent.clients.model")


def test_control_opening_a_client_loads_it():
    assert imports_openai(
        "from fleet_agent.clients.model import open_client; open_client('http://127.0.0.1:9/v1', None)"
    )
