"""The models that may be asked, in the operator's order: the first that is well answers.

    recall what is known → who is well? → ask, within a share of the time → learn → the answer, or the next

What each answer teaches (`domain.model_server`) is remembered outside, for every process and run. A model that failed
too often is left alone, and when nobody is well all are asked as if they were: a list is never worse than its members.
A prompt that is too long is nobody's failure and goes to nobody else: the caller composes a shorter one. A request that
is refused goes on, and counts: some servers refuse whatever we send. Where all refuse it, it is the request's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from fleet_agent.clients.model import NEXT_RUN, ChatModel
from fleet_agent.domain.actions import tool_definitions
from fleet_agent.domain.model_server import Asked, Lesson, ModelName, ModelState, Recalled
from fleet_agent.domain.run import ModelReply, Usage
from fleet_agent.domain.spending import Prices, Terms
from fleet_agent.domain.tokens import factor_within, fewest_tokens, most_tokens
from fleet_agent.domain.values import Frozen
from fleet_agent.domain.verdict import read_verdict
from fleet_agent.errors import (
    ContextTooLong,
    FixSetup,
    FleetAgentError,
    ModelUnreachable,
    ModelUnusable,
    RequestRefused,
    Spent,
)

TEST_CALL = timedelta(seconds=60)
"""Real time that a self-test may take."""


FAIR_TIME = timedelta(seconds=20)
"""Who had less to answer is not blamed for having failed."""


class ModelMemory(Protocol):
    """What remembers the models, one lesson of a model at a time."""

    async def recall(self, names: Sequence[ModelName]) -> Recalled:
        """What is known of the models, in the order of `names`, which is the order in which they are asked."""
        ...

    async def learn(self, name: ModelName, lesson: Lesson) -> ModelState:
        """Apply `lesson` to what is known, and return that."""
        ...


class Answers(Protocol):
    """As much of `ports.Model` as a test of it needs."""

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]: ...
    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply: ...


class Tested(Frozen):
    """What a self-test found."""

    name: ModelName
    passed: bool
    words: str


class ModelList:
    """`ports.Model` for the models of a list, at least one. `body` is that of the first; another is asked the same
    under its own name."""

    def __init__(self, models: Sequence[ChatModel], memory: ModelMemory, *, elapsed: Callable[[], timedelta]) -> None:
        self.body = models[0].body
        self._most_output = max(model.options.max_output_tokens for model in models)
        self._highest = Prices(*map(max, zip(*(model.options.prices for model in models), strict=True)))
        self._models = models
        self._memory = memory
        self._elapsed = elapsed

    async def terms(self) -> Terms:
        """Those of the first that is well; any other may answer in its place, so the prices are the highest."""
        model, state = _well(self._models, await self._memory.recall([model.name for model in self._models]))[0]
        return Terms(
            model=str(model.name),
            factor=factor_within(state.fits(model.options.room)),
            max_output_tokens=self._most_output,
            prices=self._highest,
        )

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        ends_at = self._elapsed() + within
        failures: list[FleetAgentError] = []
        candidates = _well(self._models, await self._memory.recall([model.name for model in self._models]))
        for others_left, (model, state) in zip(reversed(range(len(candidates))), candidates, strict=True):
            left = ends_at - self._elapsed()
            if left <= timedelta(0):
                break
            try:
                reply = await self.ask(model, state, body, within=left / 2 if others_left else left)
            except FleetAgentError as error:
                failures.append(error)
                if isinstance(error, ContextTooLong):
                    break
            else:
                paid = sum(map(_paid, failures), start=reply.usage)
                return reply.model_copy(update={"usage": paid})
        raise _all_in_one(failures)

    async def ask(
        self, model: ChatModel, state: ModelState, body: Mapping[str, Any], *, within: timedelta
    ) -> ModelReply:
        """Ask one model, and remember what came of it."""
        tools = body.get("tools", ())
        own_body = model.body(body["messages"], tools)
        try:
            reply = await model.reply(own_body, within=within, factor=state.factor)
        except ContextTooLong as error:
            if error.said:
                estimate = model.estimate(own_body)
                state = await self._learn(model.name, state, lambda known, _: known.found_too_long(estimate))
            error.fits = state.fits(model.options.room)
            raise
        except (ModelUnreachable, ModelUnusable, RequestRefused, FixSetup) as error:
            if within >= FAIR_TIME:
                await self._learn(model.name, state, _lesson_of_failure(error))
            raise
        asked = Asked(
            estimate=reply.estimate,
            at_least=fewest_tokens(body["messages"]),
            at_most=most_tokens(own_body),
            reported=reply.reported,
            called_a_tool=bool(reply.calls),
            needed_to=bool(tools) and read_verdict(reply.text) is None,
        )
        await self._learn(model.name, state, lambda known, now: known.answered(asked, now))
        return reply

    async def _learn(self, name: ModelName, state: ModelState, lesson: Lesson) -> ModelState:
        """A memory that fails costs a lesson, and never the answer that was paid for."""
        with suppress(FleetAgentError):
            return await self._memory.learn(name, lesson)
        return state

    async def self_test(self) -> tuple[Tested, ...]:
        """Ask every model of the list for a tool call, whether it is well or not, and remember what each did."""
        _, states = await self._memory.recall([model.name for model in self._models])
        return tuple(await asyncio.gather(*map(self._test, self._models, states)))

    async def _test(self, model: ChatModel, state: ModelState) -> Tested:
        try:
            words = await see_a_tool_call(_Member(self, model, state))
            tested = Tested(name=model.name, passed=True, words=words)
        except FleetAgentError as error:
            tested = Tested(name=model.name, passed=False, words=str(error))
        await self._learn(model.name, state, lambda known, now: known.tested(tested.words, now, passed=tested.passed))
        return tested


@dataclass(frozen=True)
class _Member:
    """One model of a list, asked as if there were no others."""

    models: ModelList
    model: ChatModel
    state: ModelState

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.model.body(messages, tools)

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        return await self.models.ask(self.model, self.state, body, within=within)


async def see_a_tool_call(model: Answers) -> str:
    """What is well, in a few words. Some servers drop the tools silently: such a model looks healthy and never acts,
    so it must be seen to call one. Raises ModelUnusable where it does not, and what `Model.reply` raises."""
    words = [
        {"role": "system", "content": "This is a test of the connection."},
        {"role": "user", "content": "Call the tool list_boxes once."},
    ]
    reply = await model.reply(model.body(words, tool_definitions()), within=TEST_CALL)
    if not reply.calls:
        raise ModelUnusable(
            "it answers, but calls no tool", "enable tool calling on the server, or set FLEET_MODEL_NAME to another"
        )
    return f"answers and calls tools ({reply.usage.tokens} tokens)"


def _well(models: Sequence[ChatModel], recalled: Recalled) -> list[tuple[ChatModel, ModelState]]:
    """Who is not left alone now; everybody where that is nobody."""
    known = list(zip(models, recalled.states, strict=True))
    return [(model, state) for model, state in known if not state.left_alone(recalled.now)] or known


def _lesson_of_failure(error: FleetAgentError) -> Lesson:
    return lambda known, now: known.failed(error, now)


def _paid(error: FleetAgentError) -> Usage:
    return Usage(**error.spent._asdict()) if error.spent else Usage()


def _all_in_one(failures: Sequence[FleetAgentError]) -> FleetAgentError:
    """Why nobody answered, and what that cost: that the prompt is too long, else what the first of the list said, for
    it is the one that the operator wants to be well; that the request is refused only where nothing else was said."""
    if not failures:
        return ModelUnreachable("no time was left to ask a model", NEXT_RUN)
    paid = sum(map(_paid, failures), start=Usage())
    was_sent = any(error.spent is not None for error in failures)
    spent = Spent(paid.tokens_in, paid.tokens_out, paid.cost_usd) if was_sent else None
    last = failures[-1]
    if len(failures) == 1 or isinstance(last, ContextTooLong):
        last.spent = spent
        return last
    first = next((error for error in failures if not isinstance(error, RequestRefused)), failures[0])
    return type(first)("; then: ".join(error.cause for error in failures), first.remedy, spent=spent)
