"""`stepwell run`: let an agent, the built-in one or any other, work on tasks through a gateway that runs elsewhere."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pydantic import Field
from rich.console import Console

from stepwell.algorithms.base import Siblings
from stepwell.cli.parts import build_tasks
from stepwell.cli.progress import Display
from stepwell.cli.summary import summary_table
from stepwell.client.pool import PoolClient
from stepwell.client.sync import Client
from stepwell.config import Config, load_config
from stepwell.errors import EngineError, InvalidRequest
from stepwell.rollout.agent import ChatAgent, ChatAgentConfig
from stepwell.rollout.blackbox import Place, player_of
from stepwell.rollout.env import TaskSet
from stepwell.rollout.group import Collector, OnEnding
from stepwell.rollout.run import Ending, RolloutConfig
from stepwell.rollout.siblings import SiblingCollector


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
    agent: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="An agent of your own instead; {task} is its task.")
    ] = None,
    task_file: Annotated[
        Path | None, typer.Option(metavar="JSONL", help="What it is to do: a JSON object with a `prompt` per line.")
    ] = None,
    reward: Annotated[
        str, typer.Option(help="How it is judged: exit_code, file:NAME, or a function as file.py:name.")
    ] = "exit_code",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks, one group each.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Trajectories per task, or per state with --fork.")] = 4,
    fork: Annotated[
        bool, typer.Option("--fork", help="Play each task once, and take each of its turns anew by a group of forks.")
    ] = False,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    channel: Annotated[str, typer.Option(help="Training run that the groups are for.")] = "default",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, e.g. environment.dataset=boolq.")
    ] = None,
) -> None:
    """Collect trajectories with the OpenAI-SDK agent, or an agent of your own that is left as it is.

    Steps and rewards land in the gateway's pool. An agent of your own finds the gateway by the variables that SDKs read
    (OPENAI_BASE_URL, ANTHROPIC_BASE_URL and the keys beside them), or by {url} and {key} in its command.

    It runs in an empty folder, hence the whole path of its program.

    Example: stepwell run --agent "python $PWD/my_agent.py {task}" --task-file tasks.jsonl --reward judge.py:reward
    """
    gateway = gateway.rstrip("/").removesuffix("/v1")
    chosen = [f"environment.use={environment}"] if agent is None else _own_agent(agent, task_file, reward)
    sizes = [f"rollout.group_size={group_size}"]
    config = load_config(CollectConfig, None, [*chosen, *sizes, *(overrides or [])])
    display = Display(Console())
    endings: list[Ending] = []

    def ended(ending: Ending) -> None:
        endings.append(ending)
        display.unit()

    with display.live():
        display.phase("collect", 0 if fork else tasks * group_size)
        task_set = asyncio.run(_collect(gateway, config, _Wanted(tasks, split, channel, fork), ended))
    rewards = [ending.reward for ending in endings if ending.how != "failed"]
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    failed = len(endings) - len(rewards)
    Console().print(f"{len(rewards)} trajectories, mean reward {mean:.3f}; {failed} more failed", highlight=False)
    table = summary_table(endings, task_set)
    if table is not None:
        Console().print(table)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be collected."""

    tasks: int
    split: str
    channel: str
    fork: bool


async def _collect(gateway: str, config: CollectConfig, wanted: _Wanted, ended: OnEnding) -> TaskSet:
    task_set, model = build_tasks(config.environment), served_model(gateway)
    async with ChatAgent(gateway, model, config.agent) as chat:
        with closing(PoolClient(gateway)) as log, Client(gateway) as reader:
            place = Place(gateway_url=gateway, model=model, log=log, read=reader.trajectory)
            player = player_of(task_set, chat, place, config.rollout)
            collector = Collector(player, log, config.rollout, channel=wanted.channel, on_ending=ended)
            names = iter(task_set.tasks(wanted.split))
            if not wanted.fork:
                await collector.collect_groups(names, wanted.tasks, config.rollout.group_size)
                return task_set
            siblings = SiblingCollector(collector, Siblings())
            await siblings.collect(names, wanted.tasks)
            while siblings.turns_left:
                await siblings.take_next(wanted.tasks)
    return task_set


def _own_agent(command: str, task_file: Path | None, reward: str) -> list[str]:
    if task_file is None:
        raise InvalidRequest("--agent needs --task-file: what it is to do, a JSON object with a `prompt` per line")
    settings = {"use": "black_box", "command": command, "tasks": str(task_file), "reward": reward}
    return [f"environment.{name}={json.dumps(value)}" for name, value in settings.items()]


def served_model(gateway: str, key: str | None = None) -> str:
    """The first model that a server offers. Raises EngineError if none answers there."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{gateway}/v1/models", headers=headers).raise_for_status().json()
        name: str = answer["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise EngineError(f"no gateway answers at {gateway}: {error!r}; start one with `stepwell serve`") from error
    return name
