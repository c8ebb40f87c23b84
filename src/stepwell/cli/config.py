"""What a recipe says: one section per component, each checked by the component itself."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from stepwell.cli.playing import PlayConfig
from stepwell.config import Config
from stepwell.gateway.config import GatewayConfig
from stepwell.policy.model import PolicyConfig
from stepwell.trainer.loop import TrainerConfig
from stepwell.trainer.update import LearnerConfig


class WarmupConfig(Config):
    """Supervised updates on demonstrations before the first version is served."""

    updates: int = Field(default=0, ge=0)
    """Number of supervised updates; 0 for none. Only for environments that give demonstrations (`lookup`)."""
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations per update."""
    lr: float = Field(default=1e-3, ge=0)
    """AdamW's learning rate."""
    wrong: float = Field(default=0.4, ge=0, le=1)
    """Share of arguments in the demonstrations that are random, in 0..1."""


class EvalConfig(Config):
    """Held-out evaluation."""

    tasks: int = Field(default=64, ge=1)
    """Tasks of the test split, the same before and after."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature."""


class RecipeConfig(PlayConfig):
    """A complete run."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds weights made here, sampling, and the order of tasks."""
    mode: Literal["inline", "local", "ray"] = "inline"
    """`inline`: all in one process. `local`: gateway and engine, players and learner in processes of this machine, of
    which any may die. `ray`: as `local`, with players on all nodes of a Ray cluster."""
    pool: str | None = None
    """Where the run's records go: an SQLite file, or `postgresql://…`; null: `pool.sqlite` in the run's folder."""
    policy: PolicyConfig = PolicyConfig()
    """The model."""
    tool_format: str | None = None
    """How tool calls are written: a key of `TOOL_FORMATS`; None lets the chat template decide."""
    engine: Mapping[str, Any] | None = None
    """Servers that sample instead of this run's own engine and take each update's weights, such as `{use: vllm, urls:
    [http://127.0.0.1:8001]}`. `use`: a name in `ENGINES` or a class; the other keys are its settings. Not with
    `mode=inline`. null: the run's own engine."""
    max_batch: int = Field(default=64, ge=1)
    """Requests that the local engine samples at once."""
    warmup: WarmupConfig = WarmupConfig()
    """Supervised warm-up."""
    learner: LearnerConfig = LearnerConfig()
    """The optimiser."""
    trainer: TrainerConfig = TrainerConfig()
    """The loop."""
    evaluation: EvalConfig = EvalConfig()
    """Held-out evaluation, before and after."""
    tracking: tuple[Mapping[str, Any], ...] = ()
    """Trackers, such as `tensorboard`, that get every update's metrics. Each has a `use`: a name in `TRACKERS` or a
    class; the other keys are its settings."""
    gateway: GatewayConfig = GatewayConfig()
    """The gateway."""

    @model_validator(mode="after")
    def _servers_are_behind_a_gateway_of_its_own(self) -> "RecipeConfig":
        if self.mode == "inline" and self.engine is not None:
            raise ValueError(
                "the engine of mode=inline samples from the very weights that are trained: leave `engine` out, or set "
                "mode=local or mode=ray, where weights are published"
            )
        return self

    @model_validator(mode="after")
    def _weights_that_sample_are_whole(self) -> "RecipeConfig":
        if self.mode == "inline" and self.learner.ranks > 1:
            raise ValueError(
                "with learner.ranks > 1 no process has the whole weights, while the engine of mode=inline samples from "
                "those that are trained: set mode=local or mode=ray"
            )
        return self
