"""Scorers as judges: what a recipe's `rewards` give to each trajectory of a run before it counts as ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from stepwell.config import component_config
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, StepwellError
from stepwell.rollout.judges import Judge
from stepwell.scoring.base import FOREIGN, Score, Scorer, ScorerConfig, Unusable, built, closed, told
from stepwell.scoring.decision import rewards_of
from stepwell.scoring.scorers import SCORERS
from stepwell.types import Annotation, Trajectory

EVIDENCE: Final = "asked"
"""Name of the notes that hold what a judge was asked; what it said is the text of its reward."""
_LONGEST: Final = 100_000
"""Characters of a question that are kept."""


@asynccontextmanager
async def judging(
    sections: Sequence[Mapping[str, Any]], read: Callable[[str], Trajectory]
) -> AsyncIterator[Judge | None]:
    """The judge of these scorers, each chosen by its `use`; None if there are none.

    `read` gives a trajectory as it is recorded, and may block.

    Raises:
        ConfigError, MissingDependency: one cannot be made.
    """
    configs = [component_config(SCORERS, ScorerConfig, section) for section in sections]
    scorers: list[Scorer] = []
    try:
        scorers += [built(config) for config in configs]
        yield _Scored([(c.name, s) for c, s in zip(configs, scorers, strict=True)], read) if scorers else None
    finally:
        for scorer in scorers:
            await closed(scorer)


@dataclass(frozen=True, slots=True)
class _Scored:
    scorers: Sequence[tuple[str, Scorer]]
    """Each with the name of its reward part."""
    read: Callable[[str], Trajectory]

    async def __call__(self, trajectory_id: str) -> list[Annotation]:
        trajectory = await asyncio.to_thread(self.read, trajectory_id)
        if all(step.side for step in trajectory.steps):
            return []  # nothing was said that could be judged, or trained
        said: list[Annotation] = []
        for name, scorer in self.scorers:
            score = await _score(name, scorer, trajectory)
            said += rewards_of(trajectory, score)
            if score.asked:
                text = score.asked[:_LONGEST].encode(errors="replace").decode().replace("\0", "")
                said.append(
                    Annotation(target="trajectory", target_id=trajectory_id, kind="note", name=EVIDENCE, text=text)
                )
        return said


async def _score(name: str, scorer: Scorer, trajectory: Trajectory) -> Score:
    try:
        score = await scorer.score(trajectory)
    except Unusable as error:  # another trajectory would not help it
        raise ConfigError(f"the reward {name!r} cannot be given: {error}") from error
    except StepwellError:
        raise
    except FOREIGN as error:
        raise EnvironmentFailed(f"the reward {name!r} failed: {told(error)}") from error
    if score is None:
        raise InvalidRequest(
            f"the reward {name!r} has nothing to say of task {trajectory.info.task_id!r}, and that is no 0: is there a "
            "reference for it?"
        )
    return score
