"""The row of a fleet: what every run finds in force."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.policy import Policy
from fleet_agent.domain.run import Notes, Run
from fleet_agent.errors import PolicyInvalid
from fleet_agent.store import taints
from fleet_agent.store.tables import SessionState


def state(tx: Session, fleet: str) -> SessionState:
    """The fleet's row; a fleet begins to exist when it is first named."""
    row = tx.get(SessionState, fleet)
    if row is None:
        begin(tx, fleet)
        row = tx.get_one(SessionState, fleet)
    return row


def begin(tx: Session, fleet: str) -> None:
    """The same for who needs nothing of the row, which is large, but that it is there."""
    if tx.scalar(select(SessionState.fleet).where(SessionState.fleet == fleet)) is None:
        tx.execute(insert(SessionState).values(fleet=fleet).on_conflict_do_nothing())


def find(tx: Session, fleet: str) -> SessionState:
    """The same for readers: a fleet that nobody has named yet is shown with the defaults, and not made."""
    return tx.get(SessionState, fleet) or SessionState(fleet=fleet)


def policy(tx: Session, fleet: str) -> Policy:
    """The operator's limits. Raises PolicyInvalid when what is stored is no policy of this version."""
    stored = find(tx, fleet).policy
    try:
        return Policy.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        raise PolicyInvalid(
            f"the stored policy of fleet {fleet} cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            "install the version that wrote it",
        ) from error


def policy_or_default(tx: Session, fleet: str) -> Policy:
    """For what must not wait for a policy that can be read."""
    try:
        return policy(tx, fleet)
    except PolicyInvalid:
        return Policy()


def launch_image(tx: Session, fleet: str) -> str:
    """The image of the policy, empty where none is set. Read alone: a look is recorded whatever else is stored."""
    return find(tx, fleet).policy.get("launch", {}).get("image", "")


def most_runs_an_hour(tx: Session, fleet: str) -> int:
    """The bound of the alarm: a policy that cannot be read must not keep a run from opening."""
    return policy_or_default(tx, fleet).run.max_opened_per_hour


def most_proofs_per_hour_per_gpu(tx: Session, fleet: str) -> float:
    """What a box is believed, or its default: a box is heard whatever else is stored."""
    try:
        return policy(tx, fleet).watch.most_proofs_per_hour_per_gpu
    except PolicyInvalid:
        return Policy().watch.most_proofs_per_hour_per_gpu


def notes(tx: Session, fleet: str) -> Notes:
    """The agent's own, whatever their age."""
    row = find(tx, fleet)
    if row.notes_by_run is None:
        return Notes()
    taint = taints.of_runs(tx, fleet, [row.notes_by_run]).get(row.notes_by_run)
    return Notes(text=row.notes, by_run=row.notes_by_run, set_at=row.notes_at, taint=taint)


def set_notes(tx: Session, run: Run, text: str, *, now: datetime) -> None:
    row = state(tx, run.fleet)
    row.notes, row.notes_by_run, row.notes_at = text, run.run_id, now
