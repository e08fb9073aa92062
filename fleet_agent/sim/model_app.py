"""The model's HTTP face: OpenAI chat completions, strict in what it takes, reactive in what it says.

    request → read_request (or 400) → policy(prompt) → completion → the gate → an armed fault may spoil it → response

A reply is a function of the request, the policy and the seed alone, so that a repeated request gets the same reply and
a run can be replayed. Outside the paths of the real API, `GET /sim/requests` shows what was asked, `POST /sim/faults`
arms a fault and `DELETE /sim/faults/{name}` disarms it, `PUT /sim/gate` makes a run's replies wait and `GET /sim/gate`
says how many do.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleet_agent.sim.catalogue import seeded
from fleet_agent.sim.chat import BadRequest, ChatRequest, message_tokens, read_request
from fleet_agent.sim.clock import SimClock
from fleet_agent.sim.gate import Gate
from fleet_agent.sim.model_faults import FAULTS, ModelFaults, error
from fleet_agent.sim.policies import POLICIES, Policy, Reply
from fleet_agent.sim.prompt import Prompt, read_prompt

MODEL = "simulated-operator"
REQUESTS_KEPT = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came, and what became of it: `refused` says why it was 400, `fault` what spoiled the reply."""

    body: object
    refused: str | None
    fault: str | None


def create_app(
    *,
    clock: SimClock,
    policy: str = "sensible",
    seed: int = 0,
    faults: ModelFaults | None = None,
    api_key: str | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Starlette:
    """The face of one model. With an `api_key` no other is accepted, without one any is. `sleep` waits real seconds.

    Raises ValueError for a policy that is not in POLICIES.
    """
    if policy not in POLICIES:
        raise ValueError(f"no policy is named {policy!r}; the policies are {', '.join(POLICIES)}")
    face = ModelFace(clock, POLICIES[policy], seed, faults or ModelFaults(), api_key, sleep)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", face.complete, methods=["POST"]),
            Route("/v1/models", face.models),
            Route("/sim/requests", face.requests),
            Route("/sim/faults", face.arm, methods=["POST"]),
            Route("/sim/faults/{name}", face.disarm, methods=["DELETE"]),
            Route("/sim/gate", face.waiting, methods=["GET"]),
            Route("/sim/gate", face.let, methods=["PUT"]),
        ]
    )


class ModelFace:
    def __init__(
        self,
        clock: SimClock,
        policy: Policy,
        seed: int,
        faults: ModelFaults,
        api_key: str | None,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._seed = seed
        self._faults = faults
        self._api_key = api_key
        self._sleep = sleep
        self._gate = Gate()
        self._asked: deque[Asked] = deque(maxlen=REQUESTS_KEPT)
        self._cached: list[dict[str, Any]] = []

    async def complete(self, request: Request) -> Response:
        if self._refuses_key_of(request):
            return error(401, "Incorrect API key provided", "invalid_api_key")
        try:
            body: object = await request.json()
        except ValueError:
            return error(400, "the body is not JSON", "invalid_request")
        try:
            chat = read_request(body)
        except BadRequest as refusal:
            self._asked.append(Asked(body, refused=str(refusal), fault=None))
            return error(400, str(refusal), refusal.code)
        prompt = read_prompt(chat.messages, chat.tools)
        completion = self._completion(cast("dict[str, Any]", body), chat, prompt)
        # A test of the connection is no step of a run: nobody who holds a run waits for it.
        is_of_a_run = prompt.observation is not None
        if is_of_a_run and not await _before_hanging_up(request, self._gate.go_through()):
            return error(499, "the client hung up", "client_closed_request")
        armed = self._faults.take(of_a_run=is_of_a_run)
        self._asked.append(Asked(body, refused=None, fault=armed.name if armed else None))
        if armed is None:
            return JSONResponse(completion)
        if armed.name == "slow":
            await self._sleep(armed.seconds)
        return FAULTS[armed.name](completion, armed.seconds)

    async def models(self, request: Request) -> Response:
        if self._refuses_key_of(request):
            return error(401, "Incorrect API key provided", "invalid_api_key")
        model = {"id": MODEL, "object": "model", "created": self._seconds(), "owned_by": "simulator"}
        return JSONResponse({"object": "list", "data": [model]})

    async def requests(self, _: Request) -> Response:
        """The last requests, oldest first."""
        return JSONResponse([asdict(asked) for asked in self._asked])

    async def arm(self, request: Request) -> Response:
        """Takes `{"name": …, "times": 1, "seconds": 1, "of_runs": false}`; 400 for a fault that does not exist."""
        try:
            self._faults.arm(**await request.json())
        except (TypeError, ValueError) as refusal:
            return error(400, str(refusal), "invalid_request")
        return JSONResponse({"armed": True})

    async def disarm(self, request: Request) -> Response:
        self._faults.disarm(request.path_params["name"])
        return JSONResponse({"armed": False})

    async def waiting(self, _: Request) -> Response:
        return JSONResponse({"waiting": self._gate.waiting})

    async def let(self, request: Request) -> Response:
        """Takes `{"pass": n}`: n replies pass, the next ones wait; with null all pass. 400 for anything else."""
        try:
            await self._gate.let((await request.json())["pass"])
        except (KeyError, TypeError, ValueError) as refusal:
            return error(400, str(refusal), "invalid_request")
        return await self.waiting(request)

    def _refuses_key_of(self, request: Request) -> bool:
        return self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}"

    def _completion(self, body: dict[str, Any], chat: ChatRequest, prompt: Prompt) -> dict[str, Any]:
        digest = hashlib.sha256(f"{self._seed}/{json.dumps(body['messages'])}".encode()).hexdigest()
        reply = self._policy(prompt, seeded(digest))
        message = _assistant_message(reply, digest)
        completion_tokens = message_tokens(message)
        return {
            "id": f"chatcmpl-{digest[:24]}",
            "object": "chat.completion",
            "created": self._seconds(),
            "model": chat.model,
            "choices": [
                {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"},
            ],
            "usage": {
                "prompt_tokens": chat.tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": chat.tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": self._tokens_cached(body["messages"])},
            },
        }

    def _tokens_cached(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of the leading messages that the request before had too, as a provider's prefix cache counts them."""
        shared = 0
        for before, now in zip(self._cached, messages, strict=False):
            if before != now:
                break
            shared += message_tokens(now)
        self._cached = messages
        return shared

    def _seconds(self) -> int:
        return int(self._clock.now().timestamp())


async def _before_hanging_up(request: Request, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work got done while the client waited for it; a client that was killed waits no more."""
    done, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
    for each in (done, gone):
        each.cancel()
    return done.done() and not done.cancelled()


def _assistant_message(reply: Reply, digest: str) -> dict[str, Any]:
    if not reply.calls:
        return {"role": "assistant", "content": reply.text}
    calls = [
        {
            "id": f"call_{digest[:16]}_{n}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for n, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}
