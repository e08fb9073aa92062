"""What each process of the tree may know: its environment, composed from nothing.

A process inherits what a program needs to run at all and nothing else of what was exported where the tree was started.
The worker and the watch hold the key of the provider and the secrets of boxes, the worker alone that of the model. The
Prefect server, which carries out what its API is told, and the door for webhooks, which strangers reach, see none.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from fleet_agent.settings import Settings, variable
from fleet_agent.stack.runtime import Runtime

ANY_PROGRAM = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
OF_THE_WATCH = ("database_url", "notify_urls", "vast_", "box_env", "demand_", "watch_")
"""How the names of the settings begin that the watch is told."""
WHO_REACHES_OUT = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True)
class PrefectPlace:
    """Where the tree's Prefect server is, and how to get in. `auth_string` is `user:password`."""

    port: int
    prefect_home: Path
    auth_string: str

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.origin}/api"


@dataclass(frozen=True)
class RemotePrefect:
    """A Prefect server that is not this tree's. An empty `auth_string` where it asks for none."""

    api_url: str
    prefect_home: Path
    auth_string: str


def of_simulators() -> dict[str, str]:
    return _inherited(ANY_PROGRAM)


def of_hooks(settings: Settings) -> dict[str, str]:
    """Where the database is and where to listen: strangers speak with this process, so it has nothing to give away."""
    told = {variable("database_url"), variable("hooks_bind")}
    return {
        **_inherited(ANY_PROGRAM),
        "PYTHONUNBUFFERED": "1",  # a log that is read after a crash must have the last line
        **{name: text for name, text in settings.environment().items() if name in told},
    }


def of_server(place: PrefectPlace, database_url: str) -> dict[str, str]:
    """`database_url` is for SQLAlchemy with asyncpg. What differs from Prefect's defaults has its reason beside it."""
    return {
        **_inherited(ANY_PROGRAM),
        **_of_prefect(place.prefect_home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database_url,
        # Anybody on this machine could start runs and read logs, and any page in a browser too.
        "PREFECT_SERVER_API_AUTH_STRING": place.auth_string,
        # By default the pages ask port 4200, whoever listens there; so they ask where they came from.
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{place.origin},http://localhost:{place.port}",
        # The newer pages load a script from a tracking company in the reader's browser, whatever the settings.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        # In memory, a restart of the server would end the run that goes on, or leave its slot taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Seconds before a run that found the slot taken is tried again; 30 would be felt by whoever waits.
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
        # Seconds before a cancelled run that does not answer gives its slot back; 300 is a whole heartbeat.
        "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS": "60",
        # A run that waits for its turn is not worth a warning at once.
        "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "60",
        # Heartbeats made in advance: two hours of them are enough; a hundred rows would be made while a demo starts.
        "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "24",
        # Only events are thrown away by default; runs and their logs would grow for ever. In seconds: 30 days.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": "2592000",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }


def of_prefect_client(place: PrefectPlace | RemotePrefect | Runtime) -> dict[str, str]:
    """For whatever speaks with the tree's server through Prefect's own library."""
    auth = {"PREFECT_API_AUTH_STRING": place.auth_string} if place.auth_string else {}
    return {**_of_prefect(place.prefect_home), "PREFECT_API_URL": place.api_url, **auth}


def of_deploy(place: PrefectPlace) -> dict[str, str]:
    return _inherited(ANY_PROGRAM) | of_prefect_client(place)


def of_watch(place: PrefectPlace, settings: Settings) -> dict[str, str]:
    """Where the database, Prefect, the provider and the proving stack are, and how a person is told. The model's key is
    none of its business."""
    told = {variable(name) for name in Settings.model_fields if name.startswith(OF_THE_WATCH)}
    return {
        **_inherited(ANY_PROGRAM + WHO_REACHES_OUT),
        **of_prefect_client(place),
        "NO_PROXY": _no_proxy(),
        **{name: text for name, text in settings.environment().items() if name in told},
    }


def of_worker(place: PrefectPlace | RemotePrefect | Runtime, settings: Settings) -> dict[str, str]:
    return {
        **_inherited(ANY_PROGRAM + WHO_REACHES_OUT),
        **of_prefect_client(place),
        "NO_PROXY": _no_proxy(),
        # Seconds between two looks for runs that are due. The resident worker is woken by events and looks only in case
        # one was lost; the other has nothing but its looks, which are cheap on loopback, and somebody may wait.
        "PREFECT_WORKER_QUERY_SECONDS": "10" if settings.work_pool == "fleet-agent" else "1",
        # The shortest there is: how soon a run that was killed can be noticed.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        # Each run has short-lived threads, and glibc gives each a heap of its own, whose free pages stay with it.
        "MALLOC_ARENA_MAX": "2",
        **settings.environment(),
    }


def _of_prefect(home: Path) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",  # a log that is read after a crash must have the last line
    }


def _no_proxy() -> str:
    return ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))


def _inherited(names: tuple[str, ...]) -> dict[str, str]:
    # The programs of this virtual environment come first, whether or not somebody activated it.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    here = os.environ | {"PATH": path}
    return {name: here[name] for name in names if name in here}
