"""What must hold after anything whatever: laid beside each other, what the provider knows and what the ledger says.

The simulator's own count is the witness: which boxes were made, by which order, and which are billed now. None of it
goes through our clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from fleet_agent.domain.fleet import parse_label

if TYPE_CHECKING:
    from tests.world import Installation

UNSETTLED = ("sent", "unknown")


def unsound(fleet: Installation) -> list[str]:
    """Every promise about money that is broken now, each in a sentence."""
    return [
        *_billed_and_unowned(fleet),
        *_made_twice(fleet),
        *_without_a_ruling(fleet),
        *_told_without_an_intent(fleet),
    ]


def _billed_and_unowned(fleet: Installation) -> Iterator[str]:
    """A box of ours that runs must be a box of the ledger, or one that the ledger still looks for, or asks about (I11).

    One that a lost answer left behind may be known to nobody until a look has shown it; until then its rent is open.
    """
    known = {row["vast_id"] for row in rows(fleet, "box") if row["stage"] != "gone"}
    asked_about = {row["vast_id"] for row in rows(fleet, "question")}
    open_rents = {row["key"] for row in rows(fleet, "action") if row["tool"] == "rent_box" and row["sent_at"]}
    made = {create.instance_id: create.label for create in fleet.sim.market.creates}
    for instance in fleet.sim.market.instances():
        label = parse_label(made.get(instance.id))
        if label is None or (label.installation, label.fleet) != (_name(fleet), fleet.fleet):
            continue
        if instance.id not in known | asked_about and label.key not in open_rents:
            yield f"box {instance.id} ({made[instance.id]}) is billed and the ledger knows nothing of it"


def _made_twice(fleet: Installation) -> Iterator[str]:
    """No intent makes two boxes (I10)."""
    labels = Counter(create.label for create in fleet.sim.market.creates if parse_label(create.label))
    yield from (f"{times} boxes were made for {label}" for label, times in labels.items() if times > 1)


def _without_a_ruling(fleet: Installation) -> Iterator[str]:
    """Every box and every call has an intent that was ruled on before, and every outcome was sent (I9)."""
    actions = {row["key"]: row for row in rows(fleet, "action")}
    for create in fleet.sim.market.creates:
        label = parse_label(create.label)
        if label is None or (label.installation, label.fleet) != (_name(fleet), fleet.fleet):
            continue
        action = actions.get(label.key)
        if action is None or action["sent_at"] is None:
            yield f"box {create.instance_id} was made without an intent that was sent ({create.label})"
    for action in actions.values():
        if action["sent_at"] is not None and action["ruling"] != "allow":
            yield f"{action['key']} was sent though its ruling is {action['ruling']}"
        if action["status"] in (*UNSETTLED, "done") and action["sent_at"] is None:
            yield f"{action['key']} is {action['status']} and was never sent"


def _told_without_an_intent(fleet: Installation) -> Iterator[str]:
    words = [row for row in rows(fleet, "action") if row["tool"] == "notify_human" and row["sent_at"]]
    notices = rows(fleet, "notice")
    if len(fleet.notifier.told) > len(words) + len(notices):
        told = len(fleet.notifier.told)
        yield f"the operator was told {told} times, of {len(words)} words and {len(notices)} notices"


def rows(fleet: Installation, table: str) -> list[dict[str, Any]]:
    """The rows of the fleet, as they are in the database."""
    with fleet.database.transaction() as tx:
        query = text(f"SELECT * FROM {table} WHERE fleet = :fleet")
        return [dict(row) for row in tx.execute(query, {"fleet": fleet.fleet}).mappings()]


def _name(fleet: Installation) -> str:
    return fleet.status()["installation"]
