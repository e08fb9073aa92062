"""A process that carries out many runs holds one store, lends it to each, and is none the larger for them."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy.engine import Dialect

from fleet_agent.clients.curio import CurioDemand
from fleet_agent.clients.prometheus import PrometheusDemand
from fleet_agent.doctor import Patient, examine_settings
from fleet_agent.domain.run import Run, RunRequest
from fleet_agent.domain.triggers import Trigger
from fleet_agent.errors import DatabaseUnreachable, DatabaseUnusable, FixSetup
from fleet_agent.settings import Settings
from fleet_agent.store.embedded import ensure_running
from fleet_agent.wiring import HeldStore, look_every, open_ports, open_watch
from tests.postgres import plain, temporary_folder


def settings_of(url: str | None, **others: object) -> Settings:
    nowhere = "http://127.0.0.1:9"
    return Settings.model_validate(
        {
            "database_url": None if url is None else SecretStr(url),
            "vast_api_key": "made-up",
            "vast_url": nowhere,
            "model_url": nowhere,
            "model_name": "made-up",
            "demand_prometheus_url": nowhere,
            **others,
        }
    )


async def a_run_opens(settings: Settings, number: int) -> None:
    async with open_ports(settings) as ports:
        request = RunRequest(
            fleet="main", trigger=Trigger.MANUAL, flow_run_id=f"run {number}", attempt=1, worker_id="test"
        )
        assert isinstance(await ports.journal.open_run(request), Run)


def dialects() -> int:
    """One for each engine that anything still remembers."""
    gc.collect()
    return sum(isinstance(each, Dialect) for each in gc.get_objects())


async def test_runs_that_are_lent_a_store_leave_nothing_behind(database_url: str) -> None:
    settings = settings_of(database_url)
    store = HeldStore(settings)
    sizes: list[int] = []
    for number in range(4):
        with store.lent():
            await a_run_opens(settings, number)
        sizes.append(dialects())
    store.close()
    assert len(set(sizes)) == 1


async def test_runs_that_open_their_own_leave_an_engine_each(database_url: str) -> None:
    """The control: what SQLAlchemy compiled for an engine outlives it."""
    settings = settings_of(database_url)
    sizes: list[int] = []
    for number in range(4):
        await a_run_opens(settings, number)
        sizes.append(dialects())
    assert sizes == sorted(set(sizes))


async def test_a_run_on_another_database_is_not_lent_this_one(database_url: str) -> None:
    store = HeldStore(settings_of("postgresql://nobody@127.0.0.1:9/elsewhere"))
    with store.lent():
        await a_run_opens(settings_of(database_url), 0)
    store.close()


def test_connections_that_were_cut_are_made_anew_for_the_next_run(database_url: str) -> None:
    store = HeldStore(settings_of(database_url))
    store.database()
    with psycopg.connect(plain(database_url), autocommit=True) as other:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
        assert other.execute(cut, [other.info.backend_pid]).rowcount > 0
    store.database()
    store.close()


def test_what_has_become_of_the_database_is_said_at_the_next_run(database_url: str) -> None:
    store = HeldStore(settings_of(database_url))
    store.database()
    with psycopg.connect(plain(database_url), autocommit=True) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseUnusable, match="a newer fleet-agent"):
        store.database()
    store.close()


def test_an_embedded_server_that_was_stopped_is_started_again_and_a_given_one_is_waited_for() -> None:
    with temporary_folder() as folder:
        embedded = HeldStore(settings_of(None, data_dir=folder))
        embedded.database()
        stop(folder)
        embedded.database()

        with ensure_running(folder) as server:
            given = HeldStore(settings_of(server.url("fleet")))
            given.database()
            server.stop()
            with pytest.raises(DatabaseUnreachable):
                given.database()
            embedded.database()
            given.database()
            given.close()
        embedded.close()


def stop(folder: Path) -> None:
    with ensure_running(folder) as server:
        server.stop()


@pytest.mark.parametrize(("every", "speed", "pause"), [(60, 1, 60), (60, 15, 4), (60, 60, 1), (10, 60, 1), (10, 1, 10)])
def test_looks_follow_business_time_and_are_never_closer_than_a_second(every: int, speed: float, pause: float) -> None:
    assert look_every(settings_of(None, watch_every=every), speed) == timedelta(seconds=pause)


@pytest.mark.parametrize("every", [0, 9, 3601])
def test_a_look_is_no_oftener_than_every_ten_seconds(every: int) -> None:
    with pytest.raises(ValidationError):
        settings_of(None, watch_every=every)


async def test_a_watch_without_the_key_of_the_provider_does_not_begin(database_url: str) -> None:
    """It would ring and tell, and everybody would think that the limits are kept. Control: with the key it does."""
    with pytest.raises(FixSetup, match="API key of vast"):
        async with open_watch(settings_of(database_url, vast_api_key=None), "http://127.0.0.1:9/api", None, tell=print):
            pass
    async with open_watch(settings_of(database_url), "http://127.0.0.1:9/api", None, tell=print) as ports:
        assert ports.demand is not None


# --- where the demand is read -----------------------------------------------------------------------------------------

CURIO = "postgresql://reader@127.0.0.1:9/yugabyte"


@pytest.mark.parametrize(
    ("urls", "kind"),
    [
        ({"demand_curio_url": CURIO, "demand_prometheus_url": None}, CurioDemand),
        ({"demand_prometheus_url": "http://127.0.0.1:9"}, PrometheusDemand),
    ],
)
async def test_runs_and_watch_read_the_demand_where_the_settings_say(
    database_url: str, urls: dict[str, Any], kind: type
) -> None:
    settings = settings_of(database_url, **urls)
    async with open_ports(settings) as ports:
        assert isinstance(ports.demand, kind)
    async with open_watch(settings, "http://127.0.0.1:9/api", None, tell=print) as watch:
        assert isinstance(watch.demand, kind)


async def test_two_sources_of_demand_are_refused_and_the_doctor_says_so(database_url: str) -> None:
    settings = settings_of(database_url, demand_curio_url=CURIO)
    with pytest.raises(FixSetup, match="are both set → unset"):
        async with open_ports(settings):
            pass

    nowhere = FixSetup("nothing runs")
    patient = Patient(settings, (), nowhere, nowhere, open_ports=lambda: open_ports(settings))
    ill = [finding.sentence async for finding in examine_settings(patient) if not finding.well]
    assert [sentence.partition(" are ")[0] for sentence in ill] == [
        "settings: FLEET_DEMAND_CURIO_URL and FLEET_DEMAND_PROMETHEUS_URL"
    ]


async def test_an_address_that_no_curio_can_have_is_told_at_the_start(database_url: str) -> None:
    settings = settings_of(database_url, demand_prometheus_url=None, demand_curio_url="postgresql://reader@db:99999/x")
    with pytest.raises(FixSetup, match="FLEET_DEMAND_CURIO_URL has a port that is none"):
        async with open_ports(settings):
            pass
