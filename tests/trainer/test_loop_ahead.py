"""The training loop while groups are sampled ahead of it, on a real pool and a real policy."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.errors import ConfigError
from stepwell.types import UpdateInfo
from tests.trainer.test_loop import Bench, group_records


class Sampler:
    """Makes groups of the version that it begins with, some of them slowly."""

    def __init__(self, bench: Bench, held: Sequence[str], slow: int = 3) -> None:
        self.bench, self.held, self.slow = bench, list(held), slow
        self.numbers = count(1000 * len(bench.pool.updates()))

    async def make(self, begun: Callable[[], None]) -> bool:
        number, version = next(self.numbers), self.bench.learner.policy.version
        begun()
        await asyncio.sleep(0.1 if number % self.slow == 0 else 0.001)
        await asyncio.to_thread(self.bench.pool.put, *group_records(f"g{number}", version))
        return True


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path)
    yield made
    made.pool.close()


async def train(bench: Bench, **settings) -> list[UpdateInfo]:
    trainer = bench.trainer(**settings)
    bench.resumed = trainer.resume()
    return [update async for update in trainer.updates_ahead(lambda held: Sampler(bench, held))]


async def test_all_that_is_trained_on_is_young_enough_and_said_to_be_as_old_as_it_is(bench: Bench) -> None:
    updates = [dict(update.metrics) for update in await train(bench, updates=6, max_staleness=2)]
    assert all(m["staleness_max"] <= 2 for m in updates)
    assert updates[0]["staleness_max"] == 0
    assert max(m["staleness_max"] for m in updates) > 0
    for metrics in updates:
        ages = {name.removeprefix("staleness/"): n for name, n in metrics.items() if name.startswith("staleness/")}
        assert sum(ages.values()) == 2
        assert sum(int(age) * n for age, n in ages.items()) / 2 == metrics["staleness_mean"]
        assert metrics["groups_stale"] == 0
        assert metrics["lag_mean"] == metrics["staleness_mean"]  # one optimiser step each
        assert metrics["trained_tokens_p50"] == metrics["trained_tokens_p90"] == 6.0
        assert metrics["seconds_rollout_paced"] >= 0


async def test_groups_that_are_done_too_late_are_discarded_where_that_is_wanted_and_counted_by_reason(
    bench: Bench,
) -> None:
    class Dawdler(Sampler):
        """Whose first group is done once it is too old; then the others wait until it is."""

        late, done = asyncio.Event(), asyncio.Event()

        async def make(self, begun: Callable[[], None]) -> bool:
            number, version = next(self.numbers), self.bench.learner.policy.version
            begun()
            if number == 0:
                await self.late.wait()
            elif version >= 2:
                self.late.set()
                await self.done.wait()
            await asyncio.to_thread(self.bench.pool.put, *group_records(f"g{number}", version))
            if number == 0:
                self.done.set()
            return True

    trainer = bench.trainer(updates=6, max_staleness=1, stale="discard")
    updates = [dict(u.metrics) async for u in trainer.updates_ahead(lambda held: Dawdler(bench, held))]
    assert len(updates) == 6
    assert all(metrics["staleness_max"] <= 1 for metrics in updates)
    assert sum(metrics["groups_stale/slow"] for metrics in updates) == 1
    assert sum(metrics["tokens_stale"] for metrics in updates) > 0
    (consumption,) = bench.pool.consumption()
    trained = {step.group_id for version in range(1, 7) for step in bench.pool.credit("run", version)}
    assert "g0" not in trained
    assert len(trained) == 6 * 2
    assert consumption.acknowledged == len(trained) + sum(metrics["groups_stale"] for metrics in updates)


def test_discarding_what_cannot_become_stale_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"leave trainer\.stale=discard out"):
        bench.trainer(stale="discard")


async def test_groups_that_were_ready_when_the_run_was_stopped_are_trained_on_first_and_their_tasks_are_told(
    bench: Bench,
) -> None:
    bench.pool.put(*group_records("before", 0))
    held: list[str] = []

    def begin(tasks: Sequence[str]) -> Sampler:
        held.extend(tasks)
        return Sampler(bench, tasks)

    (update,) = [u async for u in bench.trainer(updates=1, max_staleness=1).updates_ahead(begin)]
    assert held == ["task"]
    assert "lease before" in bench.diary.entries
    assert dict(update.metrics)["trajectories"] == 4


async def test_a_run_that_goes_on_does_not_train_on_any_group_twice(bench: Bench) -> None:
    await train(bench, updates=2, max_staleness=2)
    await train(bench, updates=4, max_staleness=2)
    assert bench.resumed
    leased = [entry for entry in bench.diary.entries if entry.startswith("lease ")]
    trained = {group.info.id for _, group in bench.pool.groups("run") if group.state == "ready"}
    assert len(leased) >= 8
    assert {entry.removeprefix("lease ") for entry in leased} <= trained
    (consumption,) = bench.pool.consumption()
    assert consumption.acknowledged == 8


def test_an_algorithm_whose_groups_follow_each_update_is_refused_before_anything_is_done(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.max_staleness=0"):
        bench.trainer(ALGORITHMS["rtpo"]().build(), max_staleness=1)
