"""Whatever is cached, copied, cut back and forgotten: each sequence has the states that it has without a cache."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stepwell.policy.kv_cache import CachedSegments, KVSlots
from stepwell.policy.model import Policy
from stepwell.prefix_tree.tree import common_prefix
from tests.policy.tiny import VOCABULARY, one_row, random_ids, tiny_policy

POLICIES = {kind: tiny_policy(kind, max_position_embeddings=512) for kind in ("qwen3", "mistral", "gemma2", "gemma3")}
"""One that sees all of its past, one that sees a window of it, one that squashes its scores too, one of both kinds."""
SLOTS = 3
few_ids = st.lists(st.integers(0, 2) | st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
slot_numbers = st.integers(0, SLOTS - 1)


def ids(values) -> np.ndarray:
    return np.array(values, np.int32)


@torch.no_grad()
def states_without_cache(policy: Policy, tokens: list[int]) -> torch.Tensor:
    return policy.hidden(*one_row(tokens))


class CacheMachine(RuleBasedStateMachine):
    """Random requests on a few slots, beside a plain list of what each slot should hold."""

    policy = POLICIES["qwen3"]

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
        got = self.policy.hidden(flat, positions, CachedSegments(self.slots, segments)).split(
            [len(n) for n in news.values()]
        )
        for (slot, new), states in zip(news.items(), got, strict=True):
            self.held[slot] = self.held[slot] + new
            expected = states_without_cache(self.policy, self.held[slot])[-len(new) :]
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


class WindowedCacheMachine(CacheMachine):
    policy = POLICIES["mistral"]


class SquashedCacheMachine(CacheMachine):
    policy = POLICIES["gemma2"]


TestCache = CacheMachine.TestCase
TestWindowedCache = WindowedCacheMachine.TestCase
TestSquashedCache = SquashedCacheMachine.TestCase
TestCache.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestWindowedCache.settings = TestSquashedCache.settings = settings(TestCache.settings, max_examples=8)


@pytest.mark.parametrize("kind", POLICIES)
@torch.no_grad()
def test_single_tokens_after_short_and_long_pasts_have_the_states_without_a_cache(kind: str) -> None:
    """From some length on, pasts are no longer gathered into one batch; on both sides of it the states are right."""
    policy = POLICIES[kind]
    slots, rows = KVSlots(2), [random_ids(122).tolist(), random_ids(3, 1).tolist()]
    segments = [slots.extend(slot, ids(row)) for slot, row in enumerate(rows)]
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    policy.hidden(torch.tensor(rows[0] + rows[1]), positions, CachedSegments(slots, segments))
    got = []
    for token in range(1, 13):
        segments = [slots.extend(slot, ids([token])) for slot in range(2)]
        at = torch.tensor([len(row) for row in rows])
        got.append(policy.hidden(torch.tensor([token, token]), at, CachedSegments(slots, segments)))
        rows = [[*row, token] for row in rows]
    for row, states in zip(rows, torch.stack(got, dim=1), strict=True):
        torch.testing.assert_close(states, states_without_cache(policy, row)[-12:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("pieces", [(20,), (1,) * 20, (3, 9, 1, 7), (5, 1, 1, 13)], ids=str)
@torch.no_grad()
def test_a_prompt_in_pieces_beside_other_slots_has_the_states_of_the_whole(kind: str, pieces: tuple[int, ...]) -> None:
    """Pieces shorter and longer than a window, of several tokens and, batched, of single ones."""
    policy, slots = POLICIES[kind], KVSlots(2)
    rows, got = [random_ids(20).tolist(), random_ids(20, 1).tolist()], []
    for start, stop in pairwise([0, *accumulate(pieces)]):
        segments = [slots.extend(slot, ids(row[start:stop])) for slot, row in enumerate(rows)]
        new = torch.tensor([row[start:stop] for row in rows])
        positions = torch.arange(start, stop).repeat(2)
        states = policy.hidden(new.flatten(), positions, CachedSegments(slots, segments))
        got.append(states.unflatten(0, (2, -1)))
    for row, states in zip(rows, torch.cat(got, dim=1), strict=True):
        torch.testing.assert_close(states, states_without_cache(policy, row), atol=1e-5, rtol=1e-5)
