"""What is remembered of the machines of strangers: how fast they are, how they failed, and for how long to avoid them.

Offers come and go under new numbers; the machine stays. So a ban names the machine, and a measurement the machine with
the number of GPUs that it was made on.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pydantic import Field

from fleet_agent.domain.values import Frozen


class Failure(StrEnum):
    """How a machine failed, by what it says of the next try."""

    DETERMINISTIC = "deterministic"
    """It would fail again: an image that cannot start there, another machine than the offer said, a broken GPU."""
    TRANSIENT = "transient"
    """It may do better another day: a slow line, a host that went offline, a rent that came to nothing."""
    SECURITY = "security"
    """It did what no honest machine does."""


class BanBounds(Frozen):
    """How long a machine is avoided after a failure of each class."""

    deterministic: timedelta = Field(default=timedelta(days=30), description="such as P30D; it would fail again")
    transient: timedelta = Field(default=timedelta(hours=6), description="it may do better another day")
    security: timedelta = Field(default=timedelta(days=365), description="it did what no honest machine does")

    def lasts(self, failure: Failure) -> timedelta:
        match failure:
            case Failure.DETERMINISTIC:
                return self.deterministic
            case Failure.TRANSIENT:
                return self.transient
            case Failure.SECURITY:
                return self.security


LONGEST_REASON: Final = 300


class Ban(Frozen):
    """A machine that is not rented until `expires_at`."""

    machine_id: int
    failure: Failure
    reason: str
    banned_by: str
    banned_at: datetime
    expires_at: datetime


class Benchmark(Frozen):
    """The best that a machine has shown, with so many GPUs."""

    machine_id: int
    num_gpus: int
    proofs_per_hour: float
    measured_at: datetime
