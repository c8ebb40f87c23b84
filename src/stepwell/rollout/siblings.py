"""Siblings: trajectories that are forked from one another at a turn, so that they differ in what they did there.

A trunk is played first, alone, and at each of its turns the state is kept. Then one turn after the other is taken anew
by several siblings, which play on to the end; between two turns the policy is updated (RTPO, arXiv 2608.18682,
section 4.2). Trunks are in no group, so nobody trains on them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stepwell.algorithms.base import Siblings
from stepwell.errors import InvalidRequest
from stepwell.rollout.group import Collector, all_of
from stepwell.rollout.run import Fork, record
from stepwell.types import GroupInfo

_FRUITLESS: Final = 4
"""So often turns are looked for, with new trunks in between, before siblings that are always alike are a mistake."""


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """A trajectory that others are forked from."""

    trajectory_id: str
    task_id: str
    forks: tuple[Fork, ...]
    """The state before each of its turns."""


class SiblingCollector:
    """Makes the groups of one turn at a time. Begins anew with every process: trunks are not kept."""

    def __init__(self, collector: Collector, plan: Siblings) -> None:
        """Let `collector` run what `plan` wants."""
        self._collector = collector
        self._plan = plan
        self._trunks: list[Trunk] = []
        self._turns: list[int] = []
        """That are still to be taken anew, in order."""

    @property
    def turns_left(self) -> int:
        """How many of the trunks' turns are still to be taken anew."""
        return len(self._turns)

    async def collect(self, tasks: Iterator[str], count: int) -> int:
        """Make the groups of the next turn, at most `count`, and give their number, at least one.

        Where no turn is left there are new trunks first, of the next tasks. A turn of which all groups are dropped, as
        nobody could learn from them, is passed over.

        Raises:
            InvalidRequest: there are not so many tasks left, or siblings were alike at every turn of several trunks.
            EnvironmentFailed: too many trajectories of one trunk or group failed.
            ForkRefused: the environment cannot be forked.
        """
        for _ in range(_FRUITLESS):
            while self._turns:
                turn = self._turns.pop(0)
                there = [trunk for trunk in self._trunks if len(trunk.forks) > turn]
                made = sum(await all_of([self._take_anew(trunk, trunk.forks[turn]) for trunk in there[:count]]))
                if made:
                    return made
            await self._grow(tasks, max(count // self._plan.trunks, 1))
        raise InvalidRequest(
            f"of {_FRUITLESS - 1} sets of trunks no turn made siblings that differ: the policy always does the same. "
            "Sample at a higher temperature, with more siblings (rollout.group_size), or set algorithm.skip_alike=false"
        )

    async def _grow(self, tasks: Iterator[str], count: int) -> None:
        chosen = self._collector.next_tasks(tasks, count)
        self._trunks = await all_of([self._trunk(task) for task in chosen for _ in range(self._plan.trunks)])
        turns = list(range(max((len(trunk.forks) for trunk in self._trunks), default=0)))
        self._turns = turns[::-1] if self._plan.order == "reverse" else turns

    async def _trunk(self, task_id: str) -> Trunk:
        ending, forks = await self._collector.trunk(task_id)
        return Trunk(ending.trajectory_id, task_id, tuple(forks))

    async def _take_anew(self, trunk: Trunk, fork: Fork) -> bool:
        group = GroupInfo(
            task_id=trunk.task_id,
            size=self._collector.config.group_size,
            channel=self._collector.channel,
            origin_id=trunk.trajectory_id,
            origin_index=fork.step,
        )
        await record(self._collector.log, group)
        return await self._collector.fill(group, fork, unless_alike=self._plan.skip_alike)
