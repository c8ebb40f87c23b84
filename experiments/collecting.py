"""What each update learns from: groups of one task, siblings turn by turn, or what was sampled some updates ago."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

import numpy as np
from pydantic import Field

from experiments.play import Episode, Player
from stepwell.algorithms.base import Algorithm, Siblings
from stepwell.config import Config
from stepwell.types import Group, Trajectory


class Collecting(Config):
    """How rollouts become an update."""

    steps: int = Field(default=256, ge=1)
    """Steps of the environment that an update is made of; of siblings see `trunks`."""
    group_size: int = Field(default=8, ge=1)
    """Trajectories of a task; siblings of a state."""
    trunks: int = Field(default=8, ge=1)
    """Trajectories, of one task each, whose turns are taken anew by siblings."""
    at_once: bool = False
    """Siblings of all turns are played by the policy as it was before the first of these turns was trained."""
    staleness: int = Field(default=0, ge=0)
    """Updates between the policy that samples and the one that is trained on it."""
    shown: int = Field(default=0, ge=0)
    """Turns before its own that a prompt shows."""
    context: Literal["exact", "flattened"] = "exact"
    """Trained is what was seen, or the whole history, as if that had been seen."""


def batches(
    config: Collecting, algorithm: Algorithm, player: Player, tasks: Iterator[str], turns: int
) -> Iterator[list[Group]]:
    """The groups of one update after the other, each played when it is asked for, or as long before as settings say."""
    plan = algorithm.siblings
    played = _groups(config, player, tasks, turns) if plan is None else _siblings(config, plan, player, tasks)
    waiting: deque[list[Group]] = deque()
    for groups in played:
        waiting.append(groups)
        if len(waiting) > config.staleness:
            yield waiting.popleft()


def _groups(config: Collecting, player: Player, tasks: Iterator[str], turns: int) -> Iterator[list[Group]]:
    count = max(config.steps // (turns * config.group_size), 1)
    while True:
        groups = [[player.begin(task) for _ in range(config.group_size)] for task in islice(tasks, count)]
        player.play([episode for group in groups for episode in group])
        yield [_group(config, player, group) for group in groups]


def _siblings(config: Collecting, plan: Siblings, player: Player, tasks: Iterator[str]) -> Iterator[list[Group]]:
    while True:
        trunks = [player.begin(task) for task in islice(tasks, config.trunks)]
        player.play(trunks)
        turns = range(len(trunks[0].steps))
        order = turns[::-1] if plan.order == "reverse" else turns
        sets = (_taken_anew(config, plan, player, trunks, turn) for turn in order)
        yield from filter(None, list(sets) if config.at_once else sets)


def _taken_anew(
    config: Collecting, plan: Siblings, player: Player, trunks: Sequence[Episode], turn: int
) -> list[Group]:
    """One group for each trunk, but for those whose siblings are all alike, if the plan passes those over."""
    sets = [(trunk, [player.fork(trunk, turn) for _ in range(config.group_size)]) for trunk in trunks]
    player.play([episode for _, siblings in sets for episode in siblings], turns=1)
    kept = [(trunk, siblings) for trunk, siblings in sets if not (plan.skip_alike and _alike(siblings))]
    player.play([episode for _, siblings in kept for episode in siblings])
    return [_group(config, player, siblings, trunk) for trunk, siblings in kept]


def _alike(siblings: Sequence[Episode]) -> bool:
    return len({sibling.steps[0].response_ids.tobytes() for sibling in siblings}) == 1


def _group(config: Collecting, player: Player, episodes: Sequence[Episode], origin: Episode | None = None) -> Group:
    group = player.group(episodes, origin)
    if config.context == "exact":
        return group
    pairs = zip(group.trajectories, episodes, strict=True)
    return replace(group, trajectories=tuple(_flattened(trajectory, episode) for trajectory, episode in pairs))


def _flattened(trajectory: Trajectory, episode: Episode) -> Trajectory:
    """Each prompt with all that came before it, in place of the one that was seen."""
    steps = [replace(s, prompt_ids=np.concatenate(episode.history[: 2 * s.index + 1])) for s in trajectory.steps]
    return replace(trajectory, steps=tuple(steps))
