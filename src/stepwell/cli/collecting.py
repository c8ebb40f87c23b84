"""Playing for a run: its agent or black boxes, in its environment, through its gateway, into its pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from stepwell.cli.judging import judging
from stepwell.cli.playing import PlayConfig
from stepwell.pool.base import Pool
from stepwell.rollout.agent import ChatAgent
from stepwell.rollout.blackbox import Place, player_of
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import Collector
from stepwell.rollout.judges import Judges
from stepwell.rollout.run import Ending, Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a run's trajectories are played."""

    recipe: PlayConfig
    tasks: TaskSet
    url: str
    """The gateway's, without `/v1`."""
    model: str
    """Its name there."""
    key: str = "unused"
    """Of the gateway, where it lets in only who has one."""
    foreign: bool = False
    """It is no gateway but somebody else's server: nothing that it answers is recorded."""
    pool: Pool


@asynccontextmanager
async def collecting(
    place: Workplace,
    *,
    temperature: float | None = None,
    on_ending: Callable[[Ending], None] = lambda _: None,
    log: Log | None = None,
) -> AsyncIterator[Collector]:
    """What has a run's trajectories played, recorded in `log`, or else in the pool; None: the recipe's temperature."""
    recipe, pool = place.recipe, place.pool
    changes = {} if temperature is None else {"temperature": temperature}
    async with (
        ChatAgent(
            place.url,
            place.model,
            recipe.agent.model_copy(update=changes),
            key=place.key,
            reached=not place.foreign,
            foreign=place.foreign,
        ) as agent,
        judging(recipe.rewards, pool.trajectory) as judge,
    ):
        judges = Judges(log or pool, judge) if judge else None
        where = Place(
            gateway_url=place.url, model=place.model, key=place.key, log=judges or log or pool, read=pool.trajectory
        )
        yield Collector(
            player_of(place.tasks, agent, where, recipe.rollout),
            log=log or pool,
            config=recipe.rollout,
            channel=recipe.name,
            on_ending=on_ending,
            judges=judges,
        )
