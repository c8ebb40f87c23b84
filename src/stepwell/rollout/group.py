"""Many trajectories at a time: groups of one task each, and single trajectories for evaluation."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stepwell.errors import EnvironmentFailed, ForkRefused, InvalidRequest, StepwellError
from stepwell.rendering.messages import Message
from stepwell.rollout.judges import Judges
from stepwell.rollout.run import ALIKE, Ending, Fork, Log, Player, RolloutConfig, Start, record
from stepwell.types import FORK, GroupInfo, TrajectoryInfo

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
    judges: Judges | None = None
    """Who rewards the trajectories when they are over; then the player must record in it."""
    _limit: asyncio.Semaphore = field(init=False)
    _seeds: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(self.config.concurrency)
        self._seeds = _endless_seeds(self.config.seed)

    async def collect_groups(
        self, tasks: Iterator[str], count: int, size: int, begun: Callable[[], None] = lambda: None
    ) -> int:
        """Make `count` groups of `size` complete trajectories, each of the next task; gives their number.

        `begun` is called once all trajectories play: until then some wait for the places of others.

        Raises:
            InvalidRequest: there are not so many tasks left.
            EnvironmentFailed: more than `max_failures` trajectories of a group failed.
            StepwellError: one failed in a way that another try would not mend.
        """
        all_begun = _at_the(count * size, begun)
        await all_of([self._collect_group(task, size, all_begun) for task in self.next_tasks(tasks, count)])
        return count

    async def evaluate(self, task_ids: Sequence[str]) -> list[Ending]:
        """One trajectory per task, in the order given, outside of any group: never trained on."""
        return await all_of([self.trial(task, next(self._seeds)) for task in task_ids])

    async def trial(self, task_id: str, seed: int) -> Ending:
        """One trajectory outside of any group; `seed` is its environment's."""
        return await self._run(task_id, None, "eval", Start(seed=seed))

    def next_tasks(self, tasks: Iterator[str], count: int) -> list[str]:
        """The next `count` of them. Raises InvalidRequest if there are not so many."""
        chosen = list(itertools.islice(tasks, count))
        if len(chosen) < count:
            raise InvalidRequest(f"{count} tasks were asked for, but there are only {len(chosen)}")
        return chosen

    async def fill(
        self,
        group: GroupInfo,
        fork: Fork | None = None,
        *,
        unless_alike: bool = False,
        begun: Callable[[], None] = lambda: None,
    ) -> bool:
        """Complete a group that is recorded, and give whether it was worth it; `begun` is called for each that plays.

        With `unless_alike` members that all begin with the same action are not played on, and the group is dropped.
        Raises as `collect_groups`; the group is dropped then, too.
        """
        gate = _AlikeGate(group.size, self._limit) if unless_alike else None
        starts = [Start(seed=next(self._seeds), fork=fork, gate=gate, begun=begun) for _ in range(group.size)]
        try:
            await self._completed(group.task_id, group.id, "rollout", starts)
        except StepwellError as error:
            await asyncio.to_thread(self.log.drop_group, group.id, f"given up: {error}"[:2000])
            raise
        if gate is not None and gate.alike:
            await asyncio.to_thread(self.log.drop_group, group.id, ALIKE)
            return False
        return True

    async def trunk(self, task_id: str) -> tuple[Ending, list[Fork]]:
        """One complete trajectory outside of any group, and the state before each of its turns. Raises as `fill`."""
        start = Start(seed=next(self._seeds), forks=[])
        (ending,) = await self._completed(task_id, None, "trunk", [start])
        return ending, start.forks or []

    async def _collect_group(self, task_id: str, size: int, begun: Callable[[], None]) -> None:
        info = GroupInfo(task_id=task_id, size=size, channel=self.channel)
        await record(self.log, info)
        await self.fill(info, begun=begun)

    async def _completed(self, task_id: str, group_id: str | None, source: str, starts: list[Start]) -> list[Ending]:
        """One complete trajectory for each start; those that fail are tried again, together, while that makes sense."""
        done: list[Ending] = []
        failures = 0
        while starts:
            endings = await all_of([self._run(task_id, group_id, source, start) for start in starts])
            failed = [ending for ending in endings if ending.how == "failed"]
            done += [ending for ending in endings if ending.how != "failed"]
            again = [start for start, ending in zip(starts, endings, strict=True) if ending.how == "failed"]
            starts = [replace(start, gate=None, begun=lambda: None) for start in again]
            failures += len(failed)
            hopeless = next((ending for ending in failed if not ending.retry), None)
            if hopeless is not None:
                kind = ForkRefused if hopeless.refused else EnvironmentFailed
                raise kind(f"task {task_id} cannot be played: {hopeless.why}")
            if failures > self.config.max_failures:
                raise EnvironmentFailed(f"{failures} trajectories of task {task_id} failed, the last: {failed[-1].why}")
        return done

    async def _run(self, task_id: str, group_id: str | None, source: str, start: Start) -> Ending:
        if start.fork is not None and start.fork.boundary is not None:
            source = FORK
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, source=source, agent=self.player.agent)
        async with self._limit:
            start.begun()
            judged = self.judges
            ending = await (judged.play(self.player, info, start) if judged else self.player.play(info, start))
        self.on_ending(ending)
        return ending


class _AlikeGate:
    """Opens when all of several trajectories have begun, unless they all did so with the same action."""

    def __init__(self, count: int, places: asyncio.Semaphore) -> None:
        """`places` bounds how many play at once: who waits here gives its place to those that are still to begin."""
        self._missing = count
        self._places = places
        self._actions: list[tuple[object, ...]] = []
        self._complete = True
        self._open = asyncio.Event()

    @property
    def alike(self) -> bool:
        """Whether all began, and began alike."""
        return self._complete and not self._missing and len(set(self._actions)) == 1

    async def passes(self, action: Message) -> bool:
        """See `Gate`."""
        # ids of calls are made up anew for each; what was said and asked for is what counts
        calls = tuple((call.name, call.arguments) for call in action.tool_calls)
        self._actions.append((action.content, action.reasoning, calls))
        self._arrived()
        self._places.release()
        try:
            await self._open.wait()
        finally:
            await self._places.acquire()
        return not self.alike

    def leave(self) -> None:
        """See `Gate`. What it would have done is not known, so the others may differ from it."""
        self._complete = False
        self._arrived()

    def _arrived(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._open.set()


def _at_the(last: int, what: Callable[[], None]) -> Callable[[], None]:
    """Does `what` when it is called for the `last` time."""
    calls = itertools.count(1)

    def count() -> None:
        if next(calls) == last:
            what()

    return count


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
