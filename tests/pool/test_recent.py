from hypothesis import given
from hypothesis import strategies as st

from stepwell.pool.recent import Recent

kept = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 10)), max_size=30)


@given(kept, st.integers(0, 30))
def test_the_newest_values_stay_that_fit_into_the_budget_together(values: list[tuple[str, int]], budget: int) -> None:
    recent: Recent[str, int] = Recent(budget)
    expected: dict[str, tuple[int, int]] = {}
    for number, (key, size) in enumerate(values):
        recent.keep(key, number, size)
        expected.pop(key, None)
        expected[key] = (number, size)
        while sum(size for _, size in expected.values()) > budget:
            del expected[next(iter(expected))]
        assert {name: recent.get(name) for name in "abcdef"} == {
            name: expected[name][0] if name in expected else None for name in "abcdef"
        }


def test_what_is_dropped_leaves_room_for_others() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.keep("a", 1, 10)
    recent.drop("a")
    recent.drop("never kept")
    recent.keep("b", 2, 10)
    assert (recent.get("a"), recent.get("b")) == (None, 2)
    recent.clear()
    recent.keep("c", 3, 10)
    assert (recent.get("b"), recent.get("c")) == (None, 3)
