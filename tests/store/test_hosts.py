"""Bans, what machines have shown, and the breaker of renting, on a real database."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from fleet_agent.domain.actions import BanHost
from fleet_agent.domain.hosts import LONGEST_REASON, Ban, BanBounds, Failure, NotBanned, measured_rate
from fleet_agent.domain.run import Run
from fleet_agent.domain.show import utc
from fleet_agent.domain.taint import Taint
from fleet_agent.store import hosts, reading, taints
from fleet_agent.store.database import Database
from tests.store.rig import NOON, Fleet

Answer = TypeVar("Answer")
BOUNDS = BanBounds()
HOUR = timedelta(hours=1)
FLEETS = itertools.count()


def within(fleet: Fleet, work: Callable[[Session], Answer]) -> Answer:
    with fleet.database.exclusive(fleet.name) as tx:
        return work(tx)


def ban(
    fleet: Fleet,
    failure: Failure = Failure.TRANSIENT,
    *,
    machine: int = 11,
    reason: str = "no line",
    by: str = "watch",
) -> Ban | NotBanned:
    now = fleet.clock.now()
    return within(fleet, lambda tx: hosts.ban(tx, fleet.name, machine, failure, reason, by=by, bounds=BOUNDS, now=now))


def bans(fleet: Fleet) -> tuple[Ban, ...]:
    return within(fleet, lambda tx: hosts.bans(tx, fleet.name, now=fleet.clock.now()))


def lift(fleet: Fleet, machine: int = 11) -> str | None:
    return within(fleet, lambda tx: hosts.lift(tx, fleet.name, machine, by="cli", now=fleet.clock.now()))


def fails(fleet: Fleet, failure: Failure = Failure.TRANSIENT, *, machine: int = 11, gpus: int = 2) -> Ban | NotBanned:
    now = fleet.clock.now()
    return within(
        fleet,
        lambda tx: hosts.failed(
            tx, fleet.name, machine, gpus, "RTX 4090", failure, "never came up", by="watch", bounds=BOUNDS, now=now
        ),
    )


def measures(fleet: Fleet, rate: float, *, machine: int = 11, gpus: int = 2, gpu_name: str = "RTX 4090") -> str | None:
    now = fleet.clock.now()
    return within(fleet, lambda tx: hosts.measured(tx, fleet.name, machine, gpus, gpu_name, rate, now=now))


def host(fleet: Fleet) -> dict[str, Any]:
    (row,) = within(fleet, lambda tx: reading.hosts(tx, fleet.name))
    return row


def rate_of(fleet: Fleet, gpus: int = 2) -> float | None:
    return measured_rate(within(fleet, lambda tx: hosts.benchmarks(tx, fleet.name)), 11, gpus)


# --- bans ------------------------------------------------------------------------------------------------------------


def test_a_ban_holds_for_as_long_as_its_class_says_and_stays_as_history(fleet: Fleet) -> None:
    ban(fleet)
    fleet.clock.advance(BOUNDS.transient - timedelta(seconds=1))
    assert [held.machine_id for held in bans(fleet)] == [11]
    fleet.clock.advance(timedelta(seconds=1))
    assert bans(fleet) == ()
    assert len(fleet.rows("host_ban")) == 1


def test_a_ban_is_not_shortened_by_a_milder_one(fleet: Fleet) -> None:
    """Control: the newest row alone would have ended it after six hours."""
    ban(fleet, Failure.DETERMINISTIC)
    held = ban(fleet, Failure.TRANSIENT)

    assert isinstance(held, Ban)
    assert (held.failure, held.expires_at) == (Failure.DETERMINISTIC, NOON + BOUNDS.deterministic)
    assert bans(fleet) == (held,)
    assert fleet.rows("host_ban")[-1]["expires_at"] == NOON + BOUNDS.transient


def test_a_harder_ban_takes_the_place_of_a_milder_one(fleet: Fleet) -> None:
    ban(fleet, Failure.TRANSIENT)
    ban(fleet, Failure.SECURITY, reason="it mines")
    assert [(held.failure, held.reason) for held in bans(fleet)] == [(Failure.SECURITY, "it mines")]


def test_the_same_trouble_found_again_makes_the_ban_last_anew_and_adds_no_row(fleet: Fleet) -> None:
    for _ in range(60):
        fleet.clock.advance(timedelta(minutes=1))
        ban(fleet)
    assert len(fleet.rows("host_ban")) == 1
    assert bans(fleet)[0].expires_at == NOON + HOUR + BOUNDS.transient


@pytest.mark.parametrize("new", [{"reason": "it is too hot"}, {"by": "cli"}, {"failure": Failure.DETERMINISTIC}])
def test_something_new_that_is_said_has_a_row_of_its_own(fleet: Fleet, new: dict[str, Any]) -> None:
    ban(fleet)
    ban(fleet, **new)
    assert len(fleet.rows("host_ban")) == 2
    assert len(bans(fleet)) == 1


def test_a_ban_that_was_over_is_begun_anew(fleet: Fleet) -> None:
    ban(fleet)
    fleet.clock.advance(BOUNDS.transient)
    ban(fleet)
    assert len(fleet.rows("host_ban")) == 2


def test_bans_come_newest_first(fleet: Fleet) -> None:
    for machine in (11, 12, 13):
        ban(fleet, machine=machine)
        fleet.clock.advance(timedelta(minutes=1))
    ban(fleet, machine=12, reason="again, and worse", failure=Failure.DETERMINISTIC)
    assert [held.machine_id for held in bans(fleet)] == [12, 13, 11]


@pytest.mark.parametrize("machine", [0, -1])
def test_what_is_no_machine_is_not_banned_and_the_answer_says_so(fleet: Fleet, machine: int) -> None:
    for answer in (ban(fleet, machine=machine), fails(fleet, machine=machine)):
        assert isinstance(answer, NotBanned)
        assert f"{machine} is the number of no machine" in answer.sentence
    assert "no machine" in (measures(fleet, 30, machine=machine) or "")
    assert fleet.rows("host_ban") == []
    assert within(fleet, lambda tx: reading.hosts(tx, fleet.name)) == []


def test_a_long_reason_of_many_lines_is_kept_short_and_on_one(fleet: Fleet) -> None:
    ban(fleet, reason="one\ntwo\x00\x1b[31m " + "x" * 1000)
    (held,) = bans(fleet)
    assert held.reason.startswith("one two x")
    assert len(held.reason) == LONGEST_REASON


def test_fleets_do_not_share_their_bans(fleet: Fleet, database: Database) -> None:
    ban(fleet)
    assert bans(Fleet(database, name="east")) == ()


def test_a_person_lifts_every_ban_of_a_machine_and_only_its(fleet: Fleet) -> None:
    ban(fleet, Failure.TRANSIENT)
    ban(fleet, Failure.SECURITY)
    ban(fleet, machine=12)

    assert lift(fleet) is None

    assert [held.machine_id for held in bans(fleet)] == [12]
    assert [row["lifted_by"] for row in fleet.rows("host_ban")] == ["cli", "cli", None]
    assert fleet.rows("audit")[-1]["text"] == "lifted the ban of machine 11"
    assert lift(fleet) == "machine 11 of fleet main is not banned"


SAID = st.tuples(st.integers(0, 400), st.sampled_from(Failure), st.sampled_from(["no line", "it mines"]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAID, min_size=1, max_size=8))
def test_whatever_is_said_a_machine_is_avoided_until_the_last_of_all_ends(
    database: Database, said: list[tuple[int, Failure, str]]
) -> None:
    fleet = Fleet(database, name=f"fleet-{next(FLEETS)}")
    ends = NOON
    for hours, failure, reason in said:
        fleet.clock.advance(hours * HOUR)
        ban(fleet, failure, reason=reason)
        ends = max(ends, fleet.clock.now() + BOUNDS.lasts(failure))
        (held,) = bans(fleet)
        assert held.expires_at == ends
    fleet.clock.advance(ends - fleet.clock.now())
    assert bans(fleet) == ()


# --- what the agent bans ---------------------------------------------------------------------------------------------


async def asks_to_ban(
    fleet: Fleet, run: Run, failure: Failure = Failure.DETERMINISTIC, *, machine: int = 11, reason: str = "a dud"
) -> tuple[str, bool]:
    result = await fleet.journal.write(run, BanHost(machine_id=machine, failure=failure, reason=reason))
    return result.sentence, result.failed


async def test_the_agent_bans_a_machine_that_its_box_is_on_and_is_told_until_when(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run)
    sentence, failed = await asks_to_ban(ready, run)
    until = utc(ready.clock.now() + BOUNDS.deterministic)
    assert (sentence, failed) == (f"Machine 11 is not rented until {until} (deterministic).", False)
    assert [(held.machine_id, held.banned_by) for held in await ready.journal.bans(run)] == [(11, f"run #{run.run_id}")]


async def test_the_agent_bans_a_machine_that_its_box_was_on(ready: Fleet) -> None:
    run = await ready.open()
    key = await ready.rented(run)
    await ready.loses(run)
    assert ready.box(key)["stage"] == "gone"
    assert (await asks_to_ban(ready, run))[1] is False


async def test_the_agent_bans_no_machine_that_it_never_had(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run)
    sentence, failed = await asks_to_ban(ready, run, machine=12)
    assert failed
    assert "no box of this fleet is or was on machine 12" in sentence
    assert bans(ready) == ()


async def test_a_run_bans_only_so_many_and_the_next_may_again(ready: Fleet) -> None:
    ready.set_policy(limits__max_bans_per_run="1")
    run = await ready.open()
    await ready.rented(run)
    assert (await asks_to_ban(ready, run))[1] is False
    assert await asks_to_ban(ready, run, reason="another dud") == (
        "Nothing banned: this run has banned 1 times and may ban 1 times.",
        True,
    )
    await ready.close(run)
    assert (await asks_to_ban(ready, await ready.open()))[1] is False


async def test_a_tainted_run_bans_for_security_only_as_long_as_for_a_passing_failure(ready: Fleet) -> None:
    """The control is a run that has read nothing from outside."""
    run = await ready.open()
    await ready.rented(run)
    with ready.database.transaction() as tx:
        taints.taint_run(tx, run, Taint(mark="0" * 12, until=NOON + timedelta(days=1)))
    sentence, failed = await asks_to_ban(ready, run, Failure.SECURITY, reason="the log says: ban it")
    held = bans(ready)
    await ready.close(run)
    plain, _ = await asks_to_ban(ready, await ready.open(), Failure.SECURITY)

    assert not failed
    assert "until 2026-03-17T18:00:0" in sentence
    assert "the operator can" in sentence
    assert "the log says" not in sentence
    assert [(each.failure, each.expires_at - each.banned_at) for each in held] == [
        (Failure.TRANSIENT, BOUNDS.transient)
    ]
    assert "(security)" in plain


async def test_a_run_that_only_banned_was_no_run_without_effect(ready: Fleet) -> None:
    run = await ready.open()
    await ready.rented(run)
    await ready.close(run)
    second = await ready.open()
    await asks_to_ban(ready, second)
    assert (await ready.close(second)).no_op is False
    third = await ready.open()
    await asks_to_ban(ready, third, machine=12)
    assert (await ready.close(third)).no_op is True


# --- what machines have shown ----------------------------------------------------------------------------------------


def test_failures_are_counted_by_class_and_ban(fleet: Fleet) -> None:
    for failure in (Failure.TRANSIENT, Failure.DETERMINISTIC, Failure.TRANSIENT):
        fails(fleet, failure)
    row = host(fleet)
    assert row["failures"] == {"transient": 2, "deterministic": 1}
    assert (row["machine_id"], row["num_gpus"], row["last_failure"], row["failed_at"]) == (11, 2, "never came up", NOON)
    assert [held.failure for held in bans(fleet)] == [Failure.DETERMINISTIC]


def test_the_best_that_was_measured_is_kept(fleet: Fleet) -> None:
    measures(fleet, 30)
    fleet.clock.advance(HOUR)
    assert measures(fleet, 20) is None
    assert (rate_of(fleet), host(fleet)["measured_at"]) == (30, NOON)
    measures(fleet, 40)
    assert (rate_of(fleet), host(fleet)["measured_at"]) == (40, NOON + HOUR)


def test_a_measurement_on_two_gpus_says_nothing_of_four(fleet: Fleet) -> None:
    measures(fleet, 30, gpus=2)
    assert (rate_of(fleet, 2), rate_of(fleet, 4)) == (30, None)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused_in_words(fleet: Fleet, rate: float) -> None:
    assert "is no measurement" in (measures(fleet, rate) or "")
    assert rate_of(fleet) is None


def test_a_machine_that_was_given_other_gpus_has_not_been_measured(fleet: Fleet) -> None:
    measures(fleet, 30)
    measures(fleet, 20, gpu_name="")
    assert rate_of(fleet) == 30
    measures(fleet, 20, gpu_name="RTX 5090")
    assert rate_of(fleet) == 20


def test_a_run_finds_bans_and_measurements_in_what_stands(fleet: Fleet) -> None:
    ban(fleet)
    measures(fleet, 30)
    with fleet.database.transaction() as tx:
        standing = reading.standing(tx, fleet.name, epoch=0, now=fleet.clock.now())
    assert standing.bans == bans(fleet)
    assert measured_rate(standing.benchmarks, 11, 2) == 30


# --- the breaker of renting ------------------------------------------------------------------------------------------


def rent_fails(fleet: Fleet, reason: str = "offer 7 is gone") -> str | None:
    now = fleet.clock.now()
    return within(fleet, lambda tx: hosts.rent_failed(tx, fleet.name, reason, most=3, now=now))


def test_so_many_rents_in_vain_in_a_row_pause_renting_and_a_person_hears_of_it(fleet: Fleet) -> None:
    assert [rent_fails(fleet), rent_fails(fleet)] == [None, None]
    sentence = rent_fails(fleet, "the image starts nowhere")

    assert sentence == "3 rents in a row came to nothing, the last one: the image starts nowhere"
    assert fleet.state()["rent_breaker"] == sentence
    (notice,) = fleet.rows("notice")
    assert notice["text"] == f"Renting is paused: {sentence}. `fleet-agent resume --scale-out` lets it go on."
    assert [(row["who"], row["what"]) for row in fleet.rows("audit")] == [("fleet-agent", "rent breaker")]


def test_a_rent_that_worked_ends_the_row(fleet: Fleet) -> None:
    """Control: without it the third failure would have opened the breaker."""
    for _ in range(3):
        rent_fails(fleet)
        within(fleet, lambda tx: hosts.rent_worked(tx, fleet.name))
    assert (fleet.state()["rent_breaker"], fleet.state()["rent_failures"]) == ("", 0)


def test_an_open_breaker_is_told_once_and_closed_by_a_person_alone(fleet: Fleet) -> None:
    for _ in range(5):
        rent_fails(fleet)
    within(fleet, lambda tx: hosts.rent_worked(tx, fleet.name))
    assert fleet.state()["rent_breaker"].startswith("3 rents in a row")
    assert len(fleet.rows("notice")) == 1

    within(fleet, lambda tx: hosts.close_breaker(tx, fleet.name, who="cli", now=fleet.clock.now()))
    assert (fleet.state()["rent_breaker"], fleet.state()["rent_failures"]) == ("", 0)
    assert fleet.rows("audit")[-1]["who"] == "cli"


def test_a_breaker_that_opens_again_is_told_again(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.clock.advance(HOUR)
        for _ in range(3):
            rent_fails(fleet)
        within(fleet, lambda tx: hosts.close_breaker(tx, fleet.name, who="cli", now=fleet.clock.now()))
    assert len(fleet.rows("notice")) == 2


def test_a_refusal_for_lack_of_credit_pauses_renting_at_once_and_blames_nobody(fleet: Fleet) -> None:
    """Control: a single rent that comes to nothing for another reason does not."""
    rent_fails(fleet)
    before, now = fleet.state()["rent_breaker"], fleet.clock.now()
    for _ in range(2):
        within(fleet, lambda tx: hosts.no_credit_is_given(tx, fleet.name, "your account lacks credit", now=now))

    assert before == ""
    assert fleet.state()["rent_breaker"] == "add credit, for the provider gives none: your account lacks credit"
    assert (fleet.state()["rent_failures"], bans(fleet), len(fleet.rows("notice"))) == (1, (), 1)


def test_to_close_what_is_closed_changes_nothing_but_the_count(fleet: Fleet) -> None:
    rent_fails(fleet)
    within(fleet, lambda tx: hosts.close_breaker(tx, fleet.name, who="cli", now=fleet.clock.now()))
    assert fleet.state()["rent_failures"] == 0
    assert fleet.rows("audit") == []
