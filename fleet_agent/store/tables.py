"""What is kept. Beside every group of columns: which module writes it.

Three habits hold everywhere. Money is NUMERIC(12, 6) with the unit in the name. Times are business time, except those
marked *real*: these come from the database's own clock, because a silent run and a lost answer are waited for in real
time, whatever speed business runs at. And what must never be is forbidden here, not only in code: two open runs of a
fleet, two runs of one attempt, two results of one call, two waiting events of one dedupe key, two rows for one box.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Float, ForeignKeyConstraint, Identity, Index, Numeric
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlmodel import Field, SQLModel

from fleet_agent.domain.fleet import Stage
from fleet_agent.domain.hosts import Failure
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.rules import Actor, Decision, Mode
from fleet_agent.domain.triggers import Trigger

SCHEMA_VERSION = "0002"
"""The newest migration; a test compares it with the folder of migrations."""

TIME = DateTime(timezone=True)
USD = Numeric(12, 6)


class RunStatus(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # found open by a later run
    SUPERSEDED = "superseded"  # noticed itself that the fence was gone


class LeftOut(StrEnum):
    """Why later prompts say nothing of a run that has ended."""

    QUIET = "the model was not asked"
    NO_OP = "it changed nothing"
    NOTHING_DONE = "it did not finish and did nothing"


class WakeStatus(StrEnum):
    PENDING = "pending"
    PROCESSED = "processed"
    CANCELLED = "cancelled"


class InboxState(StrEnum):
    """What has become of an inbox event, as its columns say it; none of them is stored."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    CONSUMED = "consumed"
    QUARANTINED = "quarantined"


class Purpose(StrEnum):
    """What a token opens."""

    HOOKS = "hooks"


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
    written_at: datetime = Field(sa_type=TIME)


class AccountLook(SQLModel, table=True):
    """The newest complete look at the boxes of an account, whoever took it. Written by `account_looks`."""

    __tablename__: ClassVar[str] = "account_look"  # pyright: ignore[reportIncompatibleVariableOverride]

    account: str = Field(primary_key=True)  # a digest of its key
    seen_at: datetime = Field(sa_type=TIME)
    inventory: dict[str, Any] = Field(sa_type=JSONB)


class ModelServer(SQLModel, table=True):
    """What is known of one model on one server, whichever fleet asks it. Written by `model_servers`; all times real."""

    __tablename__: ClassVar[str] = "model_server"  # pyright: ignore[reportIncompatibleVariableOverride]

    server: str = Field(primary_key=True)  # its bare address
    model: str = Field(primary_key=True)
    rank: int | None = None  # its place in the list of the settings, None where it is on it no more

    # calibration: reported by estimated tokens of the newest prompts
    ratios: list[float] = Field(default_factory=list, sa_type=ARRAY(Float))
    refused_ratio: float = 0.0
    truncates_since: datetime | None = Field(default=None, sa_type=TIME)
    exceeded_at: datetime | None = Field(default=None, sa_type=TIME)

    # health
    answered_at: datetime | None = Field(default=None, sa_type=TIME)
    failures: int = 0  # in a row
    failing_since: datetime | None = Field(default=None, sa_type=TIME)
    trouble: str = ""
    needs_a_person: bool = False
    asked_again_at: datetime | None = Field(default=None, sa_type=TIME)  # left alone until then

    # the newest self-test
    tested_at: datetime | None = Field(default=None, sa_type=TIME)
    test: str = ""
    test_passed: bool | None = None


class Usage(SQLModel, table=True):
    """What the models have used, by the hour (business time). Written by `spending`.

    A request is in it from before it is sent, with the most that it may cost; its answer puts that right.
    """

    __table_args__ = (_of_known_fleet(),)

    fleet: str = Field(primary_key=True)
    hour: datetime = Field(sa_type=TIME, primary_key=True)
    model: str = Field(primary_key=True)  # and its server

    # at the booking, and once more at the answer
    calls: int = 0  # under way, answered, or paid for without an answer
    tokens_in: int = Field(default=0, sa_type=BigInteger)
    tokens_out: int = Field(default=0, sa_type=BigInteger)
    cost_usd: Decimal = Field(default=Decimal(0), sa_type=USD)

    # of the requests that were answered
    tokens_cached: int = Field(default=0, sa_type=BigInteger)
    estimate: int = Field(default=0, sa_type=BigInteger)  # tokens of the prompts by our count
    reported: int = Field(default=0, sa_type=BigInteger)  # and by the server's
    chars: int = Field(default=0, sa_type=BigInteger)  # of the bodies
    chars_as_before: int = Field(default=0, sa_type=BigInteger)  # how far each begins like the body before it


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
        ForeignKeyConstraint(
            ["fleet", "notes_by_run"],
            ["run.fleet", "run.run_id"],
            name="session_state_notes_by_run_fkey",
            use_alter=True,
        ),
        CheckConstraint("(notes_by_run IS NULL) = (notes_at IS NULL)", name="notes_have_an_author"),
    )

    fleet: str = Field(primary_key=True)

    # runs: the counter only ever grows, and nothing else is derived into it; the fence names the run that may act
    run_counter: int = Field(default=0, sa_type=BigInteger)
    current_run_id: int | None = Field(default=None, sa_type=BigInteger)
    last_bands: dict[str, str] = Field(default_factory=dict, sa_type=JSONB)
    last_review_at: datetime | None = Field(default=None, sa_type=TIME)

    # session: what the operator sets, and the agent's own notes
    epoch: int = 0
    mode: str = Mode.LIVE.value
    objective: str = ""
    notes: str = ""
    notes_by_run: int | None = Field(default=None, sa_type=BigInteger)
    notes_at: datetime | None = Field(default=None, sa_type=TIME)
    compaction: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)  # conversation; of this epoch

    # brakes: the first two are the operator's; the breaker pauses renting by itself and says why, a person closes it
    scale_out_paused: bool = False
    scale_in_paused: bool = False
    rent_breaker: str = ""
    rent_failures: int = 0  # in a row
    frozen_because: str = ""  # the watch: the newest list cannot be true, so nothing is done by itself
    policy: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)
    policy_version: int = 0


class Run(SQLModel, table=True):
    """One awakening. Written by `runs`."""

    __table_args__ = (
        _of_known_fleet(),
        Unique("flow_run_id", "attempt"),
        Index("run_one_open_a_fleet", "fleet", unique=True, postgresql_where=sql("status = 'open'")),
        Index("run_in_prompt", "fleet", "epoch", "run_id", postgresql_where=sql("in_prompt")),
        Index(None, "fleet", "opened_at"),
        _one_of("status", RunStatus),
        _one_of("trigger", Trigger),
        _one_of("left_out_because", LeftOut),
        CheckConstraint("(tainted_until IS NULL) = (mark IS NULL)", name="tainted_has_a_mark"),
    )

    fleet: str = Field(primary_key=True)
    run_id: int = Field(sa_type=BigInteger, primary_key=True, sa_column_kwargs={"autoincrement": False})

    # at opening; `attempt` and `worker_id` again when a retry of the flow run goes on with it
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
    reason_tainted: bool = False  # it has words of a stranger in it, or such as these may have led
    steps: int = 0  # replies of the model
    wrote: bool = False  # it stored a wake or notes
    tainted_until: datetime | None = Field(default=None, sa_type=TIME)  # from the first request that carried such text
    mark: str | None = None  # fences its words in later prompts
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
    left_out_because: str | None = None
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

    __table_args__ = (
        _of_known_fleet(),
        _by_run("run_id"),
        Index(None, "fleet", "run_id"),
        Index("message_of_a_person", "fleet", "epoch", "seq", postgresql_where=sql("kind = 'human'")),
        Index(
            "message_one_result_a_call",
            "fleet",
            "run_id",
            "call_id",
            unique=True,
            postgresql_where=sql("role = 'tool'"),
        ),
    )

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
    failed: bool = False  # a result that says so
    calls: list[dict[str, Any]] = Field(default_factory=list, sa_type=JSONB)
    events: list[int] = Field(
        default_factory=list, sa_type=ARRAY(BigInteger)
    )  # what it shows the model, or whose words it is
    wakes: list[int] = Field(default_factory=list, sa_type=ARRAY(BigInteger))
    tainted_until: datetime | None = Field(default=None, sa_type=TIME)  # it has text from outside in it
    model: str = ""  # a reply: who gave it, and its prompt's tokens by our count and by the server's
    estimate: int = 0
    reported: int = 0
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
        Index("inbox_quarantined", "fleet", postgresql_where=sql("quarantined_at IS NOT NULL")),
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
    tainted: bool = False  # the text has words that a stranger was free to choose

    # claims
    attempts: int = 0
    claimed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    consumed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    quarantined_at: datetime | None = Field(default=None, sa_type=TIME)

    # bell: flow runs that it asked Prefect for over this event, by a key with this number in it
    rings: int = 0


SHOWN = sql("status = 'pending' OR status = 'cancelled' AND flow_run_id IS NOT NULL")
"""A wake that has, or is to have, a flow run to come in Prefect."""


class Wake(SQLModel, table=True):
    """A future check."""

    __table_args__ = (
        _of_known_fleet(),
        _by_run("claimed_by_run"),
        _by_run("processed_by_run"),
        _by_run("asked_by_run"),
        _one_of("status", WakeStatus),
        CheckConstraint("(processed_by_run IS NULL) = (status <> 'processed')", name="processed_by_one_run"),
        Index("wake_pending", "fleet", "wake_at", postgresql_where=sql("status = 'pending'")),
        Index("wake_shown", "wake_at", "id", postgresql_where=SHOWN),
    )

    id: int = _identity()
    fleet: str

    # wakes
    wake_at: datetime = Field(sa_type=TIME)
    reason: str
    asked_by: str
    asked_by_run: int | None = Field(default=None, sa_type=BigInteger)
    asked_at: datetime = Field(sa_type=TIME)

    # claims; `cancelled` by wakes
    status: str = WakeStatus.PENDING.value
    claimed_by_run: int | None = Field(default=None, sa_type=BigInteger)
    processed_by_run: int | None = Field(default=None, sa_type=BigInteger)

    # bell: the flow run that shows it in Prefect, by a key with the generation in it; and rings as for an event
    flow_run_id: str | None = None
    generation: int = 0
    rings: int = 0


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
        Index("action_awaiting_approval", "fleet", postgresql_where=sql("status = 'awaiting_approval'")),
        Index("action_sent", "fleet", "tool", "sent_at", postgresql_where=sql("sent_at IS NOT NULL")),
        Index("action_sent_by", "fleet", "sent_by_run", postgresql_where=sql("sent_by_run IS NOT NULL")),
        _by_run("sent_by_run"),
        CheckConstraint("(approved_by IS NULL) = (approved_at IS NULL)", name="approved_by_somebody"),
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
    tainted: bool = False  # the run that asked had read words from outside
    created_at: datetime = Field(sa_type=TIME)

    # approvals: the bound that a person's word grants, until when, and who gave it
    grant: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    grant_expires_at: datetime | None = Field(default=None, sa_type=TIME)
    approved_by: str | None = None
    approved_at: datetime | None = Field(default=None, sa_type=TIME)

    # at the ruling and at sending, which rules once more
    ruling: str
    code: str
    sentence: str
    status: str
    sent_at: datetime | None = Field(default=None, sa_type=TIME)  # real
    send_by: datetime | None = Field(default=None, sa_type=TIME)  # real
    sent_by_run: int | None = Field(default=None, sa_type=BigInteger)  # not who asked, where it had to be approved

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
    stage_since: datetime = Field(sa_type=TIME)
    busy_action: str | None = None  # a call about it is on its way, until its outcome or
    busy_until: datetime | None = Field(default=None, sa_type=TIME)  # real
    seen_usd_per_hour: Decimal | None = Field(default=None, sa_type=USD)
    looked_at: datetime | None = Field(default=None, sa_type=TIME)
    sightings: int = 0
    misses: int = 0  # looks in a row without it
    missed_since: datetime | None = Field(default=None, sa_type=TIME)  # real, the first of these
    gone_at: datetime | None = Field(default=None, sa_type=TIME)
    gone_because: str = ""

    # draining: since when it takes no more work, until when at the latest, and why
    drain_by: datetime | None = Field(default=None, sa_type=TIME)
    drain_because: str = ""

    # reports: what it says of itself, by a token of its own
    hook_digest: str | None = Field(default=None, index=True)
    reported_at: datetime | None = Field(default=None, sa_type=TIME)
    tasks: int | None = None
    fetched: float | None = None
    gave_up: str | None = None  # why, in a stranger's words
    proofs_per_hour: float | None = None

    # spent: counted at each look by the price seen; and what the provider says that it charged
    accrued_until: datetime | None = Field(default=None, sa_type=TIME)
    spent_usd: Decimal = Field(default=Decimal(0), sa_type=USD)
    charged_usd: Decimal | None = Field(default=None, sa_type=USD)
    charged_at: datetime | None = Field(default=None, sa_type=TIME)

    # watch: since when it has been in trouble, and which troubles a person was told of
    troubled_since: datetime | None = Field(default=None, sa_type=TIME)
    trouble: str = ""

    protected: bool = False  # the operator


class BoxHour(SQLModel, table=True):
    """What one box cost within one hour (business time), by the prices seen. Written by `spent`."""

    __tablename__: ClassVar[str] = "box_hour"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (_of_known_fleet(), Index("box_hour_of_box", "box_key"))

    fleet: str = Field(primary_key=True)
    hour: datetime = Field(sa_type=TIME, primary_key=True)
    box_key: str = Field(primary_key=True)
    usd: Decimal = Field(default=Decimal(0), sa_type=USD)


class Host(SQLModel, table=True):
    """What a machine has shown, with so many GPUs. Written by `hosts`."""

    __table_args__ = (_of_known_fleet(),)

    fleet: str = Field(primary_key=True)
    machine_id: int = Field(sa_type=BigInteger, primary_key=True, sa_column_kwargs={"autoincrement": False})
    num_gpus: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    gpu_name: str
    best_proofs_per_hour: float | None = None
    measured_at: datetime | None = Field(default=None, sa_type=TIME)
    failures: dict[str, int] = Field(default_factory=dict, sa_type=JSONB)  # by class
    last_failure: str = ""
    failed_at: datetime | None = Field(default=None, sa_type=TIME)


class HostBan(SQLModel, table=True):
    """A machine that is not rented for a while. Written by `hosts`; a ban that is over stays, as history."""

    __tablename__: ClassVar[str] = "host_ban"  # pyright: ignore[reportIncompatibleVariableOverride]
    __table_args__ = (
        _of_known_fleet(),
        _one_of("failure", Failure),
        Index("host_ban_of_machine", "fleet", "machine_id"),
        CheckConstraint("(lifted_by IS NULL) = (lifted_at IS NULL)", name="lifted_by_somebody"),
    )

    id: int = _identity()
    fleet: str
    machine_id: int = Field(sa_type=BigInteger)
    failure: str
    reason: str
    banned_by: str
    banned_at: datetime = Field(sa_type=TIME)
    expires_at: datetime = Field(sa_type=TIME)
    lifted_by: str | None = None
    lifted_at: datetime | None = Field(default=None, sa_type=TIME)


class Sample(SQLModel, table=True):
    """What one look of the watch saw, for plots and for what is compared with the look before. Written by `looks`."""

    __table_args__ = (_of_known_fleet(),)

    fleet: str = Field(primary_key=True)
    at: datetime = Field(sa_type=TIME, primary_key=True)
    boxes: int | None = None  # of ours in the list; None where it was not read
    proving: int | None = None
    in_flight: int = 0
    burn_usd_per_hour: Decimal = Field(default=Decimal(0), sa_type=USD)
    credit_usd: Decimal | None = Field(default=None, sa_type=USD)
    pending: int | None = None
    running: int | None = None
    done_per_hour: float | None = None
    bands: dict[str, str] = Field(default_factory=dict, sa_type=JSONB)  # of what the watch tells changes of


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


class Notice(SQLModel, table=True):
    """What a person must be told, kept by the transaction that found it. Written by `notices`; the watch tells."""

    __table_args__ = (
        _of_known_fleet(),
        Unique("fleet", "key"),
        Index("notice_untold", "fleet", postgresql_where=sql("told_at IS NULL")),
    )

    id: int = _identity()
    fleet: str

    # at finding it; the same key is the same notice
    key: str
    text: str
    at: datetime = Field(sa_type=TIME)

    # by the watch: when, and how as the notifier said it
    told_at: datetime | None = Field(default=None, sa_type=TIME)
    how: str = ""


class Token(SQLModel, table=True):
    """What a stranger must know to be let in. Written by `tokens`; of the token itself only a digest is kept."""

    __table_args__ = (_of_known_fleet(), _one_of("purpose", Purpose))

    fleet: str = Field(primary_key=True)
    purpose: str = Field(primary_key=True)
    digest: str
    made_at: datetime = Field(sa_type=TIME)
