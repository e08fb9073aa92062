"""Telling the operator: through the real package, with services that live in this process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest
from apprise import NotificationManager
from apprise.decorators import notify

from fleet_agent.clients.notify import AppriseNotifier, NobodyToTell
from fleet_agent.errors import TryLater

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # of a package behind apprise, on Python 3.11

SECRET = "made-up-token-0123456789"


@pytest.fixture
def told() -> Generator[list[str]]:
    """What the service `accepts://` was told. `refuses://` takes nothing, `hangs://` answers when the test is over."""
    messages: list[str] = []
    test_is_over = threading.Event()

    @notify(on="accepts")
    def accept(body: str, *_: Any, **__: Any) -> bool:
        messages.append(body)
        return True

    @notify(on="refuses")
    def refuse(*_: Any, **__: Any) -> bool:
        return False

    @notify(on="hangs")
    def hang(*_: Any, **__: Any) -> bool:
        return test_is_over.wait(60)

    yield messages
    test_is_over.set()
    for scheme in ("accepts", "refuses", "hangs"):
        NotificationManager().remove(scheme)


async def test_a_message_reaches_the_service_as_it_was_written(told: list[str]):
    await AppriseNotifier([f"accepts://{SECRET}"]).notify("Balance: $3.20 <b>low</b> & *falling*")

    assert told == ["Balance: $3.20 <b>low</b> & *falling*"]


@pytest.mark.parametrize("other", [f"refuses://{SECRET}", f"nosuch://{SECRET}", "not an address"])
async def test_one_service_that_took_the_message_is_enough(told: list[str], other: str):
    await AppriseNotifier([other, f"accepts://{SECRET}"]).notify("Hello.")

    assert told == ["Hello."]


@pytest.mark.parametrize(
    ("schemes", "sentence"),
    [
        (["accepts", "refuses"], "The operator was told through 1 service."),
        (["accepts", "accepts"], "The operator was told through 2 services."),
    ],
)
async def test_the_answer_says_through_how_many_services(told: list[str], schemes: list[str], sentence: str):
    urls = [f"{scheme}://{SECRET}{number}" for number, scheme in enumerate(schemes)]

    assert await AppriseNotifier(urls).notify("Hello.") == sentence


@pytest.mark.parametrize("urls", [[f"refuses://{SECRET}"], [f"nosuch://{SECRET}", f"refuses://{SECRET}"]])
async def test_when_no_service_took_the_message_the_error_counts_them_and_names_none(told: list[str], urls: list[str]):
    with pytest.raises(TryLater, match=f"none of the {len(urls)}") as error:
        await AppriseNotifier(urls).notify("Hello.")

    assert SECRET not in str(error.value)


async def test_a_service_that_hangs_is_not_waited_for_beyond_the_deadline(told: list[str]):
    with pytest.raises(TryLater):
        await AppriseNotifier([f"hangs://{SECRET}"], deadline=timedelta(milliseconds=1)).notify("Hello.")


async def test_without_any_address_the_answer_says_that_nobody_was_told():
    sentence = await NobodyToTell().notify("Hello.")

    assert sentence == "Kept in the ledger; no address is set (FLEET_NOTIFY_URLS), so nobody was told."
