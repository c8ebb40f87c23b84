"""What is sent to a gateway and how its answers read: pure functions, shared by all clients."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import numpy as np

from stepwell.errors import (
    Conflict,
    ContextOverflow,
    EngineError,
    EngineTimeout,
    Forbidden,
    ForkRefused,
    InvalidRecord,
    InvalidRequest,
    NoProducer,
    NotFound,
    PoolError,
    RateLimited,
    StepwellError,
    Unauthorized,
    Unavailable,
)
from stepwell.pool.base import PoolStats, Receipt
from stepwell.types import Annotation, GroupInfo, Record, Sampling, Step, Trajectory, TrajectoryInfo, new_id

T = TypeVar("T")

JSON: Final = "application/json"
_ENDS: Final = "ends"
_REFUSALS: Final = (Conflict, InvalidRecord, NotFound)
"""What a record is refused for, as opposed to a failure of the whole request."""

_ERRORS: Final[Mapping[str, type[StepwellError]]] = {
    "body_too_large": InvalidRequest,
    "body_too_slow": InvalidRequest,
    "conflict": Conflict,
    "fork_refused": ForkRefused,
    "context_length_exceeded": ContextOverflow,
    "engine_error": EngineError,
    "engine_timeout": EngineTimeout,
    "insufficient_scope": Forbidden,
    "invalid_api_key": Unauthorized,
    "invalid_record": InvalidRecord,
    "invalid_request": InvalidRequest,
    "model_not_found": NotFound,
    "no_producer": NoProducer,
    "no_such_route": NotFound,
    "not_found": NotFound,
    "pool_error": PoolError,
    "rate_limit_exceeded": RateLimited,
    "unavailable": Unavailable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, as it came."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request; sending it again changes nothing, since whatever it stores has its id already. (A lease that got
    lost on its way back is the exception: what it holds comes again once it has expired.)"""

    method: Literal["GET", "POST", "PUT"] = "POST"
    path: str
    body: bytes = b""
    """JSON."""
    accept: str = JSON
    """What to answer with; if that is not JSON, `read` gets the whole `Answer`."""
    wait: float = 0.0
    """Seconds for which the gateway may think about it, on top of the time that any answer may take."""
    read: Callable[[Any], T]
    """From the answer's JSON to what the caller gets."""
    refused: Callable[[StepwellError], T | None] = lambda _error: None
    """From an error answer to what the caller gets instead; None: the error is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a person thinks of an answer or a conversation: one of thumbs, score, edit and comment; a comment may go
    with thumbs or a score. Names what it is about by one of step_id, response_id and conversation."""

    id: str = dataclasses.field(default_factory=lambda: new_id("note"))
    step_id: str = ""
    response_id: str = ""
    """The `id` of an answer, in any dialect."""
    conversation: str = ""
    """Id of a trajectory, or what the client calls its session."""
    thumbs: Literal["up", "down"] | None = None
    score: float | None = None
    edit: str | None = None
    """The answer as it should have been."""
    comment: str | None = None
    reward: bool = False
    """Whether thumbs (1 or -1) or the score also count as the reward part `feedback`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A turn of a live product's conversation, or something else that happened in it."""

    id: str = dataclasses.field(default_factory=lambda: new_id("note"))
    conversation: str = ""
    """Its key; an unknown one becomes a trajectory."""
    type: str
    """`user_turn`, `assistant_turn`, `system`, or a name of yours."""
    text: str = ""
    step_id: str = ""
    response_id: str = ""
    """The answer that it is about, if one is."""
    created_at: float | None = None
    """Unix time in seconds; None: now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session as the gateway opened it."""

    trajectory_id: str
    api_key: str


def submissions(records: Sequence[Record]) -> Iterator[Call[list[Receipt]]]:
    """Store records of any kinds in order; the receipts of each call add up to one each.

    Raises:
        InvalidRequest: a record of a kind that cannot be sent.
    """
    for kind, run in groupby(records, key=_kind):
        if kind == _ENDS:
            yield from (_end(note) for note in run if isinstance(note, Annotation))
        else:
            batch = list(run)
            yield _many(kind, [record.id for record in batch], [_shape(record) for record in batch])


def feedback(item: Feedback) -> Call[list[Receipt]]:
    """Store feedback."""
    return _many("feedback", [item.id], [_given(item)])


def events(items: Sequence[Event]) -> Call[list[Receipt]]:
    """Store events."""
    return _many("events", [item.id for item in items], [_given(item) for item in items])


def session(info: TrajectoryInfo) -> Call[Opened]:
    """Open a session."""
    shape = {"trajectory_id": info.id, "group_id": info.group_id, "task_id": info.task_id, "agent": info.agent}
    return Call(
        path="/v1/sessions",
        body=_json(shape),
        read=lambda answer: Opened(trajectory_id=answer["trajectory_id"], api_key=answer["api_key"]),
    )


def trajectory(trajectory_id: str) -> Call[Trajectory]:
    """Read a trajectory."""
    return Call(method="GET", path=f"/v1/trajectories/{quote(trajectory_id, safe='')}", read=trajectory_of)


def stats() -> Call[PoolStats]:
    """Count everything."""
    return Call(method="GET", path="/v1/stats", read=_stats)


def error_of(shape: Mapping[str, Any], retry_after: float | None = None) -> StepwellError:
    """The error behind an answer's `error`."""
    kind = _ERRORS.get(shape["code"], StepwellError)
    if kind is RateLimited or kind is Unavailable:
        return kind(shape["message"], retry_after=retry_after)
    return kind(shape["message"])


def only(receipts: list[Receipt]) -> None:
    """Raise the refusal of the first receipt that is one."""
    for receipt in receipts:
        if receipt.error is not None:
            raise receipt.error


def reward(
    value: float, *, trajectory_id: str | None = None, step_id: str | None = None, name: str = "reward", text: str = ""
) -> Annotation:
    """A reward part of a trajectory or a step. Raises InvalidRequest unless exactly one of the two is given."""
    if (trajectory_id is None) == (step_id is None):
        raise InvalidRequest("give either trajectory_id or step_id")
    target: Literal["step", "trajectory"] = "trajectory" if step_id is None else "step"
    note = Annotation.reward(target, trajectory_id or step_id or "", value, name)
    return dataclasses.replace(note, text=text)


def _end(note: Annotation) -> Call[list[Receipt]]:
    """An end has a route of its own."""
    return Call(
        path=f"/v1/trajectories/{quote(note.target_id, safe='')}/end",
        body=_json({"how": note.name, "id": note.id, "text": note.text, "created_at": note.created_at}),
        read=lambda answer: _receipts([note.id], answer),
        refused=lambda error: _refused([note.id], error),
    )


def number(value: object) -> float:
    """What a rewarded function returned. Raises InvalidRequest unless it is a number."""
    if isinstance(value, bool | int | float):
        return float(value)
    raise InvalidRequest(f"a function that is recorded with rewarded=True must return its reward, not {value!r}")


def _many(kind: str, ids: Sequence[str], shapes: Sequence[Mapping[str, Any]]) -> Call[list[Receipt]]:
    return Call(
        path=f"/v1/{kind}",
        body=_json({kind: shapes}),
        read=lambda answer: _receipts(ids, answer),
        refused=lambda error: _refused(ids, error),
    )


def _kind(record: Record) -> str:
    match record:
        case GroupInfo():
            return "groups"
        case TrajectoryInfo():
            return "trajectories"
        case Step():
            return "steps"
        case Annotation(kind="reward"):
            return "rewards"
        case Annotation(kind="verdict" | "tag" | "note"):
            return "curation"
        case Annotation(kind="end"):
            return _ENDS
    raise InvalidRequest(f"a {type(record).__name__} of this kind cannot be sent to a pool in another process")


def _shape(record: Record) -> Mapping[str, Any]:
    shape = dataclasses.asdict(record)
    if not isinstance(record, Annotation):
        return shape
    kept = {name: shape[name] for name in ("id", "name", "value", "text", "created_at")}
    kind = {} if record.kind in ("reward", "end") else {"kind": record.kind}
    return {**kept, **kind, f"{record.target}_id": record.target_id}


def _given(item: Feedback | Event) -> Mapping[str, Any]:
    return {name: value for name, value in dataclasses.asdict(item).items() if value not in (None, "", False)}


def _json(shape: Any) -> bytes:
    return json.dumps(shape, default=np.ndarray.tolist).encode()


def _receipts(ids: Sequence[str], answer: Mapping[str, Any]) -> list[Receipt]:
    verdicts = zip(ids, answer["results"], strict=True)
    return [_receipt(record_id, verdict) for record_id, verdict in verdicts]


def _refused(ids: Sequence[str], error: StepwellError) -> list[Receipt] | None:
    """The receipt of the only record of a request: the gateway answers its refusal as an error."""
    if len(ids) == 1 and isinstance(error, _REFUSALS):
        return [Receipt(id=ids[0], cursor=None, error=error)]
    return None


def _receipt(record_id: str, verdict: Mapping[str, Any]) -> Receipt:
    error = error_of(verdict["error"]) if verdict["error"] else None
    return Receipt(id=record_id, cursor=verdict["cursor"], duplicate=verdict["status"] == "duplicate", error=error)


def done(_: Any) -> None:
    """Reads an answer that says no more than that."""


def step_of(shape: Mapping[str, Any]) -> Step:
    """A step as it is answered."""
    return Step(**{**shape, "sampling": Sampling(**shape["sampling"])})


def trajectory_of(answer: Mapping[str, Any]) -> Trajectory:
    """A trajectory as it is answered."""
    return Trajectory(
        info=TrajectoryInfo(**answer["info"]),
        steps=tuple(map(step_of, answer["steps"])),
        step_rewards=tuple(answer["step_rewards"]),
        reward=answer["reward"],
        reward_parts=tuple(answer["reward_parts"].items()),
        status=answer["status"],
        why=answer["why"],
        annotations=tuple(Annotation(**shape) for shape in answer["annotations"]),
        verdict=answer["verdict"],
        tags=tuple(answer["tags"]),
    )


def _stats(answer: Mapping[str, Any]) -> PoolStats:
    tables = {name: tuple(answer[name].items()) for name in ("groups_dropped", "trajectories_by_status")}
    return PoolStats(**{**answer, **tables})
