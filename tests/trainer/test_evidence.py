"""What the algorithm and the loss are told beside the rollouts, compared with the plain model's own numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepwell.algorithms.base import Algorithm, Language, Teacher
from stepwell.algorithms.objective import Objective
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.policy.model import Policy
from stepwell.trainer.evidence import Evidence
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.types import Group, GroupInfo, Sample, Step, Trajectory, TrajectoryInfo
from tests.policy.tiny import random_ids, tiny_policy
from tests.trainer.builders import make_learner, sampled

LANGUAGE = Language(
    tokenize=lambda text: random_ids(len(text), 9), action_mask=lambda step: step.response_ids > step.response_ids.min()
)


def make_group(policy: Policy, reward: float | None = 1.0) -> Group:
    """One trajectory of two steps, sampled a little off."""
    steps = []
    for index in range(2):
        s = sampled(policy, 4 + index, 3, index, noise=0.1)
        ids = s.token_ids
        steps.append(
            Step(
                id=f"s{index}",
                trajectory_id="t",
                index=index,
                prompt_ids=ids[: s.prompt_length],
                response_ids=ids[s.prompt_length :],
                logprobs=s.logprobs,
            )
        )
    trajectory = Trajectory(
        info=TrajectoryInfo(id="t"),
        steps=tuple(steps),
        step_rewards=(0.0, reward or 0.0),
        reward=reward,
        status="terminated",
    )
    return Group(info=GroupInfo(task_id="task", size=1), trajectories=(trajectory,))


def evidence(policy: Policy, **settings) -> Evidence:
    fields = {"name": "x", "assign": lambda group, inputs: [], "objective": Objective()}
    return Evidence(make_learner(policy), Algorithm(**{**fields, **settings}), LANGUAGE)


def move(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    policy.version += 1


def scores(policy: Policy, group: Group) -> list[np.ndarray]:
    rows = [Scored(s.prompt_ids, s.response_ids) for t in group.trajectories for s in t.steps]
    return response_logprobs(policy, rows, 10_000)


def test_nothing_is_gathered_that_nobody_asked_for() -> None:
    policy = tiny_policy()
    gathered = evidence(policy)
    gathered.refresh()
    inputs = gathered.inputs([make_group(policy)])
    assert (inputs.values, inputs.logprobs, inputs.teacher_logprobs, inputs.actions) == ({}, {}, {}, {})
    assert gathered.snapshots == {}


def test_the_policys_own_log_probabilities_are_of_the_policy_as_it_is_now() -> None:
    policy = tiny_policy()
    group = make_group(policy)
    move(policy)
    inputs = evidence(policy, needs_logprobs=True).inputs([group])
    for found, expected in zip(inputs.logprobs.values(), scores(policy, group), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert inputs.updates == 1


def test_the_tokens_of_an_action_are_those_that_the_language_names() -> None:
    policy = tiny_policy()
    group = make_group(policy)
    inputs = evidence(policy, needs_actions=True).inputs([group])
    for step in group.trajectories[0].steps:
        assert inputs.actions[step.id].tolist() == (step.response_ids > step.response_ids.min()).tolist()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_divergence_that_is_taken_from_rewards_is_that_of_each_step(kind: str) -> None:
    policy = tiny_policy()
    group = make_group(policy)
    before = scores(policy, group)
    objective = Objective(kl_coefficient=0.5, kl_in="reward", kl_estimator=kind)
    gathered = evidence(policy, objective=objective)
    gathered.refresh()
    move(policy)
    gathered.refresh()  # the reference stays what it was
    (penalised,) = gathered.penalised([group])
    formula = {"k1": lambda x: -x, "k2": lambda x: x**2 / 2, "k3": lambda x: np.exp(x) - x - 1}[kind]
    costs = [0.5 * formula(b - n).sum() for b, n in zip(before, scores(policy, group), strict=True)]
    (trajectory,) = penalised.trajectories
    assert trajectory.step_rewards == pytest.approx((-costs[0], 1.0 - costs[1]), abs=1e-5)
    assert trajectory.reward == pytest.approx(1.0 - sum(costs), abs=1e-5)


def test_a_reference_that_is_wanted_too_late_is_an_error_and_not_another_policy() -> None:
    policy = tiny_policy()
    move(policy)
    with pytest.raises(ConfigError, match="before its first update"):
        evidence(policy, objective=Objective(kl_coefficient=0.5)).refresh()


def test_a_missing_reward_is_not_made_up_by_a_penalty() -> None:
    policy = tiny_policy()
    gathered = evidence(policy, objective=Objective(kl_coefficient=0.5, kl_in="reward"))
    gathered.refresh()
    with pytest.raises(InvalidRecord, match="not 0"):
        gathered.penalised([make_group(policy, reward=None)])


def test_the_loss_is_told_the_reference_and_the_trainers_own_denominator() -> None:
    policy = tiny_policy()
    objective = Objective(kl_coefficient=0.1, old_logprobs="trainer", correction="truncate")
    gathered = evidence(policy, objective=objective)
    gathered.refresh()
    sample = sampled(policy, 5, 3, 1)
    first = response_logprobs(policy, [_row(sample)], 1000)[0]
    move(policy)
    (found,) = gathered.completed([sample])
    np.testing.assert_allclose(found.reference_logprobs, first, atol=1e-5)
    np.testing.assert_allclose(found.old_logprobs, response_logprobs(policy, [_row(sample)], 1000)[0], atol=1e-5)
    assert np.abs(found.old_logprobs - found.reference_logprobs).max() > 1e-3


def _row(sample: Sample) -> Scored:
    return Scored(sample.token_ids[: sample.prompt_length], sample.token_ids[sample.prompt_length :])


def _hinted(group: Group, tokenize) -> dict[str, np.ndarray]:
    step = group.trajectories[0].steps[1]
    return {step.id: np.concatenate([step.prompt_ids, tokenize("hint")])}


@pytest.mark.parametrize("every", [0, 2])
def test_identity_14_a_stale_teacher_is_the_policy_of_its_last_refresh_and_a_live_one_the_policy_itself(
    every: int,
) -> None:
    policy = tiny_policy()
    group = make_group(policy)
    gathered = evidence(policy, teacher=Teacher(prompts=_hinted, refresh_every=every))
    step = group.trajectories[0].steps[1]
    row = Scored(np.concatenate([step.prompt_ids, random_ids(4, 9)]), step.response_ids)
    by_version = []
    for version in range(4):
        gathered.refresh()
        by_version.append(response_logprobs(policy, [row], 1000)[0])
        (found,) = gathered.inputs([group]).teacher_logprobs.values()
        np.testing.assert_allclose(found, by_version[version - version % every if every else version], atol=1e-5)
        move(policy)


def test_a_teacher_that_nobody_listens_to_any_more_does_not_score() -> None:
    policy = tiny_policy()
    gathered = evidence(policy, teacher=Teacher(prompts=_hinted, until=1))
    group = make_group(policy)
    assert gathered.inputs([group]).teacher_logprobs
    move(policy)
    assert not gathered.inputs([group]).teacher_logprobs


def test_samples_that_need_nothing_are_left_alone() -> None:
    policy = tiny_policy()
    sample = replace(sampled(policy, 5, 3, 1), index=3)
    assert evidence(policy).completed([sample]) == [sample]


@pytest.mark.parametrize(("until", "taught", "wanted"), [(None, ["s1"], {"s1"}), (0, ["s1"], set()), (None, [], set())])
def test_a_policy_that_is_only_compared_with_its_teacher_scores_what_that_scores_and_no_longer(
    until, taught, wanted
) -> None:
    policy = tiny_policy()
    group = make_group(policy)
    prompts = {name: random_ids(3, 1) for name in taught}
    for paired, own in ((True, wanted), (False, {"s0", "s1"})):
        teacher = Teacher(prompts=lambda group, tokenize: prompts, until=until, paired=paired)
        found = evidence(policy, teacher=teacher, needs_logprobs=True).inputs([group])
        assert found.logprobs.keys() == own
        assert found.teacher_logprobs.keys() == wanted
