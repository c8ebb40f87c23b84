"""The one schema of the pool: every column declared once, with what it holds, in types that any SQL engine has.

Every record takes its place on one log: a `cursor`, drawn from the `meta` table inside the write transaction, so that
cursors become visible in order whoever writes. It is also the record's short name in references: rows stay small. That
what a record refers to exists is seen to by the writer whose turn it is: a foreign key would look at each row again.
Columns marked *derived* are folds of the log, kept up to date in the transaction that appends; `verify` checks both.
"""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, LargeBinary, Text

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Whole = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's INTEGER has 64 bits, and only it makes a rowid key
_Real = Float(53)


def _log_columns() -> tuple[Column[int], Column[str], Column[float], Column[bytes]]:
    return (
        Column("cursor", _Whole, primary_key=True, autoincrement=False, comment="place in the log, from 1"),
        Column("id", Text, nullable=False, unique=True, comment="id that its maker gave the record"),
        Column("created_at", _Real, nullable=False, comment="Unix time in seconds"),
        Column(
            "digest", LargeBinary, nullable=False, comment="16 bytes of the content's SHA-256: a retry or a conflict?"
        ),
    )


meta = sa.Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True, comment="`cursor`"),
    Column("value", _Whole, nullable=False, comment="the newest cursor given out"),
)

groups = sa.Table(
    "groups",
    metadata,
    *_log_columns(),
    Column("task_id", Text, nullable=False, index=True, comment="the task that all its trajectories attempt"),
    Column("channel", Text, nullable=False, comment="whom it is collected for"),
    Column("size", _Whole, nullable=False, comment="complete trajectories that make it ready"),
    Column("min_size", _Whole, comment="how many are enough once the deadline has passed; null: only `size`"),
    Column("deadline", _Real, comment="Unix time at which it is settled; null: never"),
    Column("priority", _Real, nullable=False, comment="higher is handed over first, where that order is asked for"),
    Column("origin_id", Text, nullable=False, comment="trajectory that its siblings are forks of; empty: none"),
    Column("origin_index", _Whole, comment="step of the origin at which they part; null: none"),
    Column("dropped", Text, nullable=False, comment="derived: why it will never be ready; empty: it may, or it is"),
    Column("ready_cursor", _Whole, comment="derived: where in the log it became ready; null until then"),
    Column("ready_version", _Whole, comment="derived: lowest policy version in what is handed over; null: no steps"),
    Index("ix_groups_by_channel", "channel", "ready_cursor"),
    Index("ix_groups_by_readiness", "ready_cursor"),
)
unsettled = sa.and_(groups.c.ready_cursor.is_(None), groups.c.dropped == sa.literal_column("''"))
"""Of a group: it is neither ready nor dropped."""
Index("ix_groups_by_deadline", groups.c.deadline, sqlite_where=unsettled, postgresql_where=unsettled)

trajectories = sa.Table(
    "trajectories",
    metadata,
    *_log_columns(),
    Column("group_cursor", _Whole, index=True, comment="its group, if it has one"),
    Column("task_id", Text, nullable=False, index=True, comment="the task it attempts; empty if unknown"),
    Column("agent", Text, nullable=False, index=True, comment="name of the agent that drives it"),
    Column("source", Text, nullable=False, comment="`gateway`, `rollout`, `eval`, `import` or `events`"),
    Column("channel", Text, nullable=False, comment="derived: that of its group; `default` without a group"),
    Column("status", Text, nullable=False, comment="derived: `open`, or how it ended"),
    Column("end_cursor", _Whole, comment="derived: its first end annotation"),
    Column("reward_cursor", _Whole, comment="derived: its first reward, of any step or of the whole"),
    Column("complete_cursor", _Whole, comment="derived: where it was both ended, not failed, and rewarded"),
    Column("reward", _Real, comment="derived: sum of the rewards that hold; null without any"),
    Column("verdict", Text, nullable=False, comment="derived: `accept`, `reject` or `clear`, steps included"),
    Column("steps", _Whole, nullable=False, comment="derived: number of steps"),
    Column("next_index", _Whole, nullable=False, comment="derived: highest `Step.index`, plus 1"),
    Column("prompt_tokens", _Whole, nullable=False, comment="derived: sum of P over its steps"),
    Column("response_tokens", _Whole, nullable=False, comment="derived: sum of R over its steps"),
    Column("policy_version_min", _Whole, index=True, comment="derived: lowest over its steps; null without steps"),
    Column("policy_version_max", _Whole, comment="derived: highest over its steps; null without steps"),
    Index("ix_trajectories_by_channel", "channel", "complete_cursor"),
    Index("ix_trajectories_by_completion", "complete_cursor"),
    # Rows change with each step; if there is room for the new one beside the old, no index has to change.
    postgresql_with={"fillfactor": 50},
)

steps = sa.Table(
    "steps",
    metadata,
    *_log_columns(),
    Column("trajectory_cursor", _Whole, nullable=False, comment="its episode"),
    Column("position", _Whole, nullable=False, comment="`Step.index`, from 0"),
    Column("policy_version_min", _Whole, nullable=False, comment="lowest version that sampled one of its tokens"),
    Column("policy_version_max", _Whole, nullable=False, comment="highest version that sampled one of its tokens"),
    Column("finish_reason", Text, nullable=False, comment="`stop`, `length` or `abort`"),
    Column("token_source", Text, nullable=False, comment="`engine` or `text`"),
    Column("temperature", _Real, nullable=False, comment="sampling: divides the logits"),
    Column("top_p", _Real, nullable=False, comment="sampling: nucleus mass"),
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
    Column("latency", _Real, nullable=False, comment="seconds from the request to the last token"),
    Column("prompt_tokens", _Whole, nullable=False, comment="P"),
    Column("response_tokens", _Whole, nullable=False, comment="R"),
    Column("base_cursor", _Whole, comment="step that its prompt is stored against"),
    Column("prompt_shared", _Whole, nullable=False, comment="leading tokens equal to the base's prompt and response"),
    Column(
        "tokens",
        LargeBinary,
        nullable=False,
        comment="the other prompt tokens, then the response: int32 little-endian, the bytes by significance, zstd",
    ),
    Column("logprobs", LargeBinary, nullable=False, comment="[R] float32 little-endian, nats"),
    Column("request_shared", _Whole, nullable=False, comment="leading bytes equal to the base's request"),
    Column("request_rest", _Whole, nullable=False, comment="bytes of the request after those"),
    Column(
        "texts",
        LargeBinary,
        nullable=False,
        comment="the rest of the request, then the assistant message: JSON in UTF-8, zstd; empty: both are",
    ),
    sa.UniqueConstraint("trajectory_cursor", "position"),
    Index("ix_steps_by_time", "created_at", "finish_reason", "latency", "response_tokens"),
)

annotations = sa.Table(
    "annotations",
    metadata,
    *_log_columns(),
    Column("trajectory_cursor", _Whole, nullable=False, index=True, comment="about it"),
    Column("step_cursor", _Whole, comment="about this step of it; null: about the whole"),
    Column("kind", Text, nullable=False, comment="`reward`, `end`, `feedback`, `event`, `verdict`, `tag` or `note`"),
    Column("name", Text, nullable=False, comment="name of the part, how it ended, the verdict, the tag, the event"),
    Column("value", _Real, comment="the reward or score; null if there is none"),
    Column("text", Text, nullable=False, comment="words that go with it"),
)

tags = sa.Table(
    "tags",
    metadata,
    Column("tag", Text, primary_key=True, comment="derived: a label"),
    Column(
        "trajectory_cursor",
        _Whole,
        ForeignKey("trajectories.cursor"),
        primary_key=True,
        index=True,
        comment="derived: a trajectory that has it, or has a step that does",
    ),
)

updates = sa.Table(
    "updates",
    metadata,
    *_log_columns(),
    Column("run", Text, nullable=False, comment="name of the training run"),
    Column("policy_version", _Whole, nullable=False, comment="version that the update published"),
    Column("metrics", Text, nullable=False, comment="JSON list of [name, value]; NaN and Infinity may occur"),
)

credits = sa.Table(
    "credits",
    metadata,
    Column("run", Text, primary_key=True, comment="name of the training run"),
    Column(
        "policy_version", _Whole, primary_key=True, autoincrement=False, comment="version that the update published"
    ),
    Column("created_at", _Real, nullable=False, comment="Unix time in seconds"),
    Column(
        "steps",
        LargeBinary,
        nullable=False,
        comment="list of `StepCredit`, what became of each step: MessagePack, zstd",
    ),
)

leases = sa.Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True, comment="id of the lease"),
    Column("consumer", Text, nullable=False, comment="who holds it"),
    Column("epoch", _Whole, nullable=False, comment="the pass over the data that it belongs to"),
    Column("size", _Whole, nullable=False, comment="number of units that it handed over"),
    Column("state", Text, nullable=False, comment="`held`, `acknowledged` or `released`"),
    Column("expires_at", _Real, nullable=False, comment="Unix time in seconds"),
    Index("ix_leases_by_consumer", "consumer", "state"),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    Column("consumer", Text, primary_key=True, comment="who was given the unit"),
    Column("epoch", _Whole, primary_key=True, comment="in which pass over the data"),
    Column("unit_cursor", _Whole, primary_key=True, comment="the group or trajectory"),
    Column("lease_id", Text, index=True, comment="the lease that has it last; null: it was dropped"),
    Column("free_at", _Real, comment="Unix time from which it may be given again; null: acknowledged or dropped"),
    Column("dropped", Text, nullable=False, comment="why the consumer never got it; empty: it did"),
    Column("steps", _Whole, nullable=False, comment="steps that were handed over"),
    Column("tokens", _Whole, nullable=False, comment="their tokens, prompts included"),
    Index("ix_deliveries_by_unit", "unit_cursor"),
)

frontiers = sa.Table(
    "frontiers",
    metadata,
    Column("consumer", Text, primary_key=True, comment="who consumes"),
    Column("epoch", _Whole, primary_key=True, comment="in which pass over the data"),
    Column("unit", Text, primary_key=True, comment="`group`, `siblings` or `trajectory`"),
    Column("channel", Text, primary_key=True, comment="from which channel; empty: from all"),
    Column("cursor", _Whole, nullable=False, comment="every unit that was ready up to here is done with"),
)

producers = sa.Table(
    "producers",
    metadata,
    Column("name", Text, primary_key=True, comment="a process that makes steps"),
    Column("alive_until", _Real, nullable=False, comment="Unix time until which it counts as alive"),
)

selections = sa.Table(
    "selections",
    metadata,
    Column("name", Text, primary_key=True, comment="name of the selection"),
    Column("definition", Text, nullable=False, comment="JSON of the selection"),
    Column("created_at", _Real, nullable=False, comment="Unix time in seconds at which it was last saved"),
)

datasets = sa.Table(
    "datasets",
    metadata,
    Column("name", Text, primary_key=True, comment="name of the dataset"),
    Column("version", _Whole, primary_key=True, comment="from 1; a version never changes"),
    Column("unit", Text, nullable=False, comment="what it consists of: `group`, `siblings` or `trajectory`"),
    Column("digest", Text, nullable=False, comment="SHA-256 over the digests of all its records, hexadecimal"),
    Column("manifest", Text, nullable=False, comment="JSON: where it comes from; see docs/reference/files.md"),
    Column("created_at", _Real, nullable=False, comment="Unix time in seconds"),
)

dataset_units = sa.Table(
    "dataset_units",
    metadata,
    Column("name", Text, primary_key=True, comment="name of the dataset"),
    Column("version", _Whole, primary_key=True, comment="its version"),
    Column("unit_cursor", _Whole, primary_key=True, comment="a group or trajectory of it"),
    Column("members", LargeBinary, nullable=False, comment="cursors of its trajectories: int64 little-endian"),
    Column("digests", LargeBinary, nullable=False, comment="16 bytes for the content of each of them"),
    sa.ForeignKeyConstraint(["name", "version"], ["datasets.name", "datasets.version"]),
)
