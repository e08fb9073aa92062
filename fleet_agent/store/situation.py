"""What the rules look at, read in the transaction that writes the ruling, under the lock of the fleet.

What was seen of the world comes from whoever asks; what the ledger says is read here, with all that was intended
before, so that two who ask at once cannot spend the same headroom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import func
from sqlalchemy.orm import Session, aliased
from sqlmodel import and_, col, or_, select

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.fleet import Box, Stage
from fleet_agent.domain.ledger import ActionStatus, Listing
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import REMOVED_WITHIN, Actor, Mode, Situation
from fleet_agent.domain.run import Run
from fleet_agent.store import hosts, ledger, session, spent, tables
from fleet_agent.store.database import real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import Action

_COUNTED: Final = (
    ActionStatus.INTENDED,
    ActionStatus.DRY,
    ActionStatus.SENT,
    ActionStatus.DONE,
    ActionStatus.UNKNOWN,
)
"""What uses up a cap: everything that was allowed and did not definitely come to nothing.

A rent that was sent counts whatever became of it: a provider that says no and makes the box all the same would else be
asked again and again.
"""

_HAPPENED: Final = (ActionStatus.SENT, ActionStatus.DONE, ActionStatus.UNKNOWN, ActionStatus.EXPIRED)
"""What was sent and may have happened: of a box that is listed all the same, nobody knows why."""

_REMOVALS: Final = (DrainBox.name, DestroyBox.name)


@dataclass(frozen=True)
class Asker:
    """Who asks for an effect: a run for the agent or the planner, or nobody's run; `grant` where a person approved."""

    fleet: str
    actor: Actor
    run: Run | None = None
    grant: Grant | None = None


def situation_of(tx: Session, asker: Asker, observation: Observation, listing: Listing, *, now: datetime) -> Situation:
    fleet = asker.fleet
    state = session.state(tx, fleet)
    in_flight_count, in_flight_usd_per_hour = ledger.in_flight(tx, fleet)
    hour = _lately(tx, timedelta(hours=1))
    return Situation(
        actor=asker.actor,
        now=now,
        installation=installation(tx).name,
        fleet=fleet,
        mode=Mode(state.mode),
        scale_out_paused=state.scale_out_paused,
        scale_in_paused=state.scale_in_paused,
        rent_breaker=state.rent_breaker,
        frozen_because=state.frozen_because,
        policy=session.policy(tx, fleet),
        inventory=observation.inventory,
        demand=observation.demand,
        account=observation.account,
        boxes=_boxes(tx, fleet, asker.actor),
        in_flight_count=in_flight_count,
        in_flight_usd_per_hour=in_flight_usd_per_hour,
        listing=listing.offers,
        bans=hosts.bans(tx, fleet, now=now),
        benchmarks=hosts.benchmarks(tx, fleet),
        effects_of_run=_effects_of_run(tx, asker.run) if asker.run else {},
        rents_of_hour=_sent_since(tx, fleet, (RentBox.name,), hour),
        destroys_of_hour=_removed_since(tx, fleet, hour),
        removed_lately=_removed_since(tx, fleet, _lately(tx, REMOVED_WITHIN)),
        given_up=_given_up(tx, fleet),
        spent_of_day_usd=spent.of_the_day(tx, fleet, now=now),
        tainted=asker.run is not None and _is_tainted(tx, asker.run),
        tainted_usd_per_hour=_rented_by(tx, asker.run) if asker.run else Decimal(0),
        grant=asker.grant,
    )


def _lately(tx: Session, duration: timedelta) -> datetime:
    """The real time at which so long a stretch of business time began."""
    return real_now(tx) - duration / installation(tx).clock_speed


def _boxes(tx: Session, fleet: str, actor: Actor) -> tuple[Box, ...]:
    """With what is intended counted as done: two removals of one reply must not be about one box. But a person's order
    is an intent before it is judged, and must not stand in its own way."""
    if actor is Actor.OPERATOR:
        return ledger.boxes(tx, fleet)
    intended = {
        row.box_key: row.tool
        for row in tx.scalars(
            select(Action).where(
                Action.fleet == fleet, col(Action.tool).in_(_REMOVALS), Action.status == ActionStatus.INTENDED
            )
        )
    }
    stages = {DrainBox.name: Stage.DRAINING, DestroyBox.name: Stage.DESTROYING}
    return tuple(
        box.model_copy(update={"stage": stages[intended[box.key]]}) if box.key in intended else box
        for box in ledger.boxes(tx, fleet)
    )


def _effects_of_run(tx: Session, run: Run) -> Mapping[str, int]:
    counts = tx.execute(
        select(Action.tool, func.count())
        .where(
            Action.fleet == run.fleet,
            or_(Action.run_id == run.run_id, Action.sent_by_run == run.run_id),
            or_(
                col(Action.status).in_(_COUNTED),
                and_(Action.tool == RentBox.name, col(Action.sent_at).is_not(None)),
            ),
        )
        .group_by(col(Action.tool))
    )
    return dict(iter(counts))


def _sent_since(tx: Session, fleet: str, tools: Sequence[str], since: datetime) -> int:
    """With what is about to be sent: an intent of this very transaction counts for the next."""
    return tx.execute(
        select(func.count()).where(
            Action.fleet == fleet,
            col(Action.tool).in_(tools),
            or_(col(Action.sent_at) >= since, Action.status == ActionStatus.INTENDED),
        )
    ).scalar_one()


def _removed_since(tx: Session, fleet: str, since: datetime) -> int:
    """Boxes, not calls: one that was drained and then destroyed was given up once, when it was drained. A person's
    orders do not count."""
    before = aliased(Action)
    given_up_before = select(before.id).where(
        before.fleet == fleet,
        before.box_key == Action.box_key,
        col(before.tool).in_(_REMOVALS),
        col(before.status).in_(_HAPPENED),
        col(before.sent_at) < since,
    )
    return tx.execute(
        select(func.count(func.distinct(Action.box_key))).where(
            Action.fleet == fleet,
            col(Action.tool).in_(_REMOVALS),
            Action.actor != Actor.OPERATOR,
            or_(col(Action.sent_at) >= since, Action.status == ActionStatus.INTENDED),
            ~given_up_before.exists(),
        )
    ).scalar_one()


def _given_up(tx: Session, fleet: str) -> frozenset[str]:
    """Live boxes about which a removal was sent, and did not definitely come to nothing."""
    keys = tx.scalars(
        select(tables.Box.key)
        .join(Action, col(Action.box_key) == tables.Box.key)
        .where(
            tables.Box.fleet == fleet,
            tables.Box.stage != Stage.GONE,
            col(Action.tool).in_(_REMOVALS),
            col(Action.sent_at).is_not(None),
            col(Action.status).in_(_HAPPENED),
        )
    )
    return frozenset(keys)


def _is_tainted(tx: Session, run: Run) -> bool:
    row = tx.get(tables.Run, (run.fleet, run.run_id))
    return row is not None and row.tainted_until is not None


def _rented_by(tx: Session, run: Run) -> Decimal:
    """$/h of what the run has rented, or may have."""
    rate = tx.execute(
        select(func.coalesce(func.sum(Action.reserved_usd_per_hour), 0)).where(
            Action.fleet == run.fleet,
            Action.run_id == run.run_id,
            Action.tool == RentBox.name,
            col(Action.approved_at).is_(None),
        )
    ).scalar_one()
    return Decimal(rate)
