"""What it costs to run in several processes, and what it brings: time per update, of a publish, and by workers.

The lookup task and its small model, where sampling takes little and all else weighs most. Each layout makes the same
updates of as many trajectories; the first is not counted, as processes start and caches fill.
"""

import asyncio
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.modes
from report import Row, main

from stepwell.cli.config import RecipeConfig
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import training_run
from stepwell.config import load_config

WORKERS = (1, 2, 4)


@dataclass(frozen=True)
class Course:
    """Medians over the updates of a run but the first."""

    collect: float
    """Seconds of sampling."""
    learn: float
    publish: float
    trajectories: float
    """Per second of sampling."""

    @property
    def update(self) -> float:
        """Seconds of all of it."""
        return self.collect + self.learn + self.publish


def measure(quick: bool) -> Sequence[Row]:
    updates, groups, warmup = (3, 8, 10) if quick else (12, 32, 110)
    workers = WORKERS[:2] if quick else WORKERS
    ways = [("inline", 1), *(("local", count) for count in workers)]
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed, so its rows are left out: pip install 'stepwell[ray]'", file=sys.stderr)
    else:
        ways.append(("ray", 1))
    console = Console(stderr=True)
    courses = {way: _course(*way, updates, groups, warmup) for way in track(ways, "Measuring", console=console)}
    inline = courses["inline", 1]
    apart = [(mode, courses[mode, 1]) for mode, count in ways[1:] if count == 1]
    return [
        Row(name="inline: an update", value=inline.update, unit="s"),
        *(Row(name=f"{mode}, 1 worker: an update", value=one.update, unit="s") for mode, one in apart),
        *(Row(name=f"{mode} / inline, an update", value=one.update / inline.update, unit="x") for mode, one in apart),
        *(Row(name=f"{mode}: a publish, checked", value=one.publish, unit="s") for mode, one in apart),
        *(
            Row(
                name=f"local, {count} worker{'s' if count > 1 else ''}: trajectories per second",
                value=courses["local", count].trajectories,
                unit="1/s",
                better="higher",
            )
            for count in workers
        ),
        Row(name="inline: trajectories per second", value=inline.trajectories, unit="1/s", better="higher"),
    ]


def _course(mode: str, workers: int, updates: int, groups: int, warmup: int) -> Course:
    changes = (
        f"mode={mode}",
        f"rollout.workers={workers}",
        f"trainer.updates={updates}",
        f"trainer.groups_per_update={groups}",
        f"trainer.checkpoint_every={updates}",
        "trainer.stop_at_reward=null",
        f"warmup.updates={warmup}",
    )
    recipe = load_config(RecipeConfig, find_recipe("lookup"), changes)
    with tempfile.TemporaryDirectory() as folder, training_run(recipe, Path(folder) / "run") as run:
        made = [dict(update.metrics) for update in asyncio.run(run.train())][1:]
    collect = statistics.median(m["seconds_collect"] for m in made)
    return Course(
        collect=collect,
        learn=statistics.median(m["seconds_learn"] for m in made),
        publish=statistics.median(m["seconds_publish"] for m in made),
        trajectories=groups * recipe.rollout.group_size / collect,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("One process and several", measure)
