"""What is known of one model on one server, and what each answer teaches of it: calibration, health, self-test.

**Calibration.** Our count of a prompt is meant as an upper bound, and some server counts more all the same: an unknown
tokenizer, a wordy template, a window smaller than we were told. So each reported count raises the `factor` by which
ours is multiplied. It never falls below 1, however little a server reports: servers that cut a prompt to their window
report what they kept. That is an alarm, and no discount.

**Health.** A model that fails again and again is left alone for a while, and the next of the list is asked instead.
Then it is asked once more; each further failure doubles the pause. An answer without a tool call or a verdict counts as
a failure where tools were offered: a server that drops them silently answers for ever and never acts.

Everything is pure, and times are real: a server does not fail faster because business runs faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from math import floor
from typing import NamedTuple

from fleet_agent.domain.timeline import is_of_a_time_to_come
from fleet_agent.domain.tokens import HARD_TOKENS
from fleet_agent.domain.values import Frozen
from fleet_agent.errors import FixSetup, FleetAgentError

RATIOS_KEPT = 50
"""Replies that the factor is made of; what was long ago may have been another model behind the same name."""
MARGIN = 1.02
GREATEST_RATIO = 4.0
"""A report beyond that is none of tokens. It bounds the factor too: were no prompt short enough to be sent, no reply
could ever correct it."""
ROOM_LEFT = 0.8
"""What is tried of a prompt's size after a server found it too long."""
UNLESS_SHORTER = 2_000
"""Tokens. Of a shorter prompt a server's count tells nothing about cutting: no window is as small."""

FAILURES_IN_A_ROW = 3
PAUSE = timedelta(minutes=5)
LONGEST_PAUSE = timedelta(hours=1)

NO_TOOL_CALL = "it answered without calling a tool"


class ModelName(NamedTuple):
    """A model as the person knows it: its name, and the bare address of the server."""

    server: str
    model: str

    def __str__(self) -> str:
        return f"{self.model} at {self.server}"


class Asked(NamedTuple):
    """One request that got a reply. `reported` is the server's count of its prompt, 0 where it did not say."""

    estimate: int
    at_least: int
    """Fewer tokens than any tokenizer makes of it …"""
    at_most: int
    """… and more."""
    reported: int
    called_a_tool: bool
    needed_to: bool = True
    """It was offered tools, and gave no verdict in writing in their place."""


class ModelState(Frozen):
    """What is remembered of one model on one server, by every process."""

    ratios: tuple[float, ...] = ()
    """Reported by estimated, the newest last."""
    refused_ratio: float = 0.0
    """What the refusals of prompts as too long suggest. It is nobody's count, so a self-test that passes ends it."""
    truncates_since: datetime | None = None
    exceeded_at: datetime | None = None
    """When it last reported more than a request may have."""

    answered_at: datetime | None = None
    failures: int = 0
    """In a row."""
    failing_since: datetime | None = None
    trouble: str = ""
    """What was wrong the last time, empty after a success."""
    needs_a_person: bool = False
    """No waiting cures the trouble."""
    asked_again_at: datetime | None = None
    """Until then it is left alone; None: it is well."""

    tested_at: datetime | None = None
    test: str = ""
    """What the newest self-test found, in words."""
    test_passed: bool | None = None

    @property
    def factor(self) -> float:
        """By which our count of a prompt is multiplied for this model."""
        return min(GREATEST_RATIO, max(1.0, MARGIN * max((*self.ratios, self.refused_ratio))))

    def fits(self, room: int = HARD_TOKENS) -> int:
        """Tokens by our count that a prompt may have, where it may have `room` by the server's."""
        return floor(room / self.factor)

    def left_alone(self, now: datetime) -> bool:
        """Not for a failure of a time to come: the clock was set back since."""
        if self.asked_again_at is None or is_of_a_time_to_come(self.asked_again_at - _pause(self.failures), now):
            return False
        return now < self.asked_again_at

    # --- what happened ------------------------------------------------------------------------------------------------

    def answered(self, asked: Asked, now: datetime) -> ModelState:
        measured = self._measured(asked, now).model_copy(update={"answered_at": now})
        if asked.needed_to and not asked.called_a_tool:
            return measured._failed(NO_TOOL_CALL, now, needs_a_person=False)
        if asked.called_a_tool:
            measured = measured._past_its_failed_test()
        return measured.model_copy(
            update={
                "failures": 0,
                "failing_since": None,
                "trouble": "",
                "needs_a_person": False,
                "asked_again_at": None,
            }
        )

    def failed(self, error: FleetAgentError, now: datetime) -> ModelState:
        return self._failed(str(error), now, needs_a_person=isinstance(error, FixSetup))

    def found_too_long(self, estimate: int) -> ModelState:
        """The server refused a prompt that we believed to fit: the next of its size is not sent."""
        if not estimate:
            return self
        ratio = min(GREATEST_RATIO, HARD_TOKENS / (ROOM_LEFT * estimate) / MARGIN)
        return self.model_copy(update={"refused_ratio": max(self.refused_ratio, ratio)})

    def tested(self, words: str, now: datetime, *, passed: bool) -> ModelState:
        believed = 0.0 if passed else self.refused_ratio
        return self.model_copy(
            update={"tested_at": now, "test": words, "test_passed": passed, "refused_ratio": believed}
        )

    def _past_its_failed_test(self) -> ModelState:
        """It calls tools, whatever a test found when the server was still starting or had another key."""
        return self if self.test_passed is not False else self.model_copy(update={"test": "", "test_passed": None})

    # --- calibration --------------------------------------------------------------------------------------------------

    def _measured(self, asked: Asked, now: datetime) -> ModelState:
        """Upward only. A count that is missing, or higher than can be, teaches nothing; one that is lower than can be
        raises the alarm."""
        if not asked.reported or not asked.estimate or asked.reported > asked.at_most:
            return self
        since = (self.truncates_since or now) if asked.reported < asked.at_least else None
        return self._with_ratio(asked.reported / asked.estimate).model_copy(
            update={
                "truncates_since": since if asked.estimate > UNLESS_SHORTER else self.truncates_since,
                "exceeded_at": now if asked.reported > HARD_TOKENS else self.exceeded_at,
            }
        )

    def _with_ratio(self, ratio: float) -> ModelState:
        return self.model_copy(update={"ratios": (*self.ratios, min(ratio, GREATEST_RATIO))[-RATIOS_KEPT:]})

    # --- health -------------------------------------------------------------------------------------------------------

    def _failed(self, words: str, now: datetime, *, needs_a_person: bool) -> ModelState:
        failures = self.failures + 1
        return self.model_copy(
            update={
                "failures": failures,
                "failing_since": self.failing_since or now,
                "trouble": words,
                "needs_a_person": needs_a_person,
                "asked_again_at": now + _pause(failures) if failures >= FAILURES_IN_A_ROW else None,
            }
        )


class Recalled(NamedTuple):
    """What is known of each model of a list, and the real time by the clock that all processes share."""

    now: datetime
    states: tuple[ModelState, ...]


Lesson = Callable[[ModelState, datetime], ModelState]
"""What something that happened makes of what was known before; the time is real."""


def _pause(failures: int) -> timedelta:
    doublings = min(failures - FAILURES_IN_A_ROW, 10)
    return min(PAUSE * 2**doublings, LONGEST_PAUSE)


# --- what a person is told --------------------------------------------------------------------------------------------


class News(NamedTuple):
    """What a person must be told once; the same `key` is the same news."""

    key: str
    text: str


def news(name: ModelName, before: ModelState, after: ModelState, *, alone: bool = False) -> Iterator[News]:
    """What became of a model that a person should know: each episode is told when it begins, and not again. `alone`: it
    has no other beside it that could be asked."""
    if after.truncates_since and not before.truncates_since:
        yield News(
            f"model truncates: {name} {after.truncates_since.isoformat()}",
            f"The server cuts our prompts: {name} reports far fewer tokens than were sent, so the agent acts on a part "
            "of what it should know → give the model a larger window there (Ollama: OLLAMA_CONTEXT_LENGTH)",
        )
    if after.exceeded_at and after.exceeded_at != before.exceeded_at:
        yield News(
            f"model counts more: {name} {after.factor:.2f}",
            f"By the count of {name} a prompt had over {HARD_TOKENS:,} tokens; from now on our count is multiplied "
            f"by {after.factor:.2f}",
        )
    if after.needs_a_person and not before.needs_a_person:
        yield News(f"model needs a person: {name} {after.failing_since}", after.trouble)
    if after.asked_again_at and not before.asked_again_at:
        what_follows = "is asked all the same, for there is no other" if alone else "is left alone for a while"
        yield News(
            f"model left alone: {name} {after.failing_since}",
            f"{name} failed {after.failures} times in a row and {what_follows} ({after.trouble})",
        )
    if after.test_passed is False and before.test_passed is not False:
        yield News(f"model failed its test: {name} {after.tested_at}", f"{name} failed its self-test: {after.test}")
