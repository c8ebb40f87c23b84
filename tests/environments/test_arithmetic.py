"""The built-in word problems: each has the answer that its own words lead to."""

import re
from collections import Counter

import pytest

from stepwell.environments.arithmetic import KINDS, word_problem

PROBLEMS = [word_problem(f"train-{number}") for number in range(600)]


def numbers(question: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", question)]


def expected(kind: str, found: list[int]) -> int:
    """The answer, computed anew from the numbers of the question."""
    if kind == "shopping":
        boxes, price, more, cost, paid = found
        return paid - boxes * price - more * cost
    if kind == "sharing":
        goods, people = found
        return goods % people
    if kind == "journey":
        hours, speed, more, faster = found
        return hours * speed + more * (speed + faster)
    if kind == "savings":
        start, added, step, months = found
        return start + sum(added + step * month for month in range(months))
    if kind == "tiling":
        long, wide, hole, _, box = found
        return next(n for n in range(long * wide) if n * box >= long * wide - hole**2)
    first, step, last = found
    return sum((day - first) % step == 0 for day in range(first, last + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_follows_from_the_numbers_in_the_question(kind: str) -> None:
    asked = [problem for problem in PROBLEMS if problem.kind == kind]
    assert len(asked) > 50
    assert [problem.answer for problem in asked] == [expected(kind, numbers(problem.question)) for problem in asked]


def test_a_problem_is_decided_by_its_id_and_they_differ() -> None:
    assert word_problem("train-7") == word_problem("train-7")
    assert max(Counter(problem.question for problem in PROBLEMS).values()) == 1
    assert word_problem("train-7") != word_problem("test-7")
