"""Training runs beside each other: what each came to, in which settings they differ, and how their agents acted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stepwell.dashboard.reading.updates import REWARD_METRIC, SAMPLED, UpdateLog, finite, measured
from stepwell.types import UpdateInfo

UNSET: Final = "not set"
_SEEDS: Final = ("seed", "name")
"""Settings, by the last part of their names, in which runs of one experiment may differ."""
RECENT: Final = 5
"""Updates over which tool use is averaged."""
USE: Final = (
    *("steps_per_trajectory", "turns_per_trajectory", "tool_calls_per_trajectory", "valid_call_rate"),
    *("prompt_tokens_per_trajectory", "response_tokens_per_trajectory", "failed_rate"),
)
"""Metrics of how agents acted; those of one kind of task are called `…_of/KIND` instead."""
_OF_KIND: Final = {
    "turns_per_trajectory": "turns",
    "tool_calls_per_trajectory": "tool_calls",
    "valid_call_rate": "valid_call_rate",
    "response_tokens_per_trajectory": "response_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run."""

    run: str
    updates: int
    version: int
    last: float | None
    """Mean reward of the newest update; None if it did not say."""
    best: float | None
    tokens: float | None
    """Sampled for all updates together; None if nobody counted."""
    seconds: float
    """That its updates took, rollouts included."""
    first_at: float
    """Unix time in seconds."""
    last_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How the agents of one run acted lately, all of them or those with one kind of task."""

    run: str
    kind: str
    """Of task; empty: all."""
    figures: Mapping[str, float]
    """By the names of `USE`, those that were measured."""


def summaries(log: UpdateLog) -> list[RunSummary]:
    """One line per run, those with the newest updates first."""
    return [_summary(run, log.of(run)) for run in log.runs]


def _summary(run: str, updates: Sequence[UpdateInfo]) -> RunSummary:
    metrics = [finite(update) for update in updates]
    rewards = [own[REWARD_METRIC] for own in metrics if REWARD_METRIC in own]
    sampled = [own[SAMPLED] for own in metrics if SAMPLED in own]
    seconds = ("seconds_collect", "seconds_learn", "seconds_publish")
    return RunSummary(
        run=run,
        updates=len(updates),
        version=updates[-1].policy_version,
        last=measured(updates[-1]).get(REWARD_METRIC),
        best=max(rewards, default=None),
        tokens=sum(sampled) if sampled else None,
        seconds=sum(own.get(name, 0.0) for own in metrics for name in seconds),
        first_at=min(update.created_at for update in updates),
        last_at=max(update.created_at for update in updates),
    )


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their dotted names, as text."""
    found: dict[str, str] = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = "null" if value is None else str(value)
    return found


def differences(recipes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """(setting, its value by run) of the settings in which these runs differ, by name."""
    settings = {run: flat(recipe) for run, recipe in recipes.items()}
    names = sorted({name for own in settings.values() for name in own})
    rows = [(name, {run: own.get(name, UNSET) for run, own in settings.items()}) for name in names]
    return [(name, values) for name, values in rows if len(set(values.values())) > 1]


def seeds(runs: Sequence[str], recipes: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The runs, together where their recipes differ only in their seed; one whose recipe is unknown is by itself."""
    together: dict[object, list[str]] = {}
    for run in runs:
        known = flat(recipes[run]) if run in recipes else {}
        same = frozenset((n, value) for n, value in known.items() if n.rpartition(".")[2] not in _SEEDS)
        together.setdefault(same or run, []).append(run)
    return list(together.values())


def tool_use(log: UpdateLog, runs: Sequence[str]) -> list[Use]:
    """How agents acted, on average over each run's last updates: all of them, then by kind of task."""
    lines = []
    for run in runs:
        recent = [finite(update) for update in log.of(run)[-RECENT:]]
        kinds = sorted({name.partition("/")[2] for own in recent for name in own if name.startswith("turns_of/")})
        lines += [Use(run=run, kind=kind, figures=_figures(recent, kind)) for kind in ("", *kinds)]
    return [line for line in lines if line.figures]


def _figures(recent: Sequence[Mapping[str, float]], kind: str) -> dict[str, float]:
    names = {f"{part}_of/{kind}": name for name, part in _OF_KIND.items()} if kind else {name: name for name in USE}
    told = {name: [own[metric] for own in recent if metric in own] for metric, name in names.items()}
    return {name: sum(values) / len(values) for name, values in told.items() if values}
