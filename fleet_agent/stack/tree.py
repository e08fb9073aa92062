"""The process tree of `up` and `demo`: what starts after what, and how everything ends.

    PostgreSQL ──┬── Prefect server ────────────────┬── deployments (once) ── watch
                 └── our schema, simulators, hooks ─┴── worker

Every process has a group of its own, so that a Ctrl-C in the terminal reaches this process alone and the end is
orderly: the watch first, then the worker (it finishes the run at hand), then the server they report to, then the
database below all.
A process that dies is started again under `up` and ends a demo. Should this process itself be killed, a small one
beside it (`orphans.py`) ends the rest. What a process may know is decided in `environments.py`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from fleet_agent.clients.prefect_api import has_worker
from fleet_agent.clients.prefect_rest import PrefectRest, open_client
from fleet_agent.deploy import PROJECT_DIR
from fleet_agent.domain.timeline import Timeline
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.settings import Settings
from fleet_agent.stack import environments
from fleet_agent.stack.environments import PrefectPlace
from fleet_agent.stack.processes import Command, Guardian, Process, begin
from fleet_agent.stack.runtime import WATCH, Runtime, Simulators, only_tree, publish
from fleet_agent.store import migrate
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.embedded import EmbeddedPostgres, ensure_running
from fleet_agent.store.installation import found_installation, timeline
from fleet_agent.wiring import FLEET_DATABASE

LOOPBACK = "127.0.0.1"
WORKER = "worker"
PYTHON_M = (sys.executable, "-m")
PREFECT_DATABASE = "prefect"

MAY_TAKE_TO_START = timedelta(seconds=90)

SERVER_MAY_TAKE_TO_START = timedelta(seconds=180)
"""Prefect's first start makes its tables: 6 s on two idle cores, 100 s where ten others want them."""

MAY_TAKE_TO_END = timedelta(seconds=10)
"""For a process that has nothing to finish."""

MAY_TAKE_TO_FINISH_A_RUN = timedelta(seconds=270)
"""For the worker: it ends by itself the runs that have not finished within 260 s, and reports them."""

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a dead process is started again: doubled each time, until one has lived longer than the longest."""

LOOK_AT_POSTGRES = 2.0
"""Seconds between two looks whether its process is there."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Simulation:
    """The world of a demo; `speed` in business seconds per real second."""

    scenario: str
    speed: float
    seed: int = 0


def _nothing(_: Database) -> None:
    pass


@dataclass(frozen=True)
class StackPlan:
    """What to start. With a simulation: on free ports, with databases made anew, and with made-up keys.

    `prepare` is called with the fleet's database once its tables are there and before anything runs; `last_look` at the
    end, when nothing runs any more but the database. `before_end` is awaited when a first signal asks for the end: no
    run begins any more, and everything but the worker goes on until it returns, or until a second signal.
    """

    settings: Settings
    simulation: Simulation | None = None
    prepare: Callable[[Database], object] = _nothing
    last_look: Callable[[Database], object] = _nothing
    before_end: Callable[[Runtime], Awaitable[object]] | None = None

    @property
    def data_dir(self) -> Path:
        return self.settings.demo_data_dir if self.simulation else self.settings.data_dir


@asynccontextmanager
async def running(plan: StackPlan, tell: Tell) -> AsyncGenerator[Runtime]:
    """The whole tree, ready; ended in reverse order when the body ends, however it ends.

    SIGINT and SIGTERM end the body early and count as its normal end, the first one after what the plan has come before
    that; one more kills what would still take its time. `tell` gets a line for each step. Raises FixSetup where a
    person must change something (another tree on this folder, a port in use), FleetAgentError where a process did not
    start or, in a demo, died, and KeyboardInterrupt for a signal that comes before there is a body to end.
    """
    is_ready = False
    with only_tree(plan.data_dir), Guardian() as guardian:
        tree = _Tree(plan, tell, guardian)
        try:
            async with asyncio.TaskGroup() as watchers:
                with _signals(watchers, tree.hurry) as answers:
                    try:
                        runtime = await tree.start()
                        is_ready = True
                        keeper = watchers.create_task(tree.keep(runtime))
                        if plan.before_end is not None:
                            answers.insert(0, partial(_wind_up, tree, runtime, plan.before_end))
                        try:
                            yield runtime
                        finally:
                            keeper.cancel()
                    finally:
                        answers.clear()
                        await tree.end()
        except BaseExceptionGroup as group:
            error = _first_of(group)
            if not isinstance(error, _AskedToEnd):
                raise error from error.__cause__
            if not is_ready:
                raise KeyboardInterrupt from None


class _AskedToEnd(Exception):
    """Not an error: a person or the system asked for it."""


async def _end_body() -> None:
    raise _AskedToEnd


async def _wind_up(tree: _Tree, runtime: Runtime, before_end: Callable[[Runtime], Awaitable[object]]) -> None:
    await tree.dismiss(WORKER)
    await before_end(runtime)
    raise _AskedToEnd


Answer = Callable[[], Coroutine[Any, Any, None]]


@contextmanager
def _signals(watchers: asyncio.TaskGroup, hurry: asyncio.Event) -> Generator[list[Answer]]:
    """SIGINT and SIGTERM: each begins the next of the yielded answers, of which the last ends the body; when none is
    left they mean hurry.

    That there are handlers also makes the children begin with the default ones. A signal that is ignored here, as
    under nohup, would be ignored by them too, and Prefect's worker could not be stopped.
    """
    loop = asyncio.get_running_loop()
    answers: list[Answer] = [_end_body]

    def arrived() -> None:
        if answers:
            watchers.create_task(answers.pop(0)())
        else:
            hurry.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, arrived)
    try:
        yield answers
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _first_of(error: BaseException) -> BaseException:
    """The first error that is no group."""
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


class _Tree:
    """What was started, in order."""

    def __init__(self, plan: StackPlan, tell: Tell, guardian: Guardian) -> None:
        self.hurry = asyncio.Event()
        self._plan = plan
        self._tell = tell
        self._guardian = guardian
        self._ends = AsyncExitStack()
        self._postgres: EmbeddedPostgres | None = None
        self._processes: dict[str, Process] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._log_dir = plan.data_dir / "logs"

    async def start(self) -> Runtime:
        simulation = self._plan.simulation
        place = _prefect_place(self._plan)
        hooks_bind = _hooks_bind(self._plan)
        self._log_dir.mkdir(mode=0o700, exist_ok=True)
        prefect = PrefectRest(await self._ends.enter_async_context(open_client(place.api_url, place.auth_string)))
        fleet_url, prefect_url = await self._start_databases()
        self._ends.push_async_callback(asyncio.to_thread, _look_at_fleet, fleet_url, self._plan.last_look)
        runtime = Runtime(
            pid=os.getpid(),
            data_dir=self._plan.data_dir,
            log_dir=self._log_dir,
            database_url=fleet_url,
            api_url=place.api_url,
            auth_string=place.auth_string,
            ui_url=place.origin,
            hooks_bind=hooks_bind,
            work_pool=self._plan.settings.work_pool,
            processes={},
            simulators=Simulators(vast_port=_free_port(), model_port=_free_port()) if simulation else None,
        )
        settings = self._plan.settings.model_copy(update=runtime.settings())
        async with asyncio.TaskGroup() as starting:
            starting.create_task(self._begin(_server(place, prefect_url, prefect)))
            line = await asyncio.to_thread(_prepare_fleet, fleet_url, self._plan)
            starting.create_task(self._begin(_hooks(settings)))
            if simulation and runtime.simulators:
                starting.create_task(self._begin(_simulators(simulation, runtime.simulators, line)))
        async with asyncio.TaskGroup() as starting:
            starting.create_task(self._begin(_worker(place, settings, prefect)))
            await self._begin(
                _deployment(place, line.speed, settings.work_pool)
            )  # before, the watch would ring for nobody
            await self._begin(_watch(place, settings))
        return self._published(runtime)

    async def keep(self, runtime: Runtime) -> None:
        """Notice what dies. Under `up` it is started again; a demo ends, for its story would be another one."""
        async with asyncio.TaskGroup() as keepers:
            if self._postgres is not None:
                keepers.create_task(self._keep_postgres(self._postgres, runtime))
            for name, process in self._processes.items():
                if process.command.is_ready is not None:
                    self._keepers[name] = keepers.create_task(self._keep(name, runtime))

    async def dismiss(self, name: str) -> None:
        """End one process for good, while the others go on."""
        if name in self._keepers:
            self._keepers[name].cancel()
        self._tell(f"{name} finishes what it has at hand; all else goes on, until you ask once more")
        await self._end(name)

    async def end(self) -> None:
        if self._processes:
            self._tell("stopping")
        await self._ends.aclose()

    # --- the databases ------------------------------------------------------------------------------------------------

    async def _start_databases(self) -> tuple[str, str]:
        """The addresses of the fleet's database and, for asyncpg, of Prefect's; embedded where none is set."""
        settings = self._plan.settings
        given = (None, None) if self._plan.simulation else (settings.database_url, settings.prefect_database_url)
        fleet, prefect = (url.get_secret_value() if url else "" for url in given)
        if not fleet or not prefect:
            postgres = await self._start_postgres()
            fleet = fleet or postgres.url(FLEET_DATABASE)
            prefect = prefect or postgres.asyncpg_url(PREFECT_DATABASE)
        return fleet, prefect.replace("postgresql://", "postgresql+asyncpg://", 1)

    async def _start_postgres(self) -> EmbeddedPostgres:
        began = time.monotonic()
        starting = asyncio.ensure_future(asyncio.to_thread(_embedded_postgres, self._plan))
        # Should we be asked to end while the thread is at work, then what it starts must not be nobody's.
        self._ends.push_async_callback(self._end_postgres, starting)
        postgres = await asyncio.shield(starting)
        self._postgres = postgres
        self._guardian.began(postgres.pid)
        self._tell(f"PostgreSQL ready ({time.monotonic() - began:.1f} s)")
        return postgres

    async def _keep_postgres(self, postgres: EmbeddedPostgres, runtime: Runtime) -> None:
        """It is nobody's child, so it is looked at instead of waited for."""
        while True:
            await asyncio.sleep(LOOK_AT_POSTGRES)
            if psutil.pid_exists(postgres.pid):
                continue
            if self._plan.simulation:
                raise FleetAgentError("PostgreSQL ended", f"its log: {self._plan.data_dir / 'postgres/cluster/log'}")
            self._tell("PostgreSQL ended; starting it again")
            self._guardian.ended(postgres.pid)
            postgres = await self._start_postgres()
            self._published(runtime)

    async def _end_postgres(self, starting: asyncio.Future[EmbeddedPostgres]) -> None:
        with suppress(FleetAgentError):
            postgres = await starting
            await asyncio.to_thread(postgres.close)
            self._guardian.ended(postgres.pid)

    # --- the processes ------------------------------------------------------------------------------------------------

    async def _begin(self, command: Command) -> None:
        """Start it and wait until it is ready. A second one of the same name takes the place of the first."""
        began = time.monotonic()
        if command.name not in self._processes:
            self._ends.push_async_callback(self._end, command.name)

        def begun(process: Process) -> None:
            self._processes[command.name] = process

        await begin(command, self._log_dir, self._guardian, begun=begun, tell=self._tell)
        self._tell(f"{command.name} ready ({time.monotonic() - began:.1f} s)")

    async def _keep(self, name: str, runtime: Runtime) -> None:
        pause = SHORTEST_PAUSE
        while True:
            process, began = self._processes[name], time.monotonic()
            await process.until_ended()
            if process.wants_to_begin_anew:
                await self._begin_anew(process.command, runtime)
                continue
            if self._plan.simulation:
                raise process.failure()
            pause = SHORTEST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            self._tell(f"{process.failure()}; starting it again in {pause:.0f} s")
            await asyncio.sleep(pause)
            try:
                await self._begin(process.command)
                self._published(runtime)
            except FleetAgentError as error:
                self._tell(str(error))

    async def _begin_anew(self, command: Command, runtime: Runtime) -> None:
        """For what ended well, of its own accord: no death, in a demo neither. A failure to start is looked at next."""
        self._tell(f"{command.name} begins anew")
        await asyncio.sleep(SHORTEST_PAUSE)  # should it end well again and again
        try:
            await self._begin(command)
            self._published(runtime)
        except FleetAgentError as error:
            self._tell(str(error))

    async def _end(self, name: str) -> None:
        if name in self._processes:
            await self._processes[name].stop(self.hurry)

    def _published(self, runtime: Runtime) -> Runtime:
        """The same with the processes as they are now, for other commands to find."""
        postgres = {"PostgreSQL": self._postgres.pid} if self._postgres else {}
        children = {name: process.pid for name, process in self._processes.items() if process.command.is_ready}
        published = runtime.model_copy(update={"processes": postgres | children})
        publish(published)
        return published


# --- what is started --------------------------------------------------------------------------------------------------


def _prefect_place(plan: StackPlan) -> PrefectPlace:
    home = plan.data_dir / "prefect"
    if plan.simulation:
        shutil.rmtree(home, ignore_errors=True)  # with the leases of a demo whose database is dropped
        port = _free_port()
    else:
        port = plan.settings.prefect_port
        _refuse_if_taken(LOOPBACK, port, "FLEET_PREFECT_PORT")
    home.mkdir(mode=0o700, exist_ok=True)
    return PrefectPlace(port=port, prefect_home=home, auth_string=_auth_string(home / "auth-string"))


def _hooks_bind(plan: StackPlan) -> str:
    if plan.simulation:
        return f"{LOOPBACK}:{_free_port()}"
    _refuse_if_taken(*plan.settings.hooks_address, "FLEET_HOOKS_BIND")
    return plan.settings.hooks_bind


def _auth_string(file: Path) -> str:
    """Made once and kept, so that a restart logs nobody out."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(f"fleet:{secrets.token_urlsafe(24)}")
    return file.read_text()


def _embedded_postgres(plan: StackPlan) -> EmbeddedPostgres:
    """With both databases; a demo's are made anew, and need not survive a power failure."""
    postgres = ensure_running(plan.data_dir, durable=plan.simulation is None)
    for name in (FLEET_DATABASE, PREFECT_DATABASE):
        if plan.simulation:
            _drop_database(postgres, name)
        postgres.create_database(name)
    return postgres


def _drop_database(postgres: EmbeddedPostgres, name: str) -> None:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    url = postgres.url("postgres").replace("postgresql+psycopg://", "postgresql://", 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(drop)


def _prepare_fleet(url: str, plan: StackPlan) -> Timeline:
    """Our tables, the installation and its time, and what the caller wants set before anything runs."""
    migrate.upgrade(url)
    database = open_database(url)
    try:
        found_installation(database, speed=plan.simulation.speed if plan.simulation else 1)
        plan.prepare(database)
        return timeline(database)
    finally:
        database.close()


def _look_at_fleet(url: str, look: Callable[[Database], object]) -> None:
    """A database that has gone away, or never got its tables, has nothing to show."""
    with suppress(FleetAgentError):
        database = open_database(url)
        try:
            look(database)
        finally:
            database.close()


def _server(place: PrefectPlace, database_url: str, prefect: PrefectRest) -> Command:
    return Command(
        name="Prefect server",
        arguments=(*PYTHON_M, "prefect", "server", "start", "--host", LOOPBACK, "--port", str(place.port)),
        environment=environments.of_server(place, database_url),
        folder=place.prefect_home,
        is_ready=lambda _: prefect.is_ready(),
        may_take_to_start=SERVER_MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_END,
        tries=3,  # on a busy machine it gives up a connection of its own while it makes its tables, and ends
    )


def _simulators(simulation: Simulation, ports: Simulators, line: Timeline) -> Command:
    return Command(
        name="simulators",
        arguments=(
            *(*PYTHON_M, "fleet_agent.sim.server", "--scenario", simulation.scenario, "--seed", str(simulation.seed)),
            *("--vast-port", str(ports.vast_port), "--model-port", str(ports.model_port)),
            # The same line of time as the database's clock, so that everybody agrees what time it is.
            *("--speed", str(line.speed), "--origin", line.origin.isoformat(), "--since", line.started_at.isoformat()),
        ),
        environment=environments.of_simulators(),
        folder=PROJECT_DIR,
        is_ready=lambda _: _listens(LOOPBACK, ports.model_port),
        may_take_to_start=MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_END,
    )


def _hooks(settings: Settings) -> Command:
    return Command(
        name="hooks",
        arguments=(*PYTHON_M, "fleet_agent.hooks.server"),
        environment=environments.of_hooks(settings),
        folder=PROJECT_DIR,
        is_ready=lambda _: _listens(*settings.hooks_address),
        may_take_to_start=MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_END,
    )


def _deployment(place: PrefectPlace, speed: float, pool: str) -> Command:
    return Command(
        name="deployment",
        arguments=(*PYTHON_M, "fleet_agent.deploy", "--speed", str(speed), "--pool", pool),
        environment=environments.of_deploy(place),
        folder=PROJECT_DIR,
        is_ready=None,
        may_take_to_start=MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_END,
    )


def _watch(place: PrefectPlace, settings: Settings) -> Command:
    return Command(
        name=WATCH,
        arguments=(*PYTHON_M, "fleet_agent.watch_process"),
        environment=environments.of_watch(place, settings),
        folder=PROJECT_DIR,
        is_ready=_at_once,
        may_take_to_start=MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_END,
    )


def _worker(place: PrefectPlace, settings: Settings, prefect: PrefectRest) -> Command:
    return Command(
        name=WORKER,
        arguments=(*PYTHON_M, "fleet_agent.worker"),
        environment=environments.of_worker(place, settings),
        folder=PROJECT_DIR,
        is_ready=lambda started_at: has_worker(prefect, settings.work_pool, since=started_at),
        may_take_to_start=MAY_TAKE_TO_START,
        may_take_to_end=MAY_TAKE_TO_FINISH_A_RUN,
        begins_anew=True,
    )


# --- ports and addresses ----------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        return listener.getsockname()[1]


def _refuse_if_taken(host: str, port: int, setting: str) -> None:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise FixSetup(
            f"port {port} on {host} is in use", f"stop what uses it, or set {setting} to another port"
        ) from error


async def _at_once(_: datetime) -> bool:
    """For what nobody has to wait for: what is posted before it rings, it rings for when it has come up."""
    return True


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
