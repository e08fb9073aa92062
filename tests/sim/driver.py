"""Plays runs against a world without any of the product: look, ask the policy, do what it says, until it finishes."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fleet_agent.sim.catalogue import seeded
from fleet_agent.sim.chat import Call, Message
from fleet_agent.sim.market import Offer, Order
from fleet_agent.sim.policies import POLICIES, Policy
from fleet_agent.sim.prompt import read_prompt
from fleet_agent.sim.world import World

DISK_GB = Decimal(100)
TOOLS = ("list_boxes", "search_offers", "rent_box", "destroy_box", "schedule_next_check", "finish")
MOST_REPLIES = 12


@dataclass
class Outcome:
    """What one run did, by the policy's calls, and its finish."""

    rented: list[int] = field(default_factory=list[int])
    destroyed: list[int] = field(default_factory=list[int])
    searches: int = 0
    finish: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def kind(self) -> str:
        if self.rented or self.destroyed:
            return "rent" if self.rented else "destroy"
        return "no-op" if not self.finish["action"] and not self.finish["state_changed"] else "other"


def play_run(world: World, policy: Policy = POLICIES["sensible"], *, human: str = "") -> Outcome:
    """One run. Raises AssertionError when the policy does not finish within MOST_REPLIES replies."""
    outcome = Outcome()
    messages = [Message("system", "You operate a fleet."), Message("user", _turn(world, human))]
    for reply_number in range(MOST_REPLIES):
        reply = policy(read_prompt(tuple(messages), TOOLS), seeded("driver", reply_number))
        calls = tuple(Call(f"c{reply_number}x{n}", use.name, dict(use.arguments)) for n, use in enumerate(reply.calls))
        messages.append(Message("assistant", reply.text, calls=calls))
        messages += [Message("tool", _carry_out(world, call, outcome), answers=call.id) for call in calls]
        if outcome.finish:
            return outcome
    raise AssertionError(f"the policy did not finish within {MOST_REPLIES} replies")


def observation(world: World) -> str:
    figures, boxes = world.queue.figures(), world.market.instances()
    burn = sum(box.gpu_usd_per_hour for box in boxes)
    now = world.market.clock.now()
    lines = [
        "[observation]",
        f"time: {now:%Y-%m-%dT%H:%M:%SZ}",
        f"demand: pending={figures.pending} running={figures.running} oldest_pending_s=0 age_s=0",
        f"account: credit_usd={world.market.credit_usd():.2f} burn_usd_per_hour={burn:.3f} runway_hours=? age_s=0",
        f"boxes: live={len(boxes)} in_flight=0 age_s=0",
        "id|stage|gpu|usd_per_hour|age_min|status",
    ]
    for box in boxes:
        stage = "proving" if box.actual_status == "running" else "loading"
        age = (now - box.created_at).total_seconds() / 60
        gpu = f"{box.machine.gpus_per_lot}x {box.machine.gpu.name}"
        lines.append(f"{box.id}|{stage}|{gpu}|{box.gpu_usd_per_hour:.3f}|{age:.0f}|{box.actual_status or 'preparing'}")
    return "\n".join([*lines, "[/observation]"])


LIMITS = (
    "limits: mode=live max_boxes=4 max_usd_per_hour=4.00 max_usd_per_hour_per_box=1.50 max_rents_per_run=2 "
    "max_destroys_per_run=2"
)


def _turn(world: World, human: str) -> str:
    words = f"[human]\n{human}\n[/human]\n" if human else ""
    return f"{LIMITS}\nRun #1, trigger: heartbeat.\n{words}{observation(world)}"


def _carry_out(world: World, call: Call, outcome: Outcome) -> str:
    match call.name:
        case "search_offers":
            outcome.searches += 1
            return _listing(world)
        case "rent_box":
            box = world.market.rent(call.arguments["offer_id"], Order("prover@sha256:0", disk_gb=DISK_GB))
            outcome.rented.append(box.id)
            return f"Rented {box.machine.gpus_per_lot}x {box.machine.gpu.name} as box {box.id}."
        case "destroy_box":
            world.market.destroy(call.arguments["id"])
            outcome.destroyed.append(call.arguments["id"])
            return f"The provider accepted to destroy box {call.arguments['id']}; the next look proves it."
        case "finish":
            outcome.finish = call.arguments
            return "The run ends here."
        case _:
            return "Noted."


def _listing(world: World) -> str:
    offers = sorted((offer for offer in world.market.offers() if _is_fit(offer)), key=_usd_per_hour)[:10]
    rows = [
        f"{offer.lot.ask_id}|{offer.lot.machine.gpus_per_lot}x {offer.lot.machine.gpu.name}|{_usd_per_hour(offer):.3f}"
        f"|{offer.lot.machine.reliability:.3f}|{offer.lot.machine.down_mbit_per_s:.0f}|{offer.lot.machine.geolocation}"
        for offer in offers
    ]
    head = [f"offers: {len(rows)}, cheapest first", "id|gpu|usd_per_hour|reliability|inet_down_mbps|location"]
    return "\n".join(head + rows)


def _is_fit(offer: Offer) -> bool:
    """The floors that the product ships with: memory, reliability, line, verified, whole machine."""
    machine = offer.lot.machine
    return (
        offer.rentable
        and machine.gpu.ram_mb >= 24_000
        and machine.reliability >= 0.95
        and machine.down_mbit_per_s >= 200
        and machine.verification == "verified"
        and machine.lots == 1
    )


def _usd_per_hour(offer: Offer) -> Decimal:
    return offer.lot.usd_per_hour + offer.lot.disk_usd_per_hour(DISK_GB)
