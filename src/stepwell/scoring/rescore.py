"""Scoring what is stored: in parallel, each trajectory once, to be broken off and taken up again at any time.

Nothing but the annotations themselves remembers what is done. Their ids follow from the name of the rescoring and from
what was looked at, so whoever was scored under a name is not scored again, unless there is more to look at: another
step, or other feedback. What is stored of a trajectory, `decision` says.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Literal

from stepwell.curation.selection import Selection
from stepwell.errors import Conflict, EnvironmentFailed, InvalidRequest, NotFound, PoolError
from stepwell.pool.base import Pool, Receipt
from stepwell.scoring import decision
from stepwell.scoring.base import FOREIGN, Score, Scorer, ScorerConfig, Unusable, built, closed, told
from stepwell.scoring.decision import name_of
from stepwell.threads import Abandonable
from stepwell.types import Annotation, Trajectory

__all__ = ["Rescored", "name_of", "rescore"]

_READ: Final = 32
"""Trajectories that are read at once."""
_TOLD: Final = 100
"""Failures that are remembered in words."""
_Outcome = Literal["scored", "unchanged", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What became of the trajectories so far; their number is the sum of the counts."""

    scored: int = 0
    """Have new rewards."""
    unchanged: int = 0
    """Were scored under this name before."""
    skipped: int = 0
    """The scorer had nothing to say."""
    failed: int = 0
    """The scorer failed, or gave what cannot be stored; they are tried again the next time."""
    failures: tuple[tuple[str, str], ...] = ()
    """(trajectory id, what went wrong) of the first hundred that failed."""

    @property
    def seen(self) -> int:
        """How many there were."""
        return self.scored + self.unchanged + self.skipped + self.failed

    def with_one(self, outcome: _Outcome, trajectory_id: str, why: str) -> "Rescored":
        """The same with one more trajectory; `why` it failed."""
        told = outcome == "failed" and self.failed < _TOLD
        failures = (*self.failures, (trajectory_id, why)) if told else self.failures
        return replace(self, failures=failures, **{outcome: getattr(self, outcome) + 1})


def rescore(
    pool: Pool,
    config: ScorerConfig,
    selection: Selection | None = None,
    *,
    name: str = "",
    replaces: bool = False,
    workers: int = 16,
    timeout: float | None = None,
    progress: Callable[[Rescored], None] = lambda _: None,
) -> Rescored:
    """Give new rewards to the trajectories that `selection` wants (None: to all).

    Each part becomes an annotation; the newest of a part holds, and what held before stays in `Pool.notes`. Called
    again, also after a kill, it goes on with those that have none of this `name`.

    Args:
        pool: Is read and written to.
        config: Makes the scorer.
        selection: Which trajectories.
        name: Of the rescoring; empty: as `name_of` says.
        replaces: Set all other parts that hold to 0, so that the reward is what the scorer gives.
        workers: Trajectories that are scored at once.
        timeout: Seconds after which one that is being scored counts as failed; None: none. A function that is called
            in a thread goes on there, for nobody can stop it.
        progress: Hears of what became of them so far, after each.

    Raises:
        ConfigError, MissingDependency: the scorer cannot be made.
        Unusable: the scorer can score nothing any more; what is counted is stored.
        PoolError: the storage failed; what is counted is stored.
    """
    if workers < 1:
        raise InvalidRequest(f"workers must be at least 1, got {workers}")
    if timeout is not None and not timeout > 0:
        raise InvalidRequest(f"timeout must be more than 0 seconds, got {timeout}")
    named = name or name_of(config, replaces=replaces)
    rescoring = _Rescoring(pool, built(config), named, replaces, timeout, progress)
    asyncio.run(rescoring.all_of(pool.scan(selection), workers))
    return rescoring.so_far


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a pool has of one trajectory."""

    trajectory: Trajectory
    notes: list[Annotation]
    """All that was ever said of it."""


class _Rescoring:
    """What is done with one trajectory after the other."""

    def __init__(
        self,
        pool: Pool,
        scorer: Scorer,
        name: str,
        replaces: bool,
        timeout: float | None,
        progress: Callable[[Rescored], None],
    ) -> None:
        self._pool = pool
        self._scorer = scorer
        self._name = name
        self._replaces = replaces
        self._timeout = timeout
        self._progress = progress
        self._tasks: dict[str, str] = {}
        self.so_far = Rescored()

    async def all_of(self, trajectories: Iterator[Trajectory], workers: int) -> None:
        """Score them, `workers` at once. Raises PoolError, Unusable."""
        asyncio.get_running_loop().set_default_executor(Abandonable())
        running: set[asyncio.Task[None]] = set()
        try:
            while batch := await asyncio.to_thread(self._read, trajectories):
                for stored in batch:
                    running.add(asyncio.create_task(self._one(stored)))
                    if len(running) >= workers:
                        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                        await asyncio.gather(*done)
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await closed(self._scorer)

    def _read(self, trajectories: Iterator[Trajectory]) -> list[_Stored]:
        """The next few; none at the end. Blocks."""
        return [self._known(trajectory) for trajectory in islice(trajectories, _READ)]

    def _known(self, trajectory: Trajectory) -> _Stored:
        """It with its task, which may be that of its group, and all that was said of it. Blocks."""
        info = trajectory.info
        try:
            notes = self._pool.notes(info.id)
        except NotFound:  # somebody removed it just now; what is scored will be refused
            return _Stored(trajectory, [])
        if info.task_id or info.group_id is None:
            return _Stored(trajectory, notes)
        if info.group_id not in self._tasks:
            self._tasks[info.group_id] = self._pool.group(info.group_id).info.task_id
        return _Stored(replace(trajectory, info=replace(info, task_id=self._tasks[info.group_id])), notes)

    async def _one(self, stored: _Stored) -> None:
        """Score one, store it, count it. Raises PoolError, Unusable."""
        why = ""
        try:
            outcome = await self._outcome(stored)
        except (PoolError, Unusable):
            raise
        except FOREIGN as error:  # whatever somebody's code raises is told, and the others are scored
            outcome, why = "failed", told(error)
        self.so_far = self.so_far.with_one(outcome, stored.trajectory.info.id, why)
        self._progress(self.so_far)

    async def _outcome(self, stored: _Stored) -> _Outcome:
        trajectory, notes = stored.trajectory, stored.notes
        mark = decision.mark_of(self._name, self._replaces, trajectory)
        decided, new = _by_id(notes, mark), False
        if decided is None:
            score = await self._score(trajectory)
            rewards = [] if score is None else await self._rewards(trajectory, score)
            if not rewards:
                return "skipped"
            decided, new = await self._decide(trajectory, decision.marked(mark, trajectory.info.id, rewards))
        known = {note.id for note in notes}
        missing = [reward for reward in decision.following(decided) if reward.id not in known]
        if missing:
            new = not all(receipt.duplicate for receipt in await self._append(missing))
        return "scored" if new else "unchanged"

    async def _score(self, trajectory: Trajectory) -> Score | None:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._scorer.score(trajectory)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EnvironmentFailed(f"the scorer took longer than {self._timeout:g} s (timeout)") from error

    async def _rewards(self, trajectory: Trajectory, score: Score) -> list[Annotation]:
        """Those to be stored. Raises InvalidRecord."""
        rewards = decision.rewards_of(trajectory, score)
        if not (rewards and self._replaces):
            return rewards
        held = await asyncio.to_thread(self._pool.notes, trajectory.info.id)  # also what was said meanwhile
        return rewards + decision.zeros(held, rewards)

    async def _decide(self, trajectory: Trajectory, decided: Annotation) -> tuple[Annotation, bool]:
        """The record that is stored as the mark, and whether that is this one, and new."""
        try:
            (receipt,) = await self._append([decided])
        except Conflict:  # somebody else runs the same rescoring, and was faster, with another result
            found = _by_id(await asyncio.to_thread(self._pool.notes, trajectory.info.id), decided.id)
            if found is None:
                raise
            return found, False
        return decided, not receipt.duplicate

    async def _append(self, records: Sequence[Annotation]) -> list[Receipt]:
        """Store them. Raises the first refusal."""
        # Shielded: what the pool has taken it stores, whatever becomes of this task.
        receipts = await asyncio.shield(asyncio.wrap_future(self._pool.append(records)))
        for receipt in receipts:
            if receipt.error is not None:
                raise receipt.error
        return receipts


def _by_id(notes: list[Annotation], note_id: str) -> Annotation | None:
    return next((note for note in notes if note.id == note_id), None)
