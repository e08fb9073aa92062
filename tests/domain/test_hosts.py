"""How long a machine is avoided, what the agent may ban, and what a measurement says."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent import errors
from fleet_agent.domain.hosts import (
    BanBounds,
    Benchmark,
    Failure,
    InVain,
    class_for_a_run,
    measured_rate,
    no_machine,
    no_rate,
    what_follows,
    why_a_run_may_not_ban,
)
from fleet_agent.domain.policy import Policy, changed
from fleet_agent.errors import FleetAgentError, PolicyInvalid

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)


def every_error(error: type[FleetAgentError] = FleetAgentError) -> list[type[FleetAgentError]]:
    return [error, *(below for each in error.__subclasses__() for below in every_error(each))]


# --- how long --------------------------------------------------------------------------------------------------------


def test_what_would_fail_again_is_avoided_longer_than_what_may_do_better_and_a_cheat_longest() -> None:
    bounds = BanBounds()
    assert bounds.lasts(Failure.TRANSIENT) < bounds.lasts(Failure.DETERMINISTIC) < bounds.lasts(Failure.SECURITY)


def test_a_person_says_how_long() -> None:
    bounds = changed(Policy(), {"bans.transient": "PT1H"}).bans
    assert bounds.lasts(Failure.TRANSIENT) == timedelta(hours=1)


@pytest.mark.parametrize("length", ["PT0S", "-PT1H", "P99999D"])
def test_a_ban_lasts_for_some_time_and_not_for_ever(length: str) -> None:
    with pytest.raises(PolicyInvalid, match=r"bans\.security"):
        changed(Policy(), {"bans.security": length})


@pytest.mark.parametrize("number", [0, -1, 2**63])
def test_a_number_that_names_no_machine_is_answered_with_a_sentence(number: int) -> None:
    assert str(number) in (no_machine(number) or "")
    assert no_machine(4711) is None


# --- what follows from a rent in vain ---------------------------------------------------------------------------------


def test_only_a_definite_no_to_this_very_offer_speaks_against_its_machine_and_an_empty_purse_against_renting() -> None:
    """Of a lost answer nobody knows anything yet, and a call that never left says nothing."""
    follows = {kind: what_follows(kind("no")) for kind in every_error()}
    assert {kind: what for kind, what in follows.items() if what is not None} == {
        errors.ChooseAnother: InVain.AVOID_MACHINE,
        errors.StopRenting: InVain.STOP_RENTING,
    }


def test_the_naive_reading_blames_a_machine_for_an_empty_purse() -> None:
    """The control: whatever came to nothing is the machine's fault."""

    def naive(_: FleetAgentError) -> InVain | None:
        return InVain.AVOID_MACHINE

    assert naive(errors.StopRenting("no credit")) is not what_follows(errors.StopRenting("no credit"))


# --- the agent's own bans --------------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_run_bans_no_more_often_than_it_may(so_far: int, most: int) -> None:
    problem = why_a_run_may_not_ban(11, had_a_box=True, banned_so_far=so_far, most=most)
    assert (problem is None) == (so_far < most)


def test_a_machine_that_no_box_was_ever_on_cannot_be_banned() -> None:
    assert "machine 11" in (why_a_run_may_not_ban(11, had_a_box=False, banned_so_far=0, most=2) or "")


@given(st.sampled_from(Failure))
def test_words_of_strangers_cost_no_machine_the_longest_ban(wanted: Failure) -> None:
    """The control is the run that has read none: it gets what it asks for."""
    bounds = BanBounds()
    assert bounds.lasts(class_for_a_run(wanted, tainted=True)) < bounds.security
    assert class_for_a_run(wanted, tainted=False) is wanted


def test_a_tainted_run_still_bans_what_failed() -> None:
    assert class_for_a_run(Failure.DETERMINISTIC, tainted=True) is Failure.DETERMINISTIC


# --- measurements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "gpus", "is_one"),
    [(0.01, 1, True), (0.0099, 1, False), (500, 1, True), (501, 1, False), (1000, 2, True), (500, 0, True),
     (0, 1, False), (-1, 1, False), (5e-324, 1, False), (math.nan, 1, False), (math.inf, 1, False)],
)  # fmt: skip
def test_what_no_gpu_can_do_is_no_rate(rate: float, gpus: int, is_one: bool) -> None:
    assert (no_rate(rate, gpus, most_per_gpu=500) is None) is is_one


def benchmark(**changes: Any) -> Benchmark:
    return Benchmark(**{"machine_id": 11, "num_gpus": 2, "proofs_per_hour": 30.0, "measured_at": NOON} | changes)


def test_a_measurement_on_two_gpus_says_nothing_of_four() -> None:
    known = (benchmark(), benchmark(machine_id=12, num_gpus=4))
    assert measured_rate(known, 11, 2) == 30.0
    assert measured_rate(known, 11, 4) is None


def test_the_naive_lookup_by_machine_alone_takes_it_for_four() -> None:
    """The control."""

    def naive(benchmarks: tuple[Benchmark, ...], machine_id: int, _: int) -> float | None:
        return next((b.proofs_per_hour for b in benchmarks if b.machine_id == machine_id), None)

    assert naive((benchmark(),), 11, 4) == 30.0
