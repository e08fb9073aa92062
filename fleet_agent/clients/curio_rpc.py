"""A second way to drain a box: Curio itself gives its node no more work.

A box hears by its own hook that it is to drain. Where it cannot reach us, Curio still can be told: it marks the node as
unschedulable in its database, and every node reads its own mark within half a minute. Until then it may take one more
task, so `tasks` is the truth only after that.

The call is the web UI's JSON-RPC (`CurioWeb`), which asks for no password: it belongs in a private network. It answers
well whatever number of a machine it is given, so a cordon counts only once the list shows it. To do it twice is as good
as once; nothing here is an effect on anything that we pay for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from fleet_agent.clients.address import usable_address
from fleet_agent.clients.secrecy import quoted
from fleet_agent.clients.tls import trusted
from fleet_agent.errors import AlreadyGone, TryLater

SETTING = "FLEET_CURIO_WEB_URL"
PATH = "/api/webrpc/v0"
DEADLINE = timedelta(seconds=20)
"""Real time for all calls of one cordon."""


@dataclass(frozen=True)
class Cordoned:
    """A node that is given no more work, and how many tasks it still has at hand, of any kind."""

    node: str
    tasks: int


def open_client(base_url: str) -> httpx.AsyncClient:
    """A client for `CurioNodes`; close it when done. `base_url` is where the web UI is.

    Raises FixSetup where no server can be at `base_url`.
    """
    timeout = httpx.Timeout(10, connect=5)
    return httpx.AsyncClient(base_url=usable_address(base_url, SETTING), timeout=timeout, verify=trusted())


class CurioNodes:
    """The nodes of a Curio cluster, by the names that they were started with (`curio run --name`).

    A box of ours is named `C.{vast_id}` where its image says nothing else (infra/box). `client` is one from
    `open_client`.
    """

    def __init__(self, client: httpx.AsyncClient, *, deadline: timedelta = DEADLINE) -> None:
        self._client = client
        self._deadline = deadline
        self._numbers = itertools.count(1)

    async def cordon(self, node: str) -> Cordoned:
        """Have it take no more work. Also says how it stands with a node that was cordoned before.

        Raises AlreadyGone where Curio knows no such node, which takes no work either; TryLater where nobody knows.
        """
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                return await self._cordon(node)
        except TimeoutError as error:
            cause = f"Curio took over {self._deadline.total_seconds():.0f} s to cordon {node}"
            raise TryLater(cause, "see whether its database is busy") from error

    async def _cordon(self, node: str) -> Cordoned:
        """All machines of that name: a node that came back at another address is listed twice for ten minutes."""
        for machine in await self._machines(node):
            if not machine.unschedulable:
                await self._call("Cordon", machine.id)
        machines = await self._machines(node)
        if not all(machine.unschedulable for machine in machines):
            raise TryLater(f"Curio took the cordon of {node}, and shows it as schedulable", "look again")
        return Cordoned(node=node, tasks=sum(machine.running_tasks for machine in machines))

    async def _machines(self, node: str) -> Sequence[Machine]:
        listed = await self._call("ClusterMachines")
        try:
            machines = _MACHINES.validate_python(listed)
        except ValidationError as error:
            cause = "Curio lists its machines in a way that is not understood"
            raise TryLater(cause, "see whether it is newer") from error
        if not machines:
            raise TryLater("Curio lists no machine, not even the one that answers", "look again")
        found = [machine for machine in machines if machine.name == node]
        if not found:
            raise AlreadyGone(f"Curio knows no node {node}")
        return found

    async def _call(self, method: str, *parameters: int) -> Any:
        """Its result. Raises TryLater."""
        request = {
            "jsonrpc": "2.0",
            "id": next(self._numbers),
            "method": f"CurioWeb.{method}",
            "params": list(parameters),
        }
        try:
            response = await self._client.post(PATH, json=request)
        except httpx.RequestError as error:
            raise TryLater(f"Curio cannot be reached ({type(error).__name__})", f"check {SETTING}") from error
        try:  # whatever the status: of what it refuses it says why
            answer = _Answer.model_validate_json(response.content)
        except ValidationError as error:
            raise TryLater(f"what answers {response.status_code} is no Curio", f"check {SETTING}") from error
        if answer.id != request["id"]:
            raise TryLater(f"what answers {response.status_code} is no Curio", f"check {SETTING}")
        if answer.error is not None:
            raise TryLater(f"Curio refuses {method}: {quoted(answer.error.message)}", "see its log")
        return answer.result


# --- the wire ---------------------------------------------------------------------------------------------------------


class Machine(BaseModel):
    id: Annotated[int, Field(alias="ID")]
    name: Annotated[str, Field(alias="Name")]
    unschedulable: Annotated[bool, Field(alias="Unschedulable")]
    running_tasks: Annotated[int, Field(alias="RunningTasks", ge=0)]
    """Counted only of those that are unschedulable."""


class _Refusal(BaseModel):
    message: str = ""


class _Answer(BaseModel):
    id: int | None = None
    error: _Refusal | None = None
    result: Any = None


_MACHINES = TypeAdapter(list[Machine] | None)
"""An empty list of Go is null."""
