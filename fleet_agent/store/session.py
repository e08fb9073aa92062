"""The row of a fleet: what every run finds in force."""

from __future__ import annotations

from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.policy import Policy
from fleet_agent.errors import PolicyInvalid
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


def launch_image(tx: Session, fleet: str) -> str:
    """The image of the policy, empty where none is set. Read alone: a look is recorded whatever else is stored."""
    return find(tx, fleet).policy.get("launch", {}).get("image", "")


def set_notes(tx: Session, fleet: str, text: str) -> None:
    state(tx, fleet).notes = text
