"""The command line: words in, one call of `controls` or `reading`, rows out.

A verb finds the running tree through its runtime file. Lists take `--json` and then use the column names of the
tables. An error is one line with cause and remedy and an exit code: 2 where a person must change something, 1 else.
Modules that take seconds to import are imported by the verbs that need them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.policy import flattened
from fleet_agent.domain.rules import Mode
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.printing import (
    ACTION_COLUMNS,
    INBOX_COLUMNS,
    RUN_COLUMNS,
    USAGE_COLUMNS,
    WAKE_COLUMNS,
    print_json,
    print_rows,
    print_status,
)
from fleet_agent.settings import Settings
from fleet_agent.stack import environments
from fleet_agent.stack.runtime import WATCH, Runtime, live_runtime
from fleet_agent.store.tables import Purpose

app = typer.Typer(
    help="The operator of a rented GPU proving fleet.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
objective_app = typer.Typer(help="What the agent is to achieve, in the operator's words.", no_args_is_help=True)
policy_app = typer.Typer(help="The operator's limits.", no_args_is_help=True)
token_app = typer.Typer(help="What strangers must know to be let in.", no_args_is_help=True)
wakes_app = typer.Typer(help="Future checks, asked for by the agent or by you.", no_args_is_help=True)
inbox_app = typer.Typer(help="What happened and no run has consumed yet.", no_args_is_help=True)
app.add_typer(objective_app, name="objective")
app.add_typer(policy_app, name="policy")
app.add_typer(token_app, name="token")
app.add_typer(wakes_app, name="wakes")
app.add_typer(inbox_app, name="inbox")

AsJson = Annotated[bool, typer.Option("--json", help="as JSON, with the column names of the tables")]
FleetName = Annotated[str | None, typer.Option("--fleet", help="default: FLEET_FLEET, else main")]


def main() -> None:
    """The entry point: every error a person can do something about is one line."""
    try:
        sys.exit(app(standalone_mode=False))
    except FixSetup as error:
        _stop(str(error), 2)
    except FleetAgentError as error:
        _stop(str(error), 1)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fleet-agent"
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error)
            sys.exit(2)
        _stop(f"{error} → {command} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


# --- the whole system ------------------------------------------------------------------------------------------------


@app.command()
def demo(
    runs: Annotated[int | None, typer.Option(min=1, help="end after so many runs; default: on Ctrl-C")] = None,
    scenario: Annotated[str, typer.Option(help="first-light, calm-day or idle")] = "first-light",
    speed: Annotated[float, typer.Option(min=1, max=60, help="business seconds per real second")] = 15,
) -> None:
    """Watch the whole system work against the simulator: nothing is rented, nothing is paid."""
    from fleet_agent.foreground import run_demo

    _known(scenario)
    raise typer.Exit(asyncio.run(run_demo(_settings(), runs=runs, scenario=scenario, speed=speed, tell=_tell)))


@app.command()
def up() -> None:
    """Run the agent for real, until Ctrl-C: database, Prefect server, hooks, worker and watch in one process tree."""
    from fleet_agent.foreground import run_up

    raise typer.Exit(asyncio.run(run_up(_settings(), tell=_tell)))


@app.command()
def deploy() -> None:
    """Bring Prefect up to date with `prefect.yaml`; doing it twice changes nothing more."""
    from fleet_agent.foreground import deploy_to

    for line in asyncio.run(deploy_to(_alive(_live_tree(_settings())))):
        _tell(line)


@app.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="mend what can do no harm, and say what was done")] = False,
    fleet: FleetName = None,
) -> None:
    """Check the whole installation; every finding says how to mend it. Exit code 1 if anything is not well."""
    from fleet_agent.foreground import run_doctor

    live = _live_tree(_settings(fleet))
    raise typer.Exit(asyncio.run(run_doctor(_settings_of(live, fleet), live, fix=fix, tell=_tell)))


@app.command()
def sim(
    vast_port: Annotated[int, typer.Option(min=1, max=65535, help="the market, and the demand under /demand")],
    model_port: Annotated[int, typer.Option(min=1, max=65535, help="the model, OpenAI's API under /v1")],
    seed: int = 0,
    speed: Annotated[float, typer.Option(min=0.001, help="business seconds per real second")] = 1,
    scenario: str = "calm-day",
    api_key: Annotated[str | None, typer.Option(help="the only key that is accepted; default: any")] = None,
) -> None:
    """Run only the simulators, for the official `vastai` command line or for an agent of your own."""
    from fleet_agent.sim import server

    _known(scenario)
    if vast_port == model_port:
        raise FixSetup(f"both ports are {vast_port}", "give each face a port of its own")
    arguments = [f"--vast-port={vast_port}", f"--model-port={model_port}", f"--seed={seed}", f"--speed={speed}"]
    key = [] if api_key is None else [f"--api-key={api_key}"]
    raise typer.Exit(server.main([*arguments, f"--scenario={scenario}", *key]))


@app.command()
def hooks() -> None:
    """Take webhooks in, beside a database that others use too; `up` does it of itself."""
    from fleet_agent.hooks.server import serve

    asyncio.run(serve(_settings(), tell=_tell))


@app.command()
def worker() -> None:
    """Carry out runs: beside the tree that runs here or, where PREFECT_API_URL is set, for another one."""
    live = _live_tree(_settings())
    settings = _settings_of(live, None)
    environment = environments.of_worker(live or _remote_prefect(settings), settings)
    # In its place, with an environment composed as `up` does it: a run must not see what this shell exports.
    os.execve(sys.executable, [sys.executable, "-m", "fleet_agent.worker"], environment)  # noqa: S606


@app.command()
def watch(
    once: Annotated[bool, typer.Option("--once", help="one look, then end")] = False,
) -> None:
    """Ring for what waits and tell Prefect of dead runs, beside a running tree; `up` does it of itself."""
    from fleet_agent.watch_process import keep_watch

    settings = _settings()
    tree = _alive(_live_tree(settings))
    settings = _settings_of(tree, None)
    asyncio.run(keep_watch(settings, api_url=tree.api_url, auth_string=tree.auth_string, once=once, tell=_tell))


@app.command()
def cycle(
    once: Annotated[bool, typer.Option("--once", help="one run; there is no other way yet")] = False,
    fleet: FleetName = None,
) -> None:
    """Walk one run here and now, without Prefect."""
    if not once:
        raise FixSetup("`cycle` walks one run and ends", "fleet-agent cycle --once")
    from fleet_agent.foreground import run_once

    report = asyncio.run(run_once(_settings_of(_live_tree(_settings(fleet)), fleet)))
    _tell(report.markdown)
    raise typer.Exit(1 if report.failed else 0)


# --- looking ---------------------------------------------------------------------------------------------------------


@app.command()
def status(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """The fleet at a glance."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, live), desk.database.transaction() as tx:
        found = reading.status(tx, desk.fleet, now=desk.clock.now()) | {
            "tree": live and live.pid,
            "place": desk.place,
        }
    print_json(found) if as_json else print_status(found)


@app.command()
def runs(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 20,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What the agent did, oldest first: trigger, verdict, tokens, cost, and why it ended."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.runs(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, RUN_COLUMNS, as_json=as_json)


@app.command()
def usage(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest rows")] = 48,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What the models used, hour by hour, oldest first; `as before`: how far a request begins like the last one."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.usage(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, USAGE_COLUMNS, as_json=as_json)


@app.command("ledger")
def show_ledger(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """Every action: who asked, what the rules said, what became of it."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.actions(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, ACTION_COLUMNS, as_json=as_json)


@app.command()
def prompt(
    run: Annotated[int | None, typer.Option(min=1, max=2**62, help="whose newest request; default: the next")] = None,
    fleet: FleetName = None,
) -> None:
    """The exact request body that was or would be sent to the model, and its token count, estimated from above."""
    from fleet_agent import wiring

    async def next_request(desk: Desk, settings: Settings) -> tuple[dict[str, Any], int]:
        async with wiring.open_ports(settings) as ports:
            return await controls.next_request(desk, ports)

    with _desk(fleet) as (desk, live):
        if run is not None:
            body, tokens = controls.sent_request(desk, run, wiring.count_tokens)
        else:
            body, tokens = asyncio.run(next_request(desk, _settings_of(live, fleet)))
    print_json({"tokens": tokens, "body": body})


# --- steering --------------------------------------------------------------------------------------------------------


@app.command()
def say(text: str, fleet: FleetName = None) -> None:
    """Leave a message for the agent; a running tree answers it at once."""
    with _desk(fleet) as (desk, live):
        event = controls.say(desk, text)
    _tell(f"Message {event}: {_when_it_is_taken(live)}.")


@app.command("run-now")
def run_now(fleet: FleetName = None) -> None:
    """Have a run at once; it asks the model whatever it finds."""
    with _desk(fleet) as (desk, live):
        event = controls.run_now(desk)
    _tell(f"Request {event}: {_when_it_is_taken(live)}.")


def _when_it_is_taken(live: Runtime | None) -> str:
    if live is None:
        return "kept for the next run, but no process tree runs: `fleet-agent up`, or `fleet-agent cycle --once`"
    if WATCH not in live.processes:
        return "kept for the next heartbeat; no watch runs that would ring for it"
    return "a run takes it now; `fleet-agent runs` shows how it ends"


@app.command("reset-session")
def reset_session(fleet: FleetName = None) -> None:
    """Begin a new conversation. Run ids go on counting; wakes, policy and objective stay."""
    with _desk(fleet) as (desk, _):
        epoch = controls.reset_session(desk)
    _tell(f"A new session begins with the next run (epoch {epoch}).")


@app.command()
def pause(fleet: FleetName = None) -> None:
    """Nothing is rented or destroyed from now on; the agent goes on looking and answering."""
    with _desk(fleet) as (desk, _):
        controls.set_mode(desk, Mode.PAUSED)
    _tell("Paused. Boxes that run go on billing.")


@app.command()
def resume(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="everything happens but the calls")] = False,
    fleet: FleetName = None,
) -> None:
    """Let the agent act again."""
    with _desk(fleet) as (desk, _):
        controls.set_mode(desk, Mode.DRY_RUN if dry_run else Mode.LIVE)
    _tell("Dry run: everything happens but the calls." if dry_run else "Live.")


@app.command("destroy-all")
def destroy_all(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False, fleet: FleetName = None
) -> None:
    """Emergency stop: pause, then destroy every box of this fleet, whatever else is dead."""
    from fleet_agent import wiring

    async def stop(desk: Desk, settings: Settings) -> None:
        async with wiring.open_market(settings, desk.database) as market:
            await controls.destroy_all(desk, market, sleep=asyncio.sleep, tell=_tell)

    with _desk(fleet) as (desk, live):
        settings = _settings_of(live, fleet)
        if not yes:
            typer.confirm(f"Destroy every box of fleet {desk.fleet} in {desk.place}?", abort=True)
        asyncio.run(stop(desk, settings))


@objective_app.command("get")
def objective_get(fleet: FleetName = None) -> None:
    """Show it."""
    with _desk(fleet) as (desk, _):
        _tell(controls.objective(desk) or "(none set)")


@objective_app.command("set")
def objective_set(text: str, fleet: FleetName = None) -> None:
    """Set it; an empty text takes it away."""
    with _desk(fleet, may_begin=True) as (desk, _):
        controls.set_objective(desk, text)
    _tell(f"{'Set' if text else 'Taken away'} for fleet {desk.fleet} in {desk.place}. The next run sees it.")


@policy_app.command("get")
def policy_get(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """Every key with its value."""
    with _desk(fleet) as (desk, _):
        values = flattened(controls.policy(desk))
    if as_json:
        print_json(values)
    else:
        for key, value in values.items():
            _tell(f"{key}={value}")


@policy_app.command("set")
def policy_set(changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")], fleet: FleetName = None) -> None:
    """Set keys, such as limits.max_boxes=6; all or none."""
    pairs = [change.partition("=") for change in changes]
    if any(not separator for _, separator, _ in pairs):
        raise FixSetup("a change is KEY=VALUE", "fleet-agent policy set limits.max_boxes=6")
    with _desk(fleet, may_begin=True) as (desk, _):
        controls.set_policy(desk, {key: value for key, _, value in pairs})
    _tell(f"Set for fleet {desk.fleet} in {desk.place}. In force for the next effect.")


@wakes_app.command("list")
def wakes_list(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the latest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """Pending and past ones, by their time."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.wakes(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, WAKE_COLUMNS, as_json=as_json)


@wakes_app.command("add")
def wakes_add(
    when: Annotated[str, typer.Argument(help="minutes from now, or a time in UTC: 14:00, 2026-03-17T14:00")],
    reason: Annotated[str, typer.Argument(help="what the agent is to look at then")],
    fleet: FleetName = None,
) -> None:
    """Have the agent look at a time of your choice, beside the heartbeat every 5 minutes."""
    with _desk(fleet) as (desk, _):
        _tell(controls.add_wake(desk, when, reason).answer)


@wakes_app.command("cancel")
def wakes_cancel(wake: int, fleet: FleetName = None) -> None:
    """Cancel a pending wake; its flow run in Prefect is cancelled too."""
    with _desk(fleet) as (desk, _):
        controls.cancel_wake(desk, wake)
    _tell(f"Wake {wake} is cancelled.")


@inbox_app.command("list")
def inbox_list(
    last: Annotated[int, typer.Option(min=1, max=10_000, help="how many of the newest")] = 50,
    fleet: FleetName = None,
    as_json: AsJson = False,
) -> None:
    """What waits, what a run has in hand, and what is quarantined because runs kept failing under it."""
    from fleet_agent.store import reading

    with _desk(fleet) as (desk, _), desk.database.transaction() as tx:
        rows = reading.inbox(tx, desk.fleet, last=last)[::-1]
    print_rows(rows, INBOX_COLUMNS, as_json=as_json)


@inbox_app.command("release")
def inbox_release(event: int, fleet: FleetName = None) -> None:
    """Have a quarantined event tried again, in a run of its own."""
    with _desk(fleet) as (desk, _):
        controls.release_event(desk, event)
    _tell(f"Inbox event {event} waits again.")


@token_app.command("rotate")
def token_rotate(purpose: Purpose, fleet: FleetName = None) -> None:
    """Make a new token and show it once; the one before it opens nothing from now on."""
    with _desk(fleet) as (desk, live):
        token = controls.rotate_token(desk, purpose)
        address = f"http://{_settings_of(live, fleet).hooks_bind}/hooks/SOURCE"
    _tell(f"The new token of fleet {desk.fleet} for {purpose.value}, shown only here; an older one opens nothing now:")
    _tell(token)
    _tell(f"Post to {address} with it as bearer token or as password, or to {address}/TOKEN.")


# --- where things are ------------------------------------------------------------------------------------------------


@contextmanager
def _desk(fleet: str | None, *, may_begin: bool = False) -> Generator[tuple[Desk, Runtime | None]]:
    """The database of the running tree, or the one that the settings name, started on demand.

    Only what sets something up may begin an installation or a fleet.
    """
    from fleet_agent import wiring
    from fleet_agent.store import reading
    from fleet_agent.store.installation import read_clock

    live = _live_tree(_settings(fleet))
    settings = _settings_of(live, fleet)
    place = f"the demo ({settings.data_dir})" if live and live.simulators else wiring.place_of(_settings(fleet))
    with wiring.open_store(settings) if may_begin else wiring.find_store(settings) as database:
        if not may_begin:
            with database.transaction() as tx:
                known = reading.fleets(tx)
            if settings.fleet not in known:
                raise FixSetup(
                    f"there is no fleet {settings.fleet!r} in {place}", f"fleets: {', '.join(known) or 'none'}"
                )
        clock = read_clock(database)
        yield Desk(database=database, clock=clock, fleet=settings.fleet, who="cli", place=place), live


def _settings(fleet: str | None = None) -> Settings:
    settings = Settings.load(Path(".env"))
    return settings if fleet is None else settings.with_fleet(fleet)


def _live_tree(settings: Settings) -> Runtime | None:
    """The one tree that runs: that of `up`, or the demo's. Raises FixSetup when both do."""
    found = [tree for folder in (settings.data_dir, settings.demo_data_dir) if (tree := live_runtime(folder))]
    if len(found) > 1:
        raise FixSetup(
            "`up` and a demo are running",
            f"say which: FLEET_DATA_DIR={found[0].data_dir} or FLEET_DATA_DIR={found[1].data_dir}",
        )
    return found[0] if found else None


def _alive(live: Runtime | None) -> Runtime:
    if live is None:
        raise FixSetup("no process tree is running", "`fleet-agent up`, or `fleet-agent cycle --once` without one")
    return live


def _settings_of(live: Runtime | None, fleet: str | None) -> Settings:
    """The settings of the running tree: a demo has its own addresses and keys."""
    settings = _settings(fleet)
    return settings if live is None else settings.model_copy(update=live.settings())


def _remote_prefect(settings: Settings) -> environments.RemotePrefect:
    """Of the tree to work for. Its database too must be said: a run must not begin a ledger of its own."""
    if not os.environ.get("PREFECT_API_URL") or settings.database_url is None:
        raise FixSetup(
            "no process tree is running here, and PREFECT_API_URL or FLEET_DATABASE_URL is not set",
            "set both, and PREFECT_API_AUTH_STRING, to those of the tree",
        )
    return environments.RemotePrefect(
        api_url=os.environ["PREFECT_API_URL"],
        prefect_home=settings.data_dir / "prefect",
        auth_string=os.environ.get("PREFECT_API_AUTH_STRING", ""),
    )


def _known(scenario: str) -> None:
    from fleet_agent.sim.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        raise FixSetup(f"there is no scenario {scenario!r}", f"choose one of {', '.join(SCENARIOS)}")


def _tell(line: str) -> None:
    print(line, flush=True)


def _stop(line: str, code: int) -> NoReturn:
    print(f"fleet-agent: {line}", file=sys.stderr)
    sys.exit(code)
