"""Rewards that somebody gives when a trajectory is over: a language model that reads it, say.

A trajectory that has ended may be handed to a trainer at once. So its end is held back until it is judged, and what a
judge could not judge has failed: it is played again, and is never worth 0.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from stepwell.pool.base import Receipt
from stepwell.rollout.run import ALIKE, PASSING, Ending, Log, Player, Start, record
from stepwell.types import Annotation, Record, TrajectoryInfo

Judge = Callable[[str], Awaitable[Sequence[Annotation]]]
"""What to record of a trajectory, named by its id: its rewards, and what they rest on. Whatever it raises fails the
trajectory, and its group too unless the error is one of `PASSING`."""


class Judges:
    """Has trajectories judged that others play. It is the log that those write to."""

    def __init__(self, log: Log, judge: Judge) -> None:
        """Record in `log`, and ask `judge`."""
        self._log = log
        self._judge = judge
        self._held: dict[str, Annotation] = {}
        """Ends, by trajectory, that nobody knows of yet."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """See `Log`; but ends, other than failures, are held back, and have no receipt."""
        ends = [one for one in records if isinstance(one, Annotation) and one.kind == "end" and one.name != "failed"]
        self._held |= {end.target_id: end for end in ends}
        return self._log.append([one for one in records if not any(one is end for end in ends)])

    def drop_group(self, group_id: str, reason: str) -> None:
        """See `Log`."""
        self._log.drop_group(group_id, reason)

    async def play(self, player: Player, info: TrajectoryInfo, start: Start) -> Ending:
        """As `player` plays it, and then judged. Trunks are not, nor are siblings that are not played on."""
        try:
            ending = await player.play(info, start)
            if info.id in self._held and info.source != "trunk" and ending.why != ALIKE:
                ending = await self._judged(ending)
        except asyncio.CancelledError:
            await self._end(info.id, Annotation.end(info.id, "failed", "cancelled"))
            raise
        await self._end(info.id, Annotation.end(info.id, "failed", ending.why) if ending.how == "failed" else None)
        return ending

    async def _judged(self, ending: Ending) -> Ending:
        began = time.perf_counter()
        try:
            said = await self._judge(ending.trajectory_id)
            await record(self._log, *said)
        except Exception as error:  # a rollout that breaks is data, whatever broke it
            why = f"{type(error).__name__}: {error}"
            return replace(ending, how="failed", why=why, retry=isinstance(error, PASSING))
        earned = sum(one.value or 0.0 for one in said if one.kind == "reward")
        return replace(ending, reward=ending.reward + earned, judge_seconds=time.perf_counter() - began)

    async def _end(self, trajectory_id: str, instead: Annotation | None) -> None:
        held = self._held.pop(trajectory_id, None)
        if held is not None:
            await record(self._log, instead or held)
