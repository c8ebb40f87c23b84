"""Asynchronous beside synchronous training, for real: the lookup task with tools that take heavy-tailed time.

The same recipe, model and tasks, at equal updates; only `trainer.max_staleness` differs. Each call of a tool sleeps for
a time that its task decides, so that all runs wait for the same tools. What asynchrony does to learning is beside what
it does to time: success over the last updates, which are as many trajectories for each.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.async_train
from report import Row, main

from stepwell.cli.config import RecipeConfig
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import training_run
from stepwell.config import load_config
from stepwell.environments.lookup import Lookup, LookupConfig, LookupTasks
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Environment, Outcome, TaskSet

STALENESS = (1, 2, 4)
_LAST = 5
"""Updates over which success is averaged."""


class SlowLookupConfig(LookupConfig):
    """The lookup task, whose tools take a lognormal time."""

    median: float = 0.3
    """Seconds of a call."""
    sigma: float = 1.25
    """Deviation of their logarithm: one call in a hundred takes eighteen times the median."""

    def build(self) -> TaskSet:
        """The task set with these settings."""
        return SlowLookupTasks(self)


class SlowLookupTasks(LookupTasks):
    """As `LookupTasks`."""

    def __init__(self, config: SlowLookupConfig) -> None:
        super().__init__(config)
        self._slow = config

    def make(self) -> Environment:
        """A fresh episode."""
        return SlowLookup(self._slow)


class SlowLookup:
    """One episode."""

    tools = Lookup.tools

    def __init__(self, config: SlowLookupConfig) -> None:
        self._slow = config
        self._lookup = Lookup(config.max_turns)
        self._random = random.Random()

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Begin the task, which decides how long its calls take."""
        self._random.seed(task_id)
        return self._lookup.reset(task_id, seed=seed)

    async def step(self, action: Message) -> Outcome:
        """Answer, after a while."""
        await asyncio.sleep(self._slow.median * self._random.lognormvariate(0, self._slow.sigma))
        return self._lookup.step(action)


@dataclass(frozen=True)
class Course:
    """One run."""

    seconds: float
    """From its first update's beginning to its last one's end."""
    reached: float
    """Mean reward of the last updates' trajectories."""
    staleness: float
    idle: float
    """Share of the time in which nothing was sampled."""
    waiting: float
    """Share of the time in which the trainer waited."""


def measure(quick: bool) -> Sequence[Row]:
    updates, groups, warmup, median = (4, 6, 10, 0.1) if quick else (60, 32, 110, 0.3)
    rows, courses = [], {}
    for staleness in (0, STALENESS[1]) if quick else (0, *STALENESS):
        courses[staleness] = course = _course(staleness, updates, groups, warmup, median)
        name = f"staleness {staleness}" if staleness else "synchronous"
        goal = 2.0 if staleness == STALENESS[1] else None
        rows += [
            Row(name=f"{name}: {updates} updates", value=course.seconds, unit="s"),
            Row(
                name=f"{name}: speed-up",
                value=courses[0].seconds / course.seconds,
                unit="x",
                goal=goal,
                better="higher",
            ),
            Row(name=f"{name}: mean reward of the last {_LAST} updates", value=course.reached, unit=""),
            Row(name=f"{name}: mean staleness", value=course.staleness, unit="updates"),
            Row(name=f"{name}: nothing sampled", value=100 * course.idle, unit="%"),
            Row(name=f"{name}: trainer waiting", value=100 * course.waiting, unit="%"),
        ]
    return rows


def _course(staleness: int, updates: int, groups: int, warmup: int, median: float) -> Course:
    changes = (
        f"environment.use={SlowLookupConfig.__module__}:{SlowLookupConfig.__name__}",
        f"environment.median={median}",
        f"trainer.max_staleness={staleness}",
        f"trainer.updates={updates}",
        f"trainer.groups_per_update={groups}",
        f"trainer.checkpoint_every={updates}",
        "trainer.stop_at_reward=null",
        f"warmup.updates={warmup}",
        "rollout.concurrency=256",
    )
    recipe = load_config(RecipeConfig, find_recipe("lookup"), changes)
    with tempfile.TemporaryDirectory() as folder, training_run(recipe, Path(folder) / "run") as run:
        start = time.perf_counter()
        metrics = [dict(update.metrics) for update in asyncio.run(run.train())]
        seconds = time.perf_counter() - start
    waited = sum(m["seconds_collect"] for m in metrics)
    idle = sum(m.get("seconds_rollout_idle", m["seconds_learn"]) for m in metrics)
    reached = float(np.mean([m["reward_mean"] for m in metrics[-_LAST:]]))
    return Course(
        seconds, reached, float(np.mean([m["staleness_mean"] for m in metrics])), idle / seconds, waited / seconds
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("Asynchronous training", measure)
