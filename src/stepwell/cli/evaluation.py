"""Held-out evaluation before and after, on the same tasks."""

import json
from collections.abc import Sequence
from pathlib import Path

from stepwell.cli.training import TrainingRun
from stepwell.rollout.statistics import Typed, statistics


async def evaluate_once(run: TrainingRun, label: str, task_ids: Sequence[str], temperature: float) -> list[float]:
    """Rewards of one trajectory per task; kept in the run's folder, so that a resumed run does not ask again.

    A trajectory that failed counts as 0: the policy did not solve the task, whatever the reason.
    """
    file = run.folder / f"evaluation-{label}.json"
    if file.exists():
        rewards: list[float] = json.loads(file.read_text(encoding="utf-8"))["rewards"]
        return rewards
    endings = await run.evaluate(task_ids, temperature)
    rewards = [ending.reward for ending in endings]
    facts = {"policy_version": run.served.policy.version, "temperature": temperature, "tasks": list(task_ids)}
    told = statistics(endings, run.tasks.task_type if isinstance(run.tasks, Typed) else None)
    _write(file, json.dumps(facts | {"rewards": rewards, "statistics": told}))
    return rewards


def _write(file: Path, text: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(file)
