"""What ails a prover: a picture that no healthy one shows for so long, and never a single look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.prover_health import (
    REMEDIES,
    Ailment,
    GpuWorker,
    Job,
    ProverLook,
    Remedy,
    Verdict,
    ailments,
    next_remedy,
)

NOON = datetime(2026, 3, 17, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
GB = 10**9

AT_REST = GpuWorker(id=0, busy=None)
AT_WORK = GpuWorker(id=0, busy=2 * SECOND)


def job(done: int = 3, *, id: str = "a", synthesizing: int = 0) -> Job:
    return Job(id=id, partitions=10, done=done, synthesizing=synthesizing)


def look(minute: float, **but: Any) -> ProverLook:
    """A prover that began an hour before noon, makes a proof and has made forty."""
    seen_at = NOON + minute * MINUTE
    healthy: dict[str, Any] = {
        "seen_at": seen_at,
        "uptime": seen_at - (NOON - 60 * MINUTE),
        "memory_total_bytes": 256 * GB,
        "memory_free_bytes": 80 * GB,
        "jobs": (job(int(minute) % 10, id=str(minute)),),
        "workers": (AT_WORK,),
        "gpu_times": (3 * SECOND, 4 * SECOND),
        "waiting": 2,
        "completed": 40 + int(minute),
        "failed": 0,
    }
    return ProverLook(**healthy | but)


def over(minutes: int, **but: Any) -> list[ProverLook]:
    """The same each minute."""
    return [look(minute, **but) for minute in range(minutes + 1)]


def judged(
    looks: Sequence[ProverLook], *, waits_since: datetime | None = None, others: float | None = None
) -> tuple[Ailment, ...]:
    return ailments(looks, work_waits_since=waits_since, others_failed=others)


def verdicts(looks: Sequence[ProverLook], **about: Any) -> list[Verdict]:
    return [ailment.verdict for ailment in judged(looks, **about)]


IDLE: dict[str, Any] = {"jobs": (), "workers": (AT_REST,), "waiting": 0, "completed": 40}
FULL: dict[str, Any] = {"jobs": (job(synthesizing=2),), "workers": (AT_REST, AT_REST), "memory_free_bytes": 10 * GB}
DEAD_DISPATCH: dict[str, Any] = {"jobs": (), "waiting": 3, "completed": 40}
RUINS: dict[str, Any] = {"completed": 8, "failed": 2}


# --- nothing ails it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [0, 5, 30, 120])
def test_nothing_ails_a_prover_that_gets_on(minutes: int) -> None:
    assert verdicts(over(minutes), waits_since=NOON - 60 * MINUTE, others=0.0) == []


def test_nobody_can_say_what_ails_a_prover_that_was_never_looked_at() -> None:
    assert verdicts([]) == []


# --- each verdict, and the same picture where it is none --------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "verdict", "sentence"),
    [
        (
            [look(0, workers=(AT_REST, GpuWorker(id=7, busy=121 * SECOND)))],
            Verdict.WEDGED,
            "worker 7 has been at one partition for 2 min, and 4 s are usual",
        ),
        (
            [look(0, workers=(GpuWorker(id=7, busy=301 * SECOND),), gpu_times=())],
            Verdict.WEDGED,
            "worker 7 has been at one partition for 5 min, and none is done yet",
        ),
        (over(10, jobs=(job(3),)), Verdict.WEDGED, "a proof stands at 3 of 10 partitions for 10 min"),
        (over(12, **DEAD_DISPATCH), Verdict.WEDGED, "3 proofs wait, and none was begun for 10 min"),
        (over(10, **FULL), Verdict.STARVED, "all its workers wait for 10 min, with 4% of its memory free"),
    ],
)
def test_what_ails_it_by_itself(looks: list[ProverLook], verdict: Verdict, sentence: str) -> None:
    assert judged(looks) == (Ailment(verdict=verdict, sentence=sentence),)


@pytest.mark.parametrize(
    "looks",
    [
        [look(0, workers=(GpuWorker(id=7, busy=119 * SECOND),))],  # the parameters may have to be loaded
        [look(0, workers=(GpuWorker(id=7, busy=140 * SECOND),), gpu_times=(30 * SECOND,))],  # a slow card
        over(9, jobs=(job(3),)),
        [look(minute, jobs=(job(3, id=str(minute)),)) for minute in range(20)],  # another one each time
        [look(minute, jobs=(job(minute // 5),)) for minute in range(20)],  # a slow one that gets on
        over(20, jobs=(job(10),)),  # done, and still shown
        [look(0, jobs=(job(3),)), look(30, jobs=(job(3),))],  # too few looks
        [look(minute, **DEAD_DISPATCH | {"completed": minute}) for minute in range(20)],
        over(20, **DEAD_DISPATCH | {"waiting": 0}),
        over(9, **FULL),
        over(20, **FULL | {"memory_free_bytes": 80 * GB, "jobs": (job(10, synthesizing=1),)}),
        over(20, **FULL | {"workers": (AT_REST, AT_WORK), "jobs": (job(10, synthesizing=1),)}),
        over(20, **FULL | {"workers": (), "jobs": (job(10, synthesizing=1),)}),
    ],
)
def test_what_looks_like_it_and_is_none(looks: list[ProverLook]) -> None:
    assert verdicts(looks) == []


def test_who_has_nothing_to_do_while_work_waits_has_a_fault() -> None:
    """The controls are one for whom no work waits, one of whom nobody knows, and one who had some to do."""
    idle = over(10, **IDLE)

    assert judged(idle, waits_since=NOON) == (
        Ailment(verdict=Verdict.IDLE_FAULT, sentence="it has had nothing to do for 10 min while work waited"),
    )
    assert verdicts(idle, waits_since=NOON + MINUTE) == verdicts(idle, waits_since=None) == []
    assert verdicts([look(m, **IDLE | {"completed": 40 + m // 5}) for m in range(11)], waits_since=NOON) == []
    assert verdicts(over(9, **IDLE), waits_since=NOON - 60 * MINUTE) == []


def test_whose_proofs_fail_where_those_of_others_do_not_ruins_them() -> None:
    """The controls are a trouble that all have, nobody to compare with, and too few proofs to say."""
    (ailment,) = judged([look(0, **RUINS)], others=0.01)
    assert ailment.verdict is Verdict.CORRUPTING
    assert ailment.sentence == "2 of its 10 proofs failed, and 1% of those of other boxes"

    assert verdicts([look(0, **RUINS)], others=0.2) == verdicts([look(0, **RUINS)], others=None) == []
    assert verdicts([look(0, completed=2, failed=2)], others=0.0) == []
    assert verdicts([look(0, completed=9, failed=1)], others=0.0) == []


def test_what_was_counted_before_a_new_start_counts_too() -> None:
    """The control reads the newest counters alone, which began anew."""
    looks = [
        look(0, completed=4, failed=1),
        look(1, completed=4, failed=3),
        look(2, completed=0, failed=0, uptime=10 * SECOND),
        look(3, completed=1, failed=0, uptime=70 * SECOND),
    ]

    assert verdicts(looks, others=0.0) == [Verdict.CORRUPTING]
    assert verdicts(looks[-1:], others=0.0) == []


def restarted(*minutes: float) -> list[ProverLook]:
    """Looked at each ten minutes, half a minute after each of these starts."""
    starts = [-60.0, *minutes]
    looks = [look(minute) for minute in range(0, 121, 10)] + [look(start + 0.5) for start in minutes]
    return [
        each.model_copy(
            update={"uptime": each.seen_at - max(s for m in starts if (s := NOON + m * MINUTE) <= each.seen_at)}
        )
        for each in sorted(looks, key=lambda each: each.seen_at)
    ]


def test_a_process_that_dies_again_and_again_is_crash_looping() -> None:
    """The control is as many deaths in twice the time."""
    (ailment,) = judged(restarted(65, 85, 115))
    assert ailment.verdict is Verdict.CRASH_LOOPING
    assert ailment.sentence == "its process was started anew 3 times within 60 min"

    assert verdicts(restarted(5, 65, 115)) == verdicts(restarted(85, 115)) == []


def test_a_new_start_is_a_new_chance() -> None:
    """What stood still before it says nothing of the process that runs now. The control is one without a start."""
    stuck = over(20, jobs=(job(3),))
    anew = [each if each.seen_at < NOON + 15 * MINUTE else each.model_copy(update={"uptime": MINUTE}) for each in stuck]
    anew = [
        each.model_copy(update={"uptime": each.seen_at - (NOON + 14.5 * MINUTE)})
        if each.seen_at > NOON + 14.5 * MINUTE
        else each
        for each in anew
    ]

    assert (verdicts(anew), verdicts(stuck)) == ([], [Verdict.WEDGED])


# --- rules ------------------------------------------------------------------------------------------------------------

WORKERS = st.tuples(st.sampled_from([None, SECOND, 90 * SECOND])).map(
    lambda busy: tuple(GpuWorker(id=number, busy=each) for number, each in enumerate(busy))
)
LOOKS = st.lists(
    st.fixed_dictionaries(
        {
            "jobs": st.lists(st.builds(job, st.integers(0, 10), id=st.sampled_from("ab")), max_size=2).map(tuple),
            "workers": WORKERS,
            "waiting": st.integers(0, 2),
            "memory_free_bytes": st.sampled_from([GB, 100 * GB]),
            "completed": st.integers(0, 3),
            "failed": st.integers(0, 1),
        }
    ),
    max_size=25,
).map(lambda rows: [look(minute, **row) for minute, row in enumerate(rows)])


@given(LOOKS)
def test_no_verdict_of_a_standstill_comes_before_its_time(looks: list[ProverLook]) -> None:
    """With cards that were busy for less than any partition may be."""
    soon = [each for each in looks if each.seen_at - NOON < 10 * MINUTE]
    assert verdicts(soon, waits_since=NOON - 60 * MINUTE) == []


@given(LOOKS, st.booleans())
def test_each_verdict_comes_once_with_a_sentence(looks: list[ProverLook], waits: bool) -> None:
    found = judged(looks, waits_since=NOON if waits else None, others=0.0)
    assert len({ailment.verdict for ailment in found}) == len(found)
    assert all(ailment.sentence for ailment in found)


# --- remedies ---------------------------------------------------------------------------------------------------------


def test_every_verdict_has_a_remedy_and_the_last_one_stays() -> None:
    assert set(REMEDIES) == set(Verdict)
    for verdict in Verdict:
        assert next_remedy(verdict, 99) is REMEDIES[verdict][-1]


@pytest.mark.parametrize(
    ("verdict", "remedies"),
    [
        (Verdict.WEDGED, [Remedy.RESTART, Remedy.REPLACE, Remedy.REPLACE]),
        (Verdict.STARVED, [Remedy.REPLACE] * 3),
        (Verdict.IDLE_FAULT, [Remedy.CHECK_LINE, Remedy.RESTART, Remedy.REPLACE]),
        (Verdict.CORRUPTING, [Remedy.BAN] * 3),
        (Verdict.CRASH_LOOPING, [Remedy.REPLACE] * 3),
    ],
)
def test_the_mildest_remedy_comes_first(verdict: Verdict, remedies: list[Remedy]) -> None:
    assert [next_remedy(verdict, tried) for tried in range(3)] == remedies
