"""`stepwell train --dry-run`: the recipe as it would be run, what it would take, and where it would write."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from stepwell.algorithms.base import Algorithm
from stepwell.cli.config import RecipeConfig
from stepwell.cli.estimate import Memory, ModelSize, memory, model_size
from stepwell.cli.parts import POOL_FILE, build_tasks
from stepwell.cli.playing import build_algorithm
from stepwell.cli.secrets import without_secrets
from stepwell.cli.tracking import chosen_trackers
from stepwell.cli.upstreams import upstream_config
from stepwell.config import component_config
from stepwell.policy.builtin import resolve_model
from stepwell.pool.store import without_password
from stepwell.rendering.renderer import Renderer
from stepwell.rollout.env import TaskSet
from stepwell.scoring.base import ScorerConfig
from stepwell.scoring.scorers import SCORERS

_KEPT: Final = 2
"""Checkpoints."""
_COPIES: Final = 3
"""Numbers that a checkpoint has of each trained one: itself, and AdamW's two."""
Row = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Everything that is known of a run before it begins."""

    recipe: RecipeConfig
    folder: Path
    tasks: TaskSet
    algorithm: Algorithm
    model: ModelSize
    memory: Memory


def outlook(recipe: RecipeConfig, folder: Path) -> Outlook:
    """Make what can be made without weights. Raises whatever would be wrong with the run's settings.

    A built-in model, or an environment's data, is put into the cache if it is not there, as the run would do.
    """
    chosen_trackers(recipe.tracking)
    for section in recipe.rewards:
        component_config(SCORERS, ScorerConfig, section)
    if recipe.engine is not None:
        upstream_config(recipe.engine)
    algorithm = build_algorithm(recipe)
    recipe.trainer.check(algorithm)
    directory = resolve_model(recipe.policy.model, recipe.seed)
    Renderer.from_directory(directory, recipe.tool_format)
    size = model_size(directory, recipe.policy)
    return Outlook(
        recipe=recipe,
        folder=folder,
        tasks=build_tasks(recipe.environment),
        algorithm=algorithm,
        model=size,
        memory=memory(recipe, size, algorithm),
    )


def show_outlook(console: Console, seen: Outlook) -> None:
    """Print all of it."""
    text = yaml.safe_dump(without_secrets(seen.recipe.model_dump(mode="json")), sort_keys=False)
    console.print(Syntax(text, "yaml", background_color="default") if console.is_terminal else text, soft_wrap=True)
    for title, rows in (
        ("model", _model(seen)),
        ("memory, estimated", _memory(seen)),
        ("each update", _update(seen)),
        ("processes", _processes(seen)),
        ("would be written", _written(seen)),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for row in rows:
            table.add_row(*row)
        console.print(table, highlight=False)
    console.print("nothing was trained, and nothing was written to the folder of the run", highlight=False)


def _model(seen: Outlook) -> Iterator[Row]:
    size, policy = seen.model, seen.recipe.policy
    yield "name", f"{policy.model} ({size.architecture})"
    yield "parameters", f"{size.parameters:,}, and {size.critic:,} of the critic ({policy.critic})"
    share = size.trained / size.parameters
    how = "adapters" if policy.lora else f"the last {policy.trainable_layers} of {size.layers} layers"
    what = how if policy.lora or policy.trainable_layers else "all"
    yield "trained", f"{size.trained:,} ({share:.1%}: {what})"
    yield "numbers", f"weights float32, products {policy.precision}"
    yield "context", f"{size.context:,} tokens"


def _memory(seen: Outlook) -> Iterator[Row]:
    need, recipe = seen.memory, seen.recipe
    yield "weights", _bytes(need.weights)
    yield "gradients", _bytes(need.gradients)
    yield "moments of AdamW", _bytes(need.moments)
    if need.snapshots:
        yield "copies to compare with", _bytes(need.snapshots)
    yield (
        "activations",
        f"at most {_bytes(need.activations)}, in micro-batches of {recipe.learner.micro_batch_tokens:,}",
    )
    each = f"{recipe.learner.ranks} ranks, each" if recipe.learner.ranks > 1 else "together"
    yield "learner", f"{each} {_bytes(need.learner)}; this machine has {_bytes(_machine())}"
    if recipe.engine is not None:
        yield "engine", "in servers, beside all this"
        return
    if recipe.mode != "inline":
        yield "engine's weights", _bytes(4 * seen.model.parameters)
    longest = need.cache_per_token * seen.model.context
    slots = f"{recipe.max_batch} slots"
    yield "engine's cache", f"{_bytes(1000 * need.cache_per_token)} for each 1,000 tokens of the longest row ({slots})"
    yield "", f"at most {_bytes(longest)}, where a row fills the context"


def _update(seen: Outlook) -> Iterator[Row]:
    recipe, siblings = seen.recipe, seen.algorithm.siblings
    groups, size = recipe.trainer.groups_per_update, recipe.rollout.group_size
    what = "trajectories of one task" if siblings is None else "siblings, which take one turn anew"
    yield "algorithm", seen.algorithm.name
    yield "groups", f"{groups} of {size} {what}: {groups * size}"
    tokens = groups * size * recipe.rollout.max_turns * recipe.agent.max_tokens
    limits = f"{recipe.rollout.max_turns} turns of {recipe.agent.max_tokens} tokens"
    yield "tokens", f"{tokens:,} of responses at most ({limits} each)"
    yield "tasks", f"{len(seen.tasks.tasks('train')):,} to train on, {len(seen.tasks.tasks('test')):,} held out"
    yield (
        "in all",
        f"{recipe.trainer.updates} updates, {recipe.trainer.updates * groups * size:,} trajectories, at most",
    )
    yield "staleness", f"at most {recipe.trainer.max_staleness} updates"


def _processes(seen: Outlook) -> Iterator[Row]:
    recipe = seen.recipe
    yield "mode", recipe.mode
    if recipe.mode == "inline":
        yield "learner, gateway, engine and agents", "1"
        return
    yield "learners", str(recipe.learner.ranks)
    if recipe.engine is not None:
        yield "gateway, in front of", ", ".join(recipe.engine["urls"])
    else:
        yield "gateway with its engine", "1"
    yield "players", f"{recipe.rollout.workers}, with {recipe.rollout.concurrency} trajectories at once in all"


def _written(seen: Outlook) -> Iterator[Row]:
    recipe, folder = seen.recipe, seen.folder
    changed = seen.model.trained + seen.model.critic
    yield "folder", str(folder)
    yield "checkpoints/", f"the newest {_KEPT}, {_bytes(4 * _COPIES * changed)} each"
    yield "model/", f"{_bytes(4 * seen.model.parameters)}, at the end"
    yield "pool", without_password(recipe.pool or folder / POOL_FILE)
    for section in recipe.tracking:
        yield "tracked by", str(section["use"])


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
