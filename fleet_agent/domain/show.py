"""How the model sees the world: fixed, compact text for observation, boxes and offers.

Tables instead of JSON, because tokens are paid for and many tokenizers charge every digit; one `name=value` line per
part, so that a person reads it as easily as the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from fleet_agent.domain.demand import not_known
from fleet_agent.domain.fleet import Box, Offer
from fleet_agent.domain.hygiene import clean
from fleet_agent.domain.observation import Known, Observation, Unknown
from fleet_agent.domain.run import Standing

MOST_ROWS = 40
"""Boxes that are listed one by one; a larger fleet would crowd everything else out of the prompt."""


OPENS_A_LOOK = "[observation]"
CLOSES_A_LOOK = "[/observation]"


def observation_block(observation: Observation, now: datetime) -> str:
    lines = [
        OPENS_A_LOOK,
        f"time: {utc(now)}",
        *_demand(observation, now),
        _account(observation, now),
        *boxes_table(observation, now),
        CLOSES_A_LOOK,
    ]
    return "\n".join(lines)


def limits_line(standing: Standing) -> str:
    """What is in force, which a person may change at any time: no part of a look, for a look stays as it was seen.

    Of the rules only those that a model can take into account before it asks; the others answer it in words.
    """
    limits, approvals = standing.policy.limits, standing.policy.approvals
    parts = [
        f"limits: mode={standing.mode.value} max_boxes={limits.max_boxes} max_usd_per_hour={limits.max_usd_per_hour}",
        f"max_usd_per_hour_per_box={limits.max_usd_per_hour_per_box} max_usd_per_day={limits.max_usd_per_day}",
        f"min_runway_hours={limits.min_runway.total_seconds() / 3600:g} max_rents_per_run={limits.max_rents_per_run}",
        f"max_destroys_per_run={limits.max_destroys_per_run}",
        *([] if (dear := approvals.rent_above_usd_per_hour) is None else [f"rents_wait_above_usd_per_hour={dear}"]),
        *([f"always_wait={','.join(approvals.always)}"] if approvals.always else []),
        *(["scale_out=paused"] if standing.scale_out_paused or standing.rent_breaker else []),
        *(["scale_in=paused"] if standing.scale_in_paused else []),
    ]
    why = f"\nRents kept failing, so a person must allow them again: {_because(standing.rent_breaker)}"
    return " ".join(parts) + (why if standing.rent_breaker else "")


def boxes_table(observation: Observation, now: datetime, *, with_machines: bool = False) -> list[str]:
    """Which machine a box is on is shown to who asks for it: every prompt carries an observation."""
    match observation.inventory:
        case Unknown(reason=reason):
            return [f"boxes: unknown ({_because(reason)})"]
        case Known(value=inventory, seen_at=seen_at):
            status = {instance.id: instance.actual_status or "preparing" for instance in inventory.instances}
    live = observation.live_boxes()
    head = f"boxes: live={len(live)} in_flight={observation.in_flight_count} age_s={_seconds(now - seen_at)}"
    if not live:
        return [head]
    columns = "id|stage|gpu|usd_per_hour|age_min|status" + ("|machine" if with_machines else "")
    rows = [_box(box, status, now) + (f"|{box.machine_id}" if with_machines else "") for box in live[-MOST_ROWS:]]
    more = [f"({len(live) - MOST_ROWS} older boxes are not shown)"] if len(live) > MOST_ROWS else []
    return [head, columns, *more, *rows]


def offers_table(offers: Sequence[Offer], *, left_out: int = 0) -> str:
    """`left_out`: machines with an offer that is not shown because they are banned."""
    banned = [f"(machines left out because of bans: {left_out})"] if left_out else []
    if not offers:
        return "\n".join(["offers: none meets the policy now", *banned])
    head = [f"offers: {len(offers)}, cheapest first", "id|gpu|usd_per_hour|reliability|inet_down_mbps|location"]
    rows = [
        f"{offer.id}|{gpu(offer.num_gpus, offer.gpu_name)}|{rate(offer.usd_per_hour)}|{offer.reliability:.3f}"
        f"|{offer.inet_down_mbps:.0f}|{_cell(offer.location)}"
        for offer in offers
    ]
    return "\n".join(head + rows + banned)


def brief_call(tool: str, arguments: str) -> str:
    """One call on one short line."""
    said = one_line(arguments)
    said = "" if said == "{}" else said
    return f"{tool[:40]}({said if len(said) <= 120 else said[:119] + '…'})"


def gpu(count: int, name: str) -> str:
    return f"{count}x {_cell(name)}"


def rate(usd_per_hour: Decimal) -> str:
    return f"{usd_per_hour:.3f}"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def printable(text: str) -> str:
    """Without control characters but line ends and tabs: no text from outside moves a person's cursor."""
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())


def one_line(text: str) -> str:
    """What a person would see of it, on one line, so that no text can pretend to be a row of its own."""
    return " ".join(printable(clean(text)).split())


def _demand(observation: Observation, now: datetime) -> list[str]:
    match observation.demand:
        case Unknown(reason=reason):
            return [f"demand: unknown ({_because(reason)})"]
        case Known(value=demand, seen_at=seen_at):
            more = {
                "claimed": demand.claimed,
                "retrying": demand.retrying,
                "final_failures_per_hour": demand.final_failures_per_hour,
                "dead_workers": demand.dead_workers,
                "proof_p95_s": _in_seconds(demand.proof_p95),
            }
            line = (
                f"demand: pending={demand.pending} running={demand.running} "
                f"oldest_pending_s={_figure(_in_seconds(demand.oldest_pending))} "
                f"done_per_hour={_figure(demand.done_per_hour)} failed_per_hour={_figure(demand.failed_per_hour)}"
            )
            market = _known_ones("market:", {} if demand.market is None else demand.market.model_dump())
            return [
                f"{_known_ones(line, more)} age_s={_seconds(now - seen_at)}",
                *([] if demand.market is None else [market]),
                *(f"not known of demand: {_because(figures)}" for figures in not_known(demand)),
            ]


def _known_ones(line: str, figures: Mapping[str, float | None]) -> str:
    """Figures that not every source has: each that is not known would only take up room."""
    return " ".join([line, *(f"{name}={_figure(value)}" for name, value in figures.items() if value is not None)])


def _account(observation: Observation, now: datetime) -> str:
    match observation.account:
        case Unknown(reason=reason):
            return f"account: unknown ({_because(reason)})"
        case Known(value=account, seen_at=seen_at):
            left = observation.runway()
            hours = "?" if left is None else f"{left.total_seconds() / 3600:.1f}"
            return (
                f"account: credit_usd={account.credit_usd:.2f} burn_usd_per_hour={rate(observation.burn())} "
                f"runway_hours={hours} age_s={_seconds(now - seen_at)}"
            )


def _box(box: Box, status: dict[int, str], now: datetime) -> str:
    seen = status.get(box.vast_id, "not listed") if box.vast_id is not None else "not seen yet"
    age = (now - box.rented_at).total_seconds() / 60
    number = "?" if box.vast_id is None else box.vast_id
    return (
        f"{number}|{box.stage.value}|{gpu(box.num_gpus, box.gpu_name)}|{rate(box.usd_per_hour)}|{age:.0f}|{_cell(seen)}"
    )


def _in_seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _seconds(duration: timedelta) -> int:
    return max(0, round(duration.total_seconds()))


def _because(reason: str) -> str:
    """An error may quote what a server said."""
    return one_line(reason)[:200]


def _cell(text: str) -> str:
    """A provider's text must not break the table it stands in."""
    return one_line(text.replace("|", "/"))[:40]
