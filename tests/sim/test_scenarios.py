"""The named worlds tell the stories that they are named for."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import HOUR
from fleet_agent.sim.scenarios import CALM_DAY, FIRST_LIGHT, IDLE, SCENARIOS, Scenario
from fleet_agent.sim.world import World, open_world
from tests.sim.driver import Outcome, play_run

MIDNIGHT = datetime(2026, 11, 29, tzinfo=UTC)
HEARTBEAT = timedelta(minutes=5)
JITTER = timedelta(seconds=100)
EARLY, PUNCTUAL, LATE = -JITTER, timedelta(0), JITTER


def at(scenario: Scenario, *, seed: int) -> tuple[ManualClock, World]:
    clock = ManualClock(MIDNIGHT)
    return clock, open_world(clock, scenario, seed=seed)


def three_runs(*, seed: int, late: timedelta, jitters: tuple[timedelta, ...]) -> list[Outcome]:
    """Heartbeats of which each comes too early or too late by its jitter, after a start that was late as a whole."""
    clock, world = at(FIRST_LIGHT, seed=seed)
    outcomes: list[Outcome] = []
    for number, jitter in enumerate(jitters, start=1):
        due = MIDNIGHT + late + number * HEARTBEAT + jitter
        clock.advance(due - clock.now())
        outcomes.append(play_run(world))
    return outcomes


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes]


@pytest.mark.parametrize("seed", range(20))
def test_first_light_rents_waits_and_destroys_on_punctual_heartbeats(seed: int):
    outcomes = three_runs(seed=seed, late=timedelta(0), jitters=(PUNCTUAL,) * 3)
    assert kinds(outcomes) == ["rent", "no-op", "destroy"]
    assert len(outcomes[0].rented) == len(outcomes[2].destroyed) == 2


def test_first_light_finds_all_work_still_waiting_in_its_second_run():
    clock, world = at(FIRST_LIGHT, seed=0)
    play_run(world)
    clock.advance(HEARTBEAT)
    assert [box.actual_status for box in world.market.instances()] == ["running", "running"]
    assert world.queue.figures().pending == FIRST_LIGHT.demand.waiting


@pytest.mark.parametrize("late", [timedelta(0), timedelta(minutes=2)], ids=["in time", "late"])
@pytest.mark.parametrize("jitters", list(product((EARLY, PUNCTUAL, LATE), repeat=3)), ids=str)
def test_first_light_shows_a_rent_a_no_op_and_a_destroy_whatever_the_jitter(
    late: timedelta, jitters: tuple[timedelta, ...]
):
    for seed in range(10):
        shown = kinds(three_runs(seed=seed, late=late, jitters=jitters))
        assert shown[0] == "rent"
        assert sorted(shown) == ["destroy", "no-op", "rent"]


def test_a_day_at_the_usual_tempo_would_not_show_it_within_three_runs():
    """The control: without its own tempo and small proofs the batch outlasts the third run."""
    clock = ManualClock(MIDNIGHT)
    world = open_world(clock, Scenario("usual", IDLE.market, CALM_DAY.demand), seed=0)
    shown: list[str] = []
    for _ in range(3):
        clock.advance(HEARTBEAT)
        shown.append(play_run(world).kind)
    assert "destroy" not in shown


def test_a_late_start_changes_nothing_in_first_light():
    punctual = three_runs(seed=0, late=timedelta(0), jitters=(PUNCTUAL,) * 3)
    assert kinds(three_runs(seed=0, late=timedelta(hours=3), jitters=(PUNCTUAL,) * 3)) == kinds(punctual)


def test_first_light_answers_a_human_message():
    _, world = at(FIRST_LIGHT, seed=0)
    assert "You wrote: “Use few boxes.”" in play_run(world, human="Use few boxes.").finish["summary"]


def test_a_calm_day_is_proved_without_a_growing_backlog():
    clock, world = at(CALM_DAY, seed=0)
    pending: list[int] = []
    for _ in range(24 * 12):
        clock.advance(HEARTBEAT)
        play_run(world)
        pending.append(world.queue.figures().pending)
    assert pending[-1] <= 8
    assert max(pending) > 8


def test_a_calm_day_grows_a_backlog_when_nobody_rents():
    """The control of the test above."""
    clock, world = at(CALM_DAY, seed=0)
    clock.advance(24 * HOUR)
    assert world.queue.figures().pending > 400


def test_idle_never_asks_for_a_box():
    clock, world = at(IDLE, seed=0)
    clock.advance(24 * HOUR)
    assert play_run(world).kind == "no-op"


def test_scenarios_are_found_by_their_names():
    assert {name: scenario.name for name, scenario in SCENARIOS.items()} == {name: name for name in SCENARIOS}
