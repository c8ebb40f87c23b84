"""The schema of the first pools, which said `schema_version` 2 in `meta`."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Float, ForeignKey, LargeBinary, Text

revision = "0001"
down_revision = None

_Whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _log() -> tuple[Column[int], Column[str], Column[bytes], Column[float]]:
    return (
        Column("cursor", _Whole, primary_key=True, autoincrement=False),
        Column("id", Text, nullable=False, unique=True),
        Column("digest", LargeBinary, nullable=False),
        Column("created_at", Float(53), nullable=False),
    )


def _whole(*names: str, nullable: bool = False) -> list[Column[int]]:
    return [Column(name, _Whole, nullable=nullable) for name in names]


def _text(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def upgrade() -> None:
    """Make the tables."""
    op.create_table("meta", Column("name", Text, primary_key=True), *_whole("value"))
    op.bulk_insert(
        sa.table("meta", sa.column("name"), sa.column("value")),
        [{"name": "schema_version", "value": 2}, {"name": "cursor", "value": 0}],
    )
    _create_groups_and_trajectories()
    _create_steps()
    _create_annotations_and_updates()
    _create_leases()


def _create_groups_and_trajectories() -> None:
    op.create_table(
        "groups",
        *_log(),
        *_text("task_id", "channel"),
        *_whole("size"),
        Column("deadline", Float(53)),
        *_whole("ready_cursor", "ready_version", nullable=True),
    )
    op.create_table(
        "trajectories",
        *_log(),
        Column("group_cursor", _Whole, ForeignKey("groups.cursor"), index=True),
        *_text("task_id", "agent", "source", "status"),
        *_whole("end_cursor", "reward_cursor", "complete_cursor", nullable=True),
        *_whole("steps", "prompt_tokens", "response_tokens"),
        *_whole("policy_version_min", "policy_version_max", nullable=True),
    )


def _create_steps() -> None:
    op.create_table(
        "steps",
        *_log(),
        Column("trajectory_cursor", _Whole, ForeignKey("trajectories.cursor"), nullable=False),
        *_whole("position"),
        Column("base_cursor", _Whole, ForeignKey("steps.cursor")),
        *_whole("prompt_shared"),
        *(Column(name, LargeBinary, nullable=False) for name in ("prompt_tail", "response_ids", "logprobs")),
        *_whole("request_shared"),
        *(Column(name, LargeBinary, nullable=False) for name in ("request_tail", "response")),
        *_whole("policy_version_min", "policy_version_max"),
        *_text("finish_reason", "token_source"),
        Column("temperature", Float(53), nullable=False),
        Column("top_p", Float(53), nullable=False),
        *_whole("top_k", "max_tokens"),
        *_whole("seed", nullable=True),
        *_whole("constrained"),
        *_text("model", "parent_id", "fork", "side"),
        *_whole("prefill"),
        *_text("dialect"),
        Column("latency", Float(53), nullable=False),
        sa.UniqueConstraint("trajectory_cursor", "position"),
    )


def _create_annotations_and_updates() -> None:
    op.create_table(
        "annotations",
        *_log(),
        Column("trajectory_cursor", _Whole, ForeignKey("trajectories.cursor"), nullable=False, index=True),
        Column("step_cursor", _Whole, ForeignKey("steps.cursor")),
        *_text("kind", "name"),
        Column("value", Float(53)),
        *_text("text"),
    )
    op.create_table("updates", *_log(), *_text("run"), *_whole("policy_version"), *_text("metrics"))


def _create_leases() -> None:
    op.create_table(
        "leases",
        Column("id", Text, primary_key=True),
        Column("consumer", Text, nullable=False, index=True),
        *_whole("size"),
        *_text("state"),
        Column("expires_at", Float(53), nullable=False),
    )
    op.create_table(
        "deliveries",
        Column("consumer", Text, primary_key=True),
        Column("group_cursor", _Whole, ForeignKey("groups.cursor"), primary_key=True),
        Column("lease_id", Text, ForeignKey("leases.id"), nullable=False, index=True),
        Column("free_at", Float(53)),
    )
