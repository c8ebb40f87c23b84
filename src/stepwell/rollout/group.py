"""Many trajectories at a time: groups of one task each, and single trajectories for evaluation."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepwell.errors import EnvironmentFailed, InvalidRequest
from stepwell.rollout.run import Ending, Fork, Log, Player, RolloutConfig, Start, record
from stepwell.types import GroupInfo, TrajectoryInfo

_T = TypeVar("_T")

OnEnding = Callable[[Ending], None]


@dataclass(slots=True)
class Collector:
    """Has trajectories played, as many at a time as the configuration says."""

    player: Player
    log: Log
    config: RolloutConfig
    channel: str = "default"
    """Whom the groups are collected for."""
    on_ending: OnEnding = lambda _: None
    """Called at the end of every trajectory: for progress bars and statistics."""
    _limit: asyncio.Semaphore = field(init=False)
    _seeds: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(self.config.concurrency)
        self._seeds = _endless_seeds(self.config.seed)

    async def collect_groups(self, tasks: Iterator[str], count: int, size: int) -> int:
        """Make `count` groups of `size` complete trajectories, each of the next task; gives their number.

        Raises:
            InvalidRequest: there are not so many tasks left.
            EnvironmentFailed: more than `max_failures` trajectories of a group failed.
            StepwellError: one failed in a way that another try would not mend.
        """
        await all_of([self._collect_group(task, size) for task in self.next_tasks(tasks, count)])
        return count

    async def evaluate(self, task_ids: Sequence[str]) -> list[Ending]:
        """One trajectory per task, in the order given, outside of any group: never trained on."""
        return await all_of([self._run(task, None, "eval", Start(seed=next(self._seeds))) for task in task_ids])

    def next_tasks(self, tasks: Iterator[str], count: int) -> list[str]:
        """The next `count` of them. Raises InvalidRequest if there are not so many."""
        chosen = list(itertools.islice(tasks, count))
        if len(chosen) < count:
            raise InvalidRequest(f"{count} tasks were asked for, but there are only {len(chosen)}")
        return chosen

    async def fill(self, group: GroupInfo, fork: Fork | None = None) -> None:
        """Complete a group that is recorded. Raises as `collect_groups`."""
        starts = [Start(seed=next(self._seeds), fork=fork) for _ in range(group.size)]
        await self._completed(group.task_id, group.id, "rollout", starts)

    async def trunk(self, task_id: str) -> tuple[Ending, list[Fork]]:
        """One complete trajectory outside of any group, and the state before each of its turns. Raises as `fill`."""
        start = Start(seed=next(self._seeds), forks=[])
        (ending,) = await self._completed(task_id, None, "trunk", [start])
        return ending, start.forks or []

    async def _collect_group(self, task_id: str, size: int) -> None:
        info = GroupInfo(task_id=task_id, size=size, channel=self.channel)
        await record(self.log, info)
        await self.fill(info)

    async def _completed(self, task_id: str, group_id: str | None, source: str, starts: list[Start]) -> list[Ending]:
        """One complete trajectory for each start; those that fail are tried again, together, while that makes sense."""
        done: list[Ending] = []
        failures = 0
        while starts:
            endings = await all_of([self._run(task_id, group_id, source, start) for start in starts])
            failed = [ending for ending in endings if ending.how == "failed"]
            done += [ending for ending in endings if ending.how != "failed"]
            starts = [start for start, ending in zip(starts, endings, strict=True) if ending.how == "failed"]
            failures += len(failed)
            hopeless = next((ending for ending in failed if not ending.retry), None)
            if hopeless is not None:
                raise EnvironmentFailed(f"task {task_id} cannot be played: {hopeless.why}")
            if failures > self.config.max_failures:
                raise EnvironmentFailed(f"{failures} trajectories of task {task_id} failed, the last: {failed[-1].why}")
        return done

    async def _run(self, task_id: str, group_id: str | None, source: str, start: Start) -> Ending:
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, source=source, agent=self.player.agent)
        async with self._limit:
            ending = await self.player.play(info, start)
        self.on_ending(ending)
        return ending


def _endless_seeds(seed: int) -> Iterator[int]:
    draw = random.Random(seed)
    while True:
        yield draw.getrandbits(31)


async def all_of(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results in order. The first error ends the other work and is raised as itself, not in a group of exceptions."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
