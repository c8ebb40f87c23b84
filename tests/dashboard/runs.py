"""A pool in which a run has trained on two groups, and a page's simulated browser on it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from nicegui.testing import User, user_simulation

from stepwell.dashboard.mounting import register
from stepwell.dashboard.runs import RunFolder
from stepwell.dashboard.visit import Desk
from stepwell.pool.base import Pool
from stepwell.pool.credit import StepCredit
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo

RUN = "run"
TRUNK = [1, 2, 3, 4]
"""The prompt that all trajectories of a group begin with."""


def step(trajectory_id: str, index: int, prompt: list[int], response: list[int]) -> Step:
    return Step(
        id=f"{trajectory_id}-{index}",
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=prompt,
        response_ids=response,
        logprobs=np.full(len(response), -1.0),
        model="tiny",
        dialect="chat",
    )


def trajectory(name: str, group: str, responses: list[list[int]], reward: float = 1.0) -> list[Record]:
    """A finished one; each step's prompt is all that was before it."""
    records: list[Record] = [TrajectoryInfo(id=name, group_id=group, task_id="task")]
    prompt = TRUNK
    for index, response in enumerate(responses):
        records.append(step(name, index, prompt, response))
        prompt = [*prompt, *response]
    return [*records, Annotation.reward("trajectory", name, reward), Annotation.end(name, "terminated")]


def group(name: str, channel: str = RUN) -> list[Record]:
    """Two trajectories that part after the trunk: of one step, and of two."""
    return [
        GroupInfo(id=name, task_id="task", size=2, channel=channel),
        *trajectory(f"{name}-a", name, [[5, 5]]),
        *trajectory(f"{name}-b", name, [[6, 6, 6], [7]], 0.0),
    ]


def update(run: str, version: int, at: float = 0.0, **metrics: float) -> UpdateInfo:
    return UpdateInfo(
        id=f"{run}-{version}", run=run, policy_version=version, metrics=tuple(metrics.items()), created_at=at
    )


def credit(step_id: str, advantage: float = 0.0, weight: float = 0.0, left_out: str = "") -> StepCredit:
    """Of a step that `group` makes."""
    of, member, index = step_id.split("-")
    return StepCredit(
        step_id=step_id,
        trajectory_id=f"{of}-{member}",
        group_id=of,
        index=int(index),
        tokens=2,
        advantage=advantage,
        weight=weight,
        left_out=left_out,
    )


def trained_pool(folder: Path) -> SQLitePool:
    """Two groups, of which the second is not taken; an update of the first; another consumer holds both."""
    pool = SQLitePool.open(folder / "pool.sqlite")
    pool.put(*group("g"), *group("h"))
    pool.record_credit(
        RUN, 1, [credit("g-a-0", 1.5, 0.5), credit("g-b-0", -1.5, 0.5), credit("g-b-1", left_out="algorithm")]
    )
    pool.put(update(RUN, 1, 100.0, reward_mean=0.5, trained_steps=2.0, tree_tokens=9.0, tree_ratio=0.75, loss=2.0))
    pool.put(update(RUN, 2, 200.0, reward_mean=0.75, loss=1.0))
    pool.put(update("other", 1, 50.0, reward_mean=0.25))
    pool.lease(LeaseSpec(consumer="holder", limit=2))
    return pool


@asynccontextmanager
async def looking(pool: Pool, folders: Mapping[str, RunFolder] | None = None) -> AsyncIterator[User]:
    """A browser on the dashboard of `pool`."""
    async with user_simulation() as user:
        decode = lambda ids: "".join(f"<b>{token}</b>" for token in ids)  # noqa: E731
        register(Desk(pool=pool, decoders={"tiny": decode}, runs=lambda: folders or {}))
        yield user
