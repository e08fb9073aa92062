"""What each process of the tree is told, and that Prefect understands it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from fleet_agent.settings import Settings
from fleet_agent.stack import environments
from fleet_agent.stack.environments import PrefectPlace

PLACE = PrefectPlace(port=4717, prefect_home=Path("/nonexistent"), auth_string="fleet:made-up")
SETTINGS = Settings.model_construct(
    vast_api_key=SecretStr("vast"), model_api_key=SecretStr("model"), database_url=SecretStr("postgresql:///fleet")
)

TELLING = SETTINGS.model_copy(update={"notify_urls": (SecretStr("ntfy://made-up"),)})

AS_PREFECT_READS_IT = """
import json
from prefect.settings import get_current_settings
settings = get_current_settings()
print(json.dumps({
    "read": sorted(settings.to_environment_variables(exclude_unset=True)),
    "leases": settings.server.concurrency.lease_storage,
    "origins": settings.server.api.cors_allowed_origins,
    "retention_days": settings.server.services.db_vacuum.retention_period.days,
    "slot_wait": settings.server.deployments.concurrency_slot_wait_seconds,
}))
"""


def read_by_prefect(environment: dict[str, str], home: Path) -> dict[str, object]:
    seen = subprocess.run(
        [sys.executable, "-c", AS_PREFECT_READS_IT],
        env=environment | {"PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(seen.stdout)


@pytest.mark.parametrize(
    "environment",
    [
        environments.of_server(PLACE, "postgresql+asyncpg:///prefect"),
        environments.of_worker(PLACE, SETTINGS),
        environments.of_watch(PLACE, SETTINGS),
    ],
    ids=["server", "worker", "watch"],
)
def test_prefect_knows_every_setting_that_it_is_given(environment: dict[str, str], tmp_path: Path) -> None:
    given = {name for name in environment if name.startswith("PREFECT_")}
    misspelt = environment | {"PREFECT_SERVER_MISSPELT": "1"}

    read = read_by_prefect(misspelt, tmp_path)["read"]

    assert isinstance(read, list)
    assert given - set(read) == set()
    assert "PREFECT_SERVER_MISSPELT" not in read  # the control: Prefect passes over what it does not know


def test_prefect_understands_the_values_as_they_are_meant(tmp_path: Path) -> None:
    seen = read_by_prefect(environments.of_server(PLACE, "postgresql+asyncpg:///prefect"), tmp_path)

    assert seen["leases"] == "prefect.server.concurrency.lease_storage.filesystem"
    assert seen["origins"] == "http://127.0.0.1:4717,http://localhost:4717"
    assert seen["retention_days"] == 30
    assert seen["slot_wait"] == 2


def test_each_process_is_told_only_what_it_needs_of_our_settings() -> None:
    """Worker and watch hold the key of the provider, the worker alone that of the model."""

    def ours(environment: dict[str, str]) -> set[str]:
        return {name for name in environment if name.startswith("FLEET_")}

    assert ours(environments.of_server(PLACE, "postgresql+asyncpg:///prefect")) == set()
    assert ours(environments.of_deploy(PLACE)) == set()
    assert ours(environments.of_simulators()) == set()
    assert ours(environments.of_hooks(SETTINGS)) == {"FLEET_DATABASE_URL", "FLEET_HOOKS_BIND"}
    assert {"FLEET_VAST_API_KEY", "FLEET_MODEL_API_KEY"} <= ours(environments.of_worker(PLACE, SETTINGS))
    watch = ours(environments.of_watch(PLACE, TELLING))
    assert {"FLEET_DATABASE_URL", "FLEET_VAST_API_KEY", "FLEET_VAST_URL", "FLEET_WATCH_EVERY"} <= watch
    assert "FLEET_NOTIFY_URLS" in watch
    assert "FLEET_NOTIFY_URLS" not in ours(environments.of_watch(PLACE, SETTINGS))  # the control: it is not set
    assert not any(name.startswith("FLEET_MODEL_") for name in watch)
