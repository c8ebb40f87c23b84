"""Answers are compared as mathematics by the real library, and none of them keeps a process busy for ever."""

from pathlib import Path

import pytest

from stepwell.errors import ConfigError, EnvironmentFailed, MissingDependency
from stepwell.scoring.checker import Checkers
from stepwell.scoring.scorers.math import MathConfig
from tests.scoring.worlds import references, trajectory

pytest.importorskip("math_verify", reason="the extra `math` is not installed")

PAIRS = [
    ("1/2", r"The answer is $\frac{1}{2}$.", 1.0),
    ("0.5", r"\boxed{\frac12}", 1.0),
    (r"\{1, 2\}", r"So it is \boxed{\{2, 1\}}", 1.0),
    ("x^2+1", "$1+x^2$", 1.0),
    ("3x+1", "1", 0.0),
    ("42", "First 41, then 42", 1.0),
    ("42", "I have no idea", 0.0),
    ("(1,2]", r"\boxed{[1,2]}", 0.0),
]


async def test_what_means_the_same_is_equal(tmp_path: Path) -> None:
    gold = references(tmp_path, **{str(number): pair[0] for number, pair in enumerate(PAIRS)}, either=["1", "2"])
    scorer = MathConfig(references=gold).build()
    said = [await scorer.score(trajectory(answer, task_id=str(number))) for number, (_, answer, _) in enumerate(PAIRS)]
    assert [score.parts["math"] for score in said if score] == [value for *_, value in PAIRS]
    either = await scorer.score(trajectory("$2$", task_id="either"))
    assert either is not None
    assert either.parts == {"math": 1.0}
    assert await scorer.score(trajectory("$2$", task_id="unknown")) is None
    await scorer.aclose()


async def test_a_reference_that_is_no_mathematics_is_named() -> None:
    checkers = Checkers(20)
    with pytest.raises(ConfigError, match="''"):
        await checkers.equal("1", [""])
    assert await checkers.equal("1", ["1"])
    await checkers.aclose()


async def test_a_comparison_that_does_not_end_is_given_up_and_the_next_one_is_made() -> None:
    hasty = Checkers(0)
    with pytest.raises(EnvironmentFailed, match="longer than 0 s"):
        await hasty.equal("1", ["1"])
    await hasty.aclose()
    hasty._seconds = 20
    assert await hasty.equal("1", ["1"])
    await hasty.aclose()


async def test_a_process_that_died_fails_one_comparison_only() -> None:
    checkers = Checkers(20)
    assert await checkers.equal("1", ["1"])
    checkers._idle[0].kill()
    with pytest.raises(EnvironmentFailed, match="died"):
        await checkers.equal("1", ["1"])
    assert not await checkers.equal("1", ["2"])
    await checkers.aclose()


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"stepwell\[math\]"):
        MathConfig(references=references(tmp_path, t="1")).build()
