"""When the bell rings, and what becomes of the flow run that shows a wake in Prefect: decisions without effects.

**Ringing.** What waits is rung for at once, again after the time in which Prefect's automation answers only its first
event, and then less and less often until a run has it in hand. An event of Prefect's can be lost, and so can its
action; so what was rung for without effect is answered with a flow run that the bell creates itself. Its key has a
number in it, because Prefect returns the flow run of a known key even if it is dead; and the number only grows when it
is, so that a worker that is down for an hour finds one flow run and not a hundred.

Nothing is rung while a run is open: that run claims what came, or its last transaction says that something is left.
Nor is it rung again while a flow run is on its way: a process takes seconds to start, and another would be for nothing.
A heartbeat that is due in some seconds is not on its way: a person would have to wait for it.

Where another run can only end as the last did, because a budget is spent or a setting is wrong, nothing is rung: the
heartbeat looks whether that has changed. While a neighbour is out, ringing gets as rare as heartbeats are. But what a
person did since is rung for at once, for it may be what mends it.

**Showing wakes.** The table of wakes is the truth, its flow runs are a picture of it. The picture is mended whenever it
differs, but for one stroke that counts here too: a person who cancels the flow run before its time cancels the wake.
What ends at its time or later is no longer the picture's business: a wake that is overdue is rung for.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fleet_agent.domain.exits import Outlook
from fleet_agent.domain.flow_run import FlowRun, FlowRunState
from fleet_agent.domain.triggers import Doorbell
from fleet_agent.domain.values import Frozen

OVERDUE: Final = timedelta(seconds=30)
"""Real time after which a due wake is rung for: so long may Prefect take to start the flow run that it has for it."""

TRAILING: Final = {Doorbell.URGENT: timedelta(seconds=2), Doorbell.CHANGE: timedelta(seconds=10)}
"""Real time: the `within` of the automations, in which a second event starts nothing."""

LONGEST_PAUSE: Final = timedelta(seconds=60)
"""Real time. Five of these are a heartbeat, which is the backstop of the bell itself."""

LONGEST_PAUSE_IN_AN_OUTAGE: Final = 5 * LONGEST_PAUSE
"""Real time."""

RINGS_WITHOUT_EFFECT: Final = 2
"""From then on the bell creates the flow run itself."""

# --- ringing ---------------------------------------------------------------------------------------------------------


class Waiting(Frozen):
    """What of a fleet waits for a run: it is urgent, a change or an overdue wake, and in no living run's hand."""

    fleet: str
    oldest: str
    """The oldest of it: the id of an event, or `w` and the id of a wake where no event waits."""
    doorbell: Doorbell
    """Of the most urgent of it."""
    rings: int
    """The number in the newest key that was made for the oldest; 0 for none."""
    run_is_open: bool
    """A live one: one that fell silent is none."""
    run_counter: int
    outlook: Outlook = Outlook.GOOD
    """Of another run, by how the newest ended."""
    a_person_acted: bool = False
    """Since the newest run was opened, and that waits."""


class Rung(Frozen):
    """What the bell remembers of its last ring for a fleet. A bell that forgets rings once more, and that is all."""

    oldest: str
    doorbell: Doorbell
    at: timedelta
    """Of `Clock.elapsed()`."""
    times: int
    """For this oldest."""
    without_effect: int
    """Since a run was opened, whatever it was rung for."""
    run_counter: int


class Ring(Frozen):
    doorbell: Doorbell


class StartRun(Frozen):
    """Create the flow run by the key with this number in it."""

    number: int


class Silence(Frozen):
    """Nothing is to be done before `until` of `Clock.elapsed()`, or at all: None."""

    until: timedelta | None = None


def decide(waiting: Waiting | None, rung: Rung | None, elapsed: timedelta) -> Ring | StartRun | Silence:
    if waiting is None or waiting.run_is_open:
        return Silence()
    if waiting.outlook is Outlook.NONE and not waiting.a_person_acted:
        return Silence()
    if rung is not None and not _is_news(waiting, rung):
        due = rung.at + pause_after(rung, waiting.outlook)
        if elapsed < due:
            return Silence(until=due)
    if rung is not None and _without_effect(waiting, rung) >= RINGS_WITHOUT_EFFECT:
        return StartRun(number=max(waiting.rings, 1))
    return Ring(doorbell=waiting.doorbell)


def pause_after(rung: Rung, outlook: Outlook) -> timedelta:
    """How long a ring is given to have an effect: twice as long each time."""
    doublings = min(rung.times - 1, 10)  # a number that cannot overflow; the longest pause is reached long before
    longest = LONGEST_PAUSE if outlook is Outlook.GOOD else LONGEST_PAUSE_IN_AN_OUTAGE
    return min(TRAILING[rung.doorbell] * 2**doublings, longest)


def remember(waiting: Waiting, rung: Rung | None, elapsed: timedelta) -> Rung:
    """After a ring, or a flow run in its place."""
    return Rung(
        oldest=waiting.oldest,
        doorbell=waiting.doorbell,
        at=elapsed,
        times=rung.times + 1 if rung is not None and rung.oldest == waiting.oldest else 1,
        without_effect=_without_effect(waiting, rung) + 1 if rung is not None else 1,
        run_counter=waiting.run_counter,
    )


def ring_key(waiting: Waiting, number: int) -> str:
    return f"ring:{waiting.fleet}:{waiting.oldest}:{number}"


def _is_news(waiting: Waiting, rung: Rung) -> bool:
    """Something else is the oldest now, so what was rung for is in hand; or something more urgent has come; or the run
    that came of it failed, and since then a person did something.

    What comes in between is no news: the run that is on its way takes it too.
    """
    return (
        waiting.oldest != rung.oldest
        or (waiting.doorbell is Doorbell.URGENT and rung.doorbell is not Doorbell.URGENT)
        or (waiting.a_person_acted and waiting.run_counter != rung.run_counter)
    )


def _without_effect(waiting: Waiting, rung: Rung) -> int:
    return rung.without_effect if waiting.run_counter == rung.run_counter else 0


# --- showing wakes ---------------------------------------------------------------------------------------------------


class ShownWake(Frozen):
    """A pending wake, or a cancelled one whose flow run is still there."""

    id: int
    fleet: str
    wake_at: datetime
    asked_at: datetime
    reason: str
    is_cancelled: bool
    generation: int
    flow_run_id: str | None


class Show(Frozen):
    """Create its flow run, by the key of this generation."""

    generation: int


class CancelHere(Frozen):
    """A person has cancelled it in Prefect."""


class Withdraw(Frozen):
    """Cancel its flow run: it was cancelled here."""


class LeaveIt(Frozen):
    """The picture is right."""


def mend(wake: ShownWake, flow_run: FlowRun | None, *, now: datetime) -> Show | CancelHere | Withdraw | LeaveIt:
    """What is to be done about the flow run of a wake; `flow_run` is the one of its `flow_run_id`, if it is there."""
    if wake.is_cancelled:
        return Withdraw()
    if flow_run is None:  # never made, or deleted: the key makes a new one
        return Show(generation=wake.generation) if now < wake.wake_at else LeaveIt()
    if not flow_run.is_over or flow_run.since >= wake.wake_at:
        return LeaveIt()
    if _was_cancelled_by_a_person(wake, flow_run):
        return CancelHere()
    return Show(generation=wake.generation + 1)


def wake_key(wake: ShownWake, generation: int) -> str:
    return f"wake:{wake.fleet}:{wake.id}:{generation}"


def _was_cancelled_by_a_person(wake: ShownWake, flow_run: FlowRun) -> bool:
    """One that is older than the wake was cancelled for another wake, of a database that is gone: keys repeat then."""
    return (
        flow_run.state is FlowRunState.CANCELLED
        and flow_run.message is None
        and flow_run.has_deployment
        and wake.asked_at <= flow_run.since
    )
