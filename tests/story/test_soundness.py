"""The looking itself is looked at: each promise about money, broken on purpose, is seen to be broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from fleet_agent.ports import RentOrder
from fleet_agent.sim.market import Order
from tests.soundness import unsound
from tests.world import ADDRESS, IMAGE, KEY, Installation


@pytest.fixture
async def broken(fleet: Installation) -> Installation:
    """A fleet with two boxes, whose promises a test may break."""
    fleet.unsound_because = "it is broken on purpose"
    await fleet.run()
    assert unsound(fleet) == []
    return fleet


def order(fleet: Installation, key: str) -> RentOrder:
    ask = next(offer.lot.ask_id for offer in fleet.sim.market.offers() if offer.rentable)
    return RentOrder(
        offer_id=ask,
        label=label(fleet, key),
        image=IMAGE,
        disk_gb=100,
        runtype="args",
        env={},
        onstart="",
        send_by=fleet.clock.elapsed() + fleet.clock.elapsed().resolution,
    )


def label(fleet: Installation, key: str) -> str:
    return f"fa/{fleet.status()['installation']}/main/{key}"


async def test_a_create_without_an_intent_is_seen(broken: Installation) -> None:
    await broken.ports.market.rent(order(broken, "r9-s1-c1-aaaa"))
    assert any("was ordered for" in sentence for sentence in unsound(broken))
    assert any("without an intent that was sent" in sentence for sentence in unsound(broken))


async def test_a_destroy_without_an_intent_is_seen(broken: Installation) -> None:
    await broken.ports.market.destroy(broken.boxes()[0]["vast_id"])
    assert any("was to be destroyed without an intent" in sentence for sentence in unsound(broken))


async def test_the_end_of_a_strangers_box_is_seen(broken: Installation) -> None:
    ask = next(offer.lot.ask_id for offer in broken.sim.market.offers() if offer.rentable)
    theirs = broken.sim.market.rent(ask, Order(image=IMAGE, label="somebody else's"))
    await broken.ports.market.destroy(theirs.id)
    assert any("made for somebody else's, was to be destroyed" in sentence for sentence in unsound(broken))


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/api/v0/instances/30000000/"), ("PUT", "/api/v0/instances/reboot/30000000/"), ("POST", "/api/v0/ssh/")],
)
async def test_whatever_is_no_create_and_no_destroy_is_a_broken_promise(
    broken: Installation, method: str, path: str
) -> None:
    transport: Any = httpx.ASGITransport(broken.door)
    async with httpx.AsyncClient(base_url=ADDRESS, transport=transport, headers=KEY) as client:
        await client.request(method, path, json={"state": "stopped", "ssh_key": "x"})
    assert unsound(broken) == [f"{method} {path} is an effect that nothing rules on"]


async def test_a_cap_that_is_exceeded_at_a_create_is_seen(broken: Installation) -> None:
    """Lowered behind everybody's back, so that no rule can know of it."""
    with broken.database.transaction() as tx:
        tx.execute(text("""UPDATE session_state SET policy = jsonb_set(policy, '{limits,max_boxes}', '2')"""))
    await broken.ports.market.rent(order(broken, "r9-s1-c1-aaaa"))
    assert "3 boxes live and the cap is 2" in unsound(broken)


async def test_a_box_that_the_ledger_forgot_is_seen(broken: Installation) -> None:
    with broken.database.transaction() as tx:
        tx.execute(text("DELETE FROM box"))
        tx.execute(text("UPDATE action SET sent_at = NULL, status = 'refused'"))
    assert any("the ledger knows nothing of it" in sentence for sentence in unsound(broken))


async def test_what_goes_beyond_an_approval_is_seen(broken: Installation) -> None:
    grant = """{"tool": "rent_box", "expires_at": "2026-03-17T12:00:00Z", "gpu_name": "H100", "num_gpus": 8,
                "max_usd_per_hour": "9", "vast_id": null}"""
    with broken.database.transaction() as tx:
        statement = "UPDATE action SET \"grant\" = CAST(:grant AS jsonb), approved_by = 'ana', approved_at = now()"
        tx.execute(text(statement), {"grant": grant})
    assert any("went beyond what was approved" in sentence for sentence in unsound(broken))


async def test_a_box_that_was_made_on_other_terms_than_were_judged_is_seen(broken: Installation) -> None:
    with broken.database.transaction() as tx:
        tx.execute(text("""UPDATE action SET offer = offer || '{"usd_per_hour": "0.01"}'"""))
    assert any("was judged at 0.01 $/h" in sentence for sentence in unsound(broken))


async def test_a_word_to_the_operator_without_an_intent_is_seen(broken: Installation) -> None:
    await replace(broken.ports).notifier.notify("Psst.")
    assert any("the operator was told 1 times" in sentence for sentence in unsound(broken))
