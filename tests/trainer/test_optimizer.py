import pytest

from stepwell.config import load_config
from stepwell.errors import ConfigError
from stepwell.trainer.optimizer import OptimizerConfig, schedule_share, set_learning_rates
from tests.policy.tiny import tiny_policy
from tests.trainer.builders import make_learner


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_updates": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear", "schedule_updates": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        ({"schedule": "linear", "schedule_updates": 4, "schedule_end": 0.5}, [1, 0.875, 0.75, 0.625, 0.5, 0.5]),
        ({"schedule": "cosine", "schedule_updates": 4}, [1, 0.853553, 0.5, 0.146447, 0, 0]),
        ({"schedule": "linear", "warmup_updates": 2, "schedule_updates": 4}, [0.5, 1, 1, 0.5, 0, 0]),
    ],
)
def test_the_learning_rate_rises_and_falls_by_the_schedule(settings: dict, shares: list[float]) -> None:
    config = OptimizerConfig(**settings)
    assert [schedule_share(config, update) for update in range(6)] == pytest.approx(shares, abs=1e-6)


def test_policy_and_critic_follow_the_same_schedule_from_rates_of_their_own() -> None:
    learner = make_learner(tiny_policy(), lr=1e-2, critic_lr=1e-1, warmup_updates=2)
    assert set_learning_rates(learner.optimizer, learner.config, 0) == pytest.approx(5e-3)
    assert [group["lr"] for group in learner.optimizer.param_groups] == pytest.approx([5e-3, 5e-2])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["schedule=cosine"], "needs schedule_updates"),
        (["schedule=linear", "warmup_updates=4", "schedule_updates=4"], "after the 4 of warmup_updates"),
        (["betas=[0.9, 1.0]"], r"betas\.1: .* less than 1"),
        (["betas=[-0.1, 0.9]"], r"betas\.0: .* greater than or equal to 0"),
    ],
)
def test_settings_that_contradict_each_other_or_adamw_are_refused(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_config(OptimizerConfig, None, settings)
