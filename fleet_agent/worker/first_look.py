"""What a worker finds out beside its first runs: whether each model really calls tools, and whether a prompt has room.

Some servers drop the tools of a request silently, and some settings leave a run no room: both look well, and nothing
is ever done. The worker says so once in its log; `status` and `doctor` show it, and a person gets a notice of a model
that fails its test, and of a prompt without room. A worker does not wait for it, nor does it end over it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from fleet_agent import wiring
from fleet_agent.domain.exits import exit_reason
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.settings import Settings
from fleet_agent.store import notices

AFTER = 15.0
"""Seconds: by then the worker takes runs, and does not share the processor with this."""


def look_later(settings: Settings) -> None:
    """In a thread of its own, which ends with the process at the latest."""
    timer = threading.Timer(AFTER, lambda: asyncio.run(look(settings, tell=lambda line: print(line, flush=True))))
    timer.daemon = True
    timer.start()


async def look(settings: Settings, *, tell: Callable[[str], None]) -> None:
    if not settings.models:
        return
    try:
        for tested in await wiring.self_test_models(settings):
            tell(f"{tested.name} {'passed' if tested.passed else 'FAILED'} its self-test: {tested.words}")
        tell(f"a run has {await wiring.room_in_prompt(settings):,} tokens of a prompt for itself")
    except FleetAgentError as error:
        tell(str(error))
        if isinstance(error, FixSetup):
            _have_a_person_told(settings, error)


def _have_a_person_told(settings: Settings, error: FixSetup) -> None:
    """Once a day, however often a worker starts. Where the database is what is wrong, the log has said it."""
    with suppress(FleetAgentError), wiring.open_store(settings) as database, database.shared(settings.fleet) as tx:
        now = wiring.read_clock(database).now()
        key = f"first look: {exit_reason(type(error))} {now:%Y-%m-%d}"
        notices.give(tx, settings.fleet, key=key, text=str(error), now=now)
