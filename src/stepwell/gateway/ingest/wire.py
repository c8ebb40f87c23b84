"""Records as JSON or msgpack, in and out: a pydantic model beside each record that other processes may send.

A test holds that each model lists exactly its record's fields. Fields that are left out get the record's own default.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stepwell.gateway.ingest.context import Context
from stepwell.types import (
    Annotation,
    End,
    FinishReason,
    Fork,
    GroupInfo,
    Record,
    Sampling,
    Side,
    Step,
    TokenSource,
    TrajectoryInfo,
    new_id,
)


class Wire(BaseModel):
    """Base: a misspelt field is refused, for its value would be lost for ever."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    def _given(self, *others: str) -> dict[str, Any]:
        """The fields that were sent, without those that are called `others`."""
        return {name: getattr(self, name) for name in self.model_fields_set if name not in others}


class Item(Wire):
    """Base of what is submitted, alone or in a list."""

    looks: ClassVar[bool] = False
    """Whether `records` may look into the pool, which takes its time."""

    def records(self, context: Context) -> tuple[Record, ...]:
        """What is stored for it; the first receipt is the item's, unless another record is refused. May block.

        Raises:
            StepwellError: it cannot be stored.
        """
        raise NotImplementedError

    def opener(self) -> Record | None:
        """What is stored before that, unless something is there already under its id."""
        return None


class SamplingWire(Wire):
    """How a response was sampled."""

    temperature: float = 1.0
    """Divided the logits; 0 means greedy."""
    top_p: float = 1.0
    """Nucleus mass that was kept; 1 keeps everything."""
    top_k: int = 0
    """Number of candidates that were kept; 0 keeps everything."""
    max_tokens: int = 256
    """Upper bound on the length of the response."""
    seed: int | None = None
    """Seed of this request's own random stream."""
    constrained: bool = False
    """Whether only tokens that fit a JSON schema were candidates."""

    def record(self) -> Sampling:
        """Raises InvalidRecord if a value is out of range."""
        return Sampling(**self._given())


class StepWire(Item):
    """One interaction: what the policy saw (`prompt_ids`) and did (`response_ids`)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "step-1",
                    "trajectory_id": "task-42-run-1",
                    "index": 0,
                    "prompt_ids": [1, 5],
                    "response_ids": [7, 2],
                    "logprobs": [-0.1, -1.5],
                    "policy_version_min": 3,
                    "policy_version_max": 3,
                }
            ]
        }
    )

    id: str = ""
    """Yours; the same again is a no-op. Left out: a new one, and sending it twice makes two steps."""
    trajectory_id: str
    """The episode that it belongs to."""
    index: int
    """Position in the trajectory, from 0."""
    prompt_ids: list[int]
    """The exact context that the engine was given, at least one token."""
    response_ids: list[int]
    """The exact tokens that the engine sampled, its end-of-turn token included."""
    logprobs: list[float]
    """Log-probability in nats of each response token: after temperature, before top-p and top-k."""
    policy_version_min: int = 0
    """Lowest policy version that sampled one of the tokens."""
    policy_version_max: int = 0
    """Highest policy version that sampled one of the tokens."""
    finish_reason: FinishReason = "stop"
    """`stop`: the policy ended its turn; `length`: cut at max_tokens; `abort`: somebody went away."""
    token_source: TokenSource = "engine"
    """`engine`: ids come from the sampler; `text`: re-tokenised, not trainable by default."""
    sampling: SamplingWire = SamplingWire()
    """The sampling parameters that were in force."""
    model: str = ""
    """Name of the model that answered."""
    parent_id: str = ""
    """The earlier step of the trajectory that this one goes on from."""
    fork: Fork = ""
    """Why `prompt_ids` does not begin with the parent's prompt and response, if it does not."""
    side: Side = ""
    """What the call was for beside the agent's work; empty: it is its work. Others are not trainable."""
    prefill: int = 0
    """How many of the last `prompt_ids` begin the answer."""
    dialect: str = ""
    """Wire format of `request`."""
    request: str = ""
    """JSON body of the call, if there was one."""
    response: str = ""
    """JSON of the assistant message, if there was one."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""
    latency: float = 0.0
    """Seconds from the request to the last token."""

    def record(self) -> Step:
        """Raises InvalidRecord, e.g. for NaN or a missing log-probability."""
        return Step(**{**self._given(), "sampling": self.sampling.record()})

    def records(self, context: Context) -> tuple[Record, ...]:
        """See `Item`."""
        return (context.check(self.record()),)


class GroupWire(Item):
    """Several trajectories of one task, to be compared with each other."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "task-42", "task_id": "42", "size": 4}]})

    id: str = ""
    """Yours; left out: a new one."""
    task_id: str
    """The task that all its trajectories attempt."""
    size: int
    """Number of trajectories, ended and rewarded, that make it ready."""
    channel: str = "default"
    """Name of the training run that it is for."""
    min_size: int | None = None
    """How many are enough once the deadline has passed; null: only `size`."""
    deadline: float | None = None
    """Unix time in seconds at which it is settled: ready with at least `min_size`, or dropped."""
    priority: float = 0.0
    """Higher is handed over first, where that order is asked for."""
    origin_id: str = ""
    """A set of siblings: the trajectory that they are forks of."""
    origin_index: int | None = None
    """A set of siblings: the step of the origin at which they part."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    def record(self) -> GroupInfo:
        """Raises InvalidRecord."""
        return GroupInfo(**self._given())

    def records(self, context: Context) -> tuple[Record, ...]:  # noqa: ARG002 - nothing to look up
        """See `Item`."""
        return (self.record(),)


class TrajectoryWire(Item):
    """The facts known when a trajectory is opened."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "task-42-run-1", "group_id": "task-42"}]})

    id: str = ""
    """Yours; left out: a new one."""
    group_id: str | None = None
    """The group that it belongs to, if any."""
    task_id: str = ""
    """The task it attempts."""
    agent: str = ""
    """Name of the agent that drives it."""
    source: str = "gateway"
    """Where it comes from: `gateway`, `rollout`, `eval`, `import`, `events`."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    def record(self) -> TrajectoryInfo:
        """Raises InvalidRecord."""
        return TrajectoryInfo(**self._given())

    def records(self, context: Context) -> tuple[Record, ...]:  # noqa: ARG002 - nothing to look up
        """See `Item`."""
        return (self.record(),)


class RewardWire(Item):
    """A reward part, for a step or for a whole trajectory. The newest value of a part holds; parts are summed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"trajectory_id": "task-42-run-1", "value": 1.0}]})

    id: str = ""
    """Yours; left out: a new one."""
    trajectory_id: str = ""
    """The trajectory that is rewarded, at its last step; or else:"""
    step_id: str = ""
    """the step that is rewarded."""
    value: float
    """Of this part. Finite."""
    name: str = "reward"
    """Of the part."""
    text: str = ""
    """Why."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    @model_validator(mode="after")
    def _one_target(self) -> "RewardWire":
        if bool(self.trajectory_id) == bool(self.step_id):
            raise ValueError("give either trajectory_id or step_id")
        return self

    def record(self) -> Annotation:
        """Raises InvalidRecord, e.g. for NaN."""
        target: Literal["step", "trajectory"] = "step" if self.step_id else "trajectory"
        target_id = self.step_id or self.trajectory_id
        return Annotation(target=target, target_id=target_id, kind="reward", **self._given("trajectory_id", "step_id"))

    def records(self, context: Context) -> tuple[Record, ...]:  # noqa: ARG002 - nothing to look up
        """See `Item`."""
        return (self.record(),)


class CurationWire(Item):
    """What a person decides about a step or a trajectory. The newest of a name holds."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"trajectory_id": "task-42-run-1", "kind": "verdict", "name": "reject"}]}
    )

    id: str = ""
    """Yours; left out: a new one."""
    trajectory_id: str = ""
    """The trajectory that it is about; or else:"""
    step_id: str = ""
    """the step that it is about."""
    kind: Literal["verdict", "tag", "note"]
    """`verdict`: whether it may be trained on; `tag`: a label; `note`: a remark."""
    name: str
    """Verdict: `accept`, `reject` or `clear`. Tag: the label. Note: what it is about."""
    value: float | None = None
    """Tag: 0 takes it away."""
    text: str = ""
    """Why, or the remark."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    @model_validator(mode="after")
    def _one_target(self) -> "CurationWire":
        if bool(self.trajectory_id) == bool(self.step_id):
            raise ValueError("give either trajectory_id or step_id")
        return self

    def record(self) -> Annotation:
        """Raises InvalidRecord."""
        target: Literal["step", "trajectory"] = "step" if self.step_id else "trajectory"
        return Annotation(
            target=target, target_id=self.step_id or self.trajectory_id, **self._given("trajectory_id", "step_id")
        )

    def records(self, context: Context) -> tuple[Record, ...]:  # noqa: ARG002 - nothing to look up
        """See `Item`."""
        return (self.record(),)


class EndWire(Wire):
    """How a trajectory ended; the trajectory stands in the path."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"how": "terminated"}]})

    id: str = ""
    """Yours; left out: a new one."""
    how: End
    """`terminated`: it is complete; `truncated`: a limit cut it; `failed`: abort it, it is not trained on."""
    text: str = ""
    """Why."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    def record(self, trajectory_id: str) -> Annotation:
        """Raises InvalidRecord."""
        return Annotation(target="trajectory", target_id=trajectory_id, kind="end", name=self.how, **self._given("how"))


class SessionWire(Wire):
    """The facts known when a session is opened."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"task_id": "42", "agent": "solver"}]})

    trajectory_id: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,199})?$")
    """Of the trajectory that it makes: 1 to 200 letters, digits or . _ : @ = + ~ -; left out: a new one."""
    group_id: str | None = None
    """The group that it belongs to, if any."""
    task_id: str = ""
    """The task it attempts."""
    agent: str = ""
    """Name of the agent that drives it."""

    def record(self) -> TrajectoryInfo:
        """Raises InvalidRecord."""
        return TrajectoryInfo(
            id=self.trajectory_id or new_id("traj"), group_id=self.group_id, task_id=self.task_id, agent=self.agent
        )
