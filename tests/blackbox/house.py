"""A whole installation with a hand on everything that can go wrong with it.

It is `fleet-agent up` as a person starts it, against simulators that live in a process of their own. A test makes
things happen the way they happen: events by a transaction of another process, runs by the request that the button in
Prefect's pages sends, deaths by SIGKILL. Where a run is in its story is not a matter of time: the model's replies wait
before a gate, and let the run go on step by step. What is waited for has a deadline that only a broken program reaches;
then the failure shows the whole picture.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import text

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.errors import FleetAgentError
from fleet_agent.store.database import Database, notify_bell, open_database
from fleet_agent.store.inbox import Post, post
from fleet_agent.store.tables import Purpose
from fleet_agent.wiring import read_clock
from tests.postgres import temporary_folder
from tests.stack.trees import Tree, free_ports, ready, simulators
from tests.stack.waiting import PATIENCE, alive

Json = dict[str, Any]

IMAGE = "example.invalid/prover@sha256:" + "0" * 64
OVER = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
DOORBELLS = "fleet-agent.doorbell."
AT_HAND = frozenset({"PENDING", "RUNNING", "CANCELLING", "PAUSED"})


@dataclass(frozen=True)
class Setup:
    """What differs between installations.

    held: it is handed over with its very first run standing in its first step.
    differs: Python that is run in the root process before `up`, for what is no setting.
    settings: further variables of `up`.
    """

    pool: str = "fleet-agent"
    scenario: str = "idle"
    held: bool = False
    differs: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_process(self) -> bool:
        """Each run is a process of its own."""
        return self.pool == "fleet-agent-process"

    @property
    def answers_within(self) -> float:
        """Seconds from an event to its run: without the heartbeat, and with a machine that does other work too."""
        return 45 if self.is_process else 15

    @property
    def rests_within(self) -> float:
        """Seconds until what was rung for too often has ended as empty flow runs: each takes a process its start."""
        return 300 if self.is_process else 90


class House:
    fleet = "main"

    def __init__(self, setup: Setup, folder: Path, world: World, stack: ExitStack) -> None:
        self.setup = setup
        self.world = world
        self.began = datetime.now(UTC)
        self.first_run = 0
        self.first_event = 0
        self.forced: set[str] = set()
        """Truths that a test breaks on purpose, see `truths`."""
        self.cancelled: set[str] = set()
        """Flow runs that the test cancelled as a person."""
        self._hooks_token: str | None = None
        self._folder = folder
        self._stack = stack
        self._tree: Tree | None = None
        self._database: Database | None = None

    # --- the tree -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """`up`, for the first time or once everything was killed; it ends with the house."""
        self._stack.enter_context(self._up())

    @contextmanager
    def _up(self) -> Generator[None]:
        prefect, hooks = free_ports(2)
        settings = {
            "FLEET_PREFECT_PORT": str(prefect),
            "FLEET_HOOKS_BIND": f"127.0.0.1:{hooks}",
            "FLEET_VAST_API_KEY": "made-up",
            "FLEET_WORK_POOL": self.setup.pool,
            **self.world.settings(),
            **self.setup.settings,
        }
        with (
            ready(self._folder, "up", settings=settings, first=self.setup.differs) as tree,
            closing(open_database(tree.runtime.database_url)) as database,
            tree.api() as rest,
        ):
            self._tree, self._database, self._rest = tree, database, rest
            self._clock = read_clock(database)
            self.until("it says that it is ready", lambda: "Ready." in tree.output.read_text(), 60)
            yield

    @property
    def tree(self) -> Tree:
        assert self._tree is not None
        return self._tree

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database

    def begin(self) -> None:
        """A test begins: nothing is at hand, and what happens from now on is its own."""
        self.forced.clear()
        self.open_gate()
        self.pause_heartbeats()
        self.until_at_rest()
        self.began = datetime.now(UTC)
        self.first_run = 1 + max((run["run_id"] for run in self.all_runs()), default=0)
        self.first_event = 1 + max((event["id"] for event in self.rows("inbox")), default=0)

    def kill(self, *names: str) -> datetime:
        """`kill -9`, at once; returns when. A worker dies with the processes of its runs."""
        processes = self.tree.processes()
        doomed = [each for name in names for each in (processes[name], *processes[name].children(recursive=True))]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        return datetime.now(UTC)

    def kill_everything(self) -> datetime:
        """As a power failure does, the guardian of the tree included."""
        doomed = [*self.tree.everything(), *psutil.Process(self.tree.root.pid).children(recursive=True)]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)  # nobody cleans up after another one
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.tree.root.wait()
        self.until("nothing of it runs", lambda: alive(doomed) == [], 20)
        return datetime.now(UTC)

    def until_back(self, *names: str, than: Mapping[str, psutil.Process], seconds: float = 90) -> None:
        """Until these processes have been started again."""

        def are_back() -> bool:
            now = self.tree.processes()
            return all(name in now and now[name].pid != than[name].pid for name in names)

        self.until(f"{', '.join(names)} started again", are_back, seconds)

    # --- what happens -------------------------------------------------------------------------------------------------

    def post(self, words: str = "", kind: Kind = Kind.MESSAGE, **values: Any) -> int:
        """Something happens; the id of its event."""
        with self.database.shared(self.fleet) as tx:
            return post(tx, self.fleet, Post(kind=kind, source="blackbox", text=words, **values), now=self._clock.now())

    def post_by_hook(self, words: str) -> int:
        """Something happens elsewhere, and its sender calls our hook; the id of its event."""
        if self._hooks_token is None:
            self._hooks_token = controls.rotate_token(self.desk(), Purpose.HOOKS)
        door = f"http://{self.tree.runtime.hooks_bind}/hooks/blackbox/{self._hooks_token}"
        httpx.post(door, json={"text": words}, timeout=10, trust_env=False).raise_for_status()
        return max(event["id"] for event in self.rows("inbox") if event["kind"] == Kind.WEBHOOK)

    def plant_wake(self, after: timedelta, reason: str = "planted") -> int:
        """A wake as if it had been asked for earlier, hence sooner than one may ask; its id."""
        with self.database.exclusive(self.fleet) as tx:
            now = self._clock.now()
            planted = tx.execute(
                text(
                    "INSERT INTO wake (fleet, wake_at, reason, asked_by, asked_at, status, generation, rings) "
                    "VALUES (:fleet, :wake_at, :reason, 'agent', :now, 'pending', 0, 0) RETURNING id"
                ),
                {"fleet": self.fleet, "wake_at": now + after, "reason": reason, "now": now},
            ).scalar_one()
            notify_bell(tx, self.fleet)
            return planted

    def desk(self) -> Desk:
        return Desk(self.database, self._clock, self.fleet, "blackbox", "the tests")

    def reset_session(self) -> int:
        return controls.reset_session(self.desk())

    def set_policy(self, **changes: str) -> None:
        controls.set_policy(self.desk(), {name.replace("__", "."): value for name, value in changes.items()})

    # --- Prefect ------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._rest.request(method, path, json=body).raise_for_status()
        return answer.json() if answer.content else None

    def deployment(self) -> Json:
        return self.ask("GET", f"/deployments/name/agent-cycle/{self.fleet}")

    def start_flow_run(
        self, trigger: Trigger = Trigger.MANUAL, *, after: timedelta = timedelta(0), **parameters: Any
    ) -> str:
        """As the button in Prefect's pages does; the id of the flow run."""
        due = datetime.now(UTC) + after
        body = {
            "parameters": {"fleet": self.fleet, "trigger": trigger.value, **parameters},
            "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}},
        }
        return self.ask("POST", f"/deployments/{self.deployment()['id']}/create_flow_run", body)["id"]

    def set_state(self, flow_run: str, state: str, *, force: bool = False, message: str | None = None) -> Json:
        """As the pages do: a person's word has no message."""
        body = {"state": {"type": state, "name": state.capitalize(), "message": message}, "force": force}
        if state in {"CANCELLED", "CANCELLING"}:
            self.cancelled.add(flow_run)
        return self.ask("POST", f"/flow_runs/{flow_run}/set_state", body)

    def flow_run(self, flow_run: str) -> Json:
        return self.ask("GET", f"/flow_runs/{flow_run}")

    def flow_runs(self, *, since: datetime | None = None) -> list[Json]:
        """Those that are or were due since the test began, in the order of their due times."""
        since = self.began if since is None else since
        query = {
            "deployments": {"id": {"any_": [self.deployment()["id"]]}},
            "flow_runs": {"expected_start_time": {"after_": since.isoformat()}},
            "sort": "EXPECTED_START_TIME_ASC",
        }
        found: list[Json] = []
        while True:
            page = self.ask("POST", "/flow_runs/filter", {**query, "limit": 200, "offset": len(found)})
            found += page
            if len(page) < 200:
                return found

    def states(self, flow_run: str) -> list[Json]:
        """Its states, oldest first."""
        history = self.ask("GET", f"/flow_run_states/?flow_run_id={flow_run}")
        return sorted(history, key=lambda state: state["timestamp"])

    def events(self, prefix: str, *, since: datetime | None = None) -> list[Json]:
        """Prefect's events whose names begin so."""
        since = self.began if since is None else since
        body = {
            "filter": {
                "event": {"prefix": [prefix]},
                "occurred": {"since": since.isoformat(), "until": datetime.now(UTC).isoformat()},
            },
            "limit": 50,
        }
        return self.ask("POST", "/events/filter", body)["events"]

    def slots(self) -> tuple[int, int]:
        """How many are taken, of how many."""
        limit = self.deployment()["global_concurrency_limit"]
        return limit["active_slots"], limit["limit"]

    def pause_heartbeats(self) -> None:
        """None comes by itself; what else was scheduled beside them is deleted."""
        deployment = self.deployment()
        for schedule in deployment["schedules"]:
            where = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            if schedule["slug"] != "heartbeat":
                self.ask("DELETE", where)
            elif schedule["active"]:
                self.ask("PATCH", where, {"active": False})

    @contextmanager
    def cancelling_what_finds_no_slot(self) -> Generator[None]:
        """As a deployment would be with the other of Prefect's two strategies."""
        where = f"/deployments/{self.deployment()['id']}"
        ours = self.deployment()["concurrency_options"]
        self.ask("PATCH", where, {"concurrency_options": {**ours, "collision_strategy": "CANCEL_NEW"}})
        try:
            yield
        finally:
            self.ask("PATCH", where, {"concurrency_options": ours})

    def heartbeats_every(self, interval: timedelta) -> None:
        """Heartbeats from now on, as the schedule makes them but closer to each other."""
        schedule = {
            "schedule": {"interval": interval.total_seconds(), "anchor_date": datetime.now(UTC).isoformat()},
            "slug": "quick",
            "active": True,
            "parameters": {"trigger": "heartbeat"},
        }
        where = f"/deployments/{self.deployment()['id']}"
        self.ask("POST", f"{where}/schedules", [schedule])
        # The scheduler looks every minute, but every five seconds at a deployment that was changed.
        self.ask("PATCH", where, {"description": self.deployment()["description"]})

    # --- the model ----------------------------------------------------------------------------------------------------

    def close_gate(self) -> None:
        self.world.gate(0)

    def open_gate(self) -> None:
        self.world.gate(None)

    def until_in_step(self, step: int, *, run_id: int | None = None, seconds: float = 60) -> Json:
        """Until the open run waits for the model in this step; its row. The gate must be closed."""

        def there() -> Json | None:
            run = self.open_run()
            if run is None or run["steps"] != step - 1 or (run_id and run["run_id"] != run_id):
                return None
            return run if self.world.waiting() == 1 else None

        return self.until(f"a run in step {step}", there, seconds)

    def next_step(self) -> None:
        self.world.gate(1)

    def more_steps(self, number: int) -> None:
        """The next run needs so many steps more, for its first replies call a tool that there is not."""
        self.world.model_fault("unknown_tool", times=number)

    # --- what is there ------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[Json]:
        with self.database.transaction() as tx:
            return [dict(row) for row in tx.execute(text(sql)).mappings()]

    def rows(self, table: str, order: str = "id") -> list[Json]:
        return self.query(f"SELECT * FROM {table} WHERE fleet = '{self.fleet}' ORDER BY {order}")

    def all_runs(self) -> list[Json]:
        return self.rows("run", "run_id")

    def runs(self) -> list[Json]:
        """Those of this test, in order."""
        return [run for run in self.all_runs() if run["run_id"] >= self.first_run]

    def open_run(self) -> Json | None:
        return next((run for run in self.all_runs() if run["status"] == "open"), None)

    def event(self, event_id: int) -> Json:
        return next(event for event in self.rows("inbox") if event["id"] == event_id)

    def events_posted(self) -> list[Json]:
        return [event for event in self.rows("inbox") if event["id"] >= self.first_event]

    def wake(self, wake_id: int) -> Json:
        return next(wake for wake in self.rows("wake") if wake["id"] == wake_id)

    def consumed(self, event_id: int) -> bool:
        return self.event(event_id)["consumed_by_run"] is not None

    # --- waiting ------------------------------------------------------------------------------------------------------

    def until(self, what: str, holds: Callable[[], Any], seconds: float) -> Any:
        """What `holds()` returns once it is true. A part that is down for a while makes it not true yet."""
        deadline = time.monotonic() + seconds * PATIENCE
        while True:
            try:
                found = holds()
            except (FleetAgentError, httpx.HTTPError, KeyError, AssertionError, psutil.Error):
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.picture()}"
            time.sleep(0.1)

    def until_consumed(self, *event_ids: int, seconds: float | None = None) -> float:
        """Until a run has consumed them all; how long it took."""
        began = time.monotonic()
        wanted = set(event_ids)
        limit = self.setup.answers_within if seconds is None else seconds
        self.until(
            f"{len(wanted)} events consumed",
            lambda: wanted <= {event["id"] for event in self.rows("inbox") if event["consumed_by_run"] is not None},
            limit,
        )
        return time.monotonic() - began

    def until_at_rest(self) -> None:
        self.until("everything is at rest", lambda: not list(self.restless()), self.setup.rests_within)

    def until_silent(self) -> None:
        """At rest, and no doorbell for so long that Prefect has answered them all.

        It answers a doorbell half a second later, or more where the machine does much else; until then everything may
        be at rest, for a run of another cause has taken what was rung for.
        """
        long_enough = timedelta(seconds=5) * PATIENCE
        self.until(
            "the last doorbell is long past, and everything is at rest",
            lambda: not self.events(DOORBELLS, since=datetime.now(UTC) - long_enough) and not list(self.restless()),
            self.setup.rests_within,
        )

    def restless(self) -> Iterator[str]:
        """What is still to come, besides heartbeats and wakes of later."""
        if run := self.open_run():
            yield f"run #{run['run_id']} is open"
        for event in self.rows("inbox"):
            if event["consumed_by_run"] is None and event["quarantined_at"] is None and event["priority"] < 2:
                yield f"event {event['id']} waits"
        now = self._clock.now()
        for wake in self.rows("wake"):
            if wake["status"] == "pending" and wake["wake_at"] <= now:
                yield f"wake {wake['id']} waits"
        for run in self.flow_runs(since=datetime.now(UTC) - timedelta(hours=1)):
            due = datetime.fromisoformat(run["expected_start_time"])
            of_later = run["auto_scheduled"] or run["parameters"].get("trigger") == "wake"
            if run["state_type"] in AT_HAND or (
                run["state_type"] == "SCHEDULED" and not (of_later and due > datetime.now(UTC))
            ):
                yield f"flow run {run['name']} is {run['state_name']}"
        if taken := self.slots()[0]:
            yield f"{taken} slot is taken"

    def picture(self) -> str:
        """Everything a person would look at."""
        return "\n".join(self._pictured())

    def _pictured(self) -> Iterator[str]:
        looks: dict[str, Callable[[], Sequence[object]]] = {
            "runs": lambda: [
                f"#{run['run_id']} {run['status']} {run['trigger']} steps={run['steps']} {run['reason'][:60]!r} "
                f"{run['exit_reason']!r} {run['opened_at']} – {run['closed_at']}"
                for run in self.runs()[-15:]
            ],
            "events that wait": lambda: [
                f"{event['id']} {event['kind']} claimed by {event['claimed_by_run']}, {event['attempts']} attempts, "
                f"{event['rings']} rings"
                for event in self.rows("inbox")
                if event["consumed_by_run"] is None
            ][:15],
            "wakes": lambda: [
                f"{wake['id']} {wake['status']} at {wake['wake_at']} {wake['flow_run_id']} g{wake['generation']}"
                for wake in self.rows("wake")[-10:]
            ],
            "flow runs": lambda: [
                f"{run['name']} {run['state_name']} {run['parameters'].get('trigger')} {run['expected_start_time']} "
                f"{run['start_time']} – {run['end_time']} {run['idempotency_key']}"
                for run in self.flow_runs()[-25:]
            ],
            "slots": lambda: [self.slots()],
            "model": lambda: [f"{self.world.waiting()} replies wait"],
            "processes": lambda: [f"{name} {process.pid}" for name, process in self.tree.processes().items()],
            "restless": lambda: list(self.restless()),
            "output": lambda: self.tree.output.read_text().splitlines()[-15:],
            "worker": lambda: self._log("worker"),
            "watch": lambda: self._log("watch"),
        }
        for title, look in looks.items():
            yield f"{title}:"
            try:
                yield from (f"  {line}" for line in look())
            except Exception as error:
                yield f"  not to be seen ({type(error).__name__}: {error})"

    def _log(self, name: str) -> Sequence[str]:
        return (self.tree.data_dir / "logs" / f"{name}.log").read_text(errors="replace").splitlines()[-12:]


# --- the world -------------------------------------------------------------------------------------------------------


class World:
    """The simulators: what they are told, and the truth they tell."""

    def __init__(self, vast_port: int, model_port: int) -> None:
        self._vast = f"http://127.0.0.1:{vast_port}"
        self._model = f"http://127.0.0.1:{model_port}"
        self._http = httpx.Client(timeout=10, trust_env=False)

    def settings(self) -> dict[str, str]:
        return {
            "FLEET_VAST_URL": self._vast,
            "FLEET_MODEL_URL": f"{self._model}/v1",
            "FLEET_MODEL_NAME": "simulated-operator",
            "FLEET_DEMAND_PROMETHEUS_URL": f"{self._vast}/demand",
        }

    def gate(self, passes: int | None) -> None:
        self._http.put(f"{self._model}/sim/gate", json={"pass": passes}).raise_for_status()

    def waiting(self) -> int:
        return self._http.get(f"{self._model}/sim/gate").raise_for_status().json()["waiting"]

    def model_fault(self, name: str, *, times: int = 1) -> None:
        """For runs alone: a worker tests its model when it has begun, whatever a test is about."""
        fault = {"name": name, "times": times, "of_runs": True}
        self._http.post(f"{self._model}/sim/faults", json=fault).raise_for_status()

    def no_more(self, name: str) -> None:
        self._http.delete(f"{self._model}/sim/faults/{name}").raise_for_status()

    def requests(self) -> list[Json]:
        return self._http.get(f"{self._model}/sim/requests").raise_for_status().json()

    def truth(self) -> Json:
        """What the provider knows: every box that was ever made."""
        return self._http.get(f"{self._vast}/sim/state").raise_for_status().json()

    def close(self) -> None:
        self._http.close()


@contextmanager
def built(setup: Setup) -> Generator[House]:
    """An installation that runs, whose fleet may rent and has had, or has begun, its first run."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        vast, model = free_ports(2)
        stack.enter_context(simulators(folder, vast, model, setup.scenario))
        world = stack.enter_context(closing(World(vast, model)))
        house = House(setup, folder, world, stack)
        house.start()
        house.pause_heartbeats()
        if setup.held:
            house.close_gate()
        house.set_policy(launch__image=IMAGE)  # which is a reason for a run
        house.until("its first run", house.open_run if setup.held else house.all_runs, 60)
        yield house
