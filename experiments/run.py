"""One run: a policy is warmed up, learns by one algorithm, and is tried on held-out tasks as it goes."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file

from experiments.collecting import Collecting, batches
from experiments.model import WarmUp, Words, warmed_up
from experiments.play import Player
from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Language
from stepwell.algorithms.ppo import PPO
from stepwell.cache import cached
from stepwell.config import Config, component_config
from stepwell.environments.cipher import Cipher, CipherConfig
from stepwell.policy.critic import CriticKind
from stepwell.policy.model import Policy
from stepwell.prefix_tree.pack import Merging
from stepwell.trainer.scoring import Scored, response_logprobs
from stepwell.trainer.study import Study
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Floats, Group

_NO_CHECKPOINTS: Final = Path("no-checkpoints")
_MEASURED: Final = {
    "clip_fraction": "clipped",
    "zero_advantage_rate": "alike",
    "entropy": "entropy",
    "explained_variance": "explained",
}
"""Metrics of an update, and what they are called in a `Point`."""


class Learning(LearnerConfig):
    """The optimiser, as it suits a policy this small: eight optimiser steps per update, of 32 steps each."""

    lr: float = Field(default=5e-4, ge=0)
    """See `LearnerConfig.lr`."""
    critic_lr: float = Field(default=5e-3, ge=0)
    """See `LearnerConfig.critic_lr`."""
    minibatch_steps: int | None = Field(default=32, ge=1)
    """See `LearnerConfig.minibatch_steps`."""
    tree: Merging = "off"
    """See `LearnerConfig.tree`: rows this short share too little."""


class RunConfig(Config):
    """All that decides a run."""

    environment: CipherConfig = CipherConfig()
    """The task."""
    warm_up: WarmUp = WarmUp()
    """Where the policy begins."""
    algorithm: Mapping[str, Any]
    """As in a recipe."""
    learner: Learning = Learning()
    """As in a recipe."""
    critic: CriticKind = "model"
    """As `policy.critic` in a recipe."""
    critic_updates: int = Field(default=0, ge=0)
    """So many updates of the first policy's rollouts the critic has seen, at no charge; the policy learnt nothing."""
    collecting: Collecting = Collecting()
    """What an update is made of."""
    budget: int = Field(default=15_000, ge=1)
    """Where it ends, in `axis`."""
    axis: Literal["tokens", "updates"] = "tokens"
    """What the budget counts: response tokens that were sampled for training, or updates."""
    trials: int = Field(default=5, ge=1)
    """How often it is tried, evenly over the budget."""
    trial_turns: int = Field(default=512, ge=1)
    """Turns of a trial: the same held-out tasks each time, and the same luck."""
    seed: int = Field(default=0, ge=0)
    """Of all of it."""

    @property
    def key(self) -> str:
        """Equal for runs with the same settings, defaults of the algorithm among them."""
        algorithm = {"use": self.algorithm["use"], **self._algorithm.model_dump(mode="json")}
        decides = self.model_dump(mode="json") | {"algorithm": algorithm}
        return sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    def build_algorithm(self) -> Algorithm:
        """What it learns by. Raises ConfigError."""
        return self._algorithm.build()

    @property
    def _algorithm(self) -> AlgorithmConfig:
        return component_config(ALGORITHMS, AlgorithmConfig, self.algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How a run stands after so much of everything; measures are means over the updates since the point before."""

    tokens: int
    """Sampled for training, in all that was played: trunks and siblings that were dropped, too."""
    steps: int
    """Of the environment, in these."""
    updates: int
    seconds: float
    """CPU time of playing and learning, without trials."""
    score: float
    """Mean reward on the held-out tasks."""
    ratio: float = 1.0
    """Mean probability ratio of training to rollout before the first optimiser step, of the last update's tokens."""
    clipped: float = 0.0
    """Share of tokens whose ratio was clipped."""
    alike: float = 0.0
    """Share of trained steps without an advantage."""
    entropy: float = 0.0
    """Nats per token."""
    explained: float = 0.0
    """Share of the returns' variance that the critic knew."""


def run(config: RunConfig) -> list[Point]:
    """Train, and try; one point before the first update, and one for each trial."""
    torch.set_num_threads(1)
    words, tasks = Words(), config.environment.build()
    policy = warmed_up(config.environment, config.warm_up, config.critic, config.seed)
    if config.critic_updates:
        _teach_critic(config, policy, words, tasks)
    algorithm = config.build_algorithm()
    language = Language(tokenize=words.ids, action_mask=lambda step: np.ones(len(step.response_ids), bool))
    study = Study(Learner(policy, config.learner), algorithm, _NO_CHECKPOINTS, language=language)
    player = Player(policy, tasks, words, seed=config.seed, shown=config.collecting.shown)
    points = [Point(tokens=0, steps=0, updates=0, seconds=0.0, score=_trial(config, policy, tasks, words))]
    for spent in _updates(config, study, algorithm, player, tasks):
        points.append(replace(spent, score=_trial(config, policy, tasks, words)))
    return points


def _teach_critic(config: RunConfig, policy: Policy, words: Words, tasks: Cipher) -> None:
    """Values before each token, so that any algorithm can begin with them; kept in the cache."""
    environment, warm_up = config.environment.model_dump(mode="json"), config.warm_up.model_dump(mode="json")
    decides = [environment, warm_up, config.learner.model_dump(mode="json"), config.critic_updates, config.seed]
    name = sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    def learn(folder: Path) -> None:
        algorithm = PPO().build()
        study = Study(Learner(policy, config.learner.model_copy(update={"lr": 0.0})), algorithm, _NO_CHECKPOINTS)
        player = Player(policy, tasks, words, seed=config.seed)
        fresh = batches(Collecting(group_size=1), algorithm, player, iter(tasks.tasks("train")), tasks.config.turns)
        for groups in islice(fresh, config.critic_updates):
            study.learn(groups)
        save_file(policy.critic.state_dict(), folder / "critic.safetensors")

    policy.critic.load_state_dict(load_file(cached(f"experiments/{name}", learn) / "critic.safetensors"))
    policy.version = 0


def _updates(config: RunConfig, study: Study, algorithm: Algorithm, player: Player, tasks: Cipher) -> Iterator[Point]:
    """Make all updates; gives what was spent and measured, without a score, whenever a trial is due."""
    order = np.random.default_rng(config.seed).permutation(len(tasks.tasks("train")))
    groups = batches(config.collecting, algorithm, player, (f"train-{number}" for number in order), tasks.config.turns)
    seconds, updates, due = 0.0, 0, 1
    told: list[Mapping[str, float]] = []
    while due <= config.trials:
        begun = time.process_time()
        batch = next(groups)
        played = time.process_time()
        ratio = _ratio(study.learner.policy, batch) if _is_due(config, due, player, updates + 1) else 1.0
        looked = time.process_time()
        told.append(study.learn(batch).metrics)
        seconds += time.process_time() - looked + played - begun
        updates += 1
        if not _is_due(config, due, player, updates):
            continue
        while _is_due(config, due, player, updates) and due <= config.trials:
            due += 1
        measured = {name: _mean(told, metric) for metric, name in _MEASURED.items()}
        told.clear()
        spent = player.spent
        yield Point(
            tokens=spent.tokens,
            steps=spent.steps,
            updates=updates,
            seconds=seconds,
            score=0.0,
            ratio=ratio,
            **measured,
        )


def _is_due(config: RunConfig, due: int, player: Player, updates: int) -> bool:
    so_far = player.spent.tokens if config.axis == "tokens" else updates
    return so_far * config.trials >= due * config.budget


def _mean(told: Sequence[Mapping[str, float]], metric: str) -> float:
    # of returns that hardly vary a critic explains less than nothing, without bound
    known = [max(metrics[metric], -1.0) for metrics in told if metric in metrics]
    return float(np.mean(known)) if known else 0.0


def _ratio(policy: Policy, groups: Sequence[Group]) -> float:
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    scores = response_logprobs(policy, [Scored(s.prompt_ids, s.response_ids, 1.0) for s in steps], 16_384, "off")
    gaps: list[Floats] = [score - step.logprobs for step, score in zip(steps, scores, strict=True)]
    return float(np.exp(np.concatenate(gaps).astype(np.float64)).mean())


def _trial(config: RunConfig, policy: Policy, tasks: Cipher, words: Words) -> float:
    player = Player(policy, tasks, words, seed=config.seed, shown=config.collecting.shown)
    episodes = [player.begin(f"test-{number}") for number in range(max(config.trial_turns // tasks.config.turns, 1))]
    player.play(episodes)
    return float(np.mean([sum(episode.rewards) for episode in episodes]))
