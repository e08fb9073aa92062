"""The log of every run, and what prompts carry of older ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import BigInteger, ColumnElement, any_, func, update
from sqlalchemy import select as columns
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import and_, col, select

from fleet_agent.domain.actions import TOOLS, DestroyBox, NotifyHuman, RentBox, Write
from fleet_agent.domain.run import (
    Compaction,
    Digest,
    Message,
    MessageKind,
    PastRun,
    Run,
    RunRecord,
    Said,
    ToolCall,
    unfinished,
)
from fleet_agent.domain.triggers import Trigger
from fleet_agent.store import ledger, session, tables, taints
from fleet_agent.store.tables import Inbox, RunStatus, SessionState

MOST_PAST_RUNS = 200
"""More than most prompts hold; `domain.context` compacts the oldest until it fits."""
FEWER_PAST_RUNS = 120
"""What is left where there are more: with a cut that moved at every run no two prompts would begin alike."""

MOST_WORDS = 200
"""Far more than a prompt has room for."""

# Any, because the types of `select` end at four columns.
_OF_A_PAST_RUN: Any = (
    tables.Run.run_id,
    tables.Run.trigger,
    tables.Run.reason,
    tables.Run.reason_tainted,
    tables.Run.opened_at,
    tables.Run.status,
    tables.Run.exit_reason,
    tables.Run.summary,
    tables.Run.cost_usd,
    tables.Run.mark,
    tables.Run.tainted_until,
)
_OF_WORDS: Any = (tables.Message.run_id, tables.Message.events, tables.Message.content)

_WRITES = {tool.name for tool in TOOLS if issubclass(tool, Write)}


def append(tx: Session, run: Run, messages: Sequence[Message], *, now: datetime) -> None:
    tx.add_all(
        tables.Message(
            fleet=run.fleet,
            run_id=run.run_id,
            epoch=run.epoch,
            turn=message.turn,
            step=message.step,
            role=message.role,
            kind=message.kind.value,
            content=message.content,
            call_id=message.call_id,
            failed=message.failed,
            calls=[call.model_dump(mode="json") for call in message.calls],
            events=list(message.events),
            wakes=list(message.wakes),
            tainted_until=message.tainted_until,
            model=message.model,
            estimate=message.estimate,
            reported=message.reported,
            at=now,
        )
        for message in messages
    )


def said(tx: Session, fleet: str, run_id: int) -> tuple[Message, ...]:
    """What the run and the model have said to each other, as prompts carry it: a person's words stand in the block that
    showed them, and have a row of their own only for people."""
    rows = tx.scalars(
        select(tables.Message)
        .where(
            tables.Message.fleet == fleet,
            tables.Message.run_id == run_id,
            tables.Message.kind != MessageKind.HUMAN,
        )
        .order_by(col(tables.Message.seq))
    )
    return tuple(map(_as_message, rows))


def _as_message(row: tables.Message) -> Message:
    return Message(
        turn=row.turn,
        step=row.step,
        role=row.role,
        kind=MessageKind(row.kind),
        content=row.content,
        call_id=row.call_id,
        failed=row.failed,
        calls=tuple(ToolCall.model_validate(call) for call in row.calls),
        events=tuple(row.events),
        wakes=tuple(row.wakes),
        tainted_until=row.tainted_until,
        model=row.model,
        estimate=row.estimate,
        reported=row.reported,
    )


def record_of(tx: Session, run: Run, run_id: int) -> RunRecord | None:
    """A run of the same conversation as it can be read again. What was said before a reset is over, for a model."""
    row = tx.get(tables.Run, (run.fleet, run_id))
    if row is None or row.epoch != run.epoch:
        return None
    return RunRecord(
        run_id=row.run_id,
        trigger=Trigger(row.trigger),
        reason=_reason(row),
        opened_at=row.opened_at,
        ended_by=row.exit_reason or row.status,
        summary=row.summary,
        said=said(tx, run.fleet, run_id),
        tainted_until=row.tainted_until,
    )


def newest_request(tx: Session, fleet: str) -> dict[str, Any] | None:
    """The request before the next one: of the same run, or of the newest that sent one."""
    of_fleet = select(tables.Request).where(tables.Request.fleet == fleet)
    newest = tx.scalars(of_fleet.order_by(col(tables.Request.run_id).desc()).limit(1)).first()
    return newest and newest.body


def keep_request(tx: Session, run: Run, body: Mapping[str, Any]) -> None:
    """Only the newest of a run is kept: it carries the steps before it."""
    new = insert(tables.Request).values(fleet=run.fleet, run_id=run.run_id, body=dict(body))
    tx.execute(new.on_conflict_do_update(index_elements=["fleet", "run_id"], set_={"body": new.excluded.body}))


def compacted(tx: Session, fleet: str, epoch: int) -> tuple[Compaction, tuple[PastRun, ...]]:
    """What earlier prompts of this epoch have left of its runs, and the runs after that, oldest first.

    Runs that prompts carry are closed ones that were no no-op and, of those that did not get so far, the ones that had
    done something. A history that no prompt has compacted yet may be of any length, and short runs are many before they
    fill a prompt: from MOST_PAST_RUNS on all but the newest FEWER_PAST_RUNS are compacted here, by counting.
    """
    kept = session.find(tx, fleet).compaction
    compaction = Compaction.model_validate(kept) if kept else Compaction()
    rows = _past_runs(tx, fleet, epoch, after=compaction.through)
    if len(rows) == MOST_PAST_RUNS:
        rows = rows[:FEWER_PAST_RUNS]
        compaction = _compacted_to(tx, fleet, epoch, compaction, through=rows[-1].run_id - 1)
    unclosed = [row.run_id for row in rows if row.status != RunStatus.CLOSED]
    deeds, written = ledger.deeds(tx, fleet, unclosed), _written(tx, fleet, unclosed)
    did = ledger.done_by(tx, fleet, epoch, first=compaction.through + 1)
    return compaction, tuple(
        PastRun(
            run_id=row.run_id,
            trigger=Trigger(row.trigger),
            reason=_reason(row),
            opened_at=row.opened_at,
            summary=row.summary
            if row.status == RunStatus.CLOSED
            else unfinished(row.summary, row.exit_reason, deeds.get(row.run_id, ()), written.get(row.run_id, ())),
            rented=did[row.run_id, RentBox.name],
            destroyed=did[row.run_id, DestroyBox.name],
            told=did[row.run_id, NotifyHuman.name],
            cost_usd=row.cost_usd,
            taint=taints.of(row),
        )
        for row in reversed(rows)
    )


def _past_runs(tx: Session, fleet: str, epoch: int, *, after: int) -> Sequence[tables.Run]:
    """The newest of those that prompts carry, newest first. Only the columns that are told of them: to make an object
    of each row takes longer than everything else about a prompt. They are read like the object."""
    statement = (
        columns(*_OF_A_PAST_RUN)
        .where(_carried(fleet, epoch), col(tables.Run.run_id) > after)
        .order_by(col(tables.Run.run_id).desc())
        .limit(MOST_PAST_RUNS)
    )
    return cast("Sequence[tables.Run]", tx.execute(statement).all())


def _written(tx: Session, fleet: str, run_ids: Collection[int]) -> Mapping[int, Sequence[str]]:
    """What these runs wrote into our own tables, in the words that answered them."""
    of_them = select(tables.Message).where(tables.Message.fleet == fleet, col(tables.Message.run_id).in_(run_ids))
    replies = tx.scalars(of_them.where(tables.Message.kind == MessageKind.TOOL_CALL))
    tools = {
        (reply.run_id, call["id"]): call["name"] for reply in replies for call in reply.calls if call["name"] in _WRITES
    }
    answers = of_them.where(col(tables.Message.call_id).in_([call for _, call in tools]), ~col(tables.Message.failed))
    written: dict[int, list[str]] = {}
    for answer in tx.scalars(answers.order_by(col(tables.Message.seq))):
        tool = tools.get((answer.run_id, answer.call_id))
        if tool is not None:
            written.setdefault(answer.run_id, []).append(f"{tool}: {answer.content}")
    return written


def _reason(row: tables.Run) -> str:
    """Why it happened, in words that a prompt may carry. What tainted them may never have been shown to that run, or
    have ended before; then nothing would fence them."""
    return "" if row.reason_tainted and row.mark is None else row.reason


def keep_compaction(tx: Session, run: Run, compaction: Compaction) -> None:
    """For the next prompt to begin with; not what a run of an older epoch knows, nor less than is kept.

    No lock is held here and the session may be reset in between, so one statement asks for the epoch and writes.
    """
    kept_through = func.coalesce(col(SessionState.compaction)["through"].astext.cast(BigInteger), 0)
    tx.execute(
        update(SessionState)
        .where(
            and_(SessionState.fleet == run.fleet, SessionState.epoch == run.epoch), kept_through < compaction.through
        )
        .values(compaction=compaction.model_dump(mode="json"))
    )


def words(tx: Session, fleet: str, epoch: int) -> tuple[tuple[Said, ...], int]:
    """A person's newest words that closed runs of this epoch have dealt with, oldest first, and how many there are in
    all. No more than MOST_WORDS are counted.

    Words that a run gave back unseen wait for the one that answers them, and are told as that run's: they are in the
    log of each run, or of each turn, that claimed them.
    """
    another_answers = select(Inbox.id).where(
        col(Inbox.id) == any_(col(tables.Message.events)),
        col(Inbox.consumed_by_run).is_distinct_from(tables.Message.run_id),
    )
    rows = tx.execute(
        columns(*_OF_WORDS)
        .join(
            tables.Run,
            and_(tables.Run.fleet == tables.Message.fleet, tables.Run.run_id == tables.Message.run_id),
        )
        .where(
            col(tables.Message.fleet) == fleet,
            col(tables.Message.epoch) == epoch,
            col(tables.Message.kind) == MessageKind.HUMAN,
            col(tables.Run.status) == RunStatus.CLOSED,
            ~another_answers.exists(),
        )
        .order_by(col(tables.Message.seq).desc())
        .limit(MOST_WORDS)
    ).all()
    by_event = {tuple(row.events): Said(run_id=row.run_id, text=row.content) for row in reversed(rows)}
    return tuple(by_event.values()), len(by_event)


def _carried(fleet: str, epoch: int) -> ColumnElement[bool]:
    return and_(
        tables.Run.fleet == fleet,
        tables.Run.epoch == epoch,
        tables.Run.status != RunStatus.OPEN,
        col(tables.Run.in_prompt),
    )


def _compacted_to(tx: Session, fleet: str, epoch: int, compaction: Compaction, *, through: int) -> Compaction:
    """As if a prompt had told the runs up to `through` and then left them out."""
    between = and_(_carried(fleet, epoch), tables.Run.run_id > compaction.through, tables.Run.run_id <= through)
    runs, cost, since, until = tx.execute(
        select(
            func.count(),
            func.coalesce(func.sum(tables.Run.cost_usd), 0),
            func.min(tables.Run.opened_at),
            func.max(tables.Run.opened_at),
        ).where(between)
    ).one()
    if not runs:
        return compaction
    did = ledger.done_by(tx, fleet, epoch, first=compaction.through + 1, last=through)
    sums: Counter[str] = Counter()
    for (_, tool), times in did.items():
        sums[tool] += times
    old = compaction.digest
    return Compaction(
        through=through,
        digest=Digest(
            runs=old.runs + runs,
            rented=old.rented + sums[RentBox.name],
            destroyed=old.destroyed + sums[DestroyBox.name],
            told=old.told + sums[NotifyHuman.name],
            cost_usd=old.cost_usd + cost,
            since=old.since or since,
            until=until,
        ),
    )
