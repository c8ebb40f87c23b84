"""Records to rows and back, exactly: which columns a record decides by itself, and what tells it from another.

Every text of a row is a database text, where NUL and lone surrogates are refused with `InvalidRecord`; only
`Step.request` and `Step.response` are bytes (see `tokens`).
"""

import json
import math
import operator
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from stepwell.errors import InvalidRecord
from stepwell.pool import schema
from stepwell.pool.tokens import Payload, StepPacker
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo

Row = tuple[object, ...]
"""Column values on their way into SQL: of exactly the types str, float, int, bytes, bytearray and None."""

TABLES: Final[dict[type[Record], sa.Table]] = {
    GroupInfo: schema.groups,
    TrajectoryInfo: schema.trajectories,
    Step: schema.steps,
    Annotation: schema.annotations,
    UpdateInfo: schema.updates,
}
_LARGEST: Final = 2**63 - 1


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


def draft(record: Record, packer: StepPacker | None = None) -> Draft:
    """Encode what the record alone decides; `packer` spares the work of hashing again what its prompt repeats.

    Raises:
        InvalidRecord: a text with NUL or a lone surrogate, a float that is not finite, an integer beyond 63 bits.
    """
    match record:
        case Step():
            return _step(record, packer)
        case Annotation():
            return _annotation(record)
        case TrajectoryInfo():
            row: Row = (record.id, float(record.created_at) + 0.0, record.task_id, record.agent, record.source)
            texts = (record.id, record.group_id or "", record.task_id, record.agent, record.source)
            return _draft(record, row, texts, (record.group_id, None))
        case GroupInfo():
            row = (
                *(record.id, float(record.created_at), record.task_id, record.channel, record.size, record.min_size),
                *(_real(record.deadline), float(record.priority), record.origin_id, record.origin_index),
            )
        case UpdateInfo():
            metrics = json.dumps([(name, float(value)) for name, value in record.metrics])
            row = (record.id, float(record.created_at), record.run, record.policy_version, metrics)
    return _draft(record, row, None, (None, None))


def digest_of(*parts: object) -> bytes:
    """16 bytes of the SHA-256 of plain values."""
    return sha256(_encode(parts)).digest()[:16]


def _annotation(note: Annotation) -> Draft:
    value = None if note.value is None else float(note.value) + 0.0
    row: Row = (note.id, float(note.created_at) + 0.0, note.kind, note.name, value, note.text)
    return _draft(note, row, (note.id, note.name, note.text, note.target_id), (note.target, note.target_id))


def _draft(record: Record, row: Row, texts: tuple[str, ...] | None, refers_to: Row) -> Draft:
    """Of anything but a step; `texts`: all that could be refused, if its numbers cannot be."""
    kind = type(record)
    plain = texts is not None and tuple(map(type, row)) in _PLAIN[kind] and _TEXTS.issuperset(map(type, refers_to))
    if not (plain and storable("".join(texts or ()))):
        row = _checked(kind.__name__, COLUMNS[kind], row)
        refers_to = _checked(kind.__name__, ("refers to",) * 2, refers_to)
    # a retry of a request that named no time gets a later one: that does not make it another record
    content = (row[0], *row[2:])
    return Draft(record, row, digest_of(content, refers_to), None)


def _step(step: Step, packer: StepPacker | None) -> Draft:
    sampling, payload = step.sampling, packer.payload(step) if packer else Payload.of(step)
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
        len(step.prompt_ids),
        len(step.response_ids),
    )
    texts = (step.id, step.trajectory_id, step.model, step.parent_id, step.dialect)
    if not (_plain_step(row) and storable("".join(texts))):
        row = _checked("Step", COLUMNS[Step], row)
        _checked("Step", ("trajectory_id",), (step.trajectory_id,))
    identity = _encode((row[0], row[3:], step.trajectory_id, len(payload.request), payload.hashed.digest()))
    rest = b"".join((identity, payload.logprobs, payload.request, payload.message))
    return Draft(step, row, sha256(rest).digest()[:16], payload)


def _signatures(kind: type[Record]) -> frozenset[tuple[type, ...]]:
    """The types that the values of a row have if they are exactly what its columns hold."""
    columns = [TABLES[kind].c[name] for name in COLUMNS[kind]]
    return frozenset(product(*([_held(column), *([type(None)] if column.nullable else [])] for column in columns)))


def _held(column: sa.Column[Any]) -> type:
    return str if isinstance(column.type, sa.Text) else float if isinstance(column.type, sa.Float) else int


_encode: Final = msgspec.msgpack.Encoder().encode
_PLAIN: Final = {kind: _signatures(kind) for kind in TABLES}
_TEXTS: Final = frozenset({str, type(None)})
_UNBOUNDED: Final = operator.itemgetter(
    *map(COLUMNS[Step].index, ("latency", "policy_version_max", "top_k", "max_tokens", "seed"))
)
"""What `Step` itself sets no bound to."""


def _plain_step(row: Row) -> bool:
    """Whether a step's row needs no check: nearly all do not, and checking value by value costs more than storing."""
    if tuple(map(type, row)) not in _PLAIN[Step]:
        return False
    latency, version, top_k, max_tokens, seed = _UNBOUNDED(row)
    whole = version <= _LARGEST and top_k <= _LARGEST and max_tokens <= _LARGEST
    return whole and (seed is None or -_LARGEST <= seed <= _LARGEST) and math.isfinite(latency)


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


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
