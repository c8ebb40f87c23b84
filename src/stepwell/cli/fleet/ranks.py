"""What each of the processes has that train one policy together, and the first of them, which leads.

One that dies takes its part of the weights along, so that is the end of the run; it goes on from its checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepwell.algorithms.base import Algorithm, Language
from stepwell.cli.assembly import load_policy, warm_up
from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet.followers import followed
from stepwell.cli.parts import build_tasks
from stepwell.cli.playing import build_algorithm
from stepwell.errors import MissingDependency
from stepwell.policy.model import Policy
from stepwell.policy.ranks import Place, Ranks, joined
from stepwell.rendering.actions import action_mask
from stepwell.rendering.renderer import Renderer
from stepwell.trainer.study import Study
from stepwell.trainer.together import Together
from stepwell.trainer.update import Learner, Watch


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a rank has: its own part of the policy, and what it does with it when all do."""

    policy: Policy
    renderer: Renderer
    algorithm: Algorithm
    study: Study
    together: Together
    """The functions of `study`, and `warm_up`."""


@contextmanager
def leading(
    recipe: RecipeConfig, folder: Path, watch: Watch | None = None, warmed: Callable[[], None] = _nothing
) -> Iterator[Desk]:
    """The desk of the first rank, with all others at their own for as long as the block lasts: processes of this
    machine, or, with `mode=ray`, wherever the cluster has room.

    `watch` and `warmed`, which is called after each supervised update, are told of what the first rank does.

    Raises:
        RankDied: one of the others did.
    """
    with _followed(recipe, folder.absolute()) as place, joined(place) as ranks:
        desk = _desk(recipe, folder, ranks, watch, warmed)
        yield desk
        desk.together.close()


def _followed(recipe: RecipeConfig, folder: Path) -> AbstractContextManager[Place]:
    count, follow = recipe.learner.ranks, partial(_follow, recipe, folder)
    if recipe.mode != "ray" or count == 1:
        return followed(count, follow)
    try:
        from stepwell.cli.fleet.rank_actors import followed_in_cluster  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingDependency("mode=ray needs Ray: pip install 'stepwell[ray]'") from error
    return followed_in_cluster(count, recipe.rollout.workers, folder, follow)


def _follow(recipe: RecipeConfig, folder: Path, place: Place) -> None:
    with joined(place) as ranks:
        _desk(recipe, folder, ranks).together.follow()


def _desk(
    recipe: RecipeConfig,
    folder: Path,
    ranks: Ranks,
    watch: Watch | None = None,
    warmed: Callable[[], None] = _nothing,
) -> Desk:
    algorithm = build_algorithm(recipe)
    policy, renderer = load_policy(recipe)
    language = Language(tokenize=renderer.encode, action_mask=partial(action_mask, renderer))
    study = Study(Learner(policy, recipe.learner, ranks), algorithm, folder / "checkpoints", watch, language)

    def warmed_up() -> None:
        for _ in warm_up(policy, renderer, build_tasks(recipe.environment), recipe.warmup):
            warmed()
        policy.begin_critic()

    together = Together(ranks, {**study.functions, "warm_up": warmed_up})
    return Desk(policy=policy, renderer=renderer, algorithm=algorithm, study=study, together=together)
