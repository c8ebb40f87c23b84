"""An index of steps by time, which also holds what is asked of steps of a time: `stepwell.pool.watching` reads it."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make it, unless revision 0002, which makes the tables as they are now, has just done so."""
    columns = ["created_at", "finish_reason", "latency", "response_tokens"]
    op.create_index("ix_steps_by_time", "steps", columns, if_not_exists=True)
