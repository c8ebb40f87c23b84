"""Walking the prompts' prefix tree gives what each prompt by itself gives."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.policy.attention import PackedRows
from stepwell.policy.model import Policy
from stepwell.policy.scoring import prompt_hidden
from tests.policy.tiny import CONFIGS, VOCABULARY, random_ids, tiny_policy

POLICIES = {kind: tiny_policy(kind) for kind in CONFIGS}


@torch.no_grad()
def alone(policy: Policy, prompt: Sequence[int]) -> torch.Tensor:
    return policy.hidden(torch.tensor(list(prompt)), torch.arange(len(prompt)), PackedRows([len(prompt)]))[-1]


def check(policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
    got = prompt_hidden(policy, [np.array(prompt, np.int32) for prompt in prompts])
    expected = torch.stack([alone(policy, prompt) for prompt in prompts])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


LONG = random_ids(90).tolist()
CASES = {
    "one token": [[3]],
    "single tokens, twice": [[3], [5], [3]],
    "duplicates": [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3]],
    "prefixes of each other, longest first": [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1]],
    "prefixes of each other, shortest first": [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "siblings": [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 7]],
    "the steps of a long trajectory": [LONG[:n] for n in (5, 30, 64, 65, 90)],
    "ids that sort differently as bytes": [[1, 0], [0, 1], [39], [1, 39], [1, 0, 5]],
}


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("case", CASES)
def test_shared_prefixes_change_no_state(kind: str, case: str) -> None:
    check(POLICIES[kind], CASES[case])


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 2) | st.integers(0, VOCABULARY - 1), min_size=1, max_size=9), min_size=1))
def test_any_set_of_prompts_gives_what_each_gives_alone(prompts: list[list[int]]) -> None:
    check(POLICIES["qwen3"], prompts)


def test_each_shared_token_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, computed, evaluate = POLICIES["qwen2"], [], POLICIES["qwen2"].hidden
    monkeypatch.setattr(policy, "hidden", lambda ids, *rest: computed.append(len(ids)) or evaluate(ids, *rest))
    prompts = [LONG[:20], [*LONG[:20], 1, 2], LONG[:30], LONG[:31], LONG[:30], LONG[:10]]
    prompt_hidden(policy, [np.array(prompt, np.int32) for prompt in prompts])
    # the tree has 31 + 2 tokens; a prompt that ends inside another's path ends there, so nothing is run twice
    assert sum(computed) == 33
