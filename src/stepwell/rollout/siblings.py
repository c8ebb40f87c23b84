"""Siblings: trajectories that are forked from one another at a turn, so that they differ in what they did there.

A trunk is played first, alone, and at each of its turns the state is kept. Then one turn after the other is taken anew
by several siblings, which play on to the end; between two turns the policy is updated (RTPO, arXiv 2608.18682,
section 4.2). Trunks are in no group, so nobody trains on them.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from stepwell.algorithms.base import Siblings
from stepwell.errors import ForkRefused, InvalidRequest
from stepwell.rollout.group import Collector, all_of
from stepwell.rollout.run import Fork, record
from stepwell.rollout.trunks import Kept, Memory, Trunk, kept, once_more
from stepwell.types import GroupInfo

_FRUITLESS: Final = 4
"""So often turns are looked for, with new trunks in between, before siblings that are always alike are a mistake."""


class SiblingCollector:
    """Makes the groups of one turn at a time."""

    def __init__(self, collector: Collector, plan: Siblings, memory: Memory | None = None) -> None:
        """Let `collector` run what `plan` wants, beginning with what `memory` says was left; None: with new trunks."""
        self._collector = collector
        self._plan = plan
        self._memory = memory
        """Asked once, when the first groups are wanted: by then it is known which version they are for."""
        self._trunks: list[Trunk] = []
        self._turns: list[int] = []
        """That are still to be taken anew, in order."""
        self._ahead: list[Trunk] = []
        """What comes after these trunks, if it was played already."""
        self._begun: frozenset[tuple[str, int]] = frozenset()
        """(trunk, turn) that have their group already, from before an interruption."""
        self._refused: ForkRefused | None = None
        """Of these trunks: why siblings could not begin from the last state from which they could not."""
        self._forked = False
        """Of these trunks: whether there are siblings of any state."""

    @property
    def turns_left(self) -> int:
        """How many of the trunks' turns are still to be taken anew."""
        return len(self._turns)

    async def collect(self, tasks: Iterator[str], count: int, held: int = 0) -> int:
        """Make the groups of the next turn, at most `count`, and give their number, at least one.

        Where no turn is left there are new trunks first, of the next tasks. A turn of which all groups are dropped, as
        nobody could learn from them or they could not begin, is passed over. An update that has `held` groups gets no
        other turn's: only what an interruption left undone of that turn, if anything, so the number may be 0 then.

        Raises:
            InvalidRequest: there are not so many tasks left, or siblings were alike at every turn of several trunks.
            EnvironmentFailed: too many trajectories of one trunk or group failed.
            ForkRefused: the environment cannot be forked, or no siblings of these trunks could begin where they should.
        """
        await self._remember()
        if held:
            return await self.take_next(count) if self._interrupted else 0
        for _ in range(_FRUITLESS):
            while self._turns:
                if made := await self._next_turn(tasks, count):
                    return made
            if self._refused is not None and not self._forked:
                raise self._refused
            await self._grow(tasks, count)
        raise InvalidRequest(
            f"of {_FRUITLESS - 1} sets of trunks no turn made siblings that differ: the policy always does the same. "
            "Sample at a higher temperature, with more siblings (rollout.group_size), or set algorithm.skip_alike=false"
        )

    @property
    def _interrupted(self) -> bool:
        return bool(self._turns) and any(turn == self._turns[0] for _, turn in self._begun)

    async def _remember(self) -> None:
        memory, self._memory = self._memory, None
        left = await asyncio.to_thread(memory.left, self._collector.channel, self._plan) if memory else None
        if memory is None or left is None:
            return
        places = asyncio.Semaphore(self._collector.config.concurrency)

        async def again(own: Kept) -> Trunk | None:
            async with places:
                recorded = await asyncio.to_thread(memory.pool.trajectory, own.trajectory_id)
                return await once_more(self._collector.player, own, recorded)

        async def all_again(trunks: Iterable[Kept]) -> list[Trunk]:
            return [trunk for trunk in await all_of([again(own) for own in trunks]) if trunk is not None]

        self._trunks, self._ahead = await all_again(left.trunks), await all_again(left.ahead)
        self._turns, self._begun = list(left.turns), left.begun

    async def _next_turn(self, tasks: Iterator[str], count: int) -> int:
        """As `take_next`; beside the last turn there are the next trunks, if the plan wants them so early."""
        if not self._plan.ahead or len(self._turns) > 1 or self._ahead:
            return await self.take_next(count)
        made, _ = await all_of([self.take_next(count), self._look_ahead(tasks, count)])
        return made

    async def _look_ahead(self, tasks: Iterator[str], count: int) -> int:
        self._ahead = await self._new_trunks(tasks, count)
        return len(self._ahead)

    async def take_next(self, count: int) -> int:
        """Make the groups of the next turn that is left, at most `count`; there may be none. Raises as `collect`."""
        turn = self._turns.pop(0)
        there = [trunk for trunk in self._trunks if len(trunk.forks) > turn]
        missing = [trunk for trunk in there if (trunk.trajectory_id, turn) not in self._begun]
        made = sum(await all_of([self._take_anew(trunk, trunk.forks[turn]) for trunk in missing[:count]]))
        self._forked |= made > 0
        return made

    async def _grow(self, tasks: Iterator[str], count: int) -> None:
        self._trunks, self._ahead = self._ahead or await self._new_trunks(tasks, count), []
        turns = list(range(max(len(trunk.forks) for trunk in self._trunks)))
        self._refused, self._forked = None, False
        self._turns = turns[::-1] if self._plan.order == "reverse" else turns

    async def _new_trunks(self, tasks: Iterator[str], count: int) -> list[Trunk]:
        """As many as `count` groups need at each turn."""
        chosen = self._collector.next_tasks(tasks, max(count // self._plan.trunks, 1))
        trunks = await all_of([self._trunk(task) for task in chosen for _ in range(self._plan.trunks)])
        await record(self._collector.log, kept(self._collector.channel, trunks))
        return trunks

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
        try:
            return await self._collector.fill(group, fork, unless_alike=self._plan.skip_alike)
        except ForkRefused as refusal:  # from this state; from others it may go well
            self._refused = refusal
            return False
