"""What an agent did, in the numbers that papers report: turns, tool calls, tokens, time, by kind of task too."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from stepwell.rollout.run import Ending


@runtime_checkable
class Typed(Protocol):
    """A task set whose tasks are of several kinds."""

    def task_type(self, task_id: str) -> str:
        """The kind of a task."""
        ...


def statistics(endings: Sequence[Ending], task_type: Callable[[str], str] | None = None) -> dict[str, float]:
    """Means over the trajectories that did not fail, by name; nothing of none.

    `tool_calls_per_trajectory`, `valid_call_rate` (where anything was called), `prompt_tokens_per_trajectory`,
    `response_tokens_per_trajectory`, `sampled_tokens` (their sum, of failed ones too), `seconds_policy` and
    `seconds_environment` per trajectory, `failed_rate`; with `task_type`, the mean reward of each kind of task as
    `reward_of/KIND`.
    """
    played = [ending for ending in endings if ending.how != "failed"]
    if not played:
        return {}
    calls = sum(ending.tool_calls for ending in played)
    found = {
        "tool_calls_per_trajectory": calls / len(played),
        "prompt_tokens_per_trajectory": _mean(played, lambda ending: ending.prompt_tokens),
        "response_tokens_per_trajectory": _mean(played, lambda ending: ending.response_tokens),
        "sampled_tokens": float(sum(ending.response_tokens for ending in endings)),
        "seconds_policy": _mean(played, lambda ending: ending.policy_seconds),
        "seconds_environment": _mean(played, lambda ending: ending.environment_seconds),
        "failed_rate": 1 - len(played) / len(endings),
    }
    if calls:
        found["valid_call_rate"] = 1 - sum(ending.invalid_calls for ending in played) / calls
    return found | (_by_type(played, task_type) if task_type else {})


def _by_type(played: Sequence[Ending], task_type: Callable[[str], str]) -> dict[str, float]:
    kinds = [task_type(ending.task_id) for ending in played]
    of = {kind: [e for e, own in zip(played, kinds, strict=True) if own == kind] for kind in sorted(set(kinds))}
    return {f"reward_of/{kind}": _mean(endings, lambda ending: ending.reward) for kind, endings in of.items()}


def _mean(endings: Sequence[Ending], of: Callable[[Ending], float]) -> float:
    return sum(map(of, endings)) / len(endings)
