"""Where a verb stands: the settings, the tree that runs, the database of a fleet, the terminal of a person."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fleet_agent.controls import Desk
from fleet_agent.errors import FixSetup
from fleet_agent.settings import Settings
from fleet_agent.stack import environments
from fleet_agent.stack.runtime import Runtime, live_runtime

AsJson = Annotated[bool, typer.Option("--json", help="as JSON, with the column names of the tables")]
FleetName = Annotated[str | None, typer.Option("--fleet", help="default: FLEET_FLEET, else main")]


@contextmanager
def open_desk(fleet: str | None, *, may_begin: bool = False) -> Generator[tuple[Desk, Runtime | None]]:
    """The database of the running tree, or the one that the settings name, started on demand.

    Only what sets something up may begin an installation or a fleet; for all else one that nobody began is FixSetup.
    """
    from fleet_agent import wiring
    from fleet_agent.store import reading
    from fleet_agent.store.installation import read_clock

    live = live_tree(load_settings(fleet))
    settings = settings_of(live, fleet)
    place = f"the demo ({settings.data_dir})" if live and live.simulators else wiring.place_of(load_settings(fleet))
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


def load_settings(fleet: str | None = None) -> Settings:
    """What this shell and its folder say, before a running tree is asked. Raises FixSetup for what cannot be read."""
    settings = Settings.load(Path(".env"))
    return settings if fleet is None else settings.with_fleet(fleet)


def live_tree(settings: Settings) -> Runtime | None:
    """The one tree that runs: that of `up`, or the demo's. Raises FixSetup when both do."""
    found = [tree for folder in (settings.data_dir, settings.demo_data_dir) if (tree := live_runtime(folder))]
    if len(found) > 1:
        raise FixSetup(
            "`up` and a demo are running",
            f"say which: FLEET_DATA_DIR={found[0].data_dir} or FLEET_DATA_DIR={found[1].data_dir}",
        )
    return found[0] if found else None


def alive(live: Runtime | None) -> Runtime:
    """For a verb that has nothing to do without a tree. Raises FixSetup when none runs."""
    if live is None:
        raise FixSetup("no process tree is running", "`fleet-agent up`, or `fleet-agent cycle --once` without one")
    return live


def settings_of(live: Runtime | None, fleet: str | None) -> Settings:
    """The settings of the running tree: a demo has its own addresses and keys."""
    settings = load_settings(fleet)
    return settings if live is None else settings.model_copy(update=live.settings())


def remote_prefect(settings: Settings) -> environments.RemotePrefect:
    """Of the tree to work for. Its database too must be said: a run must not begin a ledger of its own.

    Raises FixSetup when either is not said.
    """
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


def tell(line: str) -> None:
    """At once, also into a pipe: a person or a program reads along."""
    print(line, flush=True)


def stop(line: str, code: int) -> NoReturn:
    """End the process with one line on stderr, cause and remedy, and this exit code."""
    print(f"fleet-agent: {line}", file=sys.stderr)
    sys.exit(code)
