"""How a run is laid out: `mode` says which of these. The recipe, its agent, environment and algorithm are the same."""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from stepwell.algorithms.base import Algorithm
from stepwell.cli.assembly import Served, serve_policy
from stepwell.cli.collecting import Workplace
from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet.crew import Crew
from stepwell.cli.fleet.hand import Hand
from stepwell.cli.fleet.life import Begin, Life
from stepwell.cli.fleet.lines import Lines
from stepwell.cli.fleet.post import Posting
from stepwell.cli.fleet.server import LOOPBACK, Server, Write, serving
from stepwell.cli.fleet.workers import Workers
from stepwell.cli.playing import PlayConfig
from stepwell.cli.serving import free_port
from stepwell.engines.base import Engine
from stepwell.errors import InvalidRequest, MissingDependency
from stepwell.policy.model import Policy
from stepwell.pool.base import Pool
from stepwell.rendering.renderer import Renderer
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import OnEnding
from stepwell.rollout.run import RolloutConfig

Watch = Callable[[Engine], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What there is before anything is served."""

    recipe: RecipeConfig
    folder: Path
    policy: Policy
    write: Write
    """Its weights, for whoever samples elsewhere."""
    renderer: Renderer
    tasks: TaskSet
    algorithm: Algorithm
    pool: Pool
    location: str
    """Of the pool, for other processes."""
    port: int
    watch: Watch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staff:
    """Who samples, who plays, and how they get new weights."""

    served: Served
    crew: Callable[[OnEnding], AbstractAsyncContextManager[Crew]]
    publish: Callable[[], None] = lambda: None
    """Has the policy as it is now served; where it samples itself there is nothing to do."""


@contextmanager
def inline(plan: Plan) -> Iterator[Staff]:
    """All in this process: the engine samples from the very weights that are trained."""
    recipe = plan.recipe
    with serve_policy(
        recipe, plan.policy, plan.renderer, plan.pool, port=plan.port, watch=plan.watch, folder=plan.folder
    ) as served:
        place = Workplace(recipe=recipe, tasks=plan.tasks, url=served.url, model=plan.policy.name, pool=plan.pool)
        yield Staff(
            served=served,
            crew=lambda on_ending: Hand(place=place, plan=plan.algorithm.siblings, on_ending=on_ending),
        )


@contextmanager
def local(plan: Plan) -> Iterator[Staff]:
    """Gateway with engine, players, and this process that learns: each a process of this machine.

    Raises:
        InvalidRequest: the engine is to be watched, which takes it in this process.
    """
    rollout = plan.recipe.rollout
    with _served(plan, LOOPBACK) as server:
        command = [sys.executable, "-m", "stepwell", "worker", "--run", str(plan.folder), "--gateway", server.url]
        command += ["--model", plan.policy.name, "--pool", plan.location, f"rollout.concurrency={_share(rollout)}"]
        seeds = _seeds(plan)

        async def begin() -> Life:
            return await Lines.begin([*command, f"rollout.seed={next(seeds)}"])

        yield _staff(plan, server, begin)


@contextmanager
def ray(plan: Plan) -> Iterator[Staff]:
    """As `local`, with players as actors of a Ray cluster, on whatever nodes it has.

    Raises:
        MissingDependency: Ray is not installed.
        Unavailable: RAY_ADDRESS names a cluster that cannot be reached.
        InvalidRequest: as for `local`; or the nodes are several machines, and the pool a file of one.
    """
    try:
        from stepwell.cli.fleet import cluster  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingDependency("mode=ray needs Ray: pip install 'stepwell[ray]'") from error
    rollout, ranks = plan.recipe.rollout, plan.recipe.learner.ranks - 1
    with cluster.joined(rollout.workers, ranks) as there:
        apart = "://" not in plan.location
        if apart and there.machines > 1:
            raise InvalidRequest(
                f"the cluster has {there.machines} machines, and {plan.location} is a file of this one: keep the pool "
                "in a database that all of them reach, such as pool=postgresql://user@host/stepwell"
            )
        recipe = PlayConfig.model_validate(plan.recipe.model_dump(include=set(PlayConfig.model_fields)))
        with _served(plan, there.host) as server:
            seeds = _seeds(plan)
            pool = str(Path(plan.location).absolute()) if apart else plan.location

            async def begin() -> Life:
                own = rollout.model_copy(update={"concurrency": _share(rollout), "seed": next(seeds)})
                posting = Posting(
                    recipe=recipe.model_copy(update={"rollout": own}),
                    url=server.url,
                    model=plan.policy.name,
                    key=server.player_key,
                    pool=pool,
                )
                return await cluster.Actor.begin(posting, rollout.workers, ranks)

            yield _staff(plan, server, begin)


@contextmanager
def _served(plan: Plan, host: str) -> Iterator[Server]:
    if plan.watch is not None:
        raise InvalidRequest("an engine in another process cannot be watched: use mode=inline")
    # whole models are not what `stepwell serve --run` looks for among weights
    weights = "weights" if plan.recipe.engine is None else "models"
    server = Server(plan.folder, plan.location, plan.port or free_port(host), host, weights=weights)
    with serving(server, plan.policy.version, plan.write):
        yield server


def _seeds(plan: Plan) -> Iterator[int]:
    """One for the environments of each player, of each that takes another's place, and of each start of the run."""
    for player in itertools.count():
        mixed = np.random.SeedSequence([plan.recipe.rollout.seed, plan.policy.version, player])
        yield int(mixed.generate_state(1)[0] >> 1)


def _share(rollout: RolloutConfig) -> int:
    return max(rollout.concurrency // rollout.workers, 1)


def _staff(plan: Plan, server: Server, begin: Begin) -> Staff:
    trunks = plan.algorithm.siblings.trunks if plan.algorithm.siblings is not None else 1
    return Staff(
        served=Served(url=server.url, policy=plan.policy, renderer=plan.renderer, pool=plan.pool),
        crew=partial(Workers, begin, plan.recipe.rollout.workers, plan.pool, trunks),
        publish=lambda: server.publish(plan.policy.version, plan.write),
    )


MODES: Final[dict[str, Callable[[Plan], AbstractContextManager[Staff]]]] = {
    "inline": inline,
    "local": local,
    "ray": ray,
}
