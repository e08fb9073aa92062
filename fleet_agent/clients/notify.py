"""Telling the operator, through any of the services that the package apprise knows.

The addresses hold passwords and tokens, so no error names one; they are counted instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from fleet_agent.errors import TryLater

DEADLINE = timedelta(seconds=30)
"""Real time to wait for all services together; apprise itself keeps it."""


class AppriseNotifier:
    """`ports.Notifier` for apprise addresses, such as `ntfy://topic`."""

    has_an_address = True

    def __init__(self, urls: Sequence[str], *, deadline: timedelta = DEADLINE) -> None:
        self._urls = list(urls)
        self._deadline = deadline

    async def notify(self, text: str) -> str:
        """As `ports.Notifier.notify`: one service that took the message is enough."""
        told = await asyncio.to_thread(_services_told, self._urls, text, self._deadline)
        if told == 0:
            raise TryLater(
                f"none of the {len(self._urls)} notification services took the message",
                "check FLEET_NOTIFY_URLS; `fleet-agent ledger` shows what the agent wanted to say",
            )
        return f"The operator was told through {told} service{'' if told == 1 else 's'}."


def _services_told(urls: list[str], text: str, deadline: timedelta) -> int:
    """How many services took `text`, as plain text. Blocks; loads a large package on first use.

    An address that apprise does not understand counts as a service that refused.
    """
    from apprise import Apprise, NotifyFormat

    services = Apprise()
    services.add([*urls])  # pyright: ignore[reportUnknownMemberType]  # the package types its configuration as bare dict
    sent = services.notify(  # pyright: ignore[reportUnknownMemberType]
        body=text, body_format=NotifyFormat.TEXT, timeout=deadline.total_seconds()
    )
    return sent.success_count


class NobodyToTell:
    """`ports.Notifier` where no address was set: the message stands in the ledger, for `fleet-agent ledger` to show."""

    has_an_address = False

    async def notify(self, text: str) -> str:
        return "Kept in the ledger; no address is set (FLEET_NOTIFY_URLS), so nobody was told."
