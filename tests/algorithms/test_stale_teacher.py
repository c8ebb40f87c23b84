"""A teacher's gap with real weights: what is left of it when there is no hint. Identity 14 of docs/papers.md."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepwell.algorithms.base import Language
from stepwell.algorithms.hindsight import Hindsight
from stepwell.algorithms.shaping import step_gap
from stepwell.algorithms.stepopsd import StepOPSD
from stepwell.policy.model import Policy
from stepwell.trainer.evidence import Evidence
from stepwell.types import Group
from tests.algorithms.builders import make_group, make_trajectory, tokenize, with_step
from tests.policy.tiny import random_ids, tiny_policy
from tests.trainer.builders import make_learner

LANGUAGE = Language(
    tokenize=lambda text: tokenize(text) % 40, action_mask=lambda step: np.arange(len(step.response_ids)) > 0
)


def mixed_group() -> Group:
    bad = with_step(make_trajectory("bad", [3], [0.0]), 0, response_ids=random_ids(3, 1), prompt_ids=random_ids(4, 2))
    good = with_step(
        make_trajectory("good", [2], [1.0]), 0, response_ids=random_ids(2, 3), prompt_ids=bad.steps[0].prompt_ids
    )
    return make_group(bad, good)


def move(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    policy.version += 1


def gaps(evidence: Evidence, group: Group) -> np.ndarray:
    evidence.refresh()
    inputs = evidence.inputs([group])
    return np.concatenate([step_gap(t.steps[0], inputs) for t in group.trajectories])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_identity_14_without_a_hint_the_gap_is_0_right_after_a_refresh_and_the_move_since_otherwise(every: int) -> None:
    policy, group = tiny_policy(), mixed_group()
    algorithm = StepOPSD(refresh_every=every, hindsight=Hindsight(told="nothing")).build()
    evidence = Evidence(make_learner(policy), algorithm, LANGUAGE)
    found, own = [], []
    for version in range(6):
        found.append(gaps(evidence, group))
        logprobs = evidence.inputs([group]).logprobs
        own.append(np.concatenate([logprobs["bad-0"], logprobs["good-0"]]))
        moved = own[version - version % every] - own[version]
        np.testing.assert_allclose(found[-1], moved, atol=1e-5)
        assert (np.abs(found[-1]).max() > 1e-4) == (version % every > 0)
        move(policy)


def test_with_a_hint_the_gap_is_not_0_right_after_a_refresh() -> None:
    policy, group = tiny_policy(), mixed_group()
    evidence = Evidence(make_learner(policy), StepOPSD().build(), LANGUAGE)
    found = gaps(evidence, group)
    assert np.abs(found[:3]).max() > 1e-3, "the failed one is told of the correct one"
    np.testing.assert_allclose(found[3:], 0, atol=1e-5)


def test_credit_of_a_real_teacher_is_within_its_band_and_that_of_a_group_without_signal_needs_none() -> None:
    policy, group = tiny_policy(), mixed_group()
    algorithm = StepOPSD().build()
    evidence = Evidence(make_learner(policy), algorithm, LANGUAGE)
    evidence.refresh()
    for credit in algorithm.assign(group, evidence.inputs([group])):
        np.testing.assert_allclose(np.abs(credit.advantages), 0.5**0.5, rtol=0.011)
    bad = group.trajectories[0]
    hopeless = replace(group, trajectories=(bad,))
    assert evidence.inputs([hopeless]).teacher_logprobs == {}


def test_with_action_only_the_thinking_keeps_grpos_advantage() -> None:
    policy, group = tiny_policy(), mixed_group()
    algorithm = StepOPSD(span="action_only", normalize="none").build()
    evidence = Evidence(make_learner(policy), algorithm, LANGUAGE)
    evidence.refresh()
    bad, _ = algorithm.assign(group, evidence.inputs([group]))
    plain = -(np.float32(0.5) ** np.float32(0.5))
    assert bad.advantages[0] == pytest.approx(plain, rel=1e-5)
    assert (np.abs(bad.advantages[1:] - plain) > 1e-6).all()
