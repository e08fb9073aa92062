"""Is everything in place? Each finding is one sentence; a bad one says how to mend it.

Looks from the inside out: the settings, our database, the process tree, then each neighbour, by calls that rent
nothing and change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta

from fleet_agent.domain.actions import tool_definitions
from fleet_agent.domain.fleet import Frozen
from fleet_agent.domain.money import show_usd
from fleet_agent.domain.policy import Policy
from fleet_agent.errors import FixSetup, FleetAgentError, ModelUnusable
from fleet_agent.ports import OfferQuery, Ports
from fleet_agent.settings import Settings, missing_for_up

TEST_CALL = timedelta(seconds=60)


class Finding(Frozen):
    well: bool
    sentence: str


def look_at_settings(settings: Settings) -> list[Finding]:
    missing = missing_for_up(settings)
    if not missing:
        return [Finding(well=True, sentence="settings: complete")]
    return [Finding(well=False, sentence=f"settings: missing {line}") for line in missing]


def look_at_tree(pid: int | None, *, answers: bool) -> Finding:
    """The process tree of number `pid`, None where none runs, and whether its Prefect server answers."""
    if pid is None:
        return Finding(well=False, sentence="tree: not running, nothing watches → fleet-agent up")
    if not answers:
        return Finding(
            well=False, sentence=f"tree: runs (pid {pid}), but its Prefect server does not answer → see its log"
        )
    return Finding(well=True, sentence=f"tree: runs (pid {pid}) and Prefect answers")


async def examine(ports: Ports, policy: Policy) -> AsyncGenerator[Finding]:
    """The neighbours one after the other; an ill one does not hide the next."""
    checks: Sequence[tuple[str, Callable[[], Awaitable[str]]]] = (
        ("policy", lambda: _launch(policy)),
        ("vast.ai account", lambda: _account(ports)),
        ("vast.ai boxes", lambda: _boxes(ports)),
        ("vast.ai offers", lambda: _offers(ports, policy)),
        ("demand", lambda: _demand(ports)),
        ("model", lambda: _model(ports)),
    )
    for name, check in checks:
        try:
            yield Finding(well=True, sentence=f"{name}: {await check()}")
        except FleetAgentError as error:
            yield Finding(well=False, sentence=f"{name}: {error}")


async def _launch(policy: Policy) -> str:
    if not policy.launch.image:
        raise FixSetup(
            "no image to launch, so nothing can be rented", "fleet-agent policy set launch.image=NAME@sha256:DIGEST"
        )
    return f"launches {policy.launch.image}"


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
