"""What is remembered of the machines of strangers: how fast they are, how they failed, and for how long to avoid them.

Offers come and go under new numbers; the machine stays. So a ban names the machine, and a measurement the machine with
the number of GPUs that it was made on.

A ban ends by itself, for hosts are mended and change hands; how long it lasts is said by the class of the failure. The
agent may ban too, but only what it has had a box on, and only so many machines a run: who could ban at will could leave
no machine to rent. And what strangers write must not shut a machine out for a year, so a run that has read their words
bans for security as if the failure were transient: the machine is avoided at once, and a person may make it longer.

How fast a machine is it says itself, and who owns it may say anything. So a rate decides nothing but against the
machine: a low one makes it dear, a high one allows nothing that silence would not allow. And what no GPU can do is no
rate at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Final

from pydantic import Field

from fleet_agent.domain.values import Frozen
from fleet_agent.errors import ChooseAnother, FleetAgentError, StopRenting


class Failure(StrEnum):
    """How a machine failed, by what it says of the next try."""

    DETERMINISTIC = "deterministic"
    """It would fail again: an image that cannot start there, another machine than the offer said, a broken GPU."""
    TRANSIENT = "transient"
    """It may do better another day: a slow line, a host that went offline, a rent that came to nothing."""
    SECURITY = "security"
    """It did what no honest machine does."""


_Lasts = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=3650))]


class BanBounds(Frozen):
    """How long a machine is avoided after a failure of each class."""

    deterministic: Annotated[_Lasts, Field(description="such as P30D; it would fail again")] = timedelta(days=30)
    transient: Annotated[_Lasts, Field(description="it may do better another day")] = timedelta(hours=6)
    security: Annotated[_Lasts, Field(description="it did what no honest machine does")] = timedelta(days=365)

    def lasts(self, failure: Failure) -> timedelta:
        match failure:
            case Failure.DETERMINISTIC:
                return self.deterministic
            case Failure.TRANSIENT:
                return self.transient
            case Failure.SECURITY:
                return self.security


# --- bans ------------------------------------------------------------------------------------------------------------

LONGEST_REASON: Final = 300


class Ban(Frozen):
    """A machine that is not rented until `expires_at`.

    `reason` may be words that a stranger's words have led: it is for people, and no prompt carries it.
    """

    machine_id: int
    failure: Failure
    reason: str
    banned_by: str
    banned_at: datetime
    expires_at: datetime


class NotBanned(Frozen):
    """Nothing was banned; `sentence` says why."""

    sentence: str


def machines_of(bans: Sequence[Ban]) -> frozenset[int]:
    return frozenset(ban.machine_id for ban in bans)


def no_machine(machine_id: int) -> str | None:
    """Why this number names no machine, or None. A provider that does not know one may say 0."""
    if 0 < machine_id < 2**63:
        return None
    return f"{machine_id} is the number of no machine: nothing is remembered under it"


class InVain(Enum):
    """What follows from a rent that came to nothing."""

    AVOID_MACHINE = "avoid the machine"
    """For a while; and where one rent after the other comes to this, nothing is rented until a person has looked."""
    STOP_RENTING = "stop renting"
    """It would come to nothing on any machine: no credit is given."""


def what_follows(error: FleetAgentError) -> InVain | None:
    """What follows from a create that was answered with `error`.

    None for a call that never left and for what a person must mend, which say nothing of renting. And for a lost
    answer, which says nothing until somebody has looked.
    """
    match error:
        case ChooseAnother():
            return InVain.AVOID_MACHINE
        case StopRenting():
            return InVain.STOP_RENTING
        case _:
            return None


def why_a_run_may_not_ban(machine_id: int, *, had_a_box: bool, banned_so_far: int, most: int) -> str | None:
    """`had_a_box`: a box of the fleet is or was on it. `banned_so_far`: by this run, which may ban `most`."""
    if not had_a_box:
        return f"Nothing banned: no box of this fleet is or was on machine {machine_id}."
    if banned_so_far + 1 > most:
        return f"Nothing banned: this run has banned {banned_so_far} times and may ban {most} times."
    return None


def class_for_a_run(wanted: Failure, *, tainted: bool) -> Failure:
    """The class of a ban that the agent asks for; see the head of this module for why a tainted run gets another."""
    return Failure.TRANSIENT if tainted and wanted is Failure.SECURITY else wanted


HELD_BACK: Final = (
    " This run has read words from outside, so it may not ban for security; the operator can (`fleet-agent hosts ban`)."
)
"""What the agent is told where its ban got another class than it asked for."""


# --- what machines have shown ----------------------------------------------------------------------------------------


class Benchmark(Frozen):
    """The best that a machine has shown, with so many GPUs."""

    machine_id: int
    num_gpus: int
    proofs_per_hour: float
    measured_at: datetime


LEAST_RATE: Final = 0.01
"""Proofs an hour: one in four days. Who is slower than that has not proved anything yet."""


def no_rate(proofs_per_hour: float, num_gpus: int, *, most_per_gpu: float) -> str | None:
    """Why no machine with so many GPUs has measured this, or None. `most_per_gpu` is the policy's."""
    most = most_per_gpu * max(1, num_gpus)
    if LEAST_RATE <= proofs_per_hour <= most:  # which is no NaN either
        return None
    return f"{proofs_per_hour:g} proofs an hour is no measurement: from {LEAST_RATE:g} to {most:g} is believed"


def measured_rate(benchmarks: Sequence[Benchmark], machine_id: int, num_gpus: int) -> float | None:
    """Proofs an hour; None where nobody has measured this machine with just so many GPUs."""
    found = (b for b in benchmarks if (b.machine_id, b.num_gpus) == (machine_id, num_gpus))
    return next((benchmark.proofs_per_hour for benchmark in found), None)
