"""The simulated market keeps exact books: what a box is, and what it has cost, at every instant."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.sim import boxes
from fleet_agent.sim.clock import ManualClock, WallClock
from fleet_agent.sim.market import Instance, Market, MarketConfig, Order, Refused, Span
from tests.contract.serving import rentable, until_running

START = datetime(2026, 3, 2, 21, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def exactly(seconds: int) -> Span:
    return seconds * SECOND, seconds * SECOND


# A box runs 60 seconds after it was rented.
PUNCTUAL = MarketConfig(
    taken_share=0,
    provisioning=exactly(10),
    creating=exactly(5),
    loading=exactly(45),
    restarting=exactly(20),
    halting=exactly(4),
)
DISK_GB = Decimal(73)


class World:
    """A market on a hand-driven clock, with the cheapest lot at hand."""

    def __init__(self, config: MarketConfig = PUNCTUAL, seed: int = 3) -> None:
        self.clock = ManualClock(START)
        self.market = Market(self.clock, seed=seed, config=config)
        self.lot = rentable(self.market)[0].lot
        self.gpu = self.lot.usd_per_hour
        self.disk = self.lot.disk_usd_per_hour(DISK_GB)
        self.traffic = self.lot.machine.usd_per_gb_down * config.start_up_traffic_gb

    def rent(self, **order: object) -> Instance:
        self.market.offers()
        return self.market.rent(self.lot.ask_id, replace(Order("prover", DISK_GB), **order))

    def billed(self) -> Decimal:
        return self.market.usd_billed().quantize(Decimal("1e-12"))


def usd(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("1e-12"))


@pytest.fixture
def world() -> World:
    return World()


# --- money ------------------------------------------------------------------------------------------------------------


def test_gpus_are_billed_while_running_and_the_disk_from_creation(world: World) -> None:
    world.rent()
    world.clock.advance(60 * SECOND + HOUR)
    assert world.billed() == usd(world.gpu + world.disk * (3600 + 60) / 3600 + world.traffic)
    naive = usd((world.gpu + world.disk) * (3600 + 60) / 3600 + world.traffic)
    assert world.billed() != naive, "control: a meter that runs from creation on"


def test_a_second_more_costs_a_second_more(world: World) -> None:
    world.rent()
    world.clock.advance(HOUR)
    before = world.market.usd_billed()
    world.clock.advance(SECOND)
    assert usd(world.market.usd_billed() - before) == usd((world.gpu + world.disk) / 3600)


def test_a_destroyed_box_costs_nothing_more(world: World) -> None:
    box = world.rent()
    world.clock.advance(HOUR)
    world.market.destroy(box.id)
    spent = world.billed()
    world.clock.advance(10 * HOUR)
    assert (world.billed(), world.market.usd_per_hour()) == (spent, 0)


def test_a_stopped_box_goes_on_costing_its_disk(world: World) -> None:
    box = world.rent()
    world.clock.advance(HOUR)
    world.market.stop(box.id)
    world.clock.advance(4 * SECOND)
    halted = world.market.usd_billed()
    world.clock.advance(HOUR)
    assert usd(world.market.usd_billed() - halted) == usd(world.disk)


def test_an_offline_box_costs_nothing(world: World) -> None:
    world.rent()
    world.clock.advance(HOUR)
    world.market.faults.arm("host_offline", times=1, lasting=HOUR)
    world.market.instances()
    world.clock.advance(60 * SECOND)
    silent = world.market.usd_billed()
    world.clock.advance(HOUR - 60 * SECOND)
    assert world.market.usd_billed() == silent
    world.clock.advance(SECOND)
    assert world.market.usd_billed() > silent


def test_a_new_bid_counts_from_the_moment_it_is_made(world: World) -> None:
    box = world.rent(bid_usd_per_hour=Decimal("0.50"))
    world.clock.advance(60 * SECOND + HOUR)
    world.market.change_bid(box.id, Decimal("0.80"))
    world.clock.advance(HOUR)
    gpu = Decimal("0.50") + Decimal("0.80")
    assert world.billed() == usd(gpu + world.disk * (7200 + 60) / 3600 + world.traffic)


def test_the_charges_of_any_two_halves_add_up_to_the_bill(world: World) -> None:
    world.rent()
    world.clock.advance(90 * SECOND)
    world.market.rent(rentable(world.market)[0].lot.ask_id, Order("prover"))
    world.clock.advance(3 * HOUR)
    now, middle = world.clock.now(), START + 100 * SECOND
    charges = world.market.charges(START, middle) + world.market.charges(middle, now)
    assert usd(sum((charge.usd for charge in charges), Decimal(0))) == world.billed()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=20))
def test_a_bill_does_not_depend_on_how_often_anybody_looked(steps: list[int]) -> None:
    looked, leapt = World(MarketConfig()), World(MarketConfig())
    for world in (looked, leapt):
        world.rent()
    for seconds in steps:
        looked.clock.advance(seconds * SECOND)
        looked.market.usd_billed()
    leapt.clock.advance(sum(steps) * SECOND)
    assert looked.billed() == leapt.billed()


def test_when_the_credit_is_gone_every_box_is_stopped_at_that_instant() -> None:
    world = World(replace(PUNCTUAL, credit_usd=Decimal(1)))
    box = world.rent()
    world.clock.advance(24 * HOUR)
    running_hours = (1 - world.traffic - world.disk * 60 / 3600) / (world.gpu + world.disk)
    assert (world.market.instance(box.id).actual_status, box.intended_status) == ("stopped", "stopped")
    stopped_at = box.segments[-1].since - 4 * SECOND
    assert abs(stopped_at - (START + 60 * SECOND + float(running_hours) * HOUR)) < timedelta(milliseconds=1)
    assert world.market.credit_usd() < 0, "the disk is still there"


def test_a_box_stopped_for_want_of_credit_is_deleted_two_days_later() -> None:
    world = World(replace(PUNCTUAL, credit_usd=Decimal(1)))
    world.rent()
    world.clock.advance(24 * HOUR)
    assert len(world.market.instances()) == 1
    world.clock.advance(48 * HOUR)
    assert world.market.instances() == []


def test_without_credit_nothing_is_rented() -> None:
    world = World(replace(PUNCTUAL, credit_usd=Decimal(0)))
    with pytest.raises(Refused, match="lacks credit"):
        world.rent()


def test_a_deposit_brings_stopped_boxes_within_reach_again() -> None:
    world = World(replace(PUNCTUAL, credit_usd=Decimal(1)))
    box = world.rent()
    world.clock.advance(24 * HOUR)
    world.market.deposit(Decimal(50))
    world.market.start(box.id)
    until_running(world.market, world.clock, box.id)


# --- the life of a box ------------------------------------------------------------------------------------------------


def test_a_box_is_provisioned_created_loaded_and_then_runs(world: World) -> None:
    box = world.rent()
    seen = [box.actual_status]
    for seconds in (10, 5, 45):
        world.clock.advance((seconds - 1) * SECOND)
        seen.append(world.market.instance(box.id).actual_status)
        world.clock.advance(SECOND)
        seen.append(world.market.instance(box.id).actual_status)
    assert seen == [None, None, "created", "created", "loading", "loading", "running"]


def test_what_the_user_intends_comes_true_a_moment_later(world: World) -> None:
    box = world.rent()
    world.clock.advance(HOUR)
    world.market.stop(box.id)
    assert (box.intended_status, box.cur_state, box.actual_status) == ("stopped", "stopped", "running")
    world.clock.advance(4 * SECOND)
    assert world.market.instance(box.id).actual_status == "stopped"


def test_a_box_is_stopped_when_the_contract_of_its_machine_ends(world: World) -> None:
    box = world.rent()
    world.market.deposit(Decimal(100_000))
    world.clock.advance(world.lot.machine.offered_for - SECOND)
    assert world.market.instance(box.id).intended_status == "running"
    world.clock.advance(SECOND)
    assert world.market.instance(box.id).intended_status == "stopped"


def test_the_same_seed_gives_the_same_boxes_the_same_delays() -> None:
    worlds = [World(MarketConfig(), seed=seed) for seed in (3, 3, 4)]
    for world in worlds:
        world.rent()
        world.clock.advance(HOUR)
    same, again, other = ([(part.since, part.status) for part in w.market.instances()[0].segments] for w in worlds)
    assert same == again != other


def test_another_seed_is_another_market() -> None:
    prices = [[offer.lot.usd_per_hour for offer in World(seed=seed).market.offers()] for seed in (3, 3, 4)]
    assert prices[0] == prices[1] != prices[2]


# --- who gets the GPUs ------------------------------------------------------------------------------------------------


def test_a_rented_offer_cannot_be_rented_again(world: World) -> None:
    ask_id = world.lot.ask_id
    world.rent()
    world.clock.advance(HOUR)
    with pytest.raises(Refused, match="no_such_ask"):
        world.market.rent(ask_id, Order("prover"))
    assert all(offer.lot is not world.lot for offer in rentable(world.market))


def test_gpus_that_came_free_are_offered_under_a_new_number(world: World) -> None:
    ask_id = world.lot.ask_id
    world.market.destroy(world.rent().id)
    assert [offer.lot.ask_id for offer in rentable(world.market) if offer.lot is world.lot] != [ask_id]


def test_two_creates_of_one_offer_both_succeed_but_only_one_gets_the_gpus(world: World) -> None:
    ask_id = world.lot.ask_id
    first, second = (world.market.rent(ask_id, Order("prover", cancel_unavailable=True)) for _ in range(2))
    world.clock.advance(HOUR)
    statuses = [(box.actual_status, box.cur_state) for box in world.market.instances()]
    assert statuses == [("running", "running"), ("stopped", "stopped")]
    assert second.intended_status == "running", "it waits for the GPUs and bills its disk"
    world.market.destroy(first.id)
    until_running(world.market, world.clock, second.id)


def test_a_low_bid_makes_a_stopped_box_whose_disk_is_billed(world: World) -> None:
    box = world.rent(bid_usd_per_hour=Decimal("0.001"))
    world.clock.advance(HOUR)
    assert (box.actual_status, box.cur_state) == ("stopped", "stopped")
    assert world.billed() == usd(world.disk)


def test_a_low_bid_is_refused_for_an_order_that_wants_all_or_nothing(world: World) -> None:
    with pytest.raises(Refused) as refusal:
        world.rent(bid_usd_per_hour=Decimal("0.001"), cancel_unavailable=True)
    assert refusal.value.code == "unavailable"
    assert world.market.creates == []


def test_an_interruptible_box_makes_way_and_comes_back(world: World) -> None:
    cheap = world.rent(bid_usd_per_hour=Decimal("0.90"))
    until_running(world.market, world.clock, cheap.id)
    firm = world.rent()
    world.clock.advance(4 * SECOND)
    assert world.market.instance(cheap.id).actual_status == "stopped"
    assert cheap.intended_status == "running"
    world.market.destroy(firm.id)
    until_running(world.market, world.clock, cheap.id)


def test_the_higher_of_two_bids_holds_the_gpus(world: World) -> None:
    low, high = (world.rent(bid_usd_per_hour=Decimal(bid)) for bid in ("0.90", "0.95"))
    until_running(world.market, world.clock, high.id)
    assert world.market.instance(low.id).cur_state == "stopped"
    world.market.change_bid(low.id, None)
    assert [low.cur_state, high.cur_state] == ["running", "stopped"]


# --- what boxes do ----------------------------------------------------------------------------------------------------


def test_a_box_proves_a_minute_after_it_came_up(world: World) -> None:
    box = world.rent()
    stages: list[tuple[boxes.Stage, int]] = []
    for seconds in (59, 1, 59, 1):
        world.clock.advance(seconds * SECOND)
        now = world.clock.now()
        stages.append((boxes.stage(world.market, box, now), len(boxes.productive(world.market, now))))
    assert stages == [("loading", 0), ("benchmarking", 0), ("benchmarking", 0), ("proving", 1)]


def test_what_proved_at_an_earlier_instant_can_still_be_asked(world: World) -> None:
    box = world.rent()
    world.clock.advance(2 * HOUR)
    world.market.destroy(box.id)
    proving = [len(boxes.productive(world.market, START + minutes * 60 * SECOND)) for minutes in (1, 2, 119, 120)]
    assert proving == [0, 1, 1, 0]


def test_a_changed_bid_does_not_interrupt_the_proving(world: World) -> None:
    box = world.rent(bid_usd_per_hour=Decimal("0.90"))
    world.clock.advance(HOUR)
    world.market.change_bid(box.id, Decimal("0.95"))
    assert boxes.stage(world.market, box, world.clock.now()) == "proving"


def test_a_cramped_machine_proves_less_than_a_roomy_one(world: World) -> None:
    machine = replace(world.lot.machine, cpu_ram_mb=512 * 1024, lots=1)
    cramped = replace(machine, cpu_ram_mb=120 * 1024)
    assert boxes.proofs_per_hour(cramped) == pytest.approx(boxes.proofs_per_hour(machine) / 2, rel=0.001)


def test_the_log_counts_the_proofs_that_were_made(world: World) -> None:
    box = world.rent()
    world.clock.advance(120 * SECOND + 2 * HOUR)
    made = int(2 * boxes.proofs_per_hour(box.machine))
    assert f"proof {made} done" in boxes.log(world.market, box)[-1]


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_a_wall_clock_runs_from_its_origin_at_its_speed() -> None:
    elapsed = iter([1000.0, 1002.5])
    assert WallClock(START, speed=60, elapsed=lambda: next(elapsed)).now() == START + 150 * SECOND


def test_no_clock_goes_back() -> None:
    with pytest.raises(ValueError, match="back"):
        ManualClock(START).advance(-SECOND)
