"""What holds for the planner whatever it is shown, each with a control: a planner without the part that sees to it.

The last few are about time: the planner decides every five minutes over a toy fleet that takes an hour to come up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.domain import choice, planner, rules
from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.choice import Choice, Wish
from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import LIVE_STAGES, Box, Offer, Stage
from fleet_agent.domain.hosts import Benchmark
from fleet_agent.domain.observation import Known, Unknown
from fleet_agent.domain.plan import Move, Need, Plan, Reading
from fleet_agent.domain.planner import Grounds, make_plan
from fleet_agent.domain.policy import Limits, Planning, Policy
from fleet_agent.domain.rules import FRESH, Situation
from fleet_agent.domain.worth import Experience, StartUp
from fleet_agent.sim.catalogue import seeded
from tests.domain.test_planner import as_listed, demand, grounds, machine, policy, read, rented
from tests.domain.test_rules import HOUR, MINUTE, NOW, ban, benchmark, credit
from tests.toy_fleet import Decider, ToyFleet, live, planner_alone
from tests.without import without

# --- whatever it is shown ---------------------------------------------------------------------------------------------


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """What would hold every plan back is rare, or nothing would ever be planned."""
    return st.sampled_from([usual] * (3 * len(rare)) + list(rare))


GPUS = st.sampled_from(["RTX 3090", "RTX 4090", "A100 SXM4", "| x\n" * 99])
DOLLARS = st.decimals(Decimal("0.05"), Decimal("1.40"), places=3)
MINUTES = st.integers(-5, 90).map(lambda minutes: minutes * MINUTE)
"""A clock may have been set back since."""

RATES = st.integers(0, 400).map(float)


@st.composite
def offers(draw: st.DrawFn) -> tuple[Offer, ...]:
    """Machines may be offered more than once, some are below a floor, and some say nothing of their memory."""
    return tuple(
        machine(
            number,
            machine_id=draw(st.integers(1, 20)),
            host_id=draw(st.integers(1, 4)),
            gpu_name=draw(GPUS),
            num_gpus=draw(st.integers(1, 4)),
            usd_per_hour=draw(DOLLARS),
            reliability=draw(mostly(0.999, 0.5, 0.96)),
            ram_mb=draw(st.sampled_from([0, 64_000, 256_000])),
            inet_down_mbps=draw(mostly(3000, 0, 250)),
        )
        for number in range(1, draw(st.integers(0, 8)) + 1)
    )


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, ...]:
    return tuple(
        rented(
            number,
            draw(mostly(Stage.PROVING, *Stage)),
            age=draw(mostly(HOUR, -MINUTE, MINUTE, 20 * MINUTE, 3 * HOUR)),
            machine_id=draw(st.integers(1, 40)),
            gpu_name=draw(GPUS),
            num_gpus=draw(st.integers(1, 4)),
            usd_per_hour=draw(DOLLARS),
            protected=draw(mostly(False, True)),
            busy=draw(mostly(False, True)),
            tasks=draw(st.sampled_from([None, 0, 1])),
            reported_at=draw(st.one_of(st.none(), MINUTES.map(lambda ago: NOW - ago))),
            vast_id=draw(mostly(number, None)),
        )
        for number in range(1, draw(st.integers(0, 6)) + 1)
    )


readings = st.builds(
    lambda ago, work, least, more: Reading(at=NOW - ago, work=work, need=Need(least=least, most=least + more)),
    MINUTES, st.integers(0, 300), RATES, RATES,
)  # fmt: skip
histories = st.one_of(
    st.lists(readings, max_size=12),
    st.sampled_from([0, 0, 100, 400]).map(lambda need: list(read(need, *range(5, 80, 5)))),
)

startups = st.builds(StartUp, machine_id=st.integers(1, 20), num_gpus=st.just(1), took=MINUTES.map(abs))

policies = st.builds(
    lambda limits, planning: Policy(launch=policy().launch, limits=limits, planning=planning),
    st.builds(
        Limits,
        max_boxes=mostly(12, 0, 1, 3, 5),
        max_usd_per_hour=mostly(Decimal(9), Decimal(1), Decimal(3)),
        max_usd_per_day=mostly(Decimal(90), Decimal(2)),
        max_rents_per_run=mostly(9, 0, 1, 2),
        max_rents_per_hour=mostly(9, 0, 2),
        max_destroys_per_run=mostly(9, 0, 1),
        max_usd_per_proof=mostly(None, Decimal("0.01")),
    ),
    st.builds(
        Planning,
        min_boxes=st.integers(0, 3),
        confirmations=st.integers(1, 3),
        headroom=st.sampled_from([0.0, 0.1]),
        given_up_share=st.sampled_from([0.1, 0.7]),
        max_changes_per_hour=mostly(12, 0, 5),
        quiet_window=st.sampled_from([timedelta(0), 30 * MINUTE]),
        proofs_per_hour_default=st.sampled_from([1.0, 40.0]),
    ),
)


@st.composite
def any_grounds(draw: st.DrawFn) -> Grounds:
    held = draw(boxes())
    measured = draw(st.dictionaries(st.tuples(st.integers(1, 12), st.integers(1, 4)), RATES, max_size=6))
    return grounds(
        boxes=held,
        inventory=as_listed(held, actual_status=draw(mostly("running", "offline"))),
        listing=draw(offers()),
        policy=draw(policies),
        demand=demand(
            pending=draw(mostly(0, 5, 50, 300)),
            running=draw(st.integers(0, 20)),
            done=draw(st.sampled_from([0, 0, 60, 400])),
            oldest=draw(st.one_of(st.none(), MINUTES)),
        ),
        account=credit(draw(mostly("1000", "1"))),
        history=draw(histories),
        slots=draw(mostly(None, 0, 1, 3, 8)),
        startups=draw(st.lists(startups, max_size=7)),
        benchmarks=tuple(
            Benchmark(machine_id=number, num_gpus=gpus, proofs_per_hour=rate, measured_at=NOW)
            for (number, gpus), rate in measured.items()
        ),
        bans=(ban(expires_at=NOW + HOUR).model_copy(update={"machine_id": draw(st.integers(1, 12))}),),
        in_flight_count=draw(mostly(0, 1, 2)),
        in_flight_usd_per_hour=draw(DOLLARS),
        rents_of_hour=draw(mostly(0, 1, 4)),
        destroys_of_hour=draw(mostly(0, 1, 4)),
        removed_lately=draw(mostly(0, 1, 2)),
        spent_of_day_usd=draw(DOLLARS),
    )  # fmt: skip


def seeing(grounds: Grounds, **changes: Any) -> Grounds:
    return grounds.model_copy(update={"situation": grounds.situation.model_copy(update=changes)})


def with_demand(grounds: Grounds, **changes: Any) -> Grounds:
    seen = grounds.situation.demand
    assert isinstance(seen, Known)
    return seeing(grounds, demand=seen.model_copy(update={"value": seen.value.model_copy(update=changes)}))


def demand_of(grounds: Grounds) -> Demand:
    assert isinstance(grounds.situation.demand, Known)
    return grounds.situation.demand.value


# --- the order of things ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(any_grounds(), st.randoms(use_true_random=False))
def test_the_order_of_offers_readings_and_bans_changes_nothing(given: Grounds, random: Any) -> None:
    def shuffled(rows: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(random.sample(rows, len(rows)))

    other = seeing(given, listing=shuffled(given.situation.listing), bans=shuffled(given.situation.bans))
    other = other.model_copy(update={"history": shuffled(given.history)})

    assert make_plan(other) == make_plan(given)


def test_who_takes_the_first_that_will_do_depends_on_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    given = grounds(demand=demand(pending=90), listing=(machine(1), machine(2), machine(3), machine(4)))
    other = seeing(given, listing=given.situation.listing[::-1])
    assert make_plan(other) == make_plan(given)

    monkeypatch.setattr(choice, "best_first", lambda situation, *_: list(situation.listing))
    assert make_plan(other) != make_plan(given)


# --- more demand ------------------------------------------------------------------------------------------------------


def boxes_after(plan: Plan) -> int:
    rented = sum(isinstance(move, RentBox) for move in plan.actions) + (plan.search.boxes if plan.search else 0)
    return plan.boxes + rented - sum(not isinstance(move, RentBox) for move in plan.actions)


@settings(deadline=None, max_examples=200)
@given(any_grounds(), st.sampled_from(["pending", "running", "done_per_hour"]), st.integers(1, 300))
def test_more_demand_never_yields_fewer_boxes(given: Grounds, figure: str, more: int) -> None:
    busier = with_demand(given, **{figure: getattr(demand_of(given), figure) + more})
    less, plan = make_plan(given), make_plan(busier)

    assert boxes_after(plan) >= boxes_after(less)
    assert plan.wanted_boxes is not None
    assert less.wanted_boxes is not None
    assert plan.wanted_boxes >= less.wanted_boxes


def test_who_looks_for_the_best_for_just_this_much_yields_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: for little work two small machines are better than a large one, and for more it is the other way."""
    rates = {1001: 100, 1002: 30, 1003: 30}
    given = grounds(
        listing=(
            machine(1, usd_per_hour=Decimal("0.40")),
            machine(2, usd_per_hour=Decimal("0.15")),
            machine(3, usd_per_hour=Decimal("0.15")),
        ),
        benchmarks=tuple(benchmark(rate).model_copy(update={"machine_id": number}) for number, rate in rates.items()),
        demand=demand(pending=30),
    )
    busier = with_demand(given, pending=50)
    assert boxes_after(make_plan(busier)) >= boxes_after(make_plan(given))

    def just_for_this(wish: Wish, situation: Situation, known: Experience) -> Choice:
        taken: list[Offer] = []
        missing = wish.proofs_per_hour
        while missing > 0:
            left = [each for each in situation.listing if each not in taken]
            useful = {each.id: min(known.rate_of_offer(each).proofs_per_hour, missing) for each in left}
            best = min(left, key=lambda each: each.usd_per_hour / Decimal(useful[each.id]))
            taken.append(best)
            missing -= useful[best.id]
        return Choice(offers=tuple(taken))

    monkeypatch.setattr(planner, "chosen", just_for_this)
    assert boxes_after(make_plan(busier)) < boxes_after(make_plan(given))


def test_who_gives_up_the_dearest_one_by_one_yields_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: for a little more work it keeps the large dear box, and lets three small ones go instead."""
    rates = {3001: 50, 3002: 20, 3003: 20, 3004: 20}
    given = grounds(
        boxes=[rented(1, usd_per_hour=Decimal("1.4")), rented(2), rented(3), rented(4)],
        benchmarks=tuple(benchmark(rate).model_copy(update={"machine_id": number}) for number, rate in rates.items()),
        policy=policy(planning={"given_up_share": 1.0, "quiet_window": timedelta(0)}, max_destroys_per_run=9),
        demand=demand(done=50),
        history=read(50, 5),
    )
    busier = with_demand(given, done_per_hour=61)
    assert boxes_after(make_plan(busier)) >= boxes_after(make_plan(given))

    def one_by_one(view: Any, boxes: Sequence[Box], *, needed: float, most: int) -> list[Box]:
        going: list[Box] = []
        left = view.capacity
        for box in boxes:
            rate = view.known.rate_of_box(box)
            if len(going) < most and left - rate >= needed:
                going.append(box)
                left -= rate
        return going

    monkeypatch.setattr(planner, "_expendable", one_by_one)
    assert boxes_after(make_plan(busier)) < boxes_after(make_plan(given))


# --- caps -------------------------------------------------------------------------------------------------------------


def broken_caps(given: Grounds, plan: Plan) -> set[str]:
    """Reckoned here anew, and by no rule of ours."""
    before, limits, planning = given.situation, given.situation.policy.limits, given.situation.policy.planning
    listing = {offer.id: offer for offer in before.listing}
    chosen = [listing[move.offer_id] for move in plan.actions if isinstance(move, RentBox)]
    parted = [move for move in plan.actions if not isinstance(move, RentBox)]
    live = [box for box in before.boxes if box.stage in LIVE_STAGES]
    staying = sum(box.stage not in (Stage.DRAINING, Stage.DESTROYING) for box in live)
    price = sum((offer.usd_per_hour for offer in chosen), Decimal(0))
    burn = sum((box.usd_per_hour for box in live), before.in_flight_usd_per_hour) + price
    credit = before.account.value.credit_usd if isinstance(before.account, Known) else Decimal(0)
    machines = [offer.machine_id for offer in chosen]
    broken = {
        "boxes": len(live) + before.in_flight_count + len(chosen) > limits.max_boxes,
        "burn": burn > limits.max_usd_per_hour,
        "day": before.spent_of_day_usd + burn > limits.max_usd_per_day,
        "runway": credit < burn * 2,
        "rents of the run": len(chosen) > limits.max_rents_per_run,
        "rents of the hour": before.rents_of_hour + len(chosen) > limits.max_rents_per_hour,
        "price": any(offer.usd_per_hour > limits.max_usd_per_hour_per_box for offer in chosen),
        "a word": any(offer.usd_per_hour > Decimal(1) for offer in chosen),
        "floors": any(before.policy.offers.unmet_by(offer) for offer in chosen),
        "bans": any(ban.machine_id in machines for ban in before.bans),
        "one machine": len(set(machines)) < len(machines) or any(box.machine_id in machines for box in live),
        "slots": given.slots is not None
        and staying + before.in_flight_count + len(chosen) > max(given.slots, planning.min_boxes),
    }
    always = {
        "changes": before.rents_of_hour + before.destroys_of_hour + len(plan.actions) > planning.max_changes_per_hour,
        "removals of the run": len(parted) > limits.max_destroys_per_run,
        "removals of late": before.removed_lately + len(parted)
        > max(2, int((len(live) + before.in_flight_count) * 0.2)),
        "least": bool(parted) and staying + before.in_flight_count - len(parted) < planning.min_boxes,
        "both ways": bool(parted) and bool(chosen),
    }
    return {name for name, is_broken in (broken if chosen else {}).items() if is_broken} | {
        name for name, is_broken in (always if plan.actions else {}).items() if is_broken
    }


@settings(deadline=None, max_examples=200)
@given(any_grounds())
def test_no_plan_exceeds_a_cap(given: Grounds) -> None:
    assert broken_caps(given, make_plan(given)) == set()


CAPPED: dict[str, tuple[rules.Rule[Any], dict[str, Any]]] = {
    "boxes": (rules.boxes_within_cap, {"policy": policy(max_boxes=2)}),
    "burn": (rules.burn_within_cap, {"policy": policy(max_usd_per_hour=Decimal(1))}),
    "day": (rules.day_within_cap, {"spent_of_day_usd": Decimal(999)}),
    "runway": (rules.credit_lasts, {"account": credit("2")}),
    "rents of the run": (rules.rents_of_run_within_cap, {"effects_of_run": {}, "policy": policy(max_rents_per_run=1)}),
    "rents of the hour": (rules.rents_of_hour_within_cap, {"rents_of_hour": 9}),
    "bans": (
        rules.host_is_not_banned,
        {"bans": (ban(expires_at=NOW + HOUR).model_copy(update={"machine_id": 1001}),)},
    ),
}


@pytest.mark.parametrize(("cap", "case"), CAPPED.items(), ids=CAPPED.keys())
def test_who_does_not_ask_the_rules_exceeds_it(
    cap: str, case: tuple[rules.Rule[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same planner, where one rule is not asked."""
    rule, changes = case
    given = grounds(demand=demand(pending=200), **changes)
    assert broken_caps(given, make_plan(given)) == set()

    monkeypatch.setattr(rules, "RULES", without(rule))
    assert broken_caps(given, make_plan(given)) == {cap}


# --- which boxes are left alone ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(any_grounds())
def test_nobody_who_may_be_proving_is_destroyed_and_some_are_left_alone(given: Grounds) -> None:
    held = {box.vast_id: box for box in given.situation.boxes}
    for move in make_plan(given).actions:
        if isinstance(move, RentBox):
            continue
        box = held[move.id]
        assert not box.protected
        assert not box.busy
        assert NOW - box.rented_at >= given.situation.policy.limits.min_age
        if isinstance(move, DestroyBox):
            assert box.stage in (Stage.RENTED, Stage.LOADING, Stage.REGISTERED)
            assert box.stage is not Stage.REGISTERED or (box.reported_at and NOW - box.reported_at <= FRESH)


# --- unknown never acts -----------------------------------------------------------------------------------------------

BLIND: tuple[dict[str, Any], ...] = (
    {"inventory": Unknown(reason="page 2 failed")},
    {"demand": Unknown(reason="no answer")},
    {"now": NOW + FRESH + timedelta(seconds=1)},
    {"frozen_because": "the list fell from 9 boxes to none"},
)


@settings(deadline=None)
@given(any_grounds(), st.sampled_from(BLIND))
def test_unknown_never_acts(given: Grounds, blind: dict[str, Any]) -> None:
    plan = make_plan(seeing(given, **blind))
    assert plan.asks_for_nothing()
    assert plan.wanted_boxes is None


def test_who_takes_unknown_for_none_gives_the_fleet_up() -> None:
    """The control."""

    def naive(given: Grounds) -> Plan:
        is_unknown = isinstance(given.situation.demand, Unknown)
        return make_plan(seeing(given, demand=demand()) if is_unknown else given)

    blind = grounds(boxes=[rented(1)], history=read(0, *range(5, 40, 5)), demand=Unknown(reason="no answer"))
    assert naive(blind).actions
    assert make_plan(blind).asks_for_nothing()


# --- what was asked for is not asked for again ------------------------------------------------------------------------


def rented_since(given: Grounds, plan: Plan) -> Grounds:
    """A moment later: every rent of the plan has become a box that is on its way."""
    listing = {offer.id: offer for offer in given.situation.listing}
    chosen = [listing[move.offer_id] for move in plan.actions if isinstance(move, RentBox)]
    coming = tuple(
        rented(
            9000 + offer.id, Stage.LOADING, age=timedelta(0), machine_id=offer.machine_id, gpu_name=offer.gpu_name,
            num_gpus=offer.num_gpus, usd_per_hour=offer.usd_per_hour,
        )
        for offer in chosen
    )  # fmt: skip
    left = tuple(offer for offer in given.situation.listing if offer not in chosen)
    return seeing(
        given,
        boxes=(*given.situation.boxes, *coming),
        listing=left,
        inventory=as_listed([*given.situation.boxes, *coming]),
        rents_of_hour=given.situation.rents_of_hour + len(chosen),
    )


def rents_in_a_row(given: Grounds, decide: Callable[[Grounds], Plan]) -> list[int]:
    """The boxes of the first three plans over unchanged figures."""
    counts: list[int] = []
    for _ in range(3):
        plan = decide(given)
        counts.append(sum(isinstance(move, RentBox) for move in plan.actions))
        given = rented_since(given, plan)
    return counts


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.integers(0, 200))
def test_pending_counts_as_capacity(pending: int, done: int) -> None:
    given = grounds(
        demand=demand(pending=pending, done=done), policy=policy(max_rents_per_run=20, max_rents_per_hour=99)
    )
    first, *more = rents_in_a_row(given, make_plan)
    assert first
    assert more == [0, 0]


def test_who_counts_only_what_proves_rents_at_every_look() -> None:
    """The control."""

    def naive(given: Grounds) -> Plan:
        proving = tuple(box for box in given.situation.boxes if box.stage is Stage.PROVING)
        return make_plan(seeing(given, boxes=proving))

    given = grounds(demand=demand(pending=60), policy=policy(max_rents_per_run=20, max_rents_per_hour=99))
    assert rents_in_a_row(given, make_plan) == [2, 0, 0]
    assert rents_in_a_row(given, naive) == [2, 2, 2]


# --- over time --------------------------------------------------------------------------------------------------------

WIDE = policy(max_rents_per_hour=99, max_destroys_per_run=9)


def wide(**planning: Any) -> Policy:
    return WIDE.model_copy(update={"planning": WIDE.planning.model_copy(update=planning)})


HOURS, SETTLED = 10, 4
"""How long a fleet is watched, and after how much of it: it began without a box, and with work that waited."""


def swinging(period: int, low: int, high: int, hours: int = HOURS) -> list[int]:
    """Proofs an hour, as they come in minute by minute: now so many, now so many."""
    came, arrivals = 0.0, list[int]()
    for minute in range(hours * 60):
        rate = high if minute % period < period / 2 else low
        arrivals.append(int(came + rate / 60) - int(came))
        came += rate / 60
    return arrivals


def lived(arriving: Sequence[int], decide: Decider, *, fleet: ToyFleet | None = None) -> ToyFleet:
    fleet = fleet or ToyFleet(WIDE, reliable=True, machines=60)
    live(fleet, arriving, decide)
    return fleet


def most_changes_an_hour(fleet: ToyFleet) -> int:
    settled = [at for at in fleet.tally.changes if fleet.now - at <= (HOURS - SETTLED) * HOUR]
    return max((sum(at <= each < at + HOUR for each in settled) for at in settled), default=0)


@settings(deadline=None, max_examples=6)
@given(st.integers(10, 40), st.sampled_from([(0, 200), (50, 150), (100, 300)]))
def test_demand_that_swings_faster_than_boxes_start_hardly_moves_one(period: int, swing: tuple[int, int]) -> None:
    """Most often none: one more may still be wanted, or one less, where the queue is just worked off."""
    assert most_changes_an_hour(lived(swinging(period, *swing), planner_alone())) <= 3


def test_who_does_not_look_back_rents_and_gives_up_all_the_time() -> None:
    """The control: it neither waits for a second reading nor remembers those before."""
    restless = planner_alone(wide(confirmations=1, quiet_window=timedelta(0)))
    assert most_changes_an_hour(lived(swinging(40, 0, 200), restless)) > 6


def test_whatever_demand_does_only_so_many_boxes_change_within_an_hour() -> None:
    """The control is the planner with the usual budget, which uses it."""
    waves = swinging(150, 0, 300)
    assert most_changes_an_hour(lived(waves, planner_alone(wide(max_changes_per_hour=4)))) <= 4
    assert most_changes_an_hour(lived(waves, planner_alone())) > 4


class Bazaar(ToyFleet):
    """Every price, of offers and of boxes, is another at each look."""

    def situation(self) -> Situation:
        seen = super().situation()

        def haggled(row: Any) -> Any:
            factor = Decimal(str(round(seeded(self.now, row.machine_id).uniform(0.5, 2.0), 3)))
            return row.model_copy(update={"usd_per_hour": row.usd_per_hour * factor})

        return seen.model_copy(
            update={"listing": tuple(map(haggled, seen.listing)), "boxes": tuple(map(haggled, seen.boxes))}
        )


def test_prices_that_swing_move_no_box() -> None:
    steady = swinging(60, 150, 150)
    assert most_changes_an_hour(lived(steady, planner_alone(), fleet=Bazaar(WIDE, reliable=True, machines=60))) == 0


def test_who_hunts_for_bargains_moves_with_every_price() -> None:
    """The control."""
    plans = planner_alone()

    def hunter(fleet: ToyFleet) -> Sequence[Move]:
        seen, planned = fleet.situation(), plans(fleet)
        proving = [box for box in seen.boxes if box.stage is Stage.PROVING]
        dearest = max(proving, key=lambda box: box.usd_per_hour, default=None)
        if planned or dearest is None or min(each.usd_per_hour for each in seen.listing) > dearest.usd_per_hour:
            return planned
        return [DrainBox(id=dearest.vast_id or 0, reason="there is a cheaper one")]

    steady = swinging(60, 150, 150)
    assert most_changes_an_hour(lived(steady, hunter, fleet=Bazaar(WIDE, reliable=True, machines=60))) > 2


COLLAPSE = [*swinging(60, 240, 240, hours=4), *swinging(60, 20, 20, hours=3)]


def test_no_box_is_given_up_with_a_proof_at_hand() -> None:
    tally = lived(COLLAPSE, planner_alone()).tally
    assert len(tally.changes) > 6
    assert tally.busy_killed == 0


def test_who_destroys_instead_of_draining_kills_proofs() -> None:
    """The control."""
    plans = planner_alone()

    def hasty(fleet: ToyFleet) -> Sequence[Move]:
        return [
            DestroyBox(id=move.id, reason=move.reason) if isinstance(move, DrainBox) else move for move in plans(fleet)
        ]

    assert lived(COLLAPSE, hasty).tally.busy_killed > 0
