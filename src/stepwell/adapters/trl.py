"""A lease for TRL: data sets that its trainers take as they are, and rollouts for its GRPO trainer to train on again.

TRL's unit is the completion: what one trajectory added to its first prompt. So a trajectory is one row where its steps
go on from each other id for id; tokens that the environment put in between are masked.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from stepwell.errors import MissingDependency, NotFound
from stepwell.pool.archive import Conversations, Item, Preferences, View
from stepwell.pool.archive.entries import entries
from stepwell.pool.archive.lines import extends, main_line
from stepwell.pool.archive.table import Row, to_table
from stepwell.types import Group, Trajectory

try:
    import datasets
except ImportError as error:
    raise MissingDependency("TRL needs `datasets`; install both with: pip install 'stepwell[trl]'") from error

_Row = dict[str, Any]
_REWARD: Final = "stepwell_reward"


def conversations(items: Iterable[Item], view: Conversations | None = None) -> datasets.Dataset:
    """Rows for `SFTTrainer`: `messages`, and `tools` as JSON text; the other columns say where they come from."""
    return _dataset(items, view or Conversations())


def preferences(items: Iterable[Item], view: Preferences | None = None) -> datasets.Dataset:
    """Rows for `DPOTrainer`: `prompt`, `chosen` and `rejected` messages, and `tools` as JSON text."""
    return _dataset(items, view or Preferences())


def _dataset(items: Iterable[Item], view: View) -> datasets.Dataset:
    rows: list[Row] = list(view.rows(entries(items), Counter()))
    return datasets.Dataset(to_table(view.row, rows))


def rollouts(groups: Iterable[Group]) -> datasets.Dataset:
    """The exact tokens of each trajectory that is one sequence, one row each; `SFTTrainer` takes them too.

    Columns: `input_ids`; `completion_mask`, 1 where the policy sampled and may be trained; `logprobs` in nats, 0 where
    the mask is; `prompt_length`; `reward` of the trajectory; `temperature`; `trajectory_id`, `group_id`, `task_id`.
    """
    members = ((group, trajectory) for group in groups for trajectory in group.trajectories)
    rows = [row for group, trajectory in members if (row := _rollout(group, trajectory))]
    columns = {name: [row[name] for row in rows] for name in _FEATURES}
    return datasets.Dataset.from_dict(columns, features=_FEATURES)


_FEATURES: Final = datasets.Features(
    {
        "input_ids": datasets.List(datasets.Value("int32")),
        "completion_mask": datasets.List(datasets.Value("int8")),
        "logprobs": datasets.List(datasets.Value("float32")),
        "prompt_length": datasets.Value("int32"),
        "reward": datasets.Value("float64"),
        "temperature": datasets.Value("float64"),
        "trajectory_id": datasets.Value("string"),
        "group_id": datasets.Value("string"),
        "task_id": datasets.Value("string"),
    }
)


def _rollout(group: Group, trajectory: Trajectory) -> _Row | None:
    """None if its steps are no one sequence of tokens: the conversation drifted, or it has none."""
    line = main_line(trajectory.steps)
    if not line or not all(extends(later, earlier) for earlier, later in pairwise(line)):
        return None
    ids = line[-1].prompt_ids.tolist() + line[-1].response_ids.tolist()
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    for step in line:
        if step.trainable:
            place = slice(len(step.prompt_ids), len(step.prompt_ids) + len(step.response_ids))
            mask[place] = [1] * len(step.response_ids)
            logprobs[place] = step.logprobs.tolist()
    return {
        "input_ids": ids,
        "completion_mask": mask,
        "logprobs": logprobs,
        "prompt_length": len(line[0].prompt_ids),
        "reward": trajectory.reward,
        "temperature": line[-1].sampling.scale,
        "trajectory_id": trajectory.info.id,
        "group_id": group.info.id,
        "task_id": group.info.task_id,
    }


class Replay:
    """Groups for TRL's `GRPOTrainer`, which would sample its own: it gets these rollouts and their rewards instead.

        replay = Replay(lease.groups, size=4)
        GRPOTrainer(model, replay.rewards, args, replay.dataset, rollout_func=replay)

    with `num_generations` 4 and the `temperature` that they were sampled at. TRL takes them for samples of the current
    weights unless its importance sampling correction, which needs vLLM, is on: lease fresh groups only.
    """

    def __init__(self, groups: Sequence[Group], *, size: int) -> None:
        """Use the first `size` trajectories of each group that have a reward and are one sequence of tokens."""
        self._rows: dict[str, list[_Row]] = {}
        for group in groups:
            self._rows[group.info.id] = [
                row for t in group.trajectories if t.reward is not None and (row := _rollout(group, t))
            ][:size]
        self.left_out = tuple(name for name, rows in self._rows.items() if len(rows) < size)
        """Ids of groups that have less than `size` of them."""
        for name in self.left_out:
            del self._rows[name]
        self._next = {name: deque(rows) for name, rows in self._rows.items()}
        self.dataset = datasets.Dataset.from_dict({"prompt": list(self._rows)})
        """One row per group; the prompt is its id, by which the trainer asks for its rollouts."""

    def __call__(self, prompts: Sequence[str], trainer: object) -> dict[str, list[Any]]:  # noqa: ARG002 - TRL's protocol
        """What TRL's `rollout_func` gives: the next rollout of each group that is named, again from the first in time.

        Raises:
            NotFound: no group has this id, so the trainer was given another data set.
        """
        rows = [self._turn(prompt) for prompt in prompts]
        return {
            "prompt_ids": [row["input_ids"][: row["prompt_length"]] for row in rows],
            "completion_ids": [row["input_ids"][row["prompt_length"] :] for row in rows],
            "logprobs": [row["logprobs"][row["prompt_length"] :] for row in rows],
            "env_mask": [row["completion_mask"][row["prompt_length"] :] for row in rows],
            _REWARD: [row["reward"] for row in rows],
        }

    def _turn(self, group_id: str) -> Mapping[str, Any]:
        try:
            rows = self._next[group_id]
        except KeyError:
            raise NotFound(f"no group {group_id!r} is replayed; train on the `dataset` of this object") from None
        rows.rotate(-1)
        return rows[-1]

    @staticmethod
    def rewards(prompts: Sequence[object], completions: Sequence[object], **columns: Any) -> list[float]:  # noqa: ARG004 - TRL's protocol
        """The reward function to go with it: what each trajectory got."""
        found: list[float] = columns[_REWARD]
        return found
