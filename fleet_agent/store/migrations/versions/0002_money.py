"""Money: approvals, drains, reports of boxes, what boxes cost, hosts and bans, samples, looks that are shared."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

NOTHING_YET = {sa.Boolean: sa.false(), sa.String: "", sa.Numeric: "0", sa.Integer: "0", sa.DateTime: sa.func.now()}
"""What the rows that are there already get."""

ACTORS = "actor IN ('agent', 'planner', 'watch', 'operator')"


def upgrade() -> None:
    op.create_table(
        "account_look",
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("inventory", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("account_look_pkey")),
    )
    op.create_table(
        "box_hour",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("box_key", sa.String(), nullable=False),
        sa.Column("usd", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("box_hour_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "hour", "box_key", name=op.f("box_hour_pkey")),
    )
    op.create_index("box_hour_of_box", "box_hour", ["box_key"], unique=False)
    op.create_table(
        "host",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("machine_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("num_gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gpu_name", sa.String(), nullable=False),
        sa.Column("best_proofs_per_hour", sa.Float(), nullable=True),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", postgresql.JSONB(), nullable=False),
        sa.Column("last_failure", sa.String(), nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("host_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "machine_id", "num_gpus", name=op.f("host_pkey")),
    )
    op.create_table(
        "host_ban",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("machine_id", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("banned_by", sa.String(), nullable=False),
        sa.Column("banned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lifted_by", sa.String(), nullable=True),
        sa.Column("lifted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "failure IN ('deterministic', 'transient', 'security')", name=op.f("host_ban_failure_is_known")
        ),
        sa.CheckConstraint("(lifted_by IS NULL) = (lifted_at IS NULL)", name=op.f("host_ban_lifted_by_somebody")),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("host_ban_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("host_ban_pkey")),
    )
    op.create_index("host_ban_of_machine", "host_ban", ["fleet", "machine_id"], unique=False)
    op.create_table(
        "sample",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("boxes", sa.Integer(), nullable=True),
        sa.Column("proving", sa.Integer(), nullable=True),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("burn_usd_per_hour", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.Column("credit_usd", sa.Numeric(precision=12, scale=6), nullable=True),
        sa.Column("pending", sa.Integer(), nullable=True),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("done_per_hour", sa.Float(), nullable=True),
        sa.Column("bands", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("sample_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "at", name=op.f("sample_pkey")),
    )
    _fill("action", sa.Column("tainted", sa.Boolean(), nullable=False))
    op.add_column("action", sa.Column("grant", postgresql.JSONB(), nullable=True))
    op.add_column("action", sa.Column("grant_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("action", sa.Column("approved_by", sa.String(), nullable=True))
    op.add_column("action", sa.Column("approved_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("action", sa.Column("sent_by_run", sa.BigInteger(), nullable=True))
    op.execute("UPDATE action SET sent_by_run = run_id WHERE sent_at IS NOT NULL")
    op.create_index(
        "action_sent",
        "action",
        ["fleet", "tool", "sent_at"],
        unique=False,
        postgresql_where=sa.text("sent_at IS NOT NULL"),
    )
    op.create_index(
        "action_sent_by",
        "action",
        ["fleet", "sent_by_run"],
        unique=False,
        postgresql_where=sa.text("sent_by_run IS NOT NULL"),
    )
    op.create_foreign_key(
        op.f("action_fleet_sent_by_run_fkey"), "action", "run", ["fleet", "sent_by_run"], ["fleet", "run_id"]
    )
    _fill("box", sa.Column("stage_since", sa.DateTime(timezone=True), nullable=False))
    op.add_column("box", sa.Column("busy_action", sa.String(), nullable=True))
    op.add_column("box", sa.Column("busy_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("box", sa.Column("drain_by", sa.DateTime(timezone=True), nullable=True))
    _fill("box", sa.Column("drain_because", sa.String(), nullable=False))
    op.add_column("box", sa.Column("hook_digest", sa.String(), nullable=True))
    op.add_column("box", sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("box", sa.Column("tasks", sa.Integer(), nullable=True))
    op.add_column("box", sa.Column("fetched", sa.Float(), nullable=True))
    op.add_column("box", sa.Column("gave_up", sa.String(), nullable=True))
    op.add_column("box", sa.Column("proofs_per_hour", sa.Float(), nullable=True))
    op.add_column("box", sa.Column("accrued_until", sa.DateTime(timezone=True), nullable=True))
    _fill("box", sa.Column("spent_usd", sa.Numeric(precision=12, scale=6), nullable=False))
    op.add_column("box", sa.Column("charged_usd", sa.Numeric(precision=12, scale=6), nullable=True))
    op.add_column("box", sa.Column("charged_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("box", sa.Column("troubled_since", sa.DateTime(timezone=True), nullable=True))
    _fill("box", sa.Column("trouble", sa.String(), nullable=False))
    op.create_index(op.f("box_hook_digest_idx"), "box", ["hook_digest"], unique=False)
    _fill("session_state", sa.Column("scale_out_paused", sa.Boolean(), nullable=False))
    _fill("session_state", sa.Column("scale_in_paused", sa.Boolean(), nullable=False))
    _fill("session_state", sa.Column("rent_breaker", sa.String(), nullable=False))
    _fill("session_state", sa.Column("rent_failures", sa.Integer(), nullable=False))
    _fill("session_state", sa.Column("frozen_because", sa.String(), nullable=False))
    op.create_check_constraint(
        op.f("action_approved_by_somebody"), "action", "(approved_by IS NULL) = (approved_at IS NULL)"
    )
    op.drop_constraint("action_actor_is_known", "action")
    op.create_check_constraint(op.f("action_actor_is_known"), "action", ACTORS)


def _fill(table: str, column: sa.Column) -> None:
    """Add a column that must not be empty."""
    column.server_default = sa.DefaultClause(NOTHING_YET[type(column.type)])
    op.add_column(table, column)
    op.alter_column(table, column.name, server_default=None)
