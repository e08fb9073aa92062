"""What a rented box does for the proving side: it boots, measures itself, and proves.

Derived from the market's segments alone, for the present and for any earlier instant, so that whoever counts proofs may
step through a stretch of time that has already passed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from fleet_agent.sim.catalogue import Machine, seeded
from fleet_agent.sim.market import Instance, Market

Stage = Literal["loading", "benchmarking", "proving", "down"]

ROOMY_MB = 240 * 1024
"""Main memory that one prover needs for full speed; below it, witness generation starves the GPUs."""


@dataclass(frozen=True, slots=True)
class ProvingBox:
    """A box at work, since when, and how much it proves per hour of business time."""

    instance: Instance
    productive_since: datetime
    proofs_per_hour: float


def productive(market: Market, at: datetime) -> list[ProvingBox]:
    """The boxes that prove at an instant, oldest first. `at` is the market's present or any time before it."""
    delay = market.config.productive_after
    return [
        ProvingBox(box, up_since + delay, proofs_per_hour(box.machine))
        for box in market.all_instances()
        if (up_since := _up_since(box, at)) is not None and up_since + delay <= at
    ]


def stage(market: Market, box: Instance, at: datetime) -> Stage:
    """How far a box has come at an instant; `down` is everything from which it does not come back by itself."""
    market.settle()
    up_since = _up_since(box, at)
    if up_since is not None:
        return "proving" if up_since + market.config.productive_after <= at else "benchmarking"
    segment = next((segment for segment in box.segments if _covers(segment.since, segment.until, at)), None)
    booting = segment is not None and segment.status in (None, "created", "loading", "rebooting", "recycling")
    return "loading" if booting else "down"


def way(market: Market, box: Instance, at: datetime) -> float:
    """How much of the way from its start to its first proof a box has come that runs: 0 to 1."""
    up_since = _up_since(box, at)
    return 0.0 if up_since is None else min(1.0, (at - up_since) / market.config.productive_after)


def proofs_per_hour(machine: Machine) -> float:
    """What one box on a machine proves: its GPUs with diminishing returns, the host's quality, and room in memory."""
    gpus = machine.gpu.proofs_per_hour * machine.gpus_per_lot**0.9
    room = min(1.0, machine.cpu_ram_mb * machine.share / ROOMY_MB)
    return round(gpus * machine.host_speed * room, 2)


def log(market: Market, box: Instance) -> list[str]:
    """The lines that a box has written by now: how it came up and, once it proves, one for each of its last proofs."""
    now = market.settle()
    lines = [f"{segment.since:%Y-%m-%dT%H:%M:%SZ} container {segment.status}" for segment in box.segments[1:]]
    up_since = _up_since(box, now)
    if up_since is None:
        return lines
    lines += [
        f"{up_since:%Y-%m-%dT%H:%M:%SZ} fetch: parameters complete, {market.config.start_up_traffic_gb} GB",
        f"{up_since:%Y-%m-%dT%H:%M:%SZ} bench: started on {box.machine.gpus_per_lot}x {box.machine.gpu.name}",
    ]
    since = up_since + market.config.productive_after
    if since > now:
        return lines
    rate = proofs_per_hour(box.machine)
    lines.append(f"{since:%Y-%m-%dT%H:%M:%SZ} bench: {rate} proofs/h")
    return lines + _proof_lines(market, box, since, now, rate)


def _proof_lines(market: Market, box: Instance, since: datetime, now: datetime, rate: float) -> list[str]:
    done = int((now - since) / timedelta(hours=1) * rate)
    lines: list[str] = []
    for number in range(max(1, done - 40), done + 1):
        at = since + timedelta(hours=number / rate)
        seconds = 3600 / rate * seeded(market.seed, box.id, "proof", number).uniform(0.9, 1.1)
        lines.append(f"{at:%Y-%m-%dT%H:%M:%SZ} prover: proof {number} done in {seconds:.1f} s")
    return lines


def _up_since(box: Instance, at: datetime) -> datetime | None:
    """Since when a box has been running without a break at an instant. A change of price is no break."""
    if box.gone_at is not None and box.gone_at <= at:
        return None
    since: datetime | None = None
    for segment in box.segments:
        if segment.since > at:
            break
        if segment.status != "running":
            since = None
        elif since is None:
            since = segment.since
    return since


def _covers(since: datetime, until: datetime | None, at: datetime) -> bool:
    return since <= at and (until is None or at < until)
