"""A demo's tree from outside: who may enter, what each process knows, and what Prefect shows of a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fleet_agent.deploy import PROJECT_DIR, WORK_POOL
from fleet_agent.stack.environments import of_prefect_client
from tests.postgres import temporary_folder
from tests.stack.canaries import found
from tests.stack.trees import PLANTED, Tree, ready
from tests.stack.waiting import A_COMMAND, until

Json = dict[str, Any]

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo() -> Generator[Tree]:
    """Its heartbeats are paused, so that none comes between what a test starts by hand and its end; its time is slow,
    so that the boxes that a run rents are there until the last test has looked. Its worker has tested its models, so
    that a fault meant for a run meets none of its questions."""
    with temporary_folder() as folder, ready(folder, "demo", "--speed", "2", settings=PLANTED) as tree:
        pause_heartbeats(tree)
        until(lambda: "self-test" in tree.log("worker"))
        yield tree


def pause_heartbeats(tree: Tree) -> None:
    deployment = deployment_of(tree)
    with tree.api() as api:
        pause = f"/deployments/{deployment['id']}/schedules/{deployment['schedules'][0]['id']}"
        api.patch(pause, json={"active": False}).raise_for_status()


def deployment_of(tree: Tree) -> Json:
    with tree.api() as api:
        return api.get("/deployments/name/agent-cycle/main").raise_for_status().json()


def test_the_doctor_finds_the_one_thing_that_is_not_well_and_mends_it(demo: Tree) -> None:
    def not_well(said: str) -> list[str]:
        """But for what follows from it: without heartbeats runs become rare."""
        bad = [line for line in said.splitlines() if line.startswith("BAD")]
        return [line for line in bad if not line.startswith("BAD  last run:")]

    found = demo.call("doctor")
    mended = demo.call("doctor", "--fix")
    pause_heartbeats(demo)

    assert found.returncode == 1, found.stdout + found.stderr
    assert not_well(found.stdout) == [
        "BAD  schedule: schedule heartbeat is switched off, so nothing happens by itself → fleet-agent doctor --fix"
    ]
    before, done, after = mended.stdout.partition("fix  schedule heartbeat runs again\nLooking again:\n")
    assert done, mended.stdout + mended.stderr
    assert not_well(before) == not_well(found.stdout)
    assert not_well(after) == []


# --- who may enter ----------------------------------------------------------------------------------------------------


def test_prefects_api_asks_for_the_auth_string(demo: Tree) -> None:
    user, password = demo.runtime.auth_string.split(":")

    def status(auth: tuple[str, str] | None) -> int:
        address = f"{demo.runtime.api_url}/deployments/filter"
        return httpx.post(address, json={}, auth=auth, trust_env=False).status_code

    assert status(None) == 401
    assert status((user, "guessed")) == 401
    assert status((user, password)) == 200


def test_a_page_of_another_origin_may_not_ask_prefect(demo: Tree) -> None:
    def preflight(origin: str) -> httpx.Response:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        return httpx.options(f"{demo.runtime.api_url}/deployments/filter", headers=headers, trust_env=False)

    assert preflight("http://evil.example").status_code == 400
    assert "access-control-allow-origin" not in preflight("http://evil.example").headers
    # The control: Prefect's own pages may.
    assert preflight(demo.runtime.ui_url).headers["access-control-allow-origin"] == demo.runtime.ui_url


def test_prefects_pages_ask_the_server_that_served_them(demo: Tree) -> None:
    """By default they ask port 4200, and would tell the password to whoever listens there."""
    told = httpx.get(f"{demo.runtime.ui_url}/ui-settings", trust_env=False).json()
    assert told["api_url"] == "/api"


def test_everything_listens_on_loopback_alone(demo: Tree) -> None:
    listening = [
        connection.laddr.ip
        for process in demo.everything()
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


# --- what a process knows ---------------------------------------------------------------------------------------------


def test_the_keys_of_the_real_world_reach_no_process_of_a_demo(demo: Tree) -> None:
    root, *others = demo.everything()

    knowing = [process.name() for process in others if set(PLANTED.values()) & set(process.environ().values())]

    assert knowing == []
    assert set(PLANTED.values()) <= set(root.environ().values())  # the control: they were there to be passed on


def test_no_process_says_more_to_the_world_than_it_must(demo: Tree) -> None:
    for name in ("Prefect server", "worker"):
        environment = demo.processes()[name].environ()
        assert environment["DO_NOT_TRACK"] == "1"
        assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_prefects_files_are_in_the_trees_folder_and_not_in_a_home(demo: Tree) -> None:
    assert (demo.data_dir / "prefect").is_dir()
    assert not (demo.data_dir.parent / ".prefect").exists()  # HOME is that folder


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_NOFILE"), reason="reads /proc, which only Linux has")
def test_children_obey_ctrl_c_even_if_the_tree_was_started_where_it_is_ignored(demo: Tree) -> None:
    def ignores_sigint(process: psutil.Process) -> bool:
        with open(f"/proc/{process.pid}/status") as status:
            ignored = next(line for line in status if line.startswith("SigIgn")).split()[1]
        return bool(int(ignored, 16) & 0b10)

    assert not ignores_sigint(demo.processes()["worker"])
    # The control: what is started there in the naive way inherits it.
    naive = psutil.Popen(["sh", "-c", "trap '' INT; exec sleep 60"])
    try:
        until(lambda: naive.name() == "sleep")
        assert ignores_sigint(naive)
    finally:
        naive.kill()
        naive.wait()


# --- what Prefect shows of a run --------------------------------------------------------------------------------------


def run_by_hand(tree: Tree, **parameters: Any) -> Json:
    """What the button in Prefect's pages does; the flow run as it is in the end."""
    with tree.api() as api:
        deployment = api.get("/deployments/name/agent-cycle/main").json()["id"]
        made = api.post(
            f"/deployments/{deployment}/create_flow_run",
            json={"parameters": parameters, "state": {"type": "SCHEDULED"}},
        )
        return ended(api, made.raise_for_status().json()["id"])


def ended(api: httpx.Client, flow_run_id: str, *, attempt: int = 1) -> Json:
    def over() -> bool:
        run = api.get(f"/flow_runs/{flow_run_id}").json()
        return run["run_count"] >= attempt and run["state_type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

    until(over)
    return api.get(f"/flow_runs/{flow_run_id}").json()


def tasks_of(api: httpx.Client, flow_run: Json) -> list[str]:
    found = api.post(
        "/task_runs/filter",
        json={"flow_runs": {"id": {"any_": [flow_run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"},
    )
    return [task["name"] for task in found.json()]


@pytest.fixture(scope="module")
def by_hand(demo: Tree) -> Json:
    return run_by_hand(demo)


def test_a_run_that_a_person_starts_completes_and_says_what_it_was(by_hand: Json) -> None:
    assert by_hand["state_name"] == "Completed"
    assert re.match(r"#\d+ manual", by_hand["name"])
    assert by_hand["state"]["message"] == by_hand["name"]


def test_a_run_shows_each_look_each_question_and_each_change_of_state_as_a_named_task(
    demo: Tree, by_hand: Json
) -> None:
    number = by_hand["name"].split(" ")[0]

    with demo.api() as api:
        until(lambda: any(name.startswith("close run") for name in tasks_of(api, by_hand)))
        tasks = tasks_of(api, by_hand)

    assert {"open run (manual)", "list the boxes", "read the demand", "ask the model (step 1)"} <= set(tasks)
    assert f"collect events and wakes for run {number}" in tasks
    assert any(name.startswith(f"close run {number}: ") for name in tasks)


def test_a_run_leaves_a_report_and_a_table_of_the_fleet(demo: Tree, by_hand: Json) -> None:
    with demo.api() as api:
        found = api.post("/artifacts/filter", json={"flow_runs": {"id": {"any_": [by_hand["id"]]}}}).json()

    texts = {key: [each["data"] for each in found if each["key"] == key] for key in ("report-main", "fleet-main")}
    assert any(text.startswith(f"# Run {by_hand['name'].split(' ')[0]} ") for text in texts["report-main"])
    assert all(isinstance(json.loads(text), list) for text in texts["fleet-main"])


def test_to_retry_a_completed_run_makes_a_new_run_and_no_intent_makes_two_boxes(demo: Tree, by_hand: Json) -> None:
    with demo.api() as api:
        retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
        api.post(f"/flow_runs/{by_hand['id']}/set_state", json=retry).raise_for_status()
        again = ended(api, by_hand["id"], attempt=2)

    def number(run: Json) -> int:
        return int(run["name"].split(" ")[0].removeprefix("#"))

    assert again["state_name"] == "Completed"
    assert number(again) > number(by_hand)
    assert set(rented_labels(demo).values()) == {1}


def rented_labels(tree: Tree) -> Counter[str]:
    """How many boxes the market has of each label."""
    assert tree.runtime.simulators is not None
    market = f"http://127.0.0.1:{tree.runtime.simulators.vast_port}/api/v1/instances/"
    rows = httpx.get(market, headers={"Authorization": "Bearer any"}, trust_env=False).json()["instances"]
    return Counter(row["label"] for row in rows)


def test_a_parameter_that_cannot_be_is_refused_before_a_run_is_made(demo: Tree) -> None:
    with demo.api() as api:
        deployment = api.get("/deployments/name/agent-cycle/main").json()["id"]
        make = f"/deployments/{deployment}/create_flow_run"

        for parameters in ({"trigger": "full moon"}, {"fleet": "Main Fleet"}):
            refused = api.post(make, json={"parameters": parameters, "state": {"type": "SCHEDULED"}})
            assert refused.status_code == 409, refused.text
            assert "\n" not in refused.json()["detail"]


def test_what_a_person_must_fix_ends_the_run_in_one_line_and_the_next_run_works(demo: Tree) -> None:
    assert demo.runtime.simulators is not None
    model = f"http://127.0.0.1:{demo.runtime.simulators.model_port}"
    demo.until_idle(deployment_of(demo)["id"])  # or the fault is another run's
    httpx.post(f"{model}/sim/faults", json={"name": "unauthorized"}, trust_env=False).raise_for_status()

    failed = run_by_hand(demo)

    assert failed["state_name"] == "Failed"
    assert failed["state"]["message"].count("→") == 1
    assert "\n" not in failed["state"]["message"]
    with demo.api() as api:
        logs = api.post("/logs/filter", json={"logs": {"flow_run_id": {"any_": [failed["id"]]}}}).json()
    assert not [line["message"] for line in logs if "Traceback" in line["message"]]
    assert run_by_hand(demo)["state_name"] == "Completed"


# --- what a person says -----------------------------------------------------------------------------------------------


def test_a_message_is_answered_at_once_and_a_reset_changes_nothing_else(demo: Tree) -> None:
    assert demo.call("policy", "set", "limits.max_boxes=3").returncode == 0
    assert demo.call("say", "How are we doing?").returncode == 0
    answer = "You wrote: “How are we doing?”"
    until(lambda: any(answer in run["summary"] for run in listed(demo, "runs")), every=A_COMMAND)
    first = run_now(demo)

    assert demo.call("wakes", "add", "600", "look at prices").returncode == 0
    assert demo.call("reset-session").returncode == 0
    pending = listed(demo, "status")["pending_wakes"]
    second = run_now(demo)

    assert second["run_id"] > first["run_id"]
    assert second["tokens_in"] > 0
    assert (first["epoch"], second["epoch"]) == (0, 1)
    assert listed(demo, "status")["pending_wakes"] == pending > 0
    assert listed(demo, "policy", "get")["limits.max_boxes"] == "3"
    asked = json.loads(demo.call("prompt", "--run", str(second["run_id"])).stdout)
    assert 0 < asked["tokens"] <= 30_000
    assert "Earlier runs, oldest first (runs that changed nothing are left out):\n(none)" in str(
        asked["body"]["messages"][1]["content"]
    )


def run_now(tree: Tree) -> dict[str, Any]:
    """The newest run, once what was asked for with it is consumed."""
    before = newest(tree)["run_id"]
    assert tree.call("run-now").returncode == 0
    until(lambda: listed(tree, "inbox", "list") == [] and newest(tree)["run_id"] > before, every=A_COMMAND)
    return newest(tree)


def newest(tree: Tree) -> dict[str, Any]:
    return listed(tree, "runs")[-1]


def listed(tree: Tree, *verb: str) -> Any:
    return json.loads(tree.call(*verb, "--json").stdout)


def test_what_a_demo_writes_has_no_key_of_the_real_world_and_no_token(demo: Tree) -> None:
    """The control, and the same where the keys are used, are in `test_up_tree.py`."""
    assert demo.runtime.simulators is not None
    token = demo.call("token", "rotate", "hooks").stdout.splitlines()[1]
    market = f"http://127.0.0.1:{demo.runtime.simulators.vast_port}/api/v1/instances/"
    rows = httpx.get(market, headers={"Authorization": "Bearer any"}, trust_env=False).json()["instances"]
    hooks = [value for row in rows for name, value in row["extra_env"] if name == "FLEET_BOX_HOOK"]

    assert found(demo, {*PLANTED.values(), token, *(hook.rpartition("/")[2] for hook in hooks)}) == set()


# --- the deployment ---------------------------------------------------------------------------------------------------


def test_to_deploy_again_keeps_the_deployment_its_schedule_and_that_somebody_paused_it(demo: Tree) -> None:
    before = deployment_of(demo)

    assert "deployment agent-cycle/main" in demo.call("deploy").stdout

    after = deployment_of(demo)
    assert after["id"] == before["id"]
    assert [(each["id"], each["active"]) for each in after["schedules"]] == [(before["schedules"][0]["id"], False)]


def test_prefects_own_deploy_command_refuses_where_nobody_said_which_pool(demo: Tree) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    environment = demo.environment | of_prefect_client(demo.runtime)

    said = subprocess.run(command, env=environment, cwd=PROJECT_DIR, timeout=60, capture_output=True, text=True)

    assert "work pool '{{ $FLEET_WORK_POOL }}'" in said.stdout
    assert deployment_of(demo)["work_pool_name"] == WORK_POOL


def test_prefects_own_deploy_command_makes_the_same_of_prefect_yaml(demo: Tree) -> None:
    ours = deployment_of(demo)
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    environment = demo.environment | of_prefect_client(demo.runtime) | {"FLEET_WORK_POOL": WORK_POOL}

    subprocess.run(command, env=environment, cwd=PROJECT_DIR, timeout=60, check=True, capture_output=True)

    theirs = deployment_of(demo)
    differing = {key for key in ours if (ours[key] or None) != (theirs[key] or None)}
    # The demo's time is faster than the file's; the rest is Prefect's own bookkeeping, in the limit the slots in use.
    assert differing - {"updated", "last_polled", "status", "global_concurrency_limit"} == {"schedules"}
    assert theirs["global_concurrency_limit"]["limit"] == ours["global_concurrency_limit"]["limit"]
    assert theirs["schedules"][0]["schedule"]["cron"] == "*/5 * * * *"


# --- what the worker carries out --------------------------------------------------------------------------------------


def foreign(api: httpx.Client, pool: str, marker: Path, **differs: Any) -> str:
    """A deployment as anybody with the auth string can make it; returns the id of a run of it."""
    flow = api.post("/flows/", json={"name": "foreign"}).json()["id"]
    deployment = {
        "name": f"foreign-{marker.name}",
        "flow_id": flow,
        "work_pool_name": pool,
        "entrypoint": "flows.agent_cycle.agent_cycle",
        **differs,
    }
    made = api.post("/deployments/", json=deployment).raise_for_status().json()["id"]
    run = api.post(f"/deployments/{made}/create_flow_run", json={"state": {"type": "SCHEDULED"}})
    return run.raise_for_status().json()["id"]


SHELL_STEP = "prefect.deployments.steps.run_shell_script"


@pytest.mark.parametrize("way", ["entrypoint", "pull_steps", "job_variables"])
def test_the_worker_refuses_code_that_only_the_api_names(demo: Tree, tmp_path: Path, way: str) -> None:
    marker = tmp_path / way
    (tmp_path / "evil.py").write_text(f"import pathlib\ndef evil(): pathlib.Path({str(marker)!r}).touch()\n")
    differs = {
        "entrypoint": {"entrypoint": f"{tmp_path}/evil.py:evil"},
        "pull_steps": {"pull_steps": [{SHELL_STEP: {"script": f"touch {marker}"}}]},
        "job_variables": {"job_variables": {"command": f"touch {marker}"}},
    }[way]

    with demo.api() as api:
        flow_run = ended(api, foreign(api, WORK_POOL, marker, **differs), attempt=0)

    assert flow_run["state_type"] == "CRASHED"
    assert "this worker runs the deployments of `fleet-agent deploy` and nothing else" in flow_run["state"]["message"]
    assert not marker.exists()


def test_a_worker_without_our_refusal_carries_out_what_the_api_names(demo: Tree, tmp_path: Path) -> None:
    """The control of the test above."""
    marker = tmp_path / "command"
    with demo.api() as api:
        api.post("/work_pools/", json={"name": "naive", "type": "process", "base_job_template": naive_template()})
        foreign(api, "naive", marker, job_variables={"command": f"touch {marker}"})
    worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "naive", "--run-once"]
    environment = {**demo.environment, **of_prefect_client(demo.runtime), "PREFECT_HOME": str(tmp_path)}

    subprocess.run(worker, env=environment, cwd=tmp_path, timeout=60, check=True, capture_output=True)

    assert marker.exists()


def naive_template() -> Json:
    return {
        "job_configuration": {"command": "{{ command }}", "env": "{{ env }}", "stream_output": True},
        "variables": {"type": "object", "properties": {"command": {"type": "string"}, "env": {"type": "object"}}},
    }
