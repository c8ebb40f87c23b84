"""Answers are compared as mathematics, and no answer breaks that."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.math_answers import Judge, Mathematics, Numbers, Verdict, boxed, equal


@pytest.fixture(scope="module")
def mathematics() -> Mathematics:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    return Mathematics()


def right(judge: Judge, answer: str, *golds: str) -> Verdict:
    return asyncio.run(judge.judge(answer, golds))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{7}", "7"),
        (r"first \boxed{7} then \boxed{8}", "8"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{7", r"\boxed{7"),
        ("7", "7"),
    ],
)
def test_the_last_box_counts(text: str, inside: str) -> None:
    assert boxed(text) == inside


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("42", "42", True),
        ("42.0", "42", True),
        ("1,234,567", "1234567", True),
        ("$18.90", r"\$18.9", True),
        ("025", "25", True),
        ("1e3", "1000", True),
        (r"50\%", "1/2", True),
        (r"12\%", "12", False),
        (r"\dfrac{3}{6}", "0.5", True),
        ("-1/3", r"-\frac{1}{3}", True),
        ("(B)", r"\text{B}", True),
        ("(1, 2]", "(1,2]", True),
        ("43", "42", False),
        ("1 1/2", "11/2", None),
        ("1/0", "1", None),
        ("1e999999999", "1", None),
        ("x+1", "1+x", None),
        ("", "", None),
    ],
)
def test_texts_and_numbers_are_compared_at_once_and_the_rest_is_left_open(
    answer: str, gold: str, same: bool | None
) -> None:
    assert equal(answer, gold) is same


@given(st.fractions(), st.fractions())
def test_fractions_are_equal_if_they_are(left: Fraction, right_: Fraction) -> None:
    short = all(len(str(part)) <= 60 for one in (left, right_) for part in (one.numerator, one.denominator))
    assert equal(str(left), str(right_)) is ((left == right_) if short or str(left) == str(right_) else None)


@given(st.text(), st.text(min_size=1))
def test_no_text_breaks_the_comparison(answer: str, gold: str) -> None:
    assert equal(answer, gold) in (True, False, None)
    assert isinstance(right(Numbers(), answer, gold), Verdict)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("42", True),
        ("That makes 6 * 7 = 42 apples.", True),
        (r"\boxed{42} of 50", True),
        ("42 or 43", False),
        ("", False),
    ],
)
def test_of_a_longer_answer_the_last_number_counts(answer: str, verdict: bool) -> None:
    assert right(Numbers(), answer, "42") == Verdict(verdict)


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"\dfrac12", r"\frac{1}{2}", True),
        ("3, 2, 1", "1,2,3", True),
        ("(2,1)", "(1,2)", False),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("2.83", r"2\sqrt{2}", False),
        (r"The answer is \boxed{x = 5}", "5", True),
        (r"\boxed{10\text{ cm}}", "10", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("The answer is $42$.", "42", True),
        ("Evelyn", r"\text{Evelyn}", True),
        ("Bob", r"\text{Evelyn}", False),
        (" ", "3", False),
    ],
)
def test_formulas_are_compared_by_what_they_mean(
    mathematics: Mathematics, answer: str, gold: str, verdict: bool
) -> None:
    assert right(mathematics, answer, gold) == Verdict(verdict)


def test_one_of_several_gold_answers_is_enough(mathematics: Mathematics) -> None:
    assert right(mathematics, r"\sqrt{4}", "7", "2").right


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("9^{9^{9^{9}}}", "took longer than"),
        ("1+" * 4000 + "1", "longer than 512 characters"),
        ("{" * 600 + "1" + "}" * 600, "longer than 512 characters"),
    ],
)
def test_an_answer_that_cannot_be_compared_is_wrong_with_a_reason(
    mathematics: Mathematics, answer: str, why: str
) -> None:
    verdict = right(mathematics, answer, "2")
    assert not verdict.right
    assert why in verdict.unchecked
    assert right(mathematics, r"\sqrt{4}", "2").right
