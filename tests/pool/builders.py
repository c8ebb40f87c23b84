"""Short ways to make records for the pool's tests."""

from collections.abc import Sequence

from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo


def make_step(trajectory_id: str, index: int = 0, prompt: Sequence[int] = (1, 2), version: int = 0, **fields) -> Step:
    return Step(
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=list(prompt),
        response_ids=[7, 8],
        logprobs=[-0.5, -0.25],
        policy_version_min=version,
        policy_version_max=version,
        **fields,
    )


def complete_trajectory(
    trajectory_id: str, group_id: str | None, reward: float = 1.0, version: int = 0
) -> list[Record]:
    return [
        TrajectoryInfo(id=trajectory_id, group_id=group_id),
        make_step(trajectory_id, version=version),
        Annotation.reward("trajectory", trajectory_id, reward),
        Annotation.end(trajectory_id, "terminated"),
    ]


def ready_group(group_id: str, size: int = 2, version: int = 0) -> list[Record]:
    members = [complete_trajectory(f"{group_id}-{number}", group_id, version=version) for number in range(size)]
    return [GroupInfo(id=group_id, task_id="task", size=size), *(record for member in members for record in member)]
