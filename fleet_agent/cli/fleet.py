"""The verbs on what is rented: the boxes, the hosts they stand on, the actions that wait for a person's word.

`destroy-all` alone speaks with the provider itself, so that it works when everything else is dead. Whatever else is
ordered here is a row that another process carries out.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from fleet_agent import controls
from fleet_agent.cli.place import AsJson, FleetName, open_desk, settings_of, tell
from fleet_agent.controls import Desk
from fleet_agent.domain.hosts import Failure
from fleet_agent.domain.show import utc
from fleet_agent.printing import BAN_COLUMNS, BOX_COLUMNS, HOST_COLUMNS, print_json, print_rows
from fleet_agent.settings import Settings
from fleet_agent.stack.runtime import WATCH, Runtime

verbs = typer.Typer()
boxes_verbs = typer.Typer(help="The machines that are rented now.", no_args_is_help=True)
hosts_verbs = typer.Typer(
    help="The machines of strangers: what they have shown, and which are banned.", no_args_is_help=True
)

BoxNumber = Annotated[int, typer.Argument(metavar="BOX", min=1, max=2**63 - 1, help="its number in `boxes list`")]


# --- boxes -----------------------------------------------------------------------------------------------------------


@boxes_verbs.command("list")
def boxes_list(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """Every box that is not gone, oldest first: how far it is, what it costs, what it says of itself."""
    with open_desk(fleet) as (desk, _):
        rows = controls.boxes(desk)
    print_rows(rows, BOX_COLUMNS, as_json=as_json)


@boxes_verbs.command("drain")
def boxes_drain(box: BoxNumber, fleet: FleetName = None) -> None:
    """Let a box finish what it has at hand, take no more, and be destroyed once it is idle or at its deadline."""
    with open_desk(fleet) as (desk, live):
        controls.drain_box(desk, box)
    tell(f"Box {box} is to be drained: {_when_it_is_done(live)}.")


@boxes_verbs.command("destroy")
def boxes_destroy(box: BoxNumber, fleet: FleetName = None) -> None:
    """Destroy a box at once; what it is proving is lost."""
    with open_desk(fleet) as (desk, live):
        controls.destroy_box(desk, box)
    tell(f"Box {box} is to be destroyed: {_when_it_is_done(live)}.")


@boxes_verbs.command("protect")
def boxes_protect(
    box: BoxNumber,
    off: Annotated[bool, typer.Option("--off", help="protect it no more")] = False,
    fleet: FleetName = None,
) -> None:
    """Have nobody give a box up: neither agent nor watch, nor you before you take that back. `destroy-all` does."""
    with open_desk(fleet) as (desk, _):
        controls.protect_box(desk, box, not off)
    tell(f"Box {box} is protected{' no more' if off else ''}.")


def _when_it_is_done(live: Runtime | None) -> str:
    if live is None or WATCH not in live.processes:
        return "ordered, but no watch runs that would do it: `fleet-agent up`, or `fleet-agent destroy-all` without one"
    return "the watch does it now; `fleet-agent ledger` shows what comes of it"


# --- what waits for a word -------------------------------------------------------------------------------------------


@verbs.command()
def approve(key: str, fleet: FleetName = None) -> None:
    """Let the agent do what it asked for, once and within the bound that is shown; `status` has the keys."""
    with open_desk(fleet) as (desk, _):
        granted = controls.approve(desk, key)
    tell(f"Approved: {granted.in_words()}. The next run carries it out, within that or not at all.")


@verbs.command()
def reject(key: str, fleet: FleetName = None) -> None:
    """Refuse what the agent asked for."""
    with open_desk(fleet) as (desk, _):
        controls.reject(desk, key)
    tell(f"Rejected {key}. The next run knows.")


# --- hosts -----------------------------------------------------------------------------------------------------------


@hosts_verbs.command("list")
def hosts_list(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """Which machines are banned, newest first, and what every machine that was rented has shown."""
    with open_desk(fleet) as (desk, _):
        found = controls.hosts(desk)
    if as_json:
        print_json(found)
        return
    print_rows(found["host_ban"], BAN_COLUMNS, as_json=False)
    tell("")
    print_rows(found["host"], HOST_COLUMNS, as_json=False)


@hosts_verbs.command("ban")
def hosts_ban(
    machine: Annotated[int, typer.Argument(help="its number at the provider")],
    failure: Annotated[Failure, typer.Argument(help="what the next try would bring; `policy get` says how long each")],
    reason: str,
    fleet: FleetName = None,
) -> None:
    """Rent a machine no more for a while; it ends by itself."""
    with open_desk(fleet) as (desk, _):
        held = controls.ban_host(desk, machine, failure, reason)
    tell(f"Machine {machine} is not rented until {utc(held.expires_at)} ({held.failure.value}).")


@hosts_verbs.command("lift")
def hosts_lift(machine: int, fleet: FleetName = None) -> None:
    """Let a banned machine be rented again."""
    with open_desk(fleet) as (desk, _):
        controls.lift_ban(desk, machine)
    tell(f"Machine {machine} may be rented again.")


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
