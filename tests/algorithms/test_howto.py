"""The algorithm of docs/howto/add_an_algorithm.md keeps the rules that its page gives."""

import dataclasses
import re
from pathlib import Path

import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, AlgorithmConfig
from stepwell.cli.config import RecipeConfig
from stepwell.config import component_config, load_config
from stepwell.errors import InvalidRecord
from tests.algorithms.builders import assign, make_group, make_trajectory

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "add_an_algorithm.md").read_text(encoding="utf-8")


(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
    """Saved, named in a recipe, and given a setting as the page says."""
    monkeypatch.chdir(tmp_path)
    (name,) = re.findall(r"Save it as `(\S+)`", PAGE)
    (use,) = re.findall(r"`algorithm: \{(use: \S+)\}`", PAGE)
    (objective,) = re.findall(r"`(objective: \{\S+ \S+\})`", PAGE)
    Path(name).write_text(CODE, encoding="utf-8")
    Path("recipe.yaml").write_text(f"algorithm: {{{use}, {objective}}}", encoding="utf-8")
    return component_config(
        ALGORITHMS, AlgorithmConfig, load_config(RecipeConfig, Path("recipe.yaml")).algorithm
    ).build()


def test_it_is_the_algorithm_of_the_file_with_the_setting_of_the_recipe(algorithm: Algorithm) -> None:
    assert (algorithm.name, algorithm.objective.clip) == ("leave_one_out", (0.2, 0.28))


def test_each_is_compared_with_the_mean_of_the_others(algorithm: Algorithm) -> None:
    group = make_group(*(make_trajectory(f"t{n}", [1], [reward]) for n, reward in enumerate((1.0, 0.0, 0.5))))
    assert [credit.advantages.tolist() for credit in assign(algorithm, group).values()] == [[0.75], [-0.75], [0.0]]


@pytest.mark.parametrize("reward", [1.0, -3.0])
def test_a_group_of_one_is_compared_with_nobody(algorithm: Algorithm, reward: float) -> None:
    (credit,) = assign(algorithm, make_group(make_trajectory("t", [2], [reward]))).values()
    assert credit.advantages.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_a_reward_that_is_missing_or_not_finite_is_refused(algorithm: Algorithm, bad: float | None) -> None:
    group = make_group(make_trajectory("t", [2], [0.0], reward=bad), make_trajectory("u", [2], [1.0]))
    with pytest.raises(InvalidRecord):
        assign(algorithm, group)


def test_advantages_of_a_group_sum_to_0(algorithm: Algorithm) -> None:
    group = make_group(*(make_trajectory(f"t{n}", [1], [float(n * n)]) for n in range(4)))
    assert sum(credit.advantages[0] for credit in assign(algorithm, group).values()) == pytest.approx(0)


def test_everything_that_an_algorithm_can_ask_for_is_listed() -> None:
    asked = {field.name for field in dataclasses.fields(Algorithm)} - {"name", "assign", "objective"}
    assert {name for name in asked if f"`{name}=" not in PAGE} == set()


def test_an_algorithm_is_less_than_60_lines() -> None:
    assert len(CODE.splitlines()) < 60
