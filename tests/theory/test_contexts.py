"""Training on the very context that was sampled from (RTPO, equations 2 and 5), on a policy that is a table of ids."""

import numpy as np

from tests.algorithms.builders import make_step

VOCABULARY = 12
TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))


def logprobs(prompt: list[int], response: list[int]) -> np.ndarray:
    """Of a policy that weighs every id of its context equally: nothing of it can be left out unnoticed."""
    found = []
    for place, token in enumerate(response):
        logits = TABLE[[*prompt, *response[:place]]].mean(0)
        found.append(logits[token] - np.log(np.exp(logits).sum()))
    return np.array(found, np.float32)


def rollout(context: int):
    """Steps whose prompt is the last `context` ids of the history, and each step's whole history."""
    random, history, steps, histories = np.random.default_rng(1), [1, 2, 3], [], []
    for index in range(3):
        response = random.integers(VOCABULARY, size=2).tolist()
        prompt = history[-context:]
        step = make_step("t", index)
        steps.append((step, prompt, response, logprobs(prompt, response)))
        histories.append(list(history))
        history += [*response, int(random.integers(VOCABULARY))]
    return steps, histories


def test_identity_20_on_the_recorded_context_however_short_the_first_ratio_is_1() -> None:
    for context in (2, 4, 100):
        for _, prompt, response, sampled in rollout(context)[0]:
            np.testing.assert_array_equal(np.exp(logprobs(prompt, response) - sampled), 1.0)


def test_identity_20_on_the_flattened_history_it_is_1_only_if_nothing_was_cut() -> None:
    def ratios(context: int) -> np.ndarray:
        steps, histories = rollout(context)
        pairs = zip(steps, histories, strict=True)
        return np.concatenate([np.exp(logprobs(whole, r) - sampled) for (_, _, r, sampled), whole in pairs])

    np.testing.assert_array_equal(ratios(100), 1.0)
    assert (np.abs(ratios(2) - 1) > 1e-3).any()
