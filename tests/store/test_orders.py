"""What a person orders and answers: rows that others carry out, each once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text

from fleet_agent import controls
from fleet_agent.controls import Desk
from fleet_agent.domain.actions import DestroyBox, RentBox
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled
from fleet_agent.domain.rules import Decision, Ruling
from fleet_agent.domain.run import Run
from fleet_agent.errors import FixSetup, RunSuperseded
from fleet_agent.store import actions, ledger
from fleet_agent.store.database import Database
from tests.store.rig import SEND_BY, Fleet, offer

Order = Callable[[Desk, int], None]


def desk_of(fleet: Fleet) -> Desk:
    return Desk(fleet.database, fleet.clock, fleet.name, who="ana", place="here")


@pytest.fixture
async def rented(ready: Fleet) -> Fleet:
    """A fleet with box 101, and no run."""
    run = await ready.open()
    await ready.rented(run)
    await ready.close(run)
    return ready


def orders(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [(row["tool"], row["status"], row["sentence"]) for row in fleet.rows("action") if row["actor"] == "operator"]


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "tool"), [(controls.drain_box, "drain_box"), (controls.destroy_box, "destroy_box")])
def test_an_order_is_an_intent_of_the_operator(rented: Fleet, order: Order, tool: str) -> None:
    order(desk_of(rented), 101)

    assert orders(rented) == [(tool, "intended", "Ordered by ana.")]
    (row,) = [row for row in rented.rows("action") if row["actor"] == "operator"]
    assert (row["code"], row["ruling"], row["policy_version"], row["sent_at"]) == ("operator", "allow", None, None)
    assert row["box_key"] == rented.rows("box")[0]["key"]


async def test_an_order_is_heard_when_it_is_committed(rented: Fleet, database: Database) -> None:
    listener = await database.listener()
    try:
        controls.drain_box(desk_of(rented), 101)
        heard = [notice.payload async for notice in listener.notifies(timeout=5, stop_after=1)]
    finally:
        await listener.close()

    assert heard == [rented.name]


@pytest.mark.parametrize("order", [controls.drain_box, controls.destroy_box])
def test_the_same_order_is_given_once(rented: Fleet, order: Order) -> None:
    order(desk_of(rented), 101)
    with pytest.raises(FixSetup, match="is ordered already"):
        order(desk_of(rented), 101)

    assert len(orders(rented)) == 1


def test_a_box_that_is_ordered_to_drain_may_be_ordered_away(rented: Fleet) -> None:
    controls.drain_box(desk_of(rented), 101)
    controls.destroy_box(desk_of(rented), 101)

    assert [tool for tool, _, _ in orders(rented)] == ["drain_box", "destroy_box"]


async def test_an_order_that_came_to_nothing_can_be_given_again(rented: Fleet) -> None:
    controls.destroy_box(desk_of(rented), 101)
    (row,) = [row for row in rented.rows("action") if row["actor"] == "operator"]
    await rented.journal.record_outcome(row["key"], ActionStatus.FAILED, "no turn")
    controls.destroy_box(desk_of(rented), 101)

    assert [status for _, status, _ in orders(rented)] == ["failed", "intended"]


@pytest.mark.parametrize("vast_id", [102, 0, -1])
def test_a_box_that_this_fleet_does_not_have_cannot_be_ordered_about(rented: Fleet, vast_id: int) -> None:
    east = Fleet(rented.database, name="east", clock=rented.clock)
    for fleet, number in ((rented, vast_id), (east, 101)):
        with pytest.raises(FixSetup, match="no live box"):
            controls.destroy_box(desk_of(fleet), number)

    assert orders(rented) == orders(east) == []


def test_a_box_that_is_gone_or_going_cannot_be_ordered_about(rented: Fleet) -> None:
    with rented.database.exclusive(rented.name) as tx:
        actions.order_destroy(tx, rented.name, 101, now=rented.clock.now())
    with pytest.raises(FixSetup, match="box 101 is destroying already"):
        controls.drain_box(desk_of(rented), 101)
    with rented.database.exclusive(rented.name) as tx:
        ledger.unknown_to_provider(tx, rented.name, 101, now=rented.clock.now())
    with pytest.raises(FixSetup, match="no live box 101"):
        controls.drain_box(desk_of(rented), 101)


# --- protection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [controls.drain_box, controls.destroy_box])
def test_a_protected_box_is_ordered_about_only_when_it_is_protected_no_more(rented: Fleet, order: Order) -> None:
    controls.protect_box(desk_of(rented), 101, True)
    with pytest.raises(FixSetup, match="box 101 is protected → fleet-agent boxes protect 101 --off"):
        order(desk_of(rented), 101)
    controls.protect_box(desk_of(rented), 101, False)
    order(desk_of(rented), 101)

    assert [row["text"] for row in rented.rows("audit") if row["what"] == "box"] == [
        "box 101 is protected",
        "box 101 is protected no more",
    ]


async def test_protection_holds_back_what_was_allowed_before_it(rented: Fleet) -> None:
    run = await rented.open()
    (ruled,) = await rented.reply(
        run, DestroyBox(id=101, reason="no work"), inventory=rented.look(rented.instance_of(101))
    )
    controls.protect_box(desk_of(rented), 101, True)

    assert (await rented.journal.mark_sent(run, ruled.key, send_by=timedelta(seconds=20))).code == "protected"


async def test_to_protect_a_box_takes_back_the_order_that_came_before(rented: Fleet) -> None:
    """Of two words of a person the later one holds, also where the first is about to be carried out."""
    controls.destroy_box(desk_of(rented), 101)
    (ordered,) = [row for row in rented.rows("action") if row["actor"] == "operator"]
    controls.protect_box(desk_of(rented), 101, True)

    ruling = sends(rented, ordered["key"])

    assert (ruling.code, rented.action(ordered["key"])["status"]) == ("protected", "refused")


async def test_an_order_waits_for_the_call_about_its_box_that_is_on_its_way(rented: Fleet) -> None:
    """Control: what nobody ordered is refused, and whoever wanted it asks again."""
    run = await rented.open()
    (ruled,) = await rented.reply(
        run, DestroyBox(id=101, reason="no work"), inventory=rented.look(rented.instance_of(101))
    )
    controls.destroy_box(desk_of(rented), 101)
    (ordered,) = [row for row in rented.rows("action") if row["actor"] == "operator"]
    with rented.database.transaction() as tx:
        tx.execute(text("UPDATE box SET busy_action = 'drain_box', busy_until = clock_timestamp() + interval '80 s'"))

    assert (await rented.journal.mark_sent(run, ruled.key, send_by=SEND_BY)).code == "busy"
    assert sends(rented, ordered["key"]).code == "busy"
    waiting = rented.action(ordered["key"])["status"]
    rented.let_real_time_pass(timedelta(seconds=81))
    assert sends(rented, ordered["key"]).code == "operator"

    assert rented.action(ruled.key)["status"] == "refused"
    assert (waiting, rented.action(ordered["key"])["status"]) == ("intended", "sent")


def sends(fleet: Fleet, key: str) -> Ruling:
    """The watch is about to make the call."""
    with fleet.database.exclusive(fleet.name) as tx:
        return actions.mark_sent(tx, fleet.name, key, send_by=SEND_BY, now=fleet.clock.now())


def test_only_a_box_that_is_there_can_be_protected(rented: Fleet) -> None:
    with pytest.raises(FixSetup, match="no live box 102"):
        controls.protect_box(desk_of(rented), 102, True)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def asked(ready: Fleet) -> tuple[Fleet, str]:
    """A fleet whose policy has the agent ask before it rents, and the key of what waits."""
    ready.set_policy(approvals__always='["rent_box"]')
    run = await ready.open()
    (ruled,) = await ready.reply(run, RentBox(offer_id=1, reason="work waits"), offers=[offer()])
    await ready.close(run)
    await ready.run_through()
    return ready, ruled.key


def waiting(fleet: Fleet) -> list[tuple[str, int, str]]:
    return [(row["kind"], row["priority"], row["text"]) for row in fleet.rows("inbox") if not row["claimed_by_run"]]


def test_to_approve_grants_the_bound_is_audited_and_wakes_the_agent(asked: tuple[Fleet, str]) -> None:
    fleet, key = asked
    granted = controls.approve(desk_of(fleet), key)

    said = f"{key} was approved: rent one 1x RTX 4090 for at most $0.400/h, until 2026-03-17 16:00 UTC"
    assert (granted.gpu_name, granted.tool) == ("RTX 4090", "rent_box")
    assert waiting(fleet) == [("approval", 0, said)]
    assert [(row["who"], row["text"]) for row in fleet.rows("audit") if row["what"] == "approval"] == [("ana", said)]
    assert controls.approvals(desk_of(fleet)) == ()


def test_to_reject_refuses_it_and_wakes_the_agent(asked: tuple[Fleet, str]) -> None:
    fleet, key = asked
    controls.reject(desk_of(fleet), key)

    row = fleet.action(key)
    assert (row["status"], row["code"], row["sentence"]) == ("refused", "rejected", "ana rejected it.")
    ((kind, priority, text),) = waiting(fleet)
    assert (kind, priority) == ("approval", 0)
    assert text.startswith(f"{key} was rejected: rent one 1x RTX 4090")


def test_what_was_answered_once_is_not_answered_again(asked: tuple[Fleet, str]) -> None:
    fleet, key = asked
    controls.approve(desk_of(fleet), key)
    for answer in (controls.approve, controls.reject):
        with pytest.raises(FixSetup, match="was approved by ana already"):
            answer(desk_of(fleet), key)

    assert len(waiting(fleet)) == 1


def test_what_expired_meanwhile_or_never_was_cannot_be_answered(asked: tuple[Fleet, str]) -> None:
    fleet, key = asked
    fleet.clock.advance(timedelta(hours=5))
    with pytest.raises(FixSetup, match="does not wait for approval: it is expired"):
        controls.approve(desk_of(fleet), key)
    with pytest.raises(FixSetup, match="has no action guess"):
        controls.reject(desk_of(fleet), "guess")

    assert waiting(fleet) == []
    assert fleet.action(key)["status"] == "expired"


async def carries_out(fleet: Fleet, run: Run, key: str) -> Ruled:
    return await fleet.journal.carry_out_approved(
        run,
        key,
        RentBox(offer_id=1, reason="work waits"),
        observation=fleet.observation(),
        listing=Listing(offers=(offer(),)),
    )


async def test_a_grant_ends_between_its_ruling_and_its_call_as_well(asked: tuple[Fleet, str]) -> None:
    """A process may stand still in between. Control: a moment before its end it is sent."""
    fleet, key = asked
    controls.approve(desk_of(fleet), key)
    run = await fleet.open()
    fleet.clock.advance(timedelta(hours=4, seconds=-2))
    await carries_out(fleet, run, key)
    fleet.clock.advance(timedelta(seconds=2))

    assert (await fleet.journal.mark_sent(run, key, send_by=SEND_BY)).decision is Decision.REFUSE
    assert (fleet.action(key)["status"], await fleet.journal.in_flight(run)) == ("expired", (0, Decimal(0)))


async def test_within_its_time_it_is_sent(asked: tuple[Fleet, str]) -> None:
    fleet, key = asked
    controls.approve(desk_of(fleet), key)
    run = await fleet.open()
    fleet.clock.advance(timedelta(hours=4, seconds=-2))
    await carries_out(fleet, run, key)

    assert (await fleet.journal.mark_sent(run, key, send_by=SEND_BY)).decision is Decision.ALLOW


async def test_what_was_approved_outlives_the_run_that_did_not_send_it(asked: tuple[Fleet, str]) -> None:
    """Behind it stands a person; it reserves nothing until another run takes it up."""
    fleet, key = asked
    controls.approve(desk_of(fleet), key)
    first = await fleet.open()
    await carries_out(fleet, first, key)
    reserved = await fleet.journal.in_flight(first)
    second = await fleet.open()

    assert reserved == (1, Decimal("0.40"))
    assert await fleet.journal.in_flight(second) == (0, Decimal(0))
    assert [each.key for each in await fleet.journal.approved(second)] == [key]
    with pytest.raises(RunSuperseded):
        await fleet.journal.mark_sent(first, key, send_by=SEND_BY)


# --- the orderly end --------------------------------------------------------------------------------------------------


class Watch:
    """What happens between two looks of who waits for the drains: one thing after the other, then nothing more."""

    def __init__(self, *happens: Callable[[], None]) -> None:
        self._happens = list(happens)
        self.slept = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        if self._happens:
            self._happens.pop(0)()
        assert self.slept < 1000, "nobody ends it"


def gone(fleet: Fleet, vast_id: int) -> Callable[[], None]:
    def happens() -> None:
        with fleet.database.exclusive(fleet.name) as tx:
            ledger.unknown_to_provider(tx, fleet.name, vast_id, now=fleet.clock.now())

    return happens


async def test_every_box_is_ordered_to_drain_and_the_end_waits_until_none_is_left(rented: Fleet) -> None:
    said: list[str] = []
    watch = Watch(lambda: None, gone(rented, 101))
    await controls.drain_all(desk_of(rented), sleep=watch.sleep, tell=said.append)

    assert orders(rented) == [("drain_box", "intended", "Ordered by ana.")]
    assert said == ["Still to go: 101 rented.", "No box of fleet main is left but protected ones."]


async def test_a_box_that_was_on_its_way_is_waited_for_and_drained_too(rented: Fleet) -> None:
    run = await rented.open()
    key = await rented.rent(run, offer_id=2)

    def appears() -> None:
        with rented.database.exclusive(rented.name) as tx:
            actions.record_outcome(tx, key, ActionStatus.DONE, "rented", vast_id=102, now=rented.clock.now())

    watch = Watch(gone(rented, 101), appears, *[lambda: None] * controls.ORDERED_AGAIN_AFTER, gone(rented, 102))
    await controls.drain_all(desk_of(rented), sleep=watch.sleep, tell=lambda _: None)

    assert [row["arguments"]["id"] for row in rented.rows("action") if row["actor"] == "operator"] == [101, 102]


async def test_a_protected_box_keeps_nobody_waiting(rented: Fleet) -> None:
    controls.protect_box(desk_of(rented), 101, True)
    await controls.drain_all(desk_of(rented), sleep=Watch().sleep, tell=lambda _: None)

    assert orders(rented) == []


async def test_an_order_of_which_nothing_came_is_given_again_and_not_in_every_look(rented: Fleet) -> None:
    def refused() -> None:
        with rented.database.transaction() as tx:
            tx.execute(text("UPDATE action SET status = 'refused' WHERE actor = 'operator'"))

    looks = 3 * controls.ORDERED_AGAIN_AFTER // controls.LOOK_AT_DRAINS
    watch = Watch(*[refused] * looks, gone(rented, 101))
    await controls.drain_all(desk_of(rented), sleep=watch.sleep, tell=lambda _: None)

    assert len(orders(rented)) == 4
