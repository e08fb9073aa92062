"""The life of a run: opened, alive, closed — or failed, interrupted, superseded.

The fence is `session_state.current_run_id`. It is taken at opening and given up at the end, and whatever a run does
that may lead to an effect reads it first, under the exclusive lock of the fleet: an older run that is still breathing
somewhere can then no longer act, whatever it believes. Every function here is called within `Database.exclusive`,
except `renew`, `about_to_ask` and `spend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.actions import Effect, ScheduleNextCheck, SetNotes, Tool
from fleet_agent.domain.ledger import Listing, Ruled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import Ruling
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Closing,
    Message,
    MessageKind,
    NothingToDo,
    Run,
    RunRequest,
    Usage,
    reason_of,
)
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.verdict import NOTHING, Verdict
from fleet_agent.domain.wakes import NewWake
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import claims, conversation, ledger, session, tables, wakes
from fleet_agent.store.database import notify_bell, real_now
from fleet_agent.store.installation import installation, timeline_of
from fleet_agent.store.tables import RunStatus, SessionState, WakeStatus

# --- opening ---------------------------------------------------------------------------------------------------------


def open_run(tx: Session, request: RunRequest, *, now: datetime) -> Run | NothingToDo:
    """Count up, take the fence, and end what older runs left open: one transaction.

    A flow run that finds nothing to do opens no run and costs no number.
    """
    state = session.state(tx, request.fleet)
    earlier = _runs_of_flow_run(tx, request.flow_run_id)
    if any(row.attempt == request.attempt for row in earlier):
        return NothingToDo(reason=f"this attempt of the flow run was opened before, as run #{earlier[-1].run_id}")
    trigger = _trigger_of(request, earlier)
    reason = _nothing_to_do(tx, request, trigger, now)
    if reason is not None:
        return NothingToDo(reason=reason)
    _interrupt_open_runs(tx, request.fleet, now)
    run_id = _count_up(tx, request.fleet)
    row = tables.Run(
        fleet=request.fleet,
        run_id=run_id,
        flow_run_id=request.flow_run_id,
        attempt=request.attempt,
        worker_id=request.worker_id,
        trigger=trigger.value,
        epoch=state.epoch,
        opened_at=now,
        seen_at=real_now(tx),
    )
    tx.add(row)
    tx.flush()
    state.current_run_id = run_id
    return Run(
        run_id=run_id,
        fleet=request.fleet,
        epoch=state.epoch,
        trigger=trigger,
        force_review=request.force_review,
        opened_at=now,
    )


def _runs_of_flow_run(tx: Session, flow_run_id: str) -> Sequence[tables.Run]:
    return tx.scalars(
        select(tables.Run).where(tables.Run.flow_run_id == flow_run_id).order_by(col(tables.Run.attempt))
    ).all()


def _trigger_of(request: RunRequest, earlier: Sequence[tables.Run]) -> Trigger:
    """Who retries a flow run that had closed wants a run now, whatever once triggered it."""
    if any(row.status == RunStatus.CLOSED for row in earlier):
        return Trigger.MANUAL
    return request.trigger


def _nothing_to_do(tx: Session, request: RunRequest, trigger: Trigger, now: datetime) -> str | None:
    match trigger:
        case Trigger.MANUAL:
            return None
        case Trigger.HEARTBEAT:
            since = _closed_since(tx, request)
            return None if since is None else f"run #{since} was opened after this heartbeat was due, and has closed"
        case Trigger.WAKE:
            return _wake_is_over(tx, request)
        case Trigger.EVENT:
            return None if claims.something_urgent_waits(tx, request.fleet, now=now) else "no event and no wake waits"


def _closed_since(tx: Session, request: RunRequest) -> int | None:
    """A closed run that began after the heartbeat was due: heartbeats that piled up need no run of their own."""
    if request.due is None:
        return None
    due = timeline_of(installation(tx)).business(request.due)
    return tx.scalars(
        select(func.max(tables.Run.run_id)).where(
            tables.Run.fleet == request.fleet,
            tables.Run.status == RunStatus.CLOSED,
            tables.Run.opened_at > due,
        )
    ).one()


def _wake_is_over(tx: Session, request: RunRequest) -> str | None:
    wake = None if request.wake_id is None else tx.get(tables.Wake, request.wake_id)
    if wake is None or wake.fleet != request.fleet:
        return "there is no such wake"
    return None if wake.status == WakeStatus.PENDING else f"wake {wake.id} is {wake.status} already"


def _interrupt_open_runs(tx: Session, fleet: str, now: datetime) -> None:
    """Whoever is still open is dead, or will find the fence gone. What it held waits again."""
    exit_reason = "found open by the next run"
    tx.execute(
        update(tables.Run)
        .where(and_(tables.Run.fleet == fleet, tables.Run.status == RunStatus.OPEN))
        .values(status=RunStatus.INTERRUPTED, closed_at=now, exit_reason=exit_reason)
    )
    ledger.expire_intents(tx, fleet, now=now)
    claims.release(tx, fleet, exit_reason=exit_reason, now=now)


def _count_up(tx: Session, fleet: str) -> int:
    """The only source of run ids. Deriving one from the runs there are would repeat ids after any deletion."""
    return tx.execute(
        update(SessionState)
        .where(col(SessionState.fleet) == fleet)
        .values(run_counter=col(SessionState.run_counter) + 1)
        .returning(col(SessionState.run_counter))
    ).scalar_one()


# --- while it lasts --------------------------------------------------------------------------------------------------


def hold_fence(tx: Session, run: Run) -> tables.Run:
    """The run's row, if it may still act. Raises RunSuperseded."""
    holder = session.state(tx, run.fleet).current_run_id
    if holder != run.run_id:
        raise _superseded(run, holder)
    return tx.get_one(tables.Run, (run.fleet, run.run_id))


def renew(tx: Session, run: Run) -> None:
    """A sign of life. Raises RunSuperseded."""
    fence = select(SessionState.fleet).where(SessionState.fleet == run.fleet, SessionState.current_run_id == run.run_id)
    alive = tx.execute(
        update(tables.Run)
        .where(_is(run), fence.exists())
        .values(seen_at=func.clock_timestamp())
        .returning(col(tables.Run.run_id))
    ).first()
    if alive is None:
        raise _superseded(run, session.state(tx, run.fleet).current_run_id)


def about_to_ask(tx: Session, run: Run, body: Mapping[str, Any]) -> None:
    """Keep what is sent to the model. Raises RunSuperseded."""
    renew(tx, run)
    conversation.keep_request(tx, run, body)


def spend(tx: Session, run: Run, usage: Usage) -> None:
    """Add to what the run used. Never fenced: it was used."""
    tx.execute(
        update(tables.Run)
        .where(_is(run))
        .values(
            tokens_in=col(tables.Run.tokens_in) + usage.tokens_in,
            tokens_out=col(tables.Run.tokens_out) + usage.tokens_out,
            tokens_cached=col(tables.Run.tokens_cached) + usage.tokens_cached,
            cost_usd=col(tables.Run.cost_usd) + usage.cost_usd,
        )
    )


def record_reply(
    tx: Session,
    run: Run,
    reply: Message,
    *,
    usage: Usage,
    effects: Sequence[tuple[str, Effect]],
    observation: Observation,
    listing: Listing,
    now: datetime,
) -> tuple[Ruled, ...]:
    """The reply, what it cost, and the rulings and intents of its effects. Raises RunSuperseded."""
    row = hold_fence(tx, run)
    row.steps += 1
    conversation.append(tx, run, [reply], now=now)
    spend(tx, run, usage)
    return ledger.judge_and_store(tx, run, effects, step=reply.step, observation=observation, listing=listing, now=now)


def mark_sent(tx: Session, run: Run, key: str, *, send_by: timedelta, now: datetime) -> Ruling:
    """The last look before a call, see `ledger.mark_sent`. Raises RunSuperseded."""
    hold_fence(tx, run)
    return ledger.mark_sent(tx, run.fleet, key, send_by=send_by, now=now)


def write(tx: Session, run: Run, tool: Tool, *, now: datetime) -> str:
    """Carry out a tool that changes only our database; the sentence is for the model. Raises RunSuperseded."""
    row = hold_fence(tx, run)
    match tool:
        case ScheduleNextCheck(minutes=minutes, reason=reason):
            answer = wakes.ask(tx, run.fleet, timedelta(minutes=minutes), reason, asked_by="agent", now=now)
            row.wrote = row.wrote or isinstance(answer, NewWake)
            return answer.answer
        case SetNotes(text=text):
            session.set_notes(tx, run.fleet, text)
            row.wrote = True
            return "Notes replaced."
        case _:
            raise AssertionError(f"{tool.name} writes nothing that the store knows of")


def collect(tx: Session, run: Run, *, turn: int, now: datetime) -> Claimed:
    """Claim what waits; a human's words enter the log with the claim. Raises RunSuperseded."""
    return _claim(tx, run, hold_fence(tx, run), turn=turn, now=now)


def _claim(tx: Session, run: Run, row: tables.Run, *, turn: int, now: datetime) -> Claimed:
    claimed = claims.claim(tx, run, now=now)
    row.reason = row.reason or reason_of(claimed)
    words = [
        Message(turn=turn, step=row.steps, role="user", kind=MessageKind.HUMAN, content=event.text)
        for event in claimed.events
        if event.kind is Kind.MESSAGE
    ]
    conversation.append(tx, run, words, now=now)
    return claimed


# --- the end ---------------------------------------------------------------------------------------------------------


def close_or_go_on(tx: Session, run: Run, closing: Closing, *, may_go_on: bool, now: datetime) -> Closed | Claimed:
    """End the run, or claim what came meanwhile and go on. Posts wait for this commit, so nothing falls in between.

    What the model was never shown waits again, for the next turn or the next run. Raises RunSuperseded.
    """
    row = hold_fence(tx, run)
    row.turns += 1
    row.verdict = (_verdict_of(row) | closing.verdict).model_dump()
    row.summary = "\n".join(filter(None, [row.summary, closing.summary]))
    claims.put_back(tx, run, closing.unseen, closing.unseen_wakes)
    if may_go_on and claims.something_urgent_waits(tx, run.fleet, now=now):
        more = _claim(tx, run, row, turn=row.turns + 1, now=now)
        if more.events or more.wakes:
            return more
    return _close(tx, run, row, closing, now)


def _close(tx: Session, run: Run, row: tables.Run, closing: Closing, now: datetime) -> Closed:
    acted = ledger.has_effect(tx, run)
    verdict = _verdict_of(row) | Verdict(action=acted, state_changed=False)
    row.verdict = verdict.model_dump()
    row.no_op = verdict == NOTHING and not row.wrote and not claims.human_message_claimed(tx, run)
    row.in_prompt = not row.no_op
    row.quiet = closing.quiet
    claims.consume(tx, run)
    state = session.state(tx, run.fleet)
    state.last_digest = closing.observation.digest()
    if closing.asked_model:
        state.last_review_at = now
    _end(tx, run, row, RunStatus.CLOSED, closing.exit_reason, now)
    return Closed(
        verdict=verdict,
        no_op=row.no_op,
        usage=Usage(
            tokens_in=row.tokens_in, tokens_out=row.tokens_out, tokens_cached=row.tokens_cached, cost_usd=row.cost_usd
        ),
        turns=row.turns,
        summary=row.summary,
        exit_reason=row.exit_reason,
    )


def fail_run(tx: Session, run: Run, *, exit_reason: str, summary: str, now: datetime) -> None:
    """End the run as failed; what it held waits again. A run that has ended already, in whatever way, is left alone."""
    row = tx.get_one(tables.Run, (run.fleet, run.run_id))
    if row.status != RunStatus.OPEN:
        return
    row.summary = "\n".join(filter(None, [row.summary, summary]))
    claims.release(tx, run.fleet, exit_reason=exit_reason, now=now)
    _end(tx, run, row, RunStatus.FAILED, exit_reason, now)


def mark_superseded(tx: Session, run: Run) -> None:
    """The run noticed itself that the fence is gone; before, it only seemed dead."""
    row = tx.get_one(tables.Run, (run.fleet, run.run_id))
    if row.status == RunStatus.INTERRUPTED:
        row.status = RunStatus.SUPERSEDED.value


def _end(tx: Session, run: Run, row: tables.Run, status: RunStatus, exit_reason: str, now: datetime) -> None:
    """What every end has in common: no intent outlives its run, the fence is free, and the bell hears what waits."""
    ledger.expire_intents(tx, run.fleet, now=now)
    row.status = status.value
    row.exit_reason = exit_reason
    row.closed_at = now
    row.seen_at = real_now(tx)
    session.state(tx, run.fleet).current_run_id = None
    tx.flush()
    if claims.something_urgent_waits(tx, run.fleet, now=now):
        notify_bell(tx, run.fleet)


def _is(run: Run) -> ColumnElement[bool]:
    return and_(tables.Run.fleet == run.fleet, tables.Run.run_id == run.run_id)


def _verdict_of(row: tables.Run) -> Verdict:
    return Verdict.model_validate(row.verdict) if row.verdict else NOTHING


def _superseded(run: Run, holder: int | None) -> RunSuperseded:
    now_held = "no run" if holder is None else f"run #{holder}"
    return RunSuperseded(f"run #{run.run_id} of fleet {run.fleet} no longer holds the fence, {now_held} does")
