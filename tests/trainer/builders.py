"""Short ways to make samples and steps of the tiny models in `tests.policy.tiny`."""

from collections.abc import Sequence

import numpy as np

from stepwell.policy.model import Policy
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Sample
from tests.policy.tiny import plain_logprobs, random_ids


def make_sample(name: str, prompt: int = 3, response: int = 2, *, advantage: float = 1.0, values: int = 0) -> Sample:
    """A sample of arithmetic alone: ids and log-probabilities mean nothing. Its trajectory is the name's first letter."""
    return Sample(
        step_id=name,
        trajectory_id=name[0],
        token_ids=random_ids(prompt + response, seed=sum(name.encode())),
        prompt_length=prompt,
        logprobs=np.linspace(-2, -1, response),
        advantages=np.full(response, advantage),
        value_targets=np.arange(values) + 0.5,
        old_values=np.arange(values) + 0.25,
    )


def sampled(
    policy: Policy, prompt: int, response: int, seed: int, *, temperature: float = 1.0, noise: float = 0.0, values: int = 0
) -> Sample:
    """A sample whose log-probabilities are the plain model's, moved by `noise` as if the policy were another since."""
    random = np.random.default_rng(seed)
    ids = random_ids(prompt + response, seed)
    logp = plain_logprobs(policy, ids, temperature)[range(prompt - 1, prompt + response - 1), ids[prompt:]].numpy()
    return Sample(
        step_id=f"step-{seed}",
        trajectory_id=f"traj-{seed // 2}",
        token_ids=ids,
        prompt_length=prompt,
        logprobs=logp + noise * random.normal(size=response),
        advantages=np.full(response, random.normal()),
        value_targets=random.normal(size=values),
        old_values=random.normal(size=values),
        temperature=temperature,
    )


SHAPES: Sequence[tuple[int, int]] = ((3, 2), (9, 1), (1, 4), (14, 6), (3, 2), (6, 3))
"""(prompt, response) tokens of a ragged batch."""


def make_learner(policy: Policy, **settings) -> Learner:
    """A learner that does not clip its gradient, unless told to."""
    return Learner(policy, LearnerConfig(**{"lr": 1e-3, "critic_lr": 1e-2, "grad_clip": 1e9, **settings}))
