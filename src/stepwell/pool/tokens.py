"""How token ids, log-probabilities and texts of a step lie in the database, and how they come back bit for bit.

A prompt mostly repeats what its trajectory already holds, so a step stores how many leading tokens equal the context
(prompt and response) of a *base* step, and only the rest; the same for the bytes of its request. The ids are stored
byte by significance (all lowest bytes, then all second ones, and so on), which zstd packs better and faster.
Log-probabilities are stored as they are: their bits are noise, which nothing packs. Text is UTF-8 in which even lone
surrogates, which agents do produce, come back exactly.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa
import zstandard

from stepwell.errors import PoolError
from stepwell.pool.recent import Recent
from stepwell.types import Floats, Ids, Sampling, Step

_TOKENS_LEVEL: Final = -1  # half the time of level 1 for a sixth more bytes
_TEXT_LEVEL: Final = 1
_INT32: Final = np.dtype("<i4")
_BYTE: Final = np.dtype(np.uint8)
_FLOAT32: Final = np.dtype("<f4")
WIDTH: Final = 4
"""Bytes of an id, and of a log-probability."""
_CACHE_BYTES: Final = 64 * 2**20
_HASH_BYTES: Final = 512  # about what a running hash takes
LONGEST_CHAIN: Final = 64
"""Steps that are stored against each other before one is stored whole: so many are read to read any one."""

PACKED: Final = ("base_cursor", "prompt_shared", "tokens", "logprobs", "request_shared", "request_rest", "texts")
"""The columns of a step that `StepPacker.pack` gives, in its order."""


class Payload(NamedTuple):
    """What is large in a step, as little-endian bytes and UTF-8."""

    trajectory_id: str
    prompt: bytes
    """Ids."""
    response: bytes
    """Ids."""
    logprobs: bytearray
    """No `bytes`: sqlite3 looks for an adapter for each of those, which takes it longer than to store them."""
    request: bytes
    message: bytes
    hashed: Any
    """SHA-256 of the ids."""
    after: "_Last | None"
    """The step whose prompt and response the prompt begins with; None: that is not known."""
    added: bytes
    """The ids after those."""

    @classmethod
    def of(cls, step: Step, last: "_Last | None" = None) -> "Payload":
        """The payload of `step`, with less work if it goes on from `last`, which then has no hash any more."""
        prompt = step.prompt_ids.astype(_INT32, copy=False).tobytes()
        response = step.response_ids.astype(_INT32, copy=False).tobytes()
        if last is not None and prompt.startswith(last.prompt) and prompt.startswith(last.response, len(last.prompt)):
            added = prompt[len(last.prompt) + len(last.response) :] + response
            hashed, last.hashed = last.hashed, None
        else:
            last, hashed, added = None, None, prompt + response
        if hashed is None:
            hashed = sha256(prompt + response)
        else:
            hashed.update(added)
        return cls(
            step.trajectory_id,
            prompt,
            response,
            bytearray(step.logprobs.astype(_FLOAT32, copy=False)),
            step.request.encode("utf-8", "surrogatepass"),
            step.response.encode("utf-8", "surrogatepass"),
            hashed,
            last,
            added,
        )


@dataclass(slots=True, eq=False)
class _Last:
    """What the next step of a trajectory may repeat."""

    trajectory: int
    """Cursor of it: one that was forgotten may come again under its old id."""
    cursor: int
    number: int
    """Steps that the trajectory had before this one."""
    depth: int
    """Steps that must be read to read this one, itself included."""
    prompt: bytes
    response: bytes
    request: bytes
    hashed: Any
    """SHA-256 of the ids, to go on with; None: a step that may never have been packed has taken it."""

    def comes_before(self, trajectory: int, number: int) -> bool:
        """Whether this is the step just before the one with these; another process may have added some since."""
        return self.trajectory == trajectory and self.number + 1 == number


class StepPacker:
    """Packs the steps of one writer, each against the last one that it packed of the same trajectory.

    Last steps are kept within a budget of bytes. A step that finds none (after a restart, say) is stored whole, so
    writing never reads. Not thread-safe.
    """

    def __init__(self, budget: int = _CACHE_BYTES) -> None:
        self._pack_tokens = zstandard.ZstdCompressor(level=_TOKENS_LEVEL, write_checksum=True).compress
        self._pack_text = zstandard.ZstdCompressor(level=_TEXT_LEVEL, write_checksum=True).compress
        self._last: Recent[str, _Last] = Recent(budget)

    def payload(self, step: Step) -> Payload:
        """That of `step`, with less work if it goes on from the last one of its trajectory."""
        return Payload.of(step, self._last.get(step.trajectory_id))

    def pack(self, payload: Payload, *, trajectory: int, cursor: int, number: int) -> tuple[object, ...]:
        """The values of `PACKED` for a step that goes to `cursor`, after `number` others of the one at `trajectory`."""
        trajectory_id, prompt, response, logprobs, request, message, hashed, after, added = payload
        base = self._last.get(trajectory_id)
        if base is not None and not (base.comes_before(trajectory, number) and base.depth < LONGEST_CHAIN):
            base = None
        if base is not after:
            shared = _shared(base.prompt + base.response, prompt) // WIDTH * WIDTH if base is not None else 0
            added = prompt[shared:] + response
        known = len(prompt) + len(response) - len(added)
        repeated = 0 if base is None else _shared(base.request, request)
        if not (known or repeated):
            base = None
        depth = 1 if base is None else base.depth + 1
        last = _Last(trajectory, cursor, number, depth, prompt, response, request, hashed)
        self._last.keep(trajectory_id, last, len(prompt) + len(response) + len(request) + _HASH_BYTES)
        return (
            None if base is None else base.cursor,
            known // WIDTH,
            bytearray(self._pack_tokens(_by_significance(added))),
            logprobs,
            repeated,
            len(request) - repeated,
            bytearray(self._pack_text(request[repeated:] + message) if request or message else b""),
        )

    def ended(self, trajectory_id: str) -> None:
        """Drop what is kept of a trajectory that takes no step any more."""
        self._last.drop(trajectory_id)

    def forget(self) -> None:
        """Drop all of it: a transaction was rolled back, and steps that were packed in it are not in the pool."""
        self._last.clear()


def _by_significance(ids: bytes) -> bytes:
    return np.ndarray((WIDTH, len(ids) // WIDTH), _BYTE, ids, strides=(1, WIDTH)).tobytes()


def _in_order(planes: bytes) -> bytes:
    return np.frombuffer(planes, np.uint8).reshape(WIDTH, -1).T.tobytes()


def _shared(left: bytes, right: bytes) -> int:
    """Length of the longest common prefix."""
    if right.startswith(left):
        return len(left)
    length = min(len(left), len(right))
    differs = np.frombuffer(left, np.uint8, length) != np.frombuffer(right, np.uint8, length)
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


class _Read(NamedTuple):
    """What a step that was read was given and gave."""

    cursor: int
    ids: bytes
    request: bytes


def unpack(rows: Iterable[sa.Row[Any]]) -> Iterator[Step]:
    """The steps of `rows`: all columns of the table `steps` and `trajectory_id`, each just after what it rests on.

    Raises:
        PoolError: the stored bytes are damaged; the message names the step.
    """
    decompress = zstandard.ZstdDecompressor().decompress
    context = None
    for row in rows:
        try:
            context, message = _unpacked(row, context, decompress)
            step = _step(row, context, message)
        except (zstandard.ZstdError, KeyError, ValueError) as error:
            raise PoolError(f"step {row.id} is damaged in the pool: {error!r}") from error
        yield step


def _unpacked(row: sa.Row[Any], before: _Read | None, decompress: Callable[[bytes], bytes]) -> tuple[_Read, bytes]:
    """All but its message, and that."""
    tokens = _in_order(decompress(row.tokens))
    texts = decompress(row.texts) if row.texts else b""
    request = texts[: row.request_rest]
    if row.base_cursor is not None:
        if before is None or before.cursor != row.base_cursor:
            raise ValueError(f"the step that it is stored against, at {row.base_cursor}, is gone")
        tokens = before.ids[: row.prompt_shared * WIDTH] + tokens
        request = before.request[: row.request_shared] + request
    return _Read(row.cursor, tokens, request), texts[row.request_rest :]


def _step(row: sa.Row[Any], context: _Read, message: bytes) -> Step:
    ids: Ids = np.frombuffer(context.ids, _INT32)
    logprobs: Floats = np.frombuffer(row.logprobs, _FLOAT32)
    return Step(
        id=row.id,
        trajectory_id=row.trajectory_id,
        index=row.position,
        prompt_ids=ids[: row.prompt_tokens],
        response_ids=ids[row.prompt_tokens :],
        logprobs=logprobs,
        policy_version_min=row.policy_version_min,
        policy_version_max=row.policy_version_max,
        finish_reason=row.finish_reason,
        token_source=row.token_source,
        sampling=_sampling(row.temperature, row.top_p, row.top_k, row.max_tokens, row.seed, row.constrained),
        model=row.model,
        parent_id=row.parent_id,
        fork=row.fork,
        side=row.side,
        prefill=row.prefill,
        dialect=row.dialect,
        request=context.request.decode("utf-8", "surrogatepass"),
        response=message.decode("utf-8", "surrogatepass"),
        created_at=row.created_at,
        latency=row.latency,
    )


@lru_cache(maxsize=256)
def _sampling(
    temperature: float, top_p: float, top_k: int, max_tokens: int, seed: int | None, constrained: int
) -> Sampling:
    """Made once for all the steps that have it."""
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        seed=seed,
        constrained=bool(constrained),
    )
