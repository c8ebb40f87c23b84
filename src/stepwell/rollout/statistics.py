"""What agents did, in the numbers that papers report: turns, tool calls, tokens, time, by kind of task too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from stepwell.rollout.run import Ending


@runtime_checkable
class Typed(Protocol):
    """A task set whose tasks are of several kinds."""

    def task_type(self, task_id: str) -> str:
        """The kind of a task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What some trajectories came to. Means are over those that did not fail."""

    trajectories: int
    """That did not fail: at least one."""
    failed: int
    reward: float
    turns: float
    tool_calls: float
    valid_call_rate: float | None
    """Share of the calls that the environment understood; None where nothing was called."""
    prompt_tokens: float
    """Of all turns, each with its whole prompt."""
    response_tokens: float
    seconds_policy: float
    seconds_environment: float
    seconds_judge: float


def summary(endings: Sequence[Ending]) -> Summary | None:
    """The summary of these trajectories; None if all of them failed."""
    played = [ending for ending in endings if ending.how != "failed"]
    if not played:
        return None

    def mean(of: Callable[[Ending], float]) -> float:
        return sum(map(of, played)) / len(played)

    calls = sum(ending.tool_calls for ending in played)
    return Summary(
        trajectories=len(played),
        failed=len(endings) - len(played),
        reward=mean(lambda ending: ending.reward),
        turns=mean(lambda ending: ending.turns),
        tool_calls=calls / len(played),
        valid_call_rate=1 - sum(ending.invalid_calls for ending in played) / calls if calls else None,
        prompt_tokens=mean(lambda ending: ending.prompt_tokens),
        response_tokens=mean(lambda ending: ending.response_tokens),
        seconds_policy=mean(lambda ending: ending.policy_seconds),
        seconds_environment=mean(lambda ending: ending.environment_seconds),
        seconds_judge=mean(lambda ending: ending.judge_seconds),
    )


def by_type(endings: Sequence[Ending], task_type: Callable[[str], str]) -> dict[str, Summary]:
    """By kind of task, in alphabetical order: the summary of its trajectories; none of a kind that only failed."""
    kinds = [task_type(ending.task_id) for ending in endings]
    of = {kind: [e for e, own in zip(endings, kinds, strict=True) if own == kind] for kind in sorted(set(kinds))}
    found = {kind: summary(own) for kind, own in of.items()}
    return {kind: told for kind, told in found.items() if told is not None}


def statistics(endings: Sequence[Ending], task_type: Callable[[str], str] | None = None) -> dict[str, float]:
    """A summary as metrics of an update, by name; nothing if all failed.

    `turns_per_trajectory`, `tool_calls_per_trajectory`, `valid_call_rate` (where anything was called),
    `prompt_tokens_per_trajectory`, `response_tokens_per_trajectory` with its median and 90th percentile,
    `offered_tokens_p50` and `offered_tokens_p90`, `sampled_tokens` (the sum of all responses, of failed trajectories
    too), `seconds_policy`, `seconds_environment` and `seconds_judge` per trajectory, `failed_rate`; with `task_type` of
    each kind of task `trajectories_of/KIND`, and `reward_of/KIND`, `turns_of/KIND` and so on.
    """
    told = summary(endings)
    if told is None:
        return {}
    lengths = [ending.response_tokens for ending in endings if ending.how != "failed"]
    found = {
        "turns_per_trajectory": told.turns,
        "tool_calls_per_trajectory": told.tool_calls,
        "prompt_tokens_per_trajectory": told.prompt_tokens,
        "response_tokens_per_trajectory": told.response_tokens,
        "offered_tokens_p50": float(np.percentile(lengths, 50)),
        "offered_tokens_p90": float(np.percentile(lengths, 90)),
        "sampled_tokens": float(sum(ending.response_tokens for ending in endings)),
        "seconds_policy": told.seconds_policy,
        "seconds_environment": told.seconds_environment,
        "seconds_judge": told.seconds_judge,
        "failed_rate": told.failed / len(endings),
    }
    if told.valid_call_rate is not None:
        found["valid_call_rate"] = told.valid_call_rate
    kinds = by_type(endings, task_type) if task_type else {}
    return found | {name: value for kind, own in kinds.items() for name, value in _of_kind(kind, own).items()}


def _of_kind(kind: str, told: Summary) -> dict[str, float]:
    found = {
        "trajectories": float(told.trajectories),
        "reward": told.reward,
        "turns": told.turns,
        "tool_calls": told.tool_calls,
        "response_tokens": told.response_tokens,
        "seconds_policy": told.seconds_policy,
        "seconds_environment": told.seconds_environment,
    }
    if told.valid_call_rate is not None:
        found["valid_call_rate"] = told.valid_call_rate
    return {f"{name}_of/{kind}": value for name, value in found.items()}
