"""The records: everything that crosses a boundary inside Stepwell is one of these.

They are frozen: a later fact is a new record (an `Annotation`), never a change. Arrays are read-only numpy arrays, one
dtype per meaning, checked when the record is made, so no later layer checks again.

Shape letters: P prompt tokens, R response tokens, T steps of a trajectory, V supervised values of a step.
"""

import dataclasses
import math
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import InvalidRecord

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
_Array = TypeVar("_Array", bound=npt.NDArray[Any])

FinishReason = Literal["stop", "length", "abort"]
TokenSource = Literal["engine", "text"]
End = Literal["terminated", "truncated", "failed"]
Status = Literal["open", "terminated", "truncated", "failed"]
AnnotationKind = Literal["reward", "end", "feedback", "event", "verdict", "tag", "note"]
Verdict = Literal["accept", "reject", "clear"]
Fork = Literal["", "root", "client", "template", "tokenizer"]
Side = Literal["", "title", "state", "other"]

_FINISH_REASONS: Final = get_args(FinishReason)
_TOKEN_SOURCES: Final = get_args(TokenSource)
_FORKS: Final = get_args(Fork)
_SIDES: Final = get_args(Side)

_LAST_TIME: Final = 253_402_300_799.0
"""The end of the year 9999, the last that calendars of common libraries can show."""
_LARGEST_ID: Final = 2**31 - 1
_NO_NAME: Final = re.compile("[/\0\n]")
LARGEST_REWARD: Final = 1e30
"""In either direction: sums of many stay finite in single precision."""
"""Sums of rewards must stay finite, also in float32."""

NO_FLOATS: Final[Floats] = np.empty(0, np.float32)
NO_FLOATS.setflags(write=False)


def new_id(prefix: str) -> str:
    """A new unique id, such as `step-0190…`: sorts by creation time to the millisecond."""
    return f"{prefix}-{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:16]}"


def _frozen_ids(name: str, values: npt.ArrayLike) -> Ids:
    wide = np.asarray(values)
    if wide.ndim != 1 or (wide.size and wide.dtype.kind not in "iu"):
        raise InvalidRecord(f"{name} must be a flat list of integers, got shape {wide.shape} of {wide.dtype}")
    if wide.size and (wide.min() < 0 or (wide.dtype != np.int32 and wide.max() > _LARGEST_ID)):
        raise InvalidRecord(f"{name} holds a token id outside 0..2^31-1")
    return wide if _immutable(wide, np.int32) else _read_only(wide.astype(np.int32))


def _frozen_floats(name: str, values: npt.ArrayLike) -> Floats:
    array = values if isinstance(values, np.ndarray) and _immutable(values, np.float32) else _floats(name, values)
    if array.ndim != 1:
        raise InvalidRecord(f"{name} must be a flat list of numbers, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidRecord(f"{name} holds NaN or infinity")
    return _read_only(array)


def _floats(name: str, values: npt.ArrayLike) -> Floats:
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, which is refused by the caller
            return np.array(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"{name} must be a flat list of numbers: {error}") from error


def _immutable(array: npt.NDArray[Any], dtype: type[np.generic]) -> bool:
    """Whether it has this dtype and nobody can change it, because it lies in `bytes`: then it need not be copied."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return type(owner) is bytes and array.dtype == dtype


def _read_only(array: _Array) -> _Array:
    array.setflags(write=False)
    return array


def _require_name(record: str, name: str, value: str) -> None:
    if not value or len(value) > 256 or _NO_NAME.search(value):
        raise InvalidRecord(f"{record}.{name} must have 1 to 256 characters, none of them '/', NUL or a line break")


def _require_time(record: str, value: float) -> None:
    if not 0 <= value <= _LAST_TIME:
        raise InvalidRecord(f"{record}.created_at must be Unix time in seconds, in 0..{_LAST_TIME:.0f}, got {value}")


def _finite(value: float | None) -> bool:
    return value is not None and abs(value) <= LARGEST_REWARD


def _require_choice(record: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRecord(f"{record}.{name} must be one of {', '.join(choices)}, got {value!r}")


class _ByValue:
    """Equality of records that hold arrays: same type, same fields, arrays equal element by element."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]  # every subclass is a dataclass
        return all(_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]  # arrays do not hash; use the id


def _equal(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return left == right


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a response was sampled. Log-probabilities are of the distribution after `temperature`, before truncation."""

    temperature: float = 1.0
    """Divides the logits; 0 means greedy (log-probabilities are then of temperature 1)."""
    top_p: float = 1.0
    """Nucleus mass that was kept, in (0, 1]; 1 keeps everything."""
    top_k: int = 0
    """Number of candidates that were kept; 0 keeps everything."""
    max_tokens: int = 256
    """Upper bound on R."""
    seed: int | None = None
    """Seed of this request's own random stream; None draws from the engine's."""
    constrained: bool = False
    """Whether only tokens that fit a JSON schema were candidates. Like truncation, it does not change the recorded
    log-probabilities: they are of the distribution before it."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise InvalidRecord(f"temperature must be in 0..100, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidRecord(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise InvalidRecord(f"top_k must not be negative, got {self.top_k}")
        if self.max_tokens < 1:
            raise InvalidRecord(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def scale(self) -> float:
        """What a trainer must divide its logits by to reproduce the recorded log-probabilities."""
        return self.temperature if self.temperature > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step(_ByValue):
    """One interaction: what the policy saw (`prompt_ids`) and did (`response_ids`). Never changed once stored."""

    id: str = field(default_factory=lambda: new_id("step"))
    """Unique; submitting the same id again with the same content, times aside, is a no-op; with other content it is a
    `Conflict`."""
    trajectory_id: str
    """The episode that this step belongs to."""
    index: int
    """Position in the trajectory, from 0."""
    prompt_ids: Ids
    """int32 [P], P >= 1: the exact context that the engine was given."""
    response_ids: Ids
    """int32 [R]: the exact tokens that the engine sampled, its end-of-turn token included when it sampled one."""
    logprobs: Floats
    """float32 [R], nats: log-probability of each response token under the distribution that was sampled."""
    policy_version_min: int = 0
    """Lowest policy version that sampled one of the tokens."""
    policy_version_max: int = 0
    """Highest policy version that sampled one of the tokens."""
    finish_reason: FinishReason = "stop"
    """`stop`: the policy ended its turn; `length`: cut at max_tokens; `abort`: the client or the engine went away."""
    token_source: TokenSource = "engine"
    """`engine`: ids come from the sampler; `text`: re-tokenised from a text-only upstream, not trainable by default."""
    sampling: Sampling = Sampling()
    """The sampling parameters that were in force."""
    model: str = ""
    """Name of the model that answered."""
    parent_id: str = ""
    """The earlier step of the trajectory that this one goes on from; empty if there is none, or none is known."""
    fork: Fork = ""
    """Why `prompt_ids` does not begin with the parent's prompt and response, id for id. Empty: it does, or nothing is
    known. `root`: there is no parent; `client`: the client sent another history than it had (a subagent, a compaction,
    an edit); `template`: the chat template writes the past differently now (drops old reasoning, say); `tokenizer`: the
    ids cannot be continued at the join. The last two are *drift*."""
    side: Side = ""
    """Empty for the agent's own work; else what the call was for beside it. Side calls are not trainable."""
    prefill: int = 0
    """How many of the last `prompt_ids` the gateway wrote as the beginning of the answer, because the client forced a
    tool call."""
    dialect: str = ""
    """The wire format of `request`, such as `chat` or `messages`; empty if the step was not made by a call."""
    request: str = ""
    """JSON body of the call as the client sent it, secrets removed; empty if the step was not made by a call."""
    response: str = ""
    """JSON of the assistant message that the client received."""
    created_at: float = field(default_factory=time.time)
    """Unix time in seconds at which the response was complete."""
    latency: float = 0.0
    """Seconds from the request's arrival to the last token."""

    def __post_init__(self) -> None:
        freeze = object.__setattr__
        freeze(self, "prompt_ids", _frozen_ids("Step.prompt_ids", self.prompt_ids))
        freeze(self, "response_ids", _frozen_ids("Step.response_ids", self.response_ids))
        freeze(self, "logprobs", _frozen_floats("Step.logprobs", self.logprobs))
        _require_name("Step", "id", self.id)
        _require_name("Step", "trajectory_id", self.trajectory_id)
        _require_choice("Step", "finish_reason", self.finish_reason, _FINISH_REASONS)
        _require_choice("Step", "token_source", self.token_source, _TOKEN_SOURCES)
        if len(self.logprobs) != len(self.response_ids):
            raise InvalidRecord(
                f"Step.logprobs has {len(self.logprobs)} values for {len(self.response_ids)} response_ids: "
                "each sampled token needs exactly one log-probability"
            )
        if not len(self.prompt_ids):
            raise InvalidRecord("Step.prompt_ids is empty: a policy needs at least one token of context")
        _require_time("Step", self.created_at)
        _require_choice("Step", "fork", self.fork, _FORKS)
        _require_choice("Step", "side", self.side, _SIDES)
        if not 0 <= self.prefill < len(self.prompt_ids):
            raise InvalidRecord(f"Step.prefill must be in 0..{len(self.prompt_ids) - 1}, got {self.prefill}")
        if not 0 <= self.index < 2**31:
            raise InvalidRecord(f"Step.index must be in 0..2^31-1, got {self.index}")
        if not 0 <= self.policy_version_min <= self.policy_version_max:
            raise InvalidRecord(
                "Step needs 0 <= policy_version_min <= policy_version_max, "
                f"got {self.policy_version_min} and {self.policy_version_max}"
            )

    @property
    def token_ids(self) -> Ids:
        """int32 [P+R]: prompt, then response; the row that a trainer makes of it."""
        return np.concatenate([self.prompt_ids, self.response_ids])

    @property
    def trainable(self) -> bool:
        """Whether a trainer may use it: the agent's own work, and tokens, at least one, known from the sampler."""
        known = self.token_source == "engine" and len(self.response_ids) > 0
        return known and self.finish_reason != "abort" and not self.side

    @property
    def drifted(self) -> bool:
        """Whether the conversation went on, yet its ids do not go on from those of the parent."""
        return self.fork in ("template", "tokenizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """The facts known when a group is opened: several trajectories of one task, to be compared with each other."""

    id: str = field(default_factory=lambda: new_id("group"))
    task_id: str
    """The task that all its trajectories attempt."""
    size: int
    """Number of trajectories, finished and rewarded, that make it ready; at least 1."""
    channel: str = "default"
    """Whom it is collected for; a consumer leases from one channel, or from all. A training run uses its own name."""
    min_size: int | None = None
    """Once the deadline has passed, so many complete trajectories are enough; None: nothing less than `size` is."""
    deadline: float | None = None
    """Unix time in seconds at which it is settled: ready with at least `min_size`, or else dropped. None: never."""
    priority: float = 0.0
    """Groups of a higher priority are handed over first to a consumer that asks for that order."""
    origin_id: str = ""
    """A set of siblings: the trajectory from which all its trajectories were forked. Empty: they began anew."""
    origin_index: int | None = None
    """A set of siblings: the step of the origin that each of them takes differently; None without an origin."""
    created_at: float = field(default_factory=time.time)
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        _require_name("GroupInfo", "id", self.id)
        _require_name("GroupInfo", "channel", self.channel)
        _require_time("GroupInfo", self.created_at)
        if self.deadline is not None:
            _require_time("GroupInfo", self.deadline)
        if self.size < 1:
            raise InvalidRecord(f"GroupInfo.size must be at least 1, got {self.size}")
        if self.min_size is not None and not 1 <= self.min_size <= self.size:
            raise InvalidRecord(f"GroupInfo.min_size must be in 1..{self.size}, got {self.min_size}")
        if not _finite(self.priority):
            raise InvalidRecord(f"GroupInfo.priority must be a finite number, got {self.priority}")
        if bool(self.origin_id) != (self.origin_index is not None):
            raise InvalidRecord("GroupInfo.origin_id and origin_index belong together: give both, or neither")


FORK: Final = "fork"
"""Source of a trajectory whose agent knows its past, which others only are led through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryInfo:
    """The facts known when a trajectory is opened."""

    id: str = field(default_factory=lambda: new_id("traj"))
    group_id: str | None = None
    """The group that it belongs to; None for a trajectory that is compared with nothing."""
    task_id: str = ""
    """The task it attempts; empty if unknown."""
    agent: str = ""
    """Name of the agent or client that drives it."""
    source: str = "gateway"
    """Where it came from: `gateway`, `rollout`, `fork` (a rollout that began in a state put back), `trunk`, `eval`,
    `import`, `events`."""
    created_at: float = field(default_factory=time.time)
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        _require_name("TrajectoryInfo", "id", self.id)
        if self.group_id is not None:
            _require_name("TrajectoryInfo", "group_id", self.group_id)
        _require_time("TrajectoryInfo", self.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A fact learnt after a step or trajectory was stored. The newest one of a (target, kind, name) holds."""

    id: str = field(default_factory=lambda: new_id("note"))
    target: Literal["step", "trajectory"]
    target_id: str
    kind: AnnotationKind
    """`reward`: `value` is a reward part called `name`; `end`: the trajectory is over, `name` says how; `feedback`:
    what a person thinks of it; `event`: what happened around it in a live product; `verdict`: whether it may be trained
    on; `tag`: `name` is a label that it has from now on, or, if `value` is 0, has no more; `note`: a remark."""
    name: str = "reward"
    """Reward: name of the part (parts are summed). End: `terminated`, `truncated` or `failed`. Feedback: `thumbs`,
    `score`, `edit` or `comment`. Event: its type, e.g. `user_turn`. Verdict: `accept`, `reject`, or `clear`, which
    takes an earlier one back. Tag: the label. Note: what it is about."""
    value: float | None = None
    """Reward: the part's value. Feedback: 1 or -1 for thumbs, the score for a score. Always finite; otherwise None."""
    text: str = ""
    """Words that go with it: an explanation, a comment, an edited answer, a turn's content. A note, comment or edit
    without words takes back the one before."""
    created_at: float = field(default_factory=time.time)
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        _require_name("Annotation", "id", self.id)
        _require_name("Annotation", "target_id", self.target_id)
        _require_name("Annotation", "name", self.name)
        _require_choice("Annotation", "target", self.target, ("step", "trajectory"))
        _require_choice("Annotation", "kind", self.kind, get_args(AnnotationKind))
        _require_time("Annotation", self.created_at)
        if (self.kind == "reward" or self.value is not None) and not _finite(self.value):
            raise InvalidRecord(
                f"a {self.kind} must be a finite number of at most {LARGEST_REWARD:g}, got {self.value}"
            )
        if self.kind == "verdict":
            _require_choice("Annotation", "name", self.name, get_args(Verdict))
        if self.kind == "end":
            _require_choice("Annotation", "name", self.name, get_args(End))
            if self.target != "trajectory":
                raise InvalidRecord("only a trajectory ends; a step has a finish_reason")

    @staticmethod
    def reward(
        target: Literal["step", "trajectory"], target_id: str, value: float, name: str = "reward"
    ) -> "Annotation":
        """The reward part `name` of a step or of a whole trajectory (credited to its last step)."""
        return Annotation(target=target, target_id=target_id, kind="reward", name=name, value=float(value))

    @staticmethod
    def end(trajectory_id: str, how: End, why: str = "") -> "Annotation":
        """The end of a trajectory: `terminated` by its environment, `truncated` by a limit, or `failed`."""
        return Annotation(target="trajectory", target_id=trajectory_id, kind="end", name=how, text=why)

    @staticmethod
    def verdict(target: Literal["step", "trajectory"], target_id: str, verdict: Verdict, why: str = "") -> "Annotation":
        """Whether it may be trained on; a trajectory of which one step is rejected is rejected."""
        return Annotation(target=target, target_id=target_id, kind="verdict", name=verdict, text=why)

    @staticmethod
    def tag(target: Literal["step", "trajectory"], target_id: str, tag: str, present: bool = True) -> "Annotation":
        """A label that it has from now on, or has no more."""
        return Annotation(target=target, target_id=target_id, kind="tag", name=tag, value=float(present))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInfo:
    """One policy update as it happened: the policy version that it made and what was measured."""

    id: str = field(default_factory=lambda: new_id("update"))
    run: str
    """Name of the training run."""
    policy_version: int
    """The version that this update published."""
    metrics: tuple[tuple[str, float], ...] = ()
    """(name, value) pairs, e.g. `("reward_mean", 0.4)`."""
    created_at: float = field(default_factory=time.time)
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        _require_name("UpdateInfo", "id", self.id)
        _require_name("UpdateInfo", "run", self.run)
        _require_time("UpdateInfo", self.created_at)


Record = GroupInfo | TrajectoryInfo | Step | Annotation | UpdateInfo
"""Everything that the pool's log holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The ordered steps of one episode with what later became known about them."""

    info: TrajectoryInfo
    steps: tuple[Step, ...]
    """T steps, ascending `index`."""
    step_rewards: tuple[float, ...] = ()
    """[T] reward of each step; a reward given to the whole trajectory is counted at its last step that is
    the agent's own work."""
    reward: float | None = None
    """Sum of all reward parts; None if nothing was rewarded yet, which is not the same as 0."""
    reward_parts: tuple[tuple[str, float], ...] = ()
    """(name, sum over steps and trajectory) of each reward part."""
    status: Status = "open"
    """`open`, or how it ended."""
    why: str = ""
    """What was said about the end: the error of a failed trajectory, say."""
    annotations: tuple[Annotation, ...] = ()
    """Feedback, events and notes, of the trajectory and of its steps, in the order in which they arrived."""
    verdict: Verdict = "clear"
    """`reject` if it or a step of it is rejected; else `accept` if it or a step of it is accepted; else `clear`."""
    tags: tuple[str, ...] = ()
    """Labels that it or a step of it has, sorted."""

    @property
    def complete(self) -> bool:
        """Whether it has ended in a way that can be trained on, with its reward known."""
        return self.status in ("terminated", "truncated") and self.reward is not None

    def __post_init__(self) -> None:
        if len(self.step_rewards) != len(self.steps):
            raise InvalidRecord(f"{len(self.step_rewards)} step_rewards for {len(self.steps)} steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task, compared with each other."""

    info: GroupInfo
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit(_ByValue):
    """What an algorithm gives one step."""

    step_id: str
    advantages: Floats
    """float32 [R]: advantage of each response token; constant within the step for step-level algorithms."""
    value_targets: Floats = field(default_factory=lambda: NO_FLOATS)
    """float32 [V]: regression target of the value read just before response token j; V is 0 (no critic),
    1 (only at the last prompt token) or R (at every response token)."""
    trained: bool = True
    """False: the step was read, but it is to have no part in the loss, as if it were not in the batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "advantages", _frozen_floats("Credit.advantages", self.advantages))
        object.__setattr__(self, "value_targets", _frozen_floats("Credit.value_targets", self.value_targets))
        if len(self.value_targets) not in (0, 1, len(self.advantages)):
            raise InvalidRecord(
                f"Credit.value_targets has {len(self.value_targets)} values for {len(self.advantages)} tokens: "
                "it must have none, one, or one per token"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample(_ByValue):
    """What the trainer consumes: one step's tokens with its credit."""

    step_id: str
    trajectory_id: str
    token_ids: Ids
    """int32 [P+R]: prompt, then response."""
    prompt_length: int
    """P: the loss covers token_ids[P:]."""
    logprobs: Floats
    """float32 [R], nats: as sampled."""
    advantages: Floats
    """float32 [R]."""
    value_targets: Floats = field(default_factory=lambda: NO_FLOATS)
    """float32 [V]."""
    old_values: Floats = field(default_factory=lambda: NO_FLOATS)
    """float32 [V]: the critic's values before the update, for value clipping."""
    temperature: float = 1.0
    """The trainer divides its logits by this, as the engine did."""
    index: int = 0
    """Of the step in its trajectory."""
    old_logprobs: Floats = field(default_factory=lambda: NO_FLOATS)
    """float32 [R], nats: the denominator of the ratio; empty: as sampled."""
    reference_logprobs: Floats = field(default_factory=lambda: NO_FLOATS)
    """float32 [R], nats: of the policy before its first update; empty: nobody asked for them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _frozen_ids("Sample.token_ids", self.token_ids))
        for name in ("logprobs", "advantages", "value_targets", "old_values", "old_logprobs", "reference_logprobs"):
            object.__setattr__(self, name, _frozen_floats(f"Sample.{name}", getattr(self, name)))
        response = len(self.token_ids) - self.prompt_length
        if not (self.prompt_length >= 1 and response == len(self.logprobs) == len(self.advantages)):
            raise InvalidRecord(
                f"Sample of {len(self.token_ids)} tokens with prompt_length {self.prompt_length} needs {response} "
                f"logprobs and advantages, got {len(self.logprobs)} and {len(self.advantages)}"
            )
        for name in ("old_logprobs", "reference_logprobs"):
            if len(getattr(self, name)) not in (0, response):
                raise InvalidRecord(f"Sample.{name} has {len(getattr(self, name))} values for {response} tokens")
