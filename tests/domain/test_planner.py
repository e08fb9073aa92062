"""What the planner wants, what it does about it, and what holds it back.

The properties below have their control beside them: a planner without the part that they are about fails the same test.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from fleet_agent.domain.actions import RentBox
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Offer, Stage
from fleet_agent.domain.observation import Known, Unknown
from fleet_agent.domain.plan import Need, Plan, Reading, plan_lines, within_latitude
from fleet_agent.domain.planner import Grounds, arrivals_per_hour, make_plan
from fleet_agent.domain.policy import Launch, Limits, Planning, Policy
from fleet_agent.domain.rules import FRESH, Mode
from fleet_agent.domain.worth import StartUp
from tests.domain.test_rules import HOUR, IMAGE, MINUTE, NOW, ban, benchmark, box, instance, listed, offer, situation

ROOMY = {"ram_mb": 256_000, "reliability": 1.0}


def demand(*, pending: int = 0, running: int = 0, done: float = 0, oldest: timedelta | None = None) -> Known[Demand]:
    seen = Demand(
        pending=pending, running=running, oldest_pending=oldest, done_per_hour=done, failed_per_hour=0, seen_at=NOW
    )
    return Known(value=seen, seen_at=NOW)


def policy(*, planning: dict[str, Any] | None = None, **limits: Any) -> Policy:
    """Wide caps, and every GPU a box of 60 proofs an hour, so that a case can be reckoned in the head."""
    wide = {"max_boxes": 20, "max_usd_per_hour": Decimal(100), "max_usd_per_day": Decimal(1000), "max_rents_per_run": 9}
    even = {"proofs_per_hour": {}, "proofs_per_hour_default": 60.0, "headroom": 0.0, "unmeasured_discount": 0.0}
    return Policy(
        launch=Launch(image=IMAGE), limits=Limits(**wide | limits), planning=Planning(**even | (planning or {}))
    )


def machine(number: int, **changes: Any) -> Offer:
    return offer(**{"id": number, "machine_id": 1000 + number, "host_id": 2000 + number, **ROOMY} | changes)


def rented(number: int, stage: Stage = Stage.PROVING, *, age: timedelta = 5 * HOUR, **changes: Any) -> Box:
    values: dict[str, Any] = {
        "key": f"r1-s1-c0-{number}", "label": f"fa/abc123/main/r1-s1-c0-{number}", "vast_id": number,
        "machine_id": 3000 + number, "stage": stage, "rented_at": NOW - age, "stage_since": NOW - age,
    }  # fmt: skip
    return box(**values | changes)


def as_listed(boxes: Sequence[Box], **changes: Any) -> Any:
    return listed(
        *(
            instance(**{"id": each.vast_id, "label": each.label, "machine_id": each.machine_id} | changes)
            for each in boxes
            if each.vast_id is not None
        )
    )


def read(need: float | Need, *minutes_ago: float, work: int = 0) -> tuple[Reading, ...]:
    wanted = need if isinstance(need, Need) else Need(least=need, most=need)
    return tuple(Reading(at=NOW - each * MINUTE, work=work, need=wanted) for each in minutes_ago)


QUIET = read(0, *range(5, 40, 5))
"""More than half an hour of readings that had no use for a box."""


def grounds(
    *,
    boxes: Sequence[Box] = (),
    history: Sequence[Reading] = (),
    slots: int | None = None,
    startups: Sequence[StartUp] = (),
    **changes: Any,
) -> Grounds:
    values: dict[str, Any] = {
        "boxes": tuple(boxes),
        "inventory": as_listed(boxes),
        "policy": policy(),
        "listing": tuple(machine(number) for number in range(1, 9)),
        "demand": demand(),
    }
    return Grounds(
        situation=situation(**values | changes), slots=slots, startups=tuple(startups), history=tuple(history)
    )


def plan(**changes: Any) -> Plan:
    return make_plan(grounds(**changes))


def rents(plan: Plan) -> list[int]:
    return [move.offer_id for move in plan.actions if isinstance(move, RentBox)]


def removed(plan: Plan) -> list[tuple[str, int]]:
    return [(move.name, move.id) for move in plan.actions if not isinstance(move, RentBox)]


# --- how many ---------------------------------------------------------------------------------------------------------


def test_no_work_and_no_box_is_nothing_to_do() -> None:
    assert plan() == plan(listing=())
    assert plan().asks_for_nothing()
    assert plan().held_because is None


def test_what_waits_is_to_be_done_within_the_drain_window() -> None:
    """45 proofs in half an hour are 90 an hour: two boxes of 60."""
    made = plan(demand=demand(pending=45))
    assert made.wanted_proofs_per_hour == 90
    assert made.wanted_boxes == len(rents(made)) == 2


def test_what_arrives_is_to_be_proved_as_it_arrives() -> None:
    """An empty queue is no reason to give up the boxes that keep it empty."""
    busy = (rented(1), rented(2))
    made = plan(boxes=busy, demand=demand(running=2, done=110), history=read(120, *range(5, 40, 5), work=2))
    assert made.asks_for_nothing()


def test_what_arrives_is_what_was_done_and_what_the_queue_grew_by() -> None:
    def arrive(pending: int, done: float, history: Sequence[Reading], *, present: float = 1000) -> float:
        return arrivals_per_hour(demand(pending=pending, done=done).value, history, NOW, present=present)

    hour_ago, of_late = read(0, 60, work=10), read(0, 20, work=10)
    assert arrive(30, 40, hour_ago) == 40 + 20
    assert arrive(0, 4, hour_ago) == 0
    assert arrive(30, 40, ()) == 40
    assert arrive(30, 40, [*hour_ago, *of_late], present=60) == 40 + 20 * 3
    assert arrive(30, 40, [*hour_ago, *of_late], present=1000) == 40 + 20  # half a minute of work is no long queue


def test_a_queue_that_is_worked_off_before_help_could_come_gets_no_help() -> None:
    """50 proofs wait an hour for a new box, and the one that is there does 60."""
    assert plan(boxes=[rented(1)], demand=demand(pending=50), history=read(100, 5, 20, work=50)).asks_for_nothing()
    assert rents(plan(boxes=[rented(1)], demand=demand(pending=150), history=read(100, 5, 20, work=150)))


def test_a_machine_that_was_measured_counts_for_what_it_has_shown() -> None:
    slow = benchmark(10).model_copy(update={"machine_id": 3001})
    made = plan(boxes=[rented(1)], benchmarks=(slow,), demand=demand(pending=50), history=read(100, 5))
    assert made.present_proofs_per_hour == 10
    assert rents(made)


@pytest.mark.parametrize(
    "stage", [Stage.RENTED, Stage.LOADING, Stage.REGISTERED, Stage.PARAMS_READY, Stage.BENCHMARKED]
)
def test_a_box_on_its_way_is_not_asked_for_again(stage: Stage) -> None:
    made = plan(boxes=[rented(1, stage, age=10 * MINUTE)], demand=demand(pending=20), history=read(40, 5))
    assert made.asks_for_nothing()
    assert (made.present_proofs_per_hour, made.coming_proofs_per_hour) == (0, 60)


def test_a_rent_in_flight_is_not_asked_for_again() -> None:
    made = plan(in_flight_count=1, in_flight_usd_per_hour=Decimal("0.4"), demand=demand(pending=20))
    assert made.asks_for_nothing()
    assert made.boxes == 1


def test_a_box_that_drains_is_no_box_any_more() -> None:
    assert rents(plan(boxes=[rented(1, Stage.DRAINING)], demand=demand(pending=20)))


def test_the_market_feeds_no_more_boxes_than_it_has_slots() -> None:
    work = {"demand": demand(pending=90)}
    assert len(rents(plan(**work))) == 3
    assert len(rents(plan(**work, slots=2))) == 2
    full = plan(**work, slots=2, boxes=[rented(1), rented(2)], history=read(200, 5))
    assert full.asks_for_nothing()
    assert "a market that gives 2 at once" in full.why


def test_boxes_beyond_the_slots_are_given_up() -> None:
    boxes = [rented(1), rented(2), rented(3, usd_per_hour=Decimal("0.9"))]
    used = read(120, *range(5, 40, 5), work=3)
    made = plan(boxes=boxes, slots=2, demand=demand(running=3, done=170), history=used)
    assert removed(made) == [("drain_box", 3)]


def test_there_are_never_more_boxes_than_proofs() -> None:
    """Two proofs, and boxes that need an hour for one: by the rate alone it would be four boxes."""
    slow = policy(planning={"proofs_per_hour_default": 1.0})
    assert len(rents(plan(policy=slow, demand=demand(pending=2)))) == 2


def test_the_fleet_may_be_scaled_to_zero_unless_the_policy_says_otherwise() -> None:
    idle = rented(1)
    assert removed(plan(boxes=[idle], history=QUIET)) == [("drain_box", 1)]
    assert plan(boxes=[idle], history=QUIET, policy=policy(planning={"min_boxes": 1})).asks_for_nothing()
    assert len(rents(plan(policy=policy(planning={"min_boxes": 2})))) == 2


# --- what holds renting back ------------------------------------------------------------------------------------------

ONE_BOX_SHORT: dict[str, Any] = {"boxes": [rented(1)], "demand": demand(running=1, pending=12, done=70)}


def test_boxes_are_rented_once_two_readings_in_a_row_ask_for_them() -> None:
    first = plan(**ONE_BOX_SHORT)
    assert first.asks_for_nothing()
    assert "2 readings in a row" in (first.held_because or "")
    assert first.wanted_boxes == 2

    assert first.reading is not None
    before = first.reading.model_copy(update={"at": NOW - 5 * MINUTE})
    assert len(rents(plan(**ONE_BOX_SHORT, history=[before]))) == 1


def test_it_is_only_as_much_as_both_readings_ask_for() -> None:
    made = plan(boxes=[rented(1)], demand=demand(running=1, pending=12, done=160), history=read(110, 5))
    assert len(rents(made)) == 1
    assert made.wanted_boxes == 7


@pytest.mark.parametrize("minutes_ago", [0.2, 40])
def test_a_reading_of_a_moment_or_of_long_ago_confirms_nothing(minutes_ago: float) -> None:
    assert plan(**ONE_BOX_SHORT, history=read(100, minutes_ago)).held_because


def test_work_that_nears_its_deadline_waits_for_no_confirmation() -> None:
    waits = demand(running=1, pending=12, done=70, oldest=31 * MINUTE)
    assert rents(plan(**ONE_BOX_SHORT | {"demand": waits}))


def test_work_that_will_wait_too_long_waits_for_no_confirmation() -> None:
    """A box does 30 in the two thirds of the deadline that are the patience of a proof."""
    assert rents(plan(boxes=[rented(1)], demand=demand(running=1, pending=31, done=100)))


def test_nothing_more_is_rented_while_what_was_rented_does_not_come_up() -> None:
    late = [rented(1, Stage.LOADING, age=70 * MINUTE), rented(2, Stage.LOADING, age=61 * MINUTE)]
    made = plan(boxes=late, demand=demand(pending=200), history=read(400, 5))
    assert made.asks_for_nothing()
    assert "2 of 2 boxes" in (made.held_because or "")
    assert made.alarm == made.held_because

    in_time = [each.model_copy(update={"rented_at": NOW - 50 * MINUTE}) for each in late]
    assert rents(plan(boxes=in_time, demand=demand(pending=200), history=read(400, 5)))


def test_how_long_is_late_is_learned() -> None:
    """Five boxes have shown that an hour and a half is usual here."""
    shown = [StartUp(machine_id=9, num_gpus=1, took=(80 + n) * MINUTE) for n in range(5)]
    late = [rented(1, Stage.LOADING, age=70 * MINUTE)]
    work: dict[str, Any] = {"boxes": late, "demand": demand(pending=200), "history": read(400, 5)}
    assert plan(**work).held_because
    assert rents(plan(**work, startups=shown))


def test_one_late_box_of_a_fleet_that_proves_holds_nobody() -> None:
    boxes = [rented(1, Stage.LOADING, age=70 * MINUTE), rented(2)]
    assert rents(plan(boxes=boxes, demand=demand(pending=200), history=read(400, 5)))


@pytest.mark.parametrize(
    "work", [{"demand": demand(pending=600), "history": read(800, 5)}, {"history": QUIET}], ids=["too few", "too many"]
)
def test_when_many_boxes_are_sick_at_once_nothing_is_scaled(work: dict[str, Any]) -> None:
    """The control is a single sick box: it is the watch's to give up, and holds nobody."""
    boxes = [rented(n) for n in range(1, 6)]
    sound = as_listed(boxes).value.instances
    sick = [each.model_copy(update={"actual_status": "offline"}) for each in sound]

    many = plan(boxes=boxes, inventory=listed(*sick[:2], *sound[2:]), **work)
    one = plan(boxes=boxes, inventory=listed(*sick[:1], *sound[1:]), **work)

    assert many.asks_for_nothing()
    assert "2 of 5 boxes are in trouble" in (many.held_because or "")
    assert many.alarm == many.held_because
    assert one.actions
    assert one.alarm is None


def test_only_so_many_boxes_change_within_an_hour() -> None:
    made = plan(demand=demand(pending=300), policy=policy(max_rents_per_hour=100), rents_of_hour=8, destroys_of_hour=2)
    assert len(rents(made)) == 2
    assert "12 boxes" in (made.held_because or "")
    assert plan(boxes=[rented(1)], history=QUIET, destroys_of_hour=12).asks_for_nothing()


# --- what is not known is not acted on --------------------------------------------------------------------------------

UNREAD: dict[str, dict[str, Any]] = {
    "inventory": {"inventory": Unknown(reason="page 2 failed")},
    "demand": {"demand": Unknown(reason="no answer")},
    "stale": {"now": NOW + FRESH + MINUTE},
    "doubted": {"frozen_because": "the list fell from 9 boxes to none"},
}


@pytest.mark.parametrize("changes", UNREAD.values(), ids=UNREAD.keys())
@pytest.mark.parametrize(
    "figures",
    [{"demand": demand(pending=200), "history": read(400, 5)}, {"boxes": [rented(1)], "history": QUIET}],
    ids=["work", "idle"],
)
def test_unknown_never_acts(changes: dict[str, Any], figures: dict[str, Any]) -> None:
    """The control is the same with everything known, which acts."""
    blind = plan(**figures | changes)
    assert blind.asks_for_nothing()
    assert blind.held_because
    assert blind.wanted_boxes is blind.wanted_proofs_per_hour is blind.reading is None
    assert plan(**figures).actions


# --- which machines ---------------------------------------------------------------------------------------------------

ONE_BOX = demand(pending=30)
"""For 60 proofs an hour, which every machine below does."""


def chosen(*offers: Offer, pending: int = 30, **changes: Any) -> list[int]:
    return rents(plan(demand=demand(pending=pending), listing=offers, **changes))


def test_machines_are_compared_by_the_proof_and_not_by_the_hour() -> None:
    fast = benchmark(240).model_copy(update={"machine_id": 1002})
    cheap = machine(1, usd_per_hour=Decimal("0.30"))
    good = machine(2, usd_per_hour=Decimal("0.60"), gpu_name="RTX 5090")
    assert chosen(cheap, good, pending=300, benchmarks=(fast,))[0] == 2
    assert chosen(cheap, good, pending=300)[0] == 1


def test_the_rest_is_left_to_the_cheapest_machine_that_does_it() -> None:
    """By the proof the large machine is better, but a tenth of it is all that would be used."""
    shown = (benchmark(600).model_copy(update={"machine_id": 1001}),)
    large = machine(1, usd_per_hour=Decimal("1.00"), gpu_name="RTX 5090")
    assert chosen(large, machine(2), pending=30, benchmarks=shown) == [2]
    assert chosen(large, machine(2), pending=300, benchmarks=shown) == [1]
    assert chosen(large, machine(2), pending=310, benchmarks=shown) == [1, 2]


def test_who_has_been_measured_is_preferred_to_a_stranger_that_promises_as_much() -> None:
    uncertain = policy(planning={"unmeasured_discount": 0.2})
    shown = benchmark(55).model_copy(update={"machine_id": 1002})
    assert chosen(machine(1), machine(2), pending=200, benchmarks=(shown,), policy=uncertain)[0] == 2


def test_a_class_is_known_by_those_of_it_that_were_measured() -> None:
    """Three RTX 4090 that we have boxes on did half of what was guessed; a fourth is not believed to do better."""
    boxes = [rented(n) for n in range(1, 4)]
    shown = tuple(benchmark(20).model_copy(update={"machine_id": 3000 + n}) for n in range(1, 4))
    offers = machine(1), machine(2, gpu_name="RTX A6000", usd_per_hour=Decimal("0.50"))
    assert chosen(*offers, pending=300, boxes=boxes, benchmarks=shown, history=read(600, 5))[0] == 2
    assert chosen(*offers, pending=300)[0] == 1


def test_a_host_short_of_memory_or_with_a_slow_line_is_dear_for_its_proofs() -> None:
    plain = machine(3)
    assert chosen(machine(1, ram_mb=64_000, usd_per_hour=Decimal("0.39")), plain, pending=90)[0] == 3
    assert chosen(machine(2, inet_down_mbps=30, usd_per_hour=Decimal("0.39")), plain, pending=90)[0] == 3


def test_a_machine_gets_one_box() -> None:
    twice = machine(1), machine(2, machine_id=1001), machine(3)
    assert chosen(*twice, pending=90) == [1, 3]
    assert chosen(*twice, pending=90, boxes=[rented(7, Stage.DRAINING, machine_id=1001)]) == [3]


def test_hosts_are_not_all_one_host_unless_it_is_much_cheaper() -> None:
    one_host = machine(1, host_id=5), machine(2, host_id=5, usd_per_hour=Decimal("0.39")), machine(3)
    assert chosen(*one_host, pending=60) == [2, 3]


def test_a_banned_machine_is_never_chosen_and_one_below_a_floor_neither() -> None:
    bans = (ban(expires_at=NOW + HOUR).model_copy(update={"machine_id": 1001}),)
    offers = machine(1), machine(2, reliability=0.5), machine(3)
    assert chosen(*offers, pending=90, bans=bans) == [3]


def test_what_would_wait_for_a_persons_word_is_left_to_whoever_can_ask() -> None:
    made = plan(demand=ONE_BOX, listing=(machine(1, usd_per_hour=Decimal("1.20")),))
    assert made.asks_for_nothing()
    assert "waits for a person's word" in (made.held_because or "")


def test_without_a_listing_the_plan_says_what_to_look_for() -> None:
    made = plan(demand=demand(pending=45), listing=())
    assert made.actions == ()
    assert made.search is not None
    assert (made.search.boxes, made.search.proofs_per_hour) == (2, 90)
    assert any("search_offers" in line and "2 boxes" in line for line in plan_lines(made))


def test_without_a_listing_brakes_and_caps_hold_as_well() -> None:
    bare = {"demand": demand(pending=300), "listing": ()}
    assert plan(**bare, scale_out_paused=True).held_because == "Renting is paused until a person resumes it."
    capped = plan(**bare, policy=policy(max_boxes=2))
    assert capped.search is not None
    assert capped.search.boxes == capped.wanted_boxes == 2


@pytest.mark.parametrize(
    "held_back",
    [{"mode": Mode.PAUSED}, {"scale_out_paused": True}, {"rent_breaker": "5 rents in a row"}, {"rents_of_hour": 10}],
)
def test_what_holds_renting_back_for_a_while_changes_nothing_about_what_is_wanted(held_back: dict[str, Any]) -> None:
    held, free = plan(demand=demand(pending=90), **held_back), plan(demand=demand(pending=90))
    assert held.asks_for_nothing()
    assert held.held_because
    assert held.wanted_boxes == free.wanted_boxes == 3


# --- which box goes ---------------------------------------------------------------------------------------------------


def test_a_box_is_given_up_after_half_an_hour_in_which_no_reading_had_a_use_for_it() -> None:
    boxes = [rented(1), rented(2)]
    used = read(100, 20, work=40)
    assert removed(plan(boxes=boxes, history=QUIET))
    assert plan(boxes=boxes, history=[*QUIET[:3], *used, *QUIET[4:]]).asks_for_nothing()


def test_too_few_readings_say_nothing_of_half_an_hour() -> None:
    """None from before it began, and a gap in which nobody looked."""
    for history in (QUIET[:5], [*QUIET[:1], *QUIET[5:]]):
        made = plan(boxes=[rented(1)], history=history)
        assert made.asks_for_nothing()
        assert "30 minutes" in (made.held_because or "")


def test_boxes_are_given_up_one_at_a_time() -> None:
    idle = [rented(n) for n in range(1, 5)]
    assert len(removed(plan(boxes=idle, history=QUIET))) == 1
    assert plan(boxes=idle, history=QUIET).wanted_boxes == 0
    draining = [*idle[1:], rented(1, Stage.DRAINING)]
    assert "at a time" in (plan(boxes=draining, history=QUIET).held_because or "")


def test_the_dearest_by_the_proof_goes_first() -> None:
    boxes = [rented(1, usd_per_hour=Decimal("0.50")), rented(2, usd_per_hour=Decimal("0.60"))]
    assert removed(plan(boxes=boxes, history=QUIET)) == [("drain_box", 2)]
    fast = benchmark(100).model_copy(update={"machine_id": 3002})
    assert removed(plan(boxes=boxes, benchmarks=(fast,), history=QUIET)) == [("drain_box", 1)]


def test_a_box_that_has_yet_to_start_is_worth_less_than_one_that_proves() -> None:
    boxes = [rented(1), rented(2, Stage.LOADING, age=20 * MINUTE)]
    assert removed(plan(boxes=boxes, history=QUIET)) == [("destroy_box", 2)]


def test_it_is_no_box_whose_loss_would_leave_too_little() -> None:
    """40 an hour are of use, so the small dear box goes and not the large one that is dearer yet."""
    boxes = [rented(1, usd_per_hour=Decimal("0.10")), rented(2, usd_per_hour=Decimal("9"))]
    rates = (
        benchmark(30).model_copy(update={"machine_id": 3001}),
        benchmark(60).model_copy(update={"machine_id": 3002}),
    )
    history = read(40, *range(5, 40, 5))
    made = plan(boxes=boxes, benchmarks=rates, demand=demand(done=40), history=history)
    assert removed(made) == [("drain_box", 1)]


SPARED: dict[str, dict[str, Any]] = {
    "protected": {"protected": True},
    "busy": {"busy": True},
    "too young": {"rented_at": NOW - 4 * MINUTE},
}


@pytest.mark.parametrize("changes", SPARED.values(), ids=SPARED.keys())
def test_some_boxes_are_never_given_up(changes: dict[str, Any]) -> None:
    spared, other = rented(1, usd_per_hour=Decimal("0.90")).model_copy(update=changes), rented(2)
    assert removed(plan(boxes=[spared, other], history=QUIET)) == [("drain_box", 2)]
    assert plan(boxes=[spared], history=QUIET).asks_for_nothing()


@pytest.mark.parametrize(
    ("stage", "reported_at", "tool"),
    [
        (Stage.RENTED, None, "destroy_box"),
        (Stage.LOADING, None, "destroy_box"),
        (Stage.REGISTERED, NOW, "destroy_box"),
        (Stage.REGISTERED, NOW - HOUR, "drain_box"),  # it may have gone on without a word
        (Stage.PARAMS_READY, NOW, "drain_box"),
        (Stage.BENCHMARKED, NOW, "drain_box"),
        (Stage.PROVING, NOW, "drain_box"),
        (Stage.PROVING, None, "drain_box"),
    ],
)
def test_a_box_that_may_be_proving_is_drained_and_never_destroyed(
    stage: Stage, reported_at: datetime | None, tool: str
) -> None:
    given_up = rented(1, stage, age=20 * MINUTE, reported_at=reported_at, tasks=0 if reported_at else None)
    assert removed(plan(boxes=[given_up], history=QUIET)) == [(tool, 1)]


# --- the latitude -----------------------------------------------------------------------------------------------------


def wanting(boxes: int, there: int | None = None) -> Plan:
    return Plan(
        made_at=NOW, wanted_proofs_per_hour=60.0 * boxes, wanted_boxes=boxes, present_proofs_per_hour=0,
        coming_proofs_per_hour=0, boxes=boxes if there is None else there, why="So the figures say.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "after", "beyond"),
    [(0, 2, False), (0, 3, True), (4, 2, False), (4, 1, True), (20, 25, False), (20, 26, True), (20, 14, True)],
)
def test_the_agent_stays_within_two_boxes_or_a_quarter_of_the_plan(wanted: int, after: int, beyond: bool) -> None:
    said = within_latitude(wanting(wanted), after)
    assert (said is not None) == beyond
    assert said is None or "So the figures say." in said


def test_what_brings_the_fleet_nearer_to_the_plan_is_never_too_far_from_it() -> None:
    assert within_latitude(wanting(0, there=10), 9) is None
    assert within_latitude(wanting(0, there=10), 10) is not None
    assert within_latitude(wanting(10, there=2), 3) is None


def test_nobody_is_held_to_a_plan_that_does_not_know() -> None:
    assert within_latitude(plan(demand=Unknown(reason="no answer")), 7) is None


# --- in words ---------------------------------------------------------------------------------------------------------


def test_a_person_reads_why() -> None:
    assert plan_lines(plan(demand=ONE_BOX, listing=(machine(7),))) == [
        "plan: wanted_proofs_per_hour=60 present=0 coming=0 wanted_boxes=1 boxes=0",
        "- 30 proofs wait or are under way and 0 arrive an hour, so 60 an hour are wanted; 0 boxes there or coming can "
        "prove 0, which is too little.",
        "- rent_box 7: 1x RTX 4090 at $0.400/h should prove 60/h: $0.0078 a proof with its start-up. 30 proofs wait or "
        "are under way and 0 arrive an hour, so 60 an hour are wanted; 0 boxes there or coming can prove 0, which is "
        "too little.",
    ]
    assert plan_lines(plan())[-1] == "- nothing to do"
    assert plan_lines(plan(demand=Unknown(reason="no answer")))[-1].startswith("- held: The demand is unknown")
