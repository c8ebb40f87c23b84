"""What people are shown before they train is what training does."""

from hypothesis import given
from hypothesis import strategies as st

from stepwell.prefix_tree.pack import Merging, pack
from stepwell.prefix_tree.savings import Savings, savings, sharing
from stepwell.prefix_tree.tree import merged
from stepwell.types import Ids
from tests.prefix_tree.forests import forests


@given(forests(), st.integers(1, 40), st.sampled_from(["auto", "on", "off"]))
def test_savings_are_what_packing_does(rows: list[Ids], budget: int, merging: Merging) -> None:
    packing = pack(rows, budget, merging)
    found = savings(rows, budget, merging)
    assert found == Savings(len(rows), packing.flat_tokens, packing.tokens)
    assert found.ratio == packing.ratio


@given(forests(), forests())
def test_savings_of_groups_that_are_packed_by_themselves_add_up(left: list[Ids], right: list[Ids]) -> None:
    total = savings(left, 30) + savings(right, 30)
    assert total.rows == len(left) + len(right)
    assert total.flat_tokens == sum(map(len, [*left, *right]))
    assert total.tokens == pack(left, 30).tokens + pack(right, 30).tokens


@given(forests())
def test_a_segment_is_shared_by_the_rows_that_go_through_its_first_token(rows: list[Ids]) -> None:
    tree = merged(rows)
    through = [[s.start in tree.places(number) for number in range(len(rows))].count(True) for s in tree.segments]
    assert sharing(tree) == through
