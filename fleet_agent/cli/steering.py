"""The verbs that tell the agent what to do and when: a message, a mode, what it is to achieve, its limits, its wakes.

Each is one transaction of our database and needs nothing else to live. What acts on boxes is in `fleet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fleet_agent import controls
from fleet_agent.cli.place import AsJson, FleetName, open_desk, settings_of, tell
from fleet_agent.domain.policy import flattened
from fleet_agent.domain.rules import Brake, Mode
from fleet_agent.errors import FixSetup
from fleet_agent.printing import INBOX_COLUMNS, WAKE_COLUMNS, print_json, print_rows
from fleet_agent.stack.runtime import WATCH, Runtime
from fleet_agent.store.tables import Purpose

verbs = typer.Typer()
objective_verbs = typer.Typer(help="What the agent is to achieve, in the operator's words.", no_args_is_help=True)
policy_verbs = typer.Typer(help="The operator's limits.", no_args_is_help=True)
wakes_verbs = typer.Typer(help="Future checks, asked for by the agent or by you.", no_args_is_help=True)
inbox_verbs = typer.Typer(help="What happened and no run has consumed yet.", no_args_is_help=True)
token_verbs = typer.Typer(help="What strangers must know to be let in.", no_args_is_help=True)


@verbs.command()
def say(text: str, fleet: FleetName = None) -> None:
    """Leave a message for the agent; a running tree answers it at once."""
    with open_desk(fleet) as (desk, live):
        event = controls.say(desk, text)
    tell(f"Message {event}: {_when_it_is_taken(live)}.")


@verbs.command("run-now")
def run_now(fleet: FleetName = None) -> None:
    """Have a run at once; it asks the model whatever it finds."""
    with open_desk(fleet) as (desk, live):
        event = controls.run_now(desk)
    tell(f"Request {event}: {_when_it_is_taken(live)}.")


def _when_it_is_taken(live: Runtime | None) -> str:
    if live is None:
        return "kept for the next run, but no process tree runs: `fleet-agent up`, or `fleet-agent cycle --once`"
    if WATCH not in live.processes:
        return "kept for the next heartbeat; no watch runs that would ring for it"
    return "a run takes it now; `fleet-agent runs` shows how it ends"


@verbs.command("reset-session")
def reset_session(fleet: FleetName = None) -> None:
    """Begin a new conversation. Run ids go on counting; wakes, policy and objective stay."""
    with open_desk(fleet) as (desk, _):
        epoch = controls.reset_session(desk)
    tell(f"A new session begins with the next run (epoch {epoch}).")


ScaleOut = Annotated[bool, typer.Option("--scale-out", help="renting alone")]
ScaleIn = Annotated[bool, typer.Option("--scale-in", help="giving boxes up alone")]


@verbs.command()
def pause(scale_out: ScaleOut = False, scale_in: ScaleIn = False, fleet: FleetName = None) -> None:
    """Nothing is rented or destroyed from now on; the agent goes on looking and answering."""
    brakes = _brakes(scale_out, scale_in)
    with open_desk(fleet) as (desk, _):
        if brakes:
            controls.pause_scaling(desk, *brakes)
        else:
            controls.set_mode(desk, Mode.PAUSED)
    tell(f"Paused{_alone(brakes)}. Boxes that run go on billing.")


@verbs.command()
def resume(
    scale_out: ScaleOut = False,
    scale_in: ScaleIn = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="everything happens but the calls")] = False,
    fleet: FleetName = None,
) -> None:
    """Let the agent act again, without any brake: not those either that were drawn because something went wrong."""
    brakes = _brakes(scale_out, scale_in)
    if brakes and dry_run:
        raise FixSetup("one brake is let go, or the mode is set, not both", "fleet-agent resume --dry-run")
    with open_desk(fleet) as (desk, _):
        if brakes:
            controls.resume_scaling(desk, *brakes)
        else:
            controls.resume(desk, Mode.DRY_RUN if dry_run else Mode.LIVE)
        mode = controls.mode(desk)
    if brakes:
        tell(f"Resumed{_alone(brakes)}. The mode is {mode.value}.")
    else:
        tell("Dry run: everything happens but the calls." if dry_run else "Live.")


def _brakes(scale_out: bool, scale_in: bool) -> list[Brake]:
    return [brake for brake, named in ((Brake.SCALE_OUT, scale_out), (Brake.SCALE_IN, scale_in)) if named]


def _alone(brakes: Sequence[Brake]) -> str:
    names = {Brake.SCALE_OUT: "renting", Brake.SCALE_IN: "giving boxes up"}
    return f": {' and '.join(names[brake] for brake in brakes)}" if brakes else ""


# --- objective and policy --------------------------------------------------------------------------------------------


@objective_verbs.command("get")
def objective_get(fleet: FleetName = None) -> None:
    """Show it."""
    with open_desk(fleet) as (desk, _):
        tell(controls.objective(desk) or "(none set)")


@objective_verbs.command("set")
def objective_set(text: str, fleet: FleetName = None) -> None:
    """Set it; an empty text takes it away."""
    with open_desk(fleet, may_begin=True) as (desk, _):
        controls.set_objective(desk, text)
    tell(f"{'Set' if text else 'Taken away'} for fleet {desk.fleet} in {desk.place}. The next run sees it.")


@policy_verbs.command("get")
def policy_get(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """Every key with its value."""
    with open_desk(fleet) as (desk, _):
        values = flattened(controls.policy(desk))
    if as_json:
        print_json(values)
    else:
        for key, value in values.items():
            tell(f"{key}={value}")


@policy_verbs.command("set")
def policy_set(changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")], fleet: FleetName = None) -> None:
    """Set keys, such as limits.max_boxes=6; all or none."""
    pairs = [change.partition("=") for change in changes]
    if any(not separator for _, separator, _ in pairs):
        raise FixSetup("a change is KEY=VALUE", "fleet-agent policy set limits.max_boxes=6")
    with open_desk(fleet, may_begin=True) as (desk, _):
        controls.set_policy(desk, {key: value for key, _, value in pairs})
    tell(f"Set for fleet {desk.fleet} in {desk.place}. In force for the next effect.")


# --- wakes and inbox -------------------------------------------------------------------------------------------------


@wakes_verbs.command("list")
def wakes_list(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the latest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """Pending and past ones, by their time."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.wakes(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, WAKE_COLUMNS, as_json=as_json)


@wakes_verbs.command("add")
def wakes_add(
    when: Annotated[str, typer.Argument(help="minutes from now, or a time in UTC: 14:00, 2026-03-17T14:00")],
    reason: Annotated[str, typer.Argument(help="what the agent is to look at then")],
    fleet: FleetName = None,
) -> None:
    """Have the agent look at a time of your choice, beside the heartbeat every 5 minutes."""
    with open_desk(fleet) as (desk, _):
        tell(controls.add_wake(desk, when, reason).answer)


@wakes_verbs.command("cancel")
def wakes_cancel(wake: int, fleet: FleetName = None) -> None:
    """Cancel a pending wake; its flow run in Prefect is cancelled too."""
    with open_desk(fleet) as (desk, _):
        controls.cancel_wake(desk, wake)
    tell(f"Wake {wake} is cancelled.")


@inbox_verbs.command("list")
def inbox_list(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What waits, what a run has in hand, and what is quarantined because runs kept failing under it."""
    from fleet_agent.store import reading

    with open_desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.inbox(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, INBOX_COLUMNS, as_json=as_json)


@inbox_verbs.command("release")
def inbox_release(event: int, fleet: FleetName = None) -> None:
    """Have a quarantined event tried again, in a run of its own."""
    with open_desk(fleet) as (desk, _):
        controls.release_event(desk, event)
    tell(f"Inbox event {event} waits again.")


# --- tokens ----------------------------------------------------------------------------------------------------------


@token_verbs.command("rotate")
def token_rotate(purpose: Purpose, fleet: FleetName = None) -> None:
    """Make a new token and show it once; the one before it opens nothing from now on."""
    with open_desk(fleet) as (desk, live):
        token = controls.rotate_token(desk, purpose)
        address = f"http://{settings_of(live, fleet).hooks_bind}/hooks/SOURCE"
    tell(f"The new token of fleet {desk.fleet} for {purpose.value}, shown only here; an older one opens nothing now:")
    tell(token)
    tell(f"Post to {address} with it as bearer token or as password, or to {address}/TOKEN.")
