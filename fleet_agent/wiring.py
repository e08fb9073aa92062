"""The composition root: settings become ports and a database, and nowhere else.

The real world and the simulator differ only in addresses: there is no second market, and no code path that a test of
the one does not walk for the other.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from pydantic import SecretStr

from fleet_agent.clients import model, prefect_api, prometheus, vast
from fleet_agent.clients.notify import AppriseNotifier, NobodyToTell
from fleet_agent.clients.pace import MemoryTurns, Pace, Turns, TurnsInAnyCase
from fleet_agent.clients.secrecy import quiet_transport_logs
from fleet_agent.errors import FixSetup
from fleet_agent.ports import Clock, Notifier, Ports
from fleet_agent.settings import Settings, missing_for_up
from fleet_agent.store import migrate
from fleet_agent.store.database import Database, open_database
from fleet_agent.store.embedded import ensure_running, has_data
from fleet_agent.store.installation import found_installation, is_founded, read_clock, timeline
from fleet_agent.store.journal import PostgresJournal
from fleet_agent.store.pace import PostgresTurns

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
    assert settings.model_url is not None
    assert settings.model_name is not None
    assert settings.demand_prometheus_url is not None
    with open_store(settings) as database:
        clock = read_clock(database)
        async with (
            _open_vast(settings, database, clock, PostgresTurns(database, _vast_key(settings))) as market,
            model.open_client(settings.model_url, _secret(settings.model_api_key)) as model_client,
            prometheus.open_client(settings.demand_prometheus_url) as prometheus_client,
        ):
            yield Ports(
                clock=clock,
                market=market,
                model=model.ChatModel(model_client, _options(settings, settings.model_name), elapsed=clock.elapsed),
                demand=prometheus.PrometheusDemand(prometheus_client, _queries(settings), clock=clock),
                notifier=_notifier(settings),
                journal=PostgresJournal(database, clock, settings.fleet),
                count_tokens=count_bytes,
            )


@asynccontextmanager
async def open_market(settings: Settings, database: Database) -> AsyncGenerator[vast.VastMarket]:
    """The provider alone, for the emergency stop: it must work when model, demand and Prefect are dead, and a database
    that fails on the way must not hold it up."""
    clock = read_clock(database)
    turns = TurnsInAnyCase(PostgresTurns(database, _vast_key(settings)), MemoryTurns(clock.now))
    async with _open_vast(settings, database, clock, turns) as market:
        yield market


@asynccontextmanager
async def open_orchestrator(api_url: str, auth_string: str) -> AsyncGenerator[prefect_api.PrefectOrchestrator]:
    """Prefect's API of a running tree."""
    async with prefect_api.open_client(api_url, auth_string) as client:
        yield prefect_api.PrefectOrchestrator(client)


@asynccontextmanager
async def _open_vast(
    settings: Settings, database: Database, clock: Clock, turns: Turns
) -> AsyncGenerator[vast.VastMarket]:
    quiet_transport_logs()
    async with vast.open_client(settings.vast_url, _vast_key(settings)) as client:
        yield vast.VastMarket(
            client,
            clock=clock,
            pace=_pace(turns, timeline(database).speed),
            box_env={name: secret.get_secret_value() for name, secret in settings.box_env.items()},
        )


def _vast_key(settings: Settings) -> str:
    if settings.vast_api_key is None:
        raise FixSetup("the API key of vast.ai is missing", "set FLEET_VAST_API_KEY")
    return settings.vast_api_key.get_secret_value()


def _pace(turns: Turns, speed: float) -> Pace:
    """Turns are in the provider's own time, and a simulated provider's time runs at `speed`."""
    return Pace(vast.LIMITS, turns, sleep=lambda seconds: asyncio.sleep(seconds / speed))


def _options(settings: Settings, name: str) -> model.ChatOptions:
    return model.ChatOptions(
        model=name,
        max_output_tokens=settings.model_max_output_tokens,
        max_output_tokens_name=settings.model_max_output_tokens_name,
        usd_per_million_tokens_in=settings.model_usd_per_million_tokens_in,
        usd_per_million_tokens_out=settings.model_usd_per_million_tokens_out,
    )


def _queries(settings: Settings) -> prometheus.DemandQueries:
    return prometheus.DemandQueries(
        pending=settings.demand_query_pending,
        running=settings.demand_query_running,
        oldest_pending_seconds=settings.demand_query_oldest_pending_seconds,
        done_per_hour=settings.demand_query_done_per_hour,
        failed_per_hour=settings.demand_query_failed_per_hour,
    )


def _notifier(settings: Settings) -> Notifier:
    urls = [url.get_secret_value() for url in settings.notify_urls]
    return AppriseNotifier(urls) if urls else NobodyToTell()


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def worker_id() -> str:
    """Who carries out a run: this machine, and a part that is new with every start."""
    return f"{socket.gethostname()}-{secrets.token_hex(2)}"


def count_bytes(text: str) -> int:
    """Tokens of `text`, bounded from above for every byte-level tokenizer: on what we send, none makes more than one
    token of 1.1 bytes (digits and hexadecimal ids are the worst)."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 1.1)
