"""Our client of vast.ai in front of the simulated market: what a fleet needs of it, and what it does when cheated."""

from datetime import timedelta
from decimal import Decimal

import pytest
from pydantic import SecretStr

from fleet_agent.domain.box_reports import VARIABLE
from fleet_agent.domain.policy import Launch, OfferFloors, Policy
from fleet_agent.errors import (
    AlreadyGone,
    ChooseAnother,
    FixSetup,
    InventoryUnknown,
    KeyRefused,
    LookFirst,
    SlowDown,
    StopRenting,
)
from fleet_agent.ports import OfferQuery
from tests.clients.world import IMAGE, POLICY, SimulatedWorld, order

ANYTHING = Policy(
    offers=OfferFloors(
        min_gpu_ram_gb=0, min_reliability=0, min_inet_down_mbps=0, verified_only=False, whole_machine=False
    )
)


async def cheapest(world: SimulatedWorld) -> int:
    return (await world.market.offers(OfferQuery(policy=POLICY)))[0].id


# --- the list of boxes ------------------------------------------------------------------------------------------------


async def test_an_account_of_60_boxes_is_listed_whole_over_three_pages():
    world = SimulatedWorld()
    world.rent_directly(60)

    inventory = await world.market.inventory()

    assert {box.id for box in inventory.instances} == {box.id for box in world.truth.instances()}
    assert len(inventory.instances) == 60
    assert [request.url.path for request in world.requests] == ["/api/v1/instances/"] * 3


async def test_a_listed_box_says_what_the_provider_says():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))
    truth = world.truth.instance(box_id)
    world.time.advance(timedelta(minutes=10))

    [listed] = (await world.market.inventory()).instances

    assert (listed.id, listed.label, listed.image) == (box_id, "fa/abc123/main/r1-s1-c0-wxyz", IMAGE)
    assert (listed.machine_id, listed.num_gpus) == (truth.machine.machine_id, truth.machine.gpus_per_lot)
    assert listed.usd_per_hour == pytest.approx(truth.gpu_usd_per_hour + truth.disk_usd_per_hour)
    assert listed.started_at == truth.created_at
    assert (listed.actual_status, listed.interruptible) == ("running", False)


async def test_an_empty_account_is_known_to_be_empty():
    assert (await SimulatedWorld().market.inventory()).instances == ()


@pytest.mark.parametrize("fault", ["list_partial", "list_success_false"])
async def test_a_list_that_is_cut_or_fails_is_unknown_and_not_empty(fault: str):
    world = SimulatedWorld()
    world.rent_directly(1)
    world.truth.faults.arm(fault)

    with pytest.raises(InventoryUnknown):
        await world.market.inventory()


async def test_a_page_that_fails_once_is_read_a_second_time():
    world = SimulatedWorld()
    world.rent_directly(30)
    world.truth.faults.arm("server_error", times=1)

    assert len((await world.market.inventory()).instances) == 30


async def test_a_page_that_fails_twice_makes_the_whole_list_unknown():
    world = SimulatedWorld()
    world.rent_directly(30)
    world.truth.faults.arm("server_error", times=2)

    with pytest.raises(InventoryUnknown):
        await world.market.inventory()


# --- offers -----------------------------------------------------------------------------------------------------------


async def test_offers_come_cheapest_first_one_per_machine_and_meet_the_floors():
    offers = await SimulatedWorld().market.offers(OfferQuery(policy=POLICY, limit=10))

    prices = [offer.usd_per_hour for offer in offers]
    assert len(offers) == 10
    assert prices == sorted(prices)
    assert len({offer.machine_id for offer in offers}) == 10
    assert all(offer.verified and offer.gpu_share == 1 and offer.gpu_ram_mb >= 24_000 for offer in offers)


async def test_control_without_floors_the_same_market_offers_what_they_keep_out():
    offers = await SimulatedWorld().market.offers(OfferQuery(policy=ANYTHING, limit=200))

    assert any(not offer.verified for offer in offers)
    assert any(offer.gpu_share < 1 for offer in offers)


async def test_the_price_of_an_offer_contains_the_disk_that_the_policy_launches():
    world = SimulatedWorld()
    small, large = (Policy(launch=Launch(disk_gb=gb)) for gb in (50, 500))
    [offer] = await world.market.offers(OfferQuery(policy=small, limit=1))

    [dearer] = await world.market.offers(OfferQuery(policy=large, offer_id=offer.id))

    assert dearer.usd_per_hour > offer.usd_per_hour


async def test_a_search_for_one_gpu_model_or_one_offer_yields_only_that():
    world = SimulatedWorld()
    [offer] = await world.market.offers(OfferQuery(policy=POLICY, gpu_name="RTX 4090", limit=1))

    assert offer.gpu_name == "RTX 4090"
    assert await world.market.offers(OfferQuery(policy=POLICY, offer_id=offer.id)) == (offer,)


async def test_a_search_for_as_many_gpus_is_not_crowded_out_by_cheaper_offers_with_fewer():
    """Control: among the cheapest of that model there is none."""
    world = SimulatedWorld()
    cheapest_of_all = await world.market.offers(OfferQuery(policy=POLICY, gpu_name="RTX 4090", limit=1))
    pairs = await world.market.offers(OfferQuery(policy=POLICY, gpu_name="RTX 4090", num_gpus=2, limit=1))

    assert [offer.num_gpus for offer in cheapest_of_all] == [1]
    assert [offer.num_gpus for offer in pairs] == [2]


async def test_an_offer_that_somebody_took_is_no_longer_found():
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    await world.market.rent(order(offer_id))

    assert await world.market.offers(OfferQuery(policy=POLICY, offer_id=offer_id)) == ()


async def test_a_banned_machine_is_not_offered_and_its_absence_is_counted():
    world = SimulatedWorld()
    bad, good = await world.market.offers(OfferQuery(policy=POLICY, limit=2))

    found = await world.market.offers(OfferQuery(policy=POLICY, limit=2, banned=frozenset({bad.machine_id, 4711})))

    assert found[0] == good
    assert len(found) == 2
    assert found.left_out == 1


async def test_control_without_the_ban_the_bad_machine_is_the_cheapest_again():
    world = SimulatedWorld()
    bad, _ = await world.market.offers(OfferQuery(policy=POLICY, limit=2))

    found = await world.market.offers(OfferQuery(policy=POLICY, limit=2))

    assert (found[0], found.left_out) == (bad, 0)


async def test_one_offer_of_a_banned_machine_is_not_found_under_its_number_either():
    world = SimulatedWorld()
    [bad] = await world.market.offers(OfferQuery(policy=POLICY, limit=1))

    found = await world.market.offers(OfferQuery(policy=POLICY, offer_id=bad.id, banned=frozenset({bad.machine_id})))

    assert (found, found.left_out) == ((), 1)


async def test_many_banned_machines_at_the_cheap_end_leave_enough_to_choose_from():
    world = SimulatedWorld()
    every = await world.market.offers(OfferQuery(policy=POLICY, limit=100))
    banned = frozenset(offer.machine_id for offer in every[:-5])

    found = await world.market.offers(OfferQuery(policy=POLICY, limit=5, banned=banned))

    assert found == every[-5:]


# --- money ------------------------------------------------------------------------------------------------------------


async def test_the_account_tells_the_spendable_credit():
    world = SimulatedWorld()

    assert (await world.market.account()).credit_usd == world.truth.credit_usd() == Decimal(100)


# --- renting ----------------------------------------------------------------------------------------------------------


async def test_a_rent_makes_one_box_on_demand_with_the_label_and_what_the_policy_launches():
    world = SimulatedWorld(box_env={"HF_TOKEN": "a-secret-for-the-box"})
    hook = SecretStr("https://fleet.test/box/its-own")
    wanted = order(await cheapest(world), env={"PROVER": "cuzk", "TOKEN": "$HF_TOKEN"}, hook=hook, onstart="run-prover")

    box_id = await world.market.rent(wanted)

    [box] = world.truth.instances()
    assert box.id == box_id
    assert not box.is_bid
    assert (box.order.image, box.order.disk_gb, box.order.runtype) == (IMAGE, 100, "args")
    assert (box.label, box.order.onstart) == ("fa/abc123/main/r1-s1-c0-wxyz", "run-prover")
    assert box.order.env == {"PROVER": "cuzk", "TOKEN": "a-secret-for-the-box", VARIABLE: hook.get_secret_value()}


async def test_a_secret_that_nobody_set_stops_the_rent_before_anything_is_sent():
    world = SimulatedWorld()
    wanted = order(await cheapest(world), env={"TOKEN": "$HF_TOKEN"})

    with pytest.raises(FixSetup, match=r"\$HF_TOKEN"):
        await world.market.rent(wanted)

    assert world.effects() == []


async def test_an_offer_that_was_taken_meanwhile_means_choose_another():
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    world.truth.faults.arm("offer_gone", times=1)

    with pytest.raises(ChooseAnother):
        await world.market.rent(order(offer_id))

    assert world.truth.instances() == []


async def test_an_account_without_credit_means_stop_renting():
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    world.truth.faults.arm("credit_zero", times=1)
    world.time.advance(timedelta(minutes=1))

    with pytest.raises(StopRenting):
        await world.market.rent(order(offer_id))


@pytest.mark.parametrize("fault", ["create_lost", "create_refused_but_made"])
async def test_a_create_that_made_a_box_and_denied_it_means_look_first_and_is_not_repeated(fault: str):
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    world.truth.faults.arm(fault, times=1)

    with pytest.raises(LookFirst):
        await world.market.rent(order(offer_id))

    assert len(world.truth.creates) == 1
    assert len(world.effects()) == 1


async def test_control_a_caller_that_repeats_a_lost_create_pays_for_two_boxes():
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    world.truth.faults.arm("create_lost", times=1)

    with pytest.raises(LookFirst):
        await world.market.rent(order(offer_id))
    await world.market.rent(order(offer_id))

    assert len(world.truth.creates) == 2


async def test_a_server_error_on_create_means_look_first_though_nothing_was_made():
    world = SimulatedWorld()
    offer_id = await cheapest(world)
    world.truth.faults.arm("server_error", times=1)

    with pytest.raises(LookFirst):
        await world.market.rent(order(offer_id))


# --- destroying -------------------------------------------------------------------------------------------------------


async def test_a_destroyed_box_is_gone_from_the_list():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))

    await world.market.destroy(box_id)

    assert (await world.market.inventory()).instances == ()


async def test_a_destroy_that_was_accepted_and_ignored_leaves_the_box_in_the_list():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))
    world.truth.faults.arm("destroy_ignored", times=1)

    await world.market.destroy(box_id)

    assert [box.id for box in (await world.market.inventory()).instances] == [box_id]


async def test_destroying_a_box_twice_says_that_it_is_gone():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))
    await world.market.destroy(box_id)

    with pytest.raises(AlreadyGone):
        await world.market.destroy(box_id)


async def test_a_server_error_on_destroy_means_look_first():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))
    world.truth.faults.arm("server_error", times=1)

    with pytest.raises(LookFirst):
        await world.market.destroy(box_id)


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_a_log_is_fetched_from_where_it_appears_and_the_key_does_not_go_there():
    world = SimulatedWorld()
    box_id = await world.market.rent(order(await cheapest(world)))
    world.time.advance(timedelta(minutes=10))

    log = await world.market.logs(box_id, tail=3)

    fetches = [request for request in world.requests if request.url.path.startswith("/sim/results/")]
    assert len(log.splitlines()) == 3
    assert len(fetches) == 2, "it is not there at the first look"
    assert all("authorization" not in request.headers for request in fetches)


async def test_the_log_of_a_box_that_is_not_there_says_so():
    with pytest.raises(AlreadyGone):
        await SimulatedWorld().market.logs(30_000_999, tail=3)


# --- the key and the pace ---------------------------------------------------------------------------------------------


async def test_a_wrong_key_is_told_from_a_missing_thing_though_both_are_404():
    world = SimulatedWorld(key="another-made-up-key")

    with pytest.raises(KeyRefused, match="FLEET_VAST_API_KEY"):
        await world.market.rent(order(40_000_001))
    with pytest.raises(KeyRefused):
        await world.market.destroy(30_000_001)
    with pytest.raises(KeyRefused):
        await world.market.inventory()
    with pytest.raises(KeyRefused):
        await world.market.account()
    with pytest.raises(KeyRefused):
        await world.market.logs(30_000_001, tail=3)


async def test_our_pace_stays_within_the_limits_of_the_provider():
    world = SimulatedWorld()
    world.truth.faults.arm("rate_limits")
    world.rent_directly(60)

    offer_ids = [offer.id for offer in await world.market.offers(OfferQuery(policy=POLICY))]
    for offer_id in offer_ids[:3]:
        await world.market.rent(order(offer_id))
    inventory = await world.market.inventory()
    for box in inventory.instances[:3]:
        await world.market.destroy(box.id)

    assert len(inventory.instances) == 63


async def test_control_without_our_pace_the_provider_refuses_the_second_search():
    world = SimulatedWorld(limits={})
    world.truth.faults.arm("rate_limits")

    await world.market.offers(OfferQuery(policy=POLICY))
    with pytest.raises(SlowDown) as refusal:
        await world.market.offers(OfferQuery(policy=POLICY))

    assert refusal.value.retry_after == timedelta(seconds=6)


async def test_after_a_refusal_for_too_many_requests_the_endpoint_is_left_alone_for_as_long_as_asked():
    world = SimulatedWorld(limits={})
    world.truth.faults.arm("rate_limits")
    query = OfferQuery(policy=POLICY)
    await world.market.offers(query)
    with pytest.raises(SlowDown):
        await world.market.offers(query)

    await world.market.offers(query)

    assert world.time.slept == [6]
