"""The life of a run: opened, alive, closed — or failed, interrupted, superseded.

The fence is `session_state.current_run_id`. It is taken at opening and given up at the end, and whatever a run does
that may lead to an effect reads it first, under the exclusive lock of the fleet: an older run that is still breathing
somewhere can then no longer act, whatever it believes. A retry of a flow run goes on with the run that the attempt
before it left open, under the same number; then the run's `attempt` is the second half of the fence.

Every function here is called within `Database.exclusive`, except `renew`, `about_to_ask`, `record` and `spend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.actions import BanHost, Effect, ScheduleNextCheck, SetNotes, Tool
from fleet_agent.domain.exits import FOUND_OPEN
from fleet_agent.domain.hosts import HELD_BACK, NotBanned, class_for_a_run, why_a_run_may_not_ban
from fleet_agent.domain.ledger import Listing, Ruled
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.rules import Actor, Ruling
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Closing,
    Meanwhile,
    Message,
    MessageKind,
    ModelRequest,
    NothingToDo,
    Progress,
    Result,
    Run,
    RunRequest,
    Usage,
    reason_of,
)
from fleet_agent.domain.show import utc
from fleet_agent.domain.spending import Booking
from fleet_agent.domain.timeline import CLOCKS_AGREE_WITHIN
from fleet_agent.domain.triggers import Kind, Trigger
from fleet_agent.domain.verdict import NOTHING, Verdict
from fleet_agent.domain.wakes import NewWake
from fleet_agent.errors import RunSuperseded
from fleet_agent.store import (
    actions,
    claims,
    conversation,
    hosts,
    ledger,
    notices,
    session,
    spending,
    tables,
    taints,
    wakes,
)
from fleet_agent.store.actions import Wanted
from fleet_agent.store.database import notify_bell, real_now
from fleet_agent.store.installation import installation, timeline_of
from fleet_agent.store.situation import Asker
from fleet_agent.store.tables import LeftOut, RunStatus, SessionState, WakeStatus

# --- opening ---------------------------------------------------------------------------------------------------------

RESUME_WITHIN: Final = timedelta(minutes=10)
"""Real time since the last sign of life of a run that a retry may go on with; what it saw is too old afterwards. The
sign is `seen_at` and not the time of its last message: messages carry business time, and every write of an open run is
within five seconds of a sign."""

EARLY: Final = timedelta(seconds=30)
"""Real time by which the flow run of a wake may come before its wake is due: two machines' clocks differ. It takes
its wake all the same; before that it finds nothing to do, and the wake is rung for when it is overdue."""


def open_run(tx: Session, request: RunRequest, *, now: datetime) -> Run | NothingToDo:
    """Count up, take the fence, and end what older runs left open: one transaction.

    A flow run that finds nothing to do opens no run and costs no number; a retry goes on with the run of the attempt
    before it where it still can.
    """
    state = session.state(tx, request.fleet)
    earlier = _runs_of_flow_run(tx, request.flow_run_id)
    if any(row.attempt >= request.attempt for row in earlier):
        return NothingToDo(reason=f"this attempt of the flow run was opened before, as run #{earlier[-1].run_id}")
    left_open = _that_can_be_resumed(tx, earlier, state)
    if left_open is not None:
        return _resume(tx, left_open, request)
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
    _raise_alarm_if_too_many(tx, request.fleet, now)
    return _opened(row, request, resumed=False)


def _that_can_be_resumed(tx: Session, earlier: Sequence[tables.Run], state: SessionState) -> tables.Run | None:
    """The open run that an earlier attempt of this flow run left, while the fence is its own and it is young enough."""
    for row in earlier:
        its_fence = row.fleet == state.fleet and row.run_id == state.current_run_id
        if row.status == RunStatus.OPEN and its_fence and abs(real_now(tx) - row.seen_at) < RESUME_WITHIN:
            return row
    return None


def _resume(tx: Session, row: tables.Run, request: RunRequest) -> Run:
    """From here on the older attempt, should it still breathe, finds the fence gone."""
    row.attempt = request.attempt
    row.worker_id = request.worker_id
    row.seen_at = real_now(tx)
    return _opened(row, request, resumed=True)


def _opened(row: tables.Run, request: RunRequest, *, resumed: bool) -> Run:
    return Run(
        run_id=row.run_id,
        fleet=row.fleet,
        epoch=row.epoch,
        trigger=Trigger(row.trigger),
        force_review=request.force_review,
        opened_at=row.opened_at,
        attempt=row.attempt,
        resumed=resumed,
        wake_id=request.wake_id,
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
            since = _closed_since(tx, request, now)
            return None if since is None else f"run #{since} was opened after this heartbeat was due, and has closed"
        case Trigger.WAKE:
            return _nothing_to_wake_for(tx, request, now)
        case Trigger.EVENT:
            return None if claims.something_urgent_waits(tx, request.fleet, now=now) else "no event and no wake waits"


def _closed_since(tx: Session, request: RunRequest, now: datetime) -> int | None:
    """A closed run that began after the heartbeat was due: heartbeats that piled up need no run of their own. One that
    began in a time to come says nothing: the clock was set back since."""
    if request.due is None:
        return None
    due = timeline_of(installation(tx)).business(request.due)
    return tx.scalars(
        select(func.max(tables.Run.run_id)).where(
            tables.Run.fleet == request.fleet,
            tables.Run.status == RunStatus.CLOSED,
            tables.Run.opened_at > due,
            tables.Run.opened_at <= now + CLOCKS_AGREE_WITHIN,
        )
    ).one()


def _nothing_to_wake_for(tx: Session, request: RunRequest, now: datetime) -> str | None:
    wake = None if request.wake_id is None else tx.get(tables.Wake, request.wake_id)
    if wake is None or wake.fleet != request.fleet:
        return "there is no such wake"
    if wake.status != WakeStatus.PENDING:
        return f"wake {wake.id} is {wake.status} already"
    if wake.wake_at > now + _early(tx):
        return f"wake {wake.id} is due only at {utc(wake.wake_at)}"
    if not claims.wake_may_be_taken(tx, request.fleet, wake.id, now=now + _early(tx)):
        return f"wake {wake.id} is in the hands of run #{wake.claimed_by_run}"
    return None


def _early(tx: Session) -> timedelta:
    """In business time."""
    return EARLY * installation(tx).clock_speed


def _interrupt_open_runs(tx: Session, fleet: str, now: datetime) -> None:
    """Whoever is still open is dead, or will find the fence gone. What it held waits again."""
    exit_reason = FOUND_OPEN
    for row in tx.scalars(
        select(tables.Run).where(and_(tables.Run.fleet == fleet, tables.Run.status == RunStatus.OPEN))
    ):
        row.status = RunStatus.INTERRUPTED.value
        row.closed_at = now
        row.exit_reason = exit_reason
        _leave_out(row, _nothing_done(tx, row))
    tx.flush()
    actions.expire_intents(tx, fleet, now=now)
    claims.release(tx, fleet, exit_reason=exit_reason, now=now)


def _count_up(tx: Session, fleet: str) -> int:
    """The only source of run ids. Deriving one from the runs there are would repeat ids after any deletion."""
    return tx.execute(
        update(SessionState)
        .where(col(SessionState.fleet) == fleet)
        .values(run_counter=col(SessionState.run_counter) + 1)
        .returning(col(SessionState.run_counter))
    ).scalar_one()


def _raise_alarm_if_too_many(tx: Session, fleet: str, now: datetime) -> None:
    """More runs in an hour than the operator expects are told, once an hour, and held back never: each had a cause."""
    most = session.most_runs_an_hour(tx, fleet)
    opened = tx.scalars(
        select(func.count())
        .select_from(tables.Run)
        .where(tables.Run.fleet == fleet, tables.Run.opened_at > now - timedelta(hours=1), tables.Run.opened_at <= now)
    ).one()
    if opened > most:
        text = f"{opened} runs were opened in the last hour, more than run.max_opened_per_hour={most}"
        notices.give(tx, fleet, key=f"runs-per-hour:{now:%Y-%m-%dT%H}", text=text, now=now)


# --- while it lasts --------------------------------------------------------------------------------------------------


def hold_fence(tx: Session, run: Run) -> tables.Run:
    """The run's row, if this attempt of it may still act. Raises RunSuperseded."""
    holder = session.state(tx, run.fleet).current_run_id
    if holder != run.run_id:
        raise _superseded(run, holder)
    row = tx.get_one(tables.Run, (run.fleet, run.run_id))
    if row.attempt != run.attempt:
        raise _superseded(run, holder)
    return row


def renew(tx: Session, run: Run) -> None:
    """A sign of life. Raises RunSuperseded.

    The condition on the run's own row is what a retry or the next run changes: whoever waited for that row sees the
    change, and nothing that this transaction writes is committed beside it.
    """
    fence = select(SessionState.fleet).where(SessionState.fleet == run.fleet, SessionState.current_run_id == run.run_id)
    alive = tx.execute(
        update(tables.Run)
        .where(and_(_is(run), tables.Run.status == RunStatus.OPEN, tables.Run.attempt == run.attempt), fence.exists())
        .values(seen_at=func.clock_timestamp())
        .returning(col(tables.Run.run_id))
    ).first()
    if alive is None:
        raise _superseded(run, session.state(tx, run.fleet).current_run_id)


def recall(tx: Session, run: Run, observation: Observation, *, now: datetime) -> Progress:
    """How far the attempt before this one had come; what it intended and did not send is judged anew by this look.
    Raises RunSuperseded."""
    row = hold_fence(tx, run)
    said = conversation.said(tx, run.fleet, run.run_id)
    replies = [message for message in said if message.role == "assistant"]
    return Progress(
        turn=row.turns + 1,
        step=row.steps,
        usage=_usage_of(row),
        claimed=claims.held(tx, run),
        said=said,
        ruled=actions.effects_of(tx, run, [call.id for call in replies[-1].calls], observation, now=now)
        if replies
        else (),
    )


def meanwhile(tx: Session, run: Run, *, turn: int, now: datetime) -> Meanwhile:
    """Claim what is urgent and came since. A session that was reset gets nothing more. Raises RunSuperseded."""
    row = hold_fence(tx, run)
    if session.state(tx, run.fleet).epoch != run.epoch:
        return Meanwhile(session_was_reset=True)
    return Meanwhile(claimed=_noted(tx, run, row, claims.claim_urgent(tx, run), turn=turn, now=now))


def about_to_ask(tx: Session, run: Run, request: ModelRequest, *, now: datetime) -> Booking:
    """Enter in the books what the request may cost, keep it, what it left out of older runs, and whether it taints.

    Raises RunSuperseded, and BudgetSpent where it must not be sent."""
    renew(tx, run)
    booking = spending.book(tx, run, request.body, request.model, request.most, now=now)
    _use(tx, run, request.most)
    if request.taint is not None:
        taints.taint_run(tx, run, request.taint)
    conversation.keep_request(tx, run, request.body)
    conversation.keep_compaction(tx, run, request.compaction)
    return booking


def record(tx: Session, run: Run, message: Message, *, now: datetime) -> None:
    """Append to the log. Raises RunSuperseded."""
    renew(tx, run)
    conversation.append(tx, run, [message], now=now)


def spend(tx: Session, run: Run, booking: Booking, usage: Usage | None) -> None:
    """In the place of what was booked: what a request without a reply did cost, None where it never left. Never fenced:
    it was used."""
    spending.put_right(tx, run, booking, usage)
    _use(tx, run, (usage or Usage()) - booking.most)


def _use(tx: Session, run: Run, usage: Usage) -> None:
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
    booking: Booking,
    usage: Usage,
    effects: Sequence[tuple[str, Effect]],
    observation: Observation,
    listing: Listing,
    now: datetime,
) -> tuple[Ruled, ...]:
    """The reply, what it did cost in the place of what was booked, and the rulings and intents of its effects. Raises
    RunSuperseded: then the booking stays."""
    row = hold_fence(tx, run)
    row.steps += 1
    conversation.append(tx, run, [reply], now=now)
    spending.put_down(tx, run, booking, usage, reply)
    _use(tx, run, usage - booking.most)
    asker = Asker(fleet=run.fleet, actor=Actor.AGENT, run=run)
    wanted = [
        Wanted(action, key=f"r{run.run_id}-s{reply.step}-c{number}", call_id=call_id)
        for number, (call_id, action) in enumerate(effects, start=1)
    ]
    return actions.propose(tx, asker, wanted, observation=observation, listing=listing, now=now)


def carry_out_approved(
    tx: Session,
    run: Run,
    key: str,
    action: Effect,
    *,
    observation: Observation,
    listing: Listing,
    now: datetime,
) -> Ruled:
    """See `actions.carry_out_approved`. Raises RunSuperseded."""
    hold_fence(tx, run)
    return actions.carry_out_approved(tx, run, key, action=action, observation=observation, listing=listing, now=now)


def mark_sent(tx: Session, run: Run, key: str, *, send_by: timedelta, hook_digest: str | None, now: datetime) -> Ruling:
    """The last look before a call, see `actions.mark_sent`. Raises RunSuperseded."""
    hold_fence(tx, run)
    return actions.mark_sent(tx, run.fleet, key, send_by=send_by, hook_digest=hook_digest, now=now, run=run)


def drop(tx: Session, run: Run, key: str, why: str, *, now: datetime) -> None:
    """See `actions.drop`. Raises RunSuperseded."""
    hold_fence(tx, run)
    actions.drop(tx, key, why, now=now)


def write(tx: Session, run: Run, tool: Tool, *, answer: Message | None, now: datetime) -> Result:
    """Carry out a tool that changes only our database; what it came to enters the log as what `answer` says. Raises
    RunSuperseded."""
    result = _written(tx, run, hold_fence(tx, run), tool, now)
    if answer is not None:
        conversation.append(tx, run, [answer.telling(result)], now=now)
    return result


def _written(tx: Session, run: Run, row: tables.Run, tool: Tool, now: datetime) -> Result:
    match tool:
        case ScheduleNextCheck(reason=reason):
            answer = wakes.ask(
                tx, run.fleet, tool.after(now), reason, asked_by="agent", asked_by_run=run.run_id, now=now
            )
            stored = isinstance(answer, NewWake)
            row.wrote = row.wrote or stored
            return Result(sentence=answer.answer, failed=not stored)
        case SetNotes(text=text):
            session.set_notes(tx, run, text, now=now)
            row.wrote = True
            return Result(sentence="Notes replaced.")
        case BanHost():
            result = _banned(tx, run, row, tool, now)
            row.wrote = row.wrote or not result.failed
            return result
        case _:
            raise AssertionError(f"{tool.name} writes nothing that the store knows of")


def _banned(tx: Session, run: Run, row: tables.Run, wanted: BanHost, now: datetime) -> Result:
    """The answer is in our own words and none of the reason, which a stranger may have led."""
    policy, by = session.policy(tx, run.fleet), f"run #{run.run_id}"
    refusal = why_a_run_may_not_ban(
        wanted.machine_id,
        had_a_box=hosts.had_a_box(tx, run.fleet, wanted.machine_id),
        banned_so_far=hosts.banned_by(tx, run.fleet, by),
        most=policy.limits.max_bans_per_run,
    )
    if refusal is not None:
        return Result(sentence=refusal, failed=True)
    failure = class_for_a_run(wanted.failure, tainted=row.tainted_until is not None)
    ban = hosts.ban(tx, run.fleet, wanted.machine_id, failure, wanted.reason, by=by, bounds=policy.bans, now=now)
    if isinstance(ban, NotBanned):
        return Result(sentence=f"Nothing banned: {ban.sentence}.", failed=True)
    held_back = "" if failure is wanted.failure else HELD_BACK
    return Result(
        sentence=f"Machine {ban.machine_id} is not rented until {utc(ban.expires_at)} ({ban.failure.value}).{held_back}"
    )


def collect(tx: Session, run: Run, *, turn: int, now: datetime) -> Claimed:
    """Claim what waits; a human's words enter the log with the claim. Raises RunSuperseded."""
    row = hold_fence(tx, run)
    return _noted(tx, run, row, claims.claim(tx, run, now=now, early=_early(tx)), turn=turn, now=now)


def _noted(tx: Session, run: Run, row: tables.Run, claimed: Claimed, *, turn: int, now: datetime) -> Claimed:
    """What was just claimed, with its mark on the run and its words in the log."""
    if not row.reason:
        row.reason, row.reason_tainted = reason_of(claimed), claimed.is_tainted()
    words = [
        Message(turn=turn, step=row.steps, role="user", kind=MessageKind.HUMAN, content=event.text, events=(event.id,))
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
    told = "\n".join(filter(None, [row.summary, closing.summary]))
    claims.put_back(tx, run, closing.unseen, closing.unseen_wakes)
    if may_go_on and claims.something_urgent_waits(tx, run.fleet, now=now):
        more = _noted(tx, run, row, claims.claim(tx, run, now=now), turn=row.turns + 1, now=now)
        if more:
            row.summary = row.summary if closing.quiet else told  # that nobody was asked is about to be untrue
            return more
    row.summary = told
    return _close(tx, run, row, closing, now)


def _close(tx: Session, run: Run, row: tables.Run, closing: Closing, now: datetime) -> Closed:
    acted = ledger.has_effect(tx, run.fleet, run.run_id)
    verdict = _verdict_of(row) | Verdict(action=acted, state_changed=False)
    row.verdict = verdict.model_dump()
    row.no_op = verdict == NOTHING and not row.wrote and not claims.human_message_claimed(tx, run)
    row.quiet = closing.quiet
    row.reason = row.reason or closing.reason
    _leave_out(row, LeftOut.QUIET if row.quiet and row.no_op else LeftOut.NO_OP if row.no_op else None)
    claims.consume(tx, run)
    state = session.state(tx, run.fleet)
    if closing.quiet or closing.asked_model:  # else nobody has looked at it: the next heartbeat is not quiet
        state.last_bands = closing.bands
    if closing.asked_model:
        state.last_review_at = now
    _end(tx, run, row, RunStatus.CLOSED, closing.exit_reason, now)
    return Closed(
        verdict=verdict,
        no_op=row.no_op,
        usage=_usage_of(row),
        turns=row.turns,
        summary=row.summary,
        exit_reason=row.exit_reason,
        tainted=taints.of(row) is not None,
    )


def fail_run(
    tx: Session, run: Run, *, exit_reason: str, summary: str, now: datetime, reason: str = "", tell: bool = False
) -> None:
    """End the run as failed; what it held waits again. A run that has ended already, in whatever way, is left alone,
    and so is one that a later attempt has taken over. `reason` is why it happened, where nothing it claimed says it.

    `tell`: a person must hear of it, each day once of the same reason, for heartbeats go on. The cause is no part of
    the key: there are a server's own words in it, which may be others each time.
    """
    row = tx.get_one(tables.Run, (run.fleet, run.run_id))
    if row.status != RunStatus.OPEN or row.attempt != run.attempt:
        return
    row.reason = row.reason or reason
    _leave_out(row, _nothing_done(tx, row))
    row.summary = "\n".join(filter(None, [row.summary, summary]))
    if tell:
        key = f"run failed: {exit_reason} {now:%Y-%m-%d}"
        notices.give(tx, run.fleet, key=key, text=f"Runs fail: {summary}", now=now)
    claims.release(tx, run.fleet, exit_reason=exit_reason, now=now)
    _end(tx, run, row, RunStatus.FAILED, exit_reason, now)


def mark_superseded(tx: Session, run: Run) -> None:
    """The run noticed itself that the fence is gone; before, it only seemed dead."""
    row = tx.get_one(tables.Run, (run.fleet, run.run_id))
    if row.status == RunStatus.INTERRUPTED:
        row.status = RunStatus.SUPERSEDED.value


def _nothing_done(tx: Session, row: tables.Run) -> LeftOut | None:
    """Why a run that did not finish is left out, or None where it left something behind all the same."""
    return None if row.wrote or ledger.has_effect(tx, row.fleet, row.run_id) else LeftOut.NOTHING_DONE


def _leave_out(row: tables.Run, because: LeftOut | None) -> None:
    """Later prompts say nothing of the run, or where there is no reason for that, tell it."""
    row.in_prompt = because is None
    row.left_out_because = because and because.value


def _end(tx: Session, run: Run, row: tables.Run, status: RunStatus, exit_reason: str, now: datetime) -> None:
    """What every end has in common: no intent outlives its run, the fence is free, and the bell hears what waits."""
    actions.expire_intents(tx, run.fleet, now=now)
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


def _usage_of(row: tables.Run) -> Usage:
    return Usage(
        tokens_in=row.tokens_in, tokens_out=row.tokens_out, tokens_cached=row.tokens_cached, cost_usd=row.cost_usd
    )


def _superseded(run: Run, holder: int | None) -> RunSuperseded:
    if holder == run.run_id:
        return RunSuperseded(f"run #{run.run_id} of fleet {run.fleet} was taken over by a retry of its flow run")
    now_held = "no run" if holder is None else f"run #{holder}"
    return RunSuperseded(f"run #{run.run_id} of fleet {run.fleet} no longer holds the fence, {now_held} does")
