"""A list of models: who is asked, in what time, what is learnt, and what a person gets to hear when nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from fleet_agent.clients.counting import count_tokens
from fleet_agent.clients.model import DEADLINE, ChatModel, ChatOptions, open_client
from fleet_agent.clients.models import FAIR_TIME, ModelList, ModelMemory, see_a_tool_call
from fleet_agent.domain.model_server import NO_TOOL_CALL, PAUSE, Lesson, ModelName, ModelState, Recalled
from fleet_agent.domain.run import ModelReply
from fleet_agent.domain.tokens import HARD_TOKENS, CountTokens, by_bytes, request_tokens
from fleet_agent.errors import (
    ContextTooLong,
    DatabaseUnreachable,
    FixSetup,
    FleetAgentError,
    KeyRefused,
    ModelUnreachable,
    ModelUnusable,
    RequestRefused,
)
from fleet_agent.sim.model_app import create_app
from fleet_agent.sim.model_faults import FAULTS, ModelFaults
from tests.clients.world import PassingTime

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You operate a fleet."},
    {"role": "user", "content": "Hello?"},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "list_boxes", "parameters": {"type": "object"}}}
]
RUN = timedelta(seconds=240)

Answer = httpx2.Response | Exception | Callable[[], httpx2.Response]


class Memory:
    """What all processes would remember, in this one."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.states: dict[ModelName, ModelState] = {}
        self._now = now

    async def recall(self, names: Sequence[ModelName]) -> Recalled:
        return Recalled(self._now(), tuple(self.states.get(name, ModelState()) for name in names))

    async def learn(self, name: ModelName, lesson: Lesson) -> ModelState:
        self.states[name] = lesson(self.states.get(name, ModelState()), self._now())
        return self.states[name]


class Deaf:
    """A memory whose database is away, from the first call or from the first lesson."""

    def __init__(self, *, recalls: bool) -> None:
        self._recalls = recalls

    async def recall(self, names: Sequence[ModelName]) -> Recalled:
        if not self._recalls:
            raise DatabaseUnreachable("the database does not answer")
        return Recalled(PassingTime().now(), tuple(ModelState() for _ in names))

    async def learn(self, name: ModelName, lesson: Lesson) -> ModelState:
        raise DatabaseUnreachable("the database does not answer")


LONG = [*MESSAGES, {"role": "user", "content": "x" * 3_000}]


def by_thirds(text: str) -> int:
    """A count that a server's own may be twice, and still be one of tokens."""
    return by_bytes(text) // 3


class Servers:
    """Models on servers of their own, first, second …; each gives its answers once, and the last one for ever."""

    def __init__(
        self, *answers: Sequence[Answer], memory: ModelMemory | None = None, count_tokens: CountTokens = by_bytes
    ) -> None:
        self.time = PassingTime()
        self._count_tokens = count_tokens
        self.memory = Memory(self.time.now)
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self._waiting = {place: list(given) for place, given in zip(PLACES, answers, strict=False)}
        members = [self._member(place) for place in self._waiting]
        self.models = ModelList(members, memory or self.memory, elapsed=self.time.elapsed)

    def _member(self, place: str) -> ChatModel:
        def answer(request: httpx2.Request) -> httpx2.Response:
            self.asked.append(place)
            self.bodies.append(httpx2.Response(200, content=request.content).json())
            waiting = self._waiting[place]
            given = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            if isinstance(given, Exception):
                raise given
            if callable(given):
                return given()
            return httpx2.Response(given.status_code, headers=given.headers, content=given.content)

        client = open_client(f"http://{place}.test/v1", f"made-up-{place}-key", transport=httpx2.MockTransport(answer))
        options = ChatOptions(model=f"{place}-model", usd_per_million_tokens_in=Decimal(1))
        return ChatModel(
            client, options, count_tokens=self._count_tokens, elapsed=self.time.elapsed, sleep=self.time.sleep
        )

    async def reply(
        self,
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        within: timedelta = RUN,
        tools: Sequence[Mapping[str, Any]] = TOOLS,
    ) -> ModelReply:
        return await self.models.reply(self.models.body(messages or MESSAGES, tools), within=within)

    def known(self, place: str) -> ModelState:
        return self.memory.states.get(ModelName(f"http://{place}.test/v1", f"{place}-model"), ModelState())


PLACES = ("first", "second", "third")


def answered(*, calls: int = 1, prompt_tokens: int = 100, text: str = "Well.") -> httpx2.Response:
    call = {"id": "c", "type": "function", "function": {"name": "list_boxes", "arguments": "{}"}}
    message = {"role": "assistant", "content": text, "tool_calls": [call] * calls}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 5}
    return httpx2.Response(200, json={"choices": [{"message": message}], "usage": usage})


def refused(status: int, message: str = "no", code: str | None = None) -> httpx2.Response:
    return httpx2.Response(status, json={"error": {"message": message, "code": code}})


GOOD = answered()
PROSE = answered(calls=0)
VERDICT = answered(calls=0, text='All is well. <verdict>{"action": false, "state_changed": false}</verdict>')
DOWN = httpx2.ConnectError("connection refused")
NOTHING = httpx2.Response(200, json={"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 0}})


# --- on what terms ---------------------------------------------------------------------------------------------------


async def test_the_terms_are_those_of_the_first_that_is_well_at_the_highest_prices():
    servers = Servers([DOWN], [GOOD])
    assert (await servers.models.terms()).model == "first-model at http://first.test/v1"
    for _ in range(3):
        await servers.reply()

    terms = await servers.models.terms()
    assert terms.model == "second-model at http://second.test/v1"
    assert (terms.factor, terms.max_output_tokens, terms.prices) == (1.0, 2_000, (Decimal(1), Decimal(0)))


async def test_a_server_that_counts_more_has_its_factor_in_the_terms():
    estimate = request_tokens(LONG, TOOLS, by_thirds)
    servers = Servers([answered(prompt_tokens=2 * estimate)], count_tokens=by_thirds)
    await servers.reply(LONG)
    assert (await servers.models.terms()).factor == pytest.approx(2.04, abs=0.001)


# --- who is asked -----------------------------------------------------------------------------------------------------


async def test_while_the_first_is_well_nobody_else_is_asked():
    servers = Servers([GOOD], [GOOD])

    reply = await servers.reply()

    assert servers.asked == ["first"]
    assert reply.model == "first-model at http://first.test/v1"


@pytest.mark.parametrize("trouble", [DOWN, refused(503), refused(401), refused(404), refused(402), NOTHING], ids=str)
async def test_whatever_the_first_fails_of_the_second_answers_the_same_question(trouble: Answer):
    servers = Servers([trouble], [GOOD])

    reply = await servers.reply()

    assert servers.asked[-1] == "second"
    assert reply.model == "second-model at http://second.test/v1"
    assert servers.bodies[-1] == servers.bodies[0] | {"model": "second-model"}
    assert servers.known("first").failures == 1
    assert servers.known("second").failures == 0


async def test_who_failed_too_often_is_left_alone_and_then_asked_again():
    servers = Servers([*[refused(401)] * 3, GOOD], [GOOD])
    for _ in range(3):
        await servers.reply()
    servers.asked.clear()

    await servers.reply()
    assert servers.asked == ["second"]

    servers.time.advance(PAUSE)
    await servers.reply()
    assert servers.asked == ["second", "first"]
    assert servers.known("first").failures == 0


async def test_control_without_a_memory_a_dead_server_is_asked_in_every_step():
    servers = Servers([refused(401)], [GOOD], memory=Deaf(recalls=True))
    for _ in range(5):
        await servers.reply()

    assert servers.asked.count("first") == 5


async def test_a_server_that_drops_the_tools_gives_way_to_one_that_does_not():
    servers = Servers([PROSE], [GOOD])
    for _ in range(3):
        assert not (await servers.reply()).calls

    assert (await servers.reply()).calls
    assert servers.known("first").trouble == NO_TOOL_CALL


async def test_a_verdict_in_writing_is_an_answer_as_good_as_a_call():
    """The control is the test before: prose without one."""
    servers = Servers([VERDICT], [GOOD])
    for _ in range(4):
        await servers.reply()

    assert servers.asked == ["first"] * 4
    assert servers.known("first").failures == 0


async def test_prose_is_no_failure_where_no_tools_were_offered():
    servers = Servers([PROSE])

    await servers.reply(tools=())

    assert servers.known("first").failures == 0


async def test_when_nobody_is_well_all_are_asked_as_if_they_were():
    servers = Servers([refused(401)], [refused(401)])
    for _ in range(4):
        with pytest.raises(KeyRefused):
            await servers.reply()

    assert servers.asked == ["first", "second"] * 4


async def test_one_model_alone_is_asked_however_often_it_failed():
    servers = Servers([*[refused(401)] * 5, GOOD])
    for _ in range(5):
        with pytest.raises(KeyRefused):
            await servers.reply()

    assert (await servers.reply()).calls


# --- in what time -----------------------------------------------------------------------------------------------------


async def test_a_server_that_asks_for_patience_leaves_half_of_the_time_to_the_next():
    busy = httpx2.Response(503, headers={"retry-after": "30"})
    servers = Servers([busy], [GOOD])

    await servers.reply(within=timedelta(seconds=100))

    assert sum(servers.time.slept) <= 50
    assert servers.asked[-1] == "second"


async def test_all_tries_together_last_no_longer_than_the_caller_has():
    busy = httpx2.Response(503, headers={"retry-after": "7"})
    servers = Servers([busy], [busy], [busy])

    with pytest.raises(ModelUnreachable):
        await servers.reply(within=timedelta(seconds=60))

    assert servers.time.elapsed() <= timedelta(seconds=60)
    assert set(servers.asked) == set(PLACES)


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-3)])
async def test_a_caller_without_time_asks_nobody_and_blames_nobody(within: timedelta):
    servers = Servers([GOOD])

    with pytest.raises(ModelUnreachable, match="no time was left"):
        await servers.reply(within=within)

    assert (servers.asked, servers.memory.states) == ([], {})


async def test_who_had_hardly_any_time_is_not_blamed():
    servers = Servers([DOWN])
    for within, failures in ((FAIR_TIME / 2, 0), (FAIR_TIME, 1)):
        with pytest.raises(ModelUnreachable):
            await servers.reply(within=within)
        assert servers.known("first").failures == failures


# --- what is too long, and what is refused ----------------------------------------------------------------------------


async def test_a_prompt_that_a_server_finds_too_long_goes_to_nobody_else_and_the_caller_learns_what_fits():
    servers = Servers([refused(400, "maximum context length is 8192 tokens")], [GOOD])
    body = servers.models.body([*MESSAGES, {"role": "user", "content": "x" * 20_000}], TOOLS)
    estimate = request_tokens(body["messages"], TOOLS, by_bytes)

    with pytest.raises(ContextTooLong) as error:
        await servers.models.reply(body, within=RUN)

    assert servers.asked == ["first"]
    assert "8192" in error.value.said
    assert error.value.fits == servers.known("first").fits() < estimate
    assert servers.known("first").failures == 0


async def test_the_same_prompt_is_held_back_from_then_on_and_a_shorter_one_is_sent():
    servers = Servers([refused(400, "maximum context length is 8192 tokens"), GOOD])
    body = servers.models.body([*MESSAGES, {"role": "user", "content": "x" * 20_000}], TOOLS)
    for _ in range(2):
        with pytest.raises(ContextTooLong) as error:
            await servers.models.reply(body, within=RUN)
    assert error.value.said == ""
    assert error.value.fits is not None

    shorter = servers.models.body([*MESSAGES, {"role": "user", "content": "x" * (error.value.fits - 1_000)}], TOOLS)
    await servers.models.reply(shorter, within=RUN)

    assert servers.asked == ["first"] * 2


async def test_a_server_that_counts_more_than_we_do_gets_less_from_then_on():
    estimate = request_tokens(LONG, TOOLS, by_thirds)
    servers = Servers([answered(prompt_tokens=2 * estimate)], count_tokens=by_thirds)

    await servers.reply(LONG)

    assert servers.known("first").factor == pytest.approx(2.04)
    body = servers.models.body([*MESSAGES, {"role": "user", "content": "x" * (HARD_TOKENS * 3 // 2)}], TOOLS)
    with pytest.raises(ContextTooLong) as error:
        await servers.models.reply(body, within=RUN)
    assert error.value.fits == int(HARD_TOKENS / 2.04)
    assert servers.asked == ["first"]


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_everything_is_left_for_the_next_and_soon_left_alone(status: int):
    servers = Servers([refused(status, "unknown parameter")], [GOOD])
    for _ in range(4):
        assert (await servers.reply()).calls

    assert servers.asked == ["first", "second"] * 3 + ["second"]
    assert "unknown parameter" in servers.known("first").trouble


async def test_a_request_that_one_refuses_among_others_is_held_against_no_model():
    servers = Servers([refused(400), refused(400), GOOD, refused(400), refused(400), GOOD], [GOOD])
    for _ in range(6):
        await servers.reply()

    assert servers.asked.count("first") == 6
    assert servers.known("first").failures == 0


@pytest.mark.parametrize(
    ("first", "second", "raised"),
    [
        (refused(400), refused(422), RequestRefused),
        (refused(400), DOWN, ModelUnreachable),
        (DOWN, refused(400), ModelUnreachable),
    ],
    ids=str,
)
async def test_only_what_all_refuse_is_the_requests_own_fault(
    first: Answer, second: Answer, raised: type[FleetAgentError]
):
    with pytest.raises(raised):
        await Servers([first], [second]).reply()


# --- what is paid, and what is said -----------------------------------------------------------------------------------


async def test_what_the_first_cost_in_vain_is_in_the_bill_of_the_second():
    servers = Servers([NOTHING], [GOOD])

    reply = await servers.reply()

    tries = servers.asked.count("first")
    assert (reply.usage.tokens_in, reply.reported) == (100 * tries + 100, 100)
    assert reply.usage.cost_usd == Decimal(100 * tries + 100) / 1_000_000


@pytest.mark.parametrize(
    ("first", "second", "raised"),
    [
        (refused(401), DOWN, KeyRefused),
        (DOWN, refused(401), ModelUnreachable),
        (NOTHING, refused(402), ModelUnusable),
        (refused(402), NOTHING, FixSetup),
    ],
    ids=str,
)
async def test_when_nobody_answers_the_error_is_the_firsts_and_tells_of_all(
    first: Answer, second: Answer, raised: type[FleetAgentError]
):
    servers = Servers([first], [second])

    with pytest.raises(raised) as error:
        await servers.reply()

    assert type(error.value) is raised
    assert error.value.cause.index("first.test") < error.value.cause.index("second.test")
    spent = error.value.spent
    assert (spent.tokens_in if spent else 0) == (0 if NOTHING not in (first, second) else 400)


async def test_a_database_that_is_away_stops_the_question_but_never_swallows_an_answer():
    assert (await Servers([GOOD], memory=Deaf(recalls=True)).reply()).calls

    silent = Servers([GOOD], memory=Deaf(recalls=False))
    with pytest.raises(DatabaseUnreachable):
        await silent.reply()
    assert silent.asked == []


# --- the self-test ----------------------------------------------------------------------------------------------------


async def test_the_self_test_asks_every_model_and_remembers_what_each_did():
    servers = Servers([PROSE], [GOOD], [refused(401)])

    tested = await servers.models.self_test()

    assert [(each.name.model, each.passed) for each in tested] == [
        ("first-model", False),
        ("second-model", True),
        ("third-model", False),
    ]
    assert [servers.known(place).test_passed for place in PLACES] == [False, True, False]
    assert "calls no tool" in servers.known("first").test
    assert servers.known("second").test == "answers and calls tools (105 tokens)"
    assert "does not accept the API key" in servers.known("third").test
    assert servers.known("first").tested_at == servers.time.now()


async def test_the_self_test_counts_as_a_question_like_any_other():
    servers = Servers([refused(401)])

    await servers.models.self_test()

    assert servers.known("first").failures == 1


async def test_one_model_can_be_tested_without_a_list():
    servers = Servers([PROSE])

    with pytest.raises(ModelUnusable, match="calls no tool → enable tool calling"):
        await see_a_tool_call(servers.models)


# --- every fault that the simulated server knows ----------------------------------------------------------------------

ABOUT_THE_REQUEST = {"context_length_400"}


def simulated(place: str, time: PassingTime, fault: str | None = None) -> ChatModel:
    """A model on a simulated server, which has `fault` for good."""
    faults = ModelFaults()
    if fault is not None:
        faults.arm(fault, times=1_000)
    app = create_app(clock=time, faults=faults, sleep=time.sleep)
    client = open_client(f"http://{place}.test/v1", None, transport=httpx2.ASGITransport(app))
    return ChatModel(
        client, ChatOptions(model=place), count_tokens=count_tokens, elapsed=time.elapsed, sleep=time.sleep
    )


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_fault_the_first_server_has_for_good_the_list_answers_or_says_why(fault: str):
    """The second server is well. What counts as a failure is in the end left alone."""
    time = PassingTime()
    memory = Memory(time.now)
    models = ModelList([simulated("first", time, fault), simulated("second", time)], memory, elapsed=time.elapsed)
    body = models.body(MESSAGES, TOOLS)
    if fault in ABOUT_THE_REQUEST:
        with pytest.raises(ContextTooLong):
            await models.reply(body, within=DEADLINE)
        return

    replies = [await models.reply(body, within=RUN) for _ in range(4)]

    first = memory.states[ModelName("http://first.test/v1", "first")]
    assert replies[-1].model.startswith("second") is first.left_alone(time.now())
    assert replies[-1].calls or not first.failures


@pytest.mark.parametrize(("fault", "alarm"), [("cut_prompt", True), (None, False), ("null_usage", False)])
async def test_a_server_that_cuts_a_long_prompt_is_found_out(fault: str | None, alarm: bool):
    time = PassingTime()
    memory = Memory(time.now)
    models = ModelList([simulated("first", time, fault)], memory, elapsed=time.elapsed)
    history = "Run #7 found two boxes at work and nothing in the queue, so it changed nothing. " * 700

    await models.reply(models.body([*MESSAGES, {"role": "user", "content": history}], TOOLS), within=RUN)

    [state] = memory.states.values()
    assert (state.truncates_since is not None) is alarm
    assert state.factor == 1.0
