"""From credit to tensors: samples, whitening, weights of each token in the loss, and micro-batches.

Shape letters: B samples, N tokens of a tree, M response tokens, U of its places, K supervised values.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stepwell.algorithms.base import Scope
from stepwell.algorithms.objective import Aggregation, Objective
from stepwell.errors import InvalidRecord
from stepwell.policy.ranks import ALONE, Ranks
from stepwell.policy.tree_attention import TreeAttention
from stepwell.prefix_tree.pack import Merging, Packing, Part
from stepwell.trainer.division import divide
from stepwell.trainer.ratios import gradient_scale
from stepwell.trainer.reading import Reading
from stepwell.types import NO_FLOATS, Credit, Floats, Group, Sample, Step


def make_samples(groups: Sequence[Group], credits: Mapping[str, Credit], values: Mapping[str, Floats]) -> list[Sample]:
    """One sample per trainable step, in the order of the groups, but for those that the algorithm excluded.

    `credits` and `values` are by step id; a step without values was not read by a critic.

    Raises:
        InvalidRecord: a trainable step got no credit, credit for another number of tokens, or a target for a value that
            no critic was asked for.
    """
    samples = []
    for trajectory in (t for group in groups for t in group.trajectories):
        for step in trajectory.steps:
            if not step.trainable:
                continue
            if step.id not in credits:
                raise InvalidRecord(f"the algorithm gave step {step.id} no credit")
            if credits[step.id].trained:
                samples.append(_sample(step, credits[step.id], values.get(step.id, NO_FLOATS)))
    return samples


def _sample(step: Step, credit: Credit, values: Floats) -> Sample:
    supervised = len(credit.value_targets)
    if len(values) < supervised:
        raise InvalidRecord(f"step {step.id} has {supervised} value targets, but a critic read {len(values)} values")
    return Sample(
        step_id=step.id,
        trajectory_id=step.trajectory_id,
        token_ids=step.token_ids,
        prompt_length=len(step.prompt_ids),
        logprobs=step.logprobs,
        advantages=credit.advantages,
        value_targets=credit.value_targets,
        old_values=values[:supervised],
        temperature=step.sampling.scale,
        index=step.index,
    )


def whiten(samples: Sequence[Sample], scope: Scope, eps: float = 1e-8) -> list[Sample]:
    """Advantages shifted to mean 0 and scaled to deviation 1 (Bessel) over all steps, or all tokens; "none": unchanged.

    A single step or token keeps its advantage: there is nothing to compare it with.
    """
    if scope == "none" or not samples:
        return list(samples)
    units = [s.advantages if scope == "token" else s.advantages[:1] for s in samples]
    flat = np.concatenate(units).astype(np.float64)
    if len(flat) < 2:
        return list(samples)
    mean, deviation = flat.mean(), flat.std(ddof=1)
    return [replace(s, advantages=((s.advantages - mean) / (deviation + eps)).astype(np.float32)) for s in samples]


def bounded(samples: Sequence[Sample], bound: float | None) -> list[Sample]:
    """Advantages kept within [-bound, bound]; None: unchanged."""
    if bound is None:
        return list(samples)
    return [replace(s, advantages=s.advantages.clip(-bound, bound)) for s in samples]


def token_weights(samples: Sequence[Sample], aggregation: Aggregation) -> list[Floats]:
    """Weight of each response token in the loss, float32 [R] per sample; all of them sum to 1.

    `per_token`: equal. `per_step`: equal within a step, steps equal. `per_trajectory`: equal within a step, steps of a
    trajectory equal, trajectories equal. `per_sequence`: equal within a trajectory, trajectories equal.
    """
    sizes = [len(s.advantages) for s in samples]
    if aggregation == "per_token":
        total = sum(sizes)
        return [np.full(n, 1 / total, np.float32) for n in sizes]
    if aggregation == "per_step":
        return [np.full(n, 1 / (n * len(samples)), np.float32) for n in sizes]
    steps, tokens = Counter[str](), Counter[str]()
    for sample, size in zip(samples, sizes, strict=True):
        steps[sample.trajectory_id] += 1
        tokens[sample.trajectory_id] += size
    shares = [
        tokens[s.trajectory_id] if aggregation == "per_sequence" else n * steps[s.trajectory_id]
        for s, n in zip(samples, sizes, strict=True)
    ]
    return [np.full(n, 1 / (share * len(steps)), np.float32) for n, share in zip(sizes, shares, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Samples for one forward and backward pass, as a prefix tree: what rows share is computed once, nothing is padded.

    Per-token quantities are those of the samples as if nothing was merged: a loss is computed on rows.
    """

    plan: TreeAttention
    """Attention of the B rows' tree."""
    ids: Tensor
    """int64 [N]: the tree's tokens."""
    positions: Tensor
    """int64 [N]: position of each in the rows that go through it."""
    samples: tuple[int, ...]
    """[B]: which of the samples that were packed each row is."""
    read: Tensor
    """int64 [U]: places of the tree whose logits are needed, each once."""
    scales: Tensor
    """float32 [U]: the temperature that divides them; rows that read one place at two temperatures make two of it."""
    predicting: Tensor
    """int64 [M]: which of the U predicts each response token."""
    targets: Tensor
    """int64 [M]: the response tokens themselves."""
    row: Tensor
    """int64 [M]: which of the B samples each response token belongs to."""
    logprobs: Tensor
    """float32 [M]: as sampled."""
    old_logprobs: Tensor
    """float32 [M]: the ratio's denominator."""
    reference_logprobs: Tensor
    """float32 [M]: of the reference policy; [0] if nobody asked for them."""
    ratio_scale: Tensor
    """float32 [M]: see `stepwell.trainer.ratios.gradient_scale`."""
    advantages: Tensor
    """float32 [M]."""
    weights: Tensor
    """float32 [M]: share in the policy loss; over all micro-batches of an update they sum to 1."""
    value_at: Tensor
    """int64 [K]: where in N each supervised value is read."""
    value_targets: Tensor
    """float32 [K]."""
    old_values: Tensor
    """float32 [K]."""
    value_weights: Tensor
    """float32 [K]: share in the value loss; over all micro-batches of an update they sum to 1."""
    critic: bool
    """Whether the critic takes part: it has something to learn here, or on another rank meanwhile."""

    def rows(self) -> list[Tensor]:
        """The whole token ids of each row, int64."""
        places = [self.plan.tree.places(row) for row in range(len(self.samples))]
        return [self.ids[torch.from_numpy(at)] for at in places]


def micro_batches(
    samples: Sequence[Sample],
    objective: Objective,
    token_budget: int,
    merging: Merging = "auto",
    ranks: Ranks = ALONE,
) -> tuple[list[MicroBatch], Packing]:
    """This rank's micro-batches of at most `token_budget` tokens (a longer sample gets its own), and how they came
    about. All ranks have equally many, some maybe without samples.

    The result of an update depends neither on the budget nor on merging nor on ranks: weights are those of the whole
    set.
    """
    weights = token_weights(samples, objective.aggregation)
    scales = gradient_scale(samples, weights, objective.ratio)
    total_values = sum(len(s.value_targets) for s in samples)
    division = divide([s.token_ids for s in samples], token_budget, merging, ranks.count)
    made = []
    for parts in division.rounds:
        learns = any(len(samples[i].value_targets) for part in parts for i in part.rows)
        own = parts[ranks.rank]
        made.append(_micro_batch(samples, own, weights, scales, critic=learns, total_values=total_values))
    return made, division.packing


def _micro_batch(
    every: Sequence[Sample],
    part: Part,
    weights: Sequence[Floats],
    scales: Sequence[Floats],
    *,
    critic: bool,
    total_values: int,
) -> MicroBatch:
    samples, tree = [every[i] for i in part.rows], part.tree
    starts = [s.prompt_length - 1 for s in samples]
    predicting = [tree.places(row, start, tree.lengths[row] - 1) for row, start in enumerate(starts)]
    value_at = [tree.places(row, start, start + len(samples[row].value_targets)) for row, start in enumerate(starts)]
    reading = Reading.of(predicting, [s.temperature for s in samples])
    return MicroBatch(
        plan=TreeAttention(tree),
        ids=_int64([tree.ids]),
        positions=_int64([tree.positions]),
        samples=part.rows,
        read=reading.places,
        scales=reading.temperatures,
        predicting=reading.of_token,
        targets=_int64([s.token_ids[s.prompt_length :] for s in samples]),
        row=_int64([np.full(len(s.advantages), i) for i, s in enumerate(samples)]),
        logprobs=_float32([s.logprobs for s in samples]),
        old_logprobs=_float32([s.old_logprobs if len(s.old_logprobs) else s.logprobs for s in samples]),
        reference_logprobs=_float32([s.reference_logprobs for s in samples]),
        ratio_scale=_float32([scales[i] for i in part.rows]),
        advantages=_float32([s.advantages for s in samples]),
        weights=_float32([weights[i] for i in part.rows]),
        value_at=_int64(value_at),
        value_targets=_float32([s.value_targets for s in samples]),
        old_values=_float32([s.old_values for s in samples]),
        value_weights=torch.full((sum(map(len, value_at)),), 1 / max(total_values, 1)),
        critic=critic,
    )


def _int64(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts or [np.empty(0)]).astype(np.int64))


def _float32(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts or [np.empty(0)]).astype(np.float32))
