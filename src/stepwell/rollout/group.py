"""Many trajectories at a time: groups of one task each, and single trajectories for evaluation."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stepwell.errors import EnvironmentFailed, InvalidRequest
from stepwell.rollout.agent import Agent
from stepwell.rollout.env import TaskSet
from stepwell.rollout.run import Ending, Log, RolloutConfig, record, run_trajectory
from stepwell.types import GroupInfo, TrajectoryInfo

_T = TypeVar("_T")

OnEnding = Callable[[Ending], None]


@dataclass(slots=True)
class Collector:
    """Runs an agent on the tasks of a task set and records everything."""

    task_set: TaskSet
    agent: Agent
    log: Log
    config: RolloutConfig
    channel: str = "default"
    """Whom the groups are collected for."""
    on_ending: OnEnding = lambda _: None
    """Called at the end of every trajectory: for progress bars."""

    async def collect_groups(self, tasks: Iterator[str], count: int, size: int) -> None:
        """Make `count` groups of `size` complete trajectories, each of the next task.

        Raises:
            InvalidRequest: there are not so many tasks left.
            EnvironmentFailed: more than `max_failures` trajectories of a group failed.
        """
        chosen = list(itertools.islice(tasks, count))
        if len(chosen) < count:
            raise InvalidRequest(f"{count} tasks were asked for, but {self.task_set.name!r} has only {len(chosen)}")
        limit = asyncio.Semaphore(self.config.concurrency)
        await _all_of([self._collect_group(task, size, limit) for task in chosen])

    async def evaluate(self, task_ids: Sequence[str]) -> list[Ending]:
        """One trajectory per task, in the order given, outside of any group: never trained on."""
        limit = asyncio.Semaphore(self.config.concurrency)
        return await _all_of([self._run(task, None, "eval", limit) for task in task_ids])

    async def _collect_group(self, task_id: str, size: int, limit: asyncio.Semaphore) -> None:
        info = GroupInfo(task_id=task_id, size=size, channel=self.channel)
        await record(self.log, info)
        missing, failures = size, 0
        while missing:
            endings = await _all_of([self._run(task_id, info.id, "rollout", limit) for _ in range(missing)])
            failed = [ending for ending in endings if ending.how == "failed"]
            missing, failures = len(failed), failures + len(failed)
            if failures > self.config.max_failures:
                raise EnvironmentFailed(f"{failures} trajectories of task {task_id} failed, the last: {failed[-1].why}")

    async def _run(self, task_id: str, group_id: str | None, source: str, limit: asyncio.Semaphore) -> Ending:
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, source=source, agent=type(self.agent).__name__)
        async with limit:
            ending = await run_trajectory(info, self.task_set.make(), self.agent, self.log, self.config)
        self.on_ending(ending)
        return ending


async def _all_of(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results in order. The first error ends the other work and is raised as itself, not in a group of exceptions."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
