"""The arguments of a start; and of one that was only watched, which log it was seen in and where it begins there.

Columns are added in place: a table that is made anew is dropped first, and would take with it the rows that belong to it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("arguments", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("attempt", sa.Column("source", sa.String()))
    op.add_column("attempt", sa.Column("log_offset", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ("log_offset", "source", "arguments"):
        op.drop_column("attempt", name)
