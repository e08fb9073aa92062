"""The verbs on what is rented: the boxes, the hosts they stand on, the actions that wait for a person's word.

`destroy-all` alone speaks with the provider itself, so that it works when everything else is dead. Whatever else is
ordered here is a row that another process carries out.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from fleet_agent import controls
from fleet_agent.cli.place import FleetName, open_desk, settings_of, tell
from fleet_agent.controls import Desk
from fleet_agent.settings import Settings

verbs = typer.Typer()


# --- the emergency stop ----------------------------------------------------------------------------------------------


@verbs.command("destroy-all")
def destroy_all(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False, fleet: FleetName = None
) -> None:
    """Emergency stop: pause, then destroy every box of this fleet, whatever else is dead."""
    from fleet_agent import wiring

    async def stop(desk: Desk, settings: Settings) -> None:
        async with wiring.open_market(settings, desk.database) as market:
            await controls.destroy_all(desk, market, sleep=asyncio.sleep, tell=tell)

    with open_desk(fleet) as (desk, live):
        settings = settings_of(live, fleet)
        if not yes:
            typer.confirm(f"Destroy every box of fleet {desk.fleet} in {desk.place}?", abort=True)
        asyncio.run(stop(desk, settings))
