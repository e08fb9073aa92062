"""A process that is killed at a call of a port: what it was about to do is not done, and nothing tidies up after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn

from fleet_agent.domain.run import ModelReply, ToolCall, Usage
from fleet_agent.domain.spending import Terms
from fleet_agent.ports import Ports
from fleet_agent.sim.chat import read_request
from fleet_agent.sim.prompt import read_offers


class Killed(BaseException):
    """No `except` and no `finally` of the story may make a difference: every port is dead from here on."""


@dataclass
class Fuse:
    """Blows at the call with this number (from 1), before it is made or after; without a number it only counts."""

    at: int | None = None
    after: bool = False
    calls: list[str] = field(default_factory=list[str])
    blown: bool = False

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        struck = self.count(name)
        if struck and not self.after:
            await self.strike()
        try:
            return await call()
        finally:  # a call that fails has been made as well
            if struck and self.after:
                await self.strike()
            if self.blown:
                raise Killed

    def count(self, name: str) -> bool:
        """Whether this call is the one."""
        if self.blown:
            raise Killed
        self.calls.append(name)
        return len(self.calls) == self.at

    async def strike(self) -> None:
        self.blow()

    def blow(self) -> NoReturn:
        self.blown = True
        raise Killed


class Fused:
    """A port whose calls go through a fuse. Signs of life come at their own time and are not counted."""

    def __init__(self, port: object, fuse: Fuse) -> None:
        self._port = port
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)
        if name == "stay_alive" or not asyncio.iscoroutinefunction(call):
            return call
        return lambda *args, **kwargs: self._fuse.around(name, lambda: call(*args, **kwargs))


def fused(ports: Ports, fuse: Fuse) -> Ports:
    wrapped: dict[str, Any] = {
        name: Fused(getattr(ports, name), fuse) for name in ("market", "model", "demand", "notifier", "journal")
    }
    return replace(ports, **wrapped)


@dataclass
class ScriptedModel:
    """Follows a script whose place it finds in the conversation alone, and takes only what the strictest server takes.

    It looks, then rents twice, tells the operator and asks for a wake in one reply, then writes notes, then finishes.
    `at_second_step` happens while it thinks for the second time.
    """

    at_second_step: Callable[[], object] = lambda: None
    asked: int = 0
    last: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"model": "script", "messages": list(messages), "tools": list(tools)}

    async def terms(self) -> Terms:
        return Terms(model="script")

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        read_request(dict(body))
        self.asked += 1
        self.last = body
        place = sum(message["role"] == "assistant" for message in body["messages"])
        if place == 1:
            self.at_second_step()
        listings = [read_offers(message["content"]) for message in body["messages"] if message["role"] == "tool"]
        calls = self.script(place, [offer.id for listing in listings for offer in listing])
        return ModelReply(
            text="",
            calls=tuple(_call(f"{self.asked:04d}{number:05d}", call) for number, call in enumerate(calls)),
            usage=Usage(tokens_in=100),
        )

    def script(self, place: int, offers: Sequence[int]) -> list[str]:
        """The calls of the reply at this place; `offers` are all that were listed to it."""
        match place:
            case 0:
                return ["search_offers {}", "list_boxes {}"]
            case 1:
                rents = [f'rent_box {{"offer_id": {offer}, "reason": "work waits"}}' for offer in offers[:2]]
                tell = 'notify_human {"text": "Two boxes are coming."}'
                check = 'schedule_next_check {"minutes": 30, "reason": "are they at work?"}'
                return [rents[0], tell, check, rents[1]]
            case 2:
                return ['set_notes {"text": "two boxes"}']
            case _:
                return ['finish {"action": false, "state_changed": true, "summary": "Rented."}']

    def words(self) -> str:
        return "\n".join(message["content"] for message in self.last["messages"])


def _call(call_id: str, text: str) -> ToolCall:
    name, arguments = text.split(" ", 1)
    return ToolCall(id=call_id, name=name, arguments=arguments, provider_id="")
