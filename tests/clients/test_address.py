"""An address that no server can have is told at the start, with the setting it came from, and not by a crash later."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from fleet_agent.clients import model, prefect_rest, prometheus, vast
from fleet_agent.clients.address import usable_address
from fleet_agent.errors import FixSetup
from tests.clients.world import KEY

OPENERS: dict[str, Callable[[str], object]] = {
    "FLEET_VAST_URL": lambda url: vast.open_client(url, KEY),
    "FLEET_MODEL_URL": lambda url: model.open_client(url, None),
    "FLEET_DEMAND_PROMETHEUS_URL": prometheus.open_client,
    "FLEET_PREFECT_PORT": lambda url: prefect_rest.open_client(url, None),
}
IMPOSSIBLE = ["http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1", "http://host:port", "http://"]


@pytest.mark.parametrize("setting", OPENERS)
@pytest.mark.parametrize("url", IMPOSSIBLE)
def test_every_client_refuses_an_impossible_address_in_one_line_that_names_the_setting(setting: str, url: str):
    with pytest.raises(FixSetup) as refusal:
        OPENERS[setting](url)

    assert setting in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("setting", OPENERS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:65535", "http://[::1]:8000/v1", "https://server.test"])
def test_every_client_takes_an_address_that_a_server_can_have(setting: str, url: str):
    OPENERS[setting](url)


def test_a_password_in_the_address_is_not_repeated():
    with pytest.raises(FixSetup) as refusal:
        usable_address("http://operator:made-up-password", "FLEET_MODEL_URL")

    assert "made-up-password" not in str(refusal.value)


async def test_control_the_library_alone_finds_out_at_the_first_request_and_with_an_error_that_no_caller_expects():
    async with httpx.AsyncClient(base_url="http://127.0.0.1:99999", trust_env=False) as client:
        with pytest.raises(Exception) as late:
            await client.get("/")

    assert not isinstance(late.value, httpx.RequestError | FixSetup)
