"""The provider's list laid beside the ledger: what is found is recorded, what is missing is waited for.

Only complete looks come here (anything less is not an `Inventory`), so absence means something; yet one absence proves
nothing, because lists lag. Four questions are settled by looking, never by repeating a call:

- a rent whose answer was lost: found by its label, it is done; not found until the end of its grace, it has expired;
- a destroy: absent, the box is gone; still there after the grace, it was not destroyed and counts as alive again;
- a box that is missing unasked: gone after `MISSES_UNTIL_GONE` looks in a row;
- an instance with our label that the ledger does not know, or thought gone: adopted, for it is billed to us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session
from sqlmodel import col, or_, select

from fleet_agent.domain.actions import DestroyBox, RentBox
from fleet_agent.domain.fleet import Instance, Inventory, Stage, ours, parse_label
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.store import audit, ledger, tables
from fleet_agent.store.database import real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import Action

MISSES_UNTIL_GONE: Final = 2


def record_sighting(tx: Session, fleet: str, inventory: Inventory, *, now: datetime) -> None:
    """Bring the ledger up to what the list shows; once per look. To be called within `Database.exclusive`."""
    listed = {
        instance.label: instance
        for instance in inventory.instances
        if ours(instance, installation=installation(tx).name, fleet=fleet)
    }
    known = _boxes_concerned(tx, fleet, listed)
    for label in listed.keys() - {box.label for box in known}:
        known.append(_adopt(tx, fleet, listed[label], now))
    for box in known:
        if box.looked_at is not None and inventory.seen_at <= box.looked_at:
            continue
        box.looked_at = inventory.seen_at
        instance = listed.get(box.label)
        actions = _actions_about(tx, box)
        if instance is not None:
            _found(tx, box, instance, actions, now)
        else:
            _missed(tx, box, actions, now)


def _boxes_concerned(tx: Session, fleet: str, labels: Iterable[str]) -> list[tables.Box]:
    """Every live box, and gone ones that the list shows all the same."""
    return list(
        tx.scalars(
            select(tables.Box)
            .where(
                tables.Box.fleet == fleet,
                or_(tables.Box.stage != Stage.GONE, col(tables.Box.label).in_(list(labels))),
            )
            .order_by(col(tables.Box.key))
        )
    )


def _actions_about(tx: Session, box: tables.Box) -> Sequence[Action]:
    return tx.scalars(select(Action).where(Action.box_key == box.key).order_by(col(Action.id))).all()


def _adopt(tx: Session, fleet: str, instance: Instance, now: datetime) -> tables.Box:
    label = parse_label(instance.label)
    assert label is not None, "only labelled instances of this fleet come here"
    audit.note(
        tx,
        fleet,
        who="fleet-agent",
        what="adopted",
        text=f"box {instance.id} carries our label {instance.label} and the ledger did not know it",
        now=now,
    )
    box = tables.Box(
        key=label.key,
        fleet=fleet,
        label=instance.label,
        machine_id=instance.machine_id,
        gpu_name=instance.gpu_name,
        num_gpus=instance.num_gpus,
        agreed_usd_per_hour=instance.usd_per_hour,
        rented_at=instance.started_at,
        stage=Stage.RENTED.value,
    )
    tx.add(box)
    return box


def _found(tx: Session, box: tables.Box, instance: Instance, actions: Sequence[Action], now: datetime) -> None:
    box.vast_id = instance.id
    box.seen_usd_per_hour = instance.usd_per_hour
    box.sightings += 1
    box.misses = 0
    for action in actions:
        if action.tool == RentBox.name and action.status != ActionStatus.DONE:
            _settle(action, ActionStatus.DONE, f"found by its label as box {instance.id}", now)
    if box.stage == Stage.DESTROYING and not _grace_is_over(tx, actions, DestroyBox.name):
        return
    for action in actions:
        if action.tool == DestroyBox.name and _is_open(action):
            _settle(action, ActionStatus.EXPIRED, "the box is still listed after the grace", now)
    box.stage = stage_seen(instance).value
    box.gone_at, box.gone_because = None, ""


def _missed(tx: Session, box: tables.Box, actions: Sequence[Action], now: datetime) -> None:
    box.misses += 1
    if box.stage == Stage.DESTROYING:
        for action in actions:
            if action.tool == DestroyBox.name and _is_open(action):
                _settle(action, ActionStatus.DONE, "the box is no longer listed", now)
        ledger.gone(box, "destroyed", now)
    elif box.sightings == 0 and not _grace_is_over(tx, actions, RentBox.name):
        return  # the list may lag behind the rent
    elif box.vast_id is None:
        for action in actions:
            if action.tool == RentBox.name and _is_open(action):
                _settle(action, ActionStatus.EXPIRED, "no box with its label appeared within the grace", now)
        ledger.gone(box, "never came into being", now)
    elif box.misses >= MISSES_UNTIL_GONE:
        ledger.gone(box, f"missing from {box.misses} looks in a row", now)


def stage_seen(instance: Instance) -> Stage:
    """How far a listed box is. What it does inside, the list does not tell: a running box counts as proving."""
    match instance.actual_status:
        case "running":
            return Stage.PROVING
        case "":
            return Stage.RENTED
        case _:
            return Stage.LOADING


def _grace_is_over(tx: Session, actions: Sequence[Action], tool: str) -> bool:
    """Has the last call of this kind been out for longer than an answer, or the list, can lag?"""
    sent = [action.sent_at for action in actions if action.tool == tool and action.sent_at is not None]
    return not sent or real_now(tx) - max(sent) > ledger.GRACE


def _is_open(action: Action) -> bool:
    return action.status in (ActionStatus.SENT, ActionStatus.UNKNOWN)


def _settle(action: Action, status: ActionStatus, outcome: str, now: datetime) -> None:
    action.status = status.value
    action.outcome = outcome
    action.settled_at = now
