"""A Prefect server alone, as the process tree would start it: its settings, a database of its own, no worker."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from fleet_agent.clients.prefect_rest import PrefectRest, open_client
from fleet_agent.deploy import PROCESS_POOL, WORK_POOL
from fleet_agent.stack import environments
from fleet_agent.stack.environments import PrefectPlace
from fleet_agent.store.embedded import EmbeddedPostgres
from fleet_agent.worker.process import OurFlowsWorker
from fleet_agent.worker.resident import ResidentWorker
from tests.postgres import plain
from tests.stack.waiting import until

Found = TypeVar("Found")


class PrefectServer:
    """It can be stopped, and started again at its address."""

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, settings: Mapping[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        home = folder / f"prefect-{port}"
        home.mkdir()
        database = f"prefect_{port}"
        postgres.create_database(database)
        self.place = PrefectPlace(port=port, prefect_home=home, auth_string="test:made-up")
        self.database_url = plain(postgres.url(database))
        self._environment = environments.of_server(self.place, postgres.asyncpg_url(database)) | settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client_environment(self) -> dict[str, str]:
        return environments.of_prefect_client(self.place)

    def start(self) -> None:
        place, log = self.place, self.place.prefect_home / "log"
        arguments = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(place.port)]
        with log.open("ab") as output:
            process = self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment,
                cwd=place.prefect_home,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until(lambda: process.poll() is not None or self._is_ready(), seconds=240)
        assert process.poll() is None, log.read_text()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.place.api_url}/ready", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    # --- asking it ----------------------------------------------------------------------------------------------------

    def api(self) -> httpx.Client:
        user, password = self.place.auth_string.split(":")
        return httpx.Client(base_url=self.place.api_url, auth=(user, password), timeout=20, trust_env=False)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with self.api() as api:
            answer = api.request(method, path, json=body).raise_for_status()
        return answer.json() if answer.content else None

    @asynccontextmanager
    async def rest(self) -> AsyncGenerator[PrefectRest]:
        async with open_client(self.place.api_url, self.place.auth_string) as client:
            yield PrefectRest(client)

    def run(self, *arguments: str, folder: Path, **environment: str) -> str:
        """A Python program that speaks with this server, to its end; what it printed."""
        ended = subprocess.run(
            [sys.executable, *arguments],
            env=environments.of_deploy(self.place) | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    # --- what is on it ------------------------------------------------------------------------------------------------

    def has_pools(self) -> None:
        """For both kinds of workers."""
        for name, kind in ((WORK_POOL, ResidentWorker), (PROCESS_POOL, OurFlowsWorker)):
            template = kind.get_default_base_job_template()
            self.ask("POST", "/work_pools/", {"name": name, "type": kind.type, "base_job_template": template})

    def deployment(self, name: str, **differs: Any) -> str:
        """One of ours, as `fleet-agent deploy` makes it; its id."""
        flow = self.ask("POST", "/flows/", {"name": "agent-cycle"})["id"]
        deployment = {
            "name": name,
            "flow_id": flow,
            "entrypoint": "flows.agent_cycle.agent_cycle",
            "work_pool_name": WORK_POOL,
            "concurrency_limit": 1,
            "concurrency_options": {"collision_strategy": "ENQUEUE"},
            **differs,
        }
        return self.ask("POST", "/deployments/", deployment)["id"]

    def run_of(self, deployment: str, *, scheduled_time: str | None = None, **parameters: Any) -> str:
        details = {"scheduled_time": scheduled_time} if scheduled_time else {}
        state = {"type": "SCHEDULED", "state_details": details}
        body = {"parameters": parameters, "state": state}
        return self.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"]

    def state(self, run: str) -> str:
        return self.ask("GET", f"/flow_runs/{run}")["state_name"]

    def states(self, run: str) -> list[str]:
        """Every state it has had, in order."""
        history = self.ask("GET", f"/flow_run_states/?flow_run_id={run}")
        return [state["name"] for state in sorted(history, key=lambda state: state["timestamp"])]

    def cancel(self, run: str) -> None:
        """What the button in Prefect's pages does."""
        self.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})


@contextmanager
def prefect_server(folder: Path, postgres: EmbeddedPostgres, **settings: str) -> Generator[PrefectServer]:
    """One that has started; `settings` are variables in the place of those that the tree gives its server."""
    server = PrefectServer(folder, postgres, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def rows(rest: PrefectRest, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (await rest.ask("POST", path, body)).json()


async def eventually(look: Callable[[], Awaitable[Found]], *, seconds: float = 60) -> Found:
    """What `look()` returns once it is true."""
    async with asyncio.timeout(seconds):
        while not (found := await look()):  # noqa: ASYNC110 (another process has no event for us)
            await asyncio.sleep(0.2)
    return found
