"""The named worlds tell the stories that they are named for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.demand import HOUR
from fleet_agent.sim.market import MarketConfig
from fleet_agent.sim.scenarios import CALM_DAY, FIRST_LIGHT, IDLE, SCENARIOS, Scenario
from fleet_agent.sim.world import World, open_world
from tests.sim.driver import Outcome, play_run

MIDNIGHT = datetime(2026, 11, 29, tzinfo=UTC)
HEARTBEAT = timedelta(minutes=5)
LATE = timedelta(seconds=60)
"""So much less than a heartbeat may lie between two runs, where the first of them began late."""


def at(scenario: Scenario, *, seed: int) -> tuple[ManualClock, World]:
    clock = ManualClock(MIDNIGHT)
    return clock, open_world(clock, scenario, seed=seed)


def three_runs(scenario: Scenario = FIRST_LIGHT, *, seed: int, second_after: timedelta) -> list[Outcome]:
    """What happens at the start of the demo, and two heartbeats of which the first comes when it comes."""
    clock, world = at(scenario, seed=seed)
    outcomes = [play_run(world)]
    for pause in (second_after, HEARTBEAT - LATE):
        clock.advance(pause)
        outcomes.append(play_run(world))
    return outcomes


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes]


@pytest.mark.parametrize("second_after", [timedelta(seconds=each) for each in range(1, 301, 13)], ids=str)
def test_first_light_shows_a_rent_a_no_op_and_a_destroy_whenever_its_second_run_begins(second_after: timedelta):
    for seed in range(10):
        outcomes = three_runs(seed=seed, second_after=second_after)
        assert outcomes[0].kind == "rent"
        assert sorted(kinds(outcomes)) == ["destroy", "no-op", "rent"]
        assert len(outcomes[0].rented) == sum(len(outcome.destroyed) for outcome in outcomes) == 2


def test_first_light_destroys_at_once_or_after_a_no_op():
    assert kinds(three_runs(seed=0, second_after=timedelta(seconds=20))) == ["rent", "no-op", "destroy"]
    assert kinds(three_runs(seed=0, second_after=HEARTBEAT)) == ["rent", "destroy", "no-op"]


def test_control_boxes_that_take_as_long_as_usual_would_not_show_it_always():
    slow = replace(FIRST_LIGHT, market=MarketConfig(productive_after=timedelta(seconds=250)))
    assert "destroy" not in kinds(three_runs(slow, seed=0, second_after=timedelta(seconds=20)))


def test_a_day_at_the_usual_tempo_would_not_show_it_within_three_runs():
    """The control: without its own tempo and small proofs the batch outlasts the third run."""
    clock = ManualClock(MIDNIGHT)
    world = open_world(clock, Scenario("usual", IDLE.market, CALM_DAY.demand), seed=0)
    shown: list[str] = []
    for _ in range(3):
        clock.advance(HEARTBEAT)
        shown.append(play_run(world).kind)
    assert "destroy" not in shown


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
