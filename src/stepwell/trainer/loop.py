"""The training loop: lease ready groups, have them learnt, checkpoint, acknowledge.

Order matters where a kill may strike: the checkpoint is written before the lease is acknowledged and remembers the
lease, so no batch is lost and none is trained on twice.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from stepwell.algorithms.base import Algorithm
from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.errors import ConfigError, Conflict, InvalidRequest, NotFound
from stepwell.policy.ranks import ALONE
from stepwell.pool.base import Pool
from stepwell.pool.credit import StepCredit
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.trainer.ahead import Ahead, Producer, Stale
from stepwell.trainer.checkpoint import Progress
from stepwell.trainer.credited import credited
from stepwell.trainer.metrics import collected
from stepwell.trainer.staleness import lag, staleness
from stepwell.trainer.study import Learnt, Study
from stepwell.trainer.together import Together
from stepwell.types import Group, UpdateInfo


class TrainerConfig(Config):
    """How long, and on how much at a time."""

    updates: int = Field(default=20, ge=0)
    """Policy version at which training stops at the latest."""
    stop_at_reward: float | None = None
    """Training stops earlier, once the rollouts of the last five updates earned this much on average."""
    stop_at_tokens: int | None = Field(default=None, ge=1)
    """Training stops earlier, once so many response tokens were sampled for its updates, in all of the run's processes
    together: the sum of their metric `sampled_tokens`, in which trunks, dropped siblings and failures count too."""
    groups_per_update: int = Field(default=16, ge=1)
    """Groups that each update trains on."""
    lease_seconds: float = Field(default=3600.0, gt=0)
    """How long the trainer may hold a batch before the pool hands it to somebody else."""
    max_staleness: int = Field(default=0, ge=0)
    """0: each update trains on what the policy sampled as it is then, and sampling waits for the update. More: sampling
    goes on during updates, and so many of them may lie between a trajectory's first token and its own (see
    `old_logprobs` and `correction` of the algorithm's objective for what to do about it)."""
    stale: Stale = "wait"
    """What is done with `max_staleness`, so that nothing older is trained on. `wait`: nothing is lost, as each update
    waits for the slow groups that would be too old after it. `discard`: it waits for none, and what is done too late is
    counted and never trained on, which makes what is trained on quicker, and so different, than what is sampled."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Updates between checkpoints; a killed run repeats at most so many."""
    record_credit: bool = True
    """Whether the pool keeps, for each update, which steps it was trained on, with the credit of each."""

    def check(self, algorithm: Algorithm) -> None:
        """Refuse what this algorithm cannot be run with, or what means nothing. Raises ConfigError."""
        if self.stale == "discard" and not self.max_staleness:
            raise ConfigError("with trainer.max_staleness=0 nothing becomes stale: leave trainer.stale=discard out")
        if self.max_staleness and algorithm.siblings is not None:
            raise ConfigError("siblings are sampled turn by turn, each after an update: set trainer.max_staleness=0")


_log: Final = logging.getLogger(__name__)
_RECENT: Final = 5
_FRUITLESS: Final = 3
"""So often groups are collected that cannot be leased before that is taken for a mistake."""

Collect = Callable[[int, Sequence[str]], Awaitable[int]]
"""Makes more groups ready in the pool, sampled by the current policy, for an update that wants so many and has groups
of those tasks already. Gives how many the update is to wait for: fewer than it wanted where there are to be no more. It
is asked again for those that it has not made yet."""
Measured = Callable[[], Mapping[str, float]]
"""What was measured, outside of the trainer, since it was last asked: for an update's metrics."""


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

    def __init__(self, run: Run, study: Study, config: TrainerConfig, together: Together | None = None) -> None:
        """Of several ranks, this is for the first one; the others follow it by `together`.

        Raises:
            ConfigError: the algorithm cannot be run so.
        """
        config.check(study.algorithm)
        self._run = run
        self._policy = study.learner.policy
        self._siblings = study.algorithm.siblings is not None
        self._aggregation = study.algorithm.objective.aggregation
        self._config = config
        self._ranks = together or Together(ALONE, study.functions)
        self._unacknowledged: list[str] = []
        self._held: dict[str, float] = {}
        """Leases, and the Unix time at which each expires."""
        self._published = 0
        """The version that whoever samples has; only looked at while they sample ahead."""
        self.publish: Callable[[], None] = lambda: None
        """Called after each update, in a thread: returns once whoever samples has its weights."""

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. What a killed run still held is given back."""
        progress: Progress | None = self._ranks.call("load")
        for lease_id in progress.lease_ids if progress else ():
            try:
                self._acknowledge(lease_id)
            except Conflict as error:  # it expired; the weights hold what it brought all the same
                _log.warning("a batch of the checkpoint is not acknowledged: %s", error)
        self._run.pool.release_all(self._run.name)
        self._drop_later(self._policy.version)
        return progress is not None

    def _drop_later(self, version: int) -> None:
        """Never train on what later versions than the checkpoint's sampled: their weights are lost, while their
        numbers will be given to others."""
        while (lease := self._lease_ready(64, version + 1)).groups:
            self._acknowledge(lease.id)

    def save(self) -> None:
        """Write a checkpoint of the policy as it is, e.g. after a warm-up, which a restart then need not repeat."""
        self._ranks.call("save", self._unacknowledged)

    async def updates(self, collect: Collect, measured: Measured = dict) -> AsyncIterator[UpdateInfo]:
        """Train until `config.updates`, or until it is enough; `measured` is asked once the groups are there.

        Yields each update after it is published and recorded, and checkpointed and acknowledged if that was its turn.
        """
        async for update in self._updates(partial(self._lease, collect), measured):
            yield update

    async def updates_ahead(
        self, producer: Callable[[Sequence[str]], Producer], measured: Measured = dict
    ) -> AsyncGenerator[UpdateInfo, None]:
        """As `updates`, of groups that are made in the meantime, at most `config.max_staleness` updates old, whatever
        `config.stale` does for that.

        `producer` is told of which tasks there are groups already, and makes those after them.
        """
        config = self._config
        self._published = self._policy.version

        async def lease() -> Lease:
            least = 0 if config.stale == "discard" else max(self._published - config.max_staleness, 0)
            return await asyncio.to_thread(self._lease_ready, 1, least)

        async def forget(stale: Lease) -> None:
            await asyncio.to_thread(self._acknowledge, stale.id)

        ready: list[Lease] = []
        while (one := await lease()).groups:
            ready.append(one)
        ahead = Ahead(
            producer([group.info.task_id for one in ready for group in one.groups]),
            lease,
            lambda: self._published,
            per_update=config.groups_per_update,
            max_staleness=config.max_staleness,
            stale=config.stale,
            ready=ready,
            forget=forget,
        )
        async with ahead:
            async for update in self._updates(ahead.batch, lambda: {**measured(), **ahead.measured()}):
                yield update

    async def _updates(
        self, batch: Callable[[], Awaitable[list[Lease]]], measured: Measured
    ) -> AsyncIterator[UpdateInfo]:
        while self._policy.version < self._config.updates and not await asyncio.to_thread(self._enough):
            started = time.perf_counter()
            leases = await batch()
            begun = time.perf_counter()
            others = measured()
            metrics, credits = await asyncio.to_thread(self._learn, _in_order(leases))
            learnt = time.perf_counter()
            await asyncio.to_thread(self.publish)
            self._published = self._policy.version
            metrics |= {
                **others,
                **lag(metrics),
                "seconds_collect": begun - started,
                "seconds_learn": learnt - begun,
                "seconds_publish": time.perf_counter() - learnt,
            }
            yield await asyncio.to_thread(self._finish, leases, metrics, credits)

    def _enough(self) -> bool:
        if self._config.stop_at_reward is None and self._config.stop_at_tokens is None:
            return False
        version = self._policy.version  # a run that was killed may have recorded later ones, which it will redo
        made = [dict(u.metrics) for u in self._run.pool.updates(self._run.name) if u.policy_version <= version]
        return self._good_enough(made) or self._spent(made)

    def _good_enough(self, made: Sequence[Mapping[str, float]]) -> bool:
        if self._config.stop_at_reward is None or len(made) < _RECENT:
            return False
        return float(np.mean([metrics["reward_mean"] for metrics in made[-_RECENT:]])) >= self._config.stop_at_reward

    def _spent(self, made: Sequence[Mapping[str, float]]) -> bool:
        budget = self._config.stop_at_tokens
        return budget is not None and sum(metrics.get("sampled_tokens", 0.0) for metrics in made) >= budget

    async def _lease(self, collect: Collect) -> list[Lease]:
        """Fresh groups for one update: first what is ready already (after a restart, say), then what is missing."""
        leases: list[Lease] = []
        missing, unsuccessful = self._config.groups_per_update, 0
        while missing:
            lease = await asyncio.to_thread(self._lease_ready, missing, self._policy.version)
            if lease.groups:
                leases.append(lease)
                missing -= len(lease.groups)
                unsuccessful = 0
            else:
                missing = await collect(missing, [group.info.task_id for lease in leases for group in lease.groups])
                unsuccessful += 1
                if unsuccessful == _FRUITLESS:
                    raise InvalidRequest(
                        f"groups were collected {_FRUITLESS} times, but the pool hands none of them to "
                        f"{self._run.name!r}: see `stepwell pool stats` for what it dropped, and why"
                    )
        return leases

    def _lease_ready(self, limit: int, min_policy_version: int) -> Lease:
        wanted = Selection(channel=self._run.name, min_policy_version=min_policy_version)
        spec = LeaseSpec(
            consumer=self._run.name,
            unit="siblings" if self._siblings else "group",
            limit=limit,
            seconds=self._config.lease_seconds,
            selection=wanted,
        )
        self._keep()
        lease = self._run.pool.lease(spec)
        if lease.groups:
            self._held[lease.id] = lease.expires_at
        return lease

    def _keep(self) -> None:
        """Hold on to what is held. Only a lease hands over what expired, and only we lease for this run: so, before
        each."""
        seconds = self._config.lease_seconds
        for lease_id, until in self._held.items():
            if until < time.time() + seconds / 2:
                self._held[lease_id] = self._run.pool.extend(lease_id, seconds)

    def _learn(self, groups: Sequence[Group]) -> tuple[dict[str, float], list[StepCredit]]:
        metrics = collected(groups) | staleness(groups, self._policy.version)
        learnt: Learnt = self._ranks.call("learn", groups)
        credits = credited(groups, learnt.samples, self._aggregation) if self._config.record_credit else []
        return metrics | learnt.metrics, credits

    def _finish(
        self, leases: Sequence[Lease], metrics: Mapping[str, float], credits: Sequence[StepCredit]
    ) -> UpdateInfo:
        version = self._policy.version
        self._unacknowledged += [lease.id for lease in leases]
        update = UpdateInfo(run=self._run.name, policy_version=version, metrics=tuple(metrics.items()))
        if credits:  # first: whoever sees the update finds what it was trained on
            self._run.pool.record_credit(self._run.name, version, credits)
        self._run.pool.put(update)
        done = version >= self._config.updates or self._enough()
        if done or version % self._config.checkpoint_every == 0:
            self.save()
            for lease_id in self._unacknowledged:
                self._acknowledge(lease_id)
            self._unacknowledged.clear()
        return update

    def _acknowledge(self, lease_id: str) -> None:
        self._held.pop(lease_id, None)
        try:
            self._run.pool.acknowledge(lease_id)
        except NotFound as error:
            raise NotFound(f"the checkpoint was made with another pool: {error}") from error


def _in_order(leases: Sequence[Lease]) -> list[Group]:
    """The groups as they were opened: which of them was ready first is a race, and must not change an update."""
    groups = [group for lease in leases for group in lease.groups]
    return sorted(groups, key=lambda group: (group.info.created_at, group.info.id))
