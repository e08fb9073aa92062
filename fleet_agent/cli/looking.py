"""The verbs that show what is and what was, and change nothing."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from fleet_agent import controls
from fleet_agent.cli.place import AsJson, FleetName, open_desk, settings_of
from fleet_agent.controls import Desk
from fleet_agent.printing import ACTION_COLUMNS, RUN_COLUMNS, USAGE_COLUMNS, print_json, print_rows, print_status
from fleet_agent.settings import Settings

verbs = typer.Typer()


@verbs.command()
def status(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """The fleet at a glance."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, live), desk.database.transaction() as tx:
        found = reading.status(tx, desk.fleet, now=desk.clock.now()) | {
            "tree": live and live.pid,
            "place": desk.place,
        }
    print_json(found) if as_json else print_status(found)


@verbs.command()
def runs(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 20,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What the agent did, oldest first: trigger, verdict, tokens, cost, and why it ended."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.runs(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, RUN_COLUMNS, as_json=as_json)


@verbs.command()
def usage(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest rows")] = 48,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What the models used, hour by hour, oldest first; `as before`: how far a request begins like the last one."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.usage(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, USAGE_COLUMNS, as_json=as_json)


@verbs.command("ledger")
def show_ledger(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """Every action: who asked, what the rules said, what became of it."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.actions(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, ACTION_COLUMNS, as_json=as_json)


@verbs.command()
def prompt(
    run: Annotated[int | None, typer.Option(min=1, max=2**62, help="whose newest request; default: the next")] = None,
    fleet: FleetName = None,
) -> None:
    """The exact request body that was or would be sent to the model, and its token count, estimated from above."""
    from fleet_agent import wiring

    async def next_request(desk: Desk, settings: Settings) -> tuple[dict[str, Any], int]:
        async with wiring.open_ports(settings) as ports:
            return await controls.next_request(desk, ports)

    with open_desk(fleet) as (desk, live):
        if run is not None:
            body, tokens = controls.sent_request(desk, run, wiring.count_tokens)
        else:
            body, tokens = asyncio.run(next_request(desk, settings_of(live, fleet)))
    print_json({"tokens": tokens, "body": body})
