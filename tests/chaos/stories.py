"""The stories that are interrupted: each can be told by a process of its own, again, and by another one.

What all have in common is that much happens at once: of four places two are taken, and who tells the story wants both
others, and to be rid of what is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import text
from sqlalchemy.orm import Session

from fleet_agent.controls import Desk, destroy_all
from fleet_agent.cycle import run_cycle
from fleet_agent.domain.actions import DestroyBox
from fleet_agent.domain.run import RunRequest
from fleet_agent.domain.triggers import Trigger
from fleet_agent.ports import Ports
from fleet_agent.store import actions
from fleet_agent.store.database import Database
from tests.chaos.cases import Point, What
from tests.chaos.scene import GoesOn, Scene, speak
from tests.soundness import rows
from tests.story.killing import Fuse, ScriptedModel, fused
from tests.story.saying import finish, says
from tests.world import Installation

FLOW_RUN = "the-flow-run"


@dataclass
class Greedy(ScriptedModel):
    """Wants both places that are free, and both boxes that are there gone, one after its proofs: in one reply."""

    idle: int = 0
    busy: int = 0

    def script(self, place: int, offers: Sequence[int]) -> list[str]:
        match place:
            case 0:
                return ["search_offers {}", "list_boxes {}"]
            case 1:
                return [
                    *(f'rent_box {{"offer_id": {offer}, "reason": "work waits"}}' for offer in offers[:2]),
                    f'destroy_box {{"id": {self.idle}, "reason": "it is idle"}}',
                    f'drain_box {{"id": {self.busy}, "reason": "it is dear"}}',
                ]
            case _:
                return ['finish {"action": true, "state_changed": true, "summary": "All four were asked for."}']


class Content(ScriptedModel):
    """Wants nothing."""

    def script(self, place: int, offers: Sequence[int]) -> list[str]:
        return ['finish {"action": false, "state_changed": false, "summary": "All is well."}']


Tell = Callable[[Scene, Fuse], Awaitable[object]]


@dataclass(frozen=True)
class Story:
    """`tell` is what gets interrupted; `again` is its next try, `other` is somebody else who does the same. Each is a
    process of its own, whose calls go through its fuse."""

    name: str
    begins: GoesOn
    tell: Tell
    again: Tell
    other: Tell
    others_point: tuple[str, int]
    """After which call, and the how many-th of it, another one who goes on beside is about to act."""
    whats: Sequence[What]
    fenced: bool = True
    """Who is overtaken has lost the right to act."""
    may_strike: Callable[[What, Point, Sequence[str]], bool] = lambda what, point, calls: True
    in_the_end: Callable[[Scene], list[str]] = lambda scene: []
    """What is broken of what this story promises, once it has been told to its end."""


# --- a run of the agent -----------------------------------------------------------------------------------------------


def process(scene: Scene, fuse: Fuse, model: ScriptedModel) -> Ports:
    """The ports of a process of its own, whose model numbers its calls in a way of its own."""
    model.asked = 100 * next(scene.numbers)
    return fused(scene.wrap(replace(scene.fleet.ports, model=model)), fuse)


async def run_of_the_agent(ports: Ports, flow_run: str = FLOW_RUN, attempt: int = 1) -> None:
    request = RunRequest(fleet="main", trigger=Trigger.MANUAL, flow_run_id=flow_run, attempt=attempt, worker_id="test")
    await run_cycle(request, ports)


def another(scene: Scene) -> str:
    """A flow run that nobody has seen before."""
    return f"another-flow-run-{next(scene.numbers)}"


def _greedy(scene: Scene) -> Greedy:
    return Greedy(idle=scene.idle, busy=scene.busy)


async def _two_boxes(fleet: Installation, idle: int, busy: int) -> None:
    """Nothing else."""


AGENT = Story(
    name="a run",
    begins=_two_boxes,
    tell=lambda scene, fuse: run_of_the_agent(process(scene, fuse, _greedy(scene))),
    again=lambda scene, fuse: run_of_the_agent(process(scene, fuse, _greedy(scene)), attempt=2),
    other=lambda scene, fuse: run_of_the_agent(process(scene, fuse, _greedy(scene)), another(scene)),
    others_point=("record_reply", 2),
    whats=(What.KILLED, What.OVERTAKEN, What.BESIDE, What.RETRIED, What.SLEPT),
)


# --- carrying out what was approved -----------------------------------------------------------------------------------


async def _approved(fleet: Installation, idle: int, busy: int) -> None:
    """A rent and a destroy wait for a person's word, and get it."""
    fleet.set_policy({"approvals.rent_above_usd_per_hour": "0.01", "approvals.always": '["destroy_box"]'})
    fleet.ports = replace(fleet.ports, model=_OneOfEach(idle=idle))
    await fleet.run()
    says(fleet, [finish()])
    with fleet.database.exclusive(fleet.fleet) as tx:
        for waiting in actions.open_approvals(tx, fleet.fleet):
            problem = actions.approve(tx, fleet.fleet, waiting.key, who="test", now=fleet.time.now())
            assert not isinstance(problem, str), problem
        assert len(actions.approved(tx, fleet.fleet)) == 2
    speak(fleet, {idle: 0, busy: 1})


class _OneOfEach(Greedy):
    def script(self, place: int, offers: Sequence[int]) -> list[str]:
        wanted = super().script(place, offers)
        return [wanted[0], wanted[2]] if place == 1 else wanted


APPROVED = Story(
    name="what was approved",
    begins=_approved,
    tell=lambda scene, fuse: run_of_the_agent(process(scene, fuse, Content())),
    again=lambda scene, fuse: run_of_the_agent(process(scene, fuse, Content()), attempt=2),
    other=lambda scene, fuse: run_of_the_agent(process(scene, fuse, Content()), another(scene)),
    others_point=("carry_out_approved", 1),
    whats=(What.KILLED, What.OVERTAKEN, What.BESIDE, What.RETRIED, What.SLEPT),
)


# --- a look of the watch ----------------------------------------------------------------------------------------------


async def _one_is_to_go_and_one_has_drained(fleet: Installation, idle: int, busy: int) -> None:
    """What a look does by a person's order, and what it does by itself."""
    with fleet.database.exclusive(fleet.fleet) as tx:
        drained = "UPDATE box SET drain_by = :by, drain_because = 'no work', stage = 'draining' WHERE vast_id = :id"
        tx.execute(text(drained), {"by": fleet.time.now() + timedelta(minutes=30), "id": idle})
        order = DestroyBox(id=busy, reason="ordered by test")
        problem = actions.order(tx, fleet.fleet, order, who="test", now=fleet.time.now())
        assert problem is None, problem


LOOK = Story(
    name="a look",
    begins=_one_is_to_go_and_one_has_drained,
    tell=lambda scene, fuse: scene.watch(fuse).look(),
    again=lambda scene, fuse: scene.watch(fuse).look(),
    other=AGENT.other,
    others_point=AGENT.others_point,
    whats=(What.KILLED, What.OVERTAKEN, What.BESIDE, What.RETRIED, What.SLEPT),
    fenced=False,
)


# --- the emergency stop -----------------------------------------------------------------------------------------------

MOST_PASSES = 100
BETWEEN_PASSES = timedelta(seconds=20)


class FusedDatabase:
    """A database whose transactions go through a fuse. They are no awaits, so somebody can only be killed there."""

    def __init__(self, database: Database, fuse: Fuse) -> None:
        self._database = database
        self._fuse = fuse

    @contextmanager
    def exclusive(self, fleet: str) -> Any:
        with self._fused(self._database.exclusive(fleet)) as tx:
            yield tx

    @contextmanager
    def transaction(self) -> Any:
        with self._fused(self._database.transaction()) as tx:
            yield tx

    @contextmanager
    def _fused(self, transaction: AbstractContextManager[Session]) -> Any:
        struck = self._fuse.count("transaction")
        if struck and not self._fuse.after:
            self._fuse.blow()
        with transaction as tx:
            yield tx
        if struck:
            self._fuse.blow()


async def _stop(scene: Scene, fuse: Fuse) -> None:
    """A person's `destroy-all`."""
    fleet = scene.fleet
    desk = Desk(
        database=cast("Database", FusedDatabase(fleet.database, fuse)),
        clock=fleet.clock,
        fleet="main",
        who="test",
        place="here",
    )
    passes = 0

    async def sleep(_: float) -> None:
        nonlocal passes
        passes += 1
        assert passes < MOST_PASSES, "the emergency stop comes to no end"
        await fuse.around("sleep", lambda: _time_passes(fleet))

    await destroy_all(desk, process(scene, fuse, Content()).market, sleep=sleep, tell=lambda line: None)


async def _time_passes(fleet: Installation) -> None:
    fleet.pass_time(BETWEEN_PASSES)


async def _stop_while_a_create_is_on_its_way(scene: Scene, fuse: Fuse) -> None:
    """A run's request is under way to the provider when the person's order comes."""
    await scene.hold_a_create(run_of_the_agent(process(scene, Fuse(), _greedy(scene))))
    try:
        await _stop(scene, fuse)
    finally:
        await scene.let_it_land()


def _is_an_await(what: What, point: Point, calls: Sequence[str]) -> bool:
    return what is What.KILLED or point.call != "transaction"


def _within_a_minute(what: What, point: Point, calls: Sequence[str]) -> bool:
    """A request is a minute on its way at most."""
    passed = calls[: point.number].count("sleep") * BETWEEN_PASSES
    return passed < timedelta(minutes=1) and _is_an_await(what, point, calls)


def _none_is_left(scene: Scene) -> list[str]:
    """But what may be somebody else's: of that a person is told, and decides."""
    questions = {row["vast_id"] for row in rows(scene.fleet, "question")}
    left = [box.id for box, _ in scene.fleet.door.ours() if box.id not in questions]
    mode = scene.fleet.status()["mode"]
    return [f"boxes {left} live after the emergency stop, mode {mode}"] if left or mode != "paused" else []


STOP = Story(
    name="the emergency stop",
    begins=_two_boxes,
    tell=_stop,
    again=_stop,
    other=_stop,
    others_point=("inventory", 1),
    whats=(What.KILLED, What.OVERTAKEN, What.BESIDE),
    fenced=False,
    may_strike=_is_an_await,
    in_the_end=_none_is_left,
)

STOP_WITH_A_CREATE = replace(
    STOP,
    name="the emergency stop with a create on its way",
    tell=_stop_while_a_create_is_on_its_way,
    whats=(What.KILLED, What.LANDED),
    may_strike=_within_a_minute,
)

STORIES = {story.name: story for story in (AGENT, APPROVED, LOOK, STOP, STOP_WITH_A_CREATE)}
