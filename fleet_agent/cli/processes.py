"""The verbs that run the system, a part of it beside a running tree, or look after the whole installation."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from fleet_agent.cli.place import FleetName, alive, live_tree, load_settings, remote_prefect, settings_of, tell
from fleet_agent.errors import FixSetup
from fleet_agent.stack import environments

verbs = typer.Typer()


@verbs.command()
def demo(
    runs: Annotated[int | None, typer.Option(min=1, help="end after so many runs; default: on Ctrl-C")] = None,
    scenario: Annotated[str, typer.Option(help="first-light, calm-day or idle")] = "first-light",
    speed: Annotated[float, typer.Option(min=1, max=60, help="business seconds per real second")] = 15,
) -> None:
    """Watch the whole system work against the simulator: nothing is rented, nothing is paid."""
    from fleet_agent.foreground import run_demo

    _known(scenario)
    raise typer.Exit(asyncio.run(run_demo(load_settings(), runs=runs, scenario=scenario, speed=speed, tell=tell)))


@verbs.command()
def up(
    drain: Annotated[
        bool, typer.Option("--drain", help="on Ctrl-C let every box finish and go first; once more ends at once")
    ] = False,
) -> None:
    """Run the agent for real, until Ctrl-C: database, Prefect server, hooks, worker and watch in one process tree."""
    from fleet_agent.foreground import run_up

    raise typer.Exit(asyncio.run(run_up(load_settings(), drain=drain, tell=tell)))


@verbs.command()
def deploy() -> None:
    """Bring Prefect up to date with `prefect.yaml`; doing it twice changes nothing more."""
    from fleet_agent.foreground import deploy_to

    for line in asyncio.run(deploy_to(alive(live_tree(load_settings())))):
        tell(line)


@verbs.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="mend what can do no harm, and say what was done")] = False,
    fleet: FleetName = None,
) -> None:
    """Check the whole installation; every finding says how to mend it. Exit code 1 if anything is not well."""
    from fleet_agent.foreground import run_doctor

    live = live_tree(load_settings(fleet))
    raise typer.Exit(asyncio.run(run_doctor(settings_of(live, fleet), live, fix=fix, tell=tell)))


@verbs.command()
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


@verbs.command()
def hooks() -> None:
    """Take webhooks in, beside a database that others use too; `up` does it of itself."""
    from fleet_agent.hooks.server import serve

    asyncio.run(serve(load_settings(), tell=tell))


@verbs.command()
def worker() -> None:
    """Carry out runs: beside the tree that runs here or, where PREFECT_API_URL is set, for another one."""
    live = live_tree(load_settings())
    settings = settings_of(live, None)
    environment = environments.of_worker(live or remote_prefect(settings), settings)
    # In its place, with an environment composed as `up` does it: a run must not see what this shell exports.
    os.execve(sys.executable, [sys.executable, "-m", "fleet_agent.worker"], environment)  # noqa: S606


@verbs.command()
def watch(
    once: Annotated[bool, typer.Option("--once", help="one look, which says what it finds, then end")] = False,
) -> None:
    """Ring for what waits, see to what is rented and tell Prefect of dead runs; `up` does it of itself."""
    from fleet_agent.watch_process import keep_watch

    settings = load_settings()
    tree = alive(live_tree(settings))
    settings = settings_of(tree, None)
    asyncio.run(keep_watch(settings, api_url=tree.api_url, auth_string=tree.auth_string, once=once, tell=tell))


@verbs.command()
def cycle(
    once: Annotated[bool, typer.Option("--once", help="one run; there is no other way yet")] = False,
    fleet: FleetName = None,
) -> None:
    """Walk one run here and now, without Prefect."""
    if not once:
        raise FixSetup("`cycle` walks one run and ends", "fleet-agent cycle --once")
    from fleet_agent.foreground import run_once

    report = asyncio.run(run_once(settings_of(live_tree(load_settings(fleet)), fleet)))
    tell(report.markdown)
    raise typer.Exit(1 if report.failed else 0)


def _known(scenario: str) -> None:
    from fleet_agent.sim.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        raise FixSetup(f"there is no scenario {scenario!r}", f"choose one of {', '.join(SCENARIOS)}")
