"""Reads the log of a pool of revision 0001: how records lay in its tables then, which never changes any more.

A step was stored against a *base*, the step of its trajectory that its writer had stored before: so many leading tokens
of the base's prompt and response, and leading bytes of its request, and then what is its own.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa
import zstandard

from stepwell.errors import PoolError
from stepwell.types import Annotation, GroupInfo, Record, Sampling, Step, TrajectoryInfo, UpdateInfo

_Numbered = tuple[int, Record]
_Row = sa.Row[Any]
_AT_ONCE: Final = 256  # rows that are read at a time

# The tables are called first_… while those of the next revision are filled.
_GROUPS: Final = "SELECT r.* FROM first_groups AS r"
_TRAJECTORIES: Final = (
    "SELECT r.*, g.id AS owner FROM first_trajectories AS r LEFT JOIN first_groups AS g ON g.cursor = r.group_cursor"
)
_STEPS: Final = (
    "SELECT r.*, t.id AS owner, t.steps AS in_all FROM first_steps AS r "
    "JOIN first_trajectories AS t ON t.cursor = r.trajectory_cursor"
)
_ANNOTATIONS: Final = (
    "SELECT r.*, t.id AS owner, s.id AS step FROM first_annotations AS r "
    "JOIN first_trajectories AS t ON t.cursor = r.trajectory_cursor "
    "LEFT JOIN first_steps AS s ON s.cursor = r.step_cursor"
)
_UPDATES: Final = "SELECT r.* FROM first_updates AS r"


def records(connection: sa.Connection) -> Iterator[_Numbered]:
    """All records with their cursors, in the order of the log.

    Raises:
        PoolError: a step is damaged.
    """
    kinds: list[tuple[str, Callable[[_Row], Record]]] = [
        (_GROUPS, _group),
        (_TRAJECTORIES, _trajectory),
        (_STEPS, _Steps().unpack),
        (_ANNOTATIONS, _annotation),
        (_UPDATES, _update),
    ]
    return heapq.merge(*(_read(connection, *kind) for kind in kinds), key=lambda numbered: numbered[0])


def _read(connection: sa.Connection, select: str, made: Callable[[_Row], Record]) -> Iterator[_Numbered]:
    page = sa.text(f"{select} WHERE r.cursor > :after ORDER BY r.cursor LIMIT {_AT_ONCE}")
    after = 0
    while rows := connection.execute(page, {"after": after}).all():
        yield from ((row.cursor, made(row)) for row in rows)
        after = rows[-1].cursor


def _group(row: _Row) -> GroupInfo:
    return GroupInfo(
        id=row.id,
        task_id=row.task_id,
        channel=row.channel,
        size=row.size,
        deadline=row.deadline,
        created_at=row.created_at,
    )


def _trajectory(row: _Row) -> TrajectoryInfo:
    return TrajectoryInfo(
        id=row.id,
        group_id=row.owner,
        task_id=row.task_id,
        agent=row.agent,
        source=row.source,
        created_at=row.created_at,
    )


def _annotation(row: _Row) -> Annotation:
    return Annotation(
        id=row.id,
        target="trajectory" if row.step is None else "step",
        target_id=row.owner if row.step is None else row.step,
        kind=row.kind,
        name=row.name,
        value=row.value,
        text=row.text,
        created_at=row.created_at,
    )


def _update(row: _Row) -> UpdateInfo:
    return UpdateInfo(
        id=row.id,
        run=row.run,
        policy_version=row.policy_version,
        metrics=tuple((name, value) for name, value in json.loads(row.metrics)),
        created_at=row.created_at,
    )


class _Context(NamedTuple):
    """What later steps of a trajectory may repeat, as bytes."""

    ids: bytes
    request: bytes


class _Steps:
    """Unpacks steps in the order of the log; keeps what others of a trajectory may rest on until its last."""

    def __init__(self) -> None:
        self._contexts: dict[int, dict[int, _Context]] = defaultdict(dict)
        self._decompress = zstandard.ZstdDecompressor().decompress

    def unpack(self, row: _Row) -> Step:
        contexts = self._contexts[row.trajectory_cursor]
        try:
            step = self._step(row, contexts.get(row.base_cursor, _Context(b"", b"")))
        except (zstandard.ZstdError, ValueError) as error:
            raise PoolError(f"step {row.id} is damaged in the pool: {error!r}") from error
        ids = np.concatenate((step.prompt_ids, step.response_ids)).astype("<i4").tobytes()
        contexts[row.cursor] = _Context(ids, step.request.encode("utf-8", "surrogatepass"))
        if len(contexts) == row.in_all:
            del self._contexts[row.trajectory_cursor]
        return step

    def _step(self, row: _Row, base: _Context) -> Step:
        prompt = base.ids[: 4 * row.prompt_shared] + self._decompress(row.prompt_tail)
        request = base.request[: row.request_shared] + self._decompress(row.request_tail)
        return Step(
            id=row.id,
            trajectory_id=row.owner,
            index=row.position,
            prompt_ids=np.frombuffer(prompt, "<i4"),
            response_ids=np.frombuffer(self._decompress(row.response_ids), "<i4"),
            logprobs=np.frombuffer(self._decompress(row.logprobs), "<f4"),
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


def _sampling(row: _Row) -> Sampling:
    return Sampling(
        temperature=row.temperature,
        top_p=row.top_p,
        top_k=row.top_k,
        max_tokens=row.max_tokens,
        seed=row.seed,
        constrained=bool(row.constrained),
    )
