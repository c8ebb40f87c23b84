"""A prefix tree changes no number: what is computed of merged rows is what each row gives alone."""

import numpy as np
import pytest
import torch

from stepwell.policy.tree_attention import laid_out
from stepwell.prefix_tree.tree import merged
from tests.policy.tiny import CONFIGS, plain_twin, random_ids, tiny_policy

LONG = random_ids(90).tolist()
CASES = {
    "one token": [[3]],
    "single tokens, twice": [[3], [5], [3]],
    "duplicates": [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3]],
    "prefixes of each other, longest first": [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1]],
    "prefixes of each other, shortest first": [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "siblings": [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 7]],
    "the steps of a long trajectory": [LONG[:n] for n in (5, 30, 64, 65, 90)],
}


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_merged_rows_have_the_logits_of_the_plain_model_on_each_row(kind: str, case: str) -> None:
    policy = tiny_policy(kind)
    twin, rows = plain_twin(policy), [np.array(row, np.int32) for row in CASES[case]]
    tree = merged(rows)
    got = policy.logits(policy.hidden(*laid_out(tree)))
    for number, row in enumerate(rows):
        expected = twin(torch.from_numpy(row).long()[None]).logits[0]
        torch.testing.assert_close(got[torch.from_numpy(tree.places(number))], expected, atol=1e-5, rtol=1e-5)
