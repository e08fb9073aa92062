"""What the provider charged arrives whole or not at all, in the form that is documented and that the simulator has."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.clients import vast
from fleet_agent.domain.spent import Charge, bills
from fleet_agent.errors import KeyRefused, TryLater
from fleet_agent.sim.vast_app import create_app
from tests.clients.test_inventory_envelope import ANY_JSON, Page, served
from tests.clients.world import KEY, NOON, PassingTime, SimulatedWorld, answering, market_over

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


# --- against the simulator --------------------------------------------------------------------------------------------


A_CENT_OF_A_DIME = 0.002
"""Each amount comes with three decimals, and of a box there are three."""


async def test_every_box_is_charged_what_it_cost_gone_or_not_over_all_pages(monkeypatch: pytest.MonkeyPatch):
    """60 boxes on four days, a row each, on three pages."""
    monkeypatch.setattr(vast, "CHARGES_PER_PAGE", 25)
    world = SimulatedWorld(limits={})  # so that no time passes between the pages
    world.truth.deposit(Decimal(10_000))
    world.rent_directly(60)
    world.time.advance(timedelta(hours=2))
    world.truth.destroy(world.truth.instances()[0].id)
    world.time.advance(3 * DAY)
    now = world.time.now()

    charges = await world.market.charges(NOON, now)

    truth = {bill.instance.id: bill for bill in world.truth.charges(NOON, now)}
    found = bills(charges)
    assert found.keys() == truth.keys()
    assert len(charges) == 60
    for vast_id, bill in found.items():
        assert float(bill.usd) == pytest.approx(float(truth[vast_id].usd), abs=A_CENT_OF_A_DIME)
        rent_usd = truth[vast_id].usd - truth[vast_id].traffic_usd
        assert float(bill.rent_usd) == pytest.approx(float(rent_usd), abs=A_CENT_OF_A_DIME)
        assert bill.label == truth[vast_id].instance.label
    assert any(bill.rent_usd < bill.usd for bill in found.values()), "somebody paid for traffic"


async def test_the_day_of_the_beginning_is_charged_whole():
    world = SimulatedWorld()
    world.rent_directly(1)
    world.time.advance(timedelta(hours=4))
    now = world.time.now()

    (bill,) = bills(await world.market.charges(now - timedelta(hours=1), now)).values()

    assert float(bill.usd) == pytest.approx(float(world.truth.usd_billed()), abs=A_CENT_OF_A_DIME)


async def test_control_who_asks_from_an_hour_of_the_day_on_is_told_nothing_of_that_day():
    world = SimulatedWorld()
    world.rent_directly(1)
    world.time.advance(timedelta(hours=4))
    days = {"gte": NOON.timestamp(), "lte": world.time.now().timestamp()}
    asked = {"select_filters": json.dumps({"day": days})}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(world.truth))) as caller:
        answer = await caller.get(
            "http://vast.test/api/v0/charges/", params=asked, headers={"Authorization": f"Bearer {KEY}"}
        )

    assert (answer.json()["success"], answer.json()["results"]) == (True, [])


# --- as it is documented ----------------------------------------------------------------------------------------------


def documented(number: int, **changes: Any) -> dict[str, Any]:
    """A contract in one row, as the published reference shows it."""
    return {
        "start": 1730419200,
        "end": 1730678400,
        "type": "instance",
        "source": f"instance-{number}",
        "description": f"Instance {number} Charges - 4 days",
        "amount": 38.421,
        "metadata": {"label": "fa/abc123/main/r1-s1-c0-wxyz", "template_id": 101},
        "items": [
            {"type": "gpu", "source": None, "description": "96.000 hours at $0.389/hour", "amount": 37.344},
            {"type": "disk", "source": None, "description": "", "amount": 0.877},
            {"type": "bwd", "source": None, "description": "", "amount": 0.3},
            {"type": "sla", "source": None, "description": "", "amount": -0.1},
        ],
    } | changes


def pages_of(*rows: dict[str, Any], total: int | None = None, per_page: int = 2) -> list[Page]:
    cuts = [list(rows[at : at + per_page]) for at in range(0, max(len(rows), 1), per_page)]
    return [
        {
            "success": True,
            "count": len(cut),
            "total": len(rows) if total is None else total,
            "next_token": str(number + 1) if number + 1 < len(cuts) else None,
            "results": cut,
        }
        for number, cut in enumerate(cuts)
    ]


def read(pages: list[Page]) -> tuple[Charge, ...]:
    answers = [json.dumps(page).encode() for page in pages]
    return asyncio.run(market_over(served(answers), PassingTime()).charges(NOON - DAY, NOON))


def test_a_documented_charge_keeps_its_digits_and_tells_traffic_apart():
    (charge,) = read(pages_of(documented(12345678)))

    assert charge == Charge(
        vast_id=12345678,
        label="fa/abc123/main/r1-s1-c0-wxyz",
        start=datetime(2024, 11, 1, tzinfo=UTC),
        end=datetime(2024, 11, 4, tzinfo=UTC),
        usd=Decimal("38.421"),
        rent_usd=Decimal("38.221"),
    )


@pytest.mark.parametrize("sparse", [{"items": []}, {"items": None}, {"metadata": None}, {"start": None, "end": 0}])
def test_what_a_charge_leaves_out_changes_no_sum(sparse: dict[str, Any]):
    (charge,) = read(pages_of(documented(1, **sparse)))

    assert charge.usd == Decimal("38.421")
    assert charge.rent_usd == (charge.usd if "items" in sparse else Decimal("38.221"))


def test_the_total_counts_contracts_of_which_one_may_have_several_rows():
    rows = [documented(number, start=day) for number in (1, 2) for day in (1730419200, 1730505600)]

    assert len(read(pages_of(*rows, total=2))) == len(read(pages_of(*rows, total=4))) == 4


def test_what_is_no_instance_is_left_out():
    assert [
        charge.vast_id for charge in read(pages_of(documented(1), documented(2, type="volume", source="volume-7")))
    ] == [1]


def test_only_instances_of_these_days_are_asked_for_and_the_newest_come_last():
    asked: list[httpx.Request] = []
    market = market_over(answering(httpx.Response(200, json=pages_of()[0]), asked=asked), PassingTime())

    assert asyncio.run(market.charges(NOON - DAY, NOON)) == ()

    (request,) = asked
    filters = json.loads(request.url.params["select_filters"])
    days = {"gte": int((NOON - 36 * HOUR).timestamp()), "lte": int(NOON.timestamp())}  # from a midnight on
    assert filters == {"day": days, "type": {"in": ["instance"]}}
    assert (request.url.params["latest_first"], request.url.params["format"]) == ("false", "table")


# --- what may be short ------------------------------------------------------------------------------------------------


def spoiled(spoil: Callable[[list[Page]], object]) -> list[Page]:
    pages = copy.deepcopy(pages_of(*(documented(number) for number in range(1, 6))))
    spoil(pages)
    return pages


@pytest.mark.parametrize(
    "pages",
    [
        spoiled(lambda pages: pages[0].update(success=False, msg="Host users do not have instance charges")),
        spoiled(lambda pages: pages[0].pop("total")),
        spoiled(lambda pages: pages[1].update(results=None)),
        spoiled(lambda pages: pages[1]["results"].pop()),
        spoiled(lambda pages: pages[1].update(results=[])),
        spoiled(lambda pages: pages[1].update(next_token=None)),
        spoiled(lambda pages: pages[2].update(next_token="leads back to the first page")),
        spoiled(lambda pages: pages[0]["results"][0].update(amount=None)),
        spoiled(lambda pages: pages[0]["results"][0].update(amount=10**7)),
        spoiled(lambda pages: pages[0]["results"][0].update(source="instance-one")),
        spoiled(lambda pages: pages[0]["results"].append(documented(1))),
    ],
)
def test_charges_that_might_be_short_or_wrong_are_read_later(pages: list[Page]):
    with pytest.raises(TryLater):
        read(pages)


@st.composite
def mutilations(draw: st.DrawFn) -> list[Page]:
    """Five charges on three pages with one thing wrong."""
    pages = copy.deepcopy(pages_of(*(documented(number) for number in range(1, 6))))
    page = draw(st.sampled_from(pages))
    match draw(st.sampled_from(["field gone", "field odd", "row gone", "row twice", "row odd"])):
        case "field gone":
            del page[draw(st.sampled_from(sorted(page)))]
        case "field odd":
            page[draw(st.sampled_from(sorted(page)))] = draw(ANY_JSON)
        case "row gone":
            page["results"].pop()
        case "row twice":
            page["results"].append(page["results"][0])
        case _:
            page["results"][0] = draw(ANY_JSON)
    return pages


@settings(deadline=None)
@given(mutilations())
def test_charges_with_one_thing_wrong_are_read_whole_or_later(pages: list[Page]):
    try:
        charges = read(pages)
    except TryLater:
        return
    assert sorted(charge.vast_id for charge in charges) == [1, 2, 3, 4, 5]


def test_a_provider_that_never_stops_charging_is_not_followed_for_ever():
    asked: list[str | None] = []

    def more(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("after_token"))
        [page] = pages_of(documented(len(asked)))
        return httpx.Response(200, json=page | {"next_token": str(len(asked))})

    with pytest.raises(TryLater):
        asyncio.run(market_over(httpx.MockTransport(more), PassingTime()).charges(NOON - DAY, NOON))

    assert asked == [None, "1"]


def test_a_key_that_may_not_read_them_is_named():
    refusal = httpx.Response(401, json={"success": False, "error": "auth_error", "msg": "no billing_read"})

    with pytest.raises(KeyRefused, match="FLEET_VAST_API_KEY"):
        asyncio.run(market_over(answering(refusal), PassingTime()).charges(NOON - DAY, NOON))
