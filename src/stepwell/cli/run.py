"""`stepwell run`: let the built-in agent work on tasks through a gateway that runs elsewhere."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import httpx
import typer
from pydantic import Field
from rich.console import Console

from stepwell.cli.parts import build_tasks
from stepwell.cli.progress import Display
from stepwell.client.pool import PoolClient
from stepwell.config import Config, load_config
from stepwell.errors import EngineError
from stepwell.rollout.agent import ChatAgent, ChatAgentConfig
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending, RolloutConfig


class CollectConfig(Config):
    """Settings of `stepwell run`."""

    environment: Mapping[str, Any] = Field(default_factory=lambda: {"use": "search_qa"})
    """`use`: a name in `ENVIRONMENTS` or a class; the other keys are its settings."""
    agent: ChatAgentConfig = ChatAgentConfig()
    """The built-in agent."""
    rollout: RolloutConfig = RolloutConfig()
    """How trajectories are run."""


def run(
    gateway: Annotated[str, typer.Option(metavar="URL", help="The gateway, without /v1.")] = "http://127.0.0.1:8000",
    environment: Annotated[str, typer.Option(help="Environment to work in.")] = "search_qa",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks, one group each.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Trajectories per task.")] = 4,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    channel: Annotated[str, typer.Option(help="Training run that the groups are for.")] = "default",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, e.g. environment.dataset=boolq.")
    ] = None,
) -> None:
    """Collect trajectories with the OpenAI-SDK agent; steps and rewards land in the gateway's pool."""
    gateway = gateway.rstrip("/").removesuffix("/v1")
    config = load_config(CollectConfig, None, [f"environment.use={environment}", *(overrides or [])])
    task_set = build_tasks(config.environment)
    display = Display(Console())
    endings: list[Ending] = []

    def ended(ending: Ending) -> None:
        endings.append(ending)
        display.unit()

    async def collect() -> None:
        async with ChatAgent(gateway, _served_model(gateway), config.agent) as agent:
            client = PoolClient(gateway)
            try:
                collector = Collector(task_set, agent, client, config.rollout, channel=channel, on_ending=ended)
                await collector.collect_groups(iter(task_set.tasks(split)), tasks, group_size)
            finally:
                client.close()

    with display.live():
        display.phase("collect", tasks * group_size)
        asyncio.run(collect())
    rewards = [ending.reward for ending in endings if ending.how != "failed"]
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    failed = len(endings) - len(rewards)
    Console().print(f"{len(rewards)} trajectories, mean reward {mean:.3f}; {failed} more failed", highlight=False)


def _served_model(gateway: str) -> str:
    try:
        answer = httpx.get(f"{gateway}/v1/models").raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise EngineError(f"no gateway answers at {gateway}: {error}; start one with `stepwell serve`") from error
    name: str = answer["data"][0]["id"]
    return name
