"""Groups as a struct of flat numpy arrays, for consumers that know nothing of agents, and its form on the wire.

Letters: S steps, T trajectories, G groups, N tokens of all rows, M response tokens. A row is one step: its prompt, then
its response. Steps stand in the order of their trajectories, and those in the order of their groups. Names, shapes and
dtypes are said once, in `ARRAYS`, and in docs/reference/wire.md; `stepwell.pool.arrow` writes the same as Arrow IPC.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.errors import InvalidRecord
from stepwell.types import Group, Step, Trajectory

ARRAYS: Final[Mapping[str, tuple[str, str]]] = {
    "token_ids": ("<i4", "N"),
    "row_offsets": ("<i8", "S+1"),
    "prompt_lengths": ("<i4", "S"),
    "logprobs": ("<f4", "M"),
    "response_offsets": ("<i8", "S+1"),
    "rewards": ("<f4", "S"),
    "trajectory_index": ("<i4", "S"),
    "group_index": ("<i4", "S"),
    "step_index": ("<i4", "S"),
    "policy_version_min": ("<i8", "S"),
    "policy_version_max": ("<i8", "S"),
    "temperatures": ("<f4", "S"),
    "trainable": ("|b1", "S"),
    "terminated": ("|b1", "S"),
    "truncated": ("|b1", "S"),
    "trajectory_rewards": ("<f4", "T"),
    "trajectory_groups": ("<i4", "T"),
}
"""Name to (dtype, shape). The dtypes are those of the wire: little-endian."""

IDS: Final[Mapping[str, str]] = {"step_ids": "S", "trajectory_ids": "T", "group_ids": "G", "task_ids": "G"}
"""Names of the lists of texts, and their lengths."""

_FORMAT: Final = "stepwell.step_arrays"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepArrays:
    """The steps of some groups. The arrays are read-only."""

    token_ids: npt.NDArray[np.int32]
    """[N]: the tokens of all rows, end to end."""
    row_offsets: npt.NDArray[np.int64]
    """[S+1]: row s is `token_ids[row_offsets[s]:row_offsets[s + 1]]`."""
    prompt_lengths: npt.NDArray[np.int32]
    """[S]: so many of a row's tokens, at least 1, are its prompt."""
    logprobs: npt.NDArray[np.float32]
    """[M], nats: of each response token, as sampled at its row's temperature."""
    response_offsets: npt.NDArray[np.int64]
    """[S+1]: the log-probabilities of row s are `logprobs[response_offsets[s]:response_offsets[s + 1]]`."""
    rewards: npt.NDArray[np.float32]
    """[S]: of each step; a reward of a whole trajectory counts at its last step that is not beside the work."""
    trajectory_index: npt.NDArray[np.int32]
    """[S]: position of its trajectory among the T."""
    group_index: npt.NDArray[np.int32]
    """[S]: position of its group among the G."""
    step_index: npt.NDArray[np.int32]
    """[S]: position in its trajectory."""
    policy_version_min: npt.NDArray[np.int64]
    """[S]: lowest policy version that sampled one of its tokens."""
    policy_version_max: npt.NDArray[np.int64]
    """[S]: highest."""
    temperatures: npt.NDArray[np.float32]
    """[S]: what logits must be divided by to reproduce `logprobs`; never 0."""
    trainable: npt.NDArray[np.bool_]
    """[S]: whether a loss may be taken over its response; see `Step.trainable`."""
    terminated: npt.NDArray[np.bool_]
    """[S]: the last step of a trajectory that its environment ended."""
    truncated: npt.NDArray[np.bool_]
    """[S]: the last step of a trajectory that a limit cut short: the state after it still has a value."""
    trajectory_rewards: npt.NDArray[np.float32]
    """[T]: sum of all reward parts; NaN where none is known, which is not 0."""
    trajectory_groups: npt.NDArray[np.int32]
    """[T]: position of its group among the G."""
    step_ids: tuple[str, ...]
    """[S]."""
    trajectory_ids: tuple[str, ...]
    """[T], also those of trajectories without steps."""
    group_ids: tuple[str, ...]
    """[G]."""
    task_ids: tuple[str, ...]
    """[G]: the task of each group."""

    def __post_init__(self) -> None:
        """Check dtypes, lengths and offsets, so that what came over a wire can be indexed without care.

        Raises:
            InvalidRecord: they do not fit each other.
        """
        sizes = {"S": len(self.step_ids), "T": len(self.trajectory_ids), "G": len(self.group_ids)}
        sizes |= {"N": len(self.token_ids), "M": len(self.logprobs), "S+1": len(self.step_ids) + 1}
        for name, (dtype, shape) in ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != np.dtype(dtype) or array.shape != (sizes[shape],):
                raise InvalidRecord(
                    f"{name} must be {dtype} [{shape}] = [{sizes[shape]}], got {array.dtype.str} {list(array.shape)}"
                )
            array.setflags(write=False)
        if len(self.task_ids) != len(self.group_ids):
            raise InvalidRecord(f"{len(self.task_ids)} task_ids for {len(self.group_ids)} group_ids")
        self._check_offsets()
        self._check_positions()

    def _check_offsets(self) -> None:
        rows, responses = np.diff(self.row_offsets), np.diff(self.response_offsets)
        ends = [self.row_offsets[0], self.response_offsets[0], self.row_offsets[-1], self.response_offsets[-1]]
        whole = ends == [0, 0, len(self.token_ids), len(self.logprobs)]
        lengths = (self.prompt_lengths >= 1).all() and (responses >= 0).all()
        if not (whole and lengths and (rows == self.prompt_lengths + responses).all()):
            raise InvalidRecord("row_offsets, prompt_lengths and response_offsets do not fit each other")

    def _check_positions(self) -> None:
        bounds = ((self.trajectory_index, "trajectory_ids"), (self.group_index, "group_ids"))
        for positions, name in (*bounds, (self.trajectory_groups, "group_ids")):
            if len(positions) and not (positions.min() >= 0 and positions.max() < len(getattr(self, name))):
                raise InvalidRecord(f"a position points outside {name}")

    def __eq__(self, other: object) -> bool:
        """Same texts, and same arrays bit for bit."""
        if not isinstance(other, StepArrays):
            return NotImplemented
        same = all(getattr(self, name).tobytes() == getattr(other, name).tobytes() for name in ARRAYS)
        return same and all(getattr(self, name) == getattr(other, name) for name in IDS)

    __hash__ = None  # type: ignore[assignment]  # arrays do not hash


def step_arrays(groups: Iterable[Group]) -> StepArrays:
    """The steps of `groups`, such as those of a lease.

    Raises:
        InvalidRecord: a number does not fit its array, such as a policy version beyond 63 bits.
    """
    known = list(groups)
    members = [(place, trajectory) for place, group in enumerate(known) for trajectory in group.trajectories]
    rows = [
        (number, place, trajectory, step)
        for number, (place, trajectory) in enumerate(members)
        for step in trajectory.steps
    ]
    steps = [step for *_, step in rows]
    arrays: dict[str, Any] = {
        **_tokens(steps),
        **_facts(steps),
        **_ends([trajectory for _, trajectory in members]),
        "trajectory_index": [number for number, *_ in rows],
        "group_index": [place for _, place, *_ in rows],
        "trajectory_rewards": [np.nan if t.reward is None else t.reward for _, t in members],
        "trajectory_groups": [place for place, _ in members],
    }
    try:
        typed = {name: np.array(arrays[name], dtype) for name, (dtype, _) in ARRAYS.items()}
    except OverflowError as error:
        raise InvalidRecord(f"a number of these groups fits no array: {error}") from error
    return StepArrays(
        **typed,
        step_ids=tuple(step.id for step in steps),
        trajectory_ids=tuple(trajectory.info.id for _, trajectory in members),
        group_ids=tuple(group.info.id for group in known),
        task_ids=tuple(group.info.task_id for group in known),
    )


def _tokens(steps: Sequence[Step]) -> dict[str, Any]:
    parts = [part for step in steps for part in (step.prompt_ids, step.response_ids)]
    prompts, responses = [len(step.prompt_ids) for step in steps], [len(step.response_ids) for step in steps]
    return {
        "token_ids": np.concatenate(parts) if parts else [],
        "row_offsets": np.cumsum([0, *(p + r for p, r in zip(prompts, responses, strict=True))]),
        "prompt_lengths": prompts,
        "logprobs": np.concatenate([step.logprobs for step in steps]) if steps else [],
        "response_offsets": np.cumsum([0, *responses]),
    }


def _facts(steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "step_index": [step.index for step in steps],
        "policy_version_min": [step.policy_version_min for step in steps],
        "policy_version_max": [step.policy_version_max for step in steps],
        "temperatures": [step.sampling.scale for step in steps],
        "trainable": [step.trainable for step in steps],
    }


def _ends(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    last = [(t, place == len(t.steps) - 1) for t in trajectories for place in range(len(t.steps))]
    return {
        "rewards": [reward for t in trajectories for reward in t.step_rewards],
        "terminated": [ends and t.status == "terminated" for t, ends in last],
        "truncated": [ends and t.status == "truncated" for t, ends in last],
    }


class _WireArray(msgspec.Struct):
    dtype: str
    shape: tuple[int]
    data: bytes


class _Wire(msgspec.Struct):
    format: str
    version: int
    arrays: dict[str, _WireArray]
    ids: dict[str, tuple[str, ...]]


def to_msgpack(arrays: StepArrays) -> bytes:
    """One msgpack map: each array as its dtype, shape and little-endian bytes."""
    written = {name: np.ascontiguousarray(getattr(arrays, name), dtype) for name, (dtype, _) in ARRAYS.items()}
    wire = _Wire(
        format=_FORMAT,
        version=_VERSION,
        arrays={n: _WireArray(dtype=ARRAYS[n][0], shape=a.shape, data=a.tobytes()) for n, a in written.items()},
        ids={name: getattr(arrays, name) for name in IDS},
    )
    return msgspec.msgpack.encode(wire)


def from_msgpack(data: bytes) -> StepArrays:
    """What `to_msgpack` wrote; the arrays are views of its bytes.

    Raises:
        InvalidRecord: it is something else, or another version.
    """
    try:
        wire = msgspec.msgpack.decode(data, type=_Wire)
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"these bytes are no step arrays: {error}") from error
    if (wire.format, wire.version) != (_FORMAT, _VERSION):
        raise InvalidRecord(f"these bytes are {wire.format} {wire.version}, not {_FORMAT} {_VERSION}")
    known = {field.name for field in fields(StepArrays)}
    if {*wire.arrays, *wire.ids} != known:
        raise InvalidRecord(f"missing or unknown names: {', '.join(sorted({*wire.arrays, *wire.ids} ^ known))}")
    try:
        arrays = {name: np.frombuffer(a.data, a.dtype).reshape(a.shape) for name, a in wire.arrays.items()}
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"an array does not have the size that its dtype and shape give: {error}") from error
    return StepArrays(**arrays, **wire.ids)  # type: ignore[arg-type]  # checked by name, dtype and shape
