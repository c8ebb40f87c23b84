"""What holds for every algorithm in the table, and for choosing one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, AlgorithmConfig
from stepwell.config import component_config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.types import Group
from tests.algorithms.builders import assign, groups, make_group, make_inputs, make_trajectory, make_values

WITH_CRITIC = [name for name in sorted(ALGORITHMS) if ALGORITHMS[name]().build().needs_values != "none"]
WITH_REWARDS = [name for name in sorted(ALGORITHMS) if name != "opsd"]
"""Plain distillation follows its teacher wherever that leads."""
PLAIN = {"rtpo": {"plain_groups": "first_step"}}
"""What makes an algorithm take groups that nobody forked."""
every_algorithm = pytest.mark.parametrize("name", sorted(ALGORITHMS))


def made(name: str) -> Algorithm:
    return ALGORITHMS[name](**PLAIN.get(name, {})).build()


@every_algorithm
@given(group=groups())
def test_every_trainable_step_gets_credit_once_and_no_other_step_is_named(name: str, group: Group) -> None:
    algorithm = made(name)
    credits = algorithm.assign(group, make_inputs(algorithm, group, make_values(algorithm, group)))
    named = [credit.step_id for credit in credits]
    steps = {step.id: step for trajectory in group.trajectories for step in trajectory.steps}
    assert len(named) == len(set(named))
    assert {step.id for step in steps.values() if step.trainable} <= set(named) <= set(steps)
    for credit in credits:
        assert not steps[credit.step_id].side, "what is beside the agent's work decided nothing"
        tokens = len(steps[credit.step_id].response_ids)
        assert credit.advantages.shape == (tokens,)
        assert np.isfinite(credit.advantages).all()
        assert len(credit.value_targets) == {"none": 0, "step": 1, "token": tokens}[algorithm.needs_values]


@every_algorithm
@given(group=groups(), random=st.randoms(use_true_random=False))
def test_the_order_of_trajectories_only_orders_their_credit(name: str, group: Group, random) -> None:
    algorithm = made(name)
    values = make_values(algorithm, group)
    shuffled = list(group.trajectories)
    random.shuffle(shuffled)
    straight = assign(algorithm, group, values)
    mixed = assign(algorithm, replace(group, trajectories=tuple(shuffled)), values)
    assert straight.keys() == mixed.keys()
    for step_id, credit in straight.items():
        np.testing.assert_allclose(mixed[step_id].advantages, credit.advantages, atol=1e-5)
        np.testing.assert_allclose(mixed[step_id].value_targets, credit.value_targets, atol=1e-5)


@every_algorithm
@given(group=groups())
def test_credit_is_a_pure_function(name: str, group: Group) -> None:
    algorithm = made(name)
    values = make_values(algorithm, group)
    before = {step_id: value.copy() for step_id, value in values.items()}
    assert assign(algorithm, group, values) == assign(algorithm, group, values)
    for step_id, value in before.items():
        np.testing.assert_array_equal(values[step_id], value)


@every_algorithm
def test_a_missing_reward_is_an_error_and_not_0(name: str) -> None:
    rewarded = make_trajectory("a", [1, 2], [0.0, 1.0])
    unknown = make_trajectory("b", [1], [0.0], reward=None)
    with pytest.raises(InvalidRecord, match="not 0"):
        assign(made(name), make_group(rewarded, unknown))


@every_algorithm
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    group = make_group(make_trajectory("a", [1, 2], [0.0, bad]), make_trajectory("b", [1], [0.0]))
    with pytest.raises(InvalidRecord):
        assign(made(name), group)


@pytest.mark.parametrize("name", WITH_CRITIC)
def test_a_critic_that_diverged_is_refused(name: str) -> None:
    algorithm = made(name)
    group = make_group(make_trajectory("a", [1, 2], [0.0, 1.0]), make_trajectory("b", [1], [0.0]))
    values = {step_id: value * np.nan for step_id, value in make_values(algorithm, group).items()}
    with pytest.raises(InvalidRecord, match="NaN"):
        assign(algorithm, group, values)


@pytest.mark.parametrize("name", WITH_CRITIC)
@pytest.mark.parametrize("values", [{}, {"a-0": [0.0, 0.0, 0.0]}])
def test_a_critic_that_says_nothing_of_a_step_or_too_much_is_an_error(name: str, values: dict) -> None:
    said = {step_id: np.array(value, np.float32) for step_id, value in values.items()}
    with pytest.raises(InvalidRecord, match="step a-0, where"):
        assign(made(name), make_group(make_trajectory("a", [2], [1.0])), said)


@every_algorithm
@pytest.mark.parametrize("kind", [{"aggregation": "per_trajectory"}, {"clip_high": 0.5}, {"value_clip": 0.0}])
def test_one_setting_of_an_objective_leaves_the_others_as_the_algorithm_has_them(name: str, kind: dict) -> None:
    (own, changed) = (ALGORITHMS[name](**settings).build().objective for settings in ({}, {"objective": kind}))
    assert changed == type(own)(**kind)
    assert changed.ratio == own.ratio


@pytest.mark.parametrize("name", WITH_REWARDS)
def test_more_reward_never_means_less_advantage(name: str) -> None:
    algorithm = made(name)
    group = make_group(make_trajectory("good", [2, 2], [0.0, 1.0]), make_trajectory("bad", [2, 2], [0.0, 0.0]))
    credit = assign(algorithm, group)
    compared = [index for index in range(2) if credit[f"good-{index}"].trained]
    assert compared
    for index in compared:
        assert (credit[f"good-{index}"].advantages > credit[f"bad-{index}"].advantages).all()


@every_algorithm
def test_the_name_in_the_table_is_the_algorithms_own(name: str) -> None:
    assert component_config(ALGORITHMS, AlgorithmConfig, {"use": name}).build().name == name


@pytest.mark.parametrize(("typo", "meant"), [("grop", "grpo"), ("step_po", "steppo"), ("ppo2", "ppo")])
def test_an_unknown_name_is_an_error_that_names_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        component_config(ALGORITHMS, AlgorithmConfig, {"use": typo})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use": "steppo", "gama": 1.0}, "did you mean 'gamma'"),
        ({"use": "steppo", "gamma": 1.5}, "gamma"),
        ({"use": "ppo", "lam": -0.1}, "lam"),
        ({"use": "grpo", "scale": "variance"}, "scale"),
        ({"use": "grpo", "objective": {"clip_low": 1.2}}, "objective.clip_low"),
        ({"use": "steppo", "objective": {"ratio": "tokens"}}, "objective.ratio"),
        ({"use": "reinforce_pp", "baseline": "group", "gamma": 0.9}, "baseline: group"),
        ({"use": "gigpo", "omega": -1}, "omega"),
        ({"use": "seeupo", "mode": "published"}, "mode"),
        ({"use": "ppo", "objective": {"value_coefficient": float("inf")}}, "objective.value_coefficient"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        component_config(ALGORITHMS, AlgorithmConfig, settings)


OWN_ALGORITHM = '''
from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Objective, broadcast
from stepwell.types import Credit


class LastStepOnly(AlgorithmConfig):
    """All credit to the last step."""

    bonus: float = 0.0

    def build(self):
        def assign(group, inputs):
            steps = [(s, (t.reward + self.bonus) * (s is t.steps[-1])) for t in group.trajectories for s in t.steps]
            return [Credit(step_id=s.id, advantages=broadcast(a, len(s.response_ids))) for s, a in steps]

        return Algorithm(name="last-step-only", assign=assign, objective=Objective())
'''


def test_an_algorithm_in_a_file_of_ones_own_works_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN_ALGORITHM)
    chosen = component_config(ALGORITHMS, AlgorithmConfig, {"use": f"{file}:LastStepOnly", "bonus": 2})
    credit = assign(chosen.build(), make_group(make_trajectory("t", [1, 2], [0.5, 0.5])))
    assert credit["t-0"].advantages.tolist() == [0.0]
    assert credit["t-1"].advantages.tolist() == [3.0, 3.0]
    with pytest.raises(ConfigError, match="did you mean 'bonus'"):
        component_config(ALGORITHMS, AlgorithmConfig, {"use": f"{file}:LastStepOnly", "bonis": 2})


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("{folder}/nowhere.py:Own", "cannot import"),
        ("{folder}/own.py:Missing", "not a subclass"),
        ("stepwell.config:Config", "not a subclass"),
        ("no_such_module:Own", "cannot import"),
    ],
)
def test_a_class_that_is_no_algorithm_is_refused(tmp_path: Path, use: str, message: str) -> None:
    (tmp_path / "own.py").write_text(OWN_ALGORITHM)
    with pytest.raises(ConfigError, match=message):
        component_config(ALGORITHMS, AlgorithmConfig, {"use": use.format(folder=tmp_path)})
