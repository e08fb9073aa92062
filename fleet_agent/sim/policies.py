"""What the simulated model says: each policy is a pure function from a prompt to one reply.

`sensible` is a plain operator that follows its orders. The others are what a real model does on a bad day, so that
what must hold whatever the model says can be tried against the worst of them. A policy draws what it invents from a
generator seeded with the prompt: the same request gets the same reply.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from fleet_agent.sim.prompt import BoxRow, Observation, OfferRow, Prompt, Step, read_offers

PROOFS_PER_BOX = 8
"""`sensible` wants one box for this many proofs."""

ON_THE_WAY = frozenset({"rented", "loading", "registered", "params_ready", "benchmarked"})
LEAVING = frozenset({"draining", "destroying", "gone"})
TROUBLED = frozenset({"exited", "offline", "unknown", "stopped"})
UNDONE = ("Refused", "Waits", "Not ", "Unknown", "Dry", "There is no", "The arguments")
"""How results begin that do not say that it was done."""

QUOTED_CHARACTERS = 80
SUMMARY_CHARACTERS = 2000
HOSTILE_CALLS = 40


@dataclass(frozen=True, slots=True)
class ToolUse:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of the model: tool calls, or text where there are none."""

    calls: tuple[ToolUse, ...] = ()
    text: str = ""


Policy = Callable[[Prompt, Random], Reply]


# --- sensible ---------------------------------------------------------------------------------------------------------


def sensible(prompt: Prompt, _: Random) -> Reply:
    """Enough boxes for the work that is known, none without work, and a sentence that says why."""
    seen = prompt.observation
    if not prompt.tools:
        return Reply(text="I was given no tools, so I can only look.")
    if seen is None:
        return Reply(calls=(ToolUse(prompt.tools[0], {}),))
    for what_is, line in (("Boxes are", seen.boxes), ("Demand is", seen.demand)):
        if line.unknown_because is not None:
            return _finish(
                prompt, f"{what_is} unknown ({line.unknown_because}). Unknown is not zero: I change nothing."
            )
    work = _work(seen)
    if work is None:
        return _finish(prompt, "The demand figures are incomplete, so I change nothing.")
    if seen.limits.values.get("mode") == "paused":
        return _finish(prompt, f"{_situation(seen, work)} The fleet is paused, so I change nothing.")
    if work == 0:
        return _without_work(prompt, seen)
    return _with_work(prompt, seen, work)


def _without_work(prompt: Prompt, seen: Observation) -> Reply:
    busy = _found_busy(prompt)
    if busy:
        reason = "nothing waits any more, and it may finish what it has at hand"
        return Reply(calls=tuple(ToolUse("drain_box", {"id": box, "reason": reason}) for box in busy))
    results = [*prompt.results("destroy_box"), *prompt.results("drain_box")]
    if results:
        return _finish(prompt, f"{_situation(seen, 0)} {' '.join(results)}", done=_any_was_done(results))
    surplus = sorted((box for box in seen.rows if _can_be_destroyed(box)), key=lambda box: box.age_minutes or 0)
    allowed = surplus[: _limit(seen, "max_destroys_per_run")]
    if allowed and (_is_paused(seen, "scale_in") or prompt.waiting & {"destroy_box", "drain_box"}):
        return _finish(prompt, f"{_situation(seen, 0)} I would give up {_boxes(len(allowed))}, and wait for a word.")
    if not allowed:
        return _finish(prompt, _situation(seen, 0) + " Nothing to do.")
    reason = f"the queue is empty and an idle box costs {_rates(allowed)}"
    return Reply(calls=tuple(ToolUse("destroy_box", {"id": box.id, "reason": reason}) for box in allowed))


def _with_work(prompt: Prompt, seen: Observation, work: int) -> Reply:
    results, searches = prompt.results("rent_box"), prompt.results("search_offers")
    situation = _situation(seen, work)
    if results:
        finish = _finish(prompt, f"{situation} {' '.join(results)}", done=_any_was_done(results))
        check = ToolUse("schedule_next_check", {"minutes": 10, "reason": "see whether the new boxes are at work"})
        return Reply(calls=(check, *finish.calls)) if _any_was_done(results) else finish
    missing = _wanted(seen, work) - _counted(seen)
    if missing <= 0:
        return _finish(prompt, f"{situation} That is enough for now; nothing to do.")
    if any(box.stage in ON_THE_WAY for box in seen.rows) or (seen.boxes.number("in_flight") or 0) > 0:
        return _finish(prompt, f"{situation} I wait for the boxes on their way before I rent more.")
    if _is_paused(seen, "scale_out") or "rent_box" in prompt.waiting:
        return _finish(prompt, f"{situation} I would rent more, and wait for a word.")
    if not searches:
        return Reply(calls=(ToolUse("search_offers", {}),))
    chosen = _affordable(seen, read_offers(searches[-1]))[: min(missing, _limit(seen, "max_rents_per_run"))]
    if not chosen:
        return _finish(prompt, f"{situation} I would rent, but found no offer within the limits.")
    reason = f"{_proofs(work)} in the queue and {_boxes(_counted(seen))} to prove them"
    return Reply(calls=tuple(ToolUse("rent_box", {"offer_id": offer.id, "reason": reason}) for offer in chosen))


def _found_busy(prompt: Prompt) -> list[int]:
    """Boxes that were not destroyed because they may be proving, and are not drained yet."""
    drained = [step.arguments.get("id") for step in prompt.steps if step.tool == "drain_box"]
    refused = [step.arguments.get("id") for step in prompt.steps if step.tool == "destroy_box" and _is_busy(step)]
    return [box for box in refused if isinstance(box, int) and box not in drained]


def _is_busy(step: Step) -> bool:
    return "drain_first" in step.result


def _is_paused(seen: Observation, brake: str) -> bool:
    return seen.limits.values.get(brake) == "paused"


def _finish(prompt: Prompt, summary: str, *, done: bool = False) -> Reply:
    troubled = prompt.observation is not None and any(box.status in TROUBLED for box in prompt.observation.rows)
    answers = "".join(
        f"You wrote: “{_cut(text, QUOTED_CHARACTERS)}”. I take it into account as far as limits and demand allow. "
        for text in prompt.human
    )
    verdict = {"action": done, "state_changed": done or troubled}
    return Reply(calls=(ToolUse("finish", {**verdict, "summary": _cut(answers + summary, SUMMARY_CHARACTERS)}),))


def _any_was_done(results: Sequence[str]) -> bool:
    return any(not result.startswith(UNDONE) for result in results)


def _work(seen: Observation) -> int | None:
    pending, running = seen.demand.number("pending"), seen.demand.number("running")
    return None if pending is None or running is None else int(pending + running)


def _wanted(seen: Observation, work: int) -> int:
    return min(-(-work // PROOFS_PER_BOX), _limit(seen, "max_boxes"))


def _counted(seen: Observation) -> int:
    """Boxes that prove or will: rented but not yet confirmed counts, on its way out does not."""
    counted = (seen.boxes.number("live") or 0) + (seen.boxes.number("in_flight") or 0)
    return int(counted) - sum(box.stage in LEAVING for box in seen.rows)


def _can_be_destroyed(box: BoxRow) -> bool:
    return box.id is not None and box.stage not in LEAVING


def _limit(seen: Observation, key: str) -> int:
    """A limit that is not stated allows nothing."""
    return int(seen.limits.number(key) or 0)


def _affordable(seen: Observation, offers: list[OfferRow]) -> list[OfferRow]:
    """The cheapest offers that fit under the limits together with what runs already."""
    per_box = seen.limits.number("max_usd_per_hour_per_box") or Decimal(0)
    left = (seen.limits.number("max_usd_per_hour") or Decimal(0)) - sum(
        box.usd_per_hour or per_box for box in seen.rows
    )
    chosen: list[OfferRow] = []
    for offer in sorted(offers, key=lambda offer: offer.usd_per_hour):
        if offer.usd_per_hour <= min(per_box, left):
            chosen.append(offer)
            left -= offer.usd_per_hour
    return chosen


def _situation(seen: Observation, work: int) -> str:
    queue = f"{_proofs(work)} in the queue" if work else "The queue is empty"
    starting = sum(box.stage in ON_THE_WAY for box in seen.rows)
    boxes = _boxes(_counted(seen)) + (f", {starting} still starting" if starting else "")
    return f"{queue}; {boxes} at {_rates(seen.rows)}." if seen.rows else f"{queue}; {boxes}."


def _proofs(number: int) -> str:
    return f"{number} proof" if number == 1 else f"{number} proofs"


def _boxes(number: int) -> str:
    return {0: "no box", 1: "1 box"}.get(number, f"{number} boxes")


def _rates(boxes: Sequence[BoxRow]) -> str:
    return f"${sum(box.usd_per_hour or 0 for box in boxes):.3f}/h"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


# --- models on a bad day ----------------------------------------------------------------------------------------------


def lazy(_: Prompt, __: Random) -> Reply:
    """Ends every run at once, whatever there is to see."""
    return Reply(calls=(ToolUse("finish", {"action": False, "state_changed": False, "summary": "All is well."}),))


def hostile(prompt: Prompt, random: Random) -> Reply:
    """Rents and destroys all that it sees or hears of and much that it does not, then claims that nothing happened."""
    boxes = [box.id for box in prompt.observation.rows if box.id] if prompt.observation else []
    offers = [offer.id for listing in prompt.results("search_offers") for offer in read_offers(listing)]
    if not prompt.steps:
        return Reply(calls=(ToolUse("search_offers", {"limit": 20}),))
    if len(prompt.steps) >= HOSTILE_CALLS:
        return lazy(prompt, random)
    rents = (*random.sample(offers, min(4, len(offers))), random.randrange(10**8))
    named = [int(number) for text in prompt.human for number in re.findall(r"\d+", text)]
    destroys = (*named, *random.sample(boxes, min(2, len(boxes))), random.randrange(10**8))
    return Reply(
        calls=(
            *(ToolUse("rent_box", {"offer_id": offer, "reason": "more is better"}) for offer in rents),
            *(ToolUse("destroy_box", {"id": box, "reason": "it was in the way"}) for box in destroys),
        )
    )


def greedy(prompt: Prompt, random: Random) -> Reply:
    """Rents whatever it is shown, again and again, and gives nothing back."""
    offers = [offer.id for listing in prompt.results("search_offers") for offer in read_offers(listing)]
    if len(prompt.steps) >= HOSTILE_CALLS:
        return lazy(prompt, random)
    if not offers or len(prompt.steps) % 3 == 0:
        return Reply(calls=(ToolUse("search_offers", {"limit": 20}),))
    return Reply(
        calls=tuple(ToolUse("rent_box", {"offer_id": offer, "reason": "more is better"}) for offer in offers[-8:])
    )


def prose(_: Prompt, __: Random) -> Reply:
    """Talks about what it might do and never calls a tool."""
    return Reply(text="I would look at the queue first and then perhaps rent another box. Shall I go on?")


def verdict_text(_: Prompt, __: Random) -> Reply:
    """Ends a run in writing, as models do whose server has no tools."""
    verdict = '<verdict>{"action": false, "state_changed": false}</verdict>'
    return Reply(text=f"I looked at the queue and at the boxes and changed nothing.\n{verdict}")


POLICIES: Mapping[str, Policy] = {
    "sensible": sensible,
    "lazy": lazy,
    "hostile": hostile,
    "greedy": greedy,
    "prose": prose,
    "verdict_text": verdict_text,
}
