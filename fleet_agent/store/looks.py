"""A look of the watch in the database: what is known is read, what is found is kept, and what goes on is told once.

One transaction a fleet. So a look that dies has told nothing and marked nothing, and the next one finds the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col, select

from fleet_agent.domain.actions import DestroyBox, DrainBox, RentBox
from fleet_agent.domain.fleet import Box, Instance, Offer, Stage, parse_label
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled
from fleet_agent.domain.lookout import Found, find
from fleet_agent.domain.observation import Known, Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.rules import Actor, Decision, Mode, Removal, Ruling, judge
from fleet_agent.domain.sight import Finding, Sight, Watched, number
from fleet_agent.domain.watch import Looked, Seen
from fleet_agent.errors import PolicyInvalid
from fleet_agent.store import actions, hosts, inbox, ledger, notices, samples, session, sightings, tables
from fleet_agent.store.inbox import Post
from fleet_agent.store.installation import installation
from fleet_agent.store.situation import Asker, situation_of
from fleet_agent.store.spent import MOST_USD
from fleet_agent.store.tables import Action, Sample

LOSSES_TOLD_FOR: Final = timedelta(hours=24)
"""Business time. A box that was lost before that is no news, such as after an upgrade."""

TOO_MANY: Final = "too_many_at_once"

HELD_BACK: Final[Mapping[str, str]] = {
    "protected": "whether it stays is left to you",
    "not_ours": "look at vast.ai what it is",
    TOO_MANY: "the others follow later; look whether something is wrong with all of them",
}
"""Rulings that hold back what the watch wants, and of which a person must know; with what is to be said of them."""

GONE: Final = "gone"

MOST_PROOFS: Final = 2**31 - 1
"""What a column holds. A query may count something else than proofs, and that must not end the look."""


def record_look(tx: Session, fleet: str, seen: Seen, *, now: datetime) -> Looked:
    """To be called within `Database.exclusive`."""
    actions.expire_intents(tx, fleet, now=now, of=(Actor.WATCH,))
    actions.expire_approvals(tx, fleet, now=now)
    if isinstance(seen.inventory, Known):
        sightings.record_sighting(tx, fleet, seen.inventory.value, now=now)
    _tell_of_questions(tx, fleet, now)
    observation = _observation(tx, fleet, seen)
    looked = Looked(fleet=fleet, installation=installation(tx).name, observation=observation)
    last = samples.newest(tx, fleet, now=now)
    try:
        sight = _sight(tx, fleet, seen, observation, last, now)
    except PolicyInvalid as error:  # it keeps no box from being seen and counted
        _sample(tx, fleet, observation, bands=last.bands if last else {}, at=now)
        return looked.model_copy(update={"unfit": str(error)})
    found = find(sight)
    _keep(tx, fleet, found)
    for finding in found.news:
        _tell(tx, fleet, finding, sight.policy, now)
    _sample(tx, fleet, observation, bands=found.bands, at=now)
    return looked.model_copy(
        update={
            "removals": _but_what_persons_ordered(tx, sight, found, since=last and last.at, now=now),
            "findings": tuple(finding.text for finding in found.findings),
            "news": tuple(finding.text for finding in found.news),
        }
    )


def _tell_of_questions(tx: Session, fleet: str, now: datetime) -> None:
    """What waits for a person's word: approvals, and boxes without a label that may be ours."""
    for approval in actions.open_approvals(tx, fleet):
        text = (
            f"{approval.tool} {approval.key} waits for your word: {approval.sentence} It would be to {approval.bound}. "
            f"`fleet-agent approve {approval.key}`, or reject it"
        )
        notices.give(tx, fleet, key=f"approval {approval.key}", text=text, now=now)
    for question in tx.scalars(select(tables.Question).where(tables.Question.fleet == fleet)):
        notices.give(tx, fleet, key=f"question {question.vast_id}", text=question.text, now=now)


def _observation(tx: Session, fleet: str, seen: Seen) -> Observation:
    count, rate = ledger.in_flight(tx, fleet)
    return Observation(
        taken_at=seen.taken_at,
        inventory=seen.inventory,
        demand=seen.demand,
        account=seen.account,
        boxes=ledger.boxes(tx, fleet),
        in_flight_count=count,
        in_flight_usd_per_hour=rate,
    )


# --- what is known ----------------------------------------------------------------------------------------------------


def _sight(tx: Session, fleet: str, seen: Seen, observation: Observation, last: Sample | None, now: datetime) -> Sight:
    return Sight(
        situation=situation_of(tx, Asker(fleet=fleet, actor=Actor.WATCH), observation, Listing(), now=now),
        boxes=_watched(tx, fleet, observation),
        lost=_lost(tx, fleet, now),
        strangers=_strangers(tx, observation),
        reports_since=ledger.reports_since(tx),
        grace=ledger.GRACE * installation(tx).clock_speed,
        unread=seen.unread,
        last=last and last.bands,
        run=session.state(tx, fleet).last_bands,
    )


def _watched(tx: Session, fleet: str, observation: Observation) -> tuple[Watched, ...]:
    rows = {row.key: row for row in tx.scalars(select(tables.Box).where(*_live(fleet)))}
    orders, last_destroys = _rents_of(tx, rows), _last_destroys_of(tx, rows)
    inventory = observation.inventory
    listed = {each.id: each for each in inventory.value.instances} if isinstance(inventory, Known) else {}
    state, policy = session.state(tx, fleet), session.policy(tx, fleet)
    return tuple(
        _beside_the_list(
            box, rows[box.key], listed.get(box.vast_id or 0), orders.get(box.key), last_destroys.get(box.key),
            image_of={state.policy_version: policy.launch.image},
        )
        for box in observation.boxes
    )  # fmt: skip


def _live(fleet: str) -> tuple[bool, bool]:
    return tables.Box.fleet == fleet, tables.Box.stage != Stage.GONE


def _rents_of(tx: Session, keys: Mapping[str, object]) -> dict[str, Action]:
    rents = tx.scalars(select(Action).where(col(Action.box_key).in_(keys), Action.tool == RentBox.name))
    return {row.box_key or "": row for row in rents}


def _last_destroys_of(tx: Session, keys: Mapping[str, object]) -> dict[str, Action]:
    """Of each box the newest that did not definitely come to nothing: one that was refused undoes none before it."""
    sent = tx.scalars(
        select(Action)
        .where(
            col(Action.box_key).in_(keys),
            Action.tool == DestroyBox.name,
            col(Action.sent_at).is_not(None),
            Action.status != ActionStatus.FAILED,
        )
        .order_by(col(Action.id))
    )
    return {row.box_key or "": row for row in sent}


def _beside_the_list(
    box: Box,
    row: tables.Box,
    listed: Instance | None,
    rent: Action | None,
    last_destroy: Action | None,
    *,
    image_of: Mapping[int, str],
) -> Watched:
    """`image_of` a version of the policy, as far as it is known."""
    return Watched(
        box=box,
        listed=listed,
        ordered=None if rent is None or rent.offer is None else Offer.model_validate(rent.offer),
        image="" if rent is None else image_of.get(rent.policy_version or 0, ""),
        sightings=row.sightings,
        misses=row.misses,
        has_hook=row.hook_digest is not None,
        gave_up=row.gave_up is not None,
        destroyed=box.stage is not Stage.DESTROYING
        and last_destroy is not None
        and last_destroy.status in (ActionStatus.DONE, ActionStatus.EXPIRED),
        told=frozenset(filter(None, row.trouble.split(_BETWEEN))),
        troubled_since=row.troubled_since,
    )


_BETWEEN: Final = "; "


def _lost(tx: Session, fleet: str, now: datetime) -> tuple[Box, ...]:
    """Whatever look found that they are gone, be it a run's."""
    asked_for = select(Action.id).where(
        Action.box_key == tables.Box.key, Action.tool == DestroyBox.name, col(Action.sent_at).is_not(None)
    )
    rows = tx.scalars(
        select(tables.Box)
        .where(
            tables.Box.fleet == fleet,
            tables.Box.stage == Stage.GONE,
            col(tables.Box.vast_id).is_not(None),
            col(tables.Box.gone_at) > now - LOSSES_TOLD_FOR,
            tables.Box.trouble != GONE,
            ~asked_for.exists(),
        )
        .order_by(col(tables.Box.key))
    )
    return tuple(ledger.as_box(row, busy=False) for row in rows)


def _strangers(tx: Session, observation: Observation) -> tuple[Instance, ...]:
    """Boxes without a label that may be ours are a question (`unlabelled`), and told as one."""
    if not isinstance(observation.inventory, Known):
        return ()
    listed, ours = observation.inventory.value.instances, installation(tx).name
    numbers = [each.id for each in listed]
    known = set(tx.scalars(select(tables.Box.vast_id).where(col(tables.Box.vast_id).in_(numbers))))
    known |= set(tx.scalars(select(tables.Question.vast_id)))
    return tuple(each for each in listed if each.id not in known and _installation_of(each) != ours)


def _installation_of(instance: Instance) -> str | None:
    label = parse_label(instance.label)
    return label and label.installation


# --- what is kept -----------------------------------------------------------------------------------------------------


def _keep(tx: Session, fleet: str, found: Found) -> None:
    session.state(tx, fleet).frozen_because = found.frozen_because
    for key, mark in found.marks.items():
        box = tx.get_one(tables.Box, key)
        box.trouble, box.troubled_since = _BETWEEN.join(sorted(mark.told)), mark.troubled_since
    for finding in found.news:
        if finding.code == GONE and finding.box is not None:
            tx.get_one(tables.Box, finding.box.key).trouble = GONE


def _tell(tx: Session, fleet: str, finding: Finding, policy: Policy, now: datetime) -> None:
    box = finding.box
    key = finding.code if box is None else f"{box.key} {finding.code}"
    if finding.kind is not None:
        payload = {} if box is None else {"key": box.key, "id": box.vast_id, "machine_id": box.machine_id}
        event = Post(kind=finding.kind, source="watch", text=finding.text, payload=payload, dedupe_key=key)
        inbox.post(tx, fleet, event, now=now)
    if finding.notice:
        notices.give(tx, fleet, key=f"{key} at {now.isoformat()}", text=finding.text, now=now)
    if box is None or finding.removal is None:
        return
    why = finding.removal.reason
    if finding.failure is not None:
        where = (box.machine_id, box.num_gpus, box.gpu_name)
        hosts.failed(tx, fleet, *where, finding.failure, why, by="watch", bounds=policy.bans, now=now)
    if finding.in_vain:
        hosts.rent_failed(tx, fleet, why, most=policy.watch.rent_failures, now=now)


def _sample(tx: Session, fleet: str, observation: Observation, *, bands: Mapping[str, str], at: datetime) -> None:
    listed = _numbers_of(observation)
    demand = observation.demand.value if isinstance(observation.demand, Known) else None
    account = observation.account.value if isinstance(observation.account, Known) else None
    ours = None if listed is None else [box for box in observation.boxes if box.vast_id in listed]
    seen = {
        "boxes": None if ours is None else len(ours),
        "proving": None if ours is None else sum(box.stage is Stage.PROVING for box in ours),
        "in_flight": observation.in_flight_count,
        "burn_usd_per_hour": min(observation.burn(), MOST_USD),
        "credit_usd": account and max(-MOST_USD, min(account.credit_usd, MOST_USD)),
        "pending": demand and min(demand.pending, MOST_PROOFS),
        "running": demand and min(demand.running, MOST_PROOFS),
        "done_per_hour": demand and demand.done_per_hour,
        "bands": dict(bands),
    }
    new = insert(Sample).values(fleet=fleet, at=at, **seen)
    tx.execute(new.on_conflict_do_update(index_elements=["fleet", "at"], set_=seen))


def _numbers_of(observation: Observation) -> set[int] | None:
    inventory = observation.inventory
    return {each.id for each in inventory.value.instances} if isinstance(inventory, Known) else None


# --- what is to be done about it --------------------------------------------------------------------------------------


def _but_what_persons_ordered(
    tx: Session, sight: Sight, found: Found, *, since: datetime | None, now: datetime
) -> tuple[Removal, ...]:
    """What is left to the watch's own wish; `since`: the look before.

    What a person ordered is done when the box is gone, and not before. So a destruction that came to nothing since the
    last look is ordered again, and the end of a box that a person had drained is the person's order too: no brake of
    the watch holds it. Who protects the box meanwhile has thought better of it, also when he ends that later.
    """
    going = [each.box for each in sight.boxes if not each.box.protected]
    newest = _newest_removals_of(tx, [box.key for box in going])
    wanted = {removal.id: removal for removal in found.removals}
    for box in going:
        last, own = newest.get(box.key), wanted.get(number(box))
        if last is None or last.actor != Actor.OPERATOR:
            continue
        came_to_nothing = (
            last.tool == DestroyBox.name
            and last.status == ActionStatus.FAILED
            and (since is None or last.settled_at is None or last.settled_at >= since)
        )
        has_drained = last.tool == DrainBox.name and isinstance(own, DestroyBox)
        if came_to_nothing or has_drained:
            reason = str(last.arguments["reason"]) if own is None else own.reason
            actions.order_on(tx, last, DestroyBox(id=number(box), reason=reason), now=now)
            wanted.pop(number(box), None)
    return tuple(wanted.values())


def _newest_removals_of(tx: Session, keys: Sequence[str]) -> dict[str, Action]:
    """Whoever sent it, and whatever came of it."""
    sent = tx.scalars(
        select(Action)
        .where(
            col(Action.box_key).in_(keys),
            col(Action.tool).in_((DrainBox.name, DestroyBox.name)),
            col(Action.sent_at).is_not(None),
        )
        .order_by(col(Action.id))
    )
    return {row.box_key or "": row for row in sent}


def propose(
    tx: Session, fleet: str, actor: Actor, wanted: Sequence[Removal], *, observation: Observation, now: datetime
) -> tuple[Ruled, ...]:
    """Judge removals one after the other, and store the intents. To be called within `Database.exclusive`."""
    asker = Asker(fleet=fleet, actor=actor)
    return tuple(_proposed(tx, asker, action, observation, now) for action in wanted)


def _proposed(tx: Session, asker: Asker, action: Removal, observation: Observation, now: datetime) -> Ruled:
    """What a rule holds back is wanted again at every look: the same ruling twice is one row."""
    situation = situation_of(tx, asker, observation, Listing(), now=now)
    ruling, box = judge(action, situation), situation.box(action.id)
    before = None if box is None else _newest_of(tx, asker, action, box.key)
    if before is not None and _is_the_same(before, ruling, situation.mode):
        return actions.ruled(before, situation.policy)
    if ruling.code in HELD_BACK:
        _tell_of_held_back(tx, asker.fleet, action, ruling, now)
    wanted = actions.Wanted(action, key=f"{asker.actor.value}{action.id}")
    return actions.propose(tx, asker, [wanted], observation=observation, listing=Listing(), now=now)[0]


def _tell_of_held_back(tx: Session, fleet: str, action: Removal, ruling: Ruling, now: datetime) -> None:
    """Once a day: a box each, but once for all of them where there are too many."""
    which = "" if ruling.code == TOO_MANY else f" {action.id}"
    text = (
        f"{action.name} of box {action.id} ({action.reason}) is held back. {ruling.sentence} {HELD_BACK[ruling.code]}"
    )
    notices.give(tx, fleet, key=f"held back: {ruling.code}{which} on {now:%Y-%m-%d}", text=text, now=now)


def _newest_of(tx: Session, asker: Asker, action: Removal, box_key: str) -> Action | None:
    return tx.scalars(
        select(Action)
        .where(
            Action.fleet == asker.fleet,
            Action.actor == asker.actor,
            Action.tool == action.name,
            Action.box_key == box_key,
        )
        .order_by(col(Action.id).desc())
        .limit(1)
    ).first()


def _is_the_same(before: Action, ruling: Ruling, mode: Mode) -> bool:
    if ruling.decision is Decision.ALLOW:
        return mode is Mode.DRY_RUN and before.status == ActionStatus.DRY
    return before.status == ActionStatus.REFUSED and before.code == ruling.code
