"""What a person sets: policy, mode, objective, a new session. Each change is audited, and wakes the agent.

To be called within `Database.exclusive`: a run that is ruling on an effect at this moment finishes its ruling first,
and the next one is judged by what was set here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from fleet_agent.domain.policy import Policy, changed, flattened
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.triggers import Kind
from fleet_agent.store import audit, session
from fleet_agent.store.inbox import Post, post


def change_policy(tx: Session, fleet: str, changes: Mapping[str, str], *, who: str, now: datetime) -> Policy:
    """Set dotted keys such as `limits.max_boxes`. Raises PolicyInvalid, and then nothing is stored."""
    row = session.state(tx, fleet)
    before = session.policy(tx, fleet)
    after = changed(before, changes)
    row.policy = after.model_dump(mode="json")
    row.policy_version += 1
    old, new = flattened(before), flattened(after)
    differing = [f"{key} {old[key] or '(none)'} → {new[key] or '(none)'}" for key in new if old[key] != new[key]]
    _announce(tx, fleet, "policy", ", ".join(differing) or "nothing", who=who, now=now)
    return after


def set_mode(tx: Session, fleet: str, mode: Mode, *, who: str, now: datetime) -> None:
    """Setting what is set already announces nothing."""
    row = session.state(tx, fleet)
    before, row.mode = row.mode, mode.value
    if before == mode:
        return
    _announce(tx, fleet, "mode", f"{before} → {mode.value}", who=who, now=now)


def set_objective(tx: Session, fleet: str, objective: str, *, who: str, now: datetime) -> None:
    session.state(tx, fleet).objective = objective
    _announce(tx, fleet, "objective", objective, who=who, now=now)


def reset_session(tx: Session, fleet: str, *, who: str, now: datetime) -> int:
    """Begin a new conversation and return its epoch. Nothing else ends: counter, wakes, policy and notes stay."""
    row = session.state(tx, fleet)
    row.epoch += 1
    row.compaction = {}
    audit.note(tx, fleet, who=who, what="session", text=f"reset to epoch {row.epoch}", now=now)
    return row.epoch


def _announce(tx: Session, fleet: str, what: str, text: str, *, who: str, now: datetime) -> None:
    audit.note(tx, fleet, who=who, what=what, text=text, now=now)
    post(tx, fleet, Post(kind=Kind.CONFIG_CHANGE, source=who, text=f"{what}: {text}"), now=now)
