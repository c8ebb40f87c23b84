"""The decisions of a trajectory: the steps of the agent's own work, each with the reward that followed it.

Steps beside the agent's work (a title, the state after the last action) decided nothing. Steps that nobody can train
on, because they were aborted or have no tokens, did: they keep their place.
"""

from collections.abc import Iterable

import numpy as np

from stepwell.algorithms.base import Doubles, Inputs, broadcast, final_step, known_reward
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Floats, Group, Step, Trajectory


def decisions(trajectory: Trajectory) -> tuple[list[Step], Doubles]:
    """The N steps of the agent's own work, and the reward that followed each, float64 [N].

    A reward that the record has at a step beside the agent's work belongs to the decision before it: what a whole
    trajectory earned stands at its last step, whatever that was for. Before the first decision it is nobody's merit.

    Raises:
        InvalidRecord: the trajectory's reward is unknown.
    """
    known_reward(trajectory)
    steps: list[Step] = []
    rewards: list[float] = []
    for step, reward in zip(trajectory.steps, trajectory.step_rewards, strict=True):
        if not step.side:
            steps.append(step)
            rewards.append(reward)
        elif rewards:
            rewards[-1] += reward
    return steps, np.array(rewards, np.float64)


def credit_evenly(group: Group, advantages: Iterable[float]) -> list[Credit]:
    """Credit for every step of the agent's own work: the advantage of its trajectory, of which `advantages` has one."""
    return [
        Credit(step_id=step.id, advantages=broadcast(advantage, len(step.response_ids)))
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        for step in trajectory.steps
        if not step.side
    ]


def untrained(step: Step) -> Credit:
    """Credit for a step that is read but has no part in the loss."""
    return Credit(step_id=step.id, advantages=broadcast(0.0, len(step.response_ids)), trained=False)


def critic_values(inputs: Inputs, step: Step, count: int) -> Floats:
    """What the critic said of a step, float32 [count]. Raises InvalidRecord if it said something else, or nothing."""
    values = inputs.values.get(step.id)
    if values is None or len(values) != count:
        found = "no value" if values is None else f"{len(values)} values"
        raise InvalidRecord(f"the critic gave {found} for step {step.id}, where {count} are needed")
    return values


def value_after(trajectory: Trajectory, inputs: Inputs, *, bootstrap: bool) -> float:
    """The critic's value of the state after the last decision.

    0 where the episode terminated, where nobody recorded that state, and where `bootstrap` is off.
    """
    final = final_step(trajectory) if bootstrap else None
    return 0.0 if final is None else float(critic_values(inputs, final, 1)[0])
