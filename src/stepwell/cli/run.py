"""`stepwell run`: let the built-in agent work on tasks through a gateway that runs elsewhere."""

import asyncio
from typing import Annotated

import httpx
import typer
from rich.console import Console

from stepwell.cli.assembly import build_tasks
from stepwell.cli.config import RecipeConfig
from stepwell.cli.display import Display
from stepwell.config import load_config
from stepwell.errors import EngineError
from stepwell.pool.client import PoolClient
from stepwell.rollout.agent import ChatAgent
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending


def run(
    gateway: Annotated[str, typer.Option(metavar="URL", help="The gateway, without /v1.")] = "http://127.0.0.1:8000",
    environment: Annotated[str, typer.Option(help="Environment to work in.")] = "search_qa",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks, one group each.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Trajectories per task.")] = 4,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. environment.dataset=boolq")
    ] = None,
) -> None:
    """Collect trajectories with the OpenAI-SDK agent; steps and rewards land in the gateway's pool."""
    recipe = load_config(RecipeConfig, None, [f"environment.use={environment}", *(overrides or [])])
    task_set = build_tasks(recipe)
    display = Display(Console())
    client = PoolClient(gateway)
    rewards: list[float] = []

    def ended(ending: Ending) -> None:
        rewards.append(ending.reward)
        display.unit()

    async def collect() -> None:
        agent = ChatAgent(gateway, _served_model(gateway), recipe.agent)
        collector = Collector(task_set, agent, client, recipe.rollout, on_ending=ended)
        await collector.collect_groups(iter(task_set.tasks(split)), tasks, group_size)
        await agent.close()

    with display.live():
        display.phase("collect", tasks * group_size)
        asyncio.run(collect())
    Console().print(f"{len(rewards)} trajectories, mean reward {sum(rewards) / len(rewards):.3f}", highlight=False)


def _served_model(gateway: str) -> str:
    try:
        answer = httpx.get(f"{gateway}/v1/models").raise_for_status().json()
    except httpx.HTTPError as error:
        raise EngineError(f"no gateway answers at {gateway}: {error}; start one with `stepwell serve`") from error
    name: str = answer["data"][0]["id"]
    return name
