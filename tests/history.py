"""A fleet that has run for years, written into the tables at once: what no test can wait for."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.rules import Actor, Decision
from fleet_agent.domain.run import MessageKind
from fleet_agent.domain.triggers import Kind, Priority, Trigger
from fleet_agent.store import session, tables
from fleet_agent.store.database import Database
from fleet_agent.store.tables import RunStatus, WakeStatus

BETWEEN_RUNS = timedelta(minutes=5)

OTHER_ROWS = {"message": 1, "inbox": 10, "action": 4, "wake": 4, "audit": 4, "notice": 4, "request": 4}
"""Tables beside the runs, and how many runs there are for one of its rows. People speak as often as the inbox says."""

COPY = """
INSERT INTO {table} OVERRIDING USER VALUE
SELECT copy.* FROM generate_series(2, :runs) AS n, {table} AS sample,
    jsonb_populate_record(NULL::{table}, to_jsonb(sample) || {changes}) AS copy
WHERE sample.fleet = :fleet AND {which}
"""
"""Row by row like the first of them, but for what tells runs apart: whatever columns the table has."""


def write_history(
    database: Database,
    *,
    runs: int,
    until: datetime,
    summary: str = "Nothing waits, so I keep both boxes. ",
    every: int = 1,
    fleet: str = "main",
) -> None:
    """Closed runs up to `until`, of which prompts carry each one that `every` divides, with what they said and did."""
    first = until - (runs - 1) * BETWEEN_RUNS
    values = {"fleet": fleet, "runs": runs, "every": every, "first": first, "between": BETWEEN_RUNS}
    with database.exclusive(fleet) as tx:
        tx.execute(text("SET LOCAL statement_timeout = 0"))
        _first_run(tx, fleet, summary, first)
        tx.execute(text(_copy("run", "sample.run_id = 1", _RUN)), values)
        for table, each in OTHER_ROWS.items():
            which = f"n % {each} = 0" if table != "message" else "(sample.kind <> 'human' OR n % 10 = 0)"
            tx.execute(text(_copy(table, which, _OTHER)), values)
        session.state(tx, fleet).run_counter = runs
        tx.flush()
        tx.execute(text("ANALYZE"))


_TIMES = ", ".join(f"'{name}', :first + (n - 1) * :between" for name in ("opened_at", "seen_at", "closed_at"))
_RUN = f"""jsonb_build_object('run_id', n, 'flow_run_id', 'written-' || n, 'in_prompt', n % :every = 0,
    'no_op', n % :every <> 0, 'summary', 'Run ' || n || ': ' || sample.summary, {_TIMES})"""
_OTHER = """jsonb_build_object('run_id', n, 'claimed_by_run', n, 'consumed_by_run', n, 'processed_by_run', n,
    'sent_by_run', n, 'key', 'written-' || n, 'events', jsonb_build_array(-n))"""


def _copy(table: str, which: str, changes: str) -> str:
    return COPY.format(table=table, which=which, changes=changes)


def _first_run(tx: Session, fleet: str, summary: str, at: datetime) -> None:
    """The one that all others are like."""
    session.begin(tx, fleet)
    tx.add(
        tables.Run(
            fleet=fleet, run_id=1, flow_run_id="written-1", attempt=1, worker_id="test",
            trigger=Trigger.HEARTBEAT.value, epoch=0, opened_at=at, seen_at=at, closed_at=at,
            status=RunStatus.CLOSED.value, reason="asked", steps=2, tokens_in=9_000, tokens_out=200, turns=1,
            verdict={"action": False, "state_changed": True}, summary=summary, exit_reason="finished", in_prompt=True,
        )
    )  # fmt: skip
    tx.flush()
    said = (
        (0, "user", MessageKind.TRIGGER, "what was seen " * 40, None),
        (0, "user", MessageKind.HUMAN, "How many boxes are there?", None),
        (1, "assistant", MessageKind.TOOL_CALL, "", None),
        (1, "tool", MessageKind.TOOL_RESULT, "a row of a table " * 20, "c00000001"),
    )
    for step, role, kind, content, call_id in said:
        tx.add(
            tables.Message(
                fleet=fleet, run_id=1, epoch=0, turn=1, step=step, role=role, kind=kind.value, content=content,
                call_id=call_id, at=at,
            )
        )  # fmt: skip
    tx.add(
        tables.Inbox(
            fleet=fleet, source="cli", kind=Kind.MESSAGE.value, priority=Priority.URGENT, occurred_at=at,
            received_at=at, text="How many boxes are there?", claimed_by_run=1, consumed_by_run=1,
        )
    )  # fmt: skip
    tx.add(
        tables.Action(
            fleet=fleet, key="written-1", actor=Actor.AGENT.value, run_id=1, tool="notify_human", arguments={},
            created_at=at, ruling=Decision.ALLOW.value, code="", sentence="", status=ActionStatus.DONE.value,
            sent_at=at, sent_by_run=1, outcome="told", settled_at=at,
        )
    )  # fmt: skip
    tx.add(
        tables.Wake(
            fleet=fleet, wake_at=at, reason="are the boxes at work?", asked_by="agent", asked_at=at,
            status=WakeStatus.PROCESSED.value, claimed_by_run=1, processed_by_run=1,
        )
    )  # fmt: skip
    tx.add(tables.Request(fleet=fleet, run_id=1, body={"model": "any", "messages": []}))
    tx.add(tables.Audit(fleet=fleet, at=at, who="test", what="policy", text="limits.max_boxes 3 → 4"))
    tx.add(tables.Notice(fleet=fleet, key="written-1", text="told long ago", at=at, told_at=at, how="told"))
    tx.flush()
