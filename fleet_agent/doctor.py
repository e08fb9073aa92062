"""Is everything in place? Each finding is one sentence; a bad one says how to mend it.

Looks from the inside out: the settings, our database, the process tree, then each neighbour, by calls that rent
nothing and change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from fleet_agent.domain.actions import tool_definitions
from fleet_agent.domain.money import show_usd
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.values import Frozen
from fleet_agent.errors import FixSetup, FleetAgentError, ModelUnusable
from fleet_agent.ports import OfferQuery, Ports
from fleet_agent.settings import Settings, missing_for_up

TEST_CALL = timedelta(seconds=60)


class Finding(Frozen):
    well: bool
    sentence: str


Check = Callable[[], Awaitable[str]]
"""What is well, in a few words; raises FleetAgentError where it is not."""


async def examine(
    settings: Settings,
    *,
    database: Check,
    tree: Check,
    policy: Callable[[], Policy],
    ports: Callable[[], AbstractAsyncContextManager[Ports]],
) -> AsyncGenerator[Finding]:
    """One finding after the other; what is ill does not hide the next. The neighbours need all settings."""
    missing = missing_for_up(settings)
    for line in missing:
        yield Finding(well=False, sentence=f"settings: missing {line}")
    yield await _finding("database", database)
    yield await _finding("tree", tree)
    if missing:
        return
    try:
        async with ports() as opened:
            for name, check in _neighbours(opened, policy(), settings):
                yield await _finding(name, check)
    except FleetAgentError as error:
        yield Finding(well=False, sentence=f"neighbours: {error}")


async def _finding(name: str, check: Check) -> Finding:
    try:
        return Finding(well=True, sentence=f"{name}: {await check()}")
    except FleetAgentError as error:
        return Finding(well=False, sentence=f"{name}: {error}")


def _neighbours(ports: Ports, policy: Policy, settings: Settings) -> Sequence[tuple[str, Check]]:
    return (
        ("policy", lambda: _launch(policy, settings)),
        ("vast.ai account", lambda: _account(ports)),
        ("vast.ai boxes", lambda: _boxes(ports)),
        ("vast.ai offers", lambda: _offers(ports, policy)),
        ("demand", lambda: _demand(ports)),
        ("model", lambda: _model(ports)),
    )


async def _launch(policy: Policy, settings: Settings) -> str:
    if not policy.launch.image:
        raise FixSetup(
            "no image to launch, so nothing can be rented", "fleet-agent policy set launch.image=NAME@sha256:DIGEST"
        )
    unset = _unset_box_variables(policy, settings)
    if unset:
        raise FixSetup(
            f"launch.env names {', '.join(unset)}, so renting fails", "add it to FLEET_BOX_ENV, restart `up`"
        )
    return f"launches {policy.launch.image}"


def _unset_box_variables(policy: Policy, settings: Settings) -> list[str]:
    wanted = {value[1:] for value in policy.launch.env.values() if value.startswith("$")}
    return sorted(wanted - set(settings.box_env))


async def _account(ports: Ports) -> str:
    account = await ports.market.account()
    if account.credit_usd <= 0:
        raise FixSetup(f"credit is {show_usd(account.credit_usd)}", "add credit at vast.ai")
    return f"credit {show_usd(account.credit_usd)}"


async def _boxes(ports: Ports) -> str:
    return f"{len((await ports.market.inventory()).instances)} in a complete list"


async def _offers(ports: Ports, policy: Policy) -> str:
    offers = await ports.market.offers(OfferQuery(policy=policy))
    if not offers:
        raise FixSetup("no offer meets the policy now", "loosen offers.* with `fleet-agent policy set`")
    return f"{len(offers)} meet the policy"


async def _demand(ports: Ports) -> str:
    demand = await ports.demand.demand()
    return f"{demand.pending} pending, {demand.running} running"


async def _model(ports: Ports) -> str:
    """A model that cannot call tools looks healthy and never acts: it must be seen to call one."""
    words = [
        {"role": "system", "content": "This is a test of the connection."},
        {"role": "user", "content": "Call the tool list_boxes once."},
    ]
    reply = await ports.model.reply(ports.model.body(words, tool_definitions()), within=TEST_CALL)
    if not reply.calls:
        raise ModelUnusable(
            "it answers, but calls no tool", "enable tool calling on the server, or set FLEET_MODEL_NAME to another"
        )
    return f"answers and calls tools ({reply.usage.tokens} tokens)"
