"""The process of the watch: its settings, its signals, its end.

python -m fleet_agent.watch_process

Where Prefect is, it is told by Prefect's own variables, as a worker is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from fleet_agent import wiring
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.settings import Settings
from fleet_agent.watch import Watch


async def keep_watch(
    settings: Settings, *, api_url: str, auth_string: str | None, once: bool, tell: Callable[[str], None]
) -> None:
    """Until SIGINT or SIGTERM, or one look. Raises FixSetup, DatabaseUnreachable when it cannot begin."""
    async with wiring.open_watch(settings, api_url, auth_string, tell=tell) as ports:
        watch = Watch(ports)
        if once:
            await watch.once()
            return
        async with _until_asked_to_end() as end:
            keeping = asyncio.create_task(watch.keep())
            asked = asyncio.create_task(end.wait())
            tell("The watch goes on: it rings for what waits, sees to what is rented, and tells Prefect of dead runs.")
            await asyncio.wait([keeping, asked], return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if keeping.done():
                keeping.result()  # a defect
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping


@asynccontextmanager
async def _until_asked_to_end() -> AsyncGenerator[asyncio.Event]:
    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end.set)
    try:
        yield end
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def main() -> int:
    """For the process tree: everything is in the environment, and what is said goes into its log."""
    try:
        api_url = os.environ.get("PREFECT_API_URL")
        if api_url is None:
            raise FixSetup("it is not said where Prefect is", "set PREFECT_API_URL and PREFECT_API_AUTH_STRING")
        auth_string = os.environ.get("PREFECT_API_AUTH_STRING")
        asyncio.run(keep_watch(Settings.load(), api_url=api_url, auth_string=auth_string, once=False, tell=_tell))
    except FleetAgentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
