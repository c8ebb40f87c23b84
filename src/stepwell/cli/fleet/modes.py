"""How a run is laid out: `mode` says which of these. The recipe, its agent, environment and algorithm are the same."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from stepwell.algorithms.base import Algorithm
from stepwell.cli.assembly import Served, serve_policy
from stepwell.cli.collecting import Workplace
from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet.crew import Crew
from stepwell.cli.fleet.hand import Hand
from stepwell.cli.fleet.server import serving
from stepwell.cli.fleet.workers import Workers
from stepwell.cli.serving import free_port
from stepwell.engines.base import Engine
from stepwell.errors import InvalidRequest
from stepwell.policy.model import Policy
from stepwell.pool.base import Pool
from stepwell.rendering.renderer import Renderer
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import OnEnding

Watch = Callable[[Engine], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What there is before anything is served."""

    recipe: RecipeConfig
    folder: Path
    policy: Policy
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
    with serve_policy(recipe, plan.policy, plan.renderer, plan.pool, port=plan.port, watch=plan.watch) as served:
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
    if plan.watch is not None:
        raise InvalidRequest("an engine in another process cannot be watched: use mode=inline")
    rollout = plan.recipe.rollout
    with serving(plan.folder, plan.location, plan.port or free_port(), plan.policy) as server:
        share = max(rollout.concurrency // rollout.workers, 1)
        command = [sys.executable, "-m", "stepwell", "worker", "--run", str(plan.folder), "--gateway", server.url]
        command += ["--model", plan.policy.name, "--pool", plan.location, f"rollout.concurrency={share}"]
        trunks = plan.algorithm.siblings.trunks if plan.algorithm.siblings is not None else 1
        yield Staff(
            served=Served(url=server.url, policy=plan.policy, renderer=plan.renderer, pool=plan.pool),
            crew=partial(Workers, command, rollout.workers, plan.pool, trunks),
            publish=partial(server.publish, plan.policy),
        )


MODES: Final[dict[str, Callable[[Plan], AbstractContextManager[Staff]]]] = {"inline": inline, "local": local}
