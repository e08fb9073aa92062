"""How business time follows real time. The demo's runs faster; Prefect and the network know only the real one.

Time that is kept in rows follows the database's clock, and a person can set that. A running process does not notice,
the next one lives in another hour. Set forward, everything is due early; set back, what was written before lies in a
time to come. Nothing that was written should: so `is_of_a_time_to_come` tells that the clock was set back since, and
what such a time would hold up is held up no longer. Early is a look too many; late is what nobody would notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

CLOCKS_AGREE_WITHIN: Final = timedelta(minutes=1)
"""Business time by which a process may be ahead of another one. A clock that is set back by less delays by no more."""


def is_of_a_time_to_come(written_at: datetime, now: datetime) -> bool:
    """Has the clock been set back since this was written?"""
    return written_at > now + CLOCKS_AGREE_WITHIN


@dataclass(frozen=True)
class Timeline:
    """How business time follows real time: the same line in every process, kept in `installation`."""

    origin: datetime
    started_at: datetime
    speed: float

    def business(self, real: datetime) -> datetime:
        return self.origin + (real - self.started_at) * self.speed

    def real(self, business: datetime) -> datetime:
        return self.started_at + (business - self.origin) / self.speed
