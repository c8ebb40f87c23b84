"""On-policy self-distillation: the policy learns what it would have said, had it known what its teacher is told.

OPSD (arXiv 2601.18734) in its sampled-token form: each token's advantage is log π_T − log π_S, the gradient of the
reverse divergence at what was sampled. Its teacher is the policy before training, told the reference answer; that of
SDPO (arXiv 2601.20802) is the current policy, told of a peer that was correct. Rewards only decide who was correct.
Here it is the control: credit for every token whatever came of it, and known to collapse over many turns.
"""

from functools import partial
from typing import Final, Literal

import numpy as np
from pydantic import Field, model_validator

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Inputs, Objective, Teacher
from stepwell.algorithms.decisions import untrained
from stepwell.algorithms.hindsight import HindsightForAll, Narrator
from stepwell.algorithms.objective import Aggregation
from stepwell.algorithms.shaping import step_gap
from stepwell.types import Credit, Group, Step

_NEVER: Final = 2**62


class OPSDObjective(Objective):
    """The divergence is a mean over tokens, so every token counts equally."""

    aggregation: Aggregation = "per_token"
    """See `Objective.aggregation`."""


class OPSD(AlgorithmConfig):
    """On-policy self-distillation."""

    clip: float = Field(default=5.0, gt=0)
    """Advantages are kept within ±this, nats."""
    teacher: Literal["initial", "current"] = "current"
    """The policy before its first update, or as it is."""
    hindsight: HindsightForAll = HindsightForAll()
    """What the teacher is told. Trajectories that there is nothing to tell of are not trained on."""
    objective: OPSDObjective = OPSDObjective()
    """Token ratio, clip 0.2, every token counts equally."""

    @model_validator(mode="after")
    def _fits_together(self) -> "OPSD":
        if self.hindsight.told == "nothing" and not self.hindsight.outcome:
            raise ValueError("a teacher that is told nothing trains nothing: set hindsight.told, or outcome: true")
        return self

    def build(self) -> Algorithm:
        """The algorithm with these settings. Raises ConfigError as `Hindsight.build` does."""
        narrator = self.hindsight.build(self.objective)
        teacher = Teacher(
            prompts=partial(narrator.prompts, unhinted=False),
            refresh_every=_NEVER if self.teacher == "initial" else 0,
            paired=True,
        )
        return Algorithm(
            name="opsd",
            assign=partial(self._assign, narrator),
            needs_logprobs=True,
            teacher=teacher,
            objective=self.objective,
        )

    def _assign(self, narrator: Narrator, group: Group, inputs: Inputs) -> list[Credit]:
        return [
            self._credit(step, inputs) if hint and step.trainable else untrained(step)
            for trajectory, hint in zip(group.trajectories, narrator.hints(group), strict=True)
            for step in trajectory.steps
            if not step.side
        ]

    def _credit(self, step: Step, inputs: Inputs) -> Credit:
        gaps = step_gap(step, inputs).clip(-self.clip, self.clip)
        return Credit(step_id=step.id, advantages=gaps.astype(np.float32))
