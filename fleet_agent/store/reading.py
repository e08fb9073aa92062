"""What lists and pages show: rows as plain dicts, with the column names of the tables. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session
from sqlmodel import SQLModel, col, func, select

from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.health import FleetHealth, PendingWake
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.money import UsdPerHour, runway, total
from fleet_agent.domain.rules import TOO_SOON, Mode
from fleet_agent.domain.run import Standing
from fleet_agent.errors import PolicyInvalid
from fleet_agent.store import (
    claims,
    conversation,
    ledger,
    model_servers,
    notices,
    samples,
    session,
    spending,
    spent,
    tables,
)
from fleet_agent.store.actions import approvals, open_approvals
from fleet_agent.store.database import real_now
from fleet_agent.store.hosts import bans, benchmarks, in_force
from fleet_agent.store.installation import installation, timeline_of
from fleet_agent.store.tables import WAITS, RunStatus, WakeStatus
from fleet_agent.store.wakes import pending


def standing(tx: Session, fleet: str, *, epoch: int, now: datetime) -> Standing:
    """What is pinned into a prompt of this epoch."""
    state = session.find(tx, fleet)
    compaction, past_runs = conversation.compacted(tx, fleet, epoch)
    words, words_in_all = conversation.words(tx, fleet, epoch)
    return Standing(
        installation=installation(tx).name,
        fleet=fleet,
        mode=Mode(state.mode),
        policy=session.policy(tx, fleet),
        objective=state.objective,
        read_at=now,
        notes=session.notes(tx, fleet),
        approvals=approvals(tx, fleet),
        wakes=pending(tx, fleet),
        words=words,
        words_in_all=words_in_all,
        compaction=compaction,
        past_runs=past_runs,
        last_bands=state.last_bands,
        last_review_at=state.last_review_at,
        too_soon=_too_soon(tx, fleet),
        bans=bans(tx, fleet, now=now),
        benchmarks=benchmarks(tx, fleet),
        scale_out_paused=state.scale_out_paused,
        scale_in_paused=state.scale_in_paused,
        rent_breaker=state.rent_breaker,
    )


def _too_soon(tx: Session, fleet: str) -> tuple[str, ...]:
    asked = select(tables.Run.run_id).where(
        tables.Run.fleet == fleet, tables.Run.status == RunStatus.CLOSED, col(tables.Run.quiet).is_(False)
    )
    newest = asked.order_by(col(tables.Run.run_id).desc()).limit(1).scalar_subquery()
    refused = select(tables.Action.tool).where(
        tables.Action.fleet == fleet,
        tables.Action.run_id == newest,
        tables.Action.status == ActionStatus.REFUSED,
        col(tables.Action.code).in_(TOO_SOON),
    )
    return tuple(dict.fromkeys(tx.scalars(refused.order_by(col(tables.Action.id)))))


def standing_now(tx: Session, fleet: str) -> Standing:
    """The same for a run that would begin now."""
    now = timeline_of(installation(tx)).business(real_now(tx))
    return standing(tx, fleet, epoch=session.find(tx, fleet).epoch, now=now)


def fleets(tx: Session) -> list[str]:
    """The fleets that somebody has begun."""
    return list(tx.scalars(select(tables.SessionState.fleet).order_by(col(tables.SessionState.fleet))))


def runs(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The newest runs, newest first; `seconds` is real time from opening to the end, None while it is open, and
    `box_usd` what the boxes have cost that it asked for."""
    speed = installation(tx).clock_speed
    rows = tx.scalars(
        select(tables.Run).where(tables.Run.fleet == fleet).order_by(col(tables.Run.run_id).desc()).limit(last)
    ).all()
    box_usd = spent.of_runs(tx, fleet, [row.run_id for row in rows])
    return [
        _row(row)
        | {
            "seconds": row.closed_at and (row.closed_at - row.opened_at).total_seconds() / speed,
            "tainted": row.tainted_until is not None,
            "box_usd": box_usd.get(row.run_id, Decimal(0)),
        }
        for row in rows
    ]


def usage(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """What the models have used, by hour and model, the newest hours first."""
    of_fleet = select(tables.Usage).where(tables.Usage.fleet == fleet)
    return _rows(tx.scalars(of_fleet.order_by(col(tables.Usage.hour).desc(), col(tables.Usage.model)).limit(last)))


def request(tx: Session, fleet: str, run_id: int) -> dict[str, Any] | None:
    """The newest request body that a run sent to the model, if it sent one."""
    kept = tx.get(tables.Request, (fleet, run_id))
    return kept and kept.body


def actions(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The newest actions, newest first; a rent has with it what the box it made has cost, None where it made none."""
    rows = tx.scalars(
        select(tables.Action).where(tables.Action.fleet == fleet).order_by(col(tables.Action.id).desc()).limit(last)
    ).all()
    costs = spent.of_boxes(tx, [row.key for row in rows])  # a box has the key of its rent
    no_box = spent.Cost(None, None)
    return [_row(row) | costs.get(row.key, no_box)._asdict() for row in rows]


def boxes(tx: Session, fleet: str) -> list[dict[str, Any]]:
    """Every box that is not gone, also those whose number the provider has not told yet; oldest first. The digests of
    their tokens are nobody's business."""
    rows = tx.scalars(
        select(tables.Box)
        .where(tables.Box.fleet == fleet, tables.Box.stage != Stage.GONE)
        .order_by(col(tables.Box.rented_at), col(tables.Box.key))
    )
    return [{name: value for name, value in _row(row).items() if name != "hook_digest"} for row in rows]


def host_bans(tx: Session, fleet: str, *, now: datetime) -> list[dict[str, Any]]:
    """The bans in force, newest first; of several on one machine the one that ends last."""
    return _rows(in_force(tx, fleet, now=now))


def hosts(tx: Session, fleet: str) -> list[dict[str, Any]]:
    """What is remembered of machines, for each number of GPUs that was rented there."""
    return _rows(
        tx.scalars(
            select(tables.Host)
            .where(tables.Host.fleet == fleet)
            .order_by(col(tables.Host.machine_id), col(tables.Host.num_gpus))
        )
    )


def wakes(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The latest wakes by their time, whatever became of them."""
    return _rows(
        tx.scalars(
            select(tables.Wake)
            .where(tables.Wake.fleet == fleet)
            .order_by(col(tables.Wake.wake_at).desc(), col(tables.Wake.id))
            .limit(last)
        )
    )


def inbox(tx: Session, fleet: str, *, last: int) -> list[dict[str, Any]]:
    """The newest of what no run has consumed: it waits, a run has it in hand, or it is quarantined. Newest first."""
    rows = tx.scalars(
        select(tables.Inbox)
        .where(tables.Inbox.fleet == fleet, col(tables.Inbox.consumed_by_run).is_(None))
        .order_by(col(tables.Inbox.id).desc())
        .limit(last)
    )
    return [_row(row) | {"state": claims.state_of(row).value} for row in rows]


def questions(tx: Session, fleet: str) -> list[str]:
    """What only a person can say of listed boxes that may be ours, oldest first."""
    asked = select(tables.Question.text).where(tables.Question.fleet == fleet)
    return list(tx.scalars(asked.order_by(col(tables.Question.asked_at), col(tables.Question.vast_id))))


def status(tx: Session, fleet: str, *, now: datetime) -> dict[str, Any]:
    """The fleet at a glance."""
    state = session.find(tx, fleet)
    known = ledger.boxes(tx, fleet)
    count, rate = ledger.in_flight(tx, fleet)
    coming = pending(tx, fleet)
    newest = runs(tx, fleet, last=1)
    burn = total([UsdPerHour(box.usd_per_hour) for box in known])
    credit = spent.credit(tx, fleet, now=now)
    sample = samples.newest(tx, fleet, now=now)
    of_day = spending.of_the_day(tx, fleet, now=now)
    untold_notices, newest_notice = notices.summary(tx, fleet)
    return {
        "installation": installation(tx).name,
        **_row(state),
        "demand": sample and _demand(sample),
        "boxes": len(known),
        "burn_usd_per_hour": burn,
        "in_flight": count,
        "in_flight_usd_per_hour": rate,
        "box_usd_of_hour": spent.of_the_hour(tx, fleet, now=now),
        "box_usd_of_day": spent.of_the_day(tx, fleet, now=now),
        "max_usd_per_day": _max_usd_per_day(tx, fleet),
        "credit_usd": credit and credit.usd,
        "credit_seen_at": credit and credit.seen_at,
        "runway": None if credit is None or credit.usd is None else runway(credit.usd, burn),
        "waiting_events": tx.execute(
            select(func.count()).select_from(tables.Inbox).where(tables.Inbox.fleet == fleet, WAITS)
        ).scalar_one(),
        "quarantined": _quarantined(tx, fleet),
        "questions": questions(tx, fleet),
        "approvals": [approval.model_dump() for approval in open_approvals(tx, fleet)],
        "untold_notices": untold_notices,
        "newest_notice": newest_notice,
        "models": model_servers.shown(tx),
        "model_calls_of_day": of_day.calls,
        "model_tokens_of_day": of_day.tokens,
        "model_usd_of_day": of_day.usd,
        "something_urgent_waits": claims.something_urgent_waits(tx, fleet, now=now),
        "pending_wakes": len(coming),
        "next_wake_at": coming[0].wake_at if coming else None,
        "last_run": newest[0] if newest else None,
    }


def _demand(sample: tables.Sample) -> dict[str, Any]:
    """As the newest look of the watch saw it: None where it could not be read."""
    known = {name: getattr(sample, name) for name in ("pending", "running", "done_per_hour")}
    return {**known, "seen_at": sample.at}


def _max_usd_per_day(tx: Session, fleet: str) -> Decimal | None:
    """None where the policy cannot be read: the rest of the status can."""
    try:
        return session.policy(tx, fleet).limits.max_usd_per_day
    except PolicyInvalid:
        return None


def health(tx: Session, fleet: str) -> FleetHealth:
    """What the doctor judges by."""
    ended = select(tables.Run).where(tables.Run.fleet == fleet, tables.Run.status != RunStatus.OPEN)
    newest = tx.scalars(ended.order_by(col(tables.Run.run_id).desc()).limit(1)).first()
    last_closed_at = tx.execute(
        select(func.max(tables.Run.closed_at)).where(tables.Run.fleet == fleet, tables.Run.status == RunStatus.CLOSED)
    ).scalar_one()
    wakes = tx.scalars(
        select(tables.Wake)
        .where(
            tables.Wake.fleet == fleet,
            tables.Wake.status == WakeStatus.PENDING,
            col(tables.Wake.claimed_by_run).is_(None),
        )
        .order_by(col(tables.Wake.wake_at), col(tables.Wake.id))
    )
    untold = notices.untold(tx, fleet)
    return FleetHealth(
        last_closed_at=last_closed_at,
        newest_run=""
        if newest is None or newest.status == RunStatus.CLOSED
        else f"#{newest.run_id} {newest.status}, {newest.exit_reason}".rstrip(", "),
        wakes=tuple(
            PendingWake(id=wake.id, wake_at=wake.wake_at, asked_at=wake.asked_at, flow_run_id=wake.flow_run_id)
            for wake in wakes
        ),
        untold=len(untold),
        oldest_untold_at=untold[0].at if untold else None,
        quarantined=_quarantined(tx, fleet),
    )


def silences(tx: Session, flow_run_ids: Collection[str]) -> dict[str, timedelta]:
    """Real time since the run behind each flow run last gave a sign of life; of those that a run was opened for."""
    silent_for = func.clock_timestamp() - func.max(tables.Run.seen_at)
    rows = tx.execute(
        select(tables.Run.flow_run_id, silent_for)
        .where(col(tables.Run.flow_run_id).in_(flow_run_ids))
        .group_by(col(tables.Run.flow_run_id))
    )
    return {row[0]: row[1] for row in rows}


def _quarantined(tx: Session, fleet: str) -> int:
    return tx.execute(
        select(func.count())
        .select_from(tables.Inbox)
        .where(tables.Inbox.fleet == fleet, col(tables.Inbox.quarantined_at).is_not(None))
    ).scalar_one()


def _rows(rows: Iterable[SQLModel]) -> list[dict[str, Any]]:
    return [_row(row) for row in rows]


def _row(row: SQLModel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).model_fields}
