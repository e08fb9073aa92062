"""When the bell rings, when it starts a run itself, and what it makes of a wake's flow run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.domain.bell import (
    LONGEST_PAUSE,
    CancelHere,
    LeaveIt,
    Ring,
    Rung,
    Show,
    ShownWake,
    Silence,
    StartRun,
    Waiting,
    Withdraw,
    decide,
    mend,
    remember,
    ring_key,
    wake_key,
)
from fleet_agent.domain.exits import Outlook
from fleet_agent.domain.flow_run import FlowRun, FlowRunState
from fleet_agent.domain.triggers import Doorbell

URGENT, CHANGE = Doorbell.URGENT, Doorbell.CHANGE
NOON = datetime(2026, 3, 17, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def waits(
    oldest: str = "7",
    doorbell: Doorbell = URGENT,
    *,
    rings: int = 0,
    run_is_open: bool = False,
    runs: int = 4,
    outlook: Outlook = Outlook.GOOD,
    a_person_acted: bool = False,
) -> Waiting:
    return Waiting(
        fleet="main",
        oldest=oldest,
        doorbell=doorbell,
        rings=rings,
        run_is_open=run_is_open,
        run_counter=runs,
        outlook=outlook,
        a_person_acted=a_person_acted,
    )


def rung(seconds: float, oldest: str = "7", doorbell: Doorbell = URGENT, *, times: int = 1, runs: int = 4) -> Rung:
    """At that many seconds, and none of these times had an effect since run `runs`."""
    return Rung(
        oldest=oldest,
        doorbell=doorbell,
        at=timedelta(seconds=seconds),
        times=times,
        without_effect=times,
        run_counter=runs,
    )


def until(seconds: float) -> Silence:
    return Silence(until=timedelta(seconds=seconds))


CASES = [
    # what waits, the last ring, seconds now, what is done
    (None, None, 0, Silence()),
    (None, rung(0), 99, Silence()),
    (waits(), None, 0, Ring(doorbell=URGENT)),
    (waits(doorbell=CHANGE), None, 0, Ring(doorbell=CHANGE)),
    (waits("w3"), None, 0, Ring(doorbell=URGENT)),
    # a live run claims it itself, or its last transaction notifies
    (waits(run_is_open=True), None, 0, Silence()),
    (waits(run_is_open=True), rung(0), 99, Silence()),
    # the trailing timer
    (waits(), rung(10), 11.9, until(12)),
    (waits(), rung(10), 12, Ring(doorbell=URGENT)),
    (waits(doorbell=CHANGE), rung(10, doorbell=CHANGE), 19.9, until(20)),
    (waits(doorbell=CHANGE), rung(10, doorbell=CHANGE), 20, Ring(doorbell=CHANGE)),
    # news is rung for at once: another oldest, or something more urgent; nothing else is news
    (waits("8"), rung(10), 10, Ring(doorbell=URGENT)),
    (waits(), rung(10, doorbell=CHANGE), 10, Ring(doorbell=URGENT)),
    (waits(doorbell=CHANGE), rung(10), 11, until(12)),
    # ringing without effect: the flow run is made here, by the key of the row
    (waits(), rung(10, times=2), 13.9, until(14)),
    (waits(), rung(10, times=2), 14, StartRun(number=1)),
    (waits(rings=3), rung(10, times=2), 14, StartRun(number=3)),
    (waits("8"), rung(10, times=2), 10, StartRun(number=1)),
    # a run was opened since, so ringing has an effect; the pause grows all the same
    (waits(runs=5), rung(10, times=2), 13.9, until(14)),
    (waits(runs=5), rung(10, times=2), 14, Ring(doorbell=URGENT)),
    # the longest pause
    (waits(), rung(10, times=900), 69.9, until(70)),
    (waits(), rung(10, times=900), 70, StartRun(number=1)),
    # a neighbour is out: as rare as heartbeats in the end
    (waits(runs=5, outlook=Outlook.POOR), rung(10, times=2), 14, Ring(doorbell=URGENT)),
    (waits(runs=5, outlook=Outlook.POOR), rung(10, times=900), 309.9, until(310)),
    (waits(runs=5, outlook=Outlook.POOR), rung(10, times=900), 310, Ring(doorbell=URGENT)),
    # another run would end as the last did, also for a bell that was restarted; the heartbeat looks
    (waits(runs=5, outlook=Outlook.NONE), rung(10), 9_999, Silence()),
    (waits("8", runs=5, outlook=Outlook.NONE), rung(10), 9_999, Silence()),
    (waits(outlook=Outlook.NONE), None, 0, Silence()),
    # what a person did since the run that failed is rung for at once, and once
    *(
        case
        for outlook in Outlook
        for case in (
            (waits(runs=5, outlook=outlook, a_person_acted=True), rung(10, times=900), 10, Ring(doorbell=URGENT)),
            (waits(outlook=outlook, a_person_acted=True), rung(10), 11.9, until(12)),
        )
    ),
]


@pytest.mark.parametrize(("waiting", "last", "now", "done"), CASES)
def test_the_table_of_ringing(
    waiting: Waiting | None, last: Rung | None, now: float, done: Ring | StartRun | Silence
) -> None:
    assert decide(waiting, last, timedelta(seconds=now)) == done


def ringing(waiting: Waiting, *, seconds: float, step: float = 0.5) -> list[tuple[float, Ring | StartRun]]:
    """What is done about something that nobody ever takes, looked at every half second."""
    done: list[tuple[float, Ring | StartRun]] = []
    last, now = None, 0.0
    while now < seconds:
        elapsed = timedelta(seconds=now)
        decision = decide(waiting, last, elapsed)
        if not isinstance(decision, Silence):
            done.append((now, decision))
            last = remember(waiting, last, elapsed)
        now += step
    return done


def test_what_nobody_takes_is_rung_for_twice_and_then_a_run_is_started_less_and_less_often() -> None:
    ring, start = Ring(doorbell=URGENT), StartRun(number=1)
    assert ringing(waits(), seconds=200) == [
        (0, ring), (2, ring), (6, start), (14, start), (30, start), (62, start), (122, start), (182, start)
    ]  # fmt: skip


@given(
    oldest=st.sampled_from(["7", "8", "w7"]),
    doorbell=st.sampled_from(Doorbell),
    runs=st.integers(0, 3),
    last=st.none()
    | st.builds(
        Rung,
        oldest=st.sampled_from(["7", "8", "w7"]),
        doorbell=st.sampled_from(Doorbell),
        at=st.timedeltas(timedelta(), HOUR),
        times=st.integers(1, 10_000),
        without_effect=st.integers(0, 10_000),
        run_counter=st.integers(0, 3),
    ),
    later=st.timedeltas(timedelta(), HOUR),
)
def test_whatever_happened_what_waits_is_answered_within_the_longest_pause_and_never_while_a_run_is_open(
    oldest: str, doorbell: Doorbell, runs: int, last: Rung | None, later: timedelta
) -> None:
    waiting = waits(oldest, doorbell, runs=runs)
    elapsed = (last.at if last else timedelta()) + later
    decision = decide(waiting, last, elapsed)

    if isinstance(decision, Silence):
        assert decision.until is not None
        assert elapsed < decision.until <= elapsed + LONGEST_PAUSE
        assert not isinstance(decide(waiting, last, decision.until), Silence)
    else:
        after = remember(waiting, last, elapsed)
        again = decide(waiting, after, elapsed)
        assert isinstance(again, Silence)  # never twice at a time
    assert isinstance(decide(waiting.model_copy(update={"run_is_open": True}), last, elapsed), Silence)


def test_keys_name_the_fleet_the_oldest_and_a_number() -> None:
    assert ring_key(waits("7"), 2) == "ring:main:7:2"
    assert ring_key(waits("w7"), 2) == "ring:main:w7:2"
    assert wake_key(wake(), 1) == "wake:main:3:1"


# --- wakes -----------------------------------------------------------------------------------------------------------


def wake(*, is_cancelled: bool = False, generation: int = 0, flow_run_id: str | None = "f") -> ShownWake:
    """Asked for at noon, for one."""
    return ShownWake(
        id=3,
        fleet="main",
        wake_at=NOON + HOUR,
        asked_at=NOON,
        reason="look",
        is_cancelled=is_cancelled,
        generation=generation,
        flow_run_id=flow_run_id,
    )


def flow_run(
    state: FlowRunState, *, minutes: float = 30, message: str | None = None, has_deployment: bool = True
) -> FlowRun:
    """In this state since so many minutes after noon."""
    return FlowRun(
        id="f",
        name="wake 3",
        state=state,
        state_name=state.value.title(),
        message=message,
        since=NOON + timedelta(minutes=minutes),
        has_deployment=has_deployment,
    )


S = FlowRunState

MENDINGS = [
    (wake(flow_run_id=None), None, 0, Show(generation=0)),
    (wake(), None, 0, Show(generation=0)),  # deleted: the key makes a new one
    (wake(generation=2), None, 0, Show(generation=2)),
    (wake(), None, 60, LeaveIt()),  # due: it is rung for
    *((wake(), flow_run(state), 30, LeaveIt()) for state in (S.SCHEDULED, S.PENDING, S.RUNNING, S.CANCELLING)),
    # a person cancels it before its time …
    (wake(), flow_run(S.CANCELLED), 31, CancelHere()),
    (wake(), flow_run(S.CANCELLED), 300, CancelHere()),  # … also if we come late to see it
    # … and each thing that is not quite that
    (wake(), flow_run(S.CANCELLED, message="Deployment concurrency limit reached."), 31, Show(generation=1)),
    (wake(), flow_run(S.CANCELLED, has_deployment=False), 31, Show(generation=1)),
    (wake(), flow_run(S.CANCELLED, minutes=-60), 31, Show(generation=1)),  # for another wake of this number
    (wake(), flow_run(S.CANCELLED, minutes=60), 61, LeaveIt()),
    (wake(generation=4), flow_run(S.COMPLETED), 31, Show(generation=5)),
    (wake(), flow_run(S.FAILED), 31, Show(generation=1)),
    (wake(), flow_run(S.CRASHED), 31, Show(generation=1)),
    # what ended at its time or later is rung for, so that no failing run starts the next one without a pause
    *((wake(), flow_run(state, minutes=60), 61, LeaveIt()) for state in (S.COMPLETED, S.FAILED, S.CRASHED)),
    # cancelled here
    (wake(is_cancelled=True), flow_run(S.SCHEDULED), 30, Withdraw()),
    (wake(is_cancelled=True), None, 30, Withdraw()),
    (wake(is_cancelled=True), flow_run(S.COMPLETED), 300, Withdraw()),
]


@pytest.mark.parametrize(("shown", "run", "minutes", "done"), MENDINGS)
def test_the_table_of_wakes(shown: ShownWake, run: FlowRun | None, minutes: float, done: object) -> None:
    assert mend(shown, run, now=NOON + timedelta(minutes=minutes)) == done


@given(
    state=st.sampled_from(FlowRunState),
    minutes=st.integers(-100, 200),
    message=st.none() | st.text(),
    has_deployment=st.booleans(),
    now=st.integers(0, 200),
)
def test_nothing_but_a_person_before_its_time_cancels_a_wake(
    state: FlowRunState, minutes: int, message: str | None, has_deployment: bool, now: int
) -> None:
    run = flow_run(state, minutes=minutes, message=message, has_deployment=has_deployment)
    by_a_person = state is S.CANCELLED and message is None and has_deployment and 0 <= minutes < 60
    assert (mend(wake(), run, now=NOON + timedelta(minutes=now)) == CancelHere()) is by_a_person
