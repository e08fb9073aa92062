"""Loops: a model that does the same again and again is told so, and then stopped.

What was called and what came of it is kept here and not read from the prompt, which compaction shortens: a guard that
forgets what was compacted away is none. `Guard` is a value; a turn keeps the newest one, and a run that goes on after
an interruption gets it back from its log (`Guard.after`), which nothing shortens.

    calls again     the same tool with the same arguments, numbers and case aside where they name nothing
    to and fro      two calls that take turns
    same error      one refusal or failure after the other, in the same words
    prose           replies that call no tool
    empty summary   `finish` without a word of what was seen or decided; one that is refused for something else is an
                    error like others

`finish` is not counted among the calls: it is what a model that goes in a circle is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, cast

from fleet_agent.domain.actions import Finish
from fleet_agent.domain.run import Message, ToolCall
from fleet_agent.domain.values import Frozen

TOLD_AT: Final = 3
"""The same call for the third time is not carried out, and the model is told why."""

STOPPED_AT: Final = 5

ALIKE_STOPPED_AT: Final = 8
"""Calls of one tool that differ in no name and no id."""

TURNS_STOPPED_AT: Final = 4
"""A, B, A, B, A, B, A, B."""

ERRORS_STOPPED_AT: Final = 3

MOST_CORRECTIONS: Final = 2
"""So many replies without a call are answered with a correction."""

MOST_REPAIRS: Final = 1
"""So many times a `finish` that says nothing is sent back."""


class Nudge(Frozen):
    """The call is not carried out; the model is told this instead."""

    sentence: str


class Stop(Frozen):
    """The turn ends, for this reason."""

    reason: str


class Guard(Frozen):
    """What a turn has called so far, oldest first, what failed last, and what was corrected.

    `stopped` stays: what a reply asks for after the call that ended the turn is not carried out either.
    """

    calls: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    last_error: str = ""
    last_error_step: int = 0
    errors: int = 0
    prose: int = 0
    sent_back: int = 0
    stopped: str = ""

    @classmethod
    def after(cls, said: Sequence[Message]) -> Guard:
        """As if it had watched all that was said; a call that has no result yet is still to come."""
        guard = cls()
        calls: dict[str | None, ToolCall] = {}
        for message in said:
            if message.role == "assistant":
                guard = guard.replied(message)
                calls |= {call.id: call for call in message.calls}
            elif message.call_id in calls:
                call = calls[message.call_id]
                guard = guard.called(call).answered(call, message)
        return guard

    def replied(self, reply: Message) -> Guard:
        return self if reply.calls else self.model_copy(update={"prose": self.prose + 1})

    def called(self, call: ToolCall) -> Guard:
        """Before the call is carried out; what to do about it is then the `finding`."""
        if call.name == Finish.name:
            return self
        return self._with(calls=(*self.calls, _exact(call)), alike=(*self.alike, _roughly(call)))

    def answered(self, call: ToolCall, result: Message) -> Guard:
        """After the result of a call. A success in between means that something moves.

        The same error of several calls of one reply counts once: the model has not seen the first of them yet.
        """
        if call.name == Finish.name and not call.malformed and not says_something(_summary(call)):
            return self._with(sent_back=self.sent_back + result.failed)
        if not result.failed:
            return self._with(last_error="", errors=0)
        error = _words(result.content)
        if error != self.last_error:
            return self._with(last_error=error, last_error_step=result.step, errors=1)
        if result.step == self.last_error_step:
            return self
        return self._with(last_error_step=result.step, errors=self.errors + 1)

    def finding(self) -> Nudge | Stop | None:
        """What to do about the newest call."""
        if self.stopped:
            return Stop(reason=self.stopped)
        same = _run_length(self.calls)
        if same < TOLD_AT:
            return None
        return Nudge(
            sentence=f"Not done: this is call {same} in a row of {_tool(self.calls[-1])} with the same arguments, and "
            "the answer is the one you have. Act on it, or call finish."
        )

    def may_correct(self) -> bool:
        """Whether the newest reply without a call is answered with a correction."""
        return self.prose <= MOST_CORRECTIONS

    def may_send_back(self) -> bool:
        """Whether the newest `finish` that says nothing was to be repaired."""
        return self.sent_back <= MOST_REPAIRS

    def _with(self, **changes: Any) -> Guard:
        changed = self.model_copy(update=changes)
        return changed.model_copy(update={"stopped": self.stopped or changed._reason_to_stop()})

    def _reason_to_stop(self) -> str:
        if self.errors >= ERRORS_STOPPED_AT:
            return f"the same error {self.errors} times in a row"
        if not self.calls:
            return ""
        tool = _tool(self.calls[-1])
        if _run_length(self.calls) >= STOPPED_AT:
            return f"{tool} called {STOPPED_AT} times in a row with the same arguments"
        if _run_length(self.alike) >= ALIKE_STOPPED_AT:
            return f"{tool} called {ALIKE_STOPPED_AT} times in a row with nearly the same arguments"
        if _takes_turns(self.calls, TURNS_STOPPED_AT):
            return f"{_tool(self.calls[-2])} and {tool} taking turns {TURNS_STOPPED_AT} times"
        return ""


def says_something(summary: str) -> bool:
    """Whether a summary has a word of content: later runs see nothing else of this one."""
    words = set(re.findall(r"\w{2,}", summary.lower())) - _EMPTY_WORDS
    return sum(map(len, words)) >= FEWEST_LETTERS


FEWEST_LETTERS: Final = 4
"""And not so many words: some scripts have no spaces between them."""

_EMPTY_WORDS: Final = frozenset(
    ["done", "ok", "okay", "finished", "finish", "the", "run", "is", "none", "na", "null", "summary", "complete"]
)


def _summary(call: ToolCall) -> str:
    return str(_arguments(call).get("summary", ""))


def _exact(call: ToolCall) -> str:
    return f"{call.name} {call.arguments}"


def _roughly(call: ToolCall) -> str:
    """Numbers that name nothing, case and spaces aside: `limit` 10 and 11 ask the same."""
    return f"{call.name} {sorted((name, _plain(name, value)) for name, value in _arguments(call).items())}"


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Empty where they cannot be read."""
    try:
        arguments: object = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}


def _plain(name: str, value: Any) -> str:
    return str(value) if _NAMING.search(name) else _words(str(value))


_NAMING: Final = re.compile(r"(^|_)(id|name|step|minutes|at|tail)$")
"""Arguments that say which one, when, or how far is meant: another number there is another call."""


def _words(text: str) -> str:
    return " ".join(re.sub(r"\d+", "0", text).lower().split())


def _tool(call: str) -> str:
    return call.partition(" ")[0]


def _run_length(calls: Sequence[str]) -> int:
    length = 0
    for call in reversed(calls):
        if call != calls[-1]:
            break
        length += 1
    return length


def _takes_turns(calls: Sequence[str], times: int) -> bool:
    last = calls[-2 * times :]
    return len(last) == 2 * times and len(set(last)) == 2 and all(a != b for a, b in pairwise(last))
