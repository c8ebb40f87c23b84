"""One update: the critic's values before it, and the optimiser steps that make the next policy version.

Shape letters: N tokens of a tree, U of its places, M response tokens, W vocabulary.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stepwell.algorithms.base import Scope
from stepwell.algorithms.objective import Objective
from stepwell.errors import NonFiniteUpdate
from stepwell.policy.model import Policy
from stepwell.policy.ranks import ALONE, Ranks
from stepwell.policy.sharding import ShardingConfig, shard
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS, Merging
from stepwell.trainer.collate import MicroBatch, micro_batches
from stepwell.trainer.losses import correction_weights, entropy, kl_estimate, policy_loss, value_loss
from stepwell.trainer.metrics import Totals
from stepwell.trainer.optimizer import OptimizerConfig, clip_gradient, make_optimizer, set_learning_rates
from stepwell.trainer.ratios import log_ratio
from stepwell.trainer.scoring import state_values
from stepwell.types import Floats, Sample, Step

Watch = Callable[[MicroBatch], None]
"""Sees each micro-batch before its forward pass: for checks and counters."""


class LearnerConfig(OptimizerConfig):
    """The optimiser, and how an update is cut into its steps."""

    epochs: int = Field(default=1, ge=1)
    """How often an update goes through its samples."""
    minibatch_steps: int | None = Field(default=None, ge=1)
    """Samples (steps of agents) per optimiser step, in an order that is shuffled for each epoch; null: all at once.
    Where the objective is about trajectories, those stay whole, so it may be some more."""
    micro_batch_tokens: int = Field(default=MICRO_BATCH_TOKENS, ge=1)
    """Tokens of one forward and backward pass, after merging; bounds memory, changes no result."""
    tree: Merging = "auto"
    """Whether tokens that rows share from their start are computed once (`on`), for each row (`off`), or once where
    that saves 5 % of all tokens or more (`auto`). Changes no result."""
    seed: int = Field(default=0, ge=0)
    """Of the shuffles; with the update's and the epoch's number it gives the order, so a resumed run has the same."""
    ranks: int = Field(default=1, ge=1)
    """Processes that train together: each keeps a part of the weights and computes a part of each pass."""
    sharding: ShardingConfig = ShardingConfig()
    """How they do."""


class Learner:
    """Owns the optimiser; changes the policy it was given.

    Of several ranks, each has a learner, calls the same methods in the same order with the same data, and gets the same
    results. Whatever follows from the data alone (credit, whitening, weights) each computes for itself, and so exactly
    as one process would; what is divided are forward and backward passes.
    """

    def __init__(self, policy: Policy, config: LearnerConfig, ranks: Ranks = ALONE) -> None:
        """With several `ranks`, the policy is sharded over them from now on."""
        if ranks.count > 1:
            shard(policy, ranks, config.sharding)
        self.policy = policy
        self.config = config
        self.optimizer = make_optimizer(policy, config)

    @torch.no_grad()
    def values(self, steps: Sequence[Step], scope: Scope) -> dict[str, Floats]:
        """The critic's values by step id, float32 [V]: V = 1 for "step", R for "token", no entries for "none".

        Of a step beside the agent's work, whose answer counts for nothing, it is always the one of its prompt.
        """
        if scope == "none" or not steps:
            return {}
        counts = [1 if scope == "step" or step.side else len(step.response_ids) for step in steps]
        rows = [
            np.concatenate([s.prompt_ids, s.response_ids[: max(n - 1, 0)]]) for s, n in zip(steps, counts, strict=True)
        ]
        starts = [len(step.prompt_ids) - 1 for step in steps]
        config = self.config
        values = state_values(self.policy, rows, starts, config.micro_batch_tokens, config.tree)
        return {step.id: v[:count] for step, v, count in zip(steps, values, counts, strict=True)}

    def update(self, samples: Sequence[Sample], objective: Objective, watch: Watch | None = None) -> dict[str, float]:
        """Make the next policy version from these samples and give what was measured on the way.

        Gradients are accumulated over micro-batches, so their size changes no result beyond float rounding. The local
        engine samples nothing between the first optimiser step and the last.

        Args:
            samples: at least one.
            objective: the loss.
            watch: called with each micro-batch.

        Raises:
            NonFiniteUpdate: no optimiser step had a finite gradient; weights and version are as before. Where only some
                had none, those are skipped, and counted as `skipped_optimizer_steps`.
            InvalidRequest: another rank was given other samples.
        """
        with Updating(self, objective, watch) as update:
            for part in self._parts(samples, objective):
                update.step(part)
        return update.metrics(samples)

    def _parts(self, samples: Sequence[Sample], objective: Objective) -> Iterator[Sequence[Sample]]:
        size = self.config.minibatch_steps or len(samples)
        for epoch in range(self.config.epochs):
            if size >= len(samples):
                yield samples
                continue
            units = _units(samples, whole_trajectories=objective.spans_trajectories)
            part: list[Sample] = []
            for place in np.random.default_rng([self.config.seed, self.policy.version, epoch]).permutation(len(units)):
                part += units[place]
                if len(part) >= size:
                    yield part
                    part = []
            if part:
                yield part


def _units(samples: Sequence[Sample], *, whole_trajectories: bool) -> list[list[Sample]]:
    """What a mini-batch takes or leaves as a whole, in an order that follows from what the samples hold."""
    units: dict[str, list[Sample]] = {}
    for sample in samples:
        units.setdefault(sample.trajectory_id if whole_trajectories else sample.step_id, []).append(sample)
    return sorted(units.values(), key=lambda unit: sorted(map(_content, unit)))


def _fingerprint(samples: Sequence[Sample]) -> int:
    """Of all numbers that decide on an optimiser step and its passes."""
    found = 0
    for sample in samples:
        for part in (sample.step_id.encode(), sample.old_logprobs.tobytes(), *_content(sample)):
            found = zlib.crc32(part, found)
    return found


def _content(sample: Sample) -> tuple[bytes, ...]:
    numbers = (sample.token_ids, sample.advantages, sample.logprobs, sample.value_targets)
    return tuple(array.tobytes() for array in numbers)


class Updating:
    """An update under way: any number of optimiser steps, and then the next version."""

    def __init__(self, learner: Learner, objective: Objective, watch: Watch | None) -> None:
        self._policy = learner.policy
        self._config = learner.config
        self._optimizer = learner.optimizer
        self._objective = objective
        self._watch = watch
        self._held = ExitStack()
        self._totals = Totals()
        self._why = ""
        """Of the optimiser step that was skipped last."""
        self._weight = 0.0
        """Of the optimiser step under way: what its tokens weigh together."""
        self._lr = set_learning_rates(learner.optimizer, learner.config, learner.policy.version)

    def __enter__(self) -> "Updating":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Publish the version; not if something went wrong, or nothing was changed."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._held:
            if kind is None and self._totals.optimizer_steps:
                self._policy.version += 1
        if kind is None and not self._totals.optimizer_steps:
            raise NonFiniteUpdate(f"{self._why}; the weights were left as they were")

    def step(self, samples: Sequence[Sample]) -> None:
        """One optimiser step on `samples`, at least one."""
        policy, limit = self._policy, self._config.grad_clip
        policy.ranks.refuse_difference(partial(_fingerprint, samples))
        self._optimizer.zero_grad(set_to_none=True)
        before, self._weight = replace(self._totals), 0.0
        batches = self._packed(samples)
        for batch, shared in zip(batches, self._shared(batches, samples), strict=True):
            if self._watch and batch.samples:
                self._watch(batch)
            loss = policy.evaluated(partial(self._loss, batch, shared))
            (policy.ranks.count * loss).backward()  # gradients of ranks are averaged, while their losses are to add up
        norm = clip_gradient(policy.trainable_parameters(), limit)
        critic_norm = clip_gradient(policy.critic_parameters(), limit)
        weight = float(policy.ranks.total(torch.tensor(self._weight, dtype=torch.float64)))
        finite = torch.isfinite(norm) and torch.isfinite(critic_norm)
        if not (finite and weight):
            self._why = "the correction masks every token" if finite else f"the gradient is not finite (norm {norm})"
            self._totals = replace(before, skipped=before.skipped + 1)
            return
        if not self._totals.optimizer_steps:
            self._held.enter_context(self._policy.writing())
        self._optimizer.step()
        self._totals.optimizer_steps += 1
        self._totals.grad_norms += float(norm)

    def metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """What was measured, once the update is over."""
        corrected = self._objective.correction != "none"
        return self._totals.over(self._policy.ranks).named(samples, corrected=corrected) | {"lr": self._lr}

    def _packed(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        config, start = self._config, time.perf_counter()
        batches, packing = micro_batches(
            samples, self._objective, config.micro_batch_tokens, config.tree, self._policy.ranks
        )
        self._totals.packed(packing, time.perf_counter() - start)
        return batches

    def _shared(self, batches: Sequence[MicroBatch], samples: Sequence[Sample]) -> list[Tensor | None]:
        """For ratios that span micro-batches, what those at hand cannot tell (see `log_ratio`): a pass of its own."""
        kind = self._objective.ratio
        if kind not in ("sqrt", "sequence"):
            return [None] * len(batches)
        with torch.no_grad():
            differences = [
                self._policy.evaluated(partial(self._logprobs, batch))[1] - batch.old_logprobs for batch in batches
            ]
        z, ranks = torch.cat(differences), self._policy.ranks
        if kind == "sqrt":
            total, tokens = ranks.total(torch.stack([z.sum(), z.new_tensor(len(z))]))
            return [total / tokens] * len(batches)
        names = {name: number for number, name in enumerate(dict.fromkeys(s.trajectory_id for s in samples))}
        of_sample = torch.tensor([names[s.trajectory_id] for s in samples])
        units = [of_sample[torch.tensor(batch.samples, dtype=torch.int64)][batch.row] for batch in batches]
        of_unit = z.new_zeros(2, len(names)).index_add(1, torch.cat(units), torch.stack([z, torch.ones_like(z)]))
        total, tokens = ranks.total(of_unit)
        mean = total / tokens.clamp(min=1)
        return [mean[of_batch] for of_batch in units]

    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [N, E], and log-probabilities of the response tokens [M] and of all tokens there [U, W]."""
        hidden = self._policy.hidden(batch.ids, batch.positions, batch.plan)
        logp = (self._policy.logits(hidden[batch.read]) / batch.scales[:, None]).log_softmax(-1)
        return hidden, logp[batch.predicting, batch.targets], logp

    def _loss(self, batch: MicroBatch, shared: Tensor | None) -> Tensor:
        """Of one micro-batch, in a pass that is also measured."""
        objective, totals = self._objective, self._totals
        hidden, new, logp = self._logprobs(batch)
        ratios = log_ratio(
            new, batch.old_logprobs, batch.row, objective.ratio, scale_m=batch.ratio_scale, shared=shared
        )
        correction = correction_weights(batch.old_logprobs, batch.logprobs, batch.row, objective)
        weights = batch.weights * correction
        self._weight += float(weights.sum())
        totals.correction += float(correction.sum())
        totals.masked += float((correction == 0).sum())
        loss, clipped = policy_loss(ratios, batch.advantages, weights, objective)
        totals.policy_loss += loss.item()
        totals.entropy += float(entropy(logp.detach())[batch.predicting].sum())
        totals.clipped += float(clipped.sum())
        totals.tokens_seen(new.detach(), batch.old_logprobs, batch.logprobs, batch.reference_logprobs)
        critic = self._critic_loss(batch, hidden)
        totals.value_loss += critic.item()
        return loss + self._regularised(batch, new, logp) + objective.value_coefficient * critic

    def _regularised(self, batch: MicroBatch, new: Tensor, logp: Tensor) -> Tensor:
        """What is added to the policy's loss: divergence from the reference, and entropy."""
        objective, extra = self._objective, torch.zeros(())
        if objective.kl_coefficient and objective.kl_in == "loss":
            divergence = kl_estimate(new, batch.reference_logprobs, objective.kl_estimator)
            extra = extra + objective.kl_coefficient * (batch.weights * divergence).sum()
        if objective.entropy_coefficient:
            extra = extra - objective.entropy_coefficient * (batch.weights * entropy(logp)[batch.predicting]).sum()
        return extra

    def _critic_loss(self, batch: MicroBatch, hidden: Tensor) -> Tensor:
        if not batch.critic:
            return torch.zeros(())
        states = self._policy.critic_states(hidden, batch.ids, batch.positions, batch.plan)
        values = self._policy.values(states[batch.value_at])
        return value_loss(
            values, batch.value_targets, batch.old_values, batch.value_weights, self._objective.value_clip
        )
