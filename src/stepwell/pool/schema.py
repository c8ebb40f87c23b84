"""The one schema of the pool: every column declared once, with what it holds, in types that any SQL engine has.

Every record takes its place on one log: a `cursor`, drawn from the `meta` table inside the write transaction, so that
cursors become visible in order whoever writes. It is also the record's short name in references: rows stay small.
Columns marked *derived* are folds of the log, kept up to date in the transaction that appends.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, LargeBinary, Text

from stepwell.errors import PoolError

SCHEMA_VERSION: Final = 2

metadata = sa.MetaData()

_Whole = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's INTEGER has 64 bits, and only it makes a rowid key


def _log_columns() -> tuple[Column[int], Column[str], Column[bytes], Column[float]]:
    return (
        Column("cursor", _Whole, primary_key=True, autoincrement=False, comment="place in the log, from 1"),
        Column("id", Text, nullable=False, unique=True, comment="id that its maker gave the record"),
        Column(
            "digest", LargeBinary, nullable=False, comment="BLAKE2b-128 of the content: tells a retry from a conflict"
        ),
        Column("created_at", Float(53), nullable=False, comment="Unix time in seconds"),
    )


meta = sa.Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True, comment="`schema_version` or `cursor`"),
    Column("value", _Whole, nullable=False, comment="version of this schema; the newest cursor given out"),
)

groups = sa.Table(
    "groups",
    metadata,
    *_log_columns(),
    Column("task_id", Text, nullable=False, comment="the task that all its trajectories attempt"),
    Column("channel", Text, nullable=False, comment="whom it is collected for"),
    Column("size", _Whole, nullable=False, comment="complete trajectories that make it ready"),
    Column("deadline", Float(53), comment="Unix time by which they should have ended; null: none"),
    Column("ready_cursor", _Whole, comment="derived: where in the log it became ready; null until then"),
    Column("ready_version", _Whole, comment="derived: lowest policy version in what is handed over; null: no steps"),
)

trajectories = sa.Table(
    "trajectories",
    metadata,
    *_log_columns(),
    Column("group_cursor", _Whole, ForeignKey("groups.cursor"), index=True, comment="its group, if it has one"),
    Column("task_id", Text, nullable=False, comment="the task it attempts; empty if unknown"),
    Column("agent", Text, nullable=False, comment="name of the agent that drives it"),
    Column("source", Text, nullable=False, comment="`gateway`, `rollout`, `eval`, `import` or `events`"),
    Column("status", Text, nullable=False, comment="derived: `open`, or how it ended"),
    Column("end_cursor", _Whole, comment="derived: its first end annotation"),
    Column("reward_cursor", _Whole, comment="derived: its first reward, of any step or of the whole"),
    Column("complete_cursor", _Whole, comment="derived: where it was both ended, not failed, and rewarded"),
    Column("steps", _Whole, nullable=False, comment="derived: number of steps"),
    Column("prompt_tokens", _Whole, nullable=False, comment="derived: sum of P over its steps"),
    Column("response_tokens", _Whole, nullable=False, comment="derived: sum of R over its steps"),
    Column("policy_version_min", _Whole, comment="derived: lowest over its steps; null without steps"),
    Column("policy_version_max", _Whole, comment="derived: highest over its steps; null without steps"),
)

steps = sa.Table(
    "steps",
    metadata,
    *_log_columns(),
    Column("trajectory_cursor", _Whole, ForeignKey("trajectories.cursor"), nullable=False, comment="its episode"),
    Column("position", _Whole, nullable=False, comment="`Step.index`, from 0"),
    Column("base_cursor", _Whole, ForeignKey("steps.cursor"), comment="step that the prompt is stored against"),
    Column("prompt_shared", _Whole, nullable=False, comment="leading tokens equal to the base's prompt and response"),
    Column("prompt_tail", LargeBinary, nullable=False, comment="the other prompt tokens: int32 little-endian, zstd"),
    Column("response_ids", LargeBinary, nullable=False, comment="[R] int32 little-endian, zstd"),
    Column("logprobs", LargeBinary, nullable=False, comment="[R] float32 little-endian, nats, zstd"),
    Column("request_shared", _Whole, nullable=False, comment="leading bytes equal to the base's request"),
    Column("request_tail", LargeBinary, nullable=False, comment="the other bytes of the request: JSON in UTF-8, zstd"),
    Column("response", LargeBinary, nullable=False, comment="assistant message: JSON in UTF-8, zstd"),
    Column("policy_version_min", _Whole, nullable=False, comment="lowest version that sampled one of its tokens"),
    Column("policy_version_max", _Whole, nullable=False, comment="highest version that sampled one of its tokens"),
    Column("finish_reason", Text, nullable=False, comment="`stop`, `length` or `abort`"),
    Column("token_source", Text, nullable=False, comment="`engine` or `text`"),
    Column("temperature", Float(53), nullable=False, comment="sampling: divides the logits"),
    Column("top_p", Float(53), nullable=False, comment="sampling: nucleus mass"),
    Column("top_k", _Whole, nullable=False, comment="sampling: candidates kept; 0 keeps all"),
    Column("max_tokens", _Whole, nullable=False, comment="sampling: upper bound on R"),
    Column("seed", _Whole, comment="sampling: seed of the request; null: the engine's stream"),
    Column("constrained", _Whole, nullable=False, comment="sampling: 1 if a JSON schema limited the candidates"),
    Column("model", Text, nullable=False, comment="name of the model that answered"),
    Column("parent_id", Text, nullable=False, comment="id of the step that it goes on from; empty: none"),
    Column("fork", Text, nullable=False, comment="why it does not begin with the parent's ids; empty: it does"),
    Column("side", Text, nullable=False, comment="what a call beside the agent's work was for; empty: its work"),
    Column("prefill", _Whole, nullable=False, comment="trailing prompt tokens that begin the answer"),
    Column("dialect", Text, nullable=False, comment="wire format of the request; empty: no call"),
    Column("latency", Float(53), nullable=False, comment="seconds from the request to the last token"),
    sa.UniqueConstraint("trajectory_cursor", "position"),
)

annotations = sa.Table(
    "annotations",
    metadata,
    *_log_columns(),
    Column(
        "trajectory_cursor", _Whole, ForeignKey("trajectories.cursor"), nullable=False, index=True, comment="about it"
    ),
    Column("step_cursor", _Whole, ForeignKey("steps.cursor"), comment="about this step of it; null: about the whole"),
    Column("kind", Text, nullable=False, comment="`reward`, `end`, `feedback` or `event`"),
    Column("name", Text, nullable=False, comment="name of the part, how it ended, or which feedback or event"),
    Column("value", Float(53), comment="the reward or score; null if there is none"),
    Column("text", Text, nullable=False, comment="words that go with it"),
)

updates = sa.Table(
    "updates",
    metadata,
    *_log_columns(),
    Column("run", Text, nullable=False, comment="name of the training run"),
    Column("policy_version", _Whole, nullable=False, comment="version that the update published"),
    Column("metrics", Text, nullable=False, comment="JSON list of [name, value]; NaN and Infinity may occur"),
)

leases = sa.Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True, comment="id of the lease"),
    Column("consumer", Text, nullable=False, index=True, comment="who holds it"),
    Column("size", _Whole, nullable=False, comment="number of groups that it handed over"),
    Column("state", Text, nullable=False, comment="`held`, `acknowledged` or `released`"),
    Column("expires_at", Float(53), nullable=False, comment="Unix time in seconds"),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    Column("consumer", Text, primary_key=True, comment="who was given the group"),
    Column("group_cursor", _Whole, ForeignKey("groups.cursor"), primary_key=True, comment="the group"),
    Column("lease_id", Text, ForeignKey("leases.id"), nullable=False, index=True, comment="the lease that has it last"),
    Column("free_at", Float(53), comment="Unix time from which it may be given again; null: acknowledged, never"),
)


def prepare(connection: sa.Connection) -> None:
    """Create the tables in an empty database; check the schema version of any other.

    Raises:
        PoolError: the database belongs to something else, or to a newer Stepwell.
    """
    if verify(connection):
        return
    metadata.create_all(connection)
    rows = [{"name": "schema_version", "value": SCHEMA_VERSION}, {"name": "cursor", "value": 0}]
    connection.execute(sa.insert(meta), rows)


def verify(connection: sa.Connection) -> bool:
    """Whether the database holds a pool of this schema version; False if it is empty.

    Raises:
        PoolError: the database belongs to something else, or to a newer Stepwell.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return False
    if not tables >= set(metadata.tables):
        raise PoolError("it is a database, but not of a Stepwell pool; choose another file")
    version = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "schema_version"))
    if version != SCHEMA_VERSION:
        raise PoolError(f"its schema has version {version}, this Stepwell reads {SCHEMA_VERSION}; upgrade Stepwell")
    return True
