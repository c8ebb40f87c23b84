"""A lease as veRL's `DataProto`.

Shape letters: B rows, P and R widths of the longest prompt and response.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from verl import DataProto

from stepwell.errors import InvalidRecord
from stepwell.types import Group, Step, Trajectory


def to_dataproto(groups: Sequence[Group], *, pad_token_id: int, multiple_of: int = 1) -> DataProto:
    """The steps of `groups`, one row each, in order: prompts padded on the left, responses on the right.

    Rows of steps that may not be trained on, and the padding rows at the end, have a `response_mask` of 0 everywhere;
    the former still count in the credit of their trajectory.

    Args:
        groups: Such as those of a lease; their trajectories have a known reward.
        pad_token_id: What stands where nothing is.
        multiple_of: Rows are added until their number can be divided by this, such as the size of a mini-batch.

    Returns:
        `batch`: `prompts` int64 [B, P]; `responses` int64 [B, R]; `input_ids`, `attention_mask`, `position_ids` int64
        [B, P+R]; `response_mask` int64 [B, R]; `rollout_log_probs` and `old_log_probs` float32 [B, R], as sampled;
        `token_level_scores` and `token_level_rewards` float32 [B, R], each step's reward at its last token.
        `non_tensor_batch`, object [B]: `uid` (the group), `trajectory_uid`, `step_uid`, `side` (of `Step`), `status`
        (of `Trajectory`); `step_index` int64 [B]; `trajectory_reward` float64 [B]; `padding` bool [B]. `meta_info`:
        `temperature`.

    Raises:
        InvalidRecord: there is no step, a trajectory has none, its reward is unknown, or the steps were sampled at
            different temperatures.
    """
    rows = [row for group in groups for trajectory in group.trajectories for row in _rows(group.info.id, trajectory)]
    temperature = _temperature([row.step for row in rows])
    padding = -len(rows) % multiple_of
    return DataProto.from_dict(
        tensors=_tensors(rows, pad_token_id, padding),
        non_tensors=_names(rows, padding),
        meta_info={"temperature": temperature},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    group_id: str
    trajectory: Trajectory
    step: Step
    step_reward: float
    trajectory_reward: float


def _rows(group_id: str, trajectory: Trajectory) -> Iterator[_Row]:
    if trajectory.reward is None:
        raise InvalidRecord(f"trajectory {trajectory.info.id} has no reward: a missing reward is not 0")
    if not trajectory.steps:
        raise InvalidRecord(f"trajectory {trajectory.info.id} has no step, so its reward would be lost to its group")
    for step, reward in zip(trajectory.steps, trajectory.step_rewards, strict=True):
        yield _Row(
            group_id=group_id,
            trajectory=trajectory,
            step=step,
            step_reward=reward,
            trajectory_reward=trajectory.reward,
        )


def _temperature(steps: Sequence[Step]) -> float:
    found = sorted({step.sampling.scale for step in steps})
    if len(found) != 1:
        raise InvalidRecord(
            f"veRL trains a batch at one temperature, but these {len(steps)} steps were sampled at {found}; select the "
            "steps of one"
        )
    return found[0]


def _names(rows: Sequence[_Row], padding: int) -> dict[str, npt.NDArray[Any]]:
    """What `DataProto.non_tensor_batch` holds of each row; a padding row is a group and a trajectory of its own."""
    extra = [f"padding-{number}" for number in range(padding)]
    zeros = [0] * padding
    return {
        "uid": np.array([row.group_id for row in rows] + extra, object),
        "trajectory_uid": np.array([row.step.trajectory_id for row in rows] + extra, object),
        "step_uid": np.array([row.step.id for row in rows] + extra, object),
        "side": np.array([row.step.side for row in rows] + [""] * padding, object),
        "status": np.array([row.trajectory.status for row in rows] + ["terminated"] * padding, object),
        "step_index": np.array([row.step.index for row in rows] + zeros, np.int64),
        "trajectory_reward": np.array([row.trajectory_reward for row in rows] + zeros, np.float64),
        "padding": np.arange(len(rows) + padding) >= len(rows),
    }


def _tensors(rows: Sequence[_Row], pad: int, padding: int) -> dict[str, Tensor]:
    count, steps = len(rows) + padding, [row.step for row in rows]
    width = max(len(step.prompt_ids) for step in steps)
    room = max(1, *(len(step.response_ids) for step in steps))
    ids, attention = np.full((count, width + room), pad), np.zeros((count, width + room), np.int64)
    mask, logprobs, scores = np.zeros((count, room), np.int64), *np.zeros((2, count, room), np.float32)
    attention[len(rows) :, width - 1] = 1  # a row with nothing to attend to is NaN in most models
    for row, step in enumerate(steps):
        size, end = len(step.response_ids), width + len(step.response_ids)
        start = width - len(step.prompt_ids)
        ids[row, start:end] = np.concatenate((step.prompt_ids, step.response_ids))
        attention[row, start:end] = 1
        mask[row, :size] = step.trainable
        logprobs[row, :size] = step.logprobs
        scores[row, max(size - 1, 0)] = rows[row].step_reward
    arrays = {
        "prompts": ids[:, :width],
        "responses": ids[:, width:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
        "response_mask": mask,
        "rollout_log_probs": logprobs,
        "old_log_probs": logprobs,
        "token_level_scores": scores,
        "token_level_rewards": scores,
    }
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
