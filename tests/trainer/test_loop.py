"""The training loop on a real pool with hand-made groups: what is trained on, in which order, and after a kill."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, Inputs, Language
from stepwell.algorithms.objective import Objective
from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound
from stepwell.policy.weights import checkpoints
from stepwell.pool.base import Pool
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.trainer.collate import MicroBatch
from stepwell.trainer.loop import Run, Trainer, TrainerConfig
from stepwell.trainer.study import Study
from stepwell.types import Annotation, Credit, Group, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo
from tests.policy.tiny import random_ids, tiny_policy
from tests.trainer.builders import make_learner

RUN = "run"


def group_records(
    name: str, version: int = 0, channel: str = RUN, rewards: Sequence[float] = (1.0, 0.0)
) -> list[Record]:
    """A ready group of two-step trajectories; every prompt begins with the group's mark."""
    records: list[Record] = [GroupInfo(id=name, task_id="task", size=len(rewards), channel=channel)]
    for number, reward in enumerate(rewards):
        trajectory = f"{name}-{number}"
        records.append(TrajectoryInfo(id=trajectory, group_id=name))
        for index in range(2):
            records.append(
                Step(
                    id=f"{trajectory}-{index}",
                    trajectory_id=trajectory,
                    index=index,
                    prompt_ids=[mark(name), *random_ids(2 + index, number)],
                    response_ids=random_ids(3, 7 + number),
                    logprobs=np.full(3, -3.0),
                    policy_version_min=version,
                    policy_version_max=version,
                )
            )
        records += [Annotation.reward("trajectory", trajectory, reward), Annotation.end(trajectory, "terminated")]
    return records


def mark(group: str) -> int:
    """A first prompt token of the group's own."""
    return 1 + sum(group.encode()) % 39


class Diary:
    """A pool that writes down what it is asked, and can die when asked to acknowledge. Otherwise the pool given."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.entries: list[str] = []
        self.dies_at_acknowledge = False

    def __getattr__(self, name: str):
        return getattr(self._pool, name)

    def lease(self, spec: LeaseSpec) -> Lease:
        lease = self._pool.lease(spec)
        self.entries += [f"lease {group.info.id}" for group in lease.groups]
        return lease

    def acknowledge(self, lease_id: str) -> None:
        if self.dies_at_acknowledge:
            raise Killed
        self._pool.acknowledge(lease_id)
        self.entries.append("acknowledge")

    def put(self, *records: Record) -> None:
        self._pool.put(*records)
        self.entries += [f"update {r.policy_version}" for r in records if isinstance(r, UpdateInfo)]


class Killed(Exception):
    """Stands for the death of the process."""


def tokens_of(text: str) -> np.ndarray:
    """A tokenizer of sorts, for hints."""
    return np.frombuffer(text.encode()[:20], np.uint8).astype(np.int32) % 30


LANGUAGE = Language(tokenize=tokens_of, action_mask=lambda step: np.ones(len(step.response_ids), np.bool_))


class Bench:
    """A pool that outlives its trainers, as a file does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = SQLitePool.open(folder / "pool.sqlite")
        self.diary = Diary(self.pool)
        self.trained: list[int] = []
        """The group marks of all rows trained on, in order."""
        self.collected: list[int] = []
        """What the collector was asked for."""
        self.held: list[list[str]] = []
        """The tasks that it was told are there."""
        self.watch: Callable[[MicroBatch], None] = self._look

    def trainer(self, algorithm: Algorithm | None = None, seed: int = 0, **settings) -> Trainer:
        """A new process: a policy that knows nothing yet of what the last one learnt."""
        self.learner = make_learner(tiny_policy(seed=seed))
        run = Run(name=RUN, folder=self.folder, pool=self.diary)
        config = TrainerConfig(**{"updates": 2, "groups_per_update": 2, **settings})
        chosen = algorithm or ALGORITHMS["grpo"]().build()
        return Trainer(run, Study(self.learner, chosen, self.folder / "checkpoints", self.watch, LANGUAGE), config)

    def _look(self, batch: MicroBatch) -> None:
        marks = [int(row[0]) for row in batch.rows()]
        self.trained += marks
        self.diary.entries.append(f"train {len(set(marks))} groups")

    async def collect(self, count: int, held: Sequence[str] = ()) -> int:
        """Samples groups by the policy as it is now."""
        self.collected.append(count)
        self.held.append(list(held))
        self.diary.entries.append(f"collect {count}")
        for _ in range(count):
            self.pool.put(*group_records(f"new-{self.pool.stats().groups}", self.learner.policy.version))
        return count

    async def train(self, trainer: Trainer, collect: Callable | None = None) -> list[UpdateInfo]:
        return [update async for update in trainer.updates(collect or self.collect)]


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path)
    yield made
    made.pool.close()


async def test_an_update_is_leased_trained_recorded_checkpointed_and_only_then_acknowledged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = bench.trainer(updates=1)
    save = trainer.save
    monkeypatch.setattr(trainer, "save", lambda: (save(), bench.diary.entries.append("checkpoint")))
    bench.pool.put(*group_records("a"), *group_records("b"))
    (update,) = await bench.train(trainer)
    assert bench.diary.entries == ["lease a", "lease b", "train 2 groups", "update 1", "checkpoint", "acknowledge"]
    assert bench.pool.updates(RUN) == [update]
    assert [path.name for path in checkpoints(bench.folder / "checkpoints")] == ["000001"]


async def test_what_others_measured_while_the_groups_were_collected_is_among_the_metrics_of_the_update(
    bench: Bench,
) -> None:
    measured = iter([{"prefix_cache_hit_rate": 0.5}, {}])
    updates = bench.trainer().updates(bench.collect, lambda: next(measured))
    first, second = [dict(update.metrics) async for update in updates]
    assert first["prefix_cache_hit_rate"] == 0.5
    assert "prefix_cache_hit_rate" not in second


async def test_ready_groups_are_used_before_new_ones_are_collected(bench: Bench) -> None:
    bench.pool.put(*group_records("a"))
    await bench.train(bench.trainer(updates=1))
    assert bench.collected == [1]
    assert bench.held == [["task"]]
    assert bench.trained.count(mark("a")) == 4
    assert len(bench.trained) == 8


async def test_a_collector_that_comes_back_short_is_asked_again_for_what_is_missing(bench: Bench) -> None:
    async def one_at_a_time(count: int, held: Sequence[str]) -> int:
        bench.collected.append(count)
        bench.pool.put(*group_records(f"c{count}"))
        return count

    await bench.train(bench.trainer(updates=1, groups_per_update=3), one_at_a_time)
    assert bench.collected == [3, 2, 1]


async def test_groups_of_an_older_policy_and_of_other_runs_are_never_trained_on(bench: Bench) -> None:
    bench.pool.put(*group_records("foreign", channel="somebody-else"))
    bench.pool.put(*group_records("a"), *group_records("b"), *group_records("old"))
    await bench.train(bench.trainer(updates=2))
    assert bench.collected == [2]
    assert mark("old") not in bench.trained
    assert mark("foreign") not in bench.trained
    assert len(bench.trained) == 16


async def test_each_update_raises_the_version_by_one_up_to_the_last(bench: Bench) -> None:
    updates = await bench.train(bench.trainer(updates=3))
    assert [update.policy_version for update in updates] == [1, 2, 3]
    assert bench.learner.policy.version == 3
    assert await bench.train(bench.trainer(updates=0)) == []


async def test_metrics_describe_what_was_collected(bench: Bench) -> None:
    bench.pool.put(*group_records("a", rewards=(1.0, 0.0)), *group_records("b", rewards=(1.0, 1.0)))
    (update,) = await bench.train(bench.trainer(updates=1))
    metrics = dict(update.metrics)
    assert metrics["reward_mean"] == 0.75
    assert metrics["reward/reward"] == 0.75
    assert metrics["trajectories"] == 4
    assert metrics["steps_per_trajectory"] == 2
    assert metrics["trained_steps"] == 8
    assert metrics["zero_advantage_rate"] == 0.5  # all did equally well in group b


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
async def test_every_algorithm_trains(bench: Bench, name: str) -> None:
    settings = {"plain_groups": "first_step"} if name == "rtpo" else {}  # the groups here were not forked
    (update,) = await bench.train(bench.trainer(ALGORITHMS[name](**settings).build(), updates=1))
    metrics = dict(update.metrics)
    assert metrics["grad_norm"] > 0
    assert np.isfinite(list(metrics.values())).all()
    assert ("explained_variance" in metrics) == (ALGORITHMS[name]().build().needs_values != "none")


async def test_an_update_in_which_the_algorithm_wants_nothing_trained_counts_and_changes_nothing(bench: Bench) -> None:
    def assign(group: Group, inputs: Inputs) -> list[Credit]:
        steps = [step for trajectory in group.trajectories for step in trajectory.steps]
        return [Credit(step_id=s.id, advantages=np.zeros(len(s.response_ids)), trained=False) for s in steps]

    trainer = bench.trainer(Algorithm(name="nothing", assign=assign, objective=Objective()), updates=1)
    before = {name: tensor.clone() for name, tensor in bench.learner.policy.trainable_state().items()}
    (update,) = await bench.train(trainer)
    assert dict(update.metrics)["trained_steps"] == 0
    assert update.policy_version == 1
    assert all(torch.equal(before[n], tensor) for n, tensor in bench.learner.policy.trainable_state().items())


async def test_an_update_trains_on_what_the_algorithm_makes_of_its_groups_and_tells_what_it_says_of_them(
    bench: Bench,
) -> None:
    plain = ALGORITHMS["grpo"]().build()
    algorithm = replace(
        plain,
        regroup=lambda groups: groups[:1],
        diagnose=lambda group, inputs: {"members": float(len(group.trajectories))},
    )
    bench.pool.put(*group_records("a"), *group_records("b"))
    (update,) = await bench.train(bench.trainer(algorithm, updates=1))
    assert set(bench.trained) == {mark("a")}
    assert dict(update.metrics)["members"] == 2


async def test_a_batch_checkpointed_but_not_acknowledged_is_acknowledged_on_resume_and_not_trained_on_again(
    bench: Bench,
) -> None:
    bench.pool.put(*group_records("a"), *group_records("b"))
    bench.diary.dies_at_acknowledge = True
    with pytest.raises(Killed):
        await bench.train(bench.trainer())
    weights = {name: tensor.clone() for name, tensor in bench.learner.policy.trainable_state().items()}
    assert bench.trained.count(mark("a")) == 4

    bench.diary.dies_at_acknowledge = False
    second = bench.trainer(seed=5)
    assert second.resume()
    assert bench.learner.policy.version == 1
    assert all((weights[name] == t).all() for name, t in bench.learner.policy.trainable_state().items())
    assert bench.diary.entries[-1] == "acknowledge"
    assert bench.pool.lease(LeaseSpec(consumer=RUN, limit=9, selection=Selection(channel=RUN))).groups == ()

    updates = await bench.train(second)
    assert [update.policy_version for update in updates] == [2]
    assert bench.trained.count(mark("a")) == bench.trained.count(mark("b")) == 4


async def test_a_run_killed_while_it_learnt_trains_on_the_same_groups_after_it_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.train(bench.trainer(updates=1))
    bench.pool.put(*group_records("a", 1), *group_records("b", 1))
    second = bench.trainer()
    assert second.resume()
    monkeypatch.setattr(bench.learner, "update", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        await bench.train(second)
    third = bench.trainer()
    assert third.resume()
    await bench.train(third)
    assert bench.collected == [2]
    assert bench.trained.count(mark("a")) == bench.trained.count(mark("b")) == 4


async def test_a_run_killed_before_its_first_checkpoint_gets_its_groups_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.pool.put(*group_records("a"), *group_records("b"))
    first = bench.trainer(updates=1)
    monkeypatch.setattr(bench.learner, "update", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        await bench.train(first)
    second = bench.trainer(updates=1)
    assert not second.resume()
    await bench.train(second)
    assert bench.collected == []


async def test_what_lost_versions_sampled_is_never_trained_on_after_a_restart(bench: Bench) -> None:
    await bench.train(bench.trainer(updates=2, checkpoint_every=2))
    bench.pool.put(*group_records("lost", version=3), *group_records("kept", version=2))
    before = len(bench.trained)
    restarted = bench.trainer(updates=3, groups_per_update=1)
    assert restarted.resume()
    await bench.train(restarted)
    assert set(bench.trained[before:]) == {mark("kept")}


async def test_training_stops_early_once_five_updates_earned_enough_and_a_restart_agrees(bench: Bench) -> None:
    assert len(await bench.train(bench.trainer(updates=9, stop_at_reward=0.5))) == 5  # each group earns 0.5
    restarted = bench.trainer(updates=9, stop_at_reward=0.5)
    assert restarted.resume()
    assert await bench.train(restarted) == []
    more_demanding = bench.trainer(updates=7, stop_at_reward=0.6)
    assert more_demanding.resume()
    assert len(await bench.train(more_demanding)) == 2


async def test_training_stops_once_so_many_tokens_were_sampled_and_a_restart_counts_on(bench: Bench) -> None:
    first = await bench.train(bench.trainer(updates=9, stop_at_tokens=25))  # an update has 2 groups of 12 each
    assert [dict(update.metrics)["sampled_tokens"] for update in first] == [24, 24]
    restarted = bench.trainer(updates=9, stop_at_tokens=48)
    assert restarted.resume()
    assert await bench.train(restarted) == []
    larger = bench.trainer(updates=9, stop_at_tokens=49)
    assert larger.resume()
    assert [update.policy_version for update in await bench.train(larger)] == [3]


async def test_the_rollouts_own_count_of_sampled_tokens_is_the_one_that_is_spent(bench: Bench) -> None:
    """Trunks, failures and what was dropped are sampled too, and are in no group that is leased."""
    trainer = bench.trainer(updates=9, stop_at_tokens=100)
    updates = [update async for update in trainer.updates(bench.collect, lambda: {"sampled_tokens": 100.0})]
    assert [dict(update.metrics)["sampled_tokens"] for update in updates] == [100]


async def test_between_sparse_checkpoints_nothing_is_acknowledged_that_a_kill_would_lose(bench: Bench) -> None:
    trainer = bench.trainer(updates=3, checkpoint_every=2, groups_per_update=1)
    await bench.train(trainer)
    saved = [entry for entry in bench.diary.entries if entry.startswith(("ack", "update"))]
    assert saved == ["update 1", "update 2", "acknowledge", "acknowledge", "update 3", "acknowledge"]


async def test_a_checkpoint_made_with_another_pool_is_refused_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    await bench.train(bench.trainer(updates=1))
    (tmp_path / "other").mkdir()
    (tmp_path / "checkpoints").rename(tmp_path / "other" / "checkpoints")
    other = Bench(tmp_path / "other")
    try:
        with pytest.raises(NotFound, match="another pool"):
            other.trainer().resume()
    finally:
        other.pool.close()


async def test_groups_without_a_step_that_can_be_trained_on_are_an_error_and_not_an_empty_update(bench: Bench) -> None:
    bench.pool.put(*group_records("a"), *group_records("b"))
    records = [r for name in ("x", "y") for r in group_records(name, version=1) if not isinstance(r, Step)]
    bench.pool.put(*records)
    with pytest.raises(InvalidRequest, match="none of the leased steps"):
        await bench.train(bench.trainer(updates=2))
    assert bench.learner.policy.version == 1


async def test_a_warm_up_is_saved_so_that_a_restart_need_not_repeat_it(bench: Bench) -> None:
    assert not bench.trainer(seed=1).resume()
    trainer = bench.trainer(seed=2)
    trainer.save()
    assert bench.trainer(seed=1).resume()
    fresh = tiny_policy(seed=2).trainable_state()
    assert all((fresh[name] == tensor).all() for name, tensor in bench.learner.policy.trainable_state().items())


async def test_the_event_loop_stays_free_while_the_policy_learns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = bench.trainer(updates=1)
    learn, loop = bench.learner.update, asyncio.get_running_loop()

    def learn_while_the_loop_answers(*arguments):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=30)
        return learn(*arguments)

    monkeypatch.setattr(bench.learner, "update", learn_while_the_loop_answers)
    assert len(await bench.train(trainer)) == 1


async def test_a_last_state_that_was_recorded_is_no_step_of_a_trajectory(bench: Bench) -> None:
    records = group_records("a")
    seen, token = random_ids(5), random_ids(1)
    look = Step(trajectory_id="a-0", index=2, prompt_ids=seen, response_ids=token, logprobs=np.zeros(1), side="state")
    records.insert(4, look)  # after the two steps of the first trajectory, before its end
    bench.pool.put(*records)
    (update,) = await bench.train(bench.trainer(updates=1, groups_per_update=1))
    assert dict(update.metrics)["steps_per_trajectory"] == 2


async def test_a_lease_is_held_for_as_long_as_the_run_needs_it(bench: Bench) -> None:
    """It lasts less than the update does, and nothing is acknowledged before the second one."""
    trainer = bench.trainer(updates=3, checkpoint_every=3, lease_seconds=0.2)
    async for _ in trainer.updates(bench.collect):
        await asyncio.sleep(0.15)
    (consumed,) = bench.pool.consumption()
    assert (consumed.acknowledged, consumed.held) == (6, 0)
    assert len([entry for entry in bench.diary.entries if entry.startswith("lease ")]) == 6


async def test_a_checkpoint_whose_lease_expired_and_went_to_another_can_be_resumed(bench: Bench) -> None:
    bench.diary.dies_at_acknowledge = True
    with pytest.raises(Killed):
        await bench.train(bench.trainer(updates=1, lease_seconds=0.05))
    await asyncio.sleep(0.1)
    assert bench.pool.lease(LeaseSpec(consumer=RUN, limit=1)).groups  # somebody got one of its groups meanwhile
    bench.diary.dies_at_acknowledge = False
    trainer = bench.trainer(updates=2)
    assert trainer.resume()
    assert [update.policy_version for update in await bench.train(trainer)] == [2]
