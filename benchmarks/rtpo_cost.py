"""What RTPO costs beside GRPO: wall time of one round over the same prompts, with as many optimiser steps.

The shape is the paper's (arXiv 2608.18682, section 5: three turns; 16 trajectories per prompt for GRPO; 4 trunks per
prompt and two siblings at each turn of a trunk for RTPO), on the three-turn lookup task and its small model. A round of
GRPO is one update in three optimiser steps; a round of RTPO is the trunks and three updates, one for each turn, each
followed by new weights. One trains after the other, as the dashboard allows a process one gateway.
"""

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.rtpo_cost
from report import Row, main

from stepwell.cli.config import RecipeConfig
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import TrainingRun, training_run
from stepwell.config import load_config
from stepwell.pool.base import PoolStats
from stepwell.types import UpdateInfo

TURNS = 3
GRPO_GROUP = 16
TRUNKS, SIBLINGS = 4, 2
_SHARED = ("trainer.stop_at_reward=null", "trainer.updates=1000000", "trainer.checkpoint_every=1000000")


@dataclass(frozen=True)
class Course:
    """What one algorithm's training took."""

    rounds: Sequence[Sequence[UpdateInfo]]
    stats: PoolStats

    def seconds(self, name: str) -> float:
        """Median over the rounds, without the first."""
        return statistics.median(sum(dict(u.metrics)[name] for u in each) for each in self.rounds[1:])


def measure(quick: bool) -> Sequence[Row]:
    prompts, rounds, warmup = (2, 3, 20) if quick else (8, 12, 110)
    with tempfile.TemporaryDirectory() as folder:
        grpo = _recipe(
            "grpo",
            warmup,
            f"rollout.group_size={GRPO_GROUP}",
            f"trainer.groups_per_update={prompts}",
            f"learner.minibatch_steps={prompts * GRPO_GROUP}",
        )
        rtpo = _recipe(
            "rtpo",
            warmup,
            f"rollout.group_size={SIBLINGS}",
            f"trainer.groups_per_update={prompts * TRUNKS}",
            f"algorithm.trunks={TRUNKS}",
        )
        courses = [_course(recipe, Path(folder), rounds, n) for recipe, n in ((grpo, 1), (rtpo, TURNS))]
        return list(_rows(*courses))


def _course(recipe: RecipeConfig, folder: Path, rounds: int, updates_per_round: int) -> Course:
    async def trained(run: TrainingRun) -> list[list[UpdateInfo]]:
        async with aclosing(run.updates()) as going:
            return [[await anext(going) for _ in range(updates_per_round)] for _ in range(rounds)]

    with training_run(recipe, folder / recipe.name) as run:
        return Course(asyncio.run(trained(run)), run.served.pool.stats())


def _rows(grpo: Course, rtpo: Course) -> Sequence[Row]:
    both = (("GRPO", grpo), ("RTPO", rtpo))
    whole = {name: course.seconds("seconds_collect") + course.seconds("seconds_learn") for name, course in both}
    rows = [
        Row(name=f"{name}, {what} of a round, median", value=course.seconds(metric), unit="s")
        for name, course in both
        for what, metric in (("collecting", "seconds_collect"), ("learning", "seconds_learn"))
    ]
    turns = {name: course.stats.steps / len(course.rounds) for name, course in both}
    tokens = {name: course.stats.response_tokens / len(course.rounds) for name, course in both}
    skipped = sum(count for _, count in rtpo.stats.groups_dropped) / len(rtpo.rounds)
    return [
        *rows,
        *(Row(name=f"{name}, turns sampled per round", value=value, unit="turns") for name, value in turns.items()),
        Row(name="RTPO, groups per round whose siblings were alike", value=skipped, unit="groups"),
        Row(name="RTPO / GRPO, turns sampled", value=turns["RTPO"] / turns["GRPO"], unit="x"),
        Row(name="RTPO / GRPO, tokens sampled", value=tokens["RTPO"] / tokens["GRPO"], unit="x"),
        Row(name="RTPO / GRPO, wall time of a round", value=whole["RTPO"] / whole["GRPO"], unit="x", goal=1.15),
    ]


def _recipe(algorithm: str, warmup: int, *settings: str) -> RecipeConfig:
    chosen = (f"name={algorithm}", f"algorithm.use={algorithm}", f"warmup.updates={warmup}", *_SHARED, *settings)
    return load_config(RecipeConfig, find_recipe("lookup"), chosen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("RTPO beside GRPO", measure)
