"""Records to rows and back, exactly. The only place that knows how a token, a float or a text lies in the database.

A prompt mostly repeats what its trajectory already holds, so a step stores how many leading tokens equal the context
(prompt and response) of a *base* step, and only the rest; the same for the bytes of its request. Text is kept as UTF-8:
in `Step.request` and `Step.response` even lone surrogates, which agents do produce, come back exactly; every other text
is a database text, where they and NUL are refused with `InvalidRecord`.
"""

import json
import math
import operator
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
import zstandard

from stepwell.errors import InvalidRecord, PoolError
from stepwell.types import (
    Annotation,
    Floats,
    GroupInfo,
    Ids,
    Record,
    Sampling,
    Step,
    TrajectoryInfo,
    UpdateInfo,
)

Row = dict[str, object]
"""Column values on their way into SQL."""

_LEVEL: Final = 3
_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")
_LARGEST: Final = 2**63 - 1
_CACHE_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that can be stored: what does not depend on the pool is already encoded."""

    record: Record
    row: Row
    """All columns whose value the record alone decides, save the packed ones of a step; `digest` included."""


def draft(record: Record) -> Draft:
    """Encode what the record alone decides.

    Raises:
        InvalidRecord: a text with NUL or a lone surrogate, a float that is not finite, an integer beyond 63 bits.
    """
    kind = type(record).__name__
    row = {name: _plain(f"{kind}.{name}", value) for name, value in _scalars(record).items()}
    others = [_plain(f"{kind}.{name}", value) for name, value in _references(record).items()]
    # a retry of a request that named no time gets a later one: that does not make it another record
    content = [value for name, value in row.items() if name not in ("created_at", "latency")]
    identity = repr((*content, *others)).encode()
    return Draft(record, {**row, "digest": _digest(identity, *_payload(record))})


def _scalars(record: Record) -> Row:
    row: Row = {"id": record.id, "created_at": float(record.created_at)}
    match record:
        case GroupInfo():
            deadline = None if record.deadline is None else float(record.deadline)
            return row | {
                "task_id": record.task_id,
                "channel": record.channel,
                "size": record.size,
                "deadline": deadline,
            }
        case TrajectoryInfo():
            return row | {"task_id": record.task_id, "agent": record.agent, "source": record.source}
        case Step():
            return row | _step_scalars(record)
        case Annotation():
            value = None if record.value is None else float(record.value)
            return row | {"kind": record.kind, "name": record.name, "value": value, "text": record.text}
        case UpdateInfo():
            metrics = json.dumps([(name, float(value)) for name, value in record.metrics])
            return row | {"run": record.run, "policy_version": record.policy_version, "metrics": metrics}


def _step_scalars(step: Step) -> Row:
    return {
        "position": step.index,
        "policy_version_min": step.policy_version_min,
        "policy_version_max": step.policy_version_max,
        "finish_reason": step.finish_reason,
        "token_source": step.token_source,
        "temperature": float(step.sampling.temperature),
        "top_p": float(step.sampling.top_p),
        "top_k": step.sampling.top_k,
        "max_tokens": step.sampling.max_tokens,
        "seed": step.sampling.seed,
        "constrained": int(step.sampling.constrained),
        "model": step.model,
        "parent_id": step.parent_id,
        "fork": step.fork,
        "side": step.side,
        "prefill": step.prefill,
        "dialect": step.dialect,
        "latency": float(step.latency),
    }


def _plain(name: str, value: object) -> object:
    """`value` as the database drivers take it: exactly str, float, int or None."""
    if isinstance(value, str):
        if not storable(value):
            raise InvalidRecord(f"{name} holds NUL or a lone surrogate, which the pool cannot store; remove it")
        return str(value)
    if isinstance(value, float):
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


def _references(record: Record) -> dict[str, str | None]:
    """What names another record; stored as that record's cursor."""
    match record:
        case TrajectoryInfo():
            return {"group_id": record.group_id}
        case Step():
            return {"trajectory_id": record.trajectory_id}
        case Annotation():
            return {"target": record.target, "target_id": record.target_id}
        case _:
            return {}


def _payload(record: Record) -> tuple[bytes, ...]:
    if not isinstance(record, Step):
        return ()
    arrays = (record.prompt_ids.astype(_INT32), record.response_ids.astype(_INT32), record.logprobs.astype(_FLOAT32))
    return (*(array.tobytes() for array in arrays), _utf8(record.request), _utf8(record.response))


def _digest(*parts: bytes) -> bytes:
    whole = blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class _Context:
    """What the next step of a trajectory may repeat."""

    cursor: int
    ids: Ids
    request: bytes

    @property
    def size(self) -> int:
        return self.ids.nbytes + len(self.request)


class StepPacker:
    """Packs the steps of one writer, each against the last one that it packed of the same trajectory.

    Bases are kept within a budget of bytes. A step whose base is not at hand (after a restart, say) is stored whole, so
    writing never reads. Not thread-safe.
    """

    def __init__(self, budget: int = _CACHE_BYTES) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._contexts: OrderedDict[int, _Context] = OrderedDict()
        self._budget = budget
        self._held = 0

    def pack(self, step: Step, *, trajectory: int, cursor: int) -> Row:
        """The packed columns of `step`, which will be stored at `cursor`."""
        base = self._contexts.get(trajectory)
        request = _utf8(step.request)
        tokens_shared = _shared(base.ids, step.prompt_ids) if base else 0
        bytes_shared = _shared(_octets(base.request), _octets(request)) if base else 0
        useful = tokens_shared or bytes_shared
        self._keep(trajectory, _Context(cursor, np.concatenate((step.prompt_ids, step.response_ids)), request))
        compress = self._compressor.compress
        return {
            "base_cursor": base.cursor if base and useful else None,
            "prompt_shared": tokens_shared,
            "prompt_tail": compress(step.prompt_ids[tokens_shared:].astype(_INT32).tobytes()),
            "response_ids": compress(step.response_ids.astype(_INT32).tobytes()),
            "logprobs": compress(step.logprobs.astype(_FLOAT32).tobytes()),
            "request_shared": bytes_shared,
            "request_tail": compress(request[bytes_shared:]),
            "response": compress(_utf8(step.response)),
        }

    def forget(self) -> None:
        """Drop all bases: a transaction was rolled back, and steps that were packed in it are not in the pool."""
        self._contexts.clear()
        self._held = 0

    def _keep(self, trajectory: int, context: _Context) -> None:
        before = self._contexts.pop(trajectory, None)
        self._contexts[trajectory] = context
        self._held += context.size - (before.size if before else 0)
        while self._held > self._budget:
            self._held -= self._contexts.popitem(last=False)[1].size


def _octets(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _shared(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


class StepUnpacker:
    """Unpacks steps of one trajectory, given in the order of their cursors from the first base on."""

    def __init__(self, trajectory_id: str) -> None:
        self._trajectory_id = trajectory_id
        self._decompress = zstandard.ZstdDecompressor().decompress
        self._contexts: dict[int, _Context] = {}

    def unpack(self, row: sa.Row[Any]) -> Step:
        """One step of a row with all columns of the table `steps`.

        Raises:
            PoolError: the stored bytes are damaged.
        """
        try:
            return self._step(row)
        except (zstandard.ZstdError, KeyError, ValueError) as error:
            raise PoolError(f"step {row.id} is damaged in the pool: {error!r}") from error

    def _step(self, row: sa.Row[Any]) -> Step:
        base = self._contexts[row.base_cursor] if row.base_cursor is not None else None
        prompt: Ids = np.frombuffer(self._decompress(row.prompt_tail), _INT32)
        request = self._decompress(row.request_tail)
        if base:
            prompt = np.concatenate((base.ids[: row.prompt_shared], prompt))
            request = base.request[: row.request_shared] + request
        response: Ids = np.frombuffer(self._decompress(row.response_ids), _INT32)
        logprobs: Floats = np.frombuffer(self._decompress(row.logprobs), _FLOAT32)
        self._contexts[row.cursor] = _Context(row.cursor, np.concatenate((prompt, response)), request)
        return Step(
            id=row.id,
            trajectory_id=self._trajectory_id,
            index=row.position,
            prompt_ids=prompt,
            response_ids=response,
            logprobs=logprobs,
            policy_version_min=row.policy_version_min,
            policy_version_max=row.policy_version_max,
            finish_reason=row.finish_reason,
            token_source=row.token_source,
            sampling=_sampling(row),
            model=row.model,
            parent_id=row.parent_id,
            fork=row.fork,
            side=row.side,
            prefill=row.prefill,
            dialect=row.dialect,
            request=request.decode("utf-8", "surrogatepass"),
            response=self._decompress(row.response).decode("utf-8", "surrogatepass"),
            created_at=row.created_at,
            latency=row.latency,
        )


def _sampling(row: sa.Row[Any]) -> Sampling:
    return Sampling(
        temperature=row.temperature,
        top_p=row.top_p,
        top_k=row.top_k,
        max_tokens=row.max_tokens,
        seed=row.seed,
        constrained=bool(row.constrained),
    )


def group_info(row: sa.Row[Any]) -> GroupInfo:
    """Of a row of the table `groups`."""
    return GroupInfo(
        id=row.id,
        task_id=row.task_id,
        channel=row.channel,
        size=row.size,
        deadline=row.deadline,
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


def annotation(row: sa.Row[Any], trajectory_id: str) -> Annotation:
    """Of a row of the table `annotations` with the id of its step, if any, as `step_id`."""
    return Annotation(
        id=row.id,
        target="trajectory" if row.step_cursor is None else "step",
        target_id=trajectory_id if row.step_cursor is None else row.step_id,
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
