"""Listed boxes without a label: claimed where they can only be ours, asked about where they may be.

The label is written by the create itself, yet it can get lost at the provider, and the answer with the number can get
lost as well. What is then left to go by is the circumstance: a box on the machine of a rent whose box was never seen,
started within that rent's grace. If exactly one unsettled rent fits, and no other box fits that rent, and the box runs
our image, it is ours by its number from now on. In every other case a person is asked, and the rents stay reserved as
long as they would: claiming wrongly would let us destroy what is somebody else's. The provider's clock may not be ours,
so a person is asked as well about a box that by its own word started a little before the rent, or after its grace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.fleet import Instance, Stage
from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.store import audit, ledger, session, tables
from fleet_agent.store.installation import installation


def claim_or_ask(
    tx: Session, fleet: str, listed: Sequence[Instance], found: Mapping[str, Instance], *, now: datetime
) -> dict[str, Instance]:
    """The instances that became ours, by the key of their box; `found` is what number and label told before."""
    grace = ledger.GRACE * installation(tx).clock_speed  # real time, seen on the clock of business
    fitting = _fitting_rents(tx, _nobodys(tx, listed), found, grace)
    claimed: dict[str, Instance] = {}
    questions: list[tables.Question] = []
    for instance, rents in fitting:
        box = _only_explanation(instance, fitting, grace)
        if box is not None and box.fleet == fleet and instance.image == session.launch_image(tx, fleet):
            claimed[box.key] = instance
        elif any(rent.fleet == fleet for rent in rents):
            questions.append(
                tables.Question(fleet=fleet, vast_id=instance.id, text=_question(instance, rents), asked_at=now)
            )
    _ask(tx, fleet, questions, now)
    return claimed


def _nobodys(tx: Session, listed: Sequence[Instance]) -> list[Instance]:
    """The instances without a label whose number no fleet knows."""
    blank = {instance.id: instance for instance in listed if not instance.label}
    known = set(tx.scalars(select(tables.Box.vast_id).where(col(tables.Box.vast_id).in_(blank))))
    return [instance for number, instance in blank.items() if number not in known]


def _fitting_rents(
    tx: Session, instances: Sequence[Instance], found: Mapping[str, Instance], grace: timedelta
) -> list[tuple[Instance, list[tables.Box]]]:
    """Each instance that a rent may have made, with these rents: of any fleet, settled as come to nothing or not."""
    never_seen = tx.scalars(
        select(tables.Box)
        .where(
            col(tables.Box.machine_id).in_([instance.machine_id for instance in instances]),
            col(tables.Box.vast_id).is_(None),
            col(tables.Box.key).not_in(found),
        )
        .order_by(col(tables.Box.rented_at), col(tables.Box.key))
    ).all()
    fitting = [
        (
            instance,
            [
                box
                for box in never_seen
                if box.machine_id == instance.machine_id
                and _started_within(instance, box, grace, give_or_take=CLOCKS_AGREE_WITHIN)
            ],
        )
        for instance in instances
    ]
    return [(instance, rents) for instance, rents in fitting if rents]


def _started_within(
    instance: Instance, box: tables.Box, grace: timedelta, *, give_or_take: timedelta = timedelta(0)
) -> bool:
    return box.rented_at - give_or_take <= instance.started_at <= box.rented_at + grace + give_or_take


def _only_explanation(
    instance: Instance, fitting: Sequence[tuple[Instance, Sequence[tables.Box]]], grace: timedelta
) -> tables.Box | None:
    """The one unsettled rent that made `instance`, within its grace, and can have made no other."""
    pairs = [(each, box) for each, rents in fitting for box in rents if box.stage != Stage.GONE]
    boxes = [box for each, box in pairs if each is instance]
    if len(boxes) == 1 and sum(box is boxes[0] for _, box in pairs) == 1 and _started_within(instance, boxes[0], grace):
        return boxes[0]
    return None


def _question(instance: Instance, rents: Sequence[tables.Box]) -> str:
    keys = ", ".join(box.key for box in rents)
    return (
        f"box {instance.id} on machine {instance.machine_id} carries no label and may be ours: it started when "
        f"{keys} rented that machine; label it or destroy it at the provider"
    )


def _ask(tx: Session, fleet: str, questions: Sequence[tables.Question], now: datetime) -> None:
    """What is open is what this look shows; what is new in it is noted once."""
    asked = set(tx.scalars(select(tables.Question.vast_id).where(tables.Question.fleet == fleet)))
    for question in questions:
        if question.vast_id not in asked:
            audit.note(tx, fleet, who="fleet-agent", what="question", text=question.text, now=now)
            tx.add(question)
    still_open = [question.vast_id for question in questions]
    tx.execute(
        delete(tables.Question).where(
            col(tables.Question.fleet) == fleet, col(tables.Question.vast_id).not_in(still_open)
        )
    )
