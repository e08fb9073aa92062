"""What a machine is worth to us: how fast it proves, how long until it does, and what a proof on it costs.

The price of an hour says little: two machines of one price differ by half in what they prove, and every box is paid
for an hour or so before its first proof. So machines are compared by what one proof is expected to cost, the start-up
spread over the time that a box is likely to be kept.

What a machine has shown itself counts before all else. Of others only the class is known, by GPU and memory: a first
guess of the policy, moved by what machines of that class have shown, and taken with a discount, so that a stranger must
promise more than an acquaintance to be preferred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Final

from fleet_agent.domain.fleet import Box, Offer, Stage
from fleet_agent.domain.hosts import Benchmark
from fleet_agent.domain.policy import Planning
from fleet_agent.domain.values import Frozen

ROOMY_MB: Final = 240 * 1024
"""Main memory that one prover needs for its full speed; with less, its GPUs wait for it in proportion."""

SHARED: Final = 0.9
"""Exponent of the number of GPUs: those of one machine share its memory's bandwidth."""

GUESS_COUNTS: Final = 3
"""As so many machines among those that were measured: one odd host does not make a class."""

ENOUGH_STARTS: Final = 5
"""Start-ups from which a 95th percentile says more than the policy's guess."""

LONGEST_LEAD: Final = timedelta(days=30)
"""Of a line on which the parameters never come."""

HOUR: Final = timedelta(hours=1)

Place = tuple[int, int]
"""A machine with a number of GPUs: what a measurement is of."""


class StartUp(Frozen):
    """How long a box of such a machine took from renting to proving."""

    machine_id: int
    num_gpus: int
    took: timedelta


class Rate(Frozen):
    """What a box proves; `measured` by this very machine, else guessed by its class."""

    proofs_per_hour: float
    measured: bool


class Experience(Frozen):
    """What the policy guesses and boxes have shown, ready to be asked."""

    planning: Planning
    shown: Mapping[Place, float]
    """Proofs an hour."""
    leads: Mapping[Place, timedelta]
    class_factors: Mapping[str, float]
    """By GPU name: how much faster than guessed machines of the class were."""
    usual_lead: timedelta
    lead_p95: timedelta

    # --- how fast ---------------------------------------------------------------------------------------------------

    def rate_of_offer(self, offer: Offer) -> Rate:
        return self._rate(offer.machine_id, offer.num_gpus, offer.gpu_name, room=_room(offer))

    def rate_of_box(self, box: Box) -> float:
        """Proofs an hour. Of its memory nothing is known but that the floors were content with it."""
        return self._rate(box.machine_id, box.num_gpus, box.gpu_name, room=1.0).proofs_per_hour

    @property
    def usual_rate(self) -> float:
        """Of a box of which nothing is known but that there will be one."""
        return self.planning.proofs_per_hour_default

    def _rate(self, machine_id: int, num_gpus: int, gpu_name: str, *, room: float) -> Rate:
        shown = self.shown.get((machine_id, num_gpus))
        if shown is not None:
            return Rate(proofs_per_hour=shown, measured=True)
        guess = guessed(self.planning, gpu_name, num_gpus) * self.class_factors.get(gpu_name, 1.0)
        return Rate(proofs_per_hour=guess * room, measured=False)

    # --- how soon, and for how much ---------------------------------------------------------------------------------

    def lead(self, offer: Offer) -> timedelta:
        """From renting to proving: as this machine has shown, else the usual time, or what its line takes alone."""
        shown = self.leads.get((offer.machine_id, offer.num_gpus))
        return shown if shown is not None else max(self.usual_lead, self._fetching(offer))

    def lead_of_box(self, box: Box) -> timedelta:
        return self.leads.get((box.machine_id, box.num_gpus), self.usual_lead)

    def _fetching(self, offer: Offer) -> timedelta:
        megabits = self.planning.parameters_gb * 8000
        return min(LONGEST_LEAD, timedelta(seconds=megabits / max(offer.inet_down_mbps, 0.001)))

    def usd_of_a_stay(self, offer: Offer) -> Decimal:
        """With the start-up and the disk."""
        return offer.usd_per_hour * _decimal((self.planning.expected_stay + self.lead(offer)) / HOUR)

    def usd_per_proof(self, offer: Offer) -> Decimal | None:
        """Expected; None where no proof is."""
        rate = self.rate_of_offer(offer)
        certain = 1.0 if rate.measured else 1 - self.planning.unmeasured_discount
        proofs = rate.proofs_per_hour * certain * offer.reliability * (self.planning.expected_stay / HOUR)
        return over(self.usd_of_a_stay(offer), proofs)

    def usd_per_proof_from_now(self, box: Box, age: timedelta) -> Decimal | None:
        """Of a box that is there: what it has cost is spent, and what it still takes to start is not."""
        stay, left = self.planning.expected_stay, max(timedelta(0), self.lead_of_box(box) - age)
        if box.stage is Stage.PROVING:
            left = timedelta(0)
        return over(box.usd_per_hour * _decimal((stay + left) / HOUR), self.rate_of_box(box) * (stay / HOUR))


def experience(
    planning: Planning,
    benchmarks: Sequence[Benchmark],
    startups: Sequence[StartUp],
    machines: Iterable[Offer | Box],
) -> Experience:
    """`machines`: whatever is in sight; a measurement does not say what GPUs it was made on, and they do."""
    shown = {(each.machine_id, each.num_gpus): each.proofs_per_hour for each in benchmarks}
    took = sorted(each.took for each in startups)
    return Experience(
        planning=planning,
        shown=shown,
        leads={(each.machine_id, each.num_gpus): each.took for each in startups},
        class_factors=_class_factors(planning, shown, machines),
        usual_lead=took[len(took) // 2] if took else planning.startup_p95,
        lead_p95=_quantile(took, 0.95) if len(took) >= ENOUGH_STARTS else planning.startup_p95,
    )


def guessed(planning: Planning, gpu_name: str, num_gpus: int) -> float:
    """Proofs an hour of a roomy machine, by the policy's first guess."""
    one = planning.proofs_per_hour.get(gpu_name, planning.proofs_per_hour_default)
    return float(one * num_gpus**SHARED)


def over(usd: Decimal, proofs: float) -> Decimal | None:
    return usd / _decimal(proofs) if proofs > 0 else None


def _class_factors(
    planning: Planning, shown: Mapping[Place, float], machines: Iterable[Offer | Box]
) -> dict[str, float]:
    names = {(each.machine_id, each.num_gpus): each.gpu_name for each in machines}
    ratios: dict[str, list[float]] = {}
    for place, gpu_name in sorted(names.items()):
        if place in shown:
            guesses = ratios.setdefault(gpu_name, [1.0] * GUESS_COUNTS)
            guesses.append(shown[place] / guessed(planning, gpu_name, place[1]))
    return {gpu_name: sum(each) / len(each) for gpu_name, each in ratios.items()}


def _room(offer: Offer) -> float:
    """Some hosts do not say how much memory they have."""
    return min(1.0, offer.ram_mb / ROOMY_MB) if offer.ram_mb > 0 else 1.0


def _quantile(ascending: Sequence[timedelta], share: float) -> timedelta:
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))
