"""What RTPO costs beside GRPO: wall time of one round over the same prompts, with as many optimiser steps.

The shape is the paper's (arXiv 2608.18682, section 5: three turns; 16 trajectories per prompt for GRPO; 4 trunks per
prompt and two siblings at each turn of a trunk for RTPO), on the three-turn lookup task and its small model. A round of
GRPO is one update in three optimiser steps; a round of RTPO is the trunks and three updates, one for each turn, each
followed by new weights. Each trains in a process of its own, and they take turns, so that whatever else the machine
does slows both down.
"""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

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
_SPAWN = multiprocessing.get_context("spawn")
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
        return list(_rows(*_taking_turns(grpo, rtpo, Path(folder), rounds)))


def _taking_turns(grpo: RecipeConfig, rtpo: RecipeConfig, folder: Path, rounds: int) -> Sequence[Course]:
    """A round of one, a round of the other."""
    processes, pipes = [], []
    for recipe, updates_per_round in ((grpo, 1), (rtpo, TURNS)):
        pipe, end = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_train, args=(recipe, folder / recipe.name, updates_per_round, end))
        process.start()
        processes.append(process)
        pipes.append(pipe)
    for pipe in pipes:
        pipe.recv()  # the warm-up is over
    made: list[list[Sequence[UpdateInfo]]] = [[], []]
    for _ in track(range(rounds), "Measuring", console=Console(stderr=True)):
        for pipe, own in zip(pipes, made, strict=True):
            pipe.send(True)
            own.append(pipe.recv())
    courses = []
    for pipe, process, own in zip(pipes, processes, made, strict=True):
        pipe.send(False)
        courses.append(Course(own, pipe.recv()))
        process.join()
    return courses


def _train(recipe: RecipeConfig, folder: Path, updates_per_round: int, pipe: Connection) -> None:
    """A round for each True that comes through the pipe; at the end, what the pool has come to."""
    torch.set_num_threads(1)

    async def rounds(run: TrainingRun) -> None:
        async with aclosing(run.updates()) as going:
            while pipe.recv():
                pipe.send([await anext(going) for _ in range(updates_per_round)])

    with training_run(recipe, folder) as run:
        pipe.send(None)
        asyncio.run(rounds(run))
        pipe.send(run.served.pool.stats())


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
    main("RTPO beside GRPO", measure)
