"""Whom `stepwell eval` evaluates, and how it has the items of a benchmark played."""

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.cli.collecting import Workplace, collecting
from stepwell.cli.parts import build_tasks, open_pool
from stepwell.cli.playing import PlayConfig
from stepwell.cli.run import served_model
from stepwell.config import load_config
from stepwell.errors import ConfigError, EnvironmentFailed
from stepwell.evaluation.items import ItemFile, item_of
from stepwell.pool.base import Pool
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import Collector, all_of
from stepwell.rollout.run import Ending, Nowhere
from stepwell.rollout.statistics import Typed

KEY: Final = "OPENAI_API_KEY"
"""The environment variable with the key of somebody else's server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who is evaluated: answers at a URL, for as long as it is open."""

    url: str
    """Without `/v1`."""
    model: str
    label: str
    """What tables call it: the model, with its policy version if it has one."""
    foreign: bool = False
    """Somebody else's server, of which nothing is recorded."""
    pool: Pool


@contextmanager
def local_target(model: str | None, run: Path | None, settings: Sequence[str], folder: Path) -> Iterator[Target]:
    """A model of this machine, behind a gateway of our own; its steps land in `folder`'s pool."""
    # torch comes with these, and evaluating a server needs none
    from stepwell.cli.assembly import load_policy, serve_policy  # noqa: PLC0415
    from stepwell.cli.config import RecipeConfig  # noqa: PLC0415
    from stepwell.cli.run_folder import read_recipe  # noqa: PLC0415
    from stepwell.policy.weights import load_newest  # noqa: PLC0415

    chosen = [*([f"policy.model={model}"] if model else ()), *settings]
    recipe = read_recipe(run, chosen) if run else load_config(RecipeConfig, None, chosen)
    policy, renderer = load_policy(recipe)
    if run is not None:
        load_newest(run, policy)
    label = f"{run.resolve().name} v{policy.version}" if run else policy.name
    with (
        open_pool(folder / "pool.sqlite", make=True) as pool,
        serve_policy(recipe, policy, renderer, pool) as serving,
    ):
        yield Target(url=serving.url, model=policy.name, label=label, pool=pool)


@contextmanager
def served_target(url: str, model: str | None, folder: Path) -> Iterator[Target]:
    """A server that speaks OpenAI's chat completions; None: the first model that it serves."""
    url = url.rstrip("/").removesuffix("/v1")
    name = model or served_model(url, os.environ.get(KEY))
    with open_pool(folder / "pool.sqlite", make=True) as pool:
        yield Target(url=url, model=name, label=name, foreign=True, pool=pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be played."""

    play: PlayConfig
    """The benchmark's environment, and how the agent asks."""
    split: str
    limit: int | None
    """At most so many tasks, the first of the split."""
    samples: int
    """Trajectories of each task."""

    def settings(self, target: Target) -> dict[str, Any]:
        """What must be the same for items to belong together; how many there are of them may grow."""
        agent = self.play.agent
        return {
            "model": target.label,
            "server": target.url if target.foreign else "",
            "split": self.split,
            "environment": dict(self.play.environment),
            "temperature": agent.temperature,
            "max_tokens": agent.max_tokens,
            "max_turns": self.play.rollout.max_turns,
            "context": self.play.rollout.context.model_dump(mode="json"),
            "rewards": [dict(reward) for reward in self.play.rewards],
        }


def wanted_tasks(wanted: Wanted, tasks: TaskSet) -> Sequence[str]:
    """The tasks. Raises ConfigError if the split is empty."""
    names = tasks.tasks(wanted.split)[: wanted.limit]
    if not names:
        raise ConfigError(f"the split {wanted.split!r} of {tasks.name} has no tasks: try --split train")
    return names


async def play(target: Target, wanted: Wanted, file: ItemFile, heard: Callable[[], None]) -> list[Ending]:
    """Play what the file lacks, and add it; gives the endings of what could not be played, which are not added.

    Something around the agent failed there, more than `rollout.max_failures` times: that says nothing of the policy, so
    it is no item, and the next call tries it again.
    """
    tasks = build_tasks(wanted.play.environment)
    kind = tasks.task_type if isinstance(tasks, Typed) else lambda _: ""
    done = {(item.task, item.sample) for item in file.items}
    missing = [
        (task, sample)
        for sample in range(wanted.samples)
        for task in wanted_tasks(wanted, tasks)
        if (task, sample) not in done
    ]
    async with _collector(target, wanted.play, tasks) as collector:

        async def one(task: str, sample: int) -> Ending | None:
            ending = await _tried(collector, task, _seed(task, sample))
            heard()
            if ending.how == "failed" and ending.retry:
                return ending
            file.add(item_of(ending, sample, kind(task)))
            return None

        endings = await all_of([one(task, sample) for task, sample in missing])
    return [ending for ending in endings if ending is not None]


async def _tried(collector: Collector, task: str, seed: int) -> Ending:
    for _ in range(collector.config.max_failures):
        ending = await collector.trial(task, seed)
        if ending.how != "failed" or not ending.retry:
            return ending
    return await collector.trial(task, seed)


@asynccontextmanager
async def _collector(target: Target, config: PlayConfig, tasks: TaskSet) -> AsyncIterator[Collector]:
    if target.foreign and config.rewards:
        raise ConfigError("rewards read what was recorded, and of somebody else's server nothing is: leave them out")
    place = Workplace(
        recipe=config,
        tasks=tasks,
        url=target.url,
        model=target.model,
        key=os.environ.get(KEY, "unused") if target.foreign else "unused",
        foreign=target.foreign,
        pool=target.pool,
    )
    async with collecting(place, log=Nowhere() if target.foreign else None) as collector:
        yield collector


def _seed(task: str, sample: int) -> int:
    """The environment's, the same for every model and whatever was played before."""
    return int.from_bytes(hashlib.sha256(f"{task}\n{sample}".encode()).digest()[:4], "big") >> 1


def needs_all_played(failed: Sequence[Ending]) -> None:
    """Raise EnvironmentFailed if something could not be played."""
    if failed:
        raise EnvironmentFailed(
            f"{len(failed)} items could not be played, the last: {failed[-1].why}; what was played is kept, and the "
            "same command tries the others again"
        )
