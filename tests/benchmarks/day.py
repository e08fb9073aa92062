"""What a day of proving costs, and what comes too late: the planner alone beside three others, on three kinds of day.

    make bench-day

`static_peak` keeps what the busiest half hour of the day needs, all day long. `reactive` is what anybody would write: a
box for so many proofs in the queue, at once, and one less when for a while fewer would have done. `clairvoyant` knows
what will come, how good every machine is and how soon, and which never comes up: hardly anybody does better. All but
the last choose machines by what the planner knows of them, so that they differ in how many they rent, and when.

The fleet is a toy (`tests/toy_fleet.py`) on a clock of minutes; whoever decides does so every five. Each kind of day is
drawn from several seeds, each with machines of its own, and the figures are sums. Two hours before the day are not
counted, for everybody begins without a box. A proof that took longer than the market's deadline is a miss, and so is
one that has waited longer when the day ends. The last line is one JSON object, in dollars, proofs and hours.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.plan import Move
from fleet_agent.domain.policy import Limits, Policy
from fleet_agent.domain.worth import Experience, experience
from fleet_agent.sim.catalogue import seeded
from tests.toy_fleet import DAWN, DEADLINE, MINUTE, Decider, Host, Tally, ToyFleet, live, planner_alone

SEEDS = range(int(os.environ.get("SEEDS", "5")))
WARM_UP = 2 * 60
DAY = 24 * 60
MOST_BOXES = 20
POLICY = Policy(
    limits=Limits(
        max_boxes=MOST_BOXES,
        max_usd_per_hour=Decimal(20),
        max_usd_per_day=Decimal(400),
        max_rents_per_run=4,
        max_rents_per_hour=20,
    )
)
"""As it is by default, but for the size of the fleet."""

Trace = list[int]
"""Proofs that come in, minute by minute, those of the warm-up first."""


def main() -> None:
    print(f"{'':<15}{'':<13}{'$':>8}{'proofs':>8}{'$/proof':>9}{'backlog h':>11}{'missed':>8}{'killed':>8}")
    days = {name: {who: summed(lived_by(who, draw)) for who in DECIDERS} for name, draw in TRACES.items()}
    for name, lived in days.items():
        for who, figures in lived.items():
            print(f"{name:<15}{who:<13}{_row(figures)}", flush=True)
    totals = {who: summed(lived[who] for lived in days.values()) for who in DECIDERS}
    print(json.dumps({**totals, "beside": {"days": len(SEEDS), "traces": days}}))


def lived_by(who: str, draw: Callable[[int], Trace]) -> Iterable[Mapping[str, float]]:
    for seed in SEEDS:
        trace = draw(seed)
        yield figures_of(day_of(trace, DECIDERS[who](trace), seed))


def day_of(trace: Trace, decide: Decider, seed: int) -> Tally:
    fleet = ToyFleet(POLICY, seed=seed, start=DAWN - WARM_UP * MINUTE)
    live(fleet, trace[:WARM_UP], decide)
    fleet.tally = Tally()
    live(fleet, trace[WARM_UP:], decide)
    fleet.tally.deadline_misses += sum(fleet.now - arrived > DEADLINE for arrived in fleet.waiting)
    return fleet.tally


def figures_of(tally: Tally) -> dict[str, float]:
    return {
        "usd": float(tally.usd),
        "proofs": tally.proofs,
        "backlog_hours": tally.backlog_hours,
        "deadline_misses": tally.deadline_misses,
        "busy_killed": tally.busy_killed,
        "model_calls": 0,
        "tokens": 0,
    }


def summed(days: Iterable[Mapping[str, float]]) -> dict[str, float]:
    rows = list(days)
    sums = {name: round(sum(row[name] for row in rows), 2) for name in rows[0] if name != "usd_per_proof"}
    return sums | {"usd_per_proof": round(sums["usd"] / max(1, sums["proofs"]), 5)}


def _row(figures: Mapping[str, float]) -> str:
    return (
        f"{figures['usd']:>8.2f}{figures['proofs']:>8.0f}{figures['usd_per_proof']:>9.4f}"
        f"{figures['backlog_hours']:>11.0f}{figures['deadline_misses']:>8.0f}{figures['busy_killed']:>8.0f}"
    )


# --- three kinds of day -----------------------------------------------------------------------------------------------


def steady_diurnal(seed: int) -> Trace:
    """A wave: eight times as much work in the afternoon as at night."""
    return _drawn(seed, "diurnal", lambda hour: 120 + 94 * math.sin((hour - 9) / 24 * math.tau))


def bursty(seed: int) -> Trace:
    """Little work, and five bursts of five to fourteen times as much, for twenty minutes to an hour and a half."""
    dice = seeded(seed, "bursts")
    begins = [4.4 * number + dice.uniform(0, 3) for number in range(5)]
    bursts = [(begin, begin + dice.uniform(0.33, 1.5), dice.uniform(120, 320)) for begin in begins]
    return _drawn(seed, "bursty", lambda hour: 24 + sum(more for begin, end, more in bursts if begin <= hour < end))


def collapsing(seed: int) -> Trace:
    """Much work until it collapses within half an hour, some time before noon, and hardly any after that."""
    falls_at = seeded(seed, "collapse").uniform(9, 12)
    return _drawn(seed, "collapsing", lambda hour: 5 + 200 * min(1.0, max(0.0, 1 - (hour - falls_at) / 0.5)))


TRACES: Mapping[str, Callable[[int], Trace]] = {
    "steady-diurnal": steady_diurnal,
    "bursty": bursty,
    "collapsing": collapsing,
}


def _drawn(seed: int, name: str, per_hour: Callable[[float], float]) -> Trace:
    """The warm-up is as busy as the day begins."""
    dice = seeded(seed, name, "arrivals")
    return [_poisson(dice, per_hour(max(0, minute) / 60) / 60) for minute in range(-WARM_UP, DAY)]


def _poisson(dice: Random, mean: float) -> int:
    count, at = 0, dice.expovariate(1)
    while at < mean:
        count, at = count + 1, at + dice.expovariate(1)
    return count


# --- three others who decide ------------------------------------------------------------------------------------------


def static_peak(trace: Trace) -> Decider:
    """Enough for the busiest half hour, from the beginning to the end; what breaks is replaced."""
    peak = max(sum(trace[at : at + 30]) * 2 for at in range(len(trace)))

    def decide(fleet: ToyFleet) -> Sequence[Move]:
        known = _known(fleet)
        return _rents(fleet, missing=peak - sum(known.rate_of_box(box) for box in fleet.situation().boxes))

    return decide


PROOFS_PER_BOX = 15
"""A quarter of an hour's work for a usual box."""

PATIENCE = timedelta(minutes=30)


def reactive(_: Trace) -> Decider:
    wants: list[tuple[datetime, int]] = []

    def decide(fleet: ToyFleet) -> Sequence[Move]:
        demand = fleet.demand()
        wanted = math.ceil((demand.pending + demand.running) / PROOFS_PER_BOX)
        wants.append((fleet.now, wanted))
        if wanted > len(fleet.boxes):
            return _rents(fleet, missing=math.inf, most=wanted - len(fleet.boxes))
        if max(each for at, each in wants if fleet.now - at <= PATIENCE) < len(fleet.boxes):
            newest = max(fleet.boxes, key=lambda box: (box.rented_at, box.id))
            return [DestroyBox(id=newest.id, reason="fewer would have done for a while")]
        return []

    return decide


LONG_ENOUGH = 90
"""Minutes for which a box must be without use to be given up: about what it takes to have it again."""


def clairvoyant(trace: Trace) -> Decider:
    """Rents what will be needed when it is up, and gives up what will not be needed for long."""

    def needed(minute: int) -> float:
        around = trace[max(0, minute - 5) : minute + 25]
        return sum(around) / len(around) * 60 if around else 0.0

    def decide(fleet: ToyFleet) -> Sequence[Move]:
        minute = round((fleet.now - DAWN) / MINUTE) + WARM_UP
        staying = sorted((box for box in fleet.boxes if not box.draining), key=lambda box: _usd_per_proof(box.host))
        capacity = sum(box.host.rate for box in staying)
        rents: list[Move] = []
        for host in sorted((host for host in _rentable(fleet) if not host.is_dud), key=_usd_per_proof):
            up = minute + round(host.lead / MINUTE)
            backlog = 0 if staying else len(fleet.waiting)
            if capacity >= max(map(needed, range(up, up + 10))) + backlog or len(staying) + len(rents) >= MOST_BOXES:
                break
            rents.append(RentBox(offer_id=host.offer.id, reason="it will be needed"))
            capacity += host.rate
        least = max(map(needed, range(minute, minute + LONG_ENOUGH))) + len(fleet.waiting)
        spare = [box for box in staying if capacity - box.host.rate >= least]
        return rents or [DrainBox(id=box.id, reason="it will not be needed") for box in spare[-1:]]

    return decide


def _usd_per_proof(host: Host) -> float:
    """As it really is."""
    return float(host.offer.usd_per_hour) / host.rate


def _rents(fleet: ToyFleet, *, missing: float, most: int = MOST_BOXES) -> list[Move]:
    """The best by the proof, as the planner would see it."""
    known, rents = _known(fleet), list[Move]()
    for host in sorted(_rentable(fleet), key=lambda host: known.usd_per_proof(host.offer) or Decimal("Infinity")):
        if missing <= 0 or len(rents) == most or len(fleet.boxes) + len(rents) >= MOST_BOXES:
            break
        rents.append(RentBox(offer_id=host.offer.id, reason="more is needed"))
        missing -= known.rate_of_offer(host.offer).proofs_per_hour
    return rents


def _rentable(fleet: ToyFleet) -> list[Host]:
    banned = {ban.machine_id for ban in fleet.bans if ban.expires_at > fleet.now}
    dearest = POLICY.approvals.rent_above_usd_per_hour or Decimal("Infinity")
    return [
        host
        for host in fleet.free()
        if POLICY.offers.unmet_by(host.offer) is None
        and host.offer.usd_per_hour <= dearest
        and host.machine.machine_id not in banned
    ]


def _known(fleet: ToyFleet) -> Experience:
    seen = fleet.situation()
    machines: list[Any] = [*seen.listing, *seen.boxes]
    return experience(POLICY.planning, seen.benchmarks, tuple(fleet.startups.values()), machines)


DECIDERS: Mapping[str, Callable[[Trace], Decider]] = {
    "planner": lambda _: planner_alone(),
    "static_peak": static_peak,
    "reactive": reactive,
    "clairvoyant": clairvoyant,
}


if __name__ == "__main__":
    main()
