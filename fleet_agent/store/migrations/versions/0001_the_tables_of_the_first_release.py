"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("clock_origin", sa.DateTime(timezone=True), nullable=False),
        sa.Column("clock_started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("clock_speed", sa.Float(), nullable=False),
        sa.CheckConstraint("name ~ '^[a-z0-9]{6}$'", name=op.f("installation_name_fits_labels")),
        sa.CheckConstraint("clock_speed > 0", name=op.f("installation_clock_runs_forward")),
        sa.CheckConstraint("id = 1", name=op.f("installation_is_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("installation_pkey")),
    )
    op.create_table(
        "account_pace",
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("free_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("counted", postgresql.ARRAY(sa.DateTime(timezone=True)), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account", "endpoint", name=op.f("account_pace_pkey")),
    )
    op.create_table(
        "model_server",
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("ratios", postgresql.ARRAY(sa.Float()), nullable=False),
        sa.Column("refused_ratio", sa.Float(), nullable=False),
        sa.Column("truncates_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exceeded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trouble", sa.String(), nullable=False),
        sa.Column("needs_a_person", sa.Boolean(), nullable=False),
        sa.Column("asked_again_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("test", sa.String(), nullable=False),
        sa.Column("test_passed", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("server", "model", name=op.f("model_server_pkey")),
    )
    op.create_table(
        "session_state",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("run_counter", sa.BigInteger(), nullable=False),
        sa.Column("current_run_id", sa.BigInteger(), nullable=True),
        sa.Column("last_bands", postgresql.JSONB(), nullable=False),
        sa.Column("last_review_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("notes", sa.String(), nullable=False),
        sa.Column("notes_by_run", sa.BigInteger(), nullable=True),
        sa.Column("notes_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("compaction", postgresql.JSONB(), nullable=False),
        sa.Column("policy", postgresql.JSONB(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.CheckConstraint("fleet ~ '^[a-z0-9-]{1,20}$'", name=op.f("session_state_fleet_fits_labels")),
        sa.CheckConstraint("mode IN ('live', 'dry_run', 'paused')", name=op.f("session_state_mode_is_known")),
        sa.CheckConstraint(
            "(notes_by_run IS NULL) = (notes_at IS NULL)", name=op.f("session_state_notes_have_an_author")
        ),
        sa.PrimaryKeyConstraint("fleet", name=op.f("session_state_pkey")),
    )
    op.create_table(
        "usage",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.Column("tokens_cached", sa.BigInteger(), nullable=False),
        sa.Column("estimate", sa.BigInteger(), nullable=False),
        sa.Column("reported", sa.BigInteger(), nullable=False),
        sa.Column("chars", sa.BigInteger(), nullable=False),
        sa.Column("chars_as_before", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("usage_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "hour", "model", name=op.f("usage_pkey")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("audit_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_pkey")),
    )
    op.create_index(op.f("audit_fleet_idx"), "audit", ["fleet"], unique=False)
    op.create_table(
        "box",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("machine_id", sa.BigInteger(), nullable=False),
        sa.Column("offer_id", sa.BigInteger(), nullable=True),
        sa.Column("gpu_name", sa.String(), nullable=False),
        sa.Column("num_gpus", sa.Integer(), nullable=False),
        sa.Column("agreed_usd_per_hour", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.Column("rented_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("vast_id", sa.BigInteger(), nullable=True),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("seen_usd_per_hour", sa.Numeric(precision=12, scale=6), nullable=True),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sightings", sa.Integer(), nullable=False),
        sa.Column("misses", sa.Integer(), nullable=False),
        sa.Column("missed_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("gone_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("gone_because", sa.String(), nullable=False),
        sa.Column("protected", sa.Boolean(), nullable=False),
        sa.CheckConstraint("(gone_at IS NULL) = (stage <> 'gone')", name=op.f("box_gone_has_a_time")),
        sa.CheckConstraint(
            "stage IN ('rented', 'loading', 'registered', 'params_ready', 'benchmarked', 'proving', "
            "'draining', 'destroying', 'gone')",
            name=op.f("box_stage_is_known"),
        ),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("box_fleet_fkey")),
        sa.PrimaryKeyConstraint("key", name=op.f("box_pkey")),
        sa.UniqueConstraint("label", "vast_id", name=op.f("box_label_vast_id_key")),
    )
    op.create_index("box_live", "box", ["fleet"], unique=False, postgresql_where=sa.text("stage <> 'gone'"))
    op.create_table(
        "run",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flow_run_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("reason_tainted", sa.Boolean(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("wrote", sa.Boolean(), nullable=False),
        sa.Column("tainted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("mark", sa.String(), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("tokens_cached", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("verdict", postgresql.JSONB(), nullable=True),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("exit_reason", sa.String(), nullable=False),
        sa.Column("quiet", sa.Boolean(), nullable=False),
        sa.Column("no_op", sa.Boolean(), nullable=False),
        sa.Column("in_prompt", sa.Boolean(), nullable=False),
        sa.Column("left_out_because", sa.String(), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('open', 'closed', 'failed', 'interrupted', 'superseded')", name=op.f("run_status_is_known")
        ),
        sa.CheckConstraint("trigger IN ('heartbeat', 'wake', 'event', 'manual')", name=op.f("run_trigger_is_known")),
        sa.CheckConstraint(
            "left_out_because IN ('the model was not asked', 'it changed nothing', "
            "'it did not finish and did nothing')",
            name=op.f("run_left_out_because_is_known"),
        ),
        sa.CheckConstraint("(tainted_until IS NULL) = (mark IS NULL)", name=op.f("run_tainted_has_a_mark")),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("run_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "run_id", name=op.f("run_pkey")),
        sa.UniqueConstraint("flow_run_id", "attempt", name=op.f("run_flow_run_id_attempt_key")),
    )
    op.create_index("run_one_open_a_fleet", "run", ["fleet"], unique=True, postgresql_where=sa.text("status = 'open'"))
    op.create_index(
        "run_in_prompt", "run", ["fleet", "epoch", "run_id"], unique=False, postgresql_where=sa.text("in_prompt")
    )
    op.create_index(op.f("run_fleet_opened_at_idx"), "run", ["fleet", "opened_at"], unique=False)
    op.create_table(
        "action",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("call_id", sa.String(), nullable=True),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(), nullable=False),
        sa.Column("offer", postgresql.JSONB(), nullable=True),
        sa.Column("box_key", sa.String(), nullable=True),
        sa.Column("reserved_usd_per_hour", sa.Numeric(precision=12, scale=6), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ruling", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("sentence", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("send_by", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(run_id IS NULL) = (actor <> 'agent')", name=op.f("action_run_is_of_the_agent")),
        sa.CheckConstraint("actor IN ('agent', 'operator')", name=op.f("action_actor_is_known")),
        sa.CheckConstraint("ruling IN ('allow', 'refuse', 'needs_approval')", name=op.f("action_ruling_is_known")),
        sa.CheckConstraint(
            "status IN ('refused', 'awaiting_approval', 'intended', 'dry', 'sent', 'done', 'failed', 'unknown', "
            "'expired')",
            name=op.f("action_status_is_known"),
        ),
        sa.ForeignKeyConstraint(
            ["fleet", "run_id"], ["run.fleet", "run.run_id"], name=op.f("action_fleet_run_id_fkey")
        ),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("action_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("action_pkey")),
        sa.UniqueConstraint("key", name=op.f("action_key_key")),
    )
    op.create_index(op.f("action_box_key_idx"), "action", ["box_key"], unique=False)
    op.create_index(op.f("action_fleet_run_id_idx"), "action", ["fleet", "run_id"], unique=False)
    op.create_index(
        "action_unsettled",
        "action",
        ["fleet"],
        unique=False,
        postgresql_where=sa.text("status IN ('intended', 'sent', 'unknown')"),
    )
    op.create_index(
        "action_awaiting_approval",
        "action",
        ["fleet"],
        unique=False,
        postgresql_where=sa.text("status = 'awaiting_approval'"),
    )
    op.create_table(
        "inbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("dedupe_key", sa.String(), nullable=True),
        sa.Column("occurrence_id", sa.String(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("tainted", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claimed_by_run", sa.BigInteger(), nullable=True),
        sa.Column("consumed_by_run", sa.BigInteger(), nullable=True),
        sa.Column("quarantined_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rings", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "consumed_by_run IS NULL OR consumed_by_run = claimed_by_run", name=op.f("inbox_consumed_by_its_claimant")
        ),
        sa.CheckConstraint(
            "quarantined_at IS NULL OR claimed_by_run IS NULL", name=op.f("inbox_quarantined_is_unclaimed")
        ),
        sa.CheckConstraint("dedupe_key IS NULL OR occurrence_id IS NULL", name=op.f("inbox_repeats_or_occurs_once")),
        sa.ForeignKeyConstraint(
            ["fleet", "claimed_by_run"], ["run.fleet", "run.run_id"], name=op.f("inbox_fleet_claimed_by_run_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["fleet", "consumed_by_run"], ["run.fleet", "run.run_id"], name=op.f("inbox_fleet_consumed_by_run_fkey")
        ),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("inbox_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("inbox_pkey")),
        sa.UniqueConstraint("fleet", "occurrence_id", name=op.f("inbox_fleet_occurrence_id_key")),
    )
    op.create_index(op.f("inbox_fleet_claimed_by_run_idx"), "inbox", ["fleet", "claimed_by_run"], unique=False)
    op.create_index(
        "inbox_one_waiting_a_dedupe_key",
        "inbox",
        ["fleet", "dedupe_key"],
        unique=True,
        postgresql_where=sa.text("claimed_by_run IS NULL AND quarantined_at IS NULL"),
    )
    op.create_index(
        "inbox_quarantined",
        "inbox",
        ["fleet"],
        unique=False,
        postgresql_where=sa.text("quarantined_at IS NOT NULL"),
    )
    op.create_index(
        "inbox_open",
        "inbox",
        ["fleet"],
        unique=False,
        postgresql_where=sa.text("consumed_by_run IS NULL AND quarantined_at IS NULL"),
    )
    op.create_table(
        "message",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=True),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("calls", postgresql.JSONB(), nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("wakes", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("tainted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("estimate", sa.Integer(), nullable=False),
        sa.Column("reported", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet", "run_id"], ["run.fleet", "run.run_id"], name=op.f("message_fleet_run_id_fkey")
        ),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("message_fleet_fkey")),
        sa.PrimaryKeyConstraint("seq", name=op.f("message_pkey")),
    )
    op.create_index(op.f("message_fleet_run_id_idx"), "message", ["fleet", "run_id"], unique=False)
    op.create_index(
        "message_of_a_person",
        "message",
        ["fleet", "epoch", "seq"],
        unique=False,
        postgresql_where=sa.text("kind = 'human'"),
    )
    op.create_index(
        "message_one_result_a_call",
        "message",
        ["fleet", "run_id", "call_id"],
        unique=True,
        postgresql_where=sa.text("role = 'tool'"),
    )
    op.create_table(
        "notice",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("how", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("notice_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("notice_pkey")),
        sa.UniqueConstraint("fleet", "key", name=op.f("notice_fleet_key_key")),
    )
    op.create_index("notice_untold", "notice", ["fleet"], unique=False, postgresql_where=sa.text("told_at IS NULL"))
    op.create_table(
        "question",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("vast_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("question_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "vast_id", name=op.f("question_pkey")),
    )
    op.create_table(
        "request",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet", "run_id"], ["run.fleet", "run.run_id"], name=op.f("request_fleet_run_id_fkey")
        ),
        sa.PrimaryKeyConstraint("fleet", "run_id", name=op.f("request_pkey")),
    )
    op.create_table(
        "wake",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("wake_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("asked_by", sa.String(), nullable=False),
        sa.Column("asked_by_run", sa.BigInteger(), nullable=True),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("claimed_by_run", sa.BigInteger(), nullable=True),
        sa.Column("processed_by_run", sa.BigInteger(), nullable=True),
        sa.Column("flow_run_id", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rings", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "(processed_by_run IS NULL) = (status <> 'processed')", name=op.f("wake_processed_by_one_run")
        ),
        sa.CheckConstraint("status IN ('pending', 'processed', 'cancelled')", name=op.f("wake_status_is_known")),
        sa.ForeignKeyConstraint(
            ["fleet", "claimed_by_run"], ["run.fleet", "run.run_id"], name=op.f("wake_fleet_claimed_by_run_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["fleet", "processed_by_run"], ["run.fleet", "run.run_id"], name=op.f("wake_fleet_processed_by_run_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["fleet", "asked_by_run"], ["run.fleet", "run.run_id"], name=op.f("wake_fleet_asked_by_run_fkey")
        ),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("wake_fleet_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("wake_pkey")),
    )
    op.create_index(
        "wake_shown",
        "wake",
        ["wake_at", "id"],
        unique=False,
        postgresql_where=sa.text("status = 'pending' OR status = 'cancelled' AND flow_run_id IS NOT NULL"),
    )
    op.create_index(
        "wake_pending", "wake", ["fleet", "wake_at"], unique=False, postgresql_where=sa.text("status = 'pending'")
    )
    op.create_table(
        "token",
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("purpose IN ('hooks')", name=op.f("token_purpose_is_known")),
        sa.ForeignKeyConstraint(["fleet"], ["session_state.fleet"], name=op.f("token_fleet_fkey")),
        sa.PrimaryKeyConstraint("fleet", "purpose", name=op.f("token_pkey")),
    )
    # the two tables refer to each other
    op.create_foreign_key(
        "session_state_current_run_fkey", "session_state", "run", ["fleet", "current_run_id"], ["fleet", "run_id"]
    )
    op.create_foreign_key(
        "session_state_notes_by_run_fkey", "session_state", "run", ["fleet", "notes_by_run"], ["fleet", "run_id"]
    )
