"""StepOPSD (arXiv 2605.27140): GRPO whose advantages a teacher re-weighs, token by token, knowing how it ended.

The teacher is an older copy of the policy with a hint in its prompt. Where it finds what was done likelier than the
policy does, that counts more; where less, less; always within a narrow band around GRPO's advantage, whose sign stays.
"""

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Doubles, Inputs, Objective, Teacher, Tokenize
from stepwell.algorithms.grpo import group_advantages
from stepwell.algorithms.hindsight import Hindsight, Narrator, finite_rewards
from stepwell.algorithms.shaping import (
    Weight,
    equalised,
    mixed,
    mixing_at,
    raw_weights,
    shuffled,
    step_gap,
)
from stepwell.errors import InvalidRecord
from stepwell.types import Credit, Group, Ids, Mask, Step, Trajectory


class StepOPSD(AlgorithmConfig):
    """GRPO, re-weighed by a teacher who knows how it ended."""

    mixing: float = Field(default=0.2, ge=0, le=1)
    """λ: how much of the weight is mixed in; 0 is GRPO."""
    decay_updates: int | None = Field(default=50, ge=1)
    """λ goes down to 0 in a straight line over so many updates; null: it stays."""
    clip: float = Field(default=0.05, ge=0, lt=1)
    """Weights are kept within 1 ± clip; less than 1, so that no advantage changes its sign."""
    weight: Weight = "sigmoid"
    """Of a gap Δ = log π_T - log π_S, with x = sign(A)·Δ: `sigmoid` 2/(1 + exp(-x)), `exp` exp(x)."""
    gap: Literal["token", "step", "shuffled"] = "token"
    """Δ of each token; the sum over its step, for all tokens of it; or, as a placebo, that of another token of its
    step."""
    normalize: Literal["equal_step_mean_abs", "equal_step_sum_abs", "none"] = "equal_step_mean_abs"
    """Scale the steps of a trajectory so that their advantages are equally large per token, as published, which takes
    back all that the weights did between steps; or in total, weights or not, so that long steps count no more than
    short ones; or do not."""
    span: Literal["full_action", "action_only", "answer_only"] = "full_action"
    """Which tokens are re-weighed and made equal: a step's whole response, its thinking too; its tool calls, or what it
    says if it calls nothing; or those of a trajectory's last step alone."""
    student: Literal["recomputed", "rollout"] = "recomputed"
    """log π_S is the current policy's, or as sampled."""
    refresh_every: int = Field(default=10, ge=0)
    """The teacher is a copy of the policy, taken anew after so many updates; 0: the current policy."""
    hindsight: Hindsight = Hindsight()
    """What the teacher is told."""
    scale: Literal["std", "none"] = "std"
    """GRPO's: divide by the group's standard deviation, or not."""
    objective: Objective = Objective()
    """Token ratio, clip 0.2, every step counts equally."""

    def build(self) -> Algorithm:
        """The algorithm with these settings. Raises ConfigError as `Hindsight.build` does."""
        narrator = self.hindsight.build(self.objective)
        teacher = Teacher(
            prompts=partial(self._prompts, narrator),
            refresh_every=self.refresh_every,
            until=self.decay_updates,
            paired=True,
        )
        return Algorithm(
            name="stepopsd",
            assign=partial(self._assign, narrator),
            needs_logprobs=self.mixing > 0 and self.student == "recomputed",
            needs_actions=self.span != "full_action",
            teacher=teacher if self.mixing else None,
            diagnose=partial(self._diagnose, narrator),
            objective=self.objective,
        )

    def advantages(self, group: Group) -> Doubles:
        """GRPO's, [G]: where all are 0 nothing can be re-weighed, so the teacher is not asked."""
        return group_advantages(finite_rewards(group), scale=self.scale)

    def _diagnose(self, narrator: Narrator, group: Group, inputs: Inputs) -> dict[str, float]:
        """What the teacher made of a group: gaps, weights and hints; no gaps if it was not asked."""
        hints = narrator.hints(group)
        mixing = mixing_at(inputs.updates, self.mixing, self.decay_updates)
        told = [hint for hint in hints if hint]
        found = {"mixing": mixing, "hint_rate": len(told) / len(hints)}
        if told:
            found["hint_truncated_rate"] = float(np.mean([hint.truncated for hint in told]))
        gaps, raw = self._opinions(group, inputs)
        if gaps:
            found["teacher_gap_mean"] = float(np.mean([step.mean() for step in gaps]))
            found["teacher_gap_variance"] = float(np.mean([step.var() for step in gaps]))
        if raw:
            found["weight_clipped_rate"] = float((np.abs(np.concatenate(raw) - 1) > self.clip).mean())
        return found

    def _opinions(self, group: Group, inputs: Inputs) -> tuple[list[Doubles], list[Doubles]]:
        """Of the spans that the teacher scored: gaps, and, where they are used, the weights before they are clipped."""
        gaps, raw = [], []
        for trajectory, advantage in zip(group.trajectories, self.advantages(group), strict=True):
            steps = [step for step in trajectory.steps if not step.side]
            for step in (step for step in steps if step.id in inputs.teacher_logprobs):
                span = self._span(step, step is steps[-1], inputs)
                if span.any():
                    gaps.append(self._gaps(step, inputs)[span])
                    raw += [self._raw(step, span, advantage, inputs)[span]] if advantage else []
        return gaps, raw

    def _prompts(self, narrator: Narrator, group: Group, tokenize: Tokenize) -> dict[str, Ids]:
        if not self.advantages(group).any():
            return {}
        return narrator.prompts(group, tokenize, unhinted=self.refresh_every > 0)

    def _assign(self, narrator: Narrator, group: Group, inputs: Inputs) -> list[Credit]:
        mixing = mixing_at(inputs.updates, self.mixing, self.decay_updates)
        hints = narrator.hints(group)
        credits: list[Credit] = []
        for trajectory, advantage, hint in zip(group.trajectories, self.advantages(group), hints, strict=True):
            scored = bool(hint) or self.refresh_every > 0  # else the teacher is the student
            credits += self._credit(trajectory, float(advantage), mixing if scored else 0.0, inputs)
        return credits

    def _credit(self, trajectory: Trajectory, advantage: float, mixing: float, inputs: Inputs) -> list[Credit]:
        steps = [step for step in trajectory.steps if not step.side]
        spans = [self._span(step, step is steps[-1], inputs) for step in steps]
        parts = [np.full(len(step.response_ids), advantage) for step in steps]
        if mixing and advantage:
            parts = [self._shaped(s, span, advantage, mixing, inputs) for s, span in zip(steps, spans, strict=True)]
            if self.normalize == "equal_step_mean_abs":  # of unweighed advantages it changes nothing
                parts = equalised(parts, spans, "mean")
        if self.normalize == "equal_step_sum_abs":
            parts = equalised(parts, spans, "sum")
        return [
            Credit(step_id=step.id, advantages=part.astype(np.float32)) for step, part in zip(steps, parts, strict=True)
        ]

    def _shaped(self, step: Step, span: Mask, advantage: float, mixing: float, inputs: Inputs) -> Doubles:
        weights = np.ones(len(step.response_ids))
        if step.trainable:
            raw = self._raw(step, span, advantage, inputs)
            weights = np.where(span, raw.clip(1 - self.clip, 1 + self.clip), 1.0)
        return mixed(advantage, weights, mixing)

    def _raw(self, step: Step, span: Mask, advantage: float, inputs: Inputs) -> Doubles:
        return raw_weights(self._leveled(self._gaps(step, inputs), span, step.id), advantage, self.weight)

    def _gaps(self, step: Step, inputs: Inputs) -> Doubles:
        return step_gap(step, inputs, as_sampled=self.student == "rollout")

    def _leveled(self, gaps: Doubles, span: Mask, seed: str) -> Doubles:
        if self.gap == "shuffled":
            return shuffled(gaps, span, seed)
        return np.full(len(gaps), gaps[span].sum()) if self.gap == "step" else gaps

    def _span(self, step: Step, last: bool, inputs: Inputs) -> Mask:
        """Which tokens of a response are re-weighed, bool [R]; none of one that is not trained on."""
        if not step.trainable or (self.span == "answer_only" and not last):
            return np.zeros(len(step.response_ids), bool)
        if self.span == "full_action":
            return np.ones(len(step.response_ids), bool)
        action = inputs.actions.get(step.id)
        if action is None or action.shape != step.response_ids.shape:
            raise InvalidRecord(f"span: {self.span} needs to know which tokens of step {step.id} are its action")
        return action
