"""What each update was trained on, with the credit of each step."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table, unless the revision before, which makes all tables of today, has made it just now."""
    op.create_table(
        "credits",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("policy_version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("steps", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
