"""Whatever is cached, copied, cut back and forgotten: each sequence has the states that it has without a cache."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stepwell.policy.kv_cache import CachedSegments, KVSlots
from stepwell.prefix_tree.tree import common_prefix
from tests.policy.tiny import VOCABULARY, one_row, random_ids, tiny_policy

POLICY = tiny_policy("qwen3", num_hidden_layers=2, max_position_embeddings=512)
SLOTS = 3
few_ids = st.lists(st.integers(0, 2) | st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
slot_numbers = st.integers(0, SLOTS - 1)


def ids(values) -> np.ndarray:
    return np.array(values, np.int32)


@torch.no_grad()
def states_without_cache(tokens: list[int]) -> torch.Tensor:
    return POLICY.hidden(*one_row(tokens))


class CacheMachine(RuleBasedStateMachine):
    """Random requests on a few slots, beside a plain list of what each slot should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = KVSlots(SLOTS)
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.stale = [False] * SLOTS

    @rule(news=st.dictionaries(slot_numbers, few_ids, min_size=1), single=st.booleans())
    @torch.no_grad()
    def extend(self, news: dict[int, list[int]], single: bool) -> None:
        """One forward pass over new tokens of some slots; with single tokens it takes its batched way."""
        news = {slot: new[:1] if single else new for slot, new in news.items()}
        segments = [self.slots.extend(slot, ids(new)) for slot, new in news.items()]
        positions = torch.cat([torch.arange(s.start, s.start + len(s.ids)) for s in segments])
        flat = torch.tensor([token for new in news.values() for token in new])
        got = POLICY.hidden(flat, positions, CachedSegments(self.slots, segments)).split(
            [len(n) for n in news.values()]
        )
        for (slot, new), states in zip(news.items(), got, strict=True):
            self.held[slot] = self.held[slot] + new
            expected = states_without_cache(self.held[slot])[-len(new) :]
            torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)

    @rule(slot=slot_numbers, prompt=few_ids, continues=st.none() | slot_numbers)
    def start(self, slot: int, prompt: list[int], continues: int | None) -> None:
        """A new sequence takes a slot, and what it shares with any slot."""
        tokens = prompt if continues is None else self.held[continues] + prompt
        shared = [0 if self.stale[i] else common_prefix(ids(self.held[i]), ids(tokens)) for i in range(SLOTS)]
        source, length = self.slots.longest_prefix(ids(tokens))
        assert length == max(shared) == shared[source]
        self.slots.copy_prefix(source, slot, length)
        self.held[slot], self.stale[slot] = tokens[:length], False

    @rule(busy=st.sets(slot_numbers))
    def forget(self, busy: set[int]) -> None:
        self.slots.forget(sorted(busy))
        for slot in range(SLOTS):
            self.stale[slot] = slot in busy
            self.held[slot] = self.held[slot] if slot in busy else []

    @invariant()
    def lengths_are_known(self) -> None:
        assert self.slots.lengths.tolist() == [len(tokens) for tokens in self.held]


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)


@torch.no_grad()
def test_single_tokens_after_short_and_long_pasts_have_the_states_without_a_cache() -> None:
    """From some length on, pasts are no longer gathered into one batch; on both sides of it the states are right."""
    slots, rows = KVSlots(2), [random_ids(122).tolist(), random_ids(3, 1).tolist()]
    segments = [slots.extend(slot, ids(row)) for slot, row in enumerate(rows)]
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    POLICY.hidden(torch.tensor(rows[0] + rows[1]), positions, CachedSegments(slots, segments))
    got = []
    for token in range(1, 13):
        segments = [slots.extend(slot, ids([token])) for slot in range(2)]
        at = torch.tensor([len(row) for row in rows])
        got.append(POLICY.hidden(torch.tensor([token, token]), at, CachedSegments(slots, segments)))
        rows = [[*row, token] for row in rows]
    for row, states in zip(rows, torch.stack(got, dim=1), strict=True):
        torch.testing.assert_close(states, states_without_cache(row)[-12:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1, 2], [2, 2], 0)],
)
def test_the_common_prefix_ends_at_the_first_difference_or_the_shorter_end(left, right, length: int) -> None:
    assert common_prefix(ids(left), ids(right)) == common_prefix(ids(right), ids(left)) == length
