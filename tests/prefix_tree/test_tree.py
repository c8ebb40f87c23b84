"""A prefix tree against its definition: every row is a path, and every distinct prefix is one token."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.prefix_tree.tree import PrefixTree, common_prefix, merged, separate
from stepwell.types import Ids
from tests.prefix_tree.forests import distinct_prefixes, forests, ids, paths

every_layout = pytest.mark.parametrize("lay_out", [merged, separate])
few_ids = st.lists(st.integers(0, 2), max_size=9)


@every_layout
@given(rows=forests())
def test_every_row_comes_back_from_its_path(lay_out, rows: list[Ids]) -> None:
    tree = lay_out(rows)
    assert tree.ids.dtype == np.int32
    assert tree.lengths == tuple(map(len, rows))
    assert [tree.row(number).tolist() for number in range(len(rows))] == [row.tolist() for row in rows]


@every_layout
@given(rows=forests(), data=st.data())
def test_places_of_some_of_a_rows_tokens_are_those_of_its_whole_path(lay_out, rows: list[Ids], data) -> None:
    tree = lay_out(rows)
    row = data.draw(st.integers(0, len(rows) - 1))
    start = data.draw(st.integers(0, len(rows[row])))
    stop = data.draw(st.integers(start, len(rows[row])))
    some = tree.places(row, start, stop)
    assert some.dtype == np.int64
    assert some.tolist() == tree.places(row)[start:stop].tolist()
    assert tree.positions[some].tolist() == list(range(start, stop))


@every_layout
@given(rows=forests())
def test_a_rows_path_is_that_of_the_token_it_ends_at(lay_out, rows: list[Ids]) -> None:
    tree = lay_out(rows)
    walked = paths(tree)
    for number, leaf in enumerate(tree.leaves):
        path = tree.places(number).tolist()
        assert walked[path[-1]] == path
        assert tree.segments[leaf].start <= path[-1] < tree.segments[leaf].stop


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4), (4, 4)])
def test_places_beyond_a_row_are_an_error(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match="of a row of 3"):
        merged([ids([1, 2, 3]), ids([1, 2, 3, 4])]).places(0, start, stop)


@given(forests())
def test_a_merged_tree_has_one_token_for_each_distinct_prefix(rows: list[Ids]) -> None:
    tree = merged(rows)
    assert len(tree.ids) == distinct_prefixes(rows)
    tokens = tree.ids.tolist()
    prefixes = [tuple(tokens[place] for place in path) for path in paths(tree)]
    assert len(set(prefixes)) == len(prefixes)


@given(forests(), st.randoms())
def test_the_order_of_rows_changes_neither_the_tree_nor_its_number_of_segments(rows: list[Ids], random) -> None:
    shuffled = random.sample(rows, len(rows))
    one, other = merged(rows), merged(shuffled)
    assert sorted(one.ids.tolist()) == sorted(other.ids.tolist())
    shapes = [sorted((s.depth, s.stop - s.start, s.end - s.stop) for s in tree.segments) for tree in (one, other)]
    assert shapes[0] == shapes[1]
    assert one.pairs == other.pairs


@given(forests())
def test_merging_twice_what_is_merged_already_adds_nothing(rows: list[Ids]) -> None:
    assert len(merged([*rows, *rows]).ids) == len(merged(rows).ids)


@every_layout
@given(rows=forests())
def test_a_token_sees_another_iff_that_lies_on_its_path(lay_out, rows: list[Ids]) -> None:
    tree = lay_out(rows)
    ends, walked = tree.ends, paths(tree)
    for i, path in enumerate(walked):
        assert [j for j in range(len(tree.ids)) if j <= i < ends[j]] == path
    assert tree.pairs == sum(map(len, walked))


@every_layout
@given(rows=forests())
def test_a_tokens_position_is_how_many_tokens_stand_before_it_on_its_path(lay_out, rows: list[Ids]) -> None:
    tree = lay_out(rows)
    assert tree.positions.dtype == np.int64
    assert tree.positions.tolist() == [len(path) - 1 for path in paths(tree)]


def children(tree: PrefixTree) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, segment in enumerate(tree.segments):
        found.setdefault(segment.parent, []).append(number)
    return found


@every_layout
@given(rows=forests())
def test_segments_are_not_empty_and_stand_in_pre_order(lay_out, rows: list[Ids]) -> None:
    tree = lay_out(rows)
    assert [s.start for s in tree.segments] == [0, *(s.stop for s in tree.segments)][:-1]
    assert tree.segments[-1].stop == len(tree.ids)
    below = children(tree)
    for number, segment in enumerate(tree.segments):
        assert segment.start < segment.stop
        at = segment.stop
        for child in (tree.segments[c] for c in below.get(number, [])):
            assert child.start == at
            assert child.depth == segment.depth + segment.stop - segment.start
            at = child.end
        assert at == segment.end
    assert all(tree.segments[root].depth == 0 for root in below[-1])


@given(forests(alphabet=3))
def test_siblings_of_a_merged_tree_part_at_their_first_token_and_a_parent_has_several_children(rows) -> None:
    tree = merged(rows)
    for parent, siblings in children(tree).items():
        first = [int(tree.ids[tree.segments[number].start]) for number in siblings]
        assert len(set(first)) == len(first)
        assert parent == -1 or len(siblings) > 1  # paths are compressed: a lone child would be part of its parent


@given(forests(alphabet=4, longest=6, most=12))
def test_siblings_that_nothing_continues_come_first_and_in_order_of_length(rows: list[Ids]) -> None:
    tree = merged(rows)
    below = children(tree)
    for siblings in below.values():
        continued = [number in below for number in siblings]
        assert continued == sorted(continued)
        sizes = [tree.segments[n].stop - tree.segments[n].start for n in siblings if n not in below]
        assert len(list(groupby(sizes))) == len(set(sizes))
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("rows", "stretches"),
    [
        ([[7]], [(0, [7])]),
        ([[1, 2], [1, 2], [1, 2]], [(0, [1, 2])]),
        ([[1], [1, 2], [1, 2, 3]], [(0, [1, 2, 3])]),
        ([[1, 2, 3], [1, 2], [1]], [(0, [1, 2, 3])]),
        ([[1, 2], [1, 3]], [(0, [1]), (1, [2]), (1, [3])]),
        ([[1, 2, 3, 4], [1, 2], [1, 2, 3, 9]], [(0, [1, 2, 3]), (3, [4]), (3, [9])]),
        ([[1, 2], [3, 4], [5]], [(0, [1, 2]), (0, [3, 4]), (0, [5])]),
        ([[1, 2, 3], [1, 2, 4], [1, 5]], [(0, [1]), (1, [2]), (1, [5]), (2, [3]), (2, [4])]),
    ],
    ids=["token", "duplicates", "growing", "shrinking", "one-token branches", "ends inside", "strangers", "nested"],
)
def test_small_trees_have_the_segments_that_one_draws_by_hand(rows, stretches: list[tuple[int, list[int]]]) -> None:
    tree = merged([ids(row) for row in rows])
    assert sorted((s.depth, tree.ids[s.start : s.stop].tolist()) for s in tree.segments) == stretches


@every_layout
def test_no_rows_make_an_empty_tree(lay_out) -> None:
    tree = lay_out([])
    assert (len(tree.ids), tree.segments, tree.leaves, tree.lengths, tree.pairs) == (0, (), (), (), 0)
    assert len(tree.positions) == len(tree.ends) == 0


@every_layout
@pytest.mark.parametrize("rows", [[[]], [[1], []], [[], [1, 2]]])
def test_a_row_without_tokens_is_refused(lay_out, rows) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        lay_out([ids(row) for row in rows])


@given(forests())
def test_rows_laid_out_apart_stand_end_to_end(rows: list[Ids]) -> None:
    tree = separate(rows)
    assert tree.ids.tolist() == np.concatenate(rows).tolist()
    assert len(tree.segments) == len(rows)
    assert all(a.stop == b.start for a, b in pairwise(tree.segments))


@given(few_ids, few_ids)
def test_the_common_prefix_ends_at_the_first_difference_or_the_shorter_end(left: list[int], right: list[int]) -> None:
    length = common_prefix(ids(left), ids(right))
    assert length == common_prefix(ids(right), ids(left))
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


def test_a_path_of_a_thousand_segments_is_walked_without_recursion() -> None:
    trunk = np.ones(1100, np.int32)
    rows = [np.append(trunk[:n], np.int32(2)) for n in range(1, 1100)]  # a comb whose teeth are single tokens
    tree = merged(rows)
    assert len(tree.ids) == len(rows[-1]) - 1 + len(rows)
    for number in (0, 700, len(rows) - 1):
        assert tree.row(number).tolist() == rows[number].tolist()
