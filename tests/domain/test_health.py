"""What the doctor calls well and what not: each judgement seen both ways, at its bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet_agent.domain.health import (
    Deployment,
    Finding,
    FleetHealth,
    Limit,
    LiveFlowRun,
    Mend,
    PendingWake,
    Schedule,
    ServerSettings,
    WantedDeployment,
    WorkPool,
    forsaken,
    may_be_crashed,
    of_automation,
    of_deployment,
    of_flow_runs,
    of_last_run,
    of_notices,
    of_schedules,
    of_server,
    of_slots,
    of_variables,
    of_wakes,
    of_worker,
)

NOW = datetime(2026, 3, 17, 12, tzinfo=UTC)
WELL = None
"""The expected words of a finding that is well."""


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def server(**changes: Any) -> ServerSettings:
    values = {"lease_storage": "…lease_storage.filesystem", "slot_wait": s(2), "cancelling_timeout": s(60)}
    return ServerSettings.model_validate(values | changes)


WANTED = WantedDeployment(
    entrypoint="flows.agent_cycle.agent_cycle",
    limit=1,
    collision_strategy="ENQUEUE",
    grace=s(120),
    slugs=("heartbeat",),
)


def deployment(**changes: Any) -> Deployment:
    values: dict[str, Any] = {
        "id": "d",
        "name": "main",
        "entrypoint": WANTED.entrypoint,
        "work_pool": "pool",
        "paused": False,
        "limit": Limit(id="l", limit=1, active_slots=0),
        "collision_strategy": "ENQUEUE",
        "grace": s(120),
        "schedules": (Schedule(id="s", slug="heartbeat", active=True),),
    }
    return Deployment.model_validate(values | changes)


def limit(limit: int = 1, active_slots: int = 0, active: bool = True) -> Limit:
    return Limit(id="l", limit=limit, active_slots=active_slots, active=active)


def run(state_type: str = "RUNNING", *, since: float = 10, id: str = "r") -> LiveFlowRun:
    return LiveFlowRun(id=id, name=f"#{id}", state_type=state_type, since=NOW - s(since))


def pool(*heard_ago: float, paused: bool = False) -> WorkPool:
    return WorkPool(name="pool", paused=paused, heard_from=tuple(NOW - s(ago) for ago in heard_ago))


def says(finding: Finding, words: str | None, mend: Mend | None = None) -> None:
    """Well where no words are expected; else bad, with these words, a remedy and this mend."""
    assert finding.well == (words is WELL), finding.sentence
    assert finding.mend is mend
    if words is not WELL:
        assert words in finding.sentence
        assert " → " in finding.sentence


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (server(), WELL),
        (server(lease_storage="prefect_redis.lease_storage"), WELL),
        (server(lease_storage="prefect.server.concurrency.lease_storage.memory"), "in memory"),
        (server(slot_wait=s(5)), WELL),
        (server(slot_wait=s(30)), "waits 30 s"),
        (server(cancelling_timeout=s(300)), "keeps its slot for 5 min"),
    ],
)
def test_the_server(seen: ServerSettings, words: str | None) -> None:
    says(of_server(seen), words)


@pytest.mark.parametrize(
    ("wanted", "seen", "words", "mend"),
    [
        (WANTED, deployment(), WELL, None),
        (None, deployment(), "prefect.yaml has no deployment", None),
        (WANTED, None, "Prefect has no deployment main", Mend.DEPLOY),
        (WANTED, deployment(limit=None), "another limit", Mend.DEPLOY),
        (WANTED, deployment(limit=limit(2)), "another limit", Mend.DEPLOY),
        (WANTED, deployment(limit=limit(active=False)), "is switched off", Mend.LIMIT),
        (WANTED, deployment(collision_strategy="CANCEL_NEW"), "another collision strategy", Mend.DEPLOY),
        (WANTED, deployment(grace=None), "another grace period", Mend.DEPLOY),
        (WANTED, deployment(entrypoint="os.system"), "another entrypoint", Mend.DEPLOY),
        (WANTED, deployment(paused=True), "is paused", None),
    ],
)
def test_the_deployment(
    wanted: WantedDeployment | None, seen: Deployment | None, words: str | None, mend: Mend | None
) -> None:
    says(of_deployment("main", wanted, seen), words, mend)


@pytest.mark.parametrize(
    ("schedules", "words", "mend"),
    [
        ([("heartbeat", True)], WELL, None),
        ([("heartbeat", True), ("old", False)], WELL, None),
        ([], "no schedule heartbeat", Mend.DEPLOY),
        ([(None, True)], "no schedule heartbeat", Mend.DEPLOY),
        ([("heartbeat", True), (None, True)], "does not know: s without a slug", None),
        ([("heartbeat", False)], "switched off", Mend.SCHEDULES),
    ],
)
def test_the_schedules(schedules: list[tuple[str | None, bool]], words: str | None, mend: Mend | None) -> None:
    seen = deployment(schedules=tuple(Schedule(id="s", slug=slug, active=active) for slug, active in schedules))
    says(of_schedules(WANTED, seen), words, mend)


@pytest.mark.parametrize(
    ("name", "seen", "words", "mend"),
    [
        ("pool", pool(5), WELL, None),
        ("pool", pool(4000, 89), WELL, None),
        ("pool", pool(91), "the last one reported 91 s ago", None),
        ("pool", pool(), "no worker ever looked", None),
        ("pool", pool(5, paused=True), "is paused", None),
        ("pool", None, "no work pool pool", Mend.DEPLOY),
        (None, None, "no work pool for the deployment", Mend.DEPLOY),
    ],
)
def test_the_worker(name: str | None, seen: WorkPool | None, words: str | None, mend: Mend | None) -> None:
    says(of_worker(name, seen, now=NOW), words, mend)


@pytest.mark.parametrize(
    ("slots", "live", "words", "mend"),
    [
        (0, [], WELL, None),
        (1, [run()], WELL, None),
        (0, [run()], WELL, None),
        (1, [], "no run has it", Mend.SLOT),
        (2, [run()], "2 slots taken by #r", None),
    ],
)
def test_the_slots(slots: int, live: list[LiveFlowRun], words: str | None, mend: Mend | None) -> None:
    says(of_slots(deployment(limit=limit(active_slots=slots)), live), words, mend)


@pytest.mark.parametrize(
    ("live", "silent_for", "is_forsaken"),
    [
        (run(), 5, False),
        (run(since=900), 5, False),
        (run(since=900), 61, True),
        (run(since=59), None, False),
        (run(since=61), None, True),
        (run("PENDING", since=119), None, False),
        (run("PENDING", since=121), None, True),
        (run("CANCELLING", since=900), 900, False),  # Prefect itself gives these up
    ],
)
def test_which_flow_runs_nobody_carries_out(live: LiveFlowRun, silent_for: float | None, is_forsaken: bool) -> None:
    dead = forsaken([live], {} if silent_for is None else {live.id: s(silent_for)}, now=NOW)
    assert dead == ((live,) if is_forsaken else ())
    says(
        of_flow_runs(dead, now=NOW), "nobody carries out #r" if is_forsaken else WELL, Mend.FLOW_RUNS if dead else None
    )


@pytest.mark.parametrize(
    ("state_type", "since", "living", "may"),
    [
        ("RUNNING", 1000, [], True),
        ("RUNNING", 200, [run(id="other")], True),
        ("RUNNING", 1000, [run(id="other")], False),
        ("PENDING", 1000, [], True),
        ("PENDING", 121, [run(id="other")], False),
    ],
)
def test_a_dead_run_is_not_crashed_where_that_would_take_the_slot_of_another(
    state_type: str, since: float, living: list[LiveFlowRun], may: bool
) -> None:
    assert may_be_crashed(run(state_type, since=since), living, now=NOW) == may


@pytest.mark.parametrize(
    ("count", "faults", "words"),
    [
        (1, [], WELL),
        (0, [], "is missing"),
        (2, [], "is there 2 times"),
        (1, ["enabled"], "is switched off"),
        (1, ["trigger", "enabled"], "has been changed (trigger, enabled)"),
    ],
)
def test_an_automation(count: int, faults: list[str], words: str | None) -> None:
    says(of_automation("zombie", count, faults, Mend.DEPLOY), words, None if words is WELL else Mend.DEPLOY)


def seen(**changes: Any) -> FleetHealth:
    values: dict[str, Any] = {
        "last_closed_at": None,
        "newest_run": "",
        "wakes": (),
        "untold": 0,
        "oldest_untold_at": None,
        "quarantined": 0,
    }
    return FleetHealth.model_validate(values | changes)


@pytest.mark.parametrize(
    ("closed_ago", "since_ago", "newest", "words"),
    [
        (None, 60, "", WELL),  # as young as that
        (None, 601, "", "no run has closed ever"),
        (599, 9999, "", WELL),
        (601, 9999, "", "no run has closed for 10 min"),
        (9999, 60, "", WELL),  # the tree was down and has just been started
        (601, 9999, "#8 failed, model unreachable", "(the newest: #8 failed, model unreachable)"),
    ],
)
def test_the_last_run(closed_ago: float | None, since_ago: float, newest: str, words: str | None) -> None:
    closed = None if closed_ago is None else NOW - s(closed_ago)
    health = seen(last_closed_at=closed, newest_run=newest)
    says(of_last_run(health, since=NOW - s(since_ago), now=NOW, heartbeat=s(300)), words)


@pytest.mark.parametrize(
    ("flow_run_id", "asked_ago", "words"),
    [
        ("coming", 600, WELL),
        (None, 29, WELL),
        (None, 31, "for wake 7"),
        ("over", 600, "for wake 7"),
    ],
)
def test_the_wakes(flow_run_id: str | None, asked_ago: float, words: str | None) -> None:
    wake = PendingWake(id=7, wake_at=NOW + s(600), asked_at=NOW - s(asked_ago), flow_run_id=flow_run_id)
    says(of_wakes([wake], {"over"}, now=NOW, grace=s(30)), words)


def test_what_was_not_told_or_is_quarantined_is_said_and_is_not_ill() -> None:
    finding = of_notices(seen(untold=2, oldest_untold_at=NOW - s(300), quarantined=1), now=NOW)

    assert finding.well
    assert finding.sentence == "2 not told yet, the oldest 5 min old; 1 events quarantined: `fleet-agent inbox list`"
    assert of_notices(seen(), now=NOW).sentence == "all told, no event quarantined"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["FLEET_MODEL_URL"], WELL),
        (["FLEET_MODEL_ULR"], "did you mean FLEET_MODEL_URL?"),
        (["FLEET_STREET"], "no setting is called FLEET_STREET"),
    ],
)
def test_variables_that_no_setting_reads(given: list[str], words: str | None) -> None:
    says(of_variables(given, {"FLEET_MODEL_URL", "FLEET_VAST_API_KEY"}), words)
