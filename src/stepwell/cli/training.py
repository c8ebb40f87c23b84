"""A training run: everything that `stepwell train` and `stepwell demo` have in common."""

import itertools
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from stepwell.algorithms.base import Algorithm
from stepwell.cli.assembly import Served, load_policy
from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet.crew import Crew
from stepwell.cli.fleet.modes import MODES, Plan
from stepwell.cli.fleet.ranks import Desk, leading
from stepwell.cli.fleet.server import Write
from stepwell.cli.parts import POOL_FILE, build_tasks, open_pool
from stepwell.cli.run_folder import sole_use_of, write_recipe
from stepwell.cli.serving import check_port
from stepwell.cli.tracking import chosen_trackers
from stepwell.cli.tracking.base import tracked_run
from stepwell.cli.tracking.feed import tracking
from stepwell.cli.upstreams import upstream_config
from stepwell.engines.base import Engine, ReportsCache
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy
from stepwell.policy.probe import Probe
from stepwell.policy.weights import export_model, load_weights
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import OnEnding
from stepwell.rollout.run import Ending
from stepwell.rollout.statistics import Typed, statistics
from stepwell.trainer.collate import MicroBatch
from stepwell.trainer.loop import Run, Trainer
from stepwell.types import UpdateInfo


@dataclass(slots=True)
class Progress:
    """Whom a run tells how far it is. The defaults tell nobody."""

    on_phase: Callable[[str, int], None] = lambda *_: None
    """A phase of `total` units begins."""
    on_unit: Callable[[], None] = lambda: None
    """One unit of it is done."""
    on_collected: Callable[[], None] = lambda: None
    """The groups of an update are there; now it is learnt from them."""
    on_update: Callable[[UpdateInfo], None] = lambda *_: None
    on_micro_batch: Callable[[MicroBatch], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A served policy with what trains it."""

    recipe: RecipeConfig
    folder: Path
    served: Served
    crew: Callable[[OnEnding], AbstractAsyncContextManager[Crew]]
    """Those who play, for as long as an `async with` block lasts."""
    write: Write
    """Writes the policy's weights as they are, whole."""
    tasks: TaskSet
    order: Sequence[str]
    """The training tasks as the seed shuffles them: worked out once, since there may be 100,000 of them."""
    trainer: Trainer
    algorithm: Algorithm
    progress: Progress = field(default_factory=Progress)
    track: Callable[[UpdateInfo], None] = lambda _: None
    """Hands an update to the recipe's trackers."""

    async def train(self) -> list[UpdateInfo]:
        """Update until the recipe's last version; resumable after any interruption."""
        self.progress.on_phase("train", max(self.recipe.trainer.updates - self.served.policy.version, 0))
        updates = []
        async for update in self.updates():
            updates.append(update)
            self.track(update)
            self.progress.on_update(update)
            self.progress.on_unit()
        return updates

    async def updates(self) -> AsyncGenerator[UpdateInfo, None]:
        """The updates, one by one, each when it is asked for."""
        endings: list[Ending] = []
        cache_hits = _cache_hits(self.served.engine)
        task_type = self.tasks.task_type if isinstance(self.tasks, Typed) else None

        def measured() -> dict[str, float]:
            self.progress.on_collected()
            told = cache_hits() | statistics(endings, task_type)
            endings.clear()
            return told

        async with self.crew(endings.append) as crew:
            if self.recipe.trainer.max_staleness:
                producer = partial(self._producer, crew)
                async with aclosing(self.trainer.updates_ahead(producer, measured)) as going:
                    async for update in going:
                        yield update
                return

            async def collect(count: int, held: Sequence[str]) -> int:
                tasks = self._missing_tasks(held)
                if self.algorithm.siblings is not None:
                    return await crew.siblings(tasks, count, len(held), self.served.policy.version)
                return await crew.groups(tasks, count, self.recipe.rollout.group_size, lambda: None)

            async for update in self.trainer.updates(collect, measured):
                yield update

    def _producer(self, crew: Crew, held: Sequence[str]) -> "_Producer":
        return _Producer(crew, self._missing_tasks(held), self.recipe.rollout.group_size)

    async def evaluate(self, task_ids: Sequence[str], temperature: float) -> list[Ending]:
        """One held-out trajectory per task, by the policy as it is now."""
        self.progress.on_phase(f"evaluate v{self.served.policy.version}, T={temperature:g}", len(task_ids))
        async with self.crew(lambda _: self.progress.on_unit()) as crew:
            return await crew.trials(task_ids, temperature)

    def whole_policy(self) -> Policy:
        """The policy in one piece; where several ranks have a part each, a copy."""
        own = self.served.policy
        if own.ranks.count == 1:
            return own
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder))
            return _copied(self.recipe, Path(folder), own.version)

    def _missing_tasks(self, held: Sequence[str]) -> Iterator[str]:
        """The tasks of the next update but those `held`, and then those after. All updates' tasks are one endless order
        of the seed's, so a resumed run goes on where it stopped, and a task of which a group was ready by then is not
        sampled again."""
        endless = itertools.cycle(self.order)
        trainer = self.recipe.trainer
        start = self.served.policy.version * trainer.groups_per_update
        ahead = trainer.groups_per_update * (1 + trainer.max_staleness)
        due = list(itertools.islice(endless, start, start + ahead))
        for task in held:
            if task in due:  # else somebody else's choice
                due.remove(task)
        return itertools.chain(due, endless)


@dataclass(frozen=True, slots=True)
class _Producer:
    """Groups of one task after the other; see `stepwell.trainer.ahead.Producer`."""

    crew: Crew
    tasks: Iterator[str]
    group_size: int

    async def make(self, begun: Callable[[], None]) -> bool:
        return bool(await self.crew.groups(self.tasks, 1, self.group_size, begun))


def _cache_hits(engine: ReportsCache | None) -> Callable[[], dict[str, float]]:
    """Asked again and again, gives the hit rate of the engine's prefix cache since the last time; None: nothing."""
    if engine is None:
        return dict
    before = engine.cache_use

    def since() -> dict[str, float]:
        nonlocal before
        now = engine.cache_use
        use, before = now.since(before), now
        return {"prefix_cache_hit_rate": use.hit_rate} if use.prompt_tokens else {}

    return since


def _copied(recipe: RecipeConfig, weights: Path, version: int) -> Policy:
    policy, _ = load_policy(recipe)
    load_weights(weights, policy, version)
    return policy


def _write_whole(recipe: RecipeConfig, policy: Policy, write: Write, folder: Path) -> Probe:
    """As `write`, for servers that know nothing of this run: the whole model, as any program loads it."""
    with tempfile.TemporaryDirectory() as parts:
        told = write(Path(parts))
        whole = policy if policy.ranks.count == 1 else _copied(recipe, Path(parts), policy.version)
    export_model(whole, resolve_model(recipe.policy.model, recipe.seed), folder, untied=True)
    return told


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

    `folder` holds `recipe.yaml` (as resolved), `checkpoints/` and, unless another `pool` is named here or in the
    recipe, `pool.sqlite`.
    `watch` may wrap the engine that the gateway serves.
    """
    progress = progress or Progress()
    check_port(port)
    if recipe.engine is not None:
        upstream_config(recipe.engine)  # a mistake is told before anything begins
    trackers = chosen_trackers(recipe.tracking)
    location = pool or recipe.pool or folder / POOL_FILE
    desk = leading(recipe, folder, progress.on_micro_batch, progress.on_unit)
    with sole_use_of(folder), open_pool(location, make=True) as opened, desk as own:
        run = Run(name=recipe.name, folder=folder, pool=opened)
        trainer = Trainer(run, own.study, recipe.trainer, own.together)
        _begin(recipe, folder, trainer, own, progress)
        write = partial(own.together.call, "write")
        plan = Plan(
            recipe=recipe,
            folder=folder,
            policy=own.policy,
            write=write if recipe.engine is None else partial(_write_whole, recipe, own.policy, write),
            renderer=own.renderer,
            tasks=build_tasks(recipe.environment),
            algorithm=own.algorithm,
            pool=opened,
            location=str(location),
            port=port,
            watch=watch,
        )
        tracked = tracked_run(recipe.name, folder, recipe.model_dump(mode="json"))
        with MODES[recipe.mode](plan) as staff, tracking(trackers, tracked) as track:
            trainer.publish = staff.publish
            yield TrainingRun(
                recipe=recipe,
                folder=folder,
                served=staff.served,
                crew=staff.crew,
                write=write,
                tasks=plan.tasks,
                order=_shuffled(plan.tasks.tasks("train"), recipe.seed),
                trainer=trainer,
                algorithm=own.algorithm,
                progress=progress,
                track=track,
            )


def _shuffled(tasks: Sequence[str], seed: int) -> Sequence[str]:
    return [tasks[i] for i in np.random.default_rng(seed).permutation(len(tasks))]


def _begin(recipe: RecipeConfig, folder: Path, trainer: Trainer, own: Desk, progress: Progress) -> None:
    """From the newest checkpoint, or else by a warm-up, which is then the first one."""
    resumed = trainer.resume()
    write_recipe(recipe, folder)  # only now: settings that do not fit the checkpoint must not replace those that do
    if resumed:
        return
    if recipe.warmup.updates:
        progress.on_phase("warm up", recipe.warmup.updates)
        own.together.call("warm_up")
    if recipe.warmup.updates or recipe.mode != "inline":
        trainer.save()  # other processes begin with what a checkpoint holds
