"""Every named fault of the simulated provider, as a client meets it over HTTP."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.faults import FAULTS
from fleet_agent.sim.market import Market, MarketConfig, Offer
from fleet_agent.sim.vast_app import RateLimits, create_app
from tests.contract.serving import rentable, until_running

HOUR = timedelta(hours=1)


class RealTime:
    """Stands in for the monotonic clock by which a caller's pace is judged."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Client:
    """The few calls that these tests make, and the world behind them."""

    def __init__(self, http: httpx.AsyncClient, market: Market, clock: ManualClock, real: RealTime) -> None:
        self.http, self.market, self.clock, self.real = http, market, clock, real

    async def create(self, *, offer: Offer | None = None, label: str = "fa/x/main/1", **body: Any) -> httpx.Response:
        ask_id = (offer or rentable(self.market)[0]).lot.ask_id
        order = {"image": "prover", "disk": 20, "label": label, "cancel_unavail": True, **body}
        return await self.http.put(f"/api/v0/asks/{ask_id}/", json=order)

    async def created(self, **body: Any) -> int:
        return (await self.create(**body)).json()["new_contract"]

    async def running(self, **body: Any) -> int:
        box_id = await self.created(**body)
        until_running(self.market, self.clock, box_id)
        return box_id

    async def page(self) -> Any:
        return (await self.http.get("/api/v1/instances/")).json()

    async def row(self, box_id: int) -> Any:
        return (await self.http.get(f"/api/v0/instances/{box_id}/", params={"owner": "me"})).json()["instances"]

    def arm(self, name: str, **when: Any) -> None:
        self.market.faults.arm(name, **when)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    clock, real = ManualClock(datetime(2026, 3, 2, 21, 0, tzinfo=UTC)), RealTime()
    market = Market(clock, seed=5, config=MarketConfig(machines=20, taken_share=0))
    app = create_app(market, limits=RateLimits(searches_per_day=3), elapsed=real)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://provider", headers={"Authorization": "Bearer made-up"}
    ) as http:
        yield Client(http, market, clock, real)


async def test_create_lost_makes_the_box_and_answers_504(client: Client) -> None:
    client.arm("create_lost", times=1)
    assert (await client.create()).status_code == 504
    assert [row["label"] for row in (await client.page())["instances"]] == ["fa/x/main/1"]
    assert (await client.create()).status_code == 200, "once was ordered"


async def test_create_refused_but_made_says_no_and_makes_the_box(client: Client) -> None:
    client.arm("create_refused_but_made", times=1)
    answer = await client.create()
    assert (answer.status_code, answer.json()["success"]) == (200, False)
    assert [box.id for box in client.market.instances()] == [answer.json()["new_contract"]]


async def test_offer_gone_refuses_and_makes_nothing(client: Client) -> None:
    client.arm("offer_gone", times=1)
    before = len(rentable(client.market))
    answer = await client.create()
    assert (answer.status_code, answer.json()["error"]) == (404, "invalid_args")
    assert client.market.creates == []
    assert len(rentable(client.market)) == before - 1, "somebody else has it"


async def test_label_dropped_makes_a_box_without_its_label(client: Client) -> None:
    client.arm("label_dropped", times=1)
    assert (await client.row(await client.created()))["label"] is None
    assert [made.label for made in client.market.creates] == ["fa/x/main/1"], "as it was ordered"


async def test_stuck_loading_never_gets_beyond_a_pull_that_keeps_talking(client: Client) -> None:
    client.arm("stuck_loading", times=1)
    box_id = await client.created()
    messages: set[str] = set()
    for _ in range(30):
        client.clock.advance(timedelta(seconds=601))
        row = await client.row(box_id)
        messages.add(row["status_msg"])
    assert row["actual_status"] == "loading"
    assert len(messages) > 5, "a deadline that is reset by news would never fire"
    assert all("retrying in" in message.lower() for message in messages)


async def test_a_dud_host_leaves_the_box_created_with_the_reason(client: Client) -> None:
    client.arm("dud_host", times=1)
    box_id = await client.created()
    client.clock.advance(HOUR)
    row = await client.row(box_id)
    assert row["actual_status"] == "created"
    assert "oci runtime create failed" in row["status_msg"].lower()


async def test_a_fault_on_one_machine_leaves_the_others_alone(client: Client) -> None:
    struck, *rest = rentable(client.market)
    spared = next(offer for offer in rest if offer.lot.machine is not struck.lot.machine)
    client.arm("dud_host", machine_id=struck.lot.machine.machine_id)
    box_ids = [await client.created(offer=offer) for offer in (struck, spared)]
    client.clock.advance(HOUR)
    assert [(await client.row(box_id))["actual_status"] for box_id in box_ids] == ["created", "running"]


async def test_container_exits_ends_a_running_box(client: Client) -> None:
    box_id = await client.running()
    client.arm("container_exits", times=1)
    row = await client.row(box_id)
    assert (row["actual_status"], row["intended_status"]) == ("exited", "running")


async def test_host_offline_is_unknown_then_offline_then_running_again(client: Client) -> None:
    box_id = await client.running()
    client.arm("host_offline", times=1, lasting=timedelta(seconds=300))
    seen = [(await client.row(box_id))["actual_status"]]
    for seconds in (61, 238, 1):
        client.clock.advance(timedelta(seconds=seconds))
        seen.append((await client.row(box_id))["actual_status"])
    assert seen == ["unknown", "offline", "offline", "running"]


async def test_outbid_stops_an_interruptible_box_until_the_rival_leaves(client: Client) -> None:
    box_id = await client.running(price=5)
    client.arm("outbid", times=1, lasting=HOUR)
    await client.row(box_id)
    client.clock.advance(timedelta(seconds=10))
    row = await client.row(box_id)
    assert (row["actual_status"], row["intended_status"], row["cur_state"]) == ("stopped", "running", "stopped")
    client.clock.advance(HOUR)
    assert (await client.row(box_id))["cur_state"] == "running"


async def test_outbid_is_answered_by_a_higher_bid(client: Client) -> None:
    box_id = await client.running(price=5)
    client.arm("outbid", times=1, lasting=24 * HOUR)
    await client.row(box_id)
    await client.http.put(f"/api/v0/instances/bid_price/{box_id}/", json={"client_id": "me", "price": 6})
    assert (await client.row(box_id))["cur_state"] == "running"


async def test_outbid_never_touches_a_box_on_demand(client: Client) -> None:
    box_id = await client.running()
    client.arm("outbid")
    client.clock.advance(HOUR)
    assert (await client.row(box_id))["actual_status"] == "running"


async def test_credit_zero_stops_everything_and_refuses_more(client: Client) -> None:
    box_id = await client.running()
    client.arm("credit_zero", times=1)
    refused = await client.create()
    assert refused.status_code == 400
    assert "lacks credit" in refused.json()["msg"]
    assert (await client.row(box_id))["intended_status"] == "stopped"
    assert (await client.http.get("/api/v0/users/current")).json()["credit"] <= 0


async def test_destroy_ignored_is_accepted_and_the_box_lives_on(client: Client) -> None:
    box_id = await client.created()
    client.arm("destroy_ignored", times=1)
    for alive in (True, False):
        assert (await client.http.delete(f"/api/v0/instances/{box_id}/")).json()["success"] is True
        assert (await client.row(box_id) is not None) is alive


async def test_list_partial_lacks_boxes_and_says_that_it_is_all(client: Client) -> None:
    for _ in range(4):
        await client.created()
    client.arm("list_partial", times=1)
    page = await client.page()
    assert (len(page["instances"]), page["next_token"], page["total_instances"]) == (2, None, 4)
    assert len((await client.page())["instances"]) == 4


async def test_list_success_false_comes_with_status_200(client: Client) -> None:
    client.arm("list_success_false", times=1)
    answer = await client.http.get("/api/v1/instances/")
    assert (answer.status_code, answer.json()["success"]) == (200, False)


async def test_list_lag_hides_what_is_new_and_shows_what_is_gone(client: Client) -> None:
    old = await client.created()
    client.clock.advance(HOUR)
    new = await client.created()
    client.market.destroy(old)
    client.clock.advance(timedelta(seconds=10))
    client.arm("list_lag", times=1, lasting=timedelta(seconds=30))
    assert [[row["id"] for row in (await client.page())["instances"]] for _ in range(2)] == [[old], [new]]


async def test_server_error_does_nothing(client: Client) -> None:
    client.arm("server_error", times=1)
    assert (await client.create()).status_code == 500
    assert client.market.creates == []


async def test_rate_limits_refuse_a_second_call_within_the_gap(client: Client) -> None:
    client.arm("rate_limits")
    statuses = [(await client.create()).status_code for _ in range(2)]
    client.real.seconds += 4.5
    statuses.append((await client.create()).status_code)
    assert statuses == [200, 429, 200]


async def test_the_pace_is_judged_for_each_key_and_endpoint(client: Client) -> None:
    client.arm("rate_limits")
    await client.page()
    other = await client.http.get("/api/v1/instances/", headers={"Authorization": "Bearer another"})
    assert (other.status_code, (await client.create()).status_code) == (200, 200)


async def test_without_the_fault_nobody_is_too_fast(client: Client) -> None:
    """The control of the two tests above."""
    assert [(await client.create()).status_code for _ in range(3)] == [200] * 3


async def test_the_daily_search_quota_says_when_it_is_over(client: Client) -> None:
    client.arm("rate_limits")
    for _ in range(3):
        assert (await client.http.post("/api/v0/bundles/", json={})).status_code == 200
        client.real.seconds += 6
    answer = await client.http.post("/api/v0/bundles/", json={})
    assert (answer.status_code, answer.json()["error"]) == (429, "search_quota_exceeded")
    resets_at = datetime.fromtimestamp(int(answer.headers["X-RateLimit-Reset"]), UTC)
    client.clock.advance(resets_at - client.clock.now())
    client.real.seconds += 6
    assert (await client.http.post("/api/v0/bundles/", json={})).status_code == 200


# --- control plane ----------------------------------------------------------------------------------------------------


async def test_a_fault_is_armed_from_outside(client: Client) -> None:
    armed = await client.http.post("/sim/faults", json={"name": "label_dropped", "times": 2})
    assert armed.status_code == 200
    assert (await client.http.get("/sim/state")).json()["faults"] == [
        {"name": "label_dropped", "times": 2, "machine_id": None}
    ]


async def test_a_fault_that_does_not_exist_is_refused_with_those_that_do(client: Client) -> None:
    refused = await client.http.post("/sim/faults", json={"name": "meteor"})
    assert refused.status_code == 400
    assert all(name in refused.json()["error"] for name in FAULTS)


async def test_the_state_tells_the_truth_behind_a_lying_list(client: Client) -> None:
    box_id = await client.running()
    client.clock.advance(HOUR)
    client.arm("list_partial")
    assert (await client.page())["instances"] == []
    truth = (await client.http.get("/sim/state", headers={"Authorization": ""})).json()
    [box] = truth["instances"]
    assert (box["id"], box["stage"], box["label"]) == (box_id, "proving", "fa/x/main/1")
    assert truth["usd_billed"] == pytest.approx(box["usd_billed"]) != 0
    assert [made["instance_id"] for made in truth["creates"]] == [box_id]


async def test_a_body_that_is_not_json_is_a_bad_request(client: Client) -> None:
    answer = await client.http.post("/api/v0/bundles/", content=b"{")
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


async def test_a_filter_that_nobody_knows_is_a_bad_request(client: Client) -> None:
    answer = await client.http.get(
        "/api/v1/instances/", params={"select_filters": json.dumps({"mood": {"eq": "good"}})}
    )
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"image": ""}, "invalid_args"),
        ({"disk": 5}, "invalid_args"),
        ({"label": "x" * 257}, "invalid_args"),
        ({"price": "cheap"}, "invalid_args"),
        ({"price": 0.0001}, "invalid_price"),
        ({"template_hash_id": "unknown"}, "invalid_args"),
    ],
)
async def test_an_order_that_breaks_a_documented_limit_is_refused(
    client: Client, wrong: dict[str, Any], error: str
) -> None:
    answer = await client.create(**wrong)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert client.market.creates == []
