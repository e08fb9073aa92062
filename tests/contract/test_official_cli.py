"""The provider's own command line, unmodified, works against the simulated provider.

It exits 0 whatever the server answers, so nothing here trusts an exit code: what counts is what it printed and what the
market became. Each command is a process of its own and takes most of a second.
"""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fleet_agent.sim.market import Order
from fleet_agent.sim.vast_app import create_app
from tests.contract.conftest import Cli
from tests.contract.serving import Provider, rentable, serving, until_running, with_charset

IMAGE = "registry.example/prover@sha256:0"


def rent(provider: Provider, **order: str) -> int:
    return provider.market.rent(rentable(provider.market)[0].lot.ask_id, Order(IMAGE, **order)).id


def test_an_operator_finds_rents_looks_at_and_destroys_a_box(provider: Provider, cli: Cli) -> None:
    query = "num_gpus=1 gpu_ram>=20 dph<1"
    offer = json.loads(cli("search", "offers", query, "-o", "dph", "--storage", "20", "--raw").stdout)[0]
    created = json.loads(cli(
        "create", "instance", str(offer["id"]), "--image", IMAGE, "--disk", "20", "--label", "fa/x/main/1",
        "--cancel-unavail", "--raw",
    ).stdout)  # fmt: skip
    [box] = json.loads(cli("show", "instances", "--raw").stdout)
    assert (box["id"], box["label"], box["is_bid"]) == (created["new_contract"], "fa/x/main/1", False)
    assert box["dph_total"] == pytest.approx(offer["dph_total"])
    assert "destroying instance" in cli("destroy", "instance", str(box["id"]), "-y").stdout
    assert provider.market.instances() == []


def test_nothing_is_destroyed_without_a_yes(provider: Provider, cli: Cli) -> None:
    box_id = rent(provider)
    assert "Aborted" in cli("destroy", "instance", str(box_id)).stdout
    assert [box.id for box in provider.market.instances()] == [box_id]


def test_offers_are_shown_only_if_the_content_type_is_exact(
    provider: Provider, cli: Cli, vastai: Callable[[str], Cli]
) -> None:
    """Control: the same reply with a charset, equivalent by the book, shows nothing and exits 0."""
    assert len(json.loads(cli("search", "offers", "--raw").stdout)) > 10
    with serving(with_charset(create_app(provider.market))) as url:
        spoiled = vastai(url)("search", "offers", "--raw")
    assert "invalid return Content-Type" in spoiled.stdout
    assert (spoiled.returncode, "gpu_name" in spoiled.stdout) == (0, False)


def test_the_table_of_offers_shows_gpu_names(cli: Cli) -> None:
    assert "RTX 4090" in cli("search", "offers", "gpu_name=RTX_4090").stdout.replace("_", " ")


def test_a_fleet_of_more_than_one_page_is_listed_whole(provider: Provider, cli: Cli) -> None:
    for offer in rentable(provider.market)[:30]:
        provider.market.rent(offer.lot.ask_id, Order(IMAGE))
    assert cli("show", "instances", "-q").stdout.split() == [str(box.id) for box in provider.market.instances()]


def test_the_table_of_boxes_is_filtered_by_label(provider: Provider, cli: Cli) -> None:
    rent(provider, label="fa/x/main/1")
    rent(provider, label="someone-else")
    shown = cli("show", "instances", "--label", "fa/x/main/1", "--no-color").stdout
    assert "Total: 1 instances" in shown
    assert provider.asked("GET", "/api/v0/instances/filters/")


def test_a_box_is_shown_with_the_fields_that_the_client_computes_from(
    provider: Provider, cli: Cli, vastai: Callable[[str], Cli]
) -> None:
    """Control: a row without `start_date`, which no documentation demands, ends in a traceback."""
    row = json.loads(cli("show", "instance", str(rent(provider)), "--raw").stdout)
    assert row["duration"] > 0
    assert row["extra_env"] == {}

    async def bare(request: Request) -> JSONResponse:
        return JSONResponse({"instances": {"id": 1, "extra_env": []}})

    with serving(Starlette(routes=[Route("/api/v0/instances/1/", bare)])) as url:
        assert "KeyError: 'start_date'" in vastai(url)("show", "instance", "1", "--raw").stderr


def test_an_interruptible_box_is_made_and_its_bid_raised(provider: Provider, cli: Cli) -> None:
    ask_id = str(rentable(provider.market)[0].lot.ask_id)
    made = json.loads(cli("create", "instance", ask_id, "--image", IMAGE, "--bid_price", "0.4", "--raw").stdout)
    cli("change", "bid", str(made["new_contract"]), "--price", "0.5")
    [box] = provider.market.instances()
    assert (box.is_bid, str(box.gpu_usd_per_hour)) == (True, "0.5")


def test_logs_are_printed(provider: Provider, cli: Cli) -> None:
    box_id = rent(provider)
    until_running(provider.market, provider.clock, box_id)
    provider.clock.advance(timedelta(hours=1))
    assert "prover: proof" in cli("logs", str(box_id), "--tail", "5").stdout


def test_many_boxes_are_destroyed_at_once(provider: Provider, cli: Cli) -> None:
    ids = [str(rent(provider)) for _ in range(3)]
    cli("destroy", "instances", *ids, "-y")
    assert provider.market.instances() == []
    assert len(provider.asked("DELETE", "/api/v0/instances/")) == 1


def test_the_credit_is_shown_and_the_key_is_not(cli: Cli) -> None:
    shown = cli("show", "user", "--raw").stdout
    assert json.loads(shown)["credit"] == 100.0
    assert "made-up-key" not in shown


def test_charges_are_shown_with_what_they_were_for(provider: Provider, cli: Cli) -> None:
    box_id = rent(provider)
    provider.clock.advance(timedelta(hours=1))
    window = "--start-date", "2026-03-02", "--end-date", "2026-03-03"
    tree = cli("show", "invoices-v1", "--charges", *window, "--format", "tree", "--verbose", "--no-color").stdout
    assert "Showing 1 of 1 results" in tree
    assert f"Instance {box_id}" in tree
    assert "disk" in tree


def test_an_error_goes_to_stderr_and_exits_0(cli: Cli) -> None:
    """Why our own client does not go through this program."""
    failed = cli("create", "instance", "1", "--image", IMAGE, "--raw")
    assert failed.returncode == 0
    assert json.loads(failed.stderr)["status_code"] == 404
