"""Records as JSON, in and out: a pydantic model beside each record that other processes may send.

A test holds that each model lists exactly its record's fields. Fields that are left out get the record's own default.
"""

import dataclasses
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from stepwell.types import (
    Annotation,
    End,
    FinishReason,
    GroupInfo,
    Sampling,
    Step,
    TokenSource,
    Trajectory,
    TrajectoryInfo,
)


class Wire(BaseModel):
    """Base: a misspelt field is refused, for its value would be lost for ever."""

    model_config = ConfigDict(extra="forbid")

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


class SamplingWire(Wire):
    """`Sampling` in JSON."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int | None = None

    def record(self) -> Sampling:
        """Raises InvalidRecord if a value is out of range."""
        return Sampling(**self._given())


class StepWire(Wire):
    """`Step` in JSON."""

    id: str = ""
    trajectory_id: str
    index: int
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    policy_version_min: int = 0
    policy_version_max: int = 0
    finish_reason: FinishReason = "stop"
    token_source: TokenSource = "engine"
    sampling: SamplingWire = SamplingWire()
    model: str = ""
    request: str = ""
    response: str = ""
    created_at: float = 0.0
    latency: float = 0.0

    def record(self) -> Step:
        """Raises InvalidRecord, e.g. for NaN or a missing log-probability."""
        return Step(**{**self._given(), "sampling": self.sampling.record()})


class GroupWire(Wire):
    """`GroupInfo` in JSON."""

    id: str = ""
    task_id: str
    size: int
    channel: str = "default"
    created_at: float = 0.0

    def record(self) -> GroupInfo:
        """Raises InvalidRecord."""
        return GroupInfo(**self._given())


class TrajectoryWire(Wire):
    """`TrajectoryInfo` in JSON."""

    id: str = ""
    group_id: str | None = None
    task_id: str = ""
    agent: str = ""
    source: str = "gateway"
    created_at: float = 0.0

    def record(self) -> TrajectoryInfo:
        """Raises InvalidRecord."""
        return TrajectoryInfo(**self._given())


class RewardWire(Wire):
    """An `Annotation` of kind `reward` in JSON, its target given as one of two ids."""

    id: str = ""
    trajectory_id: str = ""
    step_id: str = ""
    value: float
    name: str = "reward"
    text: str = ""
    created_at: float = 0.0

    @model_validator(mode="after")
    def _one_target(self) -> "RewardWire":
        if bool(self.trajectory_id) == bool(self.step_id):
            raise ValueError("give either trajectory_id or step_id")
        return self

    def record(self) -> Annotation:
        """Raises InvalidRecord, e.g. for NaN."""
        given = {name: value for name, value in self._given().items() if name not in ("trajectory_id", "step_id")}
        target: Literal["step", "trajectory"] = "step" if self.step_id else "trajectory"
        return Annotation(target=target, target_id=self.step_id or self.trajectory_id, kind="reward", **given)


class EndWire(Wire):
    """An `Annotation` of kind `end` in JSON; the trajectory stands in the path."""

    id: str = ""
    how: End
    text: str = ""
    created_at: float = 0.0

    def record(self, trajectory_id: str) -> Annotation:
        """Raises InvalidRecord."""
        given = {name: value for name, value in self._given().items() if name != "how"}
        return Annotation(target="trajectory", target_id=trajectory_id, kind="end", name=self.how, **given)


def step_json(step: Step) -> dict[str, Any]:
    """A step as `StepWire` reads it."""
    shape = dataclasses.asdict(step)
    return {**shape, **{name: shape[name].tolist() for name in ("prompt_ids", "response_ids", "logprobs")}}


def trajectory_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory with its steps and what is known about them."""
    return {
        "info": dataclasses.asdict(trajectory.info),
        "status": trajectory.status,
        "why": trajectory.why,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "step_rewards": list(trajectory.step_rewards),
        "steps": [step_json(step) for step in trajectory.steps],
    }
