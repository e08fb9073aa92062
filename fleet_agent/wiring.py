"""The composition root: settings become ports and a database, and nowhere else.

The real world and the simulator differ only in addresses: there is no second market, and no code path that a test of
the one does not walk for the other.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import timedelta

from pydantic import SecretStr

from fleet_agent.clients import curio, model, models, prefect_api, prefect_rest, prometheus, vast
from fleet_agent.clients.counting import count_tokens
from fleet_agent.clients.notify import AppriseNotifier, NobodyToTell
from fleet_agent.clients.pace import MemoryTurns, Pace, Turns, TurnsInAnyCase
from fleet_agent.clients.secrecy import quiet_transport_logs
from fleet_agent.domain.box_reports import BoxHook, hook_of
from fleet_agent.domain.context import room_for_a_run
from fleet_agent.domain.hygiene import MARK_BYTES
from fleet_agent.domain.tokens import window_needed
from fleet_agent.errors import DatabaseUnreachable, FixSetup
from fleet_agent.housekeeping import HousePorts
from fleet_agent.ports import Clock, DemandSource, Notifier, Ports
from fleet_agent.settings import ServedModel, Settings, demand_must_have_one_source, missing_for_up
from fleet_agent.store import migrate, reading
from fleet_agent.store.account_looks import PostgresLooks
from fleet_agent.store.bell import PostgresBelfry
from fleet_agent.store.books import PostgresBooks
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.embedded import ensure_running, has_data
from fleet_agent.store.installation import found_installation, is_founded, read_clock, timeline
from fleet_agent.store.journal import PostgresJournal
from fleet_agent.store.model_servers import PostgresModelMemory
from fleet_agent.store.pace import PostgresTurns
from fleet_agent.store.watch import PostgresLogbook
from fleet_agent.watch import WatchPorts

FLEET_DATABASE = "fleet"

WRONG_PLACE = "call it where your .env is, or set FLEET_DATA_DIR; `fleet-agent up` makes a new one"


@contextmanager
def open_store(settings: Settings) -> Generator[Database]:
    """Our database, migrated and named. The embedded one is started on demand. Raises DatabaseUnreachable, FixSetup."""
    with _database_url(settings) as url:
        migrate.upgrade(url)
        database = open_database(url)
        try:
            found_installation(database)
            yield database
        finally:
            database.close()


class HeldStore:
    """The store of a process that carries out many runs: opened for the first, looked at before each, closed once.

    Behind every table SQLAlchemy keeps the statements that it compiled, by engine. With an engine for each run a
    process would grow with every run, and compile every statement anew in each.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened = ExitStack()
        self._database: Database | None = None

    @contextmanager
    def lent(self) -> Generator[None]:
        """Within, whoever calls `open_ports` on the same database gets this store, and closes nothing."""
        before = _lent.set(self)
        try:
            yield
        finally:
            _lent.reset(before)

    def serves(self, settings: Settings) -> bool:
        return (settings.database_url, settings.data_dir) == (self._settings.database_url, self._settings.data_dir)

    def database(self) -> Database:
        """Raises as `open_store` does, whatever became of the database since it was opened."""
        if self._database is not None:
            try:
                self._database.check()
            except DatabaseUnreachable:
                if self._settings.database_url is not None:
                    raise  # whose connections are made anew as soon as it answers
                self.close()  # an embedded server is started by whoever opens it
        if self._database is None:
            self._database = self._opened.enter_context(open_store(self._settings))
        return self._database

    def close(self) -> None:
        self._database = None
        self._opened.close()


_lent: ContextVar[HeldStore | None] = ContextVar("the store that this run was lent", default=None)
"""A run is a function that Prefect calls: beside its parameters nothing can be handed to it but its context."""


@contextmanager
def _store_of_a_run(settings: Settings) -> Generator[Database]:
    held = _lent.get()
    if held is not None and held.serves(settings):
        yield held.database()
    else:
        with open_store(settings) as database:
            yield database


@contextmanager
def find_store(settings: Settings) -> Generator[Database]:
    """The same where it exists already: nothing is made, so that a brake in the wrong folder does not brake thin air.

    Raises DatabaseUnreachable, DatabaseUnusable, FixSetup where there is no installation.
    """
    if settings.database_url is None and not has_data(settings.data_dir):
        raise FixSetup(f"there is no installation in {settings.data_dir}", WRONG_PLACE)
    with _database_url(settings) as url:
        database = open_database(url)
        try:
            if not is_founded(database):
                raise FixSetup(f"there is no installation in {place_of(settings)}", WRONG_PLACE)
            yield database
        finally:
            database.close()


def place_of(settings: Settings) -> str:
    """Where the fleet's database is, for a person: no password in it."""
    return str(settings.data_dir) if settings.database_url is None else "the database of FLEET_DATABASE_URL"


@contextmanager
def _database_url(settings: Settings) -> Generator[str]:
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    with ensure_running(settings.data_dir) as postgres:
        postgres.create_database(FLEET_DATABASE)
        yield postgres.url(FLEET_DATABASE)


@asynccontextmanager
async def open_ports(settings: Settings) -> AsyncGenerator[Ports]:
    """Everything a run reaches the world through. Raises FixSetup where a setting is missing."""
    missing = missing_for_up(settings)
    if missing:
        names = ", ".join(line.partition(":")[0] for line in missing)
        raise FixSetup(f"settings are missing: {names}", "`fleet-agent doctor` says what each is")
    with _store_of_a_run(settings) as database:
        clock = read_clock(database)
        async with (
            _open_vast(settings, database, clock, begins_with_newest=True) as market,
            open_models(settings, database, clock) as opened_models,
            _open_demand(settings, clock) as demand,
        ):
            assert demand is not None
            yield Ports(
                clock=clock,
                market=market,
                model=opened_models,
                demand=demand,
                notifier=_notifier(settings),
                journal=PostgresJournal(database, clock, settings.fleet),
                count_tokens=count_tokens,
                draw_mark=lambda: secrets.token_hex(MARK_BYTES),
                draw_hook=functools.partial(_draw_hook, settings.hooks_public_url),
            )


def models_must_fit(settings: Settings) -> None:
    """Raises FixSetup where a prompt and its reply may not fit into a model's window: said at the start, and not found
    out in the middle of a run that fails again and again."""
    needed = window_needed(settings.model_max_output_tokens)
    for served in settings.models:
        if served.window_tokens < needed:
            raise FixSetup(
                f"the window of {served.name} has {served.window_tokens} tokens, and a prompt with its reply may need "
                f"{needed}",
                "serve it with a larger one and set FLEET_MODEL_WINDOW_TOKENS, or lower FLEET_MODEL_MAX_OUTPUT_TOKENS",
            )


@asynccontextmanager
async def open_models(settings: Settings, database: Database, clock: Clock) -> AsyncGenerator[models.ModelList]:
    """The models that may be asked. Raises FixSetup where one's window is too small, or no server can be there."""
    models_must_fit(settings)
    async with AsyncExitStack() as clients:
        opened: list[model.ChatModel] = []
        for served in settings.models:
            client = await clients.enter_async_context(model.open_client(served.url, _secret(served.api_key)))
            options = _options(served, settings)
            opened.append(model.ChatModel(client, options, count_tokens=count_tokens, elapsed=clock.elapsed))
        memory = PostgresModelMemory(database, clock, settings.fleet)
        yield models.ModelList(opened, memory, elapsed=clock.elapsed)


async def self_test_models(settings: Settings) -> tuple[models.Tested, ...]:
    """See whether each model really calls tools; what is found stands in `status`, and a person is told of what is
    wrong. A minute at most, and nobody has to wait for it. Raises FixSetup, DatabaseUnreachable."""
    with open_store(settings) as database:
        async with open_models(settings, database, read_clock(database)) as opened:
            return await opened.self_test()


async def room_in_prompt(settings: Settings) -> int:
    """Tokens that what every prompt carries leaves for what a run is about, as whoever would be asked now counts.
    Raises ShortenObjective where these are too few, and what `self_test_models` raises."""
    with open_store(settings) as database:
        async with open_models(settings, database, read_clock(database)) as opened:
            factor = (await opened.terms()).factor
        with database.transaction() as tx:
            return room_for_a_run(reading.standing_now(tx, settings.fleet), count_tokens, factor)


@asynccontextmanager
async def open_market(settings: Settings, database: Database) -> AsyncGenerator[vast.VastMarket]:
    """The provider alone, for the emergency stop: it must work when model, demand and Prefect are dead, and a database
    that fails on the way must not hold it up."""
    clock = read_clock(database)
    turns = TurnsInAnyCase(PostgresTurns(database, _vast_key(settings)), MemoryTurns(clock.now))
    async with _open_vast(settings, database, clock, turns=turns) as market:
        yield market


@asynccontextmanager
async def open_house(settings: Settings) -> AsyncGenerator[HousePorts]:
    """Everything the housekeeping reaches the world through. Raises as `open_store` does."""
    with _store_of_a_run(settings) as database:
        clock = read_clock(database)
        async with _open_vast(settings, database, clock) as market:
            yield HousePorts(clock=clock, market=market, books=PostgresBooks(database))


@asynccontextmanager
async def open_prefect(api_url: str, auth_string: str | None) -> AsyncGenerator[prefect_rest.PrefectRest]:
    """Prefect's API of a running tree."""
    async with prefect_rest.open_client(api_url, auth_string) as client:
        yield prefect_rest.PrefectRest(client)


@asynccontextmanager
async def open_orchestrator(
    database: Database, api_url: str, auth_string: str | None
) -> AsyncGenerator[prefect_api.PrefectOrchestrator]:
    """The same as a port, in the database's business time."""
    async with open_prefect(api_url, auth_string) as rest:
        yield prefect_api.PrefectOrchestrator(rest, timeline(database))


@asynccontextmanager
async def open_watch(
    settings: Settings, api_url: str, auth_string: str | None, *, tell: Callable[[str], None]
) -> AsyncGenerator[WatchPorts]:
    """Everything the watch reaches the world through. Raises FixSetup where the key of the provider is missing: a watch
    that sees no box keeps no limit."""
    with open_store(settings) as database:
        clock = read_clock(database)
        async with (
            _open_vast(settings, database, clock) as market,
            _open_demand(settings, clock) as demand,
            open_orchestrator(database, api_url, auth_string) as orchestrator,
            aclosing(PostgresBelfry(database, clock, read_clock_again=clock.read_again)) as belfry,
        ):
            yield WatchPorts(
                clock=clock,
                market=market,
                demand=demand,
                look_every=look_every(settings, timeline(database).speed),
                belfry=belfry,
                logbook=PostgresLogbook(database, clock),
                orchestrator=orchestrator,
                notifier=_notifier(settings),
                sleep=asyncio.sleep,
                tell=tell,
            )


def look_every(settings: Settings, speed: float) -> timedelta:
    """Real time between two looks. However fast business runs, the provider and the database are asked no faster."""
    return max(timedelta(seconds=settings.watch_every) / speed, timedelta(seconds=1))


@asynccontextmanager
async def _open_demand(settings: Settings, clock: Clock) -> AsyncGenerator[DemandSource | None]:
    """None where no source is set. Raises FixSetup where two are, or where none can be at the address."""
    demand_must_have_one_source(settings)
    if settings.demand_curio_url is not None:
        url = settings.demand_curio_url.get_secret_value()
        yield curio.CurioDemand(url, tasks=settings.demand_curio_tasks, clock=clock)
    elif settings.demand_prometheus_url is not None:
        async with prometheus.open_client(settings.demand_prometheus_url) as client:
            yield prometheus.PrometheusDemand(client, _queries(settings), clock=clock)
    else:
        yield None


@asynccontextmanager
async def _open_vast(
    settings: Settings,
    database: Database,
    clock: Clock,
    *,
    turns: Turns | None = None,
    begins_with_newest: bool = False,
) -> AsyncGenerator[vast.VastMarket]:
    quiet_transport_logs()
    key = _vast_key(settings)
    async with vast.open_client(settings.vast_url, key) as client:
        yield vast.VastMarket(
            client,
            clock=clock,
            pace=_pace(turns or PostgresTurns(database, key), timeline(database).speed),
            looks=PostgresLooks(database, key),
            begins_with_newest=begins_with_newest,
            box_env={name: secret.get_secret_value() for name, secret in settings.box_env.items()},
        )


def _vast_key(settings: Settings) -> str:
    if settings.vast_api_key is None:
        raise FixSetup("the API key of vast.ai is missing", "set FLEET_VAST_API_KEY")
    return settings.vast_api_key.get_secret_value()


def _pace(turns: Turns, speed: float) -> Pace:
    """Turns are in the provider's own time, and a simulated provider's time runs at `speed`."""
    return Pace(vast.LIMITS, turns, sleep=lambda seconds: asyncio.sleep(seconds / speed))


def _options(served: ServedModel, settings: Settings) -> model.ChatOptions:
    return model.ChatOptions(
        model=served.name,
        max_output_tokens=settings.model_max_output_tokens,
        max_output_tokens_name=served.max_output_tokens_name,
        window_tokens=served.window_tokens,
        usd_per_million_tokens_in=served.usd_per_million_tokens_in,
        usd_per_million_tokens_out=served.usd_per_million_tokens_out,
    )


def _draw_hook(public_url: str | None) -> BoxHook | None:
    return None if public_url is None else hook_of(public_url, secrets.token_urlsafe(32))


def _queries(settings: Settings) -> prometheus.DemandQueries:
    names = [field.name for field in fields(prometheus.DemandQueries)]
    return prometheus.DemandQueries(**{name: getattr(settings, f"demand_query_{name}") for name in names})


def _notifier(settings: Settings) -> Notifier:
    urls = [url.get_secret_value() for url in settings.notify_urls]
    return AppriseNotifier(urls) if urls else NobodyToTell()


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


@functools.cache
def worker_id() -> str:
    """Who carries out a run: this machine, and a part that is new with every start of its process."""
    return f"{socket.gethostname()}-{secrets.token_hex(2)}"
