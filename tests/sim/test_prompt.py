"""The model reads what the product writes: their two ideas of the text are held against each other."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from fleet_agent.domain.demand import Demand
from fleet_agent.domain.fleet import Box, Inventory, Offer, Stage
from fleet_agent.domain.observation import Account, Known, Observation, Unknown
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.run import Approval
from fleet_agent.domain.show import limits_line, observation_block, offers_table
from fleet_agent.sim.chat import Message
from fleet_agent.sim.prompt import BoxRow, OfferRow, Prompt, read_offers, read_prompt
from tests.domain.test_context import prompt, standing

NOW = datetime(2026, 11, 29, 20, 0, 5, tzinfo=UTC)
BOX = Box(
    key="r1-s1-c1-aaaa",
    label="fa/abc123/main/r1-s1-c1-aaaa",
    vast_id=101,
    machine_id=20_001,
    gpu_name="RTX 4090",
    num_gpus=1,
    usd_per_hour=Decimal("0.412"),
    stage=Stage.PROVING,
    agreed_usd_per_hour=Decimal("0.412"),
    stage_since=NOW - timedelta(minutes=35),
    rented_at=NOW - timedelta(minutes=35),
    protected=False,
)
OBSERVATION = Observation(
    taken_at=NOW,
    inventory=Known(value=Inventory(instances=(), seen_at=NOW), seen_at=NOW),
    demand=Known(
        value=Demand(
            pending=12,
            running=3,
            oldest_pending=timedelta(minutes=4),
            done_per_hour=None,
            failed_per_hour=0,
            seen_at=NOW,
        ),
        seen_at=NOW,
    ),
    account=Known(value=Account(credit_usd=Decimal("41.20")), seen_at=NOW),
    boxes=(BOX, BOX.model_copy(update={"vast_id": None, "stage": Stage.RENTED})),
    in_flight_usd_per_hour=Decimal(0),
    in_flight_count=1,
)


def read(observation: Observation) -> Prompt:
    block = observation_block(observation, NOW)
    limits = limits_line(standing())
    return read_prompt(
        (Message("system", "You operate a fleet."), Message("user", f"{limits}\n\nRun #1.\n{block}")), ()
    )


def test_every_part_of_an_observation_is_read_as_it_was_written():
    seen = read(OBSERVATION).observation
    assert seen is not None
    assert (seen.demand.number("pending"), seen.demand.number("running")) == (12, 3)
    assert seen.demand.number("done_per_hour") is None
    assert seen.account.number("credit_usd") == Decimal("41.20")
    assert seen.limits.values["mode"] == "live"
    assert seen.limits.number("max_boxes") == Policy().limits.max_boxes
    assert (seen.boxes.number("live"), seen.boxes.number("in_flight")) == (2, 1)
    assert seen.rows == (
        BoxRow(101, "proving", "1x RTX 4090", Decimal("0.412"), Decimal(35), "not listed"),
        BoxRow(None, "rented", "1x RTX 4090", Decimal("0.412"), Decimal(35), "not seen yet"),
    )


def test_brakes_and_what_waits_for_a_word_are_read_where_they_stand():
    waits = Approval(
        key="r1-s1-c1-aaaa", tool="rent_box", arguments={"offer_id": 1}, sentence="It is dear.", asked_at=NOW
    )
    made = prompt([], approvals=(waits, waits.model_copy(update={"tool": "drain_box"})), scale_in_paused=True)
    messages = tuple(Message(message["role"], message["content"]) for message in made.messages)
    seen = read_prompt((*messages, Message("user", observation_block(OBSERVATION, NOW))), ())
    assert seen.waiting == {"rent_box", "drain_box"}
    assert seen.observation is not None
    assert seen.observation.limits.values["scale_in"] == "paused"
    assert "scale_out" not in seen.observation.limits.values
    assert read(OBSERVATION).waiting == frozenset()


def test_unknown_parts_are_read_with_their_reasons():
    unknown = OBSERVATION.model_copy(update={"demand": Unknown(reason="HTTP 500"), "inventory": Unknown(reason="late")})
    seen = read(unknown).observation
    assert seen is not None
    assert (seen.demand.unknown_because, seen.boxes.unknown_because) == ("HTTP 500", "late")
    assert seen.demand.number("pending") is None


def test_a_listing_is_read_in_its_order():
    offer = Offer(
        id=5001,
        machine_id=20_001,
        host_id=60_000,
        gpu_name="RTX 4090",
        num_gpus=2,
        gpu_ram_mb=24_564,
        gpu_share=1.0,
        usd_per_hour=Decimal("0.3014"),
        reliability=0.995,
        verified=True,
        datacenter=False,
        location="Texas, US",
        cpu_cores=32,
        ram_mb=131_072,
        disk_gb=600,
        inet_down_mbps=800,
        inet_up_mbps=300,
        cuda=12.8,
        rentable_until=None,
    )
    rows = read_offers(offers_table([offer, offer.model_copy(update={"id": 5002})]))
    assert rows == [OfferRow(number, "2x RTX 4090", Decimal("0.301"), "Texas, US") for number in (5001, 5002)]


def test_a_listing_without_offers_has_none():
    assert read_offers(offers_table([])) == []
