"""What agents did, in numbers."""

import pytest

from stepwell.rollout.run import Ending
from stepwell.rollout.statistics import statistics


def ending(task: str = "a-1", how="terminated", **facts) -> Ending:
    return Ending(trajectory_id=task, task_id=task, how=how, **facts)


def test_nothing_is_told_of_no_trajectory_or_of_failures_alone() -> None:
    assert statistics([]) == {}
    assert statistics([ending(how="failed")]) == {}


def test_means_are_over_trajectories_that_did_not_fail_and_sampled_tokens_over_all() -> None:
    played = [
        ending(tool_calls=3, invalid_calls=1, prompt_tokens=10, response_tokens=4, policy_seconds=1.0),
        ending(tool_calls=1, prompt_tokens=20, response_tokens=6, environment_seconds=3.0),
        ending(how="failed", tool_calls=50, response_tokens=5),
    ]
    found = statistics(played)
    assert found == pytest.approx(
        {
            "tool_calls_per_trajectory": 2.0,
            "valid_call_rate": 0.75,
            "prompt_tokens_per_trajectory": 15.0,
            "response_tokens_per_trajectory": 5.0,
            "sampled_tokens": 15.0,
            "seconds_policy": 0.5,
            "seconds_environment": 1.5,
            "failed_rate": 1 / 3,
        }
    )


def test_agents_that_call_nothing_have_no_rate_of_valid_calls() -> None:
    assert "valid_call_rate" not in statistics([ending()])


def test_rewards_are_told_by_kind_of_task() -> None:
    endings = [ending("a-1", reward=1.0), ending("a-2"), ending("b-1", reward=0.25), ending("b-2", "failed")]
    found = statistics(endings, lambda task_id: task_id.partition("-")[0])
    assert {name: value for name, value in found.items() if "/" in name} == {"reward_of/a": 0.5, "reward_of/b": 0.25}
