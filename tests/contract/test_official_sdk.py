"""The provider's own Python package, unmodified, works against the simulated provider."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import requests
from vastai import VastAI

from fleet_agent.sim.market import Market, MarketConfig, Order
from fleet_agent.sim.vast_app import create_app
from tests.contract.serving import Provider, Recorder, rentable, serving, until_running

IMAGE = "registry.example/prover@sha256:0"


def rent(provider: Provider, sdk: VastAI, **arguments: Any) -> int:
    ask_id = rentable(provider.market)[0].lot.ask_id
    return sdk.create_instance(ask_id, image=IMAGE, disk=20, **arguments)["new_contract"]


# --- offers -----------------------------------------------------------------------------------------------------------


def test_a_search_finds_what_its_filters_ask_for(sdk: VastAI) -> None:
    query = "num_gpus>=2 dph<1.5 gpu_ram>=20 cpu_ram>=240 reliability>0.98 geolocation notin [VN,TW]"
    offers = sdk.search_offers(query, order="dph")
    assert offers
    for offer in offers:
        assert offer["num_gpus"] >= 2
        assert offer["dph_total"] < 1.5
        assert offer["gpu_ram"] >= 20_000
        assert offer["cpu_ram"] >= 240_000
        assert offer["reliability"] > 0.98
        assert offer["geolocation"][-2:] not in ("VN", "TW")
        assert (offer["verification"], offer["rentable"], offer["external"]) == ("verified", True, False)
    assert [offer["dph_total"] for offer in offers] == sorted(offer["dph_total"] for offer in offers)


def test_the_numbers_of_a_filter_arrive_as_strings(provider: Provider, sdk: VastAI) -> None:
    """A server that compares what it is sent cannot answer: this is why the simulator coerces."""
    sdk.search_offers("dph<1.5 num_gpus>=2")
    wanted = provider.asked("POST", "/api/v0/bundles/")[0].body
    assert (wanted["dph_total"]["lt"], wanted["num_gpus"]["gte"]) == ("1.5", "2")
    with pytest.raises(TypeError):
        assert wanted["dph_total"]["lt"] > 0.4


def test_a_driver_version_is_compared_as_a_number(sdk: VastAI) -> None:
    versions = {offer["driver_version"] for offer in sdk.search_offers("driver_version>=570.0.0")}
    assert versions == {"570.133.20", "580.95.05"}


def test_the_new_search_finds_the_same_offers(sdk: VastAI) -> None:
    old, new = sdk.search_offers("gpu_name=RTX_4090"), sdk.search_offers_new("gpu_name=RTX_4090")
    assert [offer["id"] for offer in new] == [offer["id"] for offer in old] != []


def test_the_price_of_an_offer_includes_the_disk_that_was_asked_for(sdk: VastAI) -> None:
    small, large = (sdk.search_offers("", storage=gigabytes, order="id", limit=1)[0] for gigabytes in (10.0, 500.0))
    assert large["dph_base"] == small["dph_base"]
    assert large["dph_total"] - small["dph_total"] == pytest.approx(490 * small["storage_cost"] / 730)


def test_a_search_for_bids_shows_what_wins_the_gpus_today(sdk: VastAI) -> None:
    on_demand = sdk.search_offers("", order="id", limit=1)[0]
    bid = sdk.search_offers("", type="bid", order="id", limit=1)[0]
    assert bid["id"] == on_demand["id"]
    assert (bid["is_bid"], on_demand["is_bid"]) == (True, False)
    assert bid["dph_base"] == bid["min_bid"] < on_demand["dph_base"]


# --- creating ---------------------------------------------------------------------------------------------------------


def test_a_create_without_a_price_is_on_demand(provider: Provider, sdk: VastAI) -> None:
    offer = sdk.search_offers("", type="bid", storage=20, order="dph", limit=1)[0]
    box = sdk.show_instance(sdk.create_instance(offer["id"], image=IMAGE, disk=20)["new_contract"])
    assert box["is_bid"] is False
    assert box["dph_total"] > offer["dph_total"], "the search was for bids, the price is the full one all the same"


def test_a_create_with_a_price_is_interruptible_at_that_price(provider: Provider, sdk: VastAI) -> None:
    offer = sdk.search_offers("", type="bid", storage=20, order="dph", limit=1)[0]
    box = sdk.show_instance(sdk.create_instance(offer["id"], image=IMAGE, disk=20, bid_price=0.77)["new_contract"])
    assert box["is_bid"] is True
    assert box["dph_total"] == pytest.approx(0.77 + offer["storage_total_cost"])


def test_a_create_sends_everything_that_the_box_will_run(provider: Provider, sdk: VastAI) -> None:
    environment = {"FLEET_TOKEN_REF": "abc", "-p 12300:12300": "1"}
    box_id = rent(provider, sdk, label="fa/x/main/1", env=environment, onstart_cmd="start", ssh=True, direct=True)
    row = sdk.show_instance(box_id)
    assert (row["label"], row["onstart"], row["image_uuid"]) == ("fa/x/main/1", "start", IMAGE)
    assert row["image_runtype"] == "ssh_direc ssh_proxy"
    assert row["extra_env"] == environment


def test_several_offers_are_rented_at_once(provider: Provider, sdk: VastAI) -> None:
    asks = [offer.lot.ask_id for offer in rentable(provider.market)[:3]]
    reply = sdk.create_instances(asks, image=IMAGE, disk=20)
    assert reply["success"] is True
    assert {made.ask_id for made in provider.market.creates} == set(asks)


def test_an_offer_that_is_gone_is_refused_with_a_code_that_does_not_say_so(provider: Provider, sdk: VastAI) -> None:
    with pytest.raises(requests.HTTPError) as refusal:
        sdk.create_instance(1, image=IMAGE)
    assert refusal.value.response.status_code == 404
    answer = refusal.value.response.json()
    assert answer["error"] == "invalid_args"
    assert "no_such_ask" in answer["msg"]


def test_the_official_client_makes_two_boxes_of_one_create_when_the_answer_is_lost(
    provider: Provider, sdk: VastAI
) -> None:
    """Why our own client never retries a create: the official one does."""
    provider.market.faults.arm("create_lost", times=1)
    rent(provider, sdk, label="fa/x/main/1")
    assert [made.label for made in provider.market.creates] == ["fa/x/main/1"] * 2
    assert len(provider.market.instances()) == 2


def test_a_client_that_does_not_retry_makes_one_box_and_learns_nothing(provider: Provider) -> None:
    provider.market.faults.arm("create_lost", times=1)
    with pytest.raises(requests.HTTPError, match="504"):
        rent(provider, VastAI(api_key="made-up-key", server_url=provider.url, retry=1), label="fa/x/main/1")
    assert len(provider.market.instances()) == 1


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_fleet_of_more_than_one_page_is_listed_whole(provider: Provider, sdk: VastAI) -> None:
    for offer in rentable(provider.market)[:30]:
        provider.market.rent(offer.lot.ask_id, Order(IMAGE))
    boxes = sdk.show_instances()
    assert [box["id"] for box in boxes] == [box.id for box in provider.market.instances()]
    assert len(provider.asked("GET", "/api/v1/instances/")) == 2


def test_one_page_holds_25_boxes_whatever_limit_is_asked_for(provider: Provider, sdk: VastAI) -> None:
    """The control of the test above: a reader that stops after one page has lost five boxes."""
    for offer in rentable(provider.market)[:30]:
        provider.market.rent(offer.lot.ask_id, Order(IMAGE))
    page = sdk.show_instances_v1({"limit": 100})
    assert (len(page["instances"]), page["total_instances"]) == (25, 30)
    assert page["next_token"]


def test_pages_neither_repeat_nor_skip_when_boxes_vanish_between_them(provider: Provider, sdk: VastAI) -> None:
    for offer in rentable(provider.market)[:6]:
        provider.market.rent(offer.lot.ask_id, Order(IMAGE))
    ids = [box.id for box in provider.market.instances()]
    first = sdk.show_instances_v1({"limit": 3, "order_by": [{"col": "id", "dir": "desc"}]})
    provider.market.destroy(ids[-1])
    rest = sdk.show_instances_v1({
        "limit": 3, "order_by": [{"col": "id", "dir": "desc"}], "after_token": first["next_token"],
    })  # fmt: skip
    assert [row["id"] for row in first["instances"] + rest["instances"]] == ids[::-1]


def test_boxes_are_found_by_label_and_by_the_lack_of_one(provider: Provider, sdk: VastAI) -> None:
    ours, bare, other = (rent(provider, sdk, label=label) for label in ("fa/x/main/1", None, "someone-else"))

    def found(labels: list[str | None]) -> list[int]:
        page = sdk.show_instances_v1({"select_filters": {"label": {"in": labels}}})
        return [row["id"] for row in page["instances"]]

    assert found(["fa/x/main/1"]) == [ours]
    assert found(["fa/x/main/1", None]) == [ours, bare]
    assert sdk.show_instances_v1({})["label_counts"] == {"fa/x/main/1": 1, "": 1, "someone-else": 1}
    assert other


def test_a_computed_column_cannot_filter_the_list(sdk: VastAI) -> None:
    with pytest.raises(requests.HTTPError) as refusal:
        sdk.show_instances_v1({"select_filters": {"dph_total": {"lt": 1}}})
    assert refusal.value.response.json()["error"] == "invalid_request"


def test_only_the_columns_that_were_asked_for_are_sent(provider: Provider, sdk: VastAI) -> None:
    rent(provider, sdk)
    page = sdk.show_instances_v1({"select_cols": ["id", "label"]})
    assert [set(row) for row in page["instances"]] == [{"id", "label"}]


def test_the_old_list_is_gone_and_says_so(provider: Provider, sdk: VastAI) -> None:
    reply = sdk.client.get("/instances/", query_args={"owner": "me"})
    assert (reply.status_code, reply.json()["error"]) == (410, "deprecated_endpoint")


def test_a_destroyed_box_is_shown_as_nothing(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    assert sdk.show_instance(box_id)["id"] == box_id
    sdk.destroy_instance(box_id)
    assert sdk.show_instance(box_id) is None


def test_an_unsuccessful_list_looks_to_the_official_client_like_an_empty_fleet(provider: Provider, sdk: VastAI) -> None:
    """Why our own client demands the whole envelope: the official one says that there is nothing."""
    rent(provider, sdk)
    provider.market.faults.arm("list_success_false", times=1)
    assert sdk.show_instances() == []
    assert len(sdk.show_instances()) == 1


def test_filterable_values_are_those_of_the_fleet(provider: Provider, sdk: VastAI) -> None:
    box = sdk.show_instance(rent(provider, sdk))
    assert sdk.show_instance_filters() == [
        {"actual_status": None, "verification": box["verification"], "gpu_name": box["gpu_name"]}
    ]


# --- managing ---------------------------------------------------------------------------------------------------------


def test_a_box_is_stopped_and_started_again(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    until_running(provider.market, provider.clock, box_id)
    assert sdk.stop_instance(box_id)["success"] is True
    provider.clock.advance(timedelta(seconds=10))
    row = sdk.show_instance(box_id)
    assert (row["actual_status"], row["intended_status"], row["cur_state"]) == ("stopped", "stopped", "stopped")
    assert sdk.start_instances([box_id])["success"] is True
    until_running(provider.market, provider.clock, box_id)
    assert sdk.show_instance(box_id)["cur_state"] == "running"


def test_a_label_is_changed(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    assert sdk.label_instance(box_id, "fa/x/main/2")["success"] is True
    assert sdk.show_instance(box_id)["label"] == "fa/x/main/2"


def test_a_box_is_rebooted_and_recycled_without_losing_its_gpus(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    for order, status in ((sdk.reboot_instance, "rebooting"), (sdk.recycle_instance, "recycling")):
        until_running(provider.market, provider.clock, box_id)
        assert order(box_id)["success"] is True
        row = sdk.show_instance(box_id)
        assert (row["actual_status"], row["cur_state"]) == (status, "running")


def test_the_image_of_a_box_is_replaced(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    until_running(provider.market, provider.clock, box_id)
    assert sdk.update_instance(box_id, image="registry.example/prover@sha256:1", env={"A": "1"})["success"] is True
    row = sdk.show_instance(box_id)
    assert (row["image_uuid"], row["extra_env"]) == ("registry.example/prover@sha256:1", {"A": "1"})
    assert row["actual_status"] == "recycling"


def test_a_bid_is_raised(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk, bid_price=0.5)
    before = sdk.show_instance(box_id)["dph_total"]
    assert sdk.change_bid(box_id, price=0.6)["success"] is True
    assert sdk.show_instance(box_id)["dph_total"] == pytest.approx(before + 0.1)


def test_logs_are_fetched_from_the_address_in_the_answer_without_the_key(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    until_running(provider.market, provider.clock, box_id)
    provider.clock.advance(timedelta(hours=1))
    lines = sdk.logs(box_id, tail="3").splitlines()
    assert len(lines) == 3
    assert all("prover: proof" in line for line in lines)
    fetches = [asked for asked in provider.recorder.asked if asked.path.startswith("/sim/results/")]
    assert len(fetches) == 2, "not ready at the first look"
    assert all("authorization" not in asked.headers for asked in fetches)


def test_a_command_runs_on_a_box_and_its_output_is_fetched(provider: Provider, sdk: VastAI) -> None:
    assert "/workspace" in sdk.execute(rent(provider, sdk), "du -h /workspace")


def test_a_box_is_destroyed(provider: Provider, sdk: VastAI) -> None:
    box_id = rent(provider, sdk)
    assert sdk.destroy_instance(box_id)["success"] is True
    assert provider.market.instances() == []


def test_many_boxes_are_destroyed_at_once_though_one_is_gone_already(provider: Provider, sdk: VastAI) -> None:
    ids = [rent(provider, sdk) for _ in range(3)]
    provider.market.destroy(ids[1])
    assert sdk.destroy_instances(ids)["success"] is True
    assert provider.market.instances() == []


def test_a_box_that_is_not_there_cannot_be_destroyed(sdk: VastAI) -> None:
    with pytest.raises(requests.HTTPError) as refusal:
        sdk.destroy_instance(7)
    assert (refusal.value.response.status_code, refusal.value.response.json()["error"]) == (404, "no_such_instance")


# --- account ----------------------------------------------------------------------------------------------------------


def test_the_credit_is_what_is_left_to_spend(provider: Provider, sdk: VastAI) -> None:
    rent(provider, sdk)
    provider.clock.advance(timedelta(hours=2))
    left = Decimal(100) - provider.market.usd_billed()
    assert sdk.show_user()["credit"] == pytest.approx(float(left))
    assert left < 100


def test_charges_add_up_to_what_was_billed_a_row_for_each_contract(provider: Provider, sdk: VastAI) -> None:
    """As the published reference has it: by whole days, with three decimals, and with what it was spent on."""
    box_id = rent(provider, sdk, label="fa/x/main/1")
    opened = int(provider.market.opened_at.timestamp()) // 86_400 * 86_400
    provider.clock.advance(timedelta(hours=30))
    billed = float(provider.market.usd_billed())
    page = sdk.show_invoices_v1(charges=True, start_date=opened, end_date=opened + 3 * 86_400)
    (row,) = page["results"]
    assert (page["count"], page["total"]) == (1, 1)
    assert (row["source"], row["type"]) == (f"instance-{box_id}", "instance")
    assert row["description"] == f"Instance {box_id} Charges - 3 days", "30 hours from nine in the evening"
    assert row["end"] - row["start"] == 2 * 86_400
    assert row["start"] % 86_400 == 0
    assert row["amount"] == pytest.approx(billed, abs=0.001)
    assert sum(item["amount"] for item in row["items"]) == pytest.approx(row["amount"], abs=0.002)
    assert {item["type"] for item in row["items"]} == {"gpu", "disk", "bwd"}
    assert row["metadata"] == {"label": "fa/x/main/1"}


def test_charges_are_paged(provider: Provider, sdk: VastAI) -> None:
    for _ in range(3):
        rent(provider, sdk)
    opened = int(provider.market.opened_at.timestamp()) // 86_400 * 86_400
    provider.clock.advance(timedelta(hours=1))
    window = {"charges": True, "start_date": opened, "end_date": opened + 86_400, "limit": 2}
    first = sdk.show_invoices_v1(**window)
    second = sdk.show_invoices_v1(**window, next_token=first["next_token"])
    assert (first["count"], first["total"], second["count"], second["next_token"]) == (2, 3, 1, None)


def test_a_deposit_is_an_invoice(provider: Provider, sdk: VastAI) -> None:
    opened = int(provider.market.opened_at.timestamp())
    page = sdk.show_invoices_v1(start_date=opened, end_date=opened + 1)
    assert [row["amount"] for row in page["results"]] == [100.0]


def test_a_report_without_a_time_range_fails_with_a_success_status(provider: Provider, sdk: VastAI) -> None:
    reply = sdk.client.get("/api/v1/invoices/", query_args={})
    assert (reply.status_code, reply.json()["success"]) == (200, False)


def test_ssh_keys_come_and_go(provider: Provider, sdk: VastAI) -> None:
    key = sdk.create_ssh_key("ssh-ed25519 AAAA one")["key"]
    sdk.update_ssh_key(key["id"], "ssh-ed25519 AAAA two")
    assert [row["key"] for row in sdk.show_ssh_keys()] == ["ssh-ed25519 AAAA two"]
    box_id = rent(provider, sdk)
    assert sdk.attach_ssh(box_id, "ssh-ed25519 AAAA two")["success"] is True
    assert sdk.detach_ssh(box_id, key["id"])["success"] is True
    sdk.delete_ssh_key(key["id"])
    assert sdk.show_ssh_keys() == []


def test_a_box_is_made_from_a_template_and_an_edit_gives_it_a_new_hash(provider: Provider, sdk: VastAI) -> None:
    template = sdk.create_template(name="prover", image=IMAGE, ssh=True)["template"]
    ask_id = rentable(provider.market)[0].lot.ask_id
    made = sdk.create_instance(ask_id, template_hash=template["hash_id"])
    assert sdk.show_instance(made["new_contract"])["image_uuid"] == IMAGE
    edited = sdk.update_template(template["hash_id"], name="prover", image="other")["template"]
    assert edited["hash_id"] != template["hash_id"]
    assert [row["image"] for row in sdk.search_templates()] == ["other"]
    sdk.delete_template(hash_id=edited["hash_id"])
    assert sdk.search_templates() == []


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_404_on_old_paths_and_401_on_new_ones(provider: Provider) -> None:
    market = Market(provider.clock, api_key="the-right-key", config=MarketConfig(machines=1))
    with serving(Recorder(create_app(market))) as url:
        wrong, right = (VastAI(api_key=key, server_url=url) for key in ("a-wrong-key", "the-right-key"))
        old, new = wrong.client.get("/users/current"), wrong.client.get("/api/v1/instances/")
        assert [(reply.status_code, reply.json()["error"]) for reply in (old, new)] == [
            (404, "auth_error"),
            (401, "auth_error"),
        ]
        assert right.show_instances() == []


def test_a_request_without_a_key_is_forbidden(provider: Provider, sdk: VastAI) -> None:
    sdk.client.api_key = None
    assert sdk.client.get("/users/current").status_code == 403
