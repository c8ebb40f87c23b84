"""What credit assignment and the loss read beside the rollouts: values, log-probabilities of other policies.

The policy as it was before its first update (the reference) and the teacher are copies of what training changes; they
are put in place of the policy to score, one after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from stepwell.algorithms.base import Algorithm, Inputs, Language
from stepwell.algorithms.objective import KL
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.policy.snapshot import Snapshot
from stepwell.trainer.losses import kl_estimate
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.trainer.update import Learner
from stepwell.types import Floats, Group, Ids, Mask, Sample, Step


class Evidence:
    """Gathers what one algorithm needs, and nothing else."""

    def __init__(self, learner: Learner, algorithm: Algorithm, language: Language) -> None:
        """Whatever `algorithm` asks for comes from the learner's policy and `language`."""
        self._learner = learner
        self._algorithm = algorithm
        self._language = language
        self.snapshots: dict[str, Snapshot] = {}
        """`reference` and `teacher`, as far as they are needed and there are any yet: part of a checkpoint."""

    def refresh(self) -> None:
        """Before each update: take the copies that are due.

        Raises:
            ConfigError: the reference is wanted only now, when the policy is not any more what it was at first.
        """
        version = self._learner.policy.version
        if self._algorithm.objective.kl_coefficient and "reference" not in self.snapshots:
            if version:
                raise ConfigError(
                    "kl_coefficient compares with the policy before its first update, of which this run has kept no "
                    "copy, since it began without; begin a new run with it"
                )
            self.snapshots["reference"] = Snapshot.of(self._learner.policy)
        teacher = self._algorithm.teacher
        if teacher is None or not teacher.refresh_every:
            return
        kept = self.snapshots.get("teacher")
        if kept is None or version - kept.version >= teacher.refresh_every:
            self.snapshots["teacher"] = Snapshot.of(self._learner.policy)

    def inputs(self, groups: Sequence[Group]) -> Inputs:
        """What the algorithm reads, for all steps of `groups`."""
        algorithm = self._algorithm
        steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
        taught = self._teacher(groups, {step.id: step for step in steps})
        paired = algorithm.teacher is not None and algorithm.teacher.paired
        own = [step for step in steps if step.id in taught] if paired else steps
        return Inputs(
            values=self._learner.values(steps, algorithm.needs_values),
            logprobs=self._named(own) if algorithm.needs_logprobs else {},
            teacher_logprobs=taught,
            actions=self._actions(steps) if algorithm.needs_actions else {},
            updates=self._learner.policy.version,
        )

    def penalised(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups, with the divergence from the reference taken from each step's reward if the objective says so.

        Of a step: the sum over its tokens, with the trainer's own log-probabilities of both policies.
        """
        objective = self._algorithm.objective
        if not objective.kl_coefficient or objective.kl_in == "loss":
            return groups
        steps = [step for g in groups for t in g.trajectories for step in t.steps if step.trainable]
        reference = self._reference([_scored(step) for step in steps])
        own = self._scores([_scored(step) for step in steps])
        penalties = {
            step.id: -objective.kl_coefficient * _divergence(new, ref, objective.kl_estimator)
            for step, new, ref in zip(steps, own, reference, strict=True)
        }
        return [_with_penalties(group, penalties) for group in groups]

    def completed(self, samples: Sequence[Sample]) -> list[Sample]:
        """Samples with the log-probabilities that the objective compares with."""
        objective, found = self._algorithm.objective, list(samples)
        rows = list(map(Scored.of, samples))
        if objective.old_logprobs == "trainer":
            found = [replace(s, old_logprobs=own) for s, own in zip(found, self._scores(rows), strict=True)]
        if objective.kl_coefficient and objective.kl_in == "loss":
            found = [replace(s, reference_logprobs=ref) for s, ref in zip(found, self._reference(rows), strict=True)]
        return found

    def _scores(self, rows: Sequence[Scored]) -> list[Floats]:
        config = self._learner.config
        return response_logprobs(self._learner.policy, rows, config.micro_batch_tokens, config.tree)

    def _reference(self, rows: Sequence[Scored]) -> list[Floats]:
        with self.snapshots["reference"].in_place(self._learner.policy):
            return self._scores(rows)

    def _named(self, steps: Sequence[Step]) -> dict[str, Floats]:
        rows = [step for step in steps if step.trainable]
        scores = self._scores([_scored(step) for step in rows])
        return {step.id: score for step, score in zip(rows, scores, strict=True)}

    def _actions(self, steps: Sequence[Step]) -> dict[str, Mask]:
        return {step.id: self._language.action_mask(step) for step in steps if step.trainable}

    def _teacher(self, groups: Sequence[Group], steps: Mapping[str, Step]) -> dict[str, Floats]:
        teacher = self._algorithm.teacher
        if teacher is None or (teacher.until is not None and self._learner.policy.version >= teacher.until):
            return {}
        prompts: dict[str, Ids] = {}
        for group in groups:
            prompts |= teacher.prompts(group, self._language.tokenize)
        rows = [Scored(ids, steps[name].response_ids, steps[name].sampling.scale) for name, ids in prompts.items()]
        if teacher.refresh_every:
            with self.snapshots["teacher"].in_place(self._learner.policy):
                scores = self._scores(rows)
        else:
            scores = self._scores(rows)
        return dict(zip(prompts, scores, strict=True))


def _scored(step: Step) -> Scored:
    return Scored(step.prompt_ids, step.response_ids, step.sampling.scale)


def _divergence(new: Floats, reference: Floats, kind: KL) -> float:
    """Of a whole step, nats."""
    return float(kl_estimate(torch.from_numpy(new).double(), torch.from_numpy(reference).double(), kind).sum())


def _with_penalties(group: Group, penalties: Mapping[str, float]) -> Group:
    trajectories = []
    for trajectory in group.trajectories:
        if trajectory.reward is None:
            raise InvalidRecord(f"trajectory {trajectory.info.id} has no reward: a missing reward is not 0")
        own = [penalties.get(step.id, 0.0) for step in trajectory.steps]
        rewards = tuple(r + p for r, p in zip(trajectory.step_rewards, own, strict=True))
        trajectories.append(replace(trajectory, step_rewards=rewards, reward=trajectory.reward + sum(own)))
    return replace(group, trajectories=tuple(trajectories))
