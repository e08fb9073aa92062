"""One case, from the beginning of its story to what must hold after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from tests.chaos.cases import Case, Next, What, nexts, points
from tests.chaos.scene import Beginning, Scene, Wrap, as_it_is, at, make_beginning
from tests.chaos.stories import AGENT, STORIES, Story
from tests.postgres import TemporaryPostgres
from tests.soundness import rows, unsound
from tests.story.killing import Fuse, Killed

EFFECTS = ("rent", "destroy")
LONGER_THAN_THE_GRACE = timedelta(seconds=20)
"""… together with the three minutes before; yet short enough for the time that a run may take."""


@dataclass
class Told:
    """What became of a case. One whose point was not reached is none."""

    case: Case
    reached: bool
    broken: list[str]
    struck: Counter[str]


Interrupt = Callable[[Scene, Story, Case], Awaitable[bool]]
"""Tells the story until something happens at the point of the case; whether that was reached."""


@dataclass
class Sleeper(Fuse):
    """Does not blow: at its point it sleeps while `meanwhile` happens, and then goes on."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    slept: bool = False

    async def strike(self) -> None:
        assert self.meanwhile is not None
        self.slept = True
        await self.meanwhile()

    def late_effects(self) -> list[str]:
        """What was still asked of the provider after waking up."""
        after = len(self.calls) if self.at is None or not self.slept else self.at - (not self.after)
        return [call for call in self.calls[after:] if call in EFFECTS]


@dataclass
class Waiter(Fuse):
    """Waits after a call, by its name and how many-th it is, until it may go on."""

    where: tuple[str, int] = ("", 0)
    there: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    after: bool = True

    def count(self, name: str) -> bool:
        super().count(name)
        return (name, self.calls.count(name)) == self.where

    async def strike(self) -> None:
        self.there.set()
        await self.go_on.wait()


class Teller:
    """Tells cases; of each story the beginning is made once."""

    def __init__(self, postgres: TemporaryPostgres) -> None:
        self._postgres = postgres
        self._beginnings: dict[str, Beginning] = {}
        self._calls: dict[tuple[str, str], Sequence[str]] = {}

    async def cases(self, story: Story, fault: str) -> list[Case]:
        """All cases of a story under a fault: as many points as it has calls when nobody interrupts it."""
        calls = await self.calls(story, fault)
        return [
            Case(story.name, point, what, fault, then)
            for what in story.whats
            for point in points(calls)
            if story.may_strike(what, point, calls)
            for then in nexts(what)
        ]

    async def calls(self, story: Story, fault: str) -> Sequence[str]:
        """What the story awaits, in order, when nobody interrupts it."""
        if (story.name, fault) not in self._calls:
            async with at(self._postgres, await self._beginning(story)) as scene:
                scene.arm(fault)
                fuse = Fuse()
                await story.tell(scene, fuse)
                self._calls[story.name, fault] = fuse.calls
        return self._calls[story.name, fault]

    async def _beginning(self, story: Story) -> Beginning:
        name = f"template_{story.begins.__name__}"
        if name not in self._beginnings:
            self._beginnings[name] = await make_beginning(self._postgres, name, story.begins)
        return self._beginnings[name]

    async def tell(self, case: Case, wrap: Wrap = as_it_is, interrupt: Interrupt | None = None) -> Told:
        """`wrap` is around the ports of every process; `interrupt` is another way to be interrupted."""
        story = STORIES[case.story]
        async with at(self._postgres, await self._beginning(story), wrap) as scene:
            scene.arm(case.fault)
            try:
                reached = await (interrupt or _interrupted)(scene, story, case)
                await _what_comes_next(scene, story, case.next)
                await _the_dust_settles(scene, case)
            except Exception as defect:
                return Told(case, True, [f"a defect: {defect!r}"], scene.faults.struck)
            told_to_its_end = case.what is not What.KILLED or case.next is not Next.TIME
            broken = [
                *scene.broken,
                *unsound(scene.fleet),
                *_still_open(scene),
                *_untrue(scene),
                *_touched(scene),
                *(story.in_the_end(scene) if told_to_its_end else ()),
            ]
            return Told(case, reached, broken, scene.faults.struck)


# --- what happens -----------------------------------------------------------------------------------------------------


async def _interrupted(scene: Scene, story: Story, case: Case) -> bool:
    """Tell the story until something happens at the point, and to its end where the teller outlives that."""
    point = case.point
    if case.what is What.KILLED:
        fuse = Fuse(at=point.number, after=point.after)
        with suppress(Killed):
            await story.tell(scene, fuse)
        return fuse.blown and _is_at(fuse, case)
    waiter = Waiter(where=story.others_point)
    other: asyncio.Task[object] | None = None
    before: dict[str, bool] = {}

    async def meanwhile() -> None:
        nonlocal other
        match case.what:
            case What.OVERTAKEN:
                await story.other(scene, Fuse())
            case What.RETRIED:
                await story.again(scene, Fuse())
            case What.BESIDE:
                other = asyncio.ensure_future(story.other(scene, waiter))
                await _until_it_waits(other, waiter)
            case What.SLEPT:
                await scene.pass_minutes(1, 2, 3)
                scene.fleet.pass_time(LONGER_THAN_THE_GRACE)
            case What.LANDED:
                await scene.let_it_land()
            case What.KILLED:
                raise AssertionError("who is killed sees nothing of what goes on meanwhile")
        before.update(_committed(scene))

    sleeper = Sleeper(at=point.number, after=point.after, meanwhile=meanwhile)
    await story.tell(scene, sleeper)
    had_the_fence = story.fenced and (point.number > 1 or point.after)
    if sleeper.slept and case.what in STALE and had_the_fence:
        scene.broken += _done_by_the_stale(scene, sleeper, before)
    waiter.go_on.set()
    if other is not None:
        await other
    return sleeper.slept and _is_at(sleeper, case)


def _is_at(fuse: Fuse, case: Case) -> bool:
    """A fault can make a story shorter: then the call of this number is another one."""
    return fuse.calls[case.point.number - 1] == case.point.call


STALE = (What.OVERTAKEN, What.BESIDE, What.RETRIED)
"""Who wakes up from these has lost the fence, if it had it."""


async def _until_it_waits(other: asyncio.Future[object], waiter: Waiter) -> None:
    there = asyncio.ensure_future(waiter.there.wait())
    await asyncio.wait((other, there), return_when=asyncio.FIRST_COMPLETED)
    there.cancel()


def _committed(scene: Scene) -> dict[str, bool]:
    """The intents that there are, and whether each was sent."""
    return {row["key"]: row["sent_at"] is not None for row in rows(scene.fleet, "action")}


def _done_by_the_stale(scene: Scene, sleeper: Sleeper, before: dict[str, bool]) -> Iterator[str]:
    """Nobody else has done anything since it woke up."""
    for key, sent in _committed(scene).items():
        if key not in before:
            yield f"a run without the fence committed the intent {key}"
        elif sent and not before[key]:
            yield f"a run without the fence committed {key} as sent"
    if len(late := sleeper.late_effects()) > 1:
        yield f"a run without the fence still asked for {', '.join(late)}"


# --- what comes next --------------------------------------------------------------------------------------------------


async def _what_comes_next(scene: Scene, story: Story, then: Next) -> None:
    match then:
        case Next.RETRY:
            await story.again(scene, Fuse())
        case Next.OTHER:
            await story.other(scene, Fuse())
        case Next.TIME:
            pass


async def _the_dust_settles(scene: Scene, case: Case) -> None:
    """Ten minutes in which only the watch looks, a run that wants as much as before, and time for what it did.

    A look each minute until every grace is over; after that the next ones would see the same. At the end there are two
    more: what is asked for again when its grace is over is gone once two looks in a row do not show it.
    """
    await scene.pass_minutes(1, 2, 3, 4, 5, 10)
    await AGENT.other(scene, Fuse())
    scene.disarm(case.fault)
    await scene.pass_minutes(1, 5, 6, 7)


# --- what must hold ---------------------------------------------------------------------------------------------------


def _still_open(scene: Scene) -> Iterator[str]:
    """Whatever was lost, in the end somebody has seen the end of it: nothing is reserved for ever."""
    for row in rows(scene.fleet, "action"):
        if row["status"] in ("intended", "sent", "unknown"):
            yield f"{row['key']} is {row['status']} for ever"


def _untrue(scene: Scene) -> Iterator[str]:
    """In the end the ledger says what is so: neither a box that nobody knows, nor one that is not."""
    live = {box.id for box, _ in scene.fleet.door.ours()}
    known = scene.recorded()
    yield from (f"box {number} lives, and the ledger does not know it" for number in live - known)
    yield from (f"box {number} is in the ledger, and does not live" for number in known - live)


def _touched(scene: Scene) -> Iterator[str]:
    """What is not ours is as it was (I13)."""
    labels = {box.id: box.label for box in scene.fleet.sim.market.instances()}
    for number in scene.strangers:
        made_as = next(made.label for made in scene.fleet.sim.market.creates if made.instance_id == number)
        if labels.get(number, "gone") != made_as:
            yield f"box {number} of a stranger ({made_as}) was touched"
