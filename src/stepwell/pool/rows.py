"""Records to rows and back, exactly: which columns a record decides by itself, and what tells it from another.

Every text of a row is a database text, where NUL and lone surrogates are refused with `InvalidRecord`; only
`Step.request` and `Step.response` are bytes (see `tokens`).
"""

import json
import math
import operator
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from stepwell.errors import InvalidRecord
from stepwell.pool import schema
from stepwell.pool.tokens import WIDTH, Payload
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo

Row = tuple[object, ...]
"""Column values on their way into SQL: of exactly the types str, float, int, bytes and None."""

TABLES: Final[dict[type[Record], sa.Table]] = {
    GroupInfo: schema.groups,
    TrajectoryInfo: schema.trajectories,
    Step: schema.steps,
    Annotation: schema.annotations,
    UpdateInfo: schema.updates,
}
_LARGEST: Final = 2**63 - 1
_TIMES: Final = frozenset({"created_at", "latency"})


class Draft(NamedTuple):
    """A record that can be stored."""

    record: Record
    row: Row
    """The columns that the record alone decides: `COLUMNS` of its kind."""
    digest: bytes
    """[16] equal for two records that have the same content, times aside."""
    payload: Payload | None
    """Of a step."""


COLUMNS: Final[dict[type[Record], tuple[str, ...]]] = {
    GroupInfo: (
        *("id", "created_at", "task_id", "channel", "size", "min_size", "deadline", "priority"),
        *("origin_id", "origin_index"),
    ),
    TrajectoryInfo: ("id", "created_at", "task_id", "agent", "source"),
    Step: (
        *("id", "created_at", "latency", "position", "policy_version_min", "policy_version_max", "finish_reason"),
        *("token_source", "temperature", "top_p", "top_k", "max_tokens", "seed", "constrained", "model", "parent_id"),
        *("fork", "side", "prefill", "dialect", "prompt_tokens", "response_tokens"),
    ),
    Annotation: ("id", "created_at", "kind", "name", "value", "text"),
    UpdateInfo: ("id", "created_at", "run", "policy_version", "metrics"),
}
"""Names of the columns that a record alone decides, in the order of `Draft.row`."""


def draft(record: Record) -> Draft:
    """Encode what the record alone decides.

    Raises:
        InvalidRecord: a text with NUL or a lone surrogate, a float that is not finite, an integer beyond 63 bits.
    """
    if isinstance(record, Step):
        return _step(record)
    kind, names = type(record), COLUMNS[type(record)]
    row = _checked(kind.__name__, names, _values(record))
    # a retry of a request that named no time gets a later one: that does not make it another record
    content = [value for name, value in zip(names, row, strict=True) if name not in _TIMES]
    others = _checked(kind.__name__, ("refers to",) * 2, _references(record))
    return Draft(record, row, digest_of(content, others), None)


def digest_of(*parts: object) -> bytes:
    """16 bytes of the SHA-256 of plain values."""
    return sha256(msgspec.msgpack.encode(parts)).digest()[:16]


def _step(step: Step) -> Draft:
    sampling, payload = step.sampling, Payload.of(step)
    row: Row = (  # in one piece: nested tuples that are spread out cost as much as the checks below
        step.id,
        step.created_at + 0.0,  # + 0.0: SQLite has no negative zero
        step.latency + 0.0,
        step.index,
        step.policy_version_min,
        step.policy_version_max,
        step.finish_reason,
        step.token_source,
        sampling.temperature + 0.0,
        sampling.top_p + 0.0,
        sampling.top_k,
        sampling.max_tokens,
        sampling.seed,
        int(sampling.constrained),
        step.model,
        step.parent_id,
        step.fork,
        step.side,
        step.prefill,
        step.dialect,
        len(payload.prompt) // WIDTH,
        len(payload.response) // WIDTH,
    )
    texts = (step.id, step.trajectory_id, step.model, step.parent_id, step.dialect)
    if not (_plain_step(row) and storable("".join(texts))):
        row = _checked("Step", COLUMNS[Step], row)
        _checked("Step", ("trajectory_id",), (step.trajectory_id,))
    identity = _identity((row[0], row[3:], step.trajectory_id, len(payload.request)))
    return Draft(step, row, sha256(b"".join((identity, *payload))).digest()[:16], payload)


_identity: Final = msgspec.msgpack.Encoder().encode
_SEED: Final = COLUMNS[Step].index("seed")
_KINDS: Final = tuple(
    float if name in ("created_at", "latency", "temperature", "top_p") else str if text else int
    for name in COLUMNS[Step]
    for text in [isinstance(schema.steps.c[name].type, sa.Text)]
)
_PLAIN: Final = frozenset({_KINDS, (*_KINDS[:_SEED], type(None), *_KINDS[_SEED + 1 :])})


def _plain_step(row: Row) -> bool:
    """Whether a step's row needs no check: nearly all do not, and checking value by value costs more than storing."""
    if tuple(map(type, row)) not in _PLAIN:
        return False
    values: Any = row
    seed = values[_SEED] or 0
    whole = max(values[5], values[10], values[11], seed, -seed) <= _LARGEST  # the others are bounded by `Step`
    return whole and math.isfinite(values[1] + values[2])


def _values(record: Record) -> Row:
    """The values of `COLUMNS`, as the record has them."""
    match record:
        case UpdateInfo():
            metrics = json.dumps([(name, float(value)) for name, value in record.metrics])
            return (record.id, float(record.created_at), record.run, record.policy_version, metrics)
        case Annotation():
            return (record.id, float(record.created_at), record.kind, record.name, _real(record.value), record.text)
        case TrajectoryInfo():
            return (record.id, float(record.created_at), record.task_id, record.agent, record.source)
        case GroupInfo():
            return (
                *(record.id, float(record.created_at), record.task_id, record.channel, record.size, record.min_size),
                *(_real(record.deadline), float(record.priority), record.origin_id, record.origin_index),
            )
        case Step():
            raise TypeError("a step has a way of its own")


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


def _references(record: Record) -> tuple[str | None, ...]:
    """What names another record; stored as that record's cursor."""
    match record:
        case TrajectoryInfo():
            return (record.group_id, None)
        case Annotation():
            return (record.target, record.target_id)
        case _:
            return (None, None)


def _checked(kind: str, names: Sequence[str], values: Row) -> Row:
    return tuple(_plain(f"{kind}.{name}", value) for name, value in zip(names, values, strict=True))


def _plain(name: str, value: object) -> object:
    """`value` as the database drivers take it: exactly str, float, int or None."""
    if isinstance(value, str):
        if not storable(value):
            raise InvalidRecord(f"{name} holds NUL or a lone surrogate, which the pool cannot store; remove it")
        return str(value)
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise InvalidRecord(f"{name} must be finite, got {value}")
        return float(value) + 0.0  # SQLite has no negative zero, so no record gets to keep one
    return None if value is None else _integer(name, value)


def storable(text: str) -> bool:
    """Whether a database text can hold it: neither NUL nor a lone surrogate within."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _integer(name: str, value: Any) -> int:
    try:
        whole = operator.index(value)
    except TypeError as error:
        raise InvalidRecord(f"{name} must be an integer, got {value!r}") from error
    if not -_LARGEST <= whole <= _LARGEST:
        raise InvalidRecord(f"{name} must fit in 63 bits, got {whole}")
    return whole


def group_info(row: sa.Row[Any]) -> GroupInfo:
    """Of a row of the table `groups`."""
    return GroupInfo(
        id=row.id,
        task_id=row.task_id,
        channel=row.channel,
        size=row.size,
        min_size=row.min_size,
        deadline=row.deadline,
        priority=row.priority,
        origin_id=row.origin_id,
        origin_index=row.origin_index,
        created_at=row.created_at,
    )


def trajectory_info(row: sa.Row[Any]) -> TrajectoryInfo:
    """Of a row of the table `trajectories` with the id of its group as `group_id`."""
    return TrajectoryInfo(
        id=row.id,
        group_id=row.group_id,
        task_id=row.task_id,
        agent=row.agent,
        source=row.source,
        created_at=row.created_at,
    )


def annotation(row: sa.Row[Any]) -> Annotation:
    """Of a row of the table `annotations` with the ids of its trajectory and of its step, if any."""
    target: Literal["step", "trajectory"] = "trajectory" if row.step_cursor is None else "step"
    return Annotation(
        id=row.id,
        target=target,
        target_id=row.trajectory_id if row.step_cursor is None else row.step_id,
        kind=row.kind,
        name=row.name,
        value=row.value,
        text=row.text,
        created_at=row.created_at,
    )


def update_info(row: sa.Row[Any]) -> UpdateInfo:
    """Of a row of the table `updates`."""
    metrics: Sequence[tuple[str, float]] = json.loads(row.metrics)
    return UpdateInfo(
        id=row.id,
        run=row.run,
        policy_version=row.policy_version,
        metrics=tuple((name, value) for name, value in metrics),
        created_at=row.created_at,
    )
