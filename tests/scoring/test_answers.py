"""Answers are scored as SQuAD and HotpotQA define it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.scoring.answers import contains_answer, exact_match, f1, normalise

WORDS = st.lists(st.sampled_from(["marn", "oss", "yes", "no", "the", "river", "7"]), max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "token_f1"),
    [
        ("The Beatles", ["Beatles"], 1, 1),
        ("beatles.", ["The Beatles"], 1, 1),
        ("yes", ["no"], 0, 0),
        ("Yes, both are cities", ["yes"], 0, 0),
        ("Yes.", ["yes"], 1, 1),
        ("U.S.", ["US"], 1, 1),
        ("3,677 seats", ["3,677"], 0, 2 / 3),
        ("Café", ["Cafe"], 0, 0),
        ("well-known", ["well known"], 0, 0),
        ("Obama", ["Barack Obama", "Barack Hussein Obama II"], 0, 2 / 3),
        ("1 January 2000", ["January 1, 2000"], 0, 1),
        ("Theatre", ["the atre"], 0, 0),
        ("marn marn", ["marn"], 0, 2 / 3),
        ("Marn", [], 0, 0),
    ],
)
def test_scores_follow_the_definitions(prediction: str, golds: list[str], em: float, token_f1: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(token_f1)


@pytest.mark.parametrize("empty", ["", "  ", "the", "?!", "An. A"])
def test_an_empty_prediction_never_scores_even_against_an_empty_gold(empty: str) -> None:
    assert exact_match(empty, ["the", "", "Marn"]) == 0
    assert f1(empty, ["the", "", "Marn"]) == 0


@given(prediction=WORDS, golds=st.lists(WORDS, max_size=3))
def test_f1_lies_between_exact_match_and_one(prediction: str, golds: list[str]) -> None:
    assert exact_match(prediction, golds) <= f1(prediction, golds) <= 1


@given(prediction=WORDS, golds=st.lists(WORDS, min_size=1, max_size=3))
def test_more_gold_answers_never_lower_a_score(prediction: str, golds: list[str]) -> None:
    assert f1(prediction, golds[:1]) <= f1(prediction, golds)
    assert exact_match(prediction, golds[:1]) <= exact_match(prediction, golds)


@given(st.text())
def test_normalising_a_normalised_text_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_an_answer_is_contained_as_whole_words_only() -> None:
    assert contains_answer("Its capital is The Marn.", ["marn"])
    assert not contains_answer("I do not know", ["no"])
    assert not contains_answer("anything", ["", "the"])
