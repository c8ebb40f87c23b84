"""What an algorithm would give each step of a trajectory, worked out now over its group from what the pool holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.errors import InvalidRecord
from stepwell.pool.base import Pool
from stepwell.types import Credit, Group, GroupInfo, Trajectory, TrajectoryInfo

NAMES: Final = tuple(sorted(ALGORITHMS))


@dataclass(frozen=True, slots=True)
class Advantage:
    """The advantages of one step's tokens."""

    mean: float
    lowest: float
    highest: float
    trained: bool
    """False: the algorithm reads the step, and leaves it out of the loss."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The credit of a trajectory's steps by one algorithm."""

    algorithm: str
    said: str
    """What it was worked out from, or why it could not be."""
    by_step: Mapping[str, Advantage] = field(default_factory=dict)
    """By step id; empty where it could not be worked out."""


def read_credit(pool: Pool, name: str, info: TrajectoryInfo) -> Assigned:
    """What the algorithm `name`, with its default settings, gives. Raises NotFound and PoolError."""
    algorithm = ALGORITHMS[name]().build()
    missing = needs(algorithm)
    if missing:
        return Assigned(name, f"{name} also reads {missing}, which only a training run computes: the pool has none.")
    return assigned(algorithm, _of_group(pool, info), info.id)


def needs(algorithm: Algorithm) -> str:
    """What it reads besides the records of a group; empty if that is all."""
    wanted = {
        "a critic's values": algorithm.needs_values != "none",
        "a teacher's log-probabilities": algorithm.teacher is not None,
        "the current policy's log-probabilities": algorithm.needs_logprobs,
        "which tokens are the action": algorithm.needs_actions,
    }
    return " and ".join(what for what, needed in wanted.items() if needed)


def assigned(algorithm: Algorithm, group: Group, trajectory_id: str) -> Assigned:
    """The credit of one of the group's trajectories; of the others those count that an update would be given."""
    usable = tuple(member for member in group.trajectories if member.complete and member.verdict != "reject")
    own = next((member for member in usable if member.info.id == trajectory_id), None)
    if own is None:
        return Assigned(
            algorithm.name, "Credit is given to trajectories that ended, did not fail, are rewarded and not rejected."
        )
    try:
        credits = algorithm.assign(Group(info=group.info, trajectories=usable), Inputs())
    except InvalidRecord as error:
        return Assigned(algorithm.name, f"{algorithm.name} cannot be applied here: {error}.")
    mine = {step.id for step in own.steps}
    by_step = {credit.step_id: _of_step(credit) for credit in credits if credit.step_id in mine}
    return Assigned(algorithm.name, _said(algorithm, len(usable)), by_step)


def _of_group(pool: Pool, info: TrajectoryInfo) -> Group:
    if info.group_id is not None:
        return pool.group(info.group_id)
    alone: Trajectory = pool.trajectory(info.id)
    return Group(info=GroupInfo(id=info.id, task_id=info.task_id, size=1), trajectories=(alone,))


def _of_step(credit: Credit) -> Advantage:
    if not len(credit.advantages):
        return Advantage(0.0, 0.0, 0.0, credit.trained)
    lowest, highest = float(credit.advantages.min()), float(credit.advantages.max())
    mean = lowest if lowest == highest else float(credit.advantages.mean())
    return Advantage(mean, lowest, highest, credit.trained)


def _said(algorithm: Algorithm, members: int) -> str:
    others = f"{members} complete trajectories of its group" if members > 1 else "this trajectory alone"
    said = f"Advantages by {algorithm.name} with its default settings, over {others}."
    if algorithm.whiten != "none":
        said += f" An update then brings them to mean 0 and deviation 1 over all its {algorithm.whiten}s."
    return said
