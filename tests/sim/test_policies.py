"""What the simulated model decides from what it sees."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet_agent.sim.catalogue import seeded
from fleet_agent.sim.chat import Call, Message
from fleet_agent.sim.policies import POLICIES, Reply, ToolUse
from fleet_agent.sim.prompt import read_prompt

TOOLS = ("list_boxes", "search_offers", "rent_box", "destroy_box", "finish")
BUSY = "demand: pending=12 running=3 oldest_pending_s=240 done_per_hour=20 failed_per_hour=0 age_s=2"
EMPTY = "demand: pending=0 running=0 oldest_pending_s=0 done_per_hour=20 failed_per_hour=0 age_s=2"
NO_BOXES = ("boxes: live=0 in_flight=0 age_s=2",)
TWO_BOXES = (
    "boxes: live=2 in_flight=0 age_s=2",
    "id|stage|gpu|usd_per_hour|age_min|status",
    "101|proving|1x RTX 4090|0.412|35|running",
    "102|proving|1x RTX 3090|0.200|5|running",
)
LIMITS = "limits: mode=live max_boxes=4 max_usd_per_hour=4.00 max_usd_per_hour_per_box=1.50 max_rents_per_run=2 "
LISTING = """\
offers: 4, cheapest first
id|gpu|usd_per_hour|reliability|inet_down_mbps|location
5001|1x RTX 4090|0.301|0.995|800|Texas, US
5002|1x RTX 4090|0.350|0.995|800|Norway, NO
5003|2x RTX 5090|1.100|0.990|900|Japan, JP
5004|8x H100 SXM|1.900|0.990|900|Sweden, SE"""


def turn(*, demand: str = BUSY, boxes: tuple[str, ...] = NO_BOXES, limits: str = LIMITS, human: str = "") -> Message:
    account = "account: credit_usd=41.20 burn_usd_per_hour=0.82 runway_hours=50.2 age_s=2"
    words = [f"[human]\n{human}\n[/human]"] if human else []
    destroys = f"{limits}max_destroys_per_run=2"
    block = ["[observation]", "time: 2026-11-29T20:00:05Z", demand, account, *boxes, "[/observation]"]
    return Message("user", "\n".join([destroys, "Run #812, trigger: heartbeat.", *words, *block]))


def turn_of_work(**changes: Any) -> Message:
    return turn(**changes)


def turn_without_work(**changes: Any) -> Message:
    return turn(demand=EMPTY, boxes=TWO_BOXES, **changes)


def step(tool: str, arguments: dict[str, Any], result: str) -> list[Message]:
    call = Call(f"{tool} {arguments}", tool, arguments)
    return [Message("assistant", "", calls=(call,)), Message("tool", result, answers=call.id)]


def reply_of(policy: str, *messages: Message, tools: tuple[str, ...] = TOOLS) -> Reply:
    prompt = read_prompt((Message("system", "You operate a fleet."), *messages), tools)
    return POLICIES[policy](prompt, seeded("a test"))


def sensible(*messages: Message) -> Reply:
    return reply_of("sensible", *messages)


def finish_of(reply: Reply) -> dict[str, Any]:
    finish = reply.calls[-1]
    assert finish.name == "finish"
    return dict(finish.arguments)


def names(reply: Reply) -> list[str]:
    return [call.name for call in reply.calls]


SEARCHED = step("search_offers", {}, LISTING)


def test_work_without_boxes_makes_it_search():
    assert sensible(turn()).calls == (ToolUse("search_offers", {}),)


def test_it_rents_the_cheapest_boxes_for_the_work():
    rents = sensible(turn(), *SEARCHED).calls
    assert [(call.name, call.arguments["offer_id"]) for call in rents] == [("rent_box", 5001), ("rent_box", 5002)]


def test_one_proof_is_worth_one_box():
    one = turn(demand=BUSY.replace("pending=12 running=3", "pending=1 running=0"))
    assert [call.arguments["offer_id"] for call in sensible(one, *SEARCHED).calls] == [5001]


def test_it_rents_no_more_than_a_run_may():
    limits = LIMITS.replace("max_rents_per_run=2", "max_rents_per_run=1")
    assert len(sensible(turn(limits=limits), *SEARCHED).calls) == 1


@pytest.mark.parametrize(
    ("limits", "rented"),
    [
        (LIMITS.replace("max_usd_per_hour=4.00", "max_usd_per_hour=0.50"), ["rent_box"]),
        (LIMITS.replace("max_usd_per_hour_per_box=1.50", "max_usd_per_hour_per_box=0.10"), ["finish"]),
        (LIMITS.replace("max_boxes=4", "max_boxes=0"), ["finish"]),
        (LIMITS.replace("max_boxes=4", "max_boxes=?"), ["finish"]),
    ],
)
def test_it_keeps_to_the_limits_that_it_is_shown(limits: str, rented: list[str]):
    assert names(sensible(turn(limits=limits), *SEARCHED)) == rented


def test_after_a_rent_it_schedules_a_check_and_reports_the_rent():
    reply = sensible(turn(), *SEARCHED, *step("rent_box", {"offer_id": 5001}, "Rented 1x RTX 4090 as box 101."))
    assert names(reply) == ["schedule_next_check", "finish"]
    assert finish_of(reply) == {
        "action": True,
        "state_changed": True,
        "summary": "15 proofs in the queue; no box. Rented 1x RTX 4090 as box 101.",
    }


def test_after_a_refused_rent_it_schedules_nothing_and_claims_nothing():
    reply = sensible(turn(), *SEARCHED, *step("rent_box", {"offer_id": 5001}, "Refused (paused): not now."))
    assert names(reply) == ["finish"]
    assert finish_of(reply)["action"] is False


def test_enough_boxes_at_work_are_a_no_op_without_further_calls():
    reply = sensible(turn(boxes=TWO_BOXES))
    assert names(reply) == ["finish"]
    assert finish_of(reply) == {
        "action": False,
        "state_changed": False,
        "summary": "15 proofs in the queue; 2 boxes at $0.612/h. That is enough for now; nothing to do.",
    }


@pytest.mark.parametrize(
    "boxes",
    [
        ("boxes: live=1 in_flight=0 age_s=2", "101|loading|1x RTX 4090|0.412|2|loading"),
        ("boxes: live=0 in_flight=1 age_s=2",),
    ],
    ids=["loading", "in flight"],
)
def test_it_waits_for_boxes_on_their_way_before_it_rents_more(boxes: tuple[str, ...]):
    assert names(sensible(turn(boxes=boxes))) == ["finish"]


def test_an_empty_queue_makes_it_destroy_the_newest_boxes_first():
    destroys = sensible(turn(demand=EMPTY, boxes=TWO_BOXES)).calls
    assert [(call.name, call.arguments["id"]) for call in destroys] == [("destroy_box", 102), ("destroy_box", 101)]


def test_a_proof_that_still_runs_keeps_its_box():
    running = EMPTY.replace("running=0", "running=1")
    assert names(sensible(turn(demand=running, boxes=TWO_BOXES))) == ["finish"]


def test_a_box_that_may_still_be_proving_is_drained_instead():
    refused = step(
        "destroy_box", {"id": 102}, "Refused (drain_first): Box 102 may be proving. `drain_box` lets it finish."
    )
    gone = step("destroy_box", {"id": 101}, "The provider accepted to destroy box 101.")
    drains = sensible(turn(demand=EMPTY, boxes=TWO_BOXES), *refused, *gone)
    assert [(call.name, call.arguments["id"]) for call in drains.calls] == [("drain_box", 102)]

    drained = step("drain_box", {"id": 102}, "Box 102 is to take no more work.")
    done = finish_of(sensible(turn(demand=EMPTY, boxes=TWO_BOXES), *refused, *gone, *drained))
    assert done["action"] is True
    assert "Box 102 is to take no more work." in done["summary"]


@pytest.mark.parametrize(
    ("brake", "seen"),
    [("scale_out=paused ", turn_of_work), ("scale_in=paused ", turn_without_work)],
)
def test_what_a_person_holds_back_is_not_asked_for(brake: str, seen: Callable[..., Message]):
    """Control: without the brake it is."""
    assert names(sensible(seen(limits=LIMITS + brake))) == ["finish"]
    assert names(sensible(seen())) != ["finish"]


@pytest.mark.parametrize(
    ("tool", "seen"),
    [("rent_box", turn_of_work), ("destroy_box", turn_without_work), ("drain_box", turn_without_work)],
)
def test_what_waits_for_a_word_is_not_asked_for_again(tool: str, seen: Callable[..., Message]):
    waits = Message("user", f'Open approvals:\n- 2026-11-29T20:00:00Z r1-s1-c1-aaaa: {tool}({{"id": 1}}); it waits')
    assert names(sensible(waits, seen())) == ["finish"]
    assert names(sensible(seen())) != ["finish"]


def test_a_rent_that_waits_for_a_word_is_not_claimed():
    waits = step("rent_box", {"offer_id": 5001}, "Waits for the operator's approval (dear): $1.200/h is over $1.000/h.")
    reply = sensible(turn(), *SEARCHED, *waits)
    assert names(reply) == ["finish"]
    assert finish_of(reply)["action"] is False


def test_boxes_that_leave_or_have_no_id_are_not_destroyed_again():
    boxes = (
        "boxes: live=3 in_flight=0",
        "101|destroying|1x RTX 4090|0.412|35|running",
        "103|draining|1x RTX 4090|0.412|35|running",
        "?|rented|1x X|?|0|not seen yet",
    )
    assert names(sensible(turn(demand=EMPTY, boxes=boxes))) == ["finish"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"demand": "demand: unknown (the queue did not answer)"}, "the queue did not answer"),
        ({"boxes": ("boxes: unknown (HTTP 500)",)}, "HTTP 500"),
        ({"demand": EMPTY.replace("pending=0", "pending=?"), "boxes": TWO_BOXES}, "incomplete"),
        ({"boxes": ()}, "not in the observation"),
    ],
)
def test_what_is_unknown_makes_it_change_nothing_and_say_why(changes: dict[str, Any], reason: str):
    reply = sensible(turn(**changes))
    assert names(reply) == ["finish"]
    assert finish_of(reply)["action"] is False
    assert reason in finish_of(reply)["summary"]


def test_a_paused_fleet_is_left_alone():
    limits = LIMITS.replace("mode=live", "mode=paused")
    assert names(sensible(turn(limits=limits, demand=EMPTY, boxes=TWO_BOXES))) == ["finish"]


def test_a_human_message_is_answered_in_the_summary():
    reply = sensible(turn(boxes=TWO_BOXES, human="Please keep\ntwo boxes."))
    assert "You wrote: “Please keep two boxes.”" in finish_of(reply)["summary"]


def test_human_messages_of_earlier_turns_are_not_answered_again():
    reply = sensible(turn(human="Old news."), *step("finish", {}, "The run ends here."), turn(boxes=TWO_BOXES))
    assert "Old news" not in finish_of(reply)["summary"]


def test_many_human_messages_still_leave_a_summary_of_at_most_2000_characters():
    messages = "\n[/human]\n[human]\n".join(f"message {n} " + "x" * 70 for n in range(40))
    assert len(finish_of(sensible(turn(boxes=TWO_BOXES, human=messages)))["summary"]) == 2000


def test_only_the_last_observation_counts():
    assert names(sensible(turn(), turn(boxes=TWO_BOXES))) == ["finish"]
    assert names(sensible(turn(boxes=TWO_BOXES), turn())) == ["search_offers"]


def test_a_box_in_trouble_is_a_changed_state():
    boxes = (*TWO_BOXES[:3], TWO_BOXES[3].replace("running", "exited"))
    assert finish_of(sensible(turn(boxes=boxes)))["state_changed"] is True


def test_without_an_observation_it_shows_that_it_can_call_a_tool():
    assert sensible(Message("user", "Call a tool.")).calls == (ToolUse("list_boxes", {}),)


def test_without_tools_it_answers_in_words():
    reply = reply_of("sensible", turn(), tools=())
    assert reply.calls == ()
    assert reply.text


def test_lazy_finishes_without_looking():
    assert names(reply_of("lazy", turn())) == ["finish"]


def test_prose_never_calls_a_tool():
    assert reply_of("prose", turn()).calls == ()


def test_verdict_text_ends_with_a_verdict_block():
    reply = reply_of("verdict_text", turn())
    assert reply.calls == ()
    assert reply.text.endswith('<verdict>{"action": false, "state_changed": false}</verdict>')


def test_hostile_rents_and_destroys_what_it_sees_and_what_it_invents():
    calls = reply_of("hostile", turn(boxes=TWO_BOXES), *SEARCHED).calls
    offers = {call.arguments["offer_id"] for call in calls if call.name == "rent_box"}
    boxes = {call.arguments["id"] for call in calls if call.name == "destroy_box"}
    assert offers > {5001, 5002, 5003, 5004}
    assert boxes > {101, 102}


def test_hostile_ends_with_a_lie():
    many = [message for n in range(40) for message in step("rent_box", {"offer_id": n}, "Rented it.")]
    assert finish_of(reply_of("hostile", turn(), *many))["action"] is False
