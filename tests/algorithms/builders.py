"""Short ways to make groups, and Hypothesis strategies for ragged ones."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.types import Credit, Group, GroupInfo, Ids, Step, Trajectory, TrajectoryInfo

rewards = st.floats(-10, 10, width=32)
lengths = st.lists(st.integers(0, 4), max_size=4)
"""Response tokens of each step of a trajectory."""


def make_step(trajectory_id: str, index: int, tokens: int = 2, **fields) -> Step:
    return Step(
        id=f"{trajectory_id}-{index}",
        trajectory_id=trajectory_id,
        index=index,
        response_ids=[5] * tokens,
        logprobs=[-0.5] * tokens,
        **{"prompt_ids": [1, 2, 3], **fields},
    )


def make_trajectory(name: str, tokens: Sequence[int], step_rewards: Sequence[float], **fields) -> Trajectory:
    """A trajectory whose step k has `tokens[k]` response tokens and earns `step_rewards[k]`."""
    steps = tuple(make_step(name, index, count) for index, count in enumerate(tokens))
    known = {"reward": float(sum(step_rewards)), "status": "terminated"}
    return Trajectory(
        info=TrajectoryInfo(id=name), steps=steps, step_rewards=tuple(step_rewards), **{**known, **fields}
    )


def with_step(trajectory: Trajectory, place: int, **changes) -> Trajectory:
    """The trajectory with one of its steps changed."""
    steps = list(trajectory.steps)
    steps[place] = replace(steps[place], **changes)
    return replace(trajectory, steps=tuple(steps))


def left_in(trajectory: Trajectory, reward: float = 0.0) -> Trajectory:
    """The trajectory, cut off by a limit, with the state that it was left in on record, and a reward there."""
    state = make_step(trajectory.info.id, len(trajectory.steps), 1, side="state")
    return replace(
        trajectory,
        steps=(*trajectory.steps, state),
        step_rewards=(*trajectory.step_rewards, reward),
        reward=trajectory.reward + reward,
        status="truncated",
    )


def make_group(*trajectories: Trajectory) -> Group:
    return Group(info=GroupInfo(id="g", task_id="task", size=len(trajectories)), trajectories=trajectories)


ODD = (
    {},
    {},
    {},
    {"token_source": "text"},
    {"finish_reason": "abort"},
    {"finish_reason": "length"},
    {"side": "title"},
)
"""What a step may be beside ordinary."""


@st.composite
def trajectories(draw: st.DrawFn, name: str) -> Trajectory:
    """Ragged, with steps that nobody can train on among the others, and some with the state that they were left in."""
    tokens = draw(lengths)
    earned = draw(st.lists(rewards, min_size=len(tokens), max_size=len(tokens)))
    trajectory = make_trajectory(name, tokens, earned, status=draw(st.sampled_from(["terminated", "truncated"])))
    for index in range(len(tokens)):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=2))
        trajectory = with_step(trajectory, index, prompt_ids=prompt, **draw(st.sampled_from(ODD)))
    if not tokens:
        return replace(trajectory, reward=draw(rewards))
    return left_in(trajectory, draw(rewards)) if draw(st.booleans()) else trajectory


@st.composite
def groups(draw: st.DrawFn) -> Group:
    return make_group(*(draw(trajectories(f"t{number}")) for number in range(draw(st.integers(1, 4)))))


def make_values(algorithm: Algorithm, group: Group, seed: int = 0) -> dict[str, np.ndarray]:
    """What a critic of the scope that the algorithm needs would say, at random."""
    random = np.random.default_rng(seed)
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    if algorithm.needs_values == "none":
        return {}
    at_prompt = {step.id: algorithm.needs_values == "step" or bool(step.side) for step in steps}
    counts = {step.id: 1 if at_prompt[step.id] else len(step.response_ids) for step in steps}
    return {step_id: random.normal(size=count).astype(np.float32) for step_id, count in counts.items()}


def tokenize(text: str) -> Ids:
    """A token per character."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def make_inputs(algorithm: Algorithm, group: Group, values: dict[str, np.ndarray] | None = None) -> Inputs:
    """All that the algorithm asks for: what the critic says, 0 if not given, and log-probabilities at random."""
    zeros = {step_id: value * 0 for step_id, value in make_values(algorithm, group).items()}
    steps = {step.id: step for trajectory in group.trajectories for step in trajectory.steps}
    told = algorithm.teacher.prompts(group, tokenize) if algorithm.teacher else {}
    draws = {step_id: _two_opinions(step) for step_id, step in steps.items()}
    return Inputs(
        values=zeros if values is None else values,
        logprobs={step_id: draws[step_id][0] for step_id, step in steps.items() if step.trainable},
        teacher_logprobs={step_id: draws[step_id][1] for step_id in told},
    )


def _two_opinions(step: Step) -> np.ndarray:
    """Log-probabilities of its response, float32 [2, R], that depend on the step alone."""
    random = np.random.default_rng(list(step.id.encode()))
    return -random.random((2, len(step.response_ids))).astype(np.float32)


def assign(algorithm: Algorithm, group: Group, values: dict[str, np.ndarray] | None = None) -> dict[str, Credit]:
    """Credit by step id; without `values` the critic says 0 everywhere."""
    return {credit.step_id: credit for credit in algorithm.assign(group, make_inputs(algorithm, group, values))}


@st.composite
def with_step_values(draw: st.DrawFn, tokens=lengths) -> tuple[Trajectory, dict[str, np.ndarray]]:
    """A trajectory, and one critic's value per step by step id."""
    counts = draw(tokens)
    drawn = st.lists(rewards, min_size=len(counts), max_size=len(counts))
    trajectory = make_trajectory("t", counts, draw(drawn))
    values = draw(drawn)
    return trajectory, {s.id: np.array([v], np.float32) for s, v in zip(trajectory.steps, values, strict=True)}


def repeated(trajectory: Trajectory, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The value of each step, said again before each of its tokens."""
    return {step.id: np.repeat(values[step.id], len(step.response_ids)) for step in trajectory.steps}
