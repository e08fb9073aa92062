"""What boxes say of themselves, each by its token: kept in the ledger before it is answered.

A box is known by the digest of its token, and by nothing that it says. The provider's list writes the same stages, so
what a box says waits for the look at hand, as a post waits for the decision at hand. It is taken beside posts and
beside what other boxes say: there are many of them, and one that never stops talking must hold up nobody's run.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.box_reports import BoxReport, digest_of, is_to_drain, stage_after, without_tokens
from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.hygiene import clean
from fleet_agent.domain.triggers import Kind
from fleet_agent.store import hosts, ledger, tables
from fleet_agent.store.inbox import Post, post


@dataclass(frozen=True)
class Speaker:
    """The box that a token is of."""

    fleet: str
    key: str


def box_of(tx: Session, token: str) -> Speaker | None:
    """Whose token this is, whether or not the box is gone by now. That it is found by its digest tells nothing of how
    close a guess came."""
    digest = digest_of(token)
    row = tx.scalars(select(tables.Box).where(tables.Box.hook_digest == digest)).first()
    if row is None or not hmac.compare_digest(row.hook_digest or "", digest):
        return None
    return Speaker(fleet=row.fleet, key=row.key)


def record(tx: Session, box: Speaker, said: BoxReport, *, now: datetime) -> bool:
    """Keep what the box says, and return whether it is to drain. To be called within `Database.shared`: the row of the
    box is held, so that no two of its words cross."""
    row = tx.scalars(select(tables.Box).where(tables.Box.key == box.key).with_for_update()).one()
    before = Stage(row.stage)
    stage = stage_after(before, said.stage, spoke_before=row.reported_at is not None)
    row.reported_at = now
    if before is Stage.GONE:  # whoever has its token now, it is no box of ours that measures
        return is_to_drain(before)
    if said.tasks is not None:
        row.tasks = said.tasks
    if said.fetched is not None:
        row.fetched = said.fetched
    if said.proofs_per_hour is not None:
        where = (row.machine_id, row.num_gpus, row.gpu_name)
        if hosts.measured(tx, box.fleet, *where, said.proofs_per_hour, now=now) is None:
            row.proofs_per_hour = said.proofs_per_hour
    if stage is not before:
        ledger.enter(row, stage, now)
        if stage is Stage.PROVING:
            hosts.rent_worked(tx, box.fleet)
        post(tx, box.fleet, _progress(row), now=now)
    if said.gave_up is not None and row.gave_up is None:  # once, however often it says so
        row.gave_up = " ".join(clean(without_tokens(said.gave_up)).split())
        post(tx, box.fleet, _end(row), now=now)
    return is_to_drain(stage)


def _progress(row: tables.Box) -> Post:
    """While it waits for a run the newest stage is what counts."""
    rate = "" if row.proofs_per_hour is None else f", {row.proofs_per_hour:g} proofs/h"
    return Post(
        kind=Kind.BOX_PROGRESS,
        source="box",
        dedupe_key=f"box_progress:{row.key}",
        text=f"Box {_name(row)} says that it is {row.stage}{rate}.",
        payload={"id": row.vast_id, "stage": row.stage, "proofs_per_hour": row.proofs_per_hour},
    )


def _end(row: tables.Box) -> Post:
    """The watch gives the box up for it, in words of ours; these are a stranger's."""
    return Post(
        kind=Kind.BOX_FAILED,
        source="box",
        dedupe_key=f"gave_up:{row.key}",
        text=f"Box {_name(row)} gives up: {row.gave_up}",
        payload={"id": row.vast_id, "stage": row.stage},
        tainted=True,
    )


def _name(row: tables.Box) -> str:
    return row.key if row.vast_id is None else str(row.vast_id)
