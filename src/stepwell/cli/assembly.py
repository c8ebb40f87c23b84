"""Where the concrete classes meet: from a recipe to a running policy, engine, gateway, pool and trainer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from stepwell.cli.config import RecipeConfig, WarmupConfig
from stepwell.cli.parts import mount_dashboard
from stepwell.cli.serving import served
from stepwell.engines.base import Engine
from stepwell.engines.constraint import ConstraintCompiler
from stepwell.engines.local import LocalEngine
from stepwell.errors import ConfigError
from stepwell.gateway.app import create_app
from stepwell.gateway.keys import KeyRing
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy
from stepwell.pool.base import Pool
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.renderer import Renderer
from stepwell.rollout.env import TaskSet
from stepwell.trainer.sft import Demonstration, supervised_update


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model behind a gateway, with its pool."""

    url: str
    """The gateway's, without `/v1`."""
    policy: Policy
    renderer: Renderer
    pool: Pool
    engine: LocalEngine | None = None
    """None: it is in another process."""


def load_policy(recipe: RecipeConfig) -> tuple[Policy, Renderer]:
    """The recipe's model with its renderer. Seeds torch, so that a value head made here is reproducible."""
    if recipe.policy.threads:
        torch.set_num_threads(recipe.policy.threads)
    directory = resolve_model(recipe.policy.model, recipe.seed)
    torch.manual_seed(recipe.seed)  # after a model was made: whether one was must not change what is made here
    policy = Policy.load(directory, recipe.policy, name=model_name(recipe))
    return policy, Renderer.from_directory(directory, recipe.tool_format)


def model_name(recipe: RecipeConfig) -> str:
    """The name under which the recipe's model is served: a built-in name, or the last part of a path."""
    return Path(recipe.policy.model).name


@contextmanager
def serve_policy(
    recipe: RecipeConfig,
    policy: Policy,
    renderer: Renderer,
    pool: Pool,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    keys: KeyRing | None = None,
    watch: Callable[[Engine], Engine] | None = None,
    folder: Path | None = None,
) -> Iterator[Served]:
    """The policy behind a gateway on a thread of this process, with the dashboard on the same port where installed.

    `folder` is that of the run, if there is one.
    """
    eos_ids = sorted(renderer.eos_ids)
    tokenizer = resolve_model(recipe.policy.model, recipe.seed) / "tokenizer.json"
    constraints = ConstraintCompiler(tokenizer, vocabulary_size=policy.vocabulary_size, eos_ids=eos_ids)
    engine = LocalEngine(policy, eos_ids=eos_ids, max_batch=recipe.max_batch, seed=recipe.seed, constraints=constraints)
    try:
        app = create_app(watch(engine) if watch else engine, renderer, pool, recipe.gateway, keys)
        mount_dashboard(app, pool, {policy.name: renderer.decode}, folder=folder)
        with served(app, host, port, recipe.gateway.drain_seconds) as url:
            yield Served(url=url, policy=policy, renderer=renderer, pool=pool, engine=engine)
    finally:
        engine.close()


@runtime_checkable
class _Demonstrates(Protocol):
    """A task set that can show what valid actions look like."""

    def demonstration(self, seed: int, wrong: float) -> tuple[Message, ...]:
        """A conversation in which a share `wrong` of the arguments is random."""
        ...


def warm_up(policy: Policy, renderer: Renderer, tasks: TaskSet, config: WarmupConfig) -> Iterator[float]:
    """Supervised updates on the task set's demonstrations; yields the loss of each.

    Raises:
        ConfigError: the task set has no demonstrations.
    """
    if config.updates and not isinstance(tasks, _Demonstrates):
        raise ConfigError(f"warmup.updates must be 0: the environment {tasks.name!r} has no demonstrations")
    optimizer = torch.optim.AdamW(policy.trainable_parameters(), lr=config.lr, weight_decay=0.0)
    tools = tasks.make().tools
    for update in range(config.updates):
        seeds = range(update * config.batch_size, (update + 1) * config.batch_size)
        conversations = [tasks.demonstration(seed, config.wrong) for seed in seeds]  # type: ignore[attr-defined]
        yield supervised_update(policy, optimizer, [render_demonstration(renderer, c, tools) for c in conversations])


def render_demonstration(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool]) -> Demonstration:
    """Token ids of a conversation, with a mask over what its assistant messages would be sampled as."""
    ids, masks = [], []
    done = 0
    for i, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = renderer.text(messages[:i], tools)
        answer = renderer.encode(renderer.text(messages[: i + 1], tools)[len(prompt) :])
        # up to its end-of-turn token; what the template puts after that belongs to the next prompt
        answer = answer[: np.flatnonzero(np.isin(answer, list(renderer.eos_ids)))[0] + 1]
        for part, produced in ((renderer.encode(prompt[done:]), False), (answer, True)):
            ids.append(part)
            masks.append(np.full(len(part), produced))
        done = len(prompt) + len(renderer.decode(answer, skip_special=False))
    return Demonstration(np.concatenate(ids), np.concatenate(masks))
