"""Short ways to make samples and steps of the tiny models in `tests.policy.tiny`."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from stepwell.policy.model import Policy
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Sample
from tests.policy.tiny import one_row, random_ids


def make_sample(
    name: str,
    prompt: int = 3,
    response: int = 2,
    *,
    advantage: float = 1.0,
    values: int = 0,
    beginning: Sequence[int] = (),
) -> Sample:
    """A sample for arithmetic alone: its numbers mean nothing. Its trajectory is the first letter of its name."""
    return Sample(
        step_id=name,
        trajectory_id=name[0],
        token_ids=[*beginning, *random_ids(prompt + response, seed=sum(name.encode()))],
        prompt_length=len(beginning) + prompt,
        logprobs=np.linspace(-2, -1, response),
        advantages=np.full(response, advantage),
        value_targets=np.arange(values) + 0.5,
        old_values=np.arange(values) + 0.25,
    )


def sampled(
    policy: Policy,
    prompt: int,
    response: int,
    seed: int,
    *,
    temperature: float = 1.0,
    noise: float = 0.0,
    values: int = 0,
    beginning: Sequence[int] = (),
) -> Sample:
    """A sample whose log-probabilities are the policy's, moved by `noise` as if the policy were another since."""
    random = np.random.default_rng(seed)
    ids = np.array([*beginning, *random_ids(prompt + response, seed)], np.int32)
    prompt += len(beginning)
    return Sample(
        step_id=f"step-{seed}",
        trajectory_id=f"traj-{seed // 2}",
        token_ids=ids,
        prompt_length=prompt,
        logprobs=_logprobs(policy, ids, temperature)[prompt - 1 :] + noise * random.normal(size=response),
        advantages=np.full(response, random.normal()),
        value_targets=random.normal(size=values),
        old_values=random.normal(size=values),
        temperature=temperature,
    )


def unpacked(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what is about how samples were packed."""
    return {name: value for name, value in metrics.items() if "tree" not in name}


@torch.no_grad()
def _logprobs(policy: Policy, ids: np.ndarray, temperature: float) -> np.ndarray:
    """Of each token but the first, given those before it."""
    row = torch.from_numpy(ids.astype(np.int64))
    logits = policy.logits(policy.hidden(*one_row(ids)))
    return (logits / temperature).log_softmax(-1)[:-1].gather(1, row[1:, None]).squeeze(1).numpy()


SHAPES: Sequence[tuple[int, int]] = ((3, 2), (9, 1), (1, 4), (14, 6), (3, 2), (6, 3))
"""(prompt, response) tokens of a ragged batch."""


def make_learner(policy: Policy, **settings) -> Learner:
    """A learner that does not clip its gradient, unless told to."""
    return Learner(policy, LearnerConfig(**{"lr": 1e-3, "critic_lr": 1e-2, "grad_clip": 1e9, **settings}))
