"""What ails a prover, by what its daemon says of itself.

A prover that has stopped working seldom says so: it goes on living, with its cards idle or a proof at hand that never
ends, and is paid for by the hour. So what counts is progress over several looks, and never an error message: most
verdicts want the same picture for as long as no healthy prover would show it.

Each verdict has its remedies, the mildest first. Most begin with a new start of the process; what comes back after that
is the machine's, and the box is replaced. A box that ruins proofs is not tried again, and its machine is avoided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Final

from fleet_agent.domain.values import Frozen

# --- what a daemon says -----------------------------------------------------------------------------------------------


class Job(Frozen):
    """A proof at hand, which is made in partitions."""

    id: str
    partitions: int
    done: int
    synthesizing: int


class GpuWorker(Frozen):
    """One of the workers that feed a card; `busy` is how long it has been at its partition, None while it is idle."""

    id: int
    busy: timedelta | None


class ProverLook(Frozen):
    """A prover at one time. The counters begin anew with each start of its process."""

    seen_at: datetime
    uptime: timedelta
    memory_total_bytes: int
    memory_free_bytes: int
    jobs: tuple[Job, ...]
    workers: tuple[GpuWorker, ...]
    gpu_times: tuple[timedelta, ...] = ()
    """Of the partitions that have been on a card and are done."""
    waiting: int
    completed: int
    failed: int


# --- what it means ----------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    WEDGED = "wedged"
    """It is at something that does not get on."""
    STARVED = "starved"
    """Its cards wait for its main memory."""
    IDLE_FAULT = "idle-fault"
    """It has nothing to do while work waits."""
    CORRUPTING = "corrupting"
    """Its proofs fail, and those of others do not."""
    CRASH_LOOPING = "crash-looping"
    """Its process dies again and again."""


class Remedy(StrEnum):
    RESTART = "restart the prover"
    CHECK_LINE = "check its tunnel and its database"
    REPLACE = "replace the box"
    BAN = "replace the box and avoid its machine"


REMEDIES: Final[Mapping[Verdict, tuple[Remedy, ...]]] = {
    Verdict.WEDGED: (Remedy.RESTART, Remedy.REPLACE),
    Verdict.STARVED: (Remedy.REPLACE,),  # more memory no start can give
    Verdict.IDLE_FAULT: (Remedy.CHECK_LINE, Remedy.RESTART, Remedy.REPLACE),
    Verdict.CORRUPTING: (Remedy.BAN,),
    Verdict.CRASH_LOOPING: (Remedy.REPLACE,),  # it was started often enough
}


class Ailment(Frozen):
    verdict: Verdict
    sentence: str


def next_remedy(verdict: Verdict, tried: int) -> Remedy:
    """What to do about it after so many remedies did not help; the last one for good."""
    remedies = REMEDIES[verdict]
    return remedies[min(tried, len(remedies) - 1)]


TIMES_TYPICAL: Final = 5
"""So many times the typical time on a card is no slow partition any more."""

TYPICAL: Final = timedelta(seconds=60)
"""On a card, where none was measured yet: a partition takes a few seconds on a fast one."""

LEAST_STUCK: Final = timedelta(minutes=2)
"""At one partition, however fast the others were: the parameters may have to be loaded first."""

STANDSTILL: Final = timedelta(minutes=10)
"""Without any progress, seen at so many looks and more. A partition takes a minute or two from its start to its end."""
LEAST_LOOKS: Final = 3

LEAST_FREE: Final = 0.05
"""Share of main memory; a prover whose budget leaves less holds back its own work."""

LEAST_PROOFS: Final = 5
MOST_FAILED: Final = 0.2
FINE: Final = 0.05
"""Shares of failed proofs: of one box at so many proofs, and of all the others beside it."""

CRASHES: Final = 3
CRASH_WINDOW: Final = timedelta(hours=1)

TOLERANCE: Final = timedelta(seconds=10)
"""By which two looks may differ in when the process began."""


def ailments(
    looks: Sequence[ProverLook], *, work_waits_since: datetime | None, others_failed: float | None
) -> tuple[Ailment, ...]:
    """What ails one prover, by the looks at it, oldest first; nothing where they are too few to say.

    work_waits_since: since when work has waited without a break, None where none waits or nobody knows.
    others_failed: the share of proofs that failed on all other boxes, None where there is none to compare with.
    """
    if not looks:
        return ()
    starved = _starved(looks)
    found = (
        starved or _wedged(looks),  # what waits for memory does not get on either, and no new start gives it more
        _idle_fault(looks, work_waits_since),
        _corrupting(looks, others_failed),
        _crash_looping(looks),
    )
    return tuple(ailment for ailment in found if ailment is not None)


def _wedged(looks: Sequence[ProverLook]) -> Ailment | None:
    now = looks[-1]
    times = [time.total_seconds() for look in looks for time in look.gpu_times]
    typical = timedelta(seconds=median(times)) if times else TYPICAL
    for worker in now.workers:
        if worker.busy is not None and worker.busy > max(TIMES_TYPICAL * typical, LEAST_STUCK):
            usual = f"{_show(typical)} are usual" if times else "none is done yet"
            stuck = f"worker {worker.id} has been at one partition for {_show(worker.busy)}, and {usual}"
            return _ailment(Verdict.WEDGED, stuck)
    still = _standstill(looks)
    for job in now.jobs:
        if job.done < job.partitions and still and all(_knows(look, job) for look in still):
            stands = f"a proof stands at {job.done} of {job.partitions} partitions for {_lasted(still)}"
            return _ailment(Verdict.WEDGED, stands)
    if still and all(look.waiting and not look.jobs for look in still) and _counts_stand(still):
        return _ailment(Verdict.WEDGED, f"{now.waiting} proofs wait, and none was begun for {_lasted(still)}")
    return None


def _starved(looks: Sequence[ProverLook]) -> Ailment | None:
    still = _standstill(looks)
    if not still or not all(_is_starved(look) for look in still):
        return None
    free = still[-1].memory_free_bytes / still[-1].memory_total_bytes
    return _ailment(Verdict.STARVED, f"all its workers wait for {_lasted(still)}, with {free:.0%} of its memory free")


def _is_starved(look: ProverLook) -> bool:
    prepares = any(job.synthesizing for job in look.jobs)
    is_full = look.memory_free_bytes < LEAST_FREE * look.memory_total_bytes
    return prepares and is_full and bool(look.workers) and _is_idle(look)


def _idle_fault(looks: Sequence[ProverLook], work_waits_since: datetime | None) -> Ailment | None:
    still = _standstill(looks)
    if not still or work_waits_since is None or work_waits_since > still[0].seen_at:
        return None
    if not all(_has_nothing(look) for look in still) or not _counts_stand(still):
        return None
    return _ailment(Verdict.IDLE_FAULT, f"it has had nothing to do for {_lasted(still)} while work waited")


def _corrupting(looks: Sequence[ProverLook], others_failed: float | None) -> Ailment | None:
    completed = _counted([(look.uptime, look.completed) for look in looks])
    failed = _counted([(look.uptime, look.failed) for look in looks])
    proofs = completed + failed
    if others_failed is None or others_failed > FINE or proofs < LEAST_PROOFS or failed < MOST_FAILED * proofs:
        return None
    return _ailment(
        Verdict.CORRUPTING, f"{failed} of its {proofs} proofs failed, and {others_failed:.0%} of those of other boxes"
    )


def _crash_looping(looks: Sequence[ProverLook]) -> Ailment | None:
    lately = [look for look in looks if looks[-1].seen_at - look.seen_at <= CRASH_WINDOW]
    starts = sum(_began_anew(before, after) for before, after in pairwise(lately))
    if starts < CRASHES:
        return None
    return _ailment(Verdict.CRASH_LOOPING, f"its process was started anew {starts} times within {_show(CRASH_WINDOW)}")


# --- looks side by side -----------------------------------------------------------------------------------------------


def _standstill(looks: Sequence[ProverLook]) -> Sequence[ProverLook]:
    """The newest looks, as far back as a standstill takes; none where they do not reach so far or are too few, or where
    its process began anew meanwhile."""
    now = looks[-1]
    for start in range(len(looks) - 1, -1, -1):
        if start + 1 < len(looks) and _began_anew(looks[start], looks[start + 1]):
            return ()
        if now.seen_at - looks[start].seen_at >= STANDSTILL:
            return looks[start:] if len(looks) - start >= LEAST_LOOKS else ()
    return ()


def _began_anew(before: ProverLook, after: ProverLook) -> bool:
    return (after.seen_at - after.uptime) - (before.seen_at - before.uptime) > TOLERANCE


def _knows(look: ProverLook, job: Job) -> bool:
    return any((each.id, each.done) == (job.id, job.done) for each in look.jobs)


def _counts_stand(looks: Sequence[ProverLook]) -> bool:
    return len({(look.completed, look.failed) for look in looks}) == 1


def _has_nothing(look: ProverLook) -> bool:
    return not look.waiting and not look.jobs and _is_idle(look)


def _is_idle(look: ProverLook) -> bool:
    return all(worker.busy is None for worker in look.workers)


def _counted(counts: Sequence[tuple[timedelta, int]]) -> int:
    """What a counter has counted over all looks, the first one's own included: it begins anew with each start."""
    return counts[0][1] + sum(_grown(counts)) if counts else 0


def _grown(counts: Sequence[tuple[timedelta, int]]) -> Iterator[int]:
    for (uptime, count), (later_uptime, later_count) in pairwise(counts):
        is_same_process = later_uptime >= uptime and later_count >= count
        yield later_count - count if is_same_process else later_count


def _lasted(looks: Sequence[ProverLook]) -> str:
    return _show(looks[-1].seen_at - looks[0].seen_at)


def _ailment(verdict: Verdict, sentence: str) -> Ailment:
    return Ailment(verdict=verdict, sentence=sentence)


def _show(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
