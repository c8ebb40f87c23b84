"""Parts of a budget: every row once, nothing computed that need not be, and no cheaper cuts."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.prefix_tree.pack import WORTHWHILE, Merging, Packing, pack
from stepwell.types import Ids
from tests.prefix_tree.forests import distinct_prefixes, forests, ids

PART = 16
"""Tokens that a pass costs on top of its own, in the law that cuts are chosen by."""
mergings = st.sampled_from(["auto", "on", "off"])
budgets = st.integers(1, 40)
every_merging = pytest.mark.parametrize("merging", ["auto", "on", "off"])


@given(forests(), budgets, mergings)
def test_every_row_is_in_exactly_one_part_and_comes_back_from_its_tree(rows, budget: int, merging: Merging) -> None:
    packing = pack(rows, budget, merging)
    assert sorted(row for part in packing.parts for row in part.rows) == list(range(len(rows)))
    for part in packing.parts:
        assert [part.tree.row(n).tolist() for n in range(len(part.rows))] == [rows[i].tolist() for i in part.rows]


@given(forests(), budgets, mergings)
def test_parts_are_within_the_budget_unless_a_single_row_is_longer(rows, budget: int, merging: Merging) -> None:
    for part in pack(rows, budget, merging).parts:
        assert len(part.tree.ids) <= budget or len(part.rows) == 1


@given(forests(), budgets, mergings)
def test_no_more_tokens_are_computed_than_the_rows_have(rows, budget: int, merging: Merging) -> None:
    packing = pack(rows, budget, merging)
    assert packing.flat_tokens == sum(map(len, rows))
    assert packing.tokens == sum(len(part.tree.ids) for part in packing.parts) <= packing.flat_tokens
    assert packing.ratio == packing.tokens / packing.flat_tokens


def cost(rows: Sequence[Ids], cuts: Sequence[int], *, merge: bool, budget: int) -> int | None:
    """Of the division of neighbours before each of `cuts`; None: some part does not fit."""
    total = 0
    for start, stop in pairwise([0, *cuts, len(rows)]):
        part = rows[start:stop]
        tokens = distinct_prefixes(part) if merge else sum(map(len, part))
        if tokens > budget and len(part) > 1:
            return None
        total += tokens + PART
    return total


def cheapest(rows: Sequence[Ids], *, merge: bool, budget: int) -> int:
    """Of all divisions of the rows, in this order, into neighbours."""
    places = range(1, len(rows))
    every = [c for n in range(len(rows)) for c in combinations(places, n)]
    return min(found for cuts in every if (found := cost(rows, cuts, merge=merge, budget=budget)) is not None)


@given(forests(most=7), budgets, st.sampled_from([1, 5]), st.booleans())
def test_no_other_cuts_between_neighbours_cost_less(rows: list[Ids], budget: int, scale: int, merge: bool) -> None:
    """At a larger scale, what rows share outweighs what a part costs."""
    rows, budget = [np.repeat(row, scale) for row in rows], budget * scale
    packing = pack(rows, budget, "on" if merge else "off")
    got = packing.tokens + PART * len(packing.parts)
    assert got == cheapest(in_order(rows, merge=merge), merge=merge, budget=budget)


def in_order(rows: list[Ids], *, merge: bool) -> list[Ids]:
    """As neighbours in the tree, or by length."""
    whole = pack(rows, 10**6, "on").parts[0].tree
    by_place = sorted(range(len(rows)), key=lambda i: whole.places(i)[-1])
    return [rows[i] for i in by_place] if merge else sorted(rows, key=len)


@pytest.mark.parametrize(("shared", "parts"), [(PART - 1, 2), (PART + 1, 3)])
def test_a_part_more_is_worth_so_many_tokens_that_are_not_computed_twice(shared: int, parts: int) -> None:
    """Two parts that each have one of two rows in the middle, or three with a part for those."""
    tails = shared // 2 - 1, (shared + 1) // 2 - 1
    left = [ids([1] * 5 + [2 + number] * tail) for number, tail in enumerate(tails)]
    middle = [ids([4] * shared + [tail]) for tail in (5, 6)]
    right = [ids([7] * (shared + 1) + [tail]) for tail in (8, 9)]
    tokens = distinct_prefixes(left)
    assert tokens == distinct_prefixes(right)
    packing = pack([*left, *middle, *right], tokens + shared + 1, "on")
    assert len(packing.parts) == parts
    assert packing.tokens == 2 * tokens + shared + 2 + shared * (parts == 2)


@given(forests(), st.integers(0, 5))
def test_a_forest_that_fits_is_one_part(rows: list[Ids], room: int) -> None:
    tokens = distinct_prefixes(rows)
    assert len(pack(rows, tokens + room, "on").parts) == 1
    assert len(pack(rows, sum(map(len, rows)) + room, "off").parts) == 1
    if tokens > max(map(len, rows)):
        assert len(pack(rows, tokens - 1, "on").parts) > 1


@given(forests(), budgets)
def test_off_merges_nothing(rows: list[Ids], budget: int) -> None:
    packing = pack(rows, budget, "off")
    assert packing.tokens == packing.flat_tokens
    assert all(len(part.tree.segments) == len(part.rows) for part in packing.parts)


def outline(packing: Packing) -> list[tuple[tuple[int, ...], list[int]]]:
    return [(part.rows, part.tree.ids.tolist()) for part in packing.parts]


@given(forests(), budgets)
def test_auto_merges_iff_the_tree_has_so_few_of_the_tokens(rows: list[Ids], budget: int) -> None:
    worth = distinct_prefixes(rows) <= WORTHWHILE * sum(map(len, rows))
    assert outline(pack(rows, budget)) == outline(pack(rows, budget, "on" if worth else "off"))


@pytest.mark.parametrize(("shared", "merges"), [(4, False), (5, True)])
def test_auto_merges_from_five_percent_on(shared: int, merges: bool) -> None:
    left, right = np.arange(1, 51), np.arange(101, 151)
    right[:shared] = left[:shared]
    assert pack([ids(left), ids(right)], 1000).tokens == (100 - shared if merges else 100)


@every_merging
def test_many_trees_fill_a_part_together(merging: Merging) -> None:
    groups = [[ids([group, 1, 2, tail]) for tail in range(3)] for group in range(10)]  # 6 tokens each, 12 flat
    packing = pack([row for group in groups for row in group], 24, merging)
    assert len(packing.parts) == (5 if merging == "off" else 3)  # four trees of six to a part
    assert packing.tokens == (120 if merging == "off" else 60)


def test_a_tree_that_is_too_large_is_cut_where_least_is_shared() -> None:
    left, right = [9, *[1] * 50], [9, *[2] * 50]
    rows = [ids([*half, tail]) for tail in (3, 4) for half in (left, right)]
    packing = pack(rows, 60, "on")
    assert sorted(sorted(part.rows) for part in packing.parts) == [[0, 2], [1, 3]]
    assert packing.tokens == distinct_prefixes(rows) + 1  # only the first token stands in both


@every_merging
def test_no_rows_make_no_parts(merging: Merging) -> None:
    packing = pack([], 10, merging)
    assert (packing.parts, packing.tokens, packing.flat_tokens, packing.ratio) == ((), 0, 0, 1)


@every_merging
def test_a_row_without_tokens_is_refused(merging: Merging) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        pack([ids([1]), ids([])], 10, merging)
