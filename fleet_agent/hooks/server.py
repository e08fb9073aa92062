"""The process of the door: its port, its logs, its end.

python -m fleet_agent.hooks.server
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import uvicorn

from fleet_agent import wiring
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.hooks.app import hooks_app
from fleet_agent.hooks.rate import Buckets
from fleet_agent.settings import Settings
from fleet_agent.store.installation import read_clock

MOST_AT_ONCE: Final = 128
"""Connections. Whoever comes beyond them is answered 503 at once, and is sent again by a sender that cares; without a
bound they would all wait, with a megabyte each."""

MAY_TAKE_TO_END: Final = 5
"""Seconds for the posts at hand when asked to end."""


async def serve(settings: Settings, *, tell: Callable[[str], None]) -> None:
    """Take webhooks in until SIGINT or SIGTERM. Raises FixSetup, DatabaseUnreachable."""
    with wiring.open_store(settings) as database, _listening(settings) as listener:
        clock = read_clock(database)
        config = uvicorn.Config(
            hooks_app(database, clock, Buckets(clock.elapsed)),
            lifespan="off",
            log_config=None,
            access_log=False,  # a path may have a token in it
            limit_concurrency=MOST_AT_ONCE,
            timeout_graceful_shutdown=MAY_TAKE_TO_END,
            server_header=False,
        )
        server = _Server(config)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
        tell(f"Webhooks are taken in at http://{settings.hooks_bind}/hooks/SOURCE")
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Leaves the signals to `serve`: uvicorn would raise them again at its end, and nothing would be closed."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _listening(settings: Settings) -> socket.socket:
    host, port = settings.hooks_address
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise FixSetup(
            f"cannot listen on {settings.hooks_bind}: {error.strerror or error}",
            "stop what uses it, or set FLEET_HOOKS_BIND to another address",
        ) from error


def main() -> int:
    """For the process tree: the settings are in the environment, and what is said goes into its log."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(serve(Settings.load(), tell=print))
    except FleetAgentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
