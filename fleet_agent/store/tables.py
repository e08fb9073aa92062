"""What is kept. Beside every group of columns: which module writes it.

Three habits hold everywhere. Money is NUMERIC(12, 6) with the unit in the name. Times are business time, except those
marked *real*: these come from the database's own clock, because a silent run and a lost answer are waited for in real
time, whatever speed business runs at. And what must never be is forbidden here, not only in code: two open runs of a
fleet, two runs of one attempt, two waiting events of one dedupe key, two rows for one box.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, DateTime, ForeignKeyConstraint, Identity, Index, Numeric
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlmodel import Field, SQLModel

from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.rules import Decision, Mode
from fleet_agent.domain.triggers import Trigger

SCHEMA_VERSION = "0001"
"""The newest migration; a test compares it with the folder of migrations."""

TIME = DateTime(timezone=True)
USD = Numeric(12, 6)


class RunStatus(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # found open by a later run
    SUPERSEDED = "superseded"  # noticed itself that the fence was gone


class WakeStatus(StrEnum):
    PENDING = "pending"
    PROCESSED = "processed"
    CANCELLED = "cancelled"


class Purpose(StrEnum):
    """What a token opens."""

    HOOKS = "hooks"


class Actor(StrEnum):
    """Who asked for an action."""

    AGENT = "agent"
    OPERATOR = "operator"


SQLModel.metadata.naming_convention = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
}


def _one_of(column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    allowed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=f"{column}_is_known")


def _of_known_fleet() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["fleet"], ["session_state.fleet"])


def _by_run(column: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["fleet", column], ["run.fleet", "run.run_id"])


def _identity() -> Any:
    """A key that the database counts up and nobody sets."""
    return Field(default=None, sa_type=BigInteger, primary_key=True, sa_column_args=[Identity(always=True)])


class Installation(SQLModel, table=True):
    """The one row that names this database. Written by `installation` once, and never changed."""

    __table_args__ = (
        CheckConstraint("id = 1", name="is_one_row"),
        CheckConstraint("name ~ '^[a-z0-9]{6}$'", name="name_fits_labels"),
        CheckConstraint("clock_speed > 0", name="clock_runs_forward"),
    )

    id: int = Field(default=1, primary_key=True, sa_column_kwargs={"autoincrement": False})
    name: str
    clock_origin: datetime = Field(sa_type=TIME)  # business time at `clock_started_at`
    clock_started_at: datetime = Field(sa_type=TIME)  # real
    clock_speed: float  # business seconds per real second


class AccountPace(SQLModel, table=True):
    """When one endpoint of the provider may be called next by an account, whichever fleet asks. Written by `pace`."""

    __tablename__: ClassVar[str] = "account_pace"  # pyright: ignore[reportIncompatibleVariableOverride]

    account: str = Field(primary_key=True)  # a digest of its key
    endpoint: str = Field(primary_key=True)
    free_at: datetime = Field(sa_type=TIME)
    counted: list[datetime] = Field(sa_type=ARRAY(TIME))  # the turns that a budget counts


class SessionState(SQLModel, table=True):
    """One row a fleet."""

    __tablename__: ClassVar[str] = "session_state"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        CheckConstraint("fleet ~ '^[a-z0-9-]{1,20}$'", name="fleet_fits_labels"),
        _one_of("mode", Mode),
        ForeignKeyConstraint(
            ["fleet", "current_run_id"],
            ["run.fleet", "run.run_id"],
            name="session_state_current_run_fkey",
            use_alter=True,  # the two tables refer to each other
        ),
    )

    fleet: str = Field(primary_key=True)

    # runs: the counter only ever grows, and nothing else is derived into it; the fence names the run that may act
    run_counter: int = Field(default=0, sa_type=BigInteger)
    current_run_id: int | None = Field(default=None, sa_type=BigInteger)
    last_digest: str | None = None
    last_review_at: datetime | None = Field(default=None, sa_type=TIME)

    # session: what the operator sets, and the agent's own notes
    epoch: int = 0
    mode: str = Mode.LIVE.value
    objective: str = ""
    notes: str = ""
    policy: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)
    policy_version: int = 0


class Run(SQLModel, table=True):
    """One awakening. Written by `runs`."""

    __table_args__ = (
        _of_known_fleet(),
        Unique("flow_run_id", "attempt"),
        Index("run_one_open_a_fleet", "fleet", unique=True, postgresql_where=sql("status = 'open'")),
        _one_of("status", RunStatus),
        _one_of("trigger", Trigger),
    )

    fleet: str = Field(primary_key=True)
    run_id: int = Field(sa_type=BigInteger, primary_key=True, sa_column_kwargs={"autoincrement": False})

    # at opening
    flow_run_id: str
    attempt: int
    worker_id: str
    trigger: str
    epoch: int
    opened_at: datetime = Field(sa_type=TIME)

    # while it lasts
    status: str = RunStatus.OPEN.value
    seen_at: datetime = Field(sa_type=TIME)  # real
    reason: str = ""
    steps: int = 0  # replies of the model
    wrote: bool = False  # it stored a wake or notes
    tokens_in: int = Field(default=0, sa_type=BigInteger)
    tokens_out: int = Field(default=0, sa_type=BigInteger)
    tokens_cached: int = Field(default=0, sa_type=BigInteger)
    cost_usd: Decimal = Field(default=Decimal(0), sa_type=USD)

    # at the end of a turn, and at the end
    turns: int = 0
    verdict: dict[str, bool] | None = Field(default=None, sa_type=JSONB)
    summary: str = ""
    exit_reason: str = ""
    quiet: bool = False
    no_op: bool = False
    in_prompt: bool = False
    closed_at: datetime | None = Field(default=None, sa_type=TIME)


class Request(SQLModel, table=True):
    """The newest request body of a run, as it was sent to the model. Written by `conversation`.

    A table of its own, for it is large and only a person who looks closer reads it; JSON and not JSONB, which would
    not keep the order of its keys.
    """

    __table_args__ = (_by_run("run_id"),)

    fleet: str = Field(primary_key=True)
    run_id: int = Field(sa_type=BigInteger, primary_key=True, sa_column_kwargs={"autoincrement": False})
    body: dict[str, Any] = Field(sa_type=JSON)


class Message(SQLModel, table=True):
    """The conversation log. Written by `conversation`, append only."""

    __table_args__ = (_of_known_fleet(), _by_run("run_id"), Index(None, "fleet", "run_id"))

    seq: int = _identity()
    fleet: str
    run_id: int = Field(sa_type=BigInteger)
    epoch: int
    turn: int
    step: int
    role: str
    kind: str
    content: str
    call_id: str | None = None
    calls: list[dict[str, Any]] = Field(default_factory=list, sa_type=JSONB)
    at: datetime = Field(sa_type=TIME)


WAITS = sql("claimed_by_run IS NULL AND quarantined_at IS NULL")
"""An inbox event that no run has taken."""


class Inbox(SQLModel, table=True):
    """What happened, durable until a run consumes it."""

    __table_args__ = (
        _of_known_fleet(),
        _by_run("claimed_by_run"),
        _by_run("consumed_by_run"),
        CheckConstraint("consumed_by_run IS NULL OR consumed_by_run = claimed_by_run", name="consumed_by_its_claimant"),
        CheckConstraint("quarantined_at IS NULL OR claimed_by_run IS NULL", name="quarantined_is_unclaimed"),
        Index(
            "inbox_one_waiting_a_dedupe_key",
            "fleet",
            "dedupe_key",
            unique=True,
            postgresql_where=WAITS,
        ),
        Unique("fleet", "occurrence_id"),
        CheckConstraint("dedupe_key IS NULL OR occurrence_id IS NULL", name="repeats_or_occurs_once"),
        Index("inbox_open", "fleet", postgresql_where=sql("consumed_by_run IS NULL AND quarantined_at IS NULL")),
        Index(None, "fleet", "claimed_by_run"),
    )

    id: int = _identity()
    fleet: str

    # inbox: at posting; a repetition of a waiting dedupe key raises `count` and brings the newest text
    source: str
    kind: str
    priority: int
    dedupe_key: str | None = None
    occurrence_id: str | None = None  # until it is forgotten
    count: int = 1
    occurred_at: datetime = Field(sa_type=TIME)
    received_at: datetime = Field(sa_type=TIME)
    text: str = ""
    payload: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)

    # claims
    attempts: int = 0
    claimed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    consumed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    quarantined_at: datetime | None = Field(default=None, sa_type=TIME)


class Wake(SQLModel, table=True):
    """A future check."""

    __table_args__ = (
        _of_known_fleet(),
        _by_run("claimed_by_run"),
        _by_run("processed_by_run"),
        _one_of("status", WakeStatus),
        CheckConstraint("(processed_by_run IS NULL) = (status <> 'processed')", name="processed_by_one_run"),
        Index("wake_pending", "fleet", "wake_at", postgresql_where=sql("status = 'pending'")),
    )

    id: int = _identity()
    fleet: str

    # wakes
    wake_at: datetime = Field(sa_type=TIME)
    reason: str
    asked_by: str
    asked_at: datetime = Field(sa_type=TIME)

    # claims
    status: str = WakeStatus.PENDING.value
    claimed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    processed_by_run: int | None = Field(default=None, sa_type=BigInteger)


class Action(SQLModel, table=True):
    """A tool call with an effect, from its ruling to its outcome. Written by `ledger`; settled also by `sightings`."""

    __table_args__ = (
        _of_known_fleet(),
        _by_run("run_id"),
        Unique("key"),
        _one_of("actor", Actor),
        _one_of("status", ActionStatus),
        _one_of("ruling", Decision),
        CheckConstraint("(run_id IS NULL) = (actor <> 'agent')", name="run_is_of_the_agent"),
        Index(None, "fleet", "run_id"),
        Index("action_unsettled", "fleet", postgresql_where=sql("status IN ('intended', 'sent', 'unknown')")),
    )

    id: int = _identity()
    fleet: str

    # at the ruling
    key: str
    actor: str
    run_id: int | None = Field(default=None, sa_type=BigInteger)
    call_id: str | None = None
    tool: str
    arguments: dict[str, Any] = Field(sa_type=JSONB)
    offer: dict[str, Any] | None = Field(default=None, sa_type=JSONB)  # a rent: the offer as it was judged
    box_key: str | None = Field(default=None, index=True)  # the box it makes or ends
    reserved_usd_per_hour: Decimal = Field(default=Decimal(0), sa_type=USD)
    policy_version: int | None = None  # an order of a person is judged by none
    created_at: datetime = Field(sa_type=TIME)

    # at the ruling and at sending, which rules once more
    ruling: str
    code: str
    sentence: str
    status: str
    sent_at: datetime | None = Field(default=None, sa_type=TIME)  # real
    send_by: datetime | None = Field(default=None, sa_type=TIME)  # real

    # at the outcome; `done` is never overwritten
    outcome: str = ""
    settled_at: datetime | None = Field(default=None, sa_type=TIME)


class Box(SQLModel, table=True):
    """The ledger of machines: one row per rent that may have reached the provider."""

    __table_args__ = (
        _of_known_fleet(),
        Unique("label", "vast_id"),
        _one_of("stage", Stage),
        CheckConstraint("(gone_at IS NULL) = (stage <> 'gone')", name="gone_has_a_time"),
        Index("box_live", "fleet", postgresql_where=sql("stage <> 'gone'")),
    )

    # ledger: in the transaction that marks its rent as sent. sightings: adopted by label
    key: str = Field(primary_key=True)
    fleet: str
    label: str
    machine_id: int = Field(sa_type=BigInteger)
    offer_id: int | None = Field(default=None, sa_type=BigInteger)
    gpu_name: str
    num_gpus: int
    agreed_usd_per_hour: Decimal = Field(sa_type=USD)
    rented_at: datetime = Field(sa_type=TIME)

    # ledger: from the provider's answers. sightings: from its lists, counting good looks only
    vast_id: int | None = Field(default=None, sa_type=BigInteger)
    stage: str
    seen_usd_per_hour: Decimal | None = Field(default=None, sa_type=USD)
    looked_at: datetime | None = Field(default=None, sa_type=TIME)
    sightings: int = 0
    misses: int = 0  # looks in a row without it
    missed_since: datetime | None = Field(default=None, sa_type=TIME)  # real, the first of these
    gone_at: datetime | None = Field(default=None, sa_type=TIME)
    gone_because: str = ""

    protected: bool = False  # the operator


class Question(SQLModel, table=True):
    """A listed box without a label that may be ours: a person must say. Written by `unlabelled`, anew at each look."""

    __table_args__ = (_of_known_fleet(),)

    fleet: str = Field(primary_key=True)
    vast_id: int = Field(sa_type=BigInteger, primary_key=True, sa_column_kwargs={"autoincrement": False})
    text: str
    asked_at: datetime = Field(sa_type=TIME)


class Audit(SQLModel, table=True):
    """Who changed what, and what a person should know. Written by `audit`, append only."""

    __table_args__ = (_of_known_fleet(), Index(None, "fleet"))

    id: int = _identity()
    fleet: str
    at: datetime = Field(sa_type=TIME)
    who: str
    what: str
    text: str


class Token(SQLModel, table=True):
    """What a stranger must know to be let in. Written by `tokens`; of the token itself only a digest is kept."""

    __table_args__ = (_of_known_fleet(), _one_of("purpose", Purpose))

    fleet: str = Field(primary_key=True)
    purpose: str = Field(primary_key=True)
    digest: str
    made_at: datetime = Field(sa_type=TIME)
