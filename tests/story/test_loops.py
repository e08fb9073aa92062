"""A model that goes in a circle is told so and stopped, and whatever it said, every call has exactly one result."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from fleet_agent.domain.report import Report
from fleet_agent.domain.run import ModelReply, ToolCall, Usage
from fleet_agent.domain.spending import Terms
from fleet_agent.sim.chat import read_request
from tests.story.killing import Fuse, Killed, fused
from tests.story.test_in_the_middle import rows
from tests.world import Installation

LIST, SEARCH = "list_boxes {}", "search_offers {}"
FINISH = 'finish {"action": false, "state_changed": false, "summary": "%s"}'


@dataclass
class Says:
    """Replies in this order, the last one again and again; takes only what the strictest server takes."""

    replies: Sequence[Sequence[str]]
    asked: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"model": "script", "messages": list(messages), "tools": list(tools)}

    async def terms(self) -> Terms:
        return Terms(model="script")

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        read_request(dict(body))
        said = self.replies[min(self.asked, len(self.replies) - 1)]
        self.asked += 1
        return ModelReply(
            text="" if said else "I wonder.", calls=tuple(map(self._call, said)), usage=Usage(tokens_in=9)
        )

    def _call(self, text: str) -> ToolCall:
        name, arguments = text.split(" ", 1)
        return ToolCall(id=f"call{next(self.numbers):05d}", name=name, arguments=arguments, provider_id="")


def saying(fleet: Installation, *replies: Sequence[str]) -> Says:
    model = Says(replies)
    fleet.ports = replace(fleet.ports, model=model)
    return model


def results(fleet: Installation) -> list[dict[str, Any]]:
    """Of all calls, in order; each has one."""
    messages = rows(fleet, "message")
    asked = [call["id"] for message in messages for call in message["calls"]]
    answers = [message for message in messages if message["role"] == "tool"]
    assert Counter(answer["call_id"] for answer in answers) == Counter(asked)
    return answers


def ended(report: Report) -> str:
    return report.summary["exit_reason"]


async def test_the_same_call_is_answered_twice_then_withheld_and_at_the_fifth_time_ends_the_run(
    fleet: Installation,
) -> None:
    model = saying(fleet, [LIST])
    report = await fleet.run()
    assert (model.asked, ended(report)) == (5, "list_boxes called 5 times in a row with the same arguments")
    assert [answer["failed"] for answer in results(fleet)] == [False, False, True, True, True]
    assert "this is call 3 in a row of list_boxes" in results(fleet)[2]["content"]
    assert "without a conclusion of the model" in report.summary["summary"]


async def test_two_calls_that_take_turns_end_the_run(fleet: Installation) -> None:
    model = saying(fleet, *[[LIST], [SEARCH]] * 4)
    assert ended(await fleet.run()) == "list_boxes and search_offers taking turns 4 times"
    assert model.asked == 8


async def test_three_times_the_same_refusal_ends_the_run(fleet: Installation) -> None:
    """Each is about another box, so no call is the same. Control: the refusals of one reply count once."""
    destroy = 'destroy_box {"id": %d, "reason": "it is idle"}'
    model = saying(fleet, [destroy % 1, destroy % 2, destroy % 3, destroy % 4], [destroy % 5], [destroy % 6])
    assert ended(await fleet.run()) == "the same error 3 times in a row"
    assert model.asked == 3
    assert fleet.sim.market.instances() == []


async def test_calls_of_one_reply_after_the_one_that_ends_the_run_are_answered_and_not_carried_out(
    fleet: Installation,
) -> None:
    saying(fleet, [*[LIST] * 5, SEARCH, 'notify_human {"text": "Look at this."}', 'set_notes {"text": "x"}'])
    assert ended(await fleet.run()) == "list_boxes called 5 times in a row with the same arguments"
    assert [answer["content"].endswith("The run ends here.") for answer in results(fleet)] == [False] * 4 + [True] * 4
    assert (fleet.notifier.told, fleet.status()["notes"]) == ([], "")


async def test_an_effect_that_is_withheld_reserves_nothing(fleet: Installation) -> None:
    tell = 'notify_human {"text": "The queue is long."}'
    saying(fleet, [tell], [tell], [tell], [FINISH % "Told the operator twice."])
    assert ended(await fleet.run()) == "finished"
    assert len(fleet.notifier.told) == 2
    assert [action["status"] for action in fleet.actions()][:2] == ["done", "done"]
    assert fleet.actions()[2]["status"] in ("failed", "refused")


async def test_a_finish_that_says_nothing_is_sent_back_once(fleet: Installation) -> None:
    """Control: a summary with content ends the run at once."""
    saying(fleet, [FINISH % "Done."], [FINISH % "Nothing waits; two boxes prove."])
    repaired = await fleet.run()
    assert (ended(repaired), fleet.runs()[-1]["steps"]) == ("finished", 2)
    assert repaired.summary["summary"] == "Nothing waits; two boxes prove."
    assert "Say what you saw" in results(fleet)[0]["content"]
    saying(fleet, [FINISH % "Nothing waits; two boxes prove."])
    assert (ended(await fleet.run()), fleet.runs()[-1]["steps"]) == ("finished", 1)


async def test_a_run_whose_finish_says_nothing_twice_gets_a_mechanical_summary(fleet: Installation) -> None:
    saying(fleet, [SEARCH], [FINISH % "Done."], [FINISH % "ok"])
    report = await fleet.run()
    assert ended(report) == "no summary that says anything"
    assert "It had asked for: nothing" in report.summary["summary"]
    assert report.summary["verdict"]["state_changed"], "the first look: there was none before"


async def test_a_summary_that_is_too_long_is_cut_and_answers_all_the_same(fleet: Installation) -> None:
    """Control: one that just fits is kept as it is."""
    fleet.say("How are we doing?")
    for length in (2000, 2001):
        saying(fleet, [FINISH % ("All is well. " + "x" * length)[:length]])
        report = await fleet.run()
        assert (ended(report), fleet.runs()[-1]["steps"]) == ("finished", 1)

    fits, cut = (run["summary"] for run in fleet.runs())
    assert (fits.endswith("x"), cut.endswith("x … (cut)"), len(cut)) == (True, True, 2000)


class DiesAtReply(Fuse):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await super().around(name, call)
        if self.calls.count("reply") == self._number:
            self.blown = True
            raise Killed
        return answer


async def test_a_run_that_is_killed_does_not_forget_how_often_it_went_in_a_circle(fleet: Installation) -> None:
    """It had listed its boxes four times; the fifth time, after the interruption, ends it."""
    model = saying(fleet, [LIST])
    untouched, fleet.ports = fleet.ports, fused(fleet.ports, DiesAtReply(5))
    with suppress(Killed):
        await fleet.run(flow_run_id="killed", attempt=1)
    fleet.ports = untouched
    report = await fleet.run(flow_run_id="killed", attempt=2)
    assert ended(report) == "list_boxes called 5 times in a row with the same arguments"
    assert (model.asked, len(results(fleet))) == (6, 5)


# --- every exit has a reason ------------------------------------------------------------------------------------------


EXITS: dict[str, Callable[[Installation], object]] = {
    "finished": lambda fleet: saying(fleet, [FINISH % "All boxes prove."]),
    "no tool call and no verdict": lambda fleet: saying(fleet, []),
    "no summary that says anything": lambda fleet: saying(fleet, [FINISH % "Done."]),
    "list_boxes called 5 times in a row with the same arguments": lambda fleet: saying(fleet, [LIST]),
    "the bound of 2 steps": lambda fleet: (fleet.set_policy({"run.max_steps": "2"}), saying(fleet, [LIST])),
    "key refused": lambda fleet: fleet.sim.model_faults.arm("unauthorized", times=1),
    "model unusable": lambda fleet: fleet.sim.model_faults.arm("html_200", times=4),
}


@pytest.mark.parametrize("reason", EXITS)
async def test_whatever_ends_a_run_its_row_says_it(fleet: Installation, reason: str) -> None:
    EXITS[reason](fleet)
    await fleet.run()
    assert [run["exit_reason"] for run in fleet.runs()] == [reason]
