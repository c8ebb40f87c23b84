"""Search finds, keeps an order, and is cut to a readable length."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.corpora import Passage
from stepwell.environments.retrieval import SearchIndex, window

PASSAGES = (
    Passage("Marn", "Capital city of Quell"),
    Passage("Tibb", "Harbour town"),
    Passage("Twin one", "identical words"),
    Passage("Twin two", "identical words"),
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))


def test_a_search_finds_by_title_and_by_text() -> None:
    index = SearchIndex(PASSAGES)
    assert index.search("marn", 1) == PASSAGES[:1]
    assert index.search("QUELL's capital?", 3) == PASSAGES[:1]


def test_no_shared_word_finds_nothing() -> None:
    index = SearchIndex(PASSAGES)
    assert index.search("zebra", 3) == ()
    assert index.search("", 3) == ()
    assert index.search("the of", 3) == ()


def test_equal_scores_keep_the_order_of_the_passages() -> None:
    assert SearchIndex(PASSAGES).search("identical words", 5) == PASSAGES[2:]


def test_an_index_from_the_cache_finds_the_same(tmp_path: Path) -> None:
    fresh = SearchIndex(PASSAGES).search("town twin city", 4)
    kept = [path.name for path in tmp_path.iterdir()]
    assert SearchIndex(PASSAGES).search("town twin city", 4) == fresh
    assert [path.name for path in tmp_path.iterdir()] == kept


def test_other_passages_get_another_index(tmp_path: Path) -> None:
    SearchIndex(PASSAGES)
    assert SearchIndex(PASSAGES[:2]).search("identical", 1) == ()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_window_holds_the_words_of_the_query_in_its_middle() -> None:
    text = "a1 a2 a3 Marn's a5 a6 river a8 a9 marn, oss a12 a13 a14"
    assert window(text, "river Oss Marn", 6) == "a6 river a8 a9 marn, oss"
    assert window(text, "oss", 3) == "marn, oss a12"
    assert window(text, "nothing", 2) == "a1 a2"
    assert window("short text", "text", 60) == "short text"


@given(
    words=st.lists(st.sampled_from(["marn", "oss", "river", "town"]), max_size=12),
    query=st.lists(st.sampled_from(["marn", "oss", "zebra"]), max_size=3),
    size=st.integers(1, 6),
)
def test_no_stretch_of_that_length_has_more_words_of_the_query(words: list[str], query: list[str], size: int) -> None:
    shown = window(" ".join(words), " ".join(query), size).split()
    stretches = [words[start : start + size] for start in range(max(len(words) - size + 1, 1))]
    assert shown in stretches
    assert len(set(shown) & set(query)) == max(len(set(stretch) & set(query)) for stretch in stretches)
