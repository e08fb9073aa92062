"""Curio's own drain: a cordon counts once the list shows it, and to ask again is as good as once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.clients.curio_rpc import Cordoned, CurioNodes
from fleet_agent.errors import AlreadyGone, TryLater


@dataclass
class Curio:
    """A cluster behind its web UI, which answers a cordon of any number well."""

    nodes: dict[int, str] = field(default_factory=lambda: {11: "C.101", 12: "C.102", 13: "sealer"})
    cordoned: set[int] = field(default_factory=set[int])
    tasks: int = 3
    is_deaf: bool = False
    asked: list[tuple[str, list[Any]]] = field(default_factory=list[tuple[str, list[Any]]])

    def serve(self, request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/api/webrpc/v0")
        call = json.loads(request.content)
        self.asked.append((call["method"], call["params"]))
        match call["method"], call["params"]:
            case "CurioWeb.ClusterMachines", []:
                result = [self._machine(id, name) for id, name in self.nodes.items()] or None
            case "CurioWeb.Cordon", [id]:
                self.cordoned |= set() if self.is_deaf else {id}
                return httpx.Response(200, json={"jsonrpc": "2.0", "id": call["id"]})  # a null result is left out
            case method, parameters:
                raise AssertionError(f"{method} {parameters}")
        return httpx.Response(200, json={"jsonrpc": "2.0", "result": result, "id": call["id"]})

    def _machine(self, id: int, name: str) -> dict[str, Any]:
        is_cordoned = id in self.cordoned
        return {
            "Address": f"10.0.0.{id}:12300",
            "ID": id,
            "Name": name,
            "SinceContact": "12s",
            "Tasks": "PSProve",
            "Unschedulable": is_cordoned,
            "RunningTasks": self.tasks if is_cordoned else 0,  # it counts those of no other
        }


def nodes(serve: Callable[[httpx.Request], Any], **options: Any) -> CurioNodes:
    client = httpx.AsyncClient(base_url="http://curio.test:4701", transport=httpx.MockTransport(serve))
    return CurioNodes(client, **options)


async def test_a_node_is_cordoned_and_what_it_has_at_hand_is_said() -> None:
    curio = Curio()

    assert await nodes(curio.serve).cordon("C.102") == Cordoned(node="C.102", tasks=3)
    assert curio.cordoned == {12}


async def test_to_ask_again_changes_nothing_and_tells_how_far_it_is() -> None:
    curio = Curio()
    ours = nodes(curio.serve)
    await ours.cordon("C.102")
    curio.tasks = 0

    assert await ours.cordon("C.102") == Cordoned(node="C.102", tasks=0)
    assert curio.asked.count(("CurioWeb.Cordon", [12])) == 1


async def test_a_node_that_is_listed_twice_is_cordoned_twice() -> None:
    """One of them is the row of its life before, which Curio keeps for ten minutes."""
    curio = Curio(nodes={11: "C.101", 12: "C.101"})

    assert (await nodes(curio.serve).cordon("C.101")).tasks == 6
    assert curio.cordoned == {11, 12}


async def test_a_node_that_curio_does_not_know_takes_no_work() -> None:
    curio = Curio(nodes={11: "C.1010", 13: "sealer"})

    with pytest.raises(AlreadyGone, match=r"no node C\.101"):
        await nodes(curio.serve).cordon("C.101")
    assert curio.cordoned == set()


async def test_a_cordon_that_the_list_does_not_show_is_none() -> None:
    """Curio answers well to the number of no machine, too. The naive caller takes that for done."""
    curio = Curio(is_deaf=True)

    with pytest.raises(TryLater, match="shows it as schedulable"):
        await nodes(curio.serve).cordon("C.101")
    assert ("CurioWeb.Cordon", [11]) in curio.asked


REFUSED = {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "cordon failed: the\ndatabase is busy"}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(200, json=REFUSED), "refuses ClusterMachines: cordon failed: the database is busy"),
        (httpx.Response(500, json=REFUSED), "refuses ClusterMachines"),
        (httpx.Response(502, text="Bad Gateway"), "what answers 502 is no Curio"),
        (httpx.Response(200, html="<title>Sign in</title>"), "what answers 200 is no Curio"),
        (httpx.Response(200, json={}), "what answers 200 is no Curio"),
        (httpx.Response(200, json={"id": 2, "result": []}), "what answers 200 is no Curio"),
        (httpx.Response(200, json={"id": 1, "result": {}}), "not understood"),
        (httpx.Response(200, json={"id": 1, "result": []}), "lists no machine"),
        (httpx.Response(200, json={"id": 1, "result": None}), "lists no machine"),
        (httpx.Response(200, json={"id": 1}), "lists no machine"),
        (httpx.Response(200, json={"id": 1, "result": [{"ID": 11, "Name": "C.101"}]}), "not understood"),
        (httpx.Response(302, headers={"location": "/login"}), "what answers 302 is no Curio"),
    ],
)
async def test_what_is_no_list_of_machines_is_unknown_and_not_gone(answer: httpx.Response, words: str) -> None:
    """A list without the node would say that it is gone, and takes no work; whoever answers is on every true one."""
    with pytest.raises(TryLater, match=words):
        await nodes(lambda _: answer).cordon("C.101")


async def test_a_curio_that_is_not_there_is_told_with_the_remedy() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(TryLater, match="FLEET_CURIO_WEB_URL"):
        await nodes(refuse).cordon("C.101")


async def test_a_curio_that_never_answers_is_given_up_at_the_deadline() -> None:
    async def silence(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    with pytest.raises(TryLater, match="took over"):
        await nodes(silence, deadline=timedelta(0)).cordon("C.101")
