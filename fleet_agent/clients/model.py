"""The LLM behind any server that speaks OpenAI's chat completions.

    body → ask (again and again, within one deadline) → JSON of any shape → normalize_reply → ModelReply

Servers that call themselves compatible differ in everything but the address. So nothing of an answer is trusted:
`normalize_reply` is the one place that knows how they go wrong, it never raises, and what leaves it can be replayed to
any server: our own unique call ids, canonical arguments, plain text, no reasoning.

The last thing before every send, repeated ones too, is to count the request: what could be too long for a model never
leaves, whoever composed it.

There is one layer of retries, here. The SDK's own is off, and no layer above repeats a model call; each of those would
multiply the others. Importing this module is cheap; the SDK, which is not, is loaded with the first client.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import ssl
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, cast

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    wait_exponential_jitter,
)

from fleet_agent.clients.address import usable_address
from fleet_agent.clients.pace import retry_after
from fleet_agent.clients.secrecy import bare_address, quoted, sendable_key
from fleet_agent.domain.model_server import ModelName
from fleet_agent.domain.run import ModelReply, ToolCall, Usage
from fleet_agent.domain.spending import Prices
from fleet_agent.domain.tokens import HARD_TOKENS, SHORT_TOKENS, CountTokens, request_tokens
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

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport
    from openai import AsyncOpenAI

DEADLINE = timedelta(seconds=120)
"""Real time for one reply with everything, where the caller has that much: waits that the server asked for included.
Half of what a run may take."""

ATTEMPTS = 4
BACKOFF = wait_exponential_jitter(initial=1, max=20)
MOST_CALLS = 8
"""Calls of one reply that are kept. More is a server or a model gone wrong; a run has better bounds for good ideas."""
MOST_LETTERS = 200_000
"""Letters of a text, or of the arguments of a call, that are kept. It is far more than the tokens a reply may have, and
what is kept is written to the log and read back by every later run."""
LONGEST_PROVIDER_ID = 200
"""It is kept for people who compare our log with the server's."""
MOST_TOKENS = 10_000_000
"""A greater count is no count: no model has room for as many. It is taken for one that the server did not send, since
one absurd figure would use up every budget at once, and the sums of a run must fit their columns."""

WORTH_ANOTHER_TRY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}

REFUSED_FOR_WHAT_IT_CARRIES = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
"""A parameter that the server does not know, or words that its filter does not let pass."""

TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|exceed\w* .{0,40}context|prompt is too long|too many \w*? ?token",
    re.IGNORECASE,
)
"""How servers say that a prompt does not fit; the status is 400, 413 or 500, and only some send a code."""

CHECK_KEY = "check FLEET_MODEL_API_KEY, or its key in FLEET_MODEL_FALLBACKS"
NEXT_RUN = "the next run tries again"
NOTHING_USED = Usage()


@dataclass(frozen=True)
class ChatOptions:
    """What is asked for in every request, and what it costs."""

    model: str
    max_output_tokens: int = 2000
    max_output_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    usd_per_million_tokens_in: Decimal = Decimal(0)
    usd_per_million_tokens_out: Decimal = Decimal(0)
    window_tokens: int = 32_768
    """Prompt and reply share it."""

    @property
    def prices(self) -> Prices:
        return Prices(self.usd_per_million_tokens_in, self.usd_per_million_tokens_out)

    @property
    def room(self) -> int:
        """Tokens that a prompt may have by the server's count: beside it the longest reply must fit."""
        return min(HARD_TOKENS, self.window_tokens - self.max_output_tokens)


def open_client(base_url: str, api_key: str | None, *, transport: AsyncBaseTransport | None = None) -> AsyncOpenAI:
    """A client for `ChatModel`; close it when done. Raises KeyRefused for what cannot be a key, FixSetup where no
    server can be at `base_url`.

    No redirect is followed, so the key stays with `base_url`. Local servers ask for no key, but the SDK insists on one.
    """
    import httpx2
    from openai import AsyncOpenAI

    timeout = httpx2.Timeout(DEADLINE.total_seconds(), connect=5)
    return AsyncOpenAI(
        base_url=usable_address(base_url, "FLEET_MODEL_URL"),
        api_key=sendable_key(api_key or "no-key", CHECK_KEY),
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport, timeout=timeout, verify=_trusted()),
    )


@functools.cache
def _trusted() -> ssl.SSLContext:
    """What httpx2 trusts, which is what the system does: a model server may have a certificate of the house. As in
    `tls.py`, read once."""
    import httpx2

    return httpx2.create_ssl_context()


@dataclass(frozen=True)
class Setback:
    """A try without a usable reply: the error it comes to, unless it is `passing` and another try cures it.

    `usage` is what it cost all the same, None where nothing left for the server; `said` are the server's words about a
    prompt that it finds too long.
    """

    error: type[FleetAgentError]
    cause: str
    remedy: str = ""
    passing: bool = False
    pause: timedelta | None = None
    usage: Usage | None = None
    said: str = ""

    def as_error(self, usage: Usage | None) -> FleetAgentError:
        spent = Spent(usage.tokens_in, usage.tokens_out, usage.cost_usd) if usage else None
        if self.error is ContextTooLong:
            return ContextTooLong(self.cause, self.remedy, spent=spent, said=self.said)
        return self.error(self.cause, self.remedy, spent=spent)


class ChatModel:
    """`ports.Model` for one model on one server. `client` is one from `open_client`.

    `count_tokens` bounds the tokens of a text from above; no request is sent that has more than HARD_TOKENS by it, or
    that leaves no room for its reply in the model's window.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        options: ChatOptions,
        *,
        count_tokens: CountTokens,
        elapsed: Callable[[], timedelta],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self.options = options
        self._count_tokens = count_tokens
        self._elapsed = elapsed
        self._sleep = sleep
        self._address = bare_address(str(client.base_url))
        self.name = ModelName(server=self._address, model=options.model)

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.options.model,
            "messages": [dict(message) for message in messages],
            self.options.max_output_tokens_name: self.options.max_output_tokens,
        }
        if tools:  # an empty list is refused by some servers
            body["tools"] = [dict(tool) for tool in tools]
        return body

    async def reply(self, body: Mapping[str, Any], *, within: timedelta, factor: float = 1.0) -> ModelReply:
        """`factor` is what our count is multiplied by for this model."""
        ends_at = self._elapsed() + min(within, DEADLINE)
        wasted: list[Usage | None] = []
        retrying = AsyncRetrying(
            retry=retry_if_result(lambda outcome: isinstance(outcome, Setback) and outcome.passing),
            wait=_pause,
            stop=self._hopeless(ends_at),
            sleep=self._sleep,
            before_sleep=lambda state: wasted.append(_outcome(state).usage),
            retry_error_callback=_outcome,
        )
        outcome = await retrying.wraps(self._ask)(body, ends_at, factor)
        paid = [usage for usage in (*wasted, outcome.usage) if usage is not None]
        usage = self._priced(sum(paid, start=NOTHING_USED))
        if isinstance(outcome, Setback):
            raise outcome.as_error(usage if paid else None)
        return outcome.model_copy(update={"usage": usage})

    def _hopeless(self, ends_at: timedelta) -> Callable[[RetryCallState], bool]:
        """Whether to give up: after the last attempt, or when the next could not begin in time."""
        return lambda state: (
            state.attempt_number >= ATTEMPTS or self._elapsed() + timedelta(seconds=state.upcoming_sleep) >= ends_at
        )

    def estimate(self, body: Mapping[str, Any]) -> int:
        """Tokens of its prompt by our count, factor not included."""
        return request_tokens(body["messages"], body.get("tools", ()), self._count_tokens)

    async def _ask(self, body: Mapping[str, Any], ends_at: timedelta, factor: float) -> ModelReply | Setback:
        """One try, or none where the time is over or the prompt too long."""
        from httpx2 import Response
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        left = ends_at - self._elapsed()
        if left <= timedelta(0):
            return Setback(ModelUnreachable, f"no time was left to ask the model at {self._address}", NEXT_RUN)
        estimate = self.estimate(body)
        if estimate * factor > self.options.room and estimate > min(SHORT_TOKENS, self.options.room):
            counted = f"{estimate} tokens" + (f" × {factor:.2f}, as {self.name} counts" if factor > 1 else "")
            allowed = f"{self.options.room} beside a reply of {self.options.max_output_tokens}"
            return Setback(ContextTooLong, f"the prompt has {counted}, and may have {allowed}; it was not sent")
        try:
            async with asyncio.timeout(left.total_seconds()):
                response = await self._client.post("/chat/completions", body=dict(body), cast_to=Response)
        except (APITimeoutError, TimeoutError) as error:
            cause = f"the model at {self._address} did not answer in time"
            return Setback(ModelUnreachable, cause, NEXT_RUN, passing=True, usage=_of_a_lost_try(error))
        except APIConnectionError as error:
            why = self._quoted(str(error.__cause__ or error))
            cause = f"the model server at {self._address} cannot be reached ({why})"
            remedy = "start it, or correct FLEET_MODEL_URL"
            return Setback(ModelUnreachable, cause, remedy, passing=True, usage=_of_a_lost_try(error))
        except APIStatusError as error:
            # The error repeats what the server said, which may be the key: it must not go on as a cause.
            return self._refused(error.status_code, _read_error(error.body, NOTHING_USED), error.response.headers)
        normalized = normalize_reply(_parsed(response.text), salt=_digest(body))
        if isinstance(normalized, ModelReply):
            return normalized.model_copy(
                update={
                    "model": str(self.name),
                    "estimate": estimate,
                    "reported": normalized.usage.tokens_in,
                    "usage": self._charged(normalized, ceil(estimate * factor)),
                }
            )
        if normalized.status is not None:
            return self._refused(normalized.status, normalized, response.headers)
        cause = f"the model at {self._address} sent no usable reply: {self._quoted(normalized.cause)}"
        used = normalized.usage if normalized.usage.tokens else Usage(tokens_in=ceil(estimate * factor))
        return Setback(ModelUnusable, cause, NEXT_RUN, passing=True, usage=used)

    def _charged(self, reply: ModelReply, prompt_tokens: int) -> Usage:
        """What a server does not say is charged as we count it: silence must not make a model free."""
        said = "".join([reply.text, *(call.name + call.arguments for call in reply.calls)])
        return reply.usage.model_copy(
            update={
                "tokens_in": reply.usage.tokens_in or prompt_tokens,
                "tokens_out": reply.usage.tokens_out or self._count_tokens(said),
            }
        )

    def _refused(self, status: int, refusal: NoReply, headers: Mapping[str, str]) -> Setback:
        said = self._quoted(f"{refusal.code}: {refusal.cause}" if refusal.code else refusal.cause)
        setback = self._lasting_setback(status, refusal.code, said) or Setback(
            ModelUnreachable,
            f"the model server at {self._address} answered {status} ({said})",
            NEXT_RUN,
            passing=True,
            pause=retry_after(headers),
        )
        return replace(setback, usage=refusal.usage)

    def _lasting_setback(self, status: int, code: str, said: str) -> Setback | None:
        """What a refusal means that no other try would cure, or None."""
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            cause = f"the model server at {self._address} does not accept the API key ({said})"
            return Setback(KeyRefused, cause, CHECK_KEY)
        if status == HTTPStatus.PAYMENT_REQUIRED or code == "insufficient_quota":
            return Setback(FixSetup, f"the account at {self._address} has no quota left ({said})", "add credit there")
        if status == HTTPStatus.NOT_FOUND:
            return Setback(
                FixSetup,
                f"there is no model {self.options.model!r} at {self._address} ({said})",
                "check FLEET_MODEL_NAME and FLEET_MODEL_URL; the address usually ends in /v1",
            )
        if status in WORTH_ANOTHER_TRY:  # before the next: "too many tokens" a minute is no matter of length
            return None
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or TOO_LONG.search(said):
            cause = f"the model server at {self._address} finds the prompt too long ({said})"
            return Setback(ContextTooLong, cause, said=said)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return None
        return Setback(
            RequestRefused if status in REFUSED_FOR_WHAT_IT_CARRIES else FixSetup,
            f"the model server at {self._address} refused the request with {status} ({said})",
            "check the FLEET_MODEL_* settings against what this server accepts",
        )

    def _quoted(self, words: str) -> str:
        return quoted(words, [self._client.api_key])

    def _priced(self, usage: Usage) -> Usage:
        return usage.model_copy(update={"cost_usd": self.options.prices.of(usage.tokens_in, usage.tokens_out)})


def _pause(state: RetryCallState) -> float:
    asked_for = _outcome(state).pause
    return BACKOFF(state) if asked_for is None else asked_for.total_seconds()


def _outcome(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()


def _of_a_lost_try(error: BaseException) -> Usage | None:
    """Nothing left where there was no connection. What was lost later may be answered, and charged, behind our back: it
    is a request. No tokens are counted for it, or a server that hangs would use up the day's."""
    from httpx2 import ConnectError, ConnectTimeout, PoolTimeout, ProxyError, UnsupportedProtocol

    unsent = (ConnectError, ConnectTimeout, PoolTimeout, ProxyError, UnsupportedProtocol)
    return None if isinstance(error.__cause__, unsent) else NOTHING_USED


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def _parsed(text: str) -> object:
    """The JSON of an answer, or its text where it is none: a page of a proxy, a stream, half a document."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- normalisation: pure, never raises --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoReply:
    """A success that holds no reply. `status` and `code` where the server says that another one failed behind it."""

    cause: str
    status: int | None = None
    code: str = ""
    usage: Usage = NOTHING_USED


def normalize_reply(body: object, *, salt: str) -> ModelReply | NoReply:
    """What a server sent with status 200, as one reply that can be acted on, stored and replayed. Never raises.

    Whether there are calls is decided by the calls alone, never by a finish reason. Call ids are ours, for servers
    repeat theirs, omit them or insist on nine letters: they follow from `salt` and the position, so that one `salt` per
    request makes them unique in a conversation. Reasoning is dropped. Arguments are a JSON object in canonical form, or
    `{}` and marked malformed, as are arguments of more than MOST_LETTERS: of half an object nothing can be said. Of a
    longer text the beginning is kept.
    """
    answer = _dict(body)
    usage = _usage(_dict(answer.get("usage")))
    choice = _dict(next(iter(_list(answer.get("choices"))), None))
    error = answer.get("error") or choice.get("error")
    if error:
        return _read_error(error, usage)
    if not isinstance(body, dict):
        return NoReply(f"not a JSON object but {_words(body)[:60]!r}", usage=usage)
    if not isinstance(choice.get("message"), dict):
        return NoReply("no choices", usage=usage)
    message = _dict(choice["message"])
    calls = [_dict(call) for call in _list(message.get("tool_calls")) if isinstance(_dict(call).get("function"), dict)]
    return ModelReply(
        text=_text(message.get("content")),
        calls=tuple(_call(call, salt, position) for position, call in enumerate(calls[:MOST_CALLS])),
        usage=usage,
    )


def _read_error(error: object, usage: Usage) -> NoReply:
    """What a server says went wrong: in OpenAI's envelope, in FastAPI's, or in plain words.

    Gateways report the failure of the server behind them inside a success, with its status as `code`.
    """
    details = _dict(error)
    code, kind = _words(details.get("code")), _words(details.get("type"))
    words = _words(details.get("message")) or _words(details.get("detail")) or _words(error)
    status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else None
    return NoReply(words or "an error without a message", status, kind if status else code or kind, usage)


def _text(content: object) -> str:
    """Plain text, whether it came as text, as nothing or in parts; parts that are no text are left out."""
    text = content if isinstance(content, str) else "".join(_text_of_part(part) for part in _list(content))
    return _beginning(_storable_text(text))


def _beginning(text: str) -> str:
    """`text`, or as much of it as is kept and how much is missing."""
    dropped = len(text) - MOST_LETTERS
    return text if dropped <= 0 else f"{text[:MOST_LETTERS]}… ({dropped} more letters were dropped)"


def _text_of_part(part: object) -> str:
    if isinstance(part, str):
        return part
    text = _dict(part).get("text")
    return text if isinstance(text, str) and _dict(part).get("type") in (None, "text", "output_text") else ""


def _call(call: dict[str, Any], salt: str, position: int) -> ToolCall:
    function = _dict(call["function"])
    arguments = _object(function.get("arguments"))
    return ToolCall(
        id=_minted_id(salt, position),
        # Servers refuse a history that holds any other letter, even one that they produced themselves.
        name=re.sub(r"[^a-zA-Z0-9_-]", "_", _words(function.get("name")) or "unnamed")[:64],
        arguments=arguments or "{}",
        provider_id=_words(call.get("id"))[:LONGEST_PROVIDER_ID],
        malformed=arguments is None,
    )


def _minted_id(salt: str, position: int) -> str:
    """Nine letters and digits: eight from the salt, and the position, which makes them unique within a reply."""
    alphabet = string.ascii_lowercase + string.digits
    digest = hashlib.sha256(f"{salt}/{position}".encode("utf-8", "replace")).digest()
    return "".join(alphabet[byte % len(alphabet)] for byte in digest[:8]) + alphabet[position]


def _object(arguments: object) -> str | None:
    """A JSON object in canonical form, None where it is none or too long; nothing at all means no arguments."""
    try:
        value = json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(value, dict | None):
            return None
        canonical = json.dumps(
            _storable(value or {}), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
    except (ValueError, RecursionError):
        return None
    return canonical if len(canonical) <= MOST_LETTERS else None


def _storable(value: Any) -> Any:
    """`value` with every text such that any database and any wire takes it."""
    members, items = _dict(value), _list(value)
    if members:
        return {_storable_text(name): _storable(member) for name, member in members.items()}
    if items:
        return [_storable(item) for item in items]
    return _storable_text(value) if isinstance(value, str) else value


def _storable_text(text: str) -> str:
    """Without NUL, which PostgreSQL refuses, and without half surrogate pairs, which UTF-8 cannot say."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def _usage(usage: dict[str, Any]) -> Usage:
    tokens_in = _count(usage.get("prompt_tokens"))
    cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Usage(
        tokens_in=tokens_in,
        tokens_out=_count(usage.get("completion_tokens")),
        tokens_cached=min(cached, tokens_in),
    )


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value <= MOST_TOKENS else 0


def _words(value: object) -> str:
    """Text or a number as text; nothing of anything else."""
    return _storable_text(str(value)) if isinstance(value, str | int | float) else ""


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
