"""One offer, bought twice: on the real market both creates have succeeded, and only one box got the GPUs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet_agent.ports import Market, OfferQuery, Offers
from tests.story.saying import finish, says
from tests.watch.rented import Rented, rented


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Rented]:
    async with rented(database_url) as made:
        yield made


class Stale:
    """A market whose search goes on showing what was sold a moment ago."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._seen: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._market, name)

    async def offers(self, query: OfferQuery) -> Offers:
        offers = await self._market.offers(query)
        self._seen |= {offer.id: offer for offer in offers}
        if query.offer_id is not None and query.offer_id in self._seen:
            return Offers([self._seen[query.offer_id]])
        return offers


async def named_twice(fleet: Rented) -> None:
    """A model that wants the cheapest machine, and wants it again."""
    offer, *_ = await fleet.offers()
    rent = ("rent_box", {"offer_id": offer.id, "reason": "it is the cheapest"})
    says(fleet.fleet, [("search_offers", {})], [rent, ("list_boxes", {}), rent], [finish()])
    await fleet.fleet.run()


async def test_an_offer_that_is_named_twice_is_rented_once(fleet: Rented) -> None:
    """It is read again last thing before the call, and is no longer there."""
    await named_twice(fleet)

    assert len(fleet.market.creates) == 1
    assert next((row["status"], row["code"]) for row in fleet.fleet.actions("rent_box")) == ("done", "allowed")


async def test_of_two_boxes_on_one_offer_the_one_without_gpus_is_given_up(fleet: Rented) -> None:
    """Where the search still shows it, both creates succeed: the second box stands still, and its disk is billed."""
    market: Any = Stale(fleet.fleet.ports.market)
    fleet.fleet.ports = replace(fleet.fleet.ports, market=market)
    await named_twice(fleet)
    one, other = fleet.market.instances()
    assert one.lot is other.lot

    await fleet.keeps_looking(timedelta(minutes=15))

    assert fleet.lives(one)
    assert not fleet.lives(other)
