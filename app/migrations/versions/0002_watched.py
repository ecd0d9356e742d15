"""Starts that were only watched: which log they were seen in, and where they begin there."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("attempt") as table:
        table.add_column(sa.Column("arguments", sa.JSON(), nullable=False, server_default="{}"))
        table.add_column(sa.Column("source", sa.String()))
        table.add_column(sa.Column("log_offset", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("attempt") as table:
        table.drop_column("log_offset")
        table.drop_column("source")
        table.drop_column("arguments")
