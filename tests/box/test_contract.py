"""What a real box says, what a simulated one says, and what the door understands are the same words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, get_args

import httpx

from fleet_agent.domain.box_reports import VARIABLE, BoxReport, OwnWord, hook_of
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.hooks.app import hooks_app
from fleet_agent.hooks.rate import Buckets
from fleet_agent.sim.demand import DemandScript
from fleet_agent.sim.market import Order
from fleet_agent.sim.reporting import HOOK, report
from fleet_agent.store import ledger, session
from fleet_agent.store.database import open_database
from fleet_agent.store.installation import found_installation
from fleet_agent.store.tables import Box
from tests.box.conftest import Machine
from tests.box.door import DRAIN, Owner
from tests.contract.serving import serving
from tests.sim.test_demand import Bench
from tests.stack.waiting import until
from tests.store.rig import IMAGE, Fleet

WAY = list(get_args(OwnWord))


def vocabulary(heard: Iterable[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Each word at each stage, with the kind of its value."""
    kinds = {int: "int", float: "float", bool: "bool", str: "str"}
    return {
        (words["stage"], word): kinds[type(value)]
        for words in heard
        for word, value in words.items()
        if word != "stage"
    }


async def simulated() -> list[dict[str, Any]]:
    """All that one box says, from its start to the end of its last proof."""
    bench = Bench(DemandScript(waiting=1000))
    offer = next(offer for offer in bench.market.offers() if offer.rentable)
    bench.market.rent(offer.lot.ask_id, Order("prover@sha256:0", env={HOOK: "http://hooks.test/box/1"}))
    heard: list[dict[str, Any]] = []

    def hear(request: httpx.Request) -> httpx.Response:
        heard.append(json.loads(request.content))
        return httpx.Response(200, json={"drain": len(heard) > 100})

    async with httpx.AsyncClient(transport=httpx.MockTransport(hear)) as client:
        for _ in range(200):
            bench.clock.advance(timedelta(seconds=10))
            await report(bench.market, bench.queue, client)
    return heard


async def test_a_simulated_box_speaks_as_a_real_one_does(machine: Machine, owner: Owner) -> None:
    owner.tasks = 1
    comes = 'for i in 1 2 3 4; do head -c 500000 /dev/zero >> "$BOX_PARAMS/a"; sleep 0.1; done'
    machine.starts(BOX_FETCH=comes, BOX_PARAMS_GB="0.002")
    owner.until(lambda words: words["stage"] == "proving")
    owner.answer = lambda _: DRAIN
    owner.posts(2)
    owner.tasks = 0
    owner.until(lambda words: words.get("draining"))

    real, made_up = owner.heard, await simulated()

    assert owner.stages() == list(dict.fromkeys(words["stage"] for words in made_up)) == WAY
    assert vocabulary(real) == vocabulary(made_up)
    assert HOOK == VARIABLE == "FLEET_BOX_HOOK"


async def test_the_door_understands_every_word_of_a_box(machine: Machine, owner: Owner) -> None:
    """Also its last ones. The control is a word that nobody declared."""
    life = machine.starts(MIN_RATE="31")
    life.ends()
    said = [*owner.heard, *await simulated()]

    assert {word for words in said for word in words} == set(BoxReport.model_fields)
    for words in said:
        understood = BoxReport.model_validate_json(json.dumps(words)).model_dump(exclude_none=True)
        assert understood == words
    assert BoxReport.model_validate_json('{"heat": 80}').model_dump(exclude_none=True) == {}


async def test_a_real_box_at_the_real_door(machine: Machine, owner: Owner, database_url: str) -> None:
    """It stands in the ledger as far as it is, and obeys what the ledger says."""
    hook = hook_of("http://hooks.invalid", "1" * 43)
    database = open_database(database_url)
    found_installation(database)
    fleet = Fleet(database)
    fleet.set_policy(launch__image=IMAGE)
    key = await fleet.rent(await fleet.open(), hook_digest=hook.digest)
    await fleet.journal.record_outcome(key, ActionStatus.DONE, "rented", vast_id=101)

    def row(column: str) -> Any:
        return fleet.box(key)[column]

    owner.tasks = 2
    with serving(hooks_app(database, fleet.clock, Buckets(fleet.clock.elapsed))) as origin:
        path = hook.address.get_secret_value().removeprefix("http://hooks.invalid")
        life = machine.starts(FLEET_BOX_HOOK=f"{origin}{path}")
        until(lambda: (row("stage"), row("tasks")) == ("proving", 2), picture=life.log)
        assert row("proofs_per_hour") == 30.0

        with database.exclusive(fleet.name) as tx:
            box = tx.get(Box, key)
            assert box is not None
            ledger.drain(box, "no work", session.policy(tx, fleet.name), fleet.clock.now())
        life.noted("curio cli --machine 127.0.0.1:12300 cordon")
        owner.tasks = 0
        life.noted("curio ends")
        until(lambda: (row("stage"), row("tasks")) == ("draining", 0), picture=life.log)
        life.end()
        life.ends()
    database.close()
