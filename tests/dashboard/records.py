"""A small pool to look at: one finished trajectory of two steps, one open one, and a training run."""

import json
from collections.abc import Callable
from pathlib import Path

from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo


def two_steps(mark: Callable[[str], str] = str) -> list[Record]:
    """The records; every text that a page shows has gone through `mark`."""

    def name(text: str) -> str:  # names and ids hold no slash
        return mark(text).replace("/", "")

    opening = [{"role": "system", "content": mark("Be brief.")}, {"role": "user", "content": mark("Which city?")}]
    call = {"id": "call-1", "type": "function", "function": {"name": mark("search"), "arguments": mark("{}")}}
    search = {"role": mark("assistant"), "content": None, "tool_calls": [call]}
    found = {"role": mark("tool"), "tool_call_id": "call-1", "content": [{"type": "text", "text": mark("Marn.")}]}
    answer = {"role": "assistant", "content": mark("It is Marn.")}
    group = GroupInfo(id="group-1", task_id=mark("capital"), size=2)
    info = TrajectoryInfo(id="traj-1", group_id=group.id, task_id=group.task_id, agent=mark("agent"))
    first = Step(
        id="step-1",
        trajectory_id=info.id,
        index=0,
        prompt_ids=[1, 2, 3],
        response_ids=[10, 11],
        logprobs=[-0.0, -5.0],
        request=json.dumps({"messages": opening, "tools": []}),
        response=json.dumps(search),
    )
    second = Step(
        id="step-2",
        trajectory_id=info.id,
        index=1,
        prompt_ids=[1, 2, 3, 10, 11, 4],
        response_ids=[12, 13, 14],
        logprobs=[-0.5, -0.25, -1.0],
        policy_version_min=3,
        policy_version_max=4,
        request=json.dumps({"messages": [*opening, search, found], "tools": []}),
        response=json.dumps(answer),
    )
    return [
        group,
        info,
        first,
        second,
        Annotation.reward("trajectory", info.id, 1.0, name("answer")),
        Annotation.reward("step", first.id, 0.25, name("format")),
        Annotation.end(info.id, "terminated"),
        TrajectoryInfo(id=name("traj-2"), group_id=group.id, task_id=group.task_id, source=mark("rollout")),
        UpdateInfo(run=name("run"), policy_version=5, metrics=(("reward_mean", 0.5),)),
        UpdateInfo(run=name("run"), policy_version=6, metrics=(("reward_mean", 0.75), ("loss", 2.0))),
        UpdateInfo(run=name("run"), policy_version=7, metrics=(("loss", 1.0),)),
    ]


def small_pool(folder: Path, mark: Callable[[str], str] = str) -> SQLitePool:
    """A pool in `folder` that holds `two_steps`."""
    pool = SQLitePool.open(folder / "pool.sqlite")
    pool.put(*two_steps(mark))
    return pool
