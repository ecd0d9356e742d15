"""Runs, attempts, phases, findings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("target", sa.String(100), nullable=False, index=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("argv", sa.JSON(), nullable=False),
        sa.Column("began", sa.Float(), nullable=False, index=True),
        sa.Column("ended", sa.Float()),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("rule", sa.String(200)),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("after", sa.String(64)),
        sa.Column("seen", sa.Integer(), nullable=False),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(64), sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("argv", sa.JSON(), nullable=False),
        sa.Column("env", sa.JSON(), nullable=False),
        sa.Column("diff", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("via", sa.String()),
        sa.Column("log", sa.String(), nullable=False),
        sa.Column("log_size", sa.BigInteger(), nullable=False),
        sa.Column("began", sa.Float(), nullable=False),
        sa.Column("ready_at", sa.Float(), index=True),
        sa.Column("ended", sa.Float()),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("rule", sa.String(200)),
        sa.Column("exit", sa.String()),
        sa.Column("reason", sa.String(), nullable=False),
        sa.UniqueConstraint("run", "number"),
    )
    op.create_table(
        "phase",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("attempt", sa.Integer(), sa.ForeignKey("attempt.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("phase", sa.String(100), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float()),
    )
    op.create_table(
        "finding",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("attempt", sa.Integer(), sa.ForeignKey("attempt.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False, index=True),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("line", sa.Integer()),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("remedies", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    for name in ("finding", "phase", "attempt", "run"):
        op.drop_table(name)
