"""What agents did, in numbers."""

import pytest

from stepwell.rollout.run import Ending
from stepwell.rollout.statistics import by_type, statistics


def ending(task: str = "a-1", how="terminated", **facts) -> Ending:
    return Ending(trajectory_id=task, task_id=task, how=how, **facts)


def test_nothing_is_told_of_no_trajectory_or_of_failures_alone() -> None:
    assert statistics([]) == {}
    assert statistics([ending(how="failed")]) == {}


def test_means_are_over_trajectories_that_did_not_fail_and_sampled_tokens_over_all() -> None:
    played = [
        ending(turns=4, tool_calls=3, invalid_calls=1, prompt_tokens=10, response_tokens=4, policy_seconds=1.0),
        ending(turns=2, tool_calls=1, prompt_tokens=20, response_tokens=6, environment_seconds=3.0),
        ending(how="failed", tool_calls=50, response_tokens=5),
    ]
    found = statistics(played)
    assert found == pytest.approx(
        {
            "turns_per_trajectory": 3.0,
            "tool_calls_per_trajectory": 2.0,
            "valid_call_rate": 0.75,
            "prompt_tokens_per_trajectory": 15.0,
            "response_tokens_per_trajectory": 5.0,
            "offered_tokens_p50": 5.0,
            "offered_tokens_p90": 5.8,
            "sampled_tokens": 15.0,
            "seconds_policy": 0.5,
            "seconds_environment": 1.5,
            "seconds_judge": 0.0,
            "failed_rate": 1 / 3,
        }
    )


def test_agents_that_call_nothing_have_no_rate_of_valid_calls() -> None:
    assert "valid_call_rate" not in statistics([ending()])


def kind(task_id: str) -> str:
    return task_id.partition("-")[0]


def test_each_kind_of_task_has_its_own_numbers_and_one_that_only_failed_has_none() -> None:
    endings = [
        ending("a-1", reward=1.0, turns=3, tool_calls=4, invalid_calls=1, response_tokens=10, policy_seconds=2.0),
        ending("a-2", turns=1, environment_seconds=1.0),
        ending("b-1", reward=0.25, turns=5),
        ending("b-2", "failed", turns=50),
        ending("c-1", "failed"),
    ]
    found = statistics(endings, kind)
    assert {name: value for name, value in found.items() if "/" in name} == {
        "trajectories_of/a": 2.0,
        "reward_of/a": 0.5,
        "turns_of/a": 2.0,
        "tool_calls_of/a": 2.0,
        "valid_call_rate_of/a": 0.75,
        "response_tokens_of/a": 5.0,
        "seconds_policy_of/a": 1.0,
        "seconds_environment_of/a": 0.5,
        "trajectories_of/b": 1.0,
        "reward_of/b": 0.25,
        "turns_of/b": 5.0,
        "tool_calls_of/b": 0.0,
        "response_tokens_of/b": 0.0,
        "seconds_policy_of/b": 0.0,
        "seconds_environment_of/b": 0.0,
    }
    told = by_type(endings, kind)
    assert [(name, own.trajectories, own.failed) for name, own in told.items()] == [("a", 2, 0), ("b", 1, 1)]
