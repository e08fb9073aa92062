"""What is remembered of machines: the bans, how they failed, and the best they have shown. And the breaker of renting.

Written by whoever sees a box fail, by the agent's `ban_host` and by a person; read before anything is rented. What
writes is to be called within `Database.exclusive`, but for `measured` and `rent_worked`, which boxes call by their
words: within `Database.shared`. A number that names no machine is neither remembered nor passed over
in silence: a sentence comes back that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.hosts import (
    LONGEST_REASON,
    Ban,
    BanBounds,
    Benchmark,
    Failure,
    NotBanned,
    no_machine,
    no_rate,
)
from fleet_agent.domain.show import one_line, utc
from fleet_agent.store import audit, notices, session, tables
from fleet_agent.store.tables import Host, HostBan

# --- bans ------------------------------------------------------------------------------------------------------------


def ban(
    tx: Session,
    fleet: str,
    machine_id: int,
    failure: Failure,
    reason: str,
    *,
    by: str,
    bounds: BanBounds,
    now: datetime,
) -> Ban | NotBanned:
    """Avoid a machine from now on; returns the ban that holds, which may be an older one that ends later.

    One row for each thing that is said. Who says the same again while it holds makes it last anew, and adds no row: a
    look that finds the same trouble every minute fills no table.
    """
    problem = no_machine(machine_id)
    if problem is not None:
        return NotBanned(sentence=problem)
    session.begin(tx, fleet)
    said, expires_at = _brief(reason), now + bounds.lasts(failure)
    known = [row for row in _in_force(tx, fleet, now) if row.machine_id == machine_id]
    same = [row for row in known if (row.failure, row.reason, row.banned_by) == (failure, said, by)]
    if same:
        same[0].expires_at = max(same[0].expires_at, expires_at)
        return _as_ban(max(known, key=_end))
    new = HostBan(
        fleet=fleet,
        machine_id=machine_id,
        failure=failure.value,
        reason=said,
        banned_by=by,
        banned_at=now,
        expires_at=expires_at,
    )
    tx.add(new)
    tx.flush()
    return _as_ban(max([*known, new], key=_end))


def bans(tx: Session, fleet: str, *, now: datetime) -> tuple[Ban, ...]:
    """Those in force, newest first; of several on one machine the one that ends last, for that is how long it is
    avoided."""
    return tuple(map(_as_ban, in_force(tx, fleet, now=now)))


def in_force(tx: Session, fleet: str, *, now: datetime) -> list[HostBan]:
    """The same as rows."""
    holding = {row.machine_id: row for row in sorted(_in_force(tx, fleet, now), key=_end)}
    return sorted(holding.values(), key=lambda row: row.id, reverse=True)


def lift(tx: Session, fleet: str, machine_id: int, *, by: str, now: datetime) -> str | None:
    """End every ban of a machine that is in force; why there is nothing to lift, or None."""
    lifted = [row for row in _in_force(tx, fleet, now) if row.machine_id == machine_id]
    if not lifted:
        return f"machine {machine_id} of fleet {fleet} is not banned"
    for row in lifted:
        row.lifted_by, row.lifted_at = by, now
    audit.note(tx, fleet, who=by, what="host", text=f"lifted the ban of machine {machine_id}", now=now)
    return None


def had_a_box(tx: Session, fleet: str, machine_id: int) -> bool:
    """Is, or was, a box of the fleet on this machine?"""
    box = select(tables.Box.key).where(tables.Box.fleet == fleet, tables.Box.machine_id == machine_id)
    return tx.execute(select(box.exists())).scalar_one()


def banned_by(tx: Session, fleet: str, by: str) -> int:
    """How often this voice has banned, whatever became of it."""
    return tx.execute(
        select(func.count()).select_from(HostBan).where(HostBan.fleet == fleet, HostBan.banned_by == by)
    ).scalar_one()


def _in_force(tx: Session, fleet: str, now: datetime) -> Sequence[HostBan]:
    return tx.scalars(select(HostBan).where(_holds(fleet, now)).order_by(col(HostBan.id))).all()


def _holds(fleet: str, now: datetime) -> ColumnElement[bool]:
    return and_(HostBan.fleet == fleet, col(HostBan.lifted_at).is_(None), HostBan.expires_at > now)


def _end(row: HostBan) -> datetime:
    return row.expires_at


def _as_ban(row: HostBan) -> Ban:
    return Ban(
        machine_id=row.machine_id,
        failure=Failure(row.failure),
        reason=row.reason,
        banned_by=row.banned_by,
        banned_at=row.banned_at,
        expires_at=row.expires_at,
    )


def _brief(reason: str) -> str:
    line = one_line(reason)
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


# --- what machines have shown ----------------------------------------------------------------------------------------


def failed(
    tx: Session,
    fleet: str,
    machine_id: int,
    num_gpus: int,
    gpu_name: str,
    failure: Failure,
    reason: str,
    *,
    by: str,
    bounds: BanBounds,
    now: datetime,
) -> Ban | NotBanned:
    """A box failed there: count it and avoid the machine. To be called once for each failure."""
    banned = ban(tx, fleet, machine_id, failure, reason, by=by, bounds=bounds, now=now)
    if isinstance(banned, Ban):
        host = _host(tx, fleet, machine_id, num_gpus, gpu_name)
        host.failures = {**host.failures, failure.value: host.failures.get(failure.value, 0) + 1}
        host.last_failure, host.failed_at = _brief(reason), now
    return banned


def measured(
    tx: Session, fleet: str, machine_id: int, num_gpus: int, gpu_name: str, proofs_per_hour: float, *, now: datetime
) -> str | None:
    """A box there measured itself: keep the best. Why it was not kept, or None; a lower rate is no reason."""
    most = session.most_proofs_per_hour_per_gpu(tx, fleet)
    problem = no_machine(machine_id) or no_rate(proofs_per_hour, num_gpus, most_per_gpu=most)
    if problem is not None:
        return problem
    host = _host(tx, fleet, machine_id, num_gpus, gpu_name)
    if host.best_proofs_per_hour is None or proofs_per_hour >= host.best_proofs_per_hour:
        host.best_proofs_per_hour, host.measured_at = proofs_per_hour, now
    return None


def benchmarks(tx: Session, fleet: str) -> tuple[Benchmark, ...]:
    """Of every machine that was measured, for each number of GPUs."""
    rows = tx.execute(
        select(Host.machine_id, Host.num_gpus, Host.best_proofs_per_hour, Host.measured_at)
        .where(Host.fleet == fleet, col(Host.best_proofs_per_hour).is_not(None))
        .order_by(col(Host.machine_id), col(Host.num_gpus))
    )
    return tuple(
        Benchmark(machine_id=machine_id, num_gpus=num_gpus, proofs_per_hour=rate, measured_at=measured_at)
        for machine_id, num_gpus, rate, measured_at in rows
    )


def _host(tx: Session, fleet: str, machine_id: int, num_gpus: int, gpu_name: str) -> Host:
    """Its row, held until the commit: of two boxes on one machine both may speak at once. A machine that was given
    other GPUs has not been measured."""
    session.begin(tx, fleet)
    new = insert(Host).values(fleet=fleet, machine_id=machine_id, num_gpus=num_gpus, gpu_name=gpu_name)
    tx.execute(new.on_conflict_do_nothing())
    host = tx.get_one(Host, (fleet, machine_id, num_gpus), with_for_update=True)
    if gpu_name not in ("", host.gpu_name):
        host.gpu_name, host.best_proofs_per_hour, host.measured_at = gpu_name, None, None
    return host


# --- the breaker of renting ------------------------------------------------------------------------------------------


def rent_failed(tx: Session, fleet: str, reason: str, *, most: int, now: datetime) -> str | None:
    """A rent came to nothing, be it at once or because its box never did any work. The breaker's sentence where renting
    is paused now, else None.

    A single bad host is banned; `most` failures in a row are something else, such as an image that starts nowhere, and
    each further try costs money. So a person is told, and renting waits for one. Who is out of credit has no failure of
    renting: that is no matter of this count.
    """
    state = session.state(tx, fleet)
    state.rent_failures += 1
    if state.rent_failures >= most:
        why = f"{state.rent_failures} rents in a row came to nothing, the last one: {_brief(reason)}"
        _open_breaker(tx, fleet, why, now)
    return state.rent_breaker or None


def no_credit_is_given(tx: Session, fleet: str, reason: str, *, now: datetime) -> None:
    """The provider refuses a rent for lack of credit, whatever the account shows: no other machine would be given
    either. Nobody is blamed; a person is told, and renting waits for one."""
    _open_breaker(tx, fleet, f"add credit, for the provider gives none: {_brief(reason)}", now)


def _open_breaker(tx: Session, fleet: str, why: str, now: datetime) -> None:
    """Told once; an open one keeps its reason."""
    state = session.state(tx, fleet)
    if state.rent_breaker:
        return
    state.rent_breaker = why
    text = f"Renting is paused: {why}. `fleet-agent resume --scale-out` lets it go on."
    notices.give(tx, fleet, key=f"rent breaker {utc(now)}", text=text, now=now)
    audit.note(tx, fleet, who="fleet-agent", what="rent breaker", text=f"opened: {why}", now=now)


def rent_worked(tx: Session, fleet: str) -> None:
    """A box came as far as its work: the failures before it were no row. To be called then and not at the provider's
    yes, which says nothing of the box. An open breaker stays open."""
    session.state(tx, fleet).rent_failures = 0


def close_breaker(tx: Session, fleet: str, *, who: str, now: datetime) -> None:
    """A person lets renting go on; the count begins anew. The caller announces it, as all that a person sets."""
    state = session.state(tx, fleet)
    if state.rent_breaker:
        audit.note(tx, fleet, who=who, what="rent breaker", text=f"closed: {state.rent_breaker}", now=now)
    state.rent_breaker, state.rent_failures = "", 0
