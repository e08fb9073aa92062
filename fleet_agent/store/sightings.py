"""The provider's list laid beside the ledger: what is found is recorded, what is missing is waited for.

Only complete looks come here (anything less is not an `Inventory`), so absence means something; yet one absence proves
nothing, because lists lag. Four questions are settled by looking, never by repeating a call:

- a rent whose answer was lost: found by its label, it is done; not found until the end of its grace, it has expired,
  and was in vain;
- a destroy: absent for longer than the list lags, the box is gone; still there after the grace, it was not destroyed
  and counts as alive again;
- a box that is missing unasked: gone once it was missing for a whole grace;
- an instance with our label that the ledger does not know, or thought gone: adopted, for it is billed to us.

"Absent" always means `MISSES_UNTIL_GONE` looks in a row: until then the box counts, and its place is not given away.

A box is found by its number, whatever became of its label, and by its label while its number is not known; one that
has neither is the matter of `unlabelled`.

Everything that is waited for has its beginning in a row, and a clock that was set back leaves such rows in a time to
come: deadlines would be as late as the clock was ahead. What a look finds there begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.orm import Session
from sqlmodel import col, or_, select

from fleet_agent.domain.actions import DestroyBox, DrainBox, Effect, RentBox
from fleet_agent.domain.box_reports import WAY, could_report
from fleet_agent.domain.fleet import Instance, Inventory, Stage, ours, parse_label
from fleet_agent.domain.hosts import InVain
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.timeline import is_of_a_time_to_come
from fleet_agent.store import actions, audit, hosts, ledger, spent, tables, unlabelled
from fleet_agent.store.database import real_now
from fleet_agent.store.installation import installation
from fleet_agent.store.tables import Action

MISSES_UNTIL_GONE: Final = 2

LIST_LAG: Final = timedelta(seconds=30)
"""Real time for which a list may still leave a box out. A destroyed box must be absent for longer: shorter than the
grace, because somebody asked for its absence, and its place under the caps is wanted again."""


def record_sighting(tx: Session, fleet: str, inventory: Inventory, *, now: datetime) -> None:
    """Bring the ledger up to what the list shows; once per look. To be called within `Database.exclusive`."""
    name = installation(tx).name
    labelled = [instance for instance in inventory.instances if ours(instance, installation=name, fleet=fleet)]
    boxes = _boxes_concerned(tx, fleet, labelled)
    found, strangers = match(boxes, inventory.instances, labelled)
    found |= unlabelled.claim_or_ask(tx, fleet, inventory.instances, found, now=now)
    look = _Look(now=now, real_now=real_now(tx), actions=_actions_about(tx, boxes))
    for box in boxes:
        look.begin_anew(box)
        look.settle(box, DrainBox, ActionStatus.DONE, "the box is to take no more work")  # `sent` said it already
        if _is_newer(box.looked_at, inventory, now):
            continue
        if box.key in found:
            box.looked_at = inventory.seen_at
            _found(box, found[box.key], look)
        elif box.stage != Stage.GONE and not _is_newer(box.rented_at, inventory, now):
            box.looked_at = inventory.seen_at
            _missed(tx, box, look)
    for instance in strangers:
        box = _adopt(tx, fleet, instance, now)
        box.looked_at = inventory.seen_at
        _found(box, instance, look)
    if _some_came_as_far_as_their_work(tx, boxes, now):
        hosts.rent_worked(tx, fleet)
    spent.accrue(tx, fleet, now=now)


def _some_came_as_far_as_their_work(tx: Session, boxes: Sequence[tables.Box], now: datetime) -> bool:
    """Just now, as far as a list can show it: of a box that could say so itself, only its own word does."""
    run_now = [box for box in boxes if box.stage == Stage.PROVING and box.stage_since == now]
    since = ledger.reports_since(tx) if run_now else None
    return not all(
        could_report(has_hook=box.hook_digest is not None, rented_at=box.rented_at, reports_since=since)
        for box in run_now
    )


def _boxes_concerned(tx: Session, fleet: str, labelled: Sequence[Instance]) -> Sequence[tables.Box]:
    """Every live box, and gone ones that the list shows all the same."""
    labels = [instance.label for instance in labelled]
    return tx.scalars(
        select(tables.Box)
        .where(tables.Box.fleet == fleet, or_(tables.Box.stage != Stage.GONE, col(tables.Box.label).in_(labels)))
        .order_by(col(tables.Box.key))
    ).all()


def match(
    boxes: Sequence[tables.Box], listed: Sequence[Instance], labelled: Sequence[Instance]
) -> tuple[dict[str, Instance], list[Instance]]:
    """The instance of each box that is listed, by the box's key; and those with our label that are no known box.

    Of two instances with one label, the second is a stranger: it is billed all the same.
    """
    by_number = {instance.id: instance for instance in listed}
    found = {box.key: by_number[box.vast_id] for box in boxes if box.vast_id in by_number}
    numbers = {instance.id for instance in found.values()}
    by_label: dict[str, list[Instance]] = {}
    for instance in labelled:
        if instance.id not in numbers:
            by_label.setdefault(instance.label, []).append(instance)
    for box in boxes:
        if box.vast_id is None and by_label.get(box.label):
            found[box.key] = by_label[box.label].pop(0)
    return found, [instance for instances in by_label.values() for instance in instances]


def _is_newer(known_at: datetime | None, inventory: Inventory, now: datetime) -> bool:
    """Is what we know from `known_at` newer than the list? A time to come is from before the clock was set back."""
    return known_at is not None and inventory.seen_at <= known_at <= now


def _actions_about(tx: Session, boxes: Sequence[tables.Box]) -> Mapping[str, Sequence[Action]]:
    actions: dict[str, list[Action]] = {box.key: [] for box in boxes}
    for action in tx.scalars(select(Action).where(col(Action.box_key).in_(actions)).order_by(col(Action.id))):
        actions[action.box_key or ""].append(action)
    return actions


@dataclass(frozen=True)
class _Look:
    """The moment of a look in both times, and what the ledger knows of calls about the boxes."""

    now: datetime
    real_now: datetime
    actions: Mapping[str, Sequence[Action]]

    def calls(self, box: tables.Box, tool: type[Effect]) -> list[Action]:
        return [action for action in self.actions.get(box.key, ()) if action.tool == tool.name]

    def grace_is_over(self, box: tables.Box, tool: type[Effect]) -> bool:
        """Has the last call of this kind been out for longer than an answer, or the list, can lag?"""
        sent = [call.sent_at for call in self.calls(box, tool) if call.sent_at is not None]
        return not sent or self.real_now - max(sent) > ledger.GRACE

    def begin_anew(self, box: tables.Box) -> None:
        """What is waited for since a time to come is waited for from this moment on, and a drain for as long as it was
        to last."""
        if box.drain_by is not None and is_of_a_time_to_come(box.stage_since, self.now):
            box.drain_by -= box.stage_since - self.now
        box.stage_since = _by_now(box.stage_since, self.now)
        box.reported_at = box.reported_at and _by_now(box.reported_at, self.now)
        box.troubled_since = box.troubled_since and _by_now(box.troubled_since, self.now)
        box.missed_since = box.missed_since and _by_now(box.missed_since, self.real_now)
        if box.busy_until is not None and box.busy_until > self.real_now + ledger.GRACE:
            box.busy_action, box.busy_until = None, None
        for call in self.actions.get(box.key, ()):
            call.sent_at = call.sent_at and _by_now(call.sent_at, self.real_now)

    def settle(self, box: tables.Box, tool: type[Effect], status: ActionStatus, outcome: str) -> None:
        """Every call of this kind whose outcome nobody saw has come to this."""
        for call in self.calls(box, tool):
            if call.status in (ActionStatus.SENT, ActionStatus.UNKNOWN):
                actions.settle(call, status, outcome, self.now)


def _by_now(at: datetime, now: datetime) -> datetime:
    return now if is_of_a_time_to_come(at, now) else at


def _found(box: tables.Box, instance: Instance, look: _Look) -> None:
    box.vast_id = instance.id
    box.seen_usd_per_hour = instance.usd_per_hour
    box.sightings += 1
    box.misses, box.missed_since = 0, None
    for rent in look.calls(box, RentBox):
        if rent.status != ActionStatus.DONE:  # even one that failed or expired: the box is the better witness
            actions.settle(rent, ActionStatus.DONE, f"found in the list as box {instance.id}", look.now)
    if box.stage == Stage.DESTROYING and not look.grace_is_over(box, DestroyBox):
        return
    look.settle(box, DestroyBox, ActionStatus.EXPIRED, "the box is still listed after the grace")
    if box.busy_until is not None and box.busy_until <= look.real_now:
        box.busy_action, box.busy_until = None, None
    box.gone_at, box.gone_because = None, ""
    ledger.enter(box, _stage(box, instance), look.now)


def _missed(tx: Session, box: tables.Box, look: _Look) -> None:
    box.misses += 1
    box.missed_since = box.missed_since or look.real_now
    missing_for = look.real_now - box.missed_since
    if box.vast_id is None:
        if look.grace_is_over(box, RentBox):
            _never_came(tx, box, look)
    elif box.misses < MISSES_UNTIL_GONE:
        return
    elif box.stage == Stage.DESTROYING:
        if missing_for >= LIST_LAG:
            look.settle(box, DestroyBox, ActionStatus.DONE, "the box is no longer listed")
            ledger.gone(box, "destroyed", look.now)
    elif missing_for > ledger.GRACE:
        ledger.gone(box, f"missing from {box.misses} looks in a row", look.now)


def _never_came(tx: Session, box: tables.Box, look: _Look) -> None:
    """Of a rent that is only `sent` nobody knows whether its call was made: who made it died before he could say. That
    says nothing of the machine."""
    was_called = any(rent.status == ActionStatus.UNKNOWN for rent in look.calls(box, RentBox))
    why = "no box with its label appeared within the grace"
    look.settle(box, RentBox, ActionStatus.EXPIRED, why)
    ledger.gone(box, "never came into being", look.now)
    if was_called:
        actions.was_in_vain(tx, box, InVain.AVOID_MACHINE, why, look.now)


def _stage(box: tables.Box, instance: Instance) -> Stage:
    """What the list shows, but for what only the box itself or we ourselves know."""
    seen = stage_seen(instance)
    if box.drain_by is not None:
        return Stage.DRAINING
    if seen is Stage.PROVING and box.reported_at is not None:
        return Stage(box.stage) if box.stage in WAY else Stage.REGISTERED
    return seen


def stage_seen(instance: Instance) -> Stage:
    """How far a listed box is. What it does inside, the list does not tell: a running box counts as proving, unless it
    speaks for itself."""
    match instance.actual_status:
        case "running":
            return Stage.PROVING
        case "":
            return Stage.RENTED
        case _:
            return Stage.LOADING


def _adopt(tx: Session, fleet: str, instance: Instance, now: datetime) -> tables.Box:
    """Under the key of its label, unless that names a box already: of this fleet, or of another one whose box a person
    has labelled anew."""
    label = parse_label(instance.label)
    assert label is not None, "only instances with our label are adopted"
    text = f"box {instance.id} carries our label {instance.label} and the ledger did not know it"
    audit.note(tx, fleet, who="fleet-agent", what="adopted", text=text, now=now)
    key = label.key if tx.get(tables.Box, label.key) is None else f"{label.key}-{instance.id}"
    box = tables.Box(
        key=key,
        fleet=fleet,
        label=instance.label,
        machine_id=instance.machine_id,
        gpu_name=instance.gpu_name,
        num_gpus=instance.num_gpus,
        agreed_usd_per_hour=instance.usd_per_hour,
        rented_at=instance.started_at,
        stage=Stage.RENTED.value,
        stage_since=now,
    )
    tx.add(box)
    tx.flush()
    return box
