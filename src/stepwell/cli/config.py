"""What a recipe says: one section per component, each checked by the component itself."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from stepwell.config import Config
from stepwell.gateway.config import GatewayConfig
from stepwell.policy.model import PolicyConfig
from stepwell.rollout.agent import ChatAgentConfig
from stepwell.rollout.run import RolloutConfig
from stepwell.trainer.loop import TrainerConfig
from stepwell.trainer.update import LearnerConfig


class WarmupConfig(Config):
    """Supervised updates on demonstrations before the first version is served."""

    updates: int = 0
    """Number of supervised updates; 0 for none. Only for environments that give demonstrations (`lookup`)."""
    batch_size: int = 64
    """Demonstrations per update."""
    lr: float = 1e-3
    """AdamW's learning rate."""
    wrong: float = 0.4
    """Share of arguments in the demonstrations that are random, in 0..1: they teach form, not use."""


class EvalConfig(Config):
    """Held-out evaluation."""

    tasks: int = 64
    """Tasks of the test split, the same before and after."""
    temperature: float = 1.0
    """Sampling temperature."""


class RecipeConfig(Config):
    """A complete run."""

    name: str = "run"
    """Name of the run, shown wherever its data are."""
    seed: int = 0
    """Seeds weights made here, sampling, and the order of tasks."""
    policy: PolicyConfig = PolicyConfig()
    """The model."""
    tool_format: str | None = None
    """How tool calls are written (`hermes`, `line`); None lets the chat template decide."""
    max_batch: int = 64
    """Requests that the local engine samples at once."""
    environment: Mapping[str, Any] = Field(default_factory=lambda: {"use": "lookup"})
    """`use`: a name in `ENVIRONMENTS` or a class; the other keys are its settings."""
    algorithm: Mapping[str, Any] = Field(default_factory=lambda: {"use": "steppo"})
    """`use`: a name in `ALGORITHMS` or a class; the other keys are its settings."""
    warmup: WarmupConfig = WarmupConfig()
    """Supervised warm-up."""
    agent: ChatAgentConfig = ChatAgentConfig()
    """The built-in agent."""
    rollout: RolloutConfig = RolloutConfig()
    """How trajectories are run."""
    learner: LearnerConfig = LearnerConfig()
    """The optimiser."""
    trainer: TrainerConfig = TrainerConfig()
    """The loop."""
    evaluation: EvalConfig = EvalConfig()
    """Held-out evaluation, before and after."""
    gateway: GatewayConfig = GatewayConfig()
    """The gateway."""
