"""The training loop: lease ready groups, give credit, update, checkpoint, acknowledge. It knows no algorithm by name.

Order matters where a kill may strike: the checkpoint is written before the lease is acknowledged and remembers the
lease, so no batch is lost and none is trained on twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound
from stepwell.pool.base import Pool
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.trainer.checkpoint import Progress, load_checkpoint, save_checkpoint
from stepwell.trainer.collate import MicroBatch, make_samples, whiten
from stepwell.trainer.update import Learner
from stepwell.types import Credit, Floats, Group, Sample, UpdateInfo


class TrainerConfig(Config):
    """How long, and on how much at a time."""

    updates: int = Field(default=20, ge=0)
    """Policy version at which training stops at the latest."""
    stop_at_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Training stops earlier, once the rollouts of the last five updates earned this much on average."""
    groups_per_update: int = Field(default=16, ge=1)
    """Groups that each update trains on."""
    lease_seconds: float = Field(default=3600.0, gt=0)
    """How long the trainer may hold a batch before the pool hands it to somebody else."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Updates between checkpoints; a killed run repeats at most so many."""


_RECENT: Final = 5

Collect = Callable[[int], Awaitable[None]]
"""Makes that many more groups ready in the pool, sampled by the current policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run's facts go."""

    name: str
    """Name of the run: the pool's channel that it trains on, and its name as the channel's consumer."""
    folder: Path
    """Holds `checkpoints/`."""
    pool: Pool


class Trainer:
    """Executes an algorithm on what a pool holds."""

    def __init__(
        self,
        run: Run,
        learner: Learner,
        algorithm: Algorithm,
        config: TrainerConfig,
        on_micro_batch: Callable[[MicroBatch], None] | None = None,
    ) -> None:
        """`on_micro_batch` sees each micro-batch just before it is trained on."""
        self._run = run
        self._learner = learner
        self._algorithm = algorithm
        self._config = config
        self._on_micro_batch = on_micro_batch
        self._unacknowledged: list[str] = []

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. What a killed run still held is given back."""
        progress = load_checkpoint(self._checkpoints, self._learner.policy, self._learner.optimizer)
        for lease_id in progress.lease_ids if progress else ():
            self._acknowledge(lease_id)
        self._run.pool.release_all(self._run.name)
        self._drop_later(self._learner.policy.version)
        return progress is not None

    def _drop_later(self, version: int) -> None:
        """Never train on what later versions than the checkpoint's sampled: their weights are lost, while their
        numbers will be given to others."""
        while (lease := self._lease_ready(64, version + 1)).groups:
            self._run.pool.acknowledge(lease.id)

    def save(self) -> None:
        """Write a checkpoint of the policy as it is, e.g. after a warm-up, which a restart then need not repeat."""
        progress = Progress(policy_version=self._learner.policy.version, lease_ids=tuple(self._unacknowledged))
        save_checkpoint(self._checkpoints, self._learner.policy, self._learner.optimizer, progress)

    async def updates(self, collect: Collect) -> AsyncIterator[UpdateInfo]:
        """Train until `config.updates` or `config.stop_at_reward`.

        Yields each update after it is published and recorded, and checkpointed and acknowledged if that was its turn.
        """
        while self._learner.policy.version < self._config.updates and not await asyncio.to_thread(self._good_enough):
            started = time.perf_counter()
            leases = await self._lease(collect)
            collected = time.perf_counter()
            metrics = await asyncio.to_thread(self._learn, _in_order(leases))
            metrics |= {"seconds_collect": collected - started, "seconds_learn": time.perf_counter() - collected}
            yield await asyncio.to_thread(self._finish, leases, metrics)

    def _good_enough(self) -> bool:
        if self._config.stop_at_reward is None:
            return False
        version = self._learner.policy.version  # a run that was killed may have recorded later ones, which it will redo
        made = [u for u in self._run.pool.updates(self._run.name) if u.policy_version <= version]
        recent = made[-_RECENT:]
        mean = float(np.mean([dict(u.metrics)["reward_mean"] for u in recent])) if recent else 0.0
        return len(recent) == _RECENT and mean >= self._config.stop_at_reward

    async def _lease(self, collect: Collect) -> list[Lease]:
        """Fresh groups for one update: first what is ready already (after a restart, say), then what is missing."""
        leases: list[Lease] = []
        missing = self._config.groups_per_update
        while missing:
            lease = await asyncio.to_thread(self._lease_ready, missing, self._learner.policy.version)
            if lease.groups:
                leases.append(lease)
                missing -= len(lease.groups)
            else:
                await collect(missing)
        return leases

    def _lease_ready(self, limit: int, min_policy_version: int) -> Lease:
        wanted = Selection(channel=self._run.name, min_policy_version=min_policy_version)
        return self._run.pool.lease(
            LeaseSpec(consumer=self._run.name, limit=limit, seconds=self._config.lease_seconds, selection=wanted)
        )

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        metrics = _collection_metrics(groups)
        samples = self._samples(groups)
        if not samples:
            raise InvalidRequest("none of the leased steps can be trained on: their tokens are unknown or aborted")
        return metrics | self._learner.update(samples, self._algorithm.objective, self._on_micro_batch)

    def _samples(self, groups: Sequence[Group]) -> list[Sample]:
        steps = [s for group in groups for t in group.trajectories for s in t.steps]
        values = self._learner.values(steps, self._algorithm.needs_values)
        credits = self._credits(groups, values)
        return whiten(make_samples(groups, credits, values), self._algorithm.whiten)

    def _credits(self, groups: Sequence[Group], values: dict[str, Floats]) -> dict[str, Credit]:
        inputs = Inputs(values=values)
        return {credit.step_id: credit for group in groups for credit in self._algorithm.assign(group, inputs)}

    def _finish(self, leases: Sequence[Lease], metrics: dict[str, float]) -> UpdateInfo:
        version = self._learner.policy.version
        self._unacknowledged += [lease.id for lease in leases]
        update = UpdateInfo(run=self._run.name, policy_version=version, metrics=tuple(metrics.items()))
        self._run.pool.put(update)
        done = version >= self._config.updates or self._good_enough()
        if done or version % self._config.checkpoint_every == 0:
            self.save()
            for lease_id in self._unacknowledged:
                self._acknowledge(lease_id)
            self._unacknowledged.clear()
        return update

    def _acknowledge(self, lease_id: str) -> None:
        try:
            self._run.pool.acknowledge(lease_id)
        except NotFound as error:
            raise NotFound(f"the checkpoint was made with another pool: {error}") from error

    @property
    def _checkpoints(self) -> Path:
        return self._run.folder / "checkpoints"


def _in_order(leases: Sequence[Lease]) -> list[Group]:
    """The groups as they were opened: which of them was ready first is a race, and must not change an update."""
    groups = [group for lease in leases for group in lease.groups]
    return sorted(groups, key=lambda group: (group.info.created_at, group.info.id))


def _collection_metrics(groups: Sequence[Group]) -> dict[str, float]:
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = np.array([t.reward for t in trajectories], np.float64)
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "trajectories": float(len(trajectories)),
        "steps_per_trajectory": float(np.mean([len(t.steps) for t in trajectories])),
        "truncated_rate": float(np.mean([t.status == "truncated" for t in trajectories])),
    }
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.reward_parts:
            parts.setdefault(name, []).append(value)
    return metrics | {f"reward/{name}": sum(values) / len(trajectories) for name, values in parts.items()}
