"""Our credit assignment on a veRL batch: rows become groups, our algorithms see those, and credit goes back to rows.

Shape letters: B rows, R width of the longest response.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl import DataProto

from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.errors import InvalidRequest
from stepwell.trainer.collate import make_samples, whiten
from stepwell.types import Floats, Group, GroupInfo, Ids, Step, Trajectory, TrajectoryInfo


def advantages(data: DataProto, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """The advantages that `algorithm` gives the rows, whitened as it asks for, and the targets of the critic.

    Rows with the same `uid` and `trajectory_uid` are the steps of one trajectory, in the order of `step_index`; without
    those names each row is a trajectory of its own. Reads `token_level_rewards`, `response_mask` and, for an algorithm
    with a critic, `values`. Rows whose `padding` is set are passed over.

    Returns:
        Two float32 [B, R], 0 where the mask is. Without a critic both are the advantages. Where an algorithm has no
        target for a value, the target is the old value, so that it pulls nowhere.

    Raises:
        InvalidRequest: the algorithm needs a critic, but there are no values; or it is not usable here.
    """
    if not is_usable(algorithm):
        raise InvalidRequest(f"{algorithm.name} reads log-probabilities that veRL does not hand over; train it here")
    layout = _Layout(data)
    values = layout.values(algorithm)
    groups = layout.groups()
    credits = {c.step_id: c for group in groups for c in algorithm.assign(group, Inputs(values=values))}
    found = torch.zeros_like(data.batch["token_level_rewards"], dtype=torch.float32)
    for sample in whiten(make_samples(groups, credits, values), algorithm.whiten):
        row = int(sample.step_id)
        found[row, layout.positions[row]] = torch.from_numpy(sample.advantages.copy()).to(found.device)
    if algorithm.needs_values == "none":
        return found, found.clone()
    returns = data.batch["values"].to(torch.float32) * data.batch["response_mask"]
    for step_id, credit in credits.items():
        positions = layout.positions[int(step_id)][: len(credit.value_targets)]
        returns[int(step_id), positions] = torch.from_numpy(credit.value_targets.copy()).to(returns.device)
    return found, returns * data.batch["response_mask"]


def is_usable(algorithm: Algorithm) -> bool:
    """Whether it reads nothing but what veRL hands over: rewards, and values of a critic."""
    return algorithm.teacher is None and not algorithm.needs_logprobs


class _Layout:
    """Which steps, trajectories and groups the rows of a batch are; a step's id is its row."""

    def __init__(self, data: DataProto) -> None:
        self._data = data
        names, count = data.non_tensor_batch, len(data)
        own = np.array([str(row) for row in range(count)], object)
        self._groups = names.get("uid", own)
        self._trajectories = names.get("trajectory_uid", own)
        self._sides = names.get("side", np.full(count, "", object))
        self._statuses = names.get("status", np.full(count, "terminated", object))
        self._indices = np.asarray(names.get("step_index", np.zeros(count)), np.int64)
        self._rows = np.flatnonzero(~np.asarray(names.get("padding", np.zeros(count)), bool)).tolist()
        self._rewards = data.batch["token_level_rewards"].sum(dim=-1).double().tolist()
        self._mask = data.batch["response_mask"].bool()
        self.positions = [self._sampled(row).nonzero().flatten() for row in range(count)]
        """Of each row: where its sampled tokens are, int64."""

    def _sampled(self, row: int) -> Tensor:
        mask: Tensor = self._mask[row]
        if mask.any() or "attention_mask" not in self._data.batch:
            return mask
        attended: Tensor = self._data.batch["attention_mask"][row, -len(mask) :].bool()
        return attended

    def _prompt(self, row: int) -> Ids:
        """The row's prompt without its padding; where the batch has none, one that no other row has."""
        batch = self._data.batch
        if "prompts" not in batch:
            return np.array([row], np.int32)
        prompt: Ids = batch["prompts"][row].cpu().numpy().astype(np.int32)
        if "attention_mask" not in batch:
            return prompt
        attended: Ids = prompt[batch["attention_mask"][row, : len(prompt)].cpu().numpy().astype(bool)]
        return attended

    def values(self, algorithm: Algorithm) -> dict[str, Floats]:
        """The critic's values by step id, where the algorithm reads them."""
        if algorithm.needs_values == "none":
            return {}
        if "values" not in self._data.batch:
            raise InvalidRequest(
                f"{algorithm.name} needs a critic, but the batch has no values; set critic.enable=True"
            )
        values = self._data.batch["values"].float().cpu()
        found = {}
        for row in self._rows:  # before the first response token is at the last prompt token
            at_start = algorithm.needs_values == "step" or self._sides[row]
            found[str(row)] = (values[row, :1] if at_start else values[row, self.positions[row].cpu()]).numpy()
        return found

    def groups(self) -> list[Group]:
        """The rows as groups of trajectories; of the steps only what credit assignment looks at."""
        found: dict[Any, dict[Any, list[int]]] = {}
        for row in self._rows:
            found.setdefault(self._groups[row], {}).setdefault(self._trajectories[row], []).append(row)
        return [
            Group(
                info=GroupInfo(id=f"group-{number}", task_id="", size=len(members)),
                trajectories=tuple(self._trajectory(rows) for rows in members.values()),
            )
            for number, members in enumerate(found.values())
        ]

    def _trajectory(self, rows: list[int]) -> Trajectory:
        ordered = sorted(rows, key=lambda row: self._indices[row])
        rewards = tuple(self._rewards[row] for row in ordered)
        info = TrajectoryInfo(id=f"trajectory-{rows[0]}")
        steps = tuple(self._step(info.id, row) for row in ordered)
        status = self._statuses[rows[0]]
        return Trajectory(info=info, steps=steps, step_rewards=rewards, reward=sum(rewards), status=status)

    def _step(self, trajectory_id: str, row: int) -> Step:
        size = len(self.positions[row])
        return Step(
            id=str(row),
            trajectory_id=trajectory_id,
            index=int(self._indices[row]),
            prompt_ids=self._prompt(row),
            response_ids=np.zeros(size, np.int32),
            logprobs=np.zeros(size, np.float32),
            finish_reason="stop" if self._mask[row].any() else "abort",
            side=self._sides[row],
        )
