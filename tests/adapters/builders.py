"""Groups as a lease hands them over, with steps of differing lengths."""

import dataclasses

import numpy as np

from stepwell.types import Group, GroupInfo, Step, Trajectory, TrajectoryInfo


def step(trajectory_id: str, index: int, prompt: int, response: int, **more) -> Step:
    """A step of so many tokens, which count up from 100 (prompt) and 200 (response)."""
    return Step(
        id=f"{trajectory_id}-{index}",
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=np.arange(100, 100 + prompt),
        response_ids=np.arange(200, 200 + response),
        logprobs=-np.arange(1, response + 1, dtype=np.float32) / 8,
        **more,
    )


def trajectory(name: str, rewards: list[float], group_id: str = "g", **more) -> Trajectory:
    """A trajectory with one step per reward, each longer than the one before."""
    steps = tuple(step(name, index, 2 + index, 1 + index, **more) for index in range(len(rewards)))
    return Trajectory(
        info=TrajectoryInfo(id=name, group_id=group_id),
        steps=steps,
        step_rewards=tuple(rewards),
        reward=sum(rewards),
        status="terminated",
    )


def group(name: str, *members: list[float], **more) -> Group:
    """A group with one trajectory for each list of step rewards."""
    trajectories = tuple(trajectory(f"{name}-{n}", rewards, name, **more) for n, rewards in enumerate(members))
    return Group(info=GroupInfo(id=name, task_id="task", size=max(len(members), 1)), trajectories=trajectories)


def with_step(whole: Trajectory, place: int, **changes) -> Trajectory:
    """The trajectory with one of its steps changed."""
    steps = list(whole.steps)
    steps[place] = dataclasses.replace(steps[place], **changes)
    return dataclasses.replace(whole, steps=tuple(steps))
