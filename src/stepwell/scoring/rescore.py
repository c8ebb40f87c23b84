"""Scoring what is stored: in parallel, each trajectory once, to be broken off and taken up again at any time.

Nothing but the annotations themselves remembers what is done. Their ids follow from the name of the rescoring and from
what was looked at, so whoever was scored under a name is not scored again, unless there is more to look at: another
step, or other feedback. All annotations of a trajectory are stored at once, or none.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Literal

from stepwell.curation.selection import Selection
from stepwell.errors import Conflict, InvalidRecord, InvalidRequest, NotFound, PoolError, StepwellError
from stepwell.pool.base import Pool
from stepwell.scoring.base import Score, Scorer, ScorerConfig
from stepwell.types import Annotation, Trajectory

_READ: Final = 32
"""Trajectories that are read at once."""
_TOLD: Final = 100
"""Failures that are remembered in words."""
_LONGEST_TEXT: Final = 4096
"""Characters that are kept of a scorer's words."""
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


def name_of(config: ScorerConfig) -> str:
    """A name for rescoring with these settings: others make another one, so that they score anew."""
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    return f"{config.use or type(config).__name__}-{digest[:8]}"


def rescore(
    pool: Pool,
    config: ScorerConfig,
    selection: Selection | None = None,
    *,
    name: str = "",
    replaces: bool = False,
    workers: int = 16,
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
        progress: Hears of what became of them so far, after each.

    Raises:
        ConfigError, MissingDependency: the scorer cannot be made.
        PoolError: the storage failed; what is counted is stored.
    """
    if workers < 1:
        raise InvalidRequest(f"workers must be at least 1, got {workers}")
    rescoring = _Rescoring(pool, config.build(), name or name_of(config), replaces, progress)
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
        self, pool: Pool, scorer: Scorer, name: str, replaces: bool, progress: Callable[[Rescored], None]
    ) -> None:
        self._pool = pool
        self._scorer = scorer
        self._name = name
        self._replaces = replaces
        self._progress = progress
        self._tasks: dict[str, str] = {}
        self.so_far = Rescored()

    async def all_of(self, trajectories: Iterator[Trajectory], workers: int) -> None:
        """Score them, `workers` at once. Raises PoolError."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(workers + 1))  # and one that reads
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
            await self._scorer.aclose()

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
        """Score one, store it, count it. Raises PoolError."""
        why = ""
        try:
            outcome = await self._outcome(stored)
        except PoolError:
            raise
        except Exception as error:  # whatever somebody's code raises is told, and the others are scored
            outcome, why = "failed", _told(error)
        self.so_far = self.so_far.with_one(outcome, stored.trajectory.info.id, why)
        self._progress(self.so_far)

    async def _outcome(self, stored: _Stored) -> _Outcome:
        trajectory, notes = stored.trajectory, stored.notes
        mark = _mark(self._name, trajectory)
        if any(note.id.startswith(mark) for note in notes):
            return "unchanged"
        score = await self._scorer.score(trajectory)
        if score is None:
            return "skipped"
        rewards = _rewards(trajectory, score, mark)
        return await self._store([*rewards, *(_zeros(notes, rewards, mark) if self._replaces else [])])

    async def _store(self, rewards: list[Annotation]) -> _Outcome:
        if not rewards:
            return "skipped"
        # Shielded: what the pool has taken it stores, whatever becomes of this task.
        receipts = await asyncio.shield(asyncio.wrap_future(self._pool.append(rewards)))
        refusals = [receipt.error for receipt in receipts if receipt.error is not None]
        # Somebody else may run the same rescoring, and be faster: with another result, or with the same.
        if any(isinstance(error, Conflict) for error in refusals):
            return "unchanged"
        if refusals:
            raise refusals[0]
        return "unchanged" if all(receipt.duplicate for receipt in receipts) else "scored"


def _mark(name: str, trajectory: Trajectory) -> str:
    """What the ids of its annotations begin with: follows from the name and from what there is to look at."""
    feedback = [note.id for note in trajectory.annotations if note.kind == "feedback"]
    looked_at = [name, trajectory.info.id, [step.id for step in trajectory.steps], feedback]
    return f"score-{hashlib.sha256(json.dumps(looked_at).encode()).hexdigest()[:32]}-"


def _rewards(trajectory: Trajectory, score: Score, mark: str) -> list[Annotation]:
    unknown = score.steps.keys() - {step.id for step in trajectory.steps}
    if unknown:  # the pool would refuse these alone and keep the rest
        raise InvalidRecord(f"the scorer rewards steps that the trajectory does not have: {', '.join(sorted(unknown))}")
    text = score.text[:_LONGEST_TEXT].encode(errors="replace").decode().replace("\0", "")
    whole = trajectory.info.id
    rewards = [Annotation.reward("trajectory", whole, value, part) for part, value in score.parts.items()]
    for step_id, parts in score.steps.items():
        rewards += [Annotation.reward("step", step_id, value, part) for part, value in parts.items()]
    return [replace(reward, id=f"{mark}{number}", text=text) for number, reward in enumerate(rewards)]


def _zeros(notes: list[Annotation], rewards: list[Annotation], mark: str) -> list[Annotation]:
    """A reward of 0 in place of each that holds, but for those that `rewards` replace."""
    new = {_place(reward) for reward in rewards}
    held = {_place(note): note for note in notes if note.kind == "reward"}
    over = [note for place, note in held.items() if place not in new and note.value]
    return [
        replace(Annotation.reward(note.target, note.target_id, 0.0, note.name), id=f"{mark}0-{number}")
        for number, note in enumerate(over)
    ]


def _place(reward: Annotation) -> tuple[str, str, str]:
    """What a newer reward takes the place of."""
    return reward.target, reward.target_id, reward.name


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
