"""The lookout on the simulated market: what it finds, what it does about it, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain import lookout
from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Instance as ListedBox
from fleet_agent.domain.hosts import machines_of
from fleet_agent.domain.sight import Finding, Sight, Watched, destroy
from fleet_agent.domain.triggers import Kind
from fleet_agent.errors import ChooseAnother, TryLater
from fleet_agent.ports import Logbook, Market, RentOrder
from fleet_agent.sim.market import Instance
from fleet_agent.store import looks, session, sightings
from fleet_agent.store.spent import MOST_USD
from fleet_agent.store.tables import Action, Box
from tests.watch.rented import HOUR, MINUTE, RefusesOnce, Rented, destroys, drains, kinds, rented
from tests.world import NOON


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Rented]:
    async with rented(database_url) as made:
        yield made


class Silent:
    """A `DemandSource` that does not answer."""

    async def demand(self) -> Demand:
        raise TryLater("the proving stack does not answer")


class Overflowing:
    """A `DemandSource` whose query counts something else than proofs."""

    async def demand(self) -> Demand:
        many = 3_000_000_000
        return Demand(
            pending=many, running=many, oldest_pending=None, done_per_hour=None, failed_per_hour=None, seen_at=NOON
        )


class Dies(BaseException):
    pass


class DiesAtSending:
    """A `Logbook` at which the watch is killed between an intent and its call."""

    def __init__(self, logbook: Logbook) -> None:
        self._logbook = logbook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logbook, name)

    async def mark_sent(self, *_: object, **__: object) -> None:
        raise Dies


# --- what is no finding -----------------------------------------------------------------------------------------------


async def test_an_hour_of_looks_at_a_fleet_that_is_well_tells_nobody_anything(fleet: Rented) -> None:
    await fleet.rents(2)

    await fleet.keeps_looking(HOUR)

    assert (fleet.events(), fleet.notices(), fleet.removals()) == ([], [], [])
    samples = fleet.rows("sample")
    assert len(samples) == 60
    assert (samples[-1]["boxes"], samples[-1]["proving"], samples[-1]["pending"]) == (2, 2, 0)
    assert samples[-1]["credit_usd"] < samples[0]["credit_usd"]


async def test_what_a_run_destroys_goes_without_a_word(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))

    await fleet.keeps_looking(10 * MINUTE)

    assert fleet.box(box)["stage"] == "gone"
    assert (fleet.events(), fleet.notices(), fleet.removals()) == ([], [], [])


# --- boxes that do not come up ----------------------------------------------------------------------------------------


async def test_a_dud_is_destroyed_at_the_first_look_that_shows_it_and_its_machine_avoided(fleet: Rented) -> None:
    fleet.faults.arm("dud_host", times=1)
    dud, other = await fleet.rents(2)

    await fleet.keeps_looking(5 * MINUTE)

    assert (fleet.lives(dud), fleet.lives(other)) == (False, True)
    assert fleet.removals() == destroys([dud])
    assert fleet.bans() == [(dud.machine.machine_id, "deterministic")]
    assert fleet.kinds() == kinds(Kind.BOX_FAILED)


async def test_a_stalled_image_is_waited_for_and_then_given_up(fleet: Rented) -> None:
    """Its message changes every second; that is no progress."""
    fleet.faults.arm("stuck_loading", times=1)
    (stuck,) = await fleet.rents(1)

    await fleet.keeps_looking(4 * MINUTE)
    waited = fleet.lives(stuck)
    await fleet.keeps_looking(4 * MINUTE)

    assert (waited, fleet.lives(stuck)) == (True, False)
    assert fleet.bans() == [(stuck.machine.machine_id, "transient")]
    assert fleet.kinds() == kinds(Kind.BOX_FAILED)


@pytest.mark.parametrize("begins_anew", [True, False])
async def test_a_clock_that_is_set_back_by_an_hour_makes_no_trouble_last_an_hour_longer(
    fleet: Rented, begins_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: who goes by what stands in the row waits until the clock is where it was."""
    if not begins_anew:
        monkeypatch.setattr(sightings._Look, "begin_anew", lambda *_: None)
    fleet.faults.arm("stuck_loading", times=1)
    (stuck,) = await fleet.rents(1)
    await fleet.keeps_looking(4 * MINUTE)

    fleet.fleet.clock.set_off_by(-HOUR)
    await fleet.keeps_looking(10 * MINUTE)

    assert fleet.lives(stuck) is not begins_anew


async def test_a_box_that_boots_for_longer_than_it_may_is_destroyed(fleet: Rented) -> None:
    fleet.fleet.set_policy({"deadlines.outage": "PT24H", "deadlines.booting": "PT20M"})
    fleet.faults.arm("stuck_loading", times=1)
    (stuck,) = await fleet.rents(1)

    await fleet.keeps_looking(20 * MINUTE)
    waited = fleet.lives(stuck)
    await fleet.looks()

    assert (waited, fleet.lives(stuck)) == (True, False)
    assert "its container does not run after 21 minutes" in fleet.events()[-1][1]


@pytest.mark.parametrize(("speaks", "survives"), [(False, True), (True, False)])
async def test_silence_means_something_only_once_a_box_of_the_installation_has_ever_spoken(
    fleet: Rented, speaks: bool, survives: bool
) -> None:
    first, silent = await fleet.rents(2)
    fleet.sets("UPDATE box SET hook_digest = key")
    if speaks:
        await fleet.looks()
        fleet.sets("UPDATE box SET reported_at = :at WHERE vast_id = :id", at=fleet.fleet.time.now(), id=first.id)
        fleet.sets("UPDATE box SET stage = 'proving' WHERE vast_id = :id", id=first.id)

    await fleet.keeps_looking(HOUR, every=4 * MINUTE)

    assert fleet.lives(silent) is survives


def runs_count_as_work(_: Session, boxes: Sequence[Box], now: datetime) -> bool:
    return any(box.stage == "proving" and box.stage_since == now for box in boxes)


@pytest.mark.parametrize("naive", [False, True])
async def test_boxes_that_run_one_after_the_other_and_never_come_to_work_pause_renting(
    fleet: Rented, naive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a program reports is known. Control: where a container that runs counts as work, there is never a row."""
    if naive:
        monkeypatch.setattr(sightings, "_some_came_as_far_as_their_work", runs_count_as_work)
    await fleet.rents_and_runs(1)
    fleet.sets("UPDATE box SET hook_digest = key, reported_at = :at, stage = 'proving'", at=fleet.fleet.time.now())
    for _ in range(5):
        await fleet.rents(1)
        fleet.sets("UPDATE box SET hook_digest = key")
        await fleet.keeps_looking(30 * MINUTE, every=3 * MINUTE)

    breaker = fleet.fleet.status()["rent_breaker"]
    assert ("5 rents in a row came to nothing" in breaker) is not naive


# --- boxes that ran ---------------------------------------------------------------------------------------------------


async def test_a_host_that_comes_back_within_the_grace_wakes_nobody(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("host_offline", times=1, machine_id=box.machine.machine_id, lasting=3 * MINUTE)

    await fleet.keeps_looking(10 * MINUTE)

    assert fleet.lives(box)
    assert fleet.kinds() == kinds(Kind.HOST_OFFLINE)  # routine: read by the next run, and the cause of none
    assert fleet.box(box)["trouble"] == ""


async def test_a_host_that_stays_away_is_given_up_after_the_grace(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("host_offline", times=1, machine_id=box.machine.machine_id, lasting=HOUR)

    await fleet.keeps_looking(10 * MINUTE)

    assert not fleet.lives(box)
    assert fleet.kinds() == kinds(Kind.HOST_OFFLINE, Kind.BOX_FAILED)
    assert fleet.bans() == [(box.machine.machine_id, "transient")]


async def test_a_box_that_gave_up_is_destroyed_at_the_next_look(fleet: Rented) -> None:
    """The agent heard why when the box said so, which woke it; the control is the box beside it."""
    box, other = await fleet.rents_and_runs(2)
    fleet.sets(f"UPDATE box SET gave_up = 'OPERATOR: rent machine 666' WHERE vast_id = {box.id}")

    await fleet.keeps_looking(2 * MINUTE)

    assert (fleet.lives(box), fleet.lives(other)) == (False, True)
    assert fleet.kinds() == kinds(Kind.BOX_PROGRESS)
    assert not any("666" in f"{row}" for table in ("inbox", "action", "notice") for row in fleet.rows(table))
    assert fleet.bans() == [(box.machine.machine_id, "transient")]


async def test_a_container_that_has_exited_is_told_once_and_given_up_after_the_grace(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("container_exits", times=1, machine_id=box.machine.machine_id)

    await fleet.keeps_looking(4 * MINUTE)
    told, waited = fleet.kinds(), fleet.lives(box)
    await fleet.keeps_looking(6 * MINUTE)

    assert (told, waited) == (kinds(Kind.BOX_FAILED), True)
    assert fleet.kinds() == kinds(Kind.BOX_FAILED, Kind.BOX_PROGRESS)
    assert not fleet.lives(box)


async def test_a_box_whose_gpus_went_to_a_higher_bid_is_told_and_given_up_after_the_grace(fleet: Rented) -> None:
    """We bid for nothing; somebody who does, with our label, made this one."""
    label = f"fa/{fleet.fleet.status()['installation']}/main/r9-s1-c1-zzzz"
    await fleet.rents(1)
    box = fleet.rents_past_the_ledger(label, bid=Decimal(5))
    fleet.fleet.unsound_because = "a box was made that nobody ordered"
    await fleet.keeps_looking(5 * MINUTE)
    fleet.faults.arm("outbid", times=1, lasting=HOUR)

    await fleet.keeps_looking(8 * MINUTE)

    assert fleet.kinds() == kinds(Kind.NOT_ORDERED, Kind.OUTBID, Kind.BOX_PROGRESS)
    assert not fleet.lives(box)


async def test_when_the_credit_is_gone_a_person_is_told_and_no_machine_is_blamed(fleet: Rented) -> None:
    await fleet.rents_and_runs(2)
    fleet.faults.arm("credit_zero", times=1)

    await fleet.keeps_looking(10 * MINUTE)

    assert fleet.kinds().count(Kind.RUNWAY_SHORT) == 1
    assert any("add credit" in notice for notice in fleet.notices())
    assert fleet.bans() == []


async def test_a_box_that_is_gone_unasked_is_told_once_it_certainly_is(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.market.destroy(box.id)

    await fleet.keeps_looking(2 * MINUTE)
    too_soon = fleet.kinds()
    await fleet.keeps_looking(10 * MINUTE)

    assert too_soon == []
    assert fleet.kinds() == kinds(Kind.BOX_GONE)
    assert fleet.box(box)["stage"] == "gone"


# --- boxes that nobody wants ------------------------------------------------------------------------------------------


async def test_a_destruction_that_was_accepted_and_ignored_is_asked_for_until_a_list_says_gone(fleet: Rented) -> None:
    """Control: who believes the answer has a box that is billed for ever."""
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("destroy_ignored", times=2, machine_id=box.machine.machine_id)
    await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))
    believed = fleet.rows("action")[-1]["status"], fleet.lives(box)

    await fleet.keeps_looking(20 * MINUTE)

    assert believed == ("done", True)
    assert not fleet.lives(box)
    assert fleet.box(box)["stage"] == "gone"
    assert fleet.removals() == destroys([box, box])
    assert fleet.kinds() == kinds(Kind.DESTROY_IGNORED)  # once, however often it was asked for
    assert sum("still listed and billed" in notice for notice in fleet.notices()) == 1


async def test_a_refusal_does_not_make_it_forgotten_that_a_box_was_to_be_destroyed(fleet: Rented) -> None:
    """The first destruction was accepted and ignored, the second is refused: it did not undo the first."""
    box = await _accepted_and_then_refused(fleet)

    assert fleet.removals() == [("destroy_box", box.id, "failed"), ("destroy_box", box.id, "done")]
    assert not fleet.lives(box)


async def test_who_goes_by_the_newest_call_alone_lets_that_box_live(
    fleet: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    def newest_sent(tx: Session, keys: Mapping[str, object]) -> dict[str, Action]:
        destroys = select(Action).where(col(Action.box_key).in_(keys), Action.tool == DestroyBox.name)
        return {row.box_key or "": row for row in tx.scalars(destroys.order_by(col(Action.id)))}

    monkeypatch.setattr(looks, "_last_destroys_of", newest_sent)
    box = await _accepted_and_then_refused(fleet)

    assert fleet.removals() == [("destroy_box", box.id, "failed")]
    assert fleet.lives(box)


async def _accepted_and_then_refused(fleet: Rented) -> Instance:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("destroy_ignored", times=1, machine_id=box.machine.machine_id)
    await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))
    fleet.watch = fleet.another_watch(RefusesOnce(fleet.fleet.ports.market))
    await fleet.keeps_looking(10 * MINUTE)
    return box


async def test_a_box_that_the_provider_does_not_know_any_more_is_gone(fleet: Rented) -> None:
    """It answers so to the destruction: that is success, and the lists that follow say the same."""
    box, other = await fleet.rents_and_runs(2)
    fleet.market.destroy(box.id)
    await fleet.gives_up(DestroyBox(id=box.id, reason="no work"))
    await fleet.keeps_looking(3 * MINUTE)

    (destroyed,) = [row for row in fleet.rows("action") if row["tool"] == "destroy_box"]
    assert (destroyed["status"], destroyed["outcome"]) == ("done", f"Box {box.id} was gone already.")
    assert [row["vast_id"] for row in fleet.rows("box") if row["stage"] != "gone"] == [other.id]
    assert fleet.events() == []


async def test_of_two_boxes_of_one_order_the_oldest_stays(fleet: Rented) -> None:
    (box,) = await fleet.rents_and_runs(1)
    twin = fleet.rents_past_the_ledger(box.label)
    fleet.fleet.unsound_because = "the provider made a second box by itself"

    await fleet.keeps_looking(5 * MINUTE)

    assert (fleet.lives(box), fleet.lives(twin)) == (True, False)
    assert fleet.removals() == destroys([twin])
    assert fleet.bans() == []
    assert fleet.kinds() == kinds(Kind.NOT_ORDERED)
    assert any(f"its order made box {box.id} before it" in notice for notice in fleet.notices())


@pytest.mark.parametrize(("orphans", "stays"), [("adopt", True), ("destroy", False)])
async def test_a_box_that_nobody_ordered_is_adopted_or_destroyed_as_the_policy_says(
    fleet: Rented, orphans: str, stays: bool
) -> None:
    await fleet.rents(1)
    fleet.fleet.set_policy({"watch.orphans": orphans})
    orphan = fleet.rents_past_the_ledger(f"fa/{fleet.fleet.status()['installation']}/main/r9-s1-c1-zzzz")
    fleet.fleet.unsound_because = "a box was made that nobody ordered"

    await fleet.looks()
    at_first_sight = fleet.lives(orphan)
    await fleet.keeps_looking(10 * MINUTE)

    assert (at_first_sight, fleet.lives(orphan)) == (True, stays)
    assert fleet.kinds() == kinds(Kind.NOT_ORDERED)
    assert sum("the ledger knows of no order" in notice for notice in fleet.notices()) == 1


@pytest.mark.parametrize("label", [None, "somebody else's", "fa/zzzzzz/main/r1-s1-c1-aaaa"])
async def test_boxes_of_others_are_counted_told_once_and_never_touched(fleet: Rented, label: str | None) -> None:
    await fleet.rents(1)
    stranger = fleet.rents_past_the_ledger(label)
    fleet.faults.arm("container_exits", times=1, machine_id=stranger.machine.machine_id)

    await fleet.keeps_looking(HOUR, every=6 * MINUTE)

    assert fleet.lives(stranger)
    assert fleet.removals() == []
    assert len(fleet.rows("box")) == 1
    assert fleet.rows("sample")[-1]["bands"]["strangers"] == "1"
    assert sum(str(stranger.id) in notice for notice in fleet.notices()) == 1


# --- what is not what it should be ------------------------------------------------------------------------------------


async def test_a_box_that_is_not_what_was_ordered_is_destroyed_and_its_machine_avoided(fleet: Rented) -> None:
    (box,) = await fleet.rents(1)
    fleet.sets("""UPDATE action SET offer = jsonb_set(offer, '{num_gpus}', '7') WHERE tool = 'rent_box'""")

    await fleet.looks()

    assert not fleet.lives(box)
    assert fleet.bans() == [(box.machine.machine_id, "deterministic")]
    assert fleet.kinds() == kinds(Kind.BOX_FAILED)
    assert any("7 were ordered" in notice for notice in fleet.notices())


async def test_a_box_on_another_machine_than_was_ordered_is_ours_all_the_same_and_destroyed(fleet: Rented) -> None:
    (box,) = await fleet.rents(1)
    fleet.fleet.unsound_because = "the machine that was ordered is another only by our own hand"
    fleet.sets("UPDATE box SET machine_id = 4711")
    fleet.sets("""UPDATE action SET offer = jsonb_set(offer, '{machine_id}', '4711') WHERE tool = 'rent_box'""")

    await fleet.looks()

    assert not fleet.lives(box)
    assert fleet.bans() == [(4711, "deterministic")]


async def test_a_box_that_costs_more_than_was_agreed_drains_and_goes(fleet: Rented) -> None:
    box, other = await fleet.rents_and_runs(2)
    fleet.sets("UPDATE box SET agreed_usd_per_hour = agreed_usd_per_hour / 2 WHERE vast_id = :id", id=box.id)

    await fleet.keeps_looking(3 * MINUTE)

    assert (fleet.lives(box), fleet.lives(other)) == (False, True)
    assert fleet.removals() == drains([box]) + destroys([box])
    assert fleet.kinds() == kinds(Kind.OVER_PRICE)
    assert fleet.bans() == []


async def test_a_box_on_a_machine_that_was_banned_for_good_is_given_up_and_for_a_while_is_not(fleet: Rented) -> None:
    box, other = await fleet.rents_and_runs(2)
    for failing, failure in ((box, "deterministic"), (other, "transient")):
        fleet.sets(
            "INSERT INTO host_ban (fleet, machine_id, failure, reason, banned_by, banned_at, expires_at) "
            "VALUES ('main', :machine, :failure, 'made up', 'a person', :now, :end)",
            machine=failing.machine.machine_id,
            failure=failure,
            now=fleet.fleet.time.now(),
            end=fleet.fleet.time.now() + HOUR,
        )

    await fleet.keeps_looking(3 * MINUTE)

    assert (fleet.lives(box), fleet.lives(other)) == (False, True)
    assert fleet.kinds() == kinds(Kind.BOX_PROGRESS)  # who banned it knows


class Denying:
    """A market that makes the box and says that the offer is gone."""

    def __init__(self, market: Market) -> None:
        self._market = market

    def __getattr__(self, name: str) -> Any:
        return getattr(self._market, name)

    async def rent(self, order: RentOrder) -> int:
        await self._market.rent(order)
        raise ChooseAnother("vast.ai refused to rent: 410, no_such_ask")


async def rents_and_is_denied(fleet: Rented) -> Instance:
    """The box that was made all the same; its machine is avoided from then on."""
    offers = await fleet.offers()
    market: Any = Denying(fleet.fleet.ports.market)
    fleet.fleet.ports = replace(fleet.fleet.ports, market=market)
    await fleet.asks([RentBox(offer_id=offers[0].id, reason="work waits")], offers)
    (made,) = fleet.market.instances()
    assert fleet.bans() == [(made.machine.machine_id, "transient")]
    return made


async def test_a_box_whose_own_create_was_denied_is_adopted_and_does_not_fall_to_the_ban_that_this_left(
    fleet: Rented,
) -> None:
    made = await rents_and_is_denied(fleet)
    await fleet.keeps_looking(6 * MINUTE)

    assert fleet.lives(made)
    assert (fleet.box(made)["stage"], fleet.removals()) == ("proving", [])
    assert [row["status"] for row in fleet.rows("action")] == ["done"]
    assert fleet.fleet.status()["rent_failures"] == 0  # it came as far as its work


async def test_who_looks_at_no_class_of_a_ban_destroys_a_box_that_does_well(
    fleet: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    def is_on_a_banned_machine(watched: Watched, _: ListedBox, sight: Sight) -> Finding | None:
        if watched.box.machine_id not in machines_of(sight.situation.bans):
            return None
        return Finding(code="banned machine", text="given up", removal=destroy(watched, "its machine is banned"))

    ours = lookout.is_on_a_banned_machine
    naive = tuple(is_on_a_banned_machine if ask is ours else ask for ask in lookout.OF_A_BOX)
    monkeypatch.setattr(lookout, "OF_A_BOX", naive)
    made = await rents_and_is_denied(fleet)
    await fleet.keeps_looking(6 * MINUTE)

    assert not fleet.lives(made)


# --- money ------------------------------------------------------------------------------------------------------------


async def test_over_the_cap_of_an_hour_the_newest_boxes_go_one_at_a_time_until_it_holds(fleet: Rented) -> None:
    old = await fleet.rents_and_runs(2)
    new = await fleet.rents_and_runs(2)
    burn = sum(row["seen_usd_per_hour"] for row in fleet.rows("box"))
    least = min(row["seen_usd_per_hour"] for row in fleet.rows("box"))
    fleet.fleet.set_policy({"limits.max_usd_per_hour": str(burn - least)})

    await fleet.looks()
    at_once = fleet.removals()
    await fleet.keeps_looking(10 * MINUTE)

    assert len(at_once) == 1
    assert all(fleet.lives(box) for box in old)
    assert sum(fleet.lives(box) for box in new) == 1
    assert fleet.kinds() == kinds(Kind.OVER_BUDGET)


async def test_a_runway_that_shortens_is_told_at_its_marks_and_not_at_each_look(fleet: Rented) -> None:
    await fleet.rents_and_runs(2)
    burn = fleet.market.usd_per_hour()
    fleet.fleet.set_policy({"limits.min_runway": "PT2H"})
    fleet.market.deposits.append((fleet.fleet.time.now(), burn * 3 - fleet.market.credit_usd()))

    told: list[int] = []
    for _ in range(36):
        await fleet.looks(after=5 * MINUTE)
        told.append(fleet.kinds().count(Kind.RUNWAY_SHORT))
        fleet.sets("UPDATE inbox SET quarantined_at = received_at WHERE source = 'watch'")  # or they were one

    at = [5 * (number + 1) for number in range(1, 36) if told[number] > told[number - 1]]
    assert at == pytest.approx([60, 120, 150, 180], abs=5)
    assert sum("add credit" in notice for notice in fleet.notices()) == 4


async def test_work_that_comes_in_is_told_once_and_that_it_was_done_is_not(database_url: str) -> None:
    """Control: little work is no other band than none that the agent knows of."""
    async with rented(database_url) as fleet:
        await fleet.rents_and_runs(2)
        fleet.fleet.sim.queue.arrive(40)

        await fleet.keeps_looking(3 * MINUTE)
        told = fleet.events()
        await fleet.keeps_looking(4 * HOUR, every=10 * MINUTE)

        assert told == [("demand_band", "proofs that wait: 0 → 32–63")]
        assert fleet.rows("sample")[-1]["pending"] == 0
        assert len(fleet.events()) == 1


# --- draining ---------------------------------------------------------------------------------------------------------


async def test_a_box_that_drains_is_destroyed_when_it_has_no_proof_at_hand(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.sets("UPDATE box SET reported_at = :at, tasks = 1 WHERE vast_id = :id", at=fleet.fleet.time.now(), id=box.id)
    await fleet.gives_up(DrainBox(id=box.id, reason="no work"))
    await fleet.looks()
    busy = fleet.lives(box)
    fleet.sets("UPDATE box SET reported_at = :at, tasks = 0 WHERE vast_id = :id", at=fleet.fleet.time.now(), id=box.id)
    await fleet.looks()

    assert (busy, fleet.lives(box)) == (True, False)
    assert fleet.events() == []


async def test_a_box_that_never_gets_idle_is_destroyed_when_its_time_to_drain_is_over(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    await fleet.gives_up(DrainBox(id=box.id, reason="no work"))

    for _ in range(30):
        now = fleet.fleet.time.now()
        fleet.sets("UPDATE box SET reported_at = :at, tasks = 1 WHERE vast_id = :id", at=now, id=box.id)
        await fleet.looks()
        if not fleet.lives(box):
            break

    assert fleet.fleet.time.now() >= fleet.box(box)["drain_by"]
    assert not fleet.lives(box)


async def test_boxes_that_were_drained_one_after_the_other_go_together_when_they_are_idle(fleet: Rented) -> None:
    """They were given up when they were told to drain. Control: as many that are given up now go two at a time."""
    drained = await fleet.rents_and_runs(4)
    busy = await fleet.rents_and_runs(4)
    for pair in (drained[:2], drained[2:]):
        for box in pair:
            fleet.sets("UPDATE box SET reported_at = :at, tasks = 1", at=fleet.fleet.time.now())
            await fleet.gives_up(DrainBox(id=box.id, reason="no work"))
        fleet.passes(11 * MINUTE)
    fleet.sets("UPDATE box SET reported_at = :at, tasks = 0", at=fleet.fleet.time.now())
    await fleet.looks()
    together = [fleet.lives(box) for box in drained]
    fleet.faults.arm("container_exits", times=4)
    await fleet.keeps_looking(8 * MINUTE)

    assert together == [False] * 4
    assert sum(fleet.lives(box) for box in busy) == 2


# --- what holds the watch back ----------------------------------------------------------------------------------------


async def test_a_protected_box_in_trouble_is_left_to_a_person_who_is_told_once(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.sets("UPDATE box SET protected = true WHERE vast_id = :id", id=box.id)
    fleet.faults.arm("container_exits", times=1, machine_id=box.machine.machine_id)

    await fleet.keeps_looking(HOUR, every=6 * MINUTE)

    assert fleet.lives(box)
    assert fleet.removals() == [("destroy_box", box.id, "refused")]  # one row, and not one for each look
    assert sum("is held back" in notice for notice in fleet.notices()) == 1


async def test_what_is_wrong_with_every_box_at_once_costs_two_of_them_in_ten_minutes(fleet: Rented) -> None:
    boxes = await fleet.rents_and_runs(6)
    fleet.faults.arm("container_exits", times=6)

    await fleet.keeps_looking(10 * MINUTE)

    assert sum(fleet.lives(box) for box in boxes) == 4
    assert sum("is held back" in notice for notice in fleet.notices()) == 1


async def test_a_dry_run_says_what_it_would_do_once_and_does_nothing(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.sets("UPDATE session_state SET mode = 'dry_run'")
    fleet.faults.arm("container_exits", times=1, machine_id=box.machine.machine_id)

    await fleet.keeps_looking(HOUR, every=6 * MINUTE)

    assert fleet.lives(box)
    assert fleet.removals() == [("destroy_box", box.id, "dry")]


# --- whatever fails ---------------------------------------------------------------------------------------------------


async def test_a_dead_model_and_a_dead_demand_keep_no_box_from_being_given_up(fleet: Rented) -> None:
    """No run has ever been asked for, and the proving stack does not answer."""
    fleet.watch.demand = Silent()
    fleet.faults.arm("dud_host", times=1)
    (dud,) = await fleet.rents(1)

    await fleet.keeps_looking(3 * MINUTE)

    assert not fleet.lives(dud)
    assert fleet.rows("sample")[-1]["pending"] is None


async def test_an_hour_without_demand_is_one_notice_scales_nothing_and_lets_safety_go_on(fleet: Rented) -> None:
    """Control: what is refused meanwhile is allowed before and after."""
    idle, dud = await fleet.rents_and_runs(2)
    offers = await fleet.offers()
    scaling = [RentBox(offer_id=offers[0].id, reason="work waits"), DrainBox(id=idle.id, reason="no work")]
    source, fleet.fleet.ports = fleet.watch.demand, replace(fleet.fleet.ports, demand=Silent())
    fleet.watch.demand = Silent()

    await fleet.keeps_looking(30 * MINUTE)
    refused = [ruled.ruling.code for ruled in await fleet.asks(scaling, offers)]
    fleet.faults.arm("container_exits", times=1, machine_id=dud.machine.machine_id)
    await fleet.keeps_looking(30 * MINUTE)

    assert refused == ["demand_unknown", "demand_unknown"]
    assert [notice.partition(":")[0] for notice in fleet.notices()] == [
        "the demand cannot be read (the proving stack does not answer)"
    ]
    assert (fleet.lives(idle), fleet.lives(dud)) == (True, False)

    assert source is not None
    fleet.watch.demand, fleet.fleet.ports = source, replace(fleet.fleet.ports, demand=source)
    await fleet.keeps_looking(10 * MINUTE)
    assert [notice.partition(":")[0] for notice in fleet.notices()][1:] == ["the demand can be read again"]
    assert [ruled.ruling.code for ruled in await fleet.asks(scaling[1:])] == ["allowed"]


async def test_figures_that_no_column_holds_end_no_look(fleet: Rented) -> None:
    """Control: kept as they are, the database refuses them, and so it would be at every look."""
    fleet.watch.demand = Overflowing()
    fleet.market.deposits.append((fleet.fleet.time.now(), Decimal(5_000_000)))
    fleet.faults.arm("dud_host", times=1)
    (dud,) = await fleet.rents(1)

    await fleet.keeps_looking(3 * MINUTE)

    assert not fleet.lives(dud)
    sample = fleet.rows("sample")[-1]
    assert (sample["pending"], sample["credit_usd"]) == (2**31 - 1, MOST_USD)
    with pytest.raises(DataError):
        fleet.sets("UPDATE sample SET pending = 3000000000")


async def test_a_fleet_whose_policy_cannot_be_read_is_seen_and_holds_up_no_other(fleet: Rented) -> None:
    (box,) = await fleet.rents(1)
    with fleet.fleet.database.exclusive("aaa") as tx:
        session.state(tx, "aaa").policy = {"limits": {"max_boxes": "many"}}
    fleet.faults.arm("container_exits", times=1)

    await fleet.keeps_looking(15 * MINUTE)

    assert not fleet.lives(box)
    assert sum("policy of fleet aaa cannot be read" in line for line in fleet.log) == 1


async def test_two_watches_beside_each_other_do_everything_once(fleet: Rented) -> None:
    """Of what one intends and the other expires, the next look is the end. Nobody is told twice."""
    fleet.faults.arm("dud_host", times=1)
    dud, well = await fleet.rents(2)
    other = fleet.another_watch()
    for _ in range(5):
        fleet.passes(MINUTE)
        await asyncio.gather(fleet.watch.look(), other.look())

    assert (fleet.lives(dud), fleet.lives(well)) == (False, True)
    assert [status for _, _, status in fleet.removals()].count("done") == 1
    assert {box for _, box, _ in fleet.removals()} == {dud.id}
    assert (fleet.kinds(), len(fleet.bans())) == (kinds(Kind.BOX_FAILED), 1)


async def test_a_watch_that_died_between_intent_and_call_leaves_nothing_that_is_sent_later(fleet: Rented) -> None:
    box, _ = await fleet.rents_and_runs(2)
    fleet.faults.arm("container_exits", times=1, machine_id=box.machine.machine_id)
    await fleet.keeps_looking(5 * MINUTE)
    watch, fleet.watch = fleet.watch, fleet.another_watch()

    watch.logbook = DiesAtSending(fleet.logbook)  # type: ignore[assignment]
    fleet.passes(MINUTE)
    with pytest.raises(Dies):
        await watch.look()
    left = fleet.removals()

    await fleet.looks()

    assert left == [("destroy_box", box.id, "intended")]
    assert fleet.removals() == [("destroy_box", box.id, "expired"), ("destroy_box", box.id, "done")]
    assert not fleet.lives(box)
