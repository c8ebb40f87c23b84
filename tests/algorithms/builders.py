"""Short ways to make groups, and Hypothesis strategies for ragged ones."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.types import Credit, Group, GroupInfo, Step, Trajectory, TrajectoryInfo

rewards = st.floats(-10, 10, width=32)
lengths = st.lists(st.integers(0, 4), max_size=4)
"""Response tokens of each step of a trajectory."""


def make_step(trajectory_id: str, index: int, tokens: int = 2, **fields) -> Step:
    return Step(
        id=f"{trajectory_id}-{index}",
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=[1, 2, 3],
        response_ids=[5] * tokens,
        logprobs=[-0.5] * tokens,
        **fields,
    )


def make_trajectory(name: str, tokens: Sequence[int], step_rewards: Sequence[float], **fields) -> Trajectory:
    """A trajectory whose step k has `tokens[k]` response tokens and earns `step_rewards[k]`."""
    steps = tuple(make_step(name, index, count) for index, count in enumerate(tokens))
    known = {"reward": float(sum(step_rewards)), "status": "terminated"}
    return Trajectory(
        info=TrajectoryInfo(id=name), steps=steps, step_rewards=tuple(step_rewards), **{**known, **fields}
    )


def make_group(*trajectories: Trajectory) -> Group:
    return Group(info=GroupInfo(id="g", task_id="task", size=len(trajectories)), trajectories=trajectories)


@st.composite
def trajectories(draw: st.DrawFn, name: str) -> Trajectory:
    """Ragged, with steps that nobody can train on among the others."""
    tokens = draw(lengths)
    earned = draw(st.lists(rewards, min_size=len(tokens), max_size=len(tokens)))
    trajectory = make_trajectory(name, tokens, earned)
    odd = st.sampled_from([{}, {}, {"token_source": "text"}, {"finish_reason": "abort"}, {"finish_reason": "length"}])
    steps = tuple(make_step(name, index, count, **draw(odd)) for index, count in enumerate(tokens))
    return Trajectory(
        info=trajectory.info,
        steps=steps,
        step_rewards=trajectory.step_rewards,
        reward=draw(rewards) if not steps else trajectory.reward,
        status=draw(st.sampled_from(["terminated", "truncated"])),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    return make_group(*(draw(trajectories(f"t{number}")) for number in range(draw(st.integers(1, 4)))))


def make_values(algorithm: Algorithm, group: Group, seed: int = 0) -> dict[str, np.ndarray]:
    """What a critic of the scope that the algorithm needs would say, at random."""
    random = np.random.default_rng(seed)
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    if algorithm.needs_values == "none":
        return {}
    counts = {step.id: 1 if algorithm.needs_values == "step" else len(step.response_ids) for step in steps}
    return {step_id: random.normal(size=count).astype(np.float32) for step_id, count in counts.items()}


def assign(algorithm: Algorithm, group: Group, values: dict[str, np.ndarray] | None = None) -> dict[str, Credit]:
    """Credit by step id; without `values` the critic says 0 everywhere."""
    zeros = {step_id: value * 0 for step_id, value in make_values(algorithm, group).items()}
    credits = algorithm.assign(group, Inputs(values=zeros if values is None else values))
    return {credit.step_id: credit for credit in credits}
