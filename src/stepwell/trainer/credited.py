"""What an update made of the steps that were leased for it, for the pool to keep."""

from collections.abc import Sequence

from stepwell.algorithms.objective import Aggregation
from stepwell.pool.credit import StepCredit
from stepwell.trainer.collate import token_weights
from stepwell.types import Group, Sample, Step


def credited(groups: Sequence[Group], samples: Sequence[Sample], aggregation: Aggregation) -> list[StepCredit]:
    """One line per step of `groups`, in their order; `samples` are those of them that were trained on."""
    weights = token_weights(samples, aggregation)
    learnt = {
        sample.step_id: (float(sample.advantages.mean()), float(weight.sum()))
        for sample, weight in zip(samples, weights, strict=True)
    }
    lines = []
    for group in groups:
        for step in (step for trajectory in group.trajectories for step in trajectory.steps):
            advantage, weight = learnt.get(step.id, (0.0, 0.0))
            lines.append(
                StepCredit(
                    step_id=step.id,
                    trajectory_id=step.trajectory_id,
                    group_id=group.info.id,
                    index=step.index,
                    tokens=len(step.response_ids),
                    advantage=advantage,
                    weight=weight,
                    left_out="" if step.id in learnt else _why(step),
                )
            )
    return lines


def _why(step: Step) -> str:
    """Why a step that was leased was not trained on: what makes it no `trainable` one, or else the algorithm."""
    if step.side:
        return "side call"
    if step.finish_reason == "abort":
        return "aborted"
    if step.token_source != "engine":
        return "tokens unknown"
    return "algorithm" if len(step.response_ids) else "no tokens"
