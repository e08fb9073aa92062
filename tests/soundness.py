"""What must hold after anything whatever: laid beside each other, what the provider knows and what the ledger says.

The simulator's own count is the witness: which boxes were made, by which order, and which are billed now. None of it
goes through our clients. Some promises can only be seen to be kept at the moment of the effect: `Door` looks then, at
every request, before the provider hears of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from starlette.types import Message, Receive, Scope, Send

from fleet_agent.domain.fleet import parse_label
from fleet_agent.sim.market import Instance
from fleet_agent.sim.world import World
from fleet_agent.store import session
from fleet_agent.store.database import Database
from fleet_agent.store.installation import installation

if TYPE_CHECKING:
    from tests.world import Installation

UNSETTLED = ("sent", "unknown")
CENT_OF_A_CENT = Decimal("0.0001")
"""To which prices are rounded on their way."""


def unsound(fleet: Installation) -> list[str]:
    """Every promise about money that is broken now, or was at the provider's door, each in a sentence."""
    return [
        *fleet.door.broken,
        *_billed_and_unowned(fleet),
        *_made_twice(fleet),
        *_without_a_ruling(fleet),
        *_beyond_what_was_approved(fleet),
        *_told_without_an_intent(fleet),
    ]


def _billed_and_unowned(fleet: Installation) -> Iterator[str]:
    """A box of ours that runs must be a box of the ledger, or one that the ledger still looks for, or asks about (I11).

    One that a lost answer left behind may be known to nobody until a look has shown it; until then its rent is open.
    """
    known = {row["vast_id"] for row in rows(fleet, "box") if row["stage"] != "gone"}
    asked_about = {row["vast_id"] for row in rows(fleet, "question")}
    open_rents = {row["key"] for row in rows(fleet, "action") if row["tool"] == "rent_box" and row["sent_at"]}
    for box, label in fleet.door.ours():
        if box.id not in known | asked_about and label.rpartition("/")[2] not in open_rents:
            yield f"box {box.id} ({label}) is billed and the ledger knows nothing of it"


def _made_twice(fleet: Installation) -> Iterator[str]:
    """No intent makes two boxes (I10)."""
    labels = Counter(create.label for create in fleet.sim.market.creates if parse_label(create.label))
    yield from (f"{times} boxes were made for {label}" for label, times in labels.items() if times > 1)


def _without_a_ruling(fleet: Installation) -> Iterator[str]:
    """Every box and every call has an intent that was ruled on before, and every outcome was sent (I9)."""
    actions = {row["key"]: row for row in rows(fleet, "action")}
    for create in fleet.sim.market.creates:
        label = parse_label(create.label)
        if label is None or not fleet.door.is_ours(create.label):
            continue
        action = actions.get(label.key)
        if action is None or action["sent_at"] is None:
            yield f"box {create.instance_id} was made without an intent that was sent ({create.label})"
    for action in actions.values():
        if action["sent_at"] is not None and action["ruling"] != "allow":
            yield f"{action['key']} was sent though its ruling is {action['ruling']}"
        if action["status"] in (*UNSETTLED, "done") and action["sent_at"] is None:
            yield f"{action['key']} is {action['status']} and was never sent"


def _beyond_what_was_approved(fleet: Installation) -> Iterator[str]:
    """What was done by a person's word lies within it (I14), and what was made is what was judged."""
    made = {create.label: create.instance_id for create in fleet.sim.market.creates}
    boxes = {box.id: box for box in fleet.sim.market.all_instances()}
    for action in rows(fleet, "action"):
        grant, offer, key = action["grant"], action["offer"], action["key"]
        if action["sent_at"] is None:
            continue
        if action["tool"] == "rent_box":
            label = next((label for label in made if label and label.endswith(f"/{key}")), None)
            box = boxes.get(made[label]) if label else None
            if box is not None and usd_per_hour(box) > Decimal(offer["usd_per_hour"]) + CENT_OF_A_CENT:
                yield f"{key} was judged at {offer['usd_per_hour']} $/h and made a box for {usd_per_hour(box)}"
            if box is not None and box.machine.machine_id != offer["machine_id"]:
                yield f"{key} was judged on machine {offer['machine_id']} and made a box on another"
        if action["approved_at"] is None:
            continue
        if grant is None or grant["tool"] != action["tool"]:
            yield f"{key} was approved as {grant} and carried out as {action['tool']}"
        elif action["tool"] != "rent_box" and action["arguments"]["id"] != grant["vast_id"]:
            yield f"{key} was approved for box {grant['vast_id']} and was about {action['arguments']['id']}"
        elif action["tool"] == "rent_box" and (
            (offer["gpu_name"], offer["num_gpus"]) != (grant["gpu_name"], grant["num_gpus"])
            or Decimal(offer["usd_per_hour"]) > Decimal(grant["max_usd_per_hour"])
        ):
            yield f"{key} went beyond what was approved: {offer} is not within {grant}"


def _told_without_an_intent(fleet: Installation) -> Iterator[str]:
    words = [row for row in rows(fleet, "action") if row["tool"] == "notify_human" and row["sent_at"]]
    notices = rows(fleet, "notice")
    if len(fleet.notifier.told) > len(words) + len(notices):
        told = len(fleet.notifier.told)
        yield f"the operator was told {told} times, of {len(words)} words and {len(notices)} notices"


# --- at the moment of the effect --------------------------------------------------------------------------------------

CREATE = re.compile(r"PUT /api/v0/asks/(\d+)/")
DESTROY = re.compile(r"DELETE /api/v0/instances/(\d+)/")
READ = re.compile(r"GET .*|POST /api/v0/bundles/|PUT /api/v0/instances/request_logs/\d+/")


@dataclass
class Door:
    """The provider's door as one fleet goes through it. Every request is looked at before it is let in:

    an effect has an intent that is committed as sent (I9); what is destroyed is ours; and what is made leaves the fleet
    within its caps, counted by what the provider bills (I13). What it finds broken stays in `broken`.
    """

    sim: World
    database: Database
    fleet: str = "main"
    before_create: Callable[[], Awaitable[object]] | None = None
    """What a test has happen while a create is on its way."""
    destroys: list[int] = field(default_factory=list[int])
    """The boxes whose destruction was asked for, each time it was."""
    broken: list[str] = field(default_factory=list[str])
    _installation: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []

        async def overhear() -> Message:
            messages.append(await receive())
            return messages[-1]

        async def repeat() -> Message:
            return messages.pop(0) if messages else await receive()

        while scope["method"] != "GET" and (not messages or messages[-1].get("more_body", False)):
            await overhear()
        request = f"{scope['method']} {scope['path']}"
        body = b"".join(message.get("body", b"") for message in messages)
        create, destroy = CREATE.fullmatch(request), DESTROY.fullmatch(request)
        if create is not None and self.before_create is not None:
            await self.before_create()
        if create is not None:
            self._look_at_create(json.loads(body).get("label"))
        elif destroy is not None:
            self._look_at_destroy(int(destroy[1]))
        elif READ.fullmatch(request) is None:
            self.broken.append(f"{request} is an effect that nothing rules on")
        await self.sim.vast_face(scope, repeat, send)
        if create is not None:
            self._look_at_caps()

    def _look_at_create(self, label: str | None) -> None:
        parsed = parse_label(label)
        if parsed is None or not self.is_ours(label):
            self.broken.append(f"a box was ordered under the label {label}")
            return
        action = self._actions("key = :key", key=parsed.key)
        if not [row for row in action if row["status"] == "sent" and row["ruling"] == "allow"]:
            self.broken.append(f"a box was ordered for {label}, whose rows are {action}")

    def _look_at_destroy(self, vast_id: int) -> None:
        self.destroys.append(vast_id)
        label = {create.instance_id: create.label for create in self.sim.market.creates}.get(vast_id)
        if not self.is_ours(label):
            self.broken.append(f"box {vast_id}, made for {label}, was to be destroyed")
        orders = self._actions("tool = 'destroy_box' AND CAST(arguments ->> 'id' AS bigint) = :id", id=vast_id)
        if not [row for row in orders if row["sent_at"] is not None and row["ruling"] == "allow"]:
            self.broken.append(f"box {vast_id} was to be destroyed without an intent: its rows are {orders}")

    def _look_at_caps(self) -> None:
        with self.database.transaction() as tx:
            limits = session.policy(tx, self.fleet).limits
        live = [box for box, _ in self.ours()]
        burn = sum((usd_per_hour(box) for box in live), Decimal(0))
        if len(live) > limits.max_boxes:
            self.broken.append(f"{len(live)} boxes live and the cap is {limits.max_boxes}")
        if burn > limits.max_usd_per_hour + len(live) * CENT_OF_A_CENT:
            self.broken.append(f"{burn:.4f} $/h are burnt and the cap is {limits.max_usd_per_hour}")

    def ours(self) -> list[tuple[Instance, str]]:
        """The boxes that live and were made for us, whatever became of their labels, with what they were made for."""
        made = {create.instance_id: create.label or "" for create in self.sim.market.creates}
        return [(box, made[box.id]) for box in self.sim.market.instances() if self.is_ours(made[box.id])]

    def is_ours(self, label: str | None) -> bool:
        if not self._installation:
            with self.database.transaction() as tx:
                self._installation = installation(tx).name
        parsed = parse_label(label)
        return parsed is not None and (parsed.installation, parsed.fleet) == (self._installation, self.fleet)

    def _actions(self, which: str, **values: object) -> list[Mapping[str, Any]]:
        with self.database.transaction() as tx:
            query = text(f"SELECT key, status, ruling, sent_at FROM action WHERE fleet = :fleet AND {which}")
            return [dict(row) for row in tx.execute(query, {"fleet": self.fleet, **values}).mappings()]


def usd_per_hour(box: Instance) -> Decimal:
    """What it costs while it runs."""
    return box.gpu_usd_per_hour + box.disk_usd_per_hour


def rows(fleet: Installation, table: str) -> list[dict[str, Any]]:
    """The rows of the fleet, as they are in the database."""
    with fleet.database.transaction() as tx:
        query = text(f"SELECT * FROM {table} WHERE fleet = :fleet")
        return [dict(row) for row in tx.execute(query, {"fleet": fleet.fleet}).mappings()]
