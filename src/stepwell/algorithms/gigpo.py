"""GiGPO (Feng et al. 2025, arXiv 2505.10978): GRPO, and within it a comparison of actions taken in the same state.

The trajectories of a group start alike and often pass the same states again. Steps taken in the same state, the
anchor, form a group of their own: which of them is followed by more?
"""

import json
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, broadcast, known_reward
from stepwell.algorithms.decisions import decisions
from stepwell.algorithms.gae import discounted_returns
from stepwell.algorithms.grpo import group_advantages
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Group, Step

Scale = Literal["std", "none"]


def anchored_advantages(
    returns: npt.ArrayLike, anchors: Sequence[Hashable], *, scale: Scale = "std"
) -> npt.NDArray[np.float64]:
    """The advantage of each step among those that were taken in the same state.

    A step that is alone with its state is compared with nothing: 0.

    Args:
        returns: [N], discounted, from each step on.
        anchors: [N], equal where the states are.

    Returns:
        float64 [N].

    Raises:
        InvalidRecord: a return is NaN or infinite.
    """
    r = np.asarray(returns, np.float64)
    members: dict[Hashable, list[int]] = {}
    for number, anchor in enumerate(anchors):
        members.setdefault(anchor, []).append(number)
    advantages = np.zeros(len(r))
    for numbers in members.values():
        advantages[numbers] = group_advantages(r[numbers], scale=scale)
    return advantages


def observation(step: Step) -> str:
    """What the environment last said to the agent, of the request that it was sent in: JSON, without the ids of calls.

    It is all that came after the last answer of a model, so it is the same whatever went before.

    Raises:
        InvalidRecord: the step has no request, or one without messages.
    """
    try:
        body = json.loads(step.request)
        said = next(body[key] for key in ("messages", "input", "prompt") if key in body)
    except (ValueError, TypeError, StopIteration) as error:
        raise InvalidRecord(
            f"step {step.id} has no request with messages, so it has no observation; use anchor: prompt"
        ) from error
    messages = said if isinstance(said, list) else [said]
    after = max((number for number, message in enumerate(messages, 1) if _by_model(message)), default=0)
    return json.dumps(_without_ids(messages[after:] or messages[-1:]), sort_keys=True)


def _by_model(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return message.get("role") == "assistant" or message.get("type") in ("function_call", "reasoning")


def _without_ids(value: Any) -> Any:
    """Calls get a new id each time, which is no part of the state."""
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key != "id" and not str(key).endswith("_id")}
    return value


class GiGPO(AlgorithmConfig):
    """Group-in-group policy optimisation: GRPO, plus a comparison of steps taken in the same state."""

    omega: float = Field(default=1.0, ge=0)
    """Weight of that comparison; 0 is GRPO."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per step of the returns that it compares."""
    scale: Scale = "std"
    """Divide by the standard deviation of a group, of both kinds, or not."""
    anchor: Literal["prompt", "observation"] = "prompt"
    """States are the same if the whole prompt is, token for token, or if what the environment last said is, whatever
    went before."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings."""
        return Algorithm(name="gigpo", assign=self._assign, objective=self.objective)

    def _assign(self, group: Group, inputs: Inputs) -> list[Credit]:  # noqa: ARG002
        episodes = group_advantages([known_reward(t) for t in group.trajectories], scale=self.scale)
        steps: list[Step] = []
        advantages, returns = [np.empty(0)], [np.empty(0)]
        for trajectory, episode in zip(group.trajectories, episodes, strict=True):
            own, rewards = decisions(trajectory)
            steps += own
            advantages.append(np.full(len(own), episode))
            returns.append(discounted_returns(rewards, self.gamma))
        total = np.concatenate(advantages)
        if self.omega:
            anchors = [self._anchor(step) for step in steps]
            total = total + self.omega * anchored_advantages(np.concatenate(returns), anchors, scale=self.scale)
        return [
            Credit(step_id=step.id, advantages=broadcast(advantage, len(step.response_ids)))
            for step, advantage in zip(steps, total, strict=True)
        ]

    def _anchor(self, step: Step) -> Hashable:
        return step.prompt_ids.tobytes() if self.anchor == "prompt" else observation(step)
