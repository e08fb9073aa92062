"""A model that says what a test wants, and a market whose boxes print what a test wants."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from fleet_agent.domain.run import ModelReply, ToolCall, Usage
from fleet_agent.domain.spending import Terms
from fleet_agent.ports import Market, Model
from fleet_agent.sim.chat import read_request
from fleet_agent.store.inbox import Post, post
from tests.world import Installation

Call = tuple[str, Mapping[str, Any]]


def finish(summary: str = "All is well.", *, changed: bool = True) -> Call:
    return "finish", {"action": False, "state_changed": changed, "summary": summary}


@dataclass
class Saying:
    """Replies with the next of `replies`, each a list of calls, and then finishes. Takes only what the strictest server
    takes, and keeps what it was asked."""

    inner: Model
    replies: list[list[Call]]
    asked: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.inner.body(messages, tools)

    async def terms(self) -> Terms:
        return Terms(model="saying")

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        read_request(dict(body))
        self.asked.append(body)
        calls = self.replies.pop(0) if self.replies else [finish()]
        made = tuple(
            ToolCall(id=f"{next(self.ids):09d}", name=name, arguments=json.dumps(arguments), provider_id="")
            for name, arguments in calls
        )
        return ModelReply(text="", calls=made, usage=Usage(tokens_in=100))

    def words(self) -> str:
        """Everything that was in the newest request, as one text."""
        return "\n".join(message["content"] for message in self.asked[-1]["messages"])


class Printing:
    """The market, with boxes that print `printed`."""

    def __init__(self, market: Market, printed: str) -> None:
        self._market = market
        self._printed = printed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._market, name)

    async def logs(self, vast_id: int, tail: int) -> str:
        return self._printed


def says(fleet: Installation, *replies: list[Call]) -> Saying:
    """From now on the fleet's model says this."""
    model = Saying(fleet.ports.model, list(replies))
    fleet.ports = replace(fleet.ports, model=model)
    return model


def prints(fleet: Installation, printed: str) -> None:
    """From now on every box of the fleet prints this."""
    fleet.ports = replace(fleet.ports, market=Printing(fleet.ports.market, printed))  # pyright: ignore[reportArgumentType]


def posts(fleet: Installation, event: Post) -> None:
    with fleet.database.shared(fleet.fleet) as tx:
        post(tx, fleet.fleet, event, now=fleet.time.now())
