"""How old what an update trains on is, in updates and in optimiser steps."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepwell.types import Group, Step


def oldest(groups: Iterable[Group], otherwise: int) -> int:
    """The lowest policy version that sampled any of their steps; `otherwise` where they have none."""
    return min((step.policy_version_min for step in _steps(groups)), default=otherwise)


def fits(versions: Sequence[int], version: int, per_update: int, max_staleness: int) -> bool:
    """Whether groups of these versions can all be trained on in time, `per_update` at each from `version` on."""
    due = (version + place // per_update for place in range(len(versions)))
    return all(when - begun <= max_staleness for when, begun in zip(due, sorted(versions), strict=True))


def sampled_tokens(groups: Iterable[Group]) -> int:
    """That all their trajectories have together."""
    return sum(len(step.response_ids) for step in _steps(groups))


def staleness(groups: Sequence[Group], version: int) -> dict[str, float]:
    """How many updates before `version` each group was begun, and how many of their steps mix weights of several.

    `staleness_mean`, `staleness_max`, the histogram `staleness/AGE`, `mixed_version_rate`, and the median and the 90th
    percentile of the trajectories' sampled tokens, `trained_tokens_p50` and `trained_tokens_p90`.
    """
    ages = np.array([version - oldest([group], version) for group in groups])
    across = [step.policy_version_max > step.policy_version_min for step in _steps(groups)] or [False]
    tokens = [sum(len(step.response_ids) for step in t.steps) for group in groups for t in group.trajectories]
    return {
        "staleness_mean": float(ages.mean()),
        "staleness_max": float(ages.max()),
        **{f"staleness/{age}": float((ages == age).sum()) for age in range(int(ages.max()) + 1)},
        "mixed_version_rate": float(np.mean(across)),
        "trained_tokens_p50": float(np.percentile(tokens, 50)),
        "trained_tokens_p90": float(np.percentile(tokens, 90)),
    }


def lag(metrics: Mapping[str, float]) -> dict[str, float]:
    """`lag_mean`: optimiser steps between the policy that sampled and the one that each step changes, on average.

    With n optimiser steps in this update and in those before it: n times the staleness, and (n - 1)/2 within.
    """
    steps = metrics.get("optimizer_steps", 0.0)
    return {"lag_mean": steps * metrics["staleness_mean"] + max(steps - 1, 0) / 2}


def _steps(groups: Iterable[Group]) -> Iterable[Step]:
    return (step for group in groups for trajectory in group.trajectories for step in trajectory.steps)
