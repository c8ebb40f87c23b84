"""A training run: everything that `stepwell train` and `stepwell demo` have in common."""

import fcntl
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from stepwell.algorithms.base import Algorithm, Language
from stepwell.cli.assembly import (
    Served,
    build_algorithm,
    load_policy,
    model_name,
    serve_policy,
    warm_up,
)
from stepwell.cli.config import RecipeConfig
from stepwell.cli.parts import POOL_FILE, RECIPE_FILE, build_tasks, open_pool
from stepwell.cli.serving import check_port
from stepwell.config import load_config
from stepwell.engines.base import Engine, ReportsCache
from stepwell.errors import InvalidRequest, NotFound
from stepwell.policy.builtin import resolve_model
from stepwell.rendering.actions import action_mask
from stepwell.rendering.renderer import Renderer
from stepwell.rollout.agent import ChatAgent
from stepwell.rollout.blackbox import Place, player_of
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending
from stepwell.rollout.siblings import SiblingCollector
from stepwell.rollout.statistics import Typed, statistics
from stepwell.trainer.collate import MicroBatch
from stepwell.trainer.loop import Run, Trainer
from stepwell.trainer.update import Learner
from stepwell.types import Ids, UpdateInfo


@dataclass(slots=True)
class Progress:
    """Whom a run tells how far it is. The defaults tell nobody."""

    on_phase: Callable[[str, int], None] = lambda *_: None
    """A phase of `total` units begins."""
    on_unit: Callable[[], None] = lambda: None
    """One unit of it is done."""
    on_update: Callable[[UpdateInfo], None] = lambda *_: None
    on_micro_batch: Callable[[MicroBatch], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A served policy with what trains it."""

    recipe: RecipeConfig
    folder: Path
    served: Served
    tasks: TaskSet
    trainer: Trainer
    algorithm: Algorithm
    progress: Progress = field(default_factory=Progress)

    async def train(self) -> list[UpdateInfo]:
        """Update until the recipe's last version; resumable after any interruption."""
        self.progress.on_phase("train", max(self.recipe.trainer.updates - self.served.policy.version, 0))
        updates = []
        async for update in self.updates():
            updates.append(update)
            self.progress.on_update(update)
            self.progress.on_unit()
        return updates

    async def updates(self) -> AsyncGenerator[UpdateInfo, None]:
        """The updates, one by one, each when it is asked for."""
        endings: list[Ending] = []
        cache_hits = _cache_hits(self.served.engine)
        task_type = self.tasks.task_type if isinstance(self.tasks, Typed) else None

        def measured() -> dict[str, float]:
            told = cache_hits() | statistics(endings, task_type)
            endings.clear()
            return told

        async with self._collector(self.recipe.agent.temperature, endings.append) as collector:
            plan = self.algorithm.siblings
            siblings = SiblingCollector(collector, plan) if plan is not None else None

            async def collect(count: int, held: Sequence[str]) -> int:
                if siblings is not None:
                    return await siblings.collect(self._missing_tasks(held), count)
                return await collector.collect_groups(self._missing_tasks(held), count, self.recipe.rollout.group_size)

            async for update in self.trainer.updates(collect, measured):
                yield update

    async def evaluate(self, task_ids: Sequence[str], temperature: float) -> list[Ending]:
        """One held-out trajectory per task, by the policy as it is now."""
        self.progress.on_phase(f"evaluate v{self.served.policy.version}, T={temperature:g}", len(task_ids))
        async with self._collector(temperature, lambda _: self.progress.on_unit()) as collector:
            return await collector.evaluate(task_ids)

    def _missing_tasks(self, held: Sequence[str]) -> Iterator[str]:
        """The tasks of the next update but those `held`, and then those after. All updates' tasks are one endless order
        of the seed's, so a resumed run goes on where it stopped, and a task of which a group was ready by then is not
        sampled again."""
        tasks = list(self.tasks.tasks("train"))
        order = np.random.default_rng(self.recipe.seed).permutation(len(tasks))
        endless = itertools.cycle(tasks[i] for i in order)
        size = self.recipe.trainer.groups_per_update
        start = self.served.policy.version * size
        due = list(itertools.islice(endless, start, start + size))
        for task in held:
            if task in due:  # else somebody else's choice
                due.remove(task)
        return itertools.chain(due, endless)

    @asynccontextmanager
    async def _collector(
        self, temperature: float, on_ending: Callable[[Ending], None] = lambda _: None
    ) -> AsyncIterator[Collector]:
        config = self.recipe.agent.model_copy(update={"temperature": temperature})
        async with ChatAgent(self.served.url, self.served.policy.name, config) as agent:
            pool = self.served.pool
            place = Place(gateway_url=self.served.url, model=self.served.policy.name, log=pool, read=pool.trajectory)
            yield Collector(
                player_of(self.tasks, agent, place, self.recipe.rollout),
                log=pool,
                config=self.recipe.rollout,
                channel=self.recipe.name,
                on_ending=on_ending,
            )


def _cache_hits(engine: ReportsCache) -> Callable[[], dict[str, float]]:
    """Asked again and again, gives the hit rate of the engine's prefix cache since the last time."""
    before = engine.cache_use

    def since() -> dict[str, float]:
        nonlocal before
        now = engine.cache_use
        use, before = now.since(before), now
        return {"prefix_cache_hit_rate": use.hit_rate} if use.prompt_tokens else {}

    return since


@contextmanager
def training_run(
    recipe: RecipeConfig,
    folder: Path,
    progress: Progress | None = None,
    *,
    port: int = 0,
    pool: Path | None = None,
    watch: Callable[[Engine], Engine] | None = None,
) -> Iterator[TrainingRun]:
    """Set a run up in `folder`, or take it up again where it stands there.

    `folder` holds `recipe.yaml` (as resolved), `checkpoints/` and, unless another `pool` is named, `pool.sqlite`.
    `watch` may wrap the engine that the gateway serves.
    """
    progress = progress or Progress()
    check_port(port)
    tasks = build_tasks(recipe.environment)
    algorithm = build_algorithm(recipe)
    policy, renderer = load_policy(recipe)
    with _sole_use_of(folder), open_pool(pool or folder / POOL_FILE, make=True) as opened:
        learner = Learner(policy, recipe.learner)
        language = Language(tokenize=renderer.encode, action_mask=partial(action_mask, renderer))
        run = Run(name=recipe.name, folder=folder, pool=opened)
        trainer = Trainer(run, learner, algorithm, recipe.trainer, progress.on_micro_batch, language)
        resumed = trainer.resume()
        write_recipe(recipe, folder)  # only now: settings that do not fit the checkpoint must not replace those that do
        if not resumed and recipe.warmup.updates:
            progress.on_phase("warm up", recipe.warmup.updates)
            for _ in warm_up(policy, renderer, tasks, recipe.warmup):
                progress.on_unit()
            policy.begin_critic()
            trainer.save()
        with serve_policy(recipe, policy, renderer, opened, port=port, watch=watch) as serving:
            yield TrainingRun(
                recipe=recipe,
                folder=folder,
                served=serving,
                tasks=tasks,
                trainer=trainer,
                algorithm=algorithm,
                progress=progress,
            )


@contextmanager
def _sole_use_of(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other trainers out of it.

    Raises:
        InvalidRequest: it cannot be made, or another process trains in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise InvalidRequest(f"cannot write to {folder}: {error.strerror}; choose another with --folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system when the process dies
        except BlockingIOError as error:
            raise InvalidRequest(f"another process trains in {folder}; stop it, or choose another --folder") from error
        yield


def write_recipe(recipe: RecipeConfig, folder: Path) -> None:
    """Write the resolved recipe, so that the run can be taken up again by its folder alone."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    (folder / RECIPE_FILE).write_text(text, encoding="utf-8")


def read_recipe(folder: Path, overrides: Sequence[str] = ()) -> RecipeConfig:
    """The recipe of a run that exists. Raises NotFound."""
    if not (folder / RECIPE_FILE).exists():
        raise NotFound(f"{folder} holds no run: it has no {RECIPE_FILE}")
    return load_config(RecipeConfig, folder / RECIPE_FILE, overrides)


def fresh_folder(base: Path, name: str) -> Path:
    """`base/<name>-<time>`, not made yet."""
    folder = base / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists():
        raise InvalidRequest(f"{folder} exists already; wait a second, or choose one with --folder")
    return folder


def point_latest_at(folder: Path) -> None:
    """Make `latest`, beside a run that has been set up, lead to it."""
    latest = folder.parent / "latest"
    if latest.is_symlink() or not latest.exists():
        latest.unlink(missing_ok=True)
        latest.symlink_to(folder.name)


def decoders_of_runs(folder: Path) -> dict[str, Callable[[Ids], str]]:
    """By model name: token ids to text, for the run in `folder` and those in its subfolders (a demo has two)."""
    folders = [p for p in (folder, *sorted(folder.iterdir())) if (p / RECIPE_FILE).is_file()]
    recipes = [read_recipe(p) for p in folders]
    return {
        model_name(recipe): Renderer.from_directory(resolve_model(recipe.policy.model, recipe.seed)).decode
        for recipe in recipes
    }
