"""What a person sets: policy, mode, brakes, objective, a new session, a word on what waits for one. Each change is
audited, and what the agent must know of wakes it.

To be called within `Database.exclusive`: a run that is ruling on an effect at this moment finishes its ruling first,
and the next one is judged by what was set here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.policy import Policy, changed, flattened
from fleet_agent.domain.rules import Brake, Mode
from fleet_agent.domain.triggers import Kind
from fleet_agent.store import actions, audit, hosts, ledger, session, tables
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


def pause_scaling(tx: Session, fleet: str, brakes: Collection[Brake], *, who: str, now: datetime) -> None:
    """Hold the agent and the planner back from renting, or from giving up boxes; a brake that is not named stays."""
    row = session.state(tx, fleet)
    before = _brakes(row)
    row.scale_out_paused |= Brake.SCALE_OUT in brakes
    row.scale_in_paused |= Brake.SCALE_IN in brakes
    _announce_brakes(tx, row, before, who=who, now=now)


def resume_scaling(tx: Session, fleet: str, brakes: Collection[Brake], *, who: str, now: datetime) -> None:
    """Let go of these brakes."""
    row = session.state(tx, fleet)
    before = _brakes(row)
    _let_go(tx, row, brakes, who=who, now=now)
    _announce_brakes(tx, row, before, who=who, now=now)


def resume(tx: Session, fleet: str, mode: Mode, *, who: str, now: datetime) -> None:
    """Set the mode and let go of every brake, of disbelief in the provider's list too: a person has looked."""
    set_mode(tx, fleet, mode, who=who, now=now)
    row = session.state(tx, fleet)
    before = _brakes(row)
    _let_go(tx, row, tuple(Brake), who=who, now=now)
    row.frozen_because = ""
    _announce_brakes(tx, row, before, who=who, now=now)


def _let_go(tx: Session, row: tables.SessionState, brakes: Collection[Brake], *, who: str, now: datetime) -> None:
    """That of renting is also what the rents that came to nothing have drawn."""
    if Brake.SCALE_OUT in brakes:
        row.scale_out_paused = False
        hosts.close_breaker(tx, row.fleet, who=who, now=now)
    if Brake.SCALE_IN in brakes:
        row.scale_in_paused = False


def _brakes(row: tables.SessionState) -> dict[str, str]:
    """Which are on; why one drew itself may be in the words of strangers."""
    names = ("scale_out_paused", "scale_in_paused", "rent_breaker", "frozen_because")
    return {name: "on" if getattr(row, name) else "off" for name in names}


def _announce_brakes(
    tx: Session, row: tables.SessionState, before: Mapping[str, str], *, who: str, now: datetime
) -> None:
    after = _brakes(row)
    differing = [f"{name} {before[name]} → {after[name]}" for name in after if before[name] != after[name]]
    if differing:
        _announce(tx, row.fleet, "brakes", ", ".join(differing), who=who, now=now)


def protect(tx: Session, fleet: str, vast_id: int, on: bool, *, who: str, now: datetime) -> str | None:
    """Have nobody but a person give the box up, or let go of that; the problem in a sentence where there is no such
    box. What is not sent yet is held back too."""
    box = ledger.live_box(tx, fleet, vast_id)
    if box is None:
        return f"fleet {fleet} has no live box {vast_id}"
    if box.protected != on:
        box.protected = on
        text = f"box {vast_id} is {'protected' if on else 'protected no more'}"
        audit.note(tx, fleet, who=who, what="box", text=text, now=now)
    return None


def approve(tx: Session, fleet: str, key: str, *, who: str, now: datetime) -> str | Grant:
    """Grant what waits for a person's word; the problem in a sentence where that cannot be."""
    granted = actions.approve(tx, fleet, key, who=who, now=now)
    if isinstance(granted, Grant):
        _answer(tx, fleet, f"{key} was approved: {granted.in_words()}", who=who, now=now)
    return granted


def reject(tx: Session, fleet: str, key: str, *, who: str, now: datetime) -> str | None:
    """Refuse it; the problem in a sentence where that cannot be."""
    problem = actions.reject(tx, fleet, key, who=who, now=now)
    if problem is None:
        asked = Grant.model_validate(actions.action_of(tx, key).grant)
        _answer(tx, fleet, f"{key} was rejected: {asked.in_words()}", who=who, now=now)
    return problem


def _answer(tx: Session, fleet: str, text: str, *, who: str, now: datetime) -> None:
    """What a person says of an action; the next run carries it out, or knows that it must not."""
    audit.note(tx, fleet, who=who, what="approval", text=text, now=now)
    post(tx, fleet, Post(kind=Kind.APPROVAL, source=who, text=text), now=now)


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
