"""Judged trajectories: rewarded before they end, and failed, never worth nothing, where nobody could judge them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from stepwell.algorithms.base import Siblings
from stepwell.errors import ConfigError, EngineError, EnvironmentFailed
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.rollout.group import Collector
from stepwell.rollout.judges import Judges
from stepwell.rollout.run import Ending, EnvironmentPlayer, RolloutConfig
from stepwell.rollout.siblings import SiblingCollector
from stepwell.rollout.trunks import Memory
from stepwell.types import Annotation, Trajectory
from tests.rollout.worlds import DONE, GO_ON, ScriptedAgent, ScriptedTasks, endless

THREE = [GO_ON, GO_ON, DONE]


def collector(
    pool: SQLitePool, judge: Callable[[str], Awaitable[Sequence[Annotation]]], endings: list[Ending], **config
) -> Collector:
    settings, judges = RolloutConfig(**{"group_size": 2, **config}), Judges(pool, judge)
    player = EnvironmentPlayer(ScriptedTasks([THREE]), ScriptedAgent(pool), judges, settings)
    return Collector(player, pool, settings, on_ending=endings.append, judges=judges)


def polite(value: float) -> Callable[[str], Awaitable[list[Annotation]]]:
    async def judge(trajectory_id: str) -> list[Annotation]:
        return [Annotation.reward("trajectory", trajectory_id, value, "polite")]

    return judge


def played(pool: SQLitePool) -> list[Trajectory]:
    return [pool.trajectory(line.info.id) for _, line in pool.trajectories()]


async def test_a_judges_reward_is_a_part_beside_the_environments(pool: SQLitePool) -> None:
    endings: list[Ending] = []
    await collector(pool, polite(0.25), endings).collect_groups(endless(), 1, 2)
    assert [dict(t.reward_parts) for t in played(pool)] == [{"solved": 1.0, "polite": 0.25}] * 2
    assert [ending.reward for ending in endings] == [1.25, 1.25]
    assert all(ending.judge_seconds > 0 for ending in endings)


async def test_a_group_is_not_ready_before_it_is_judged(pool: SQLitePool) -> None:
    ready: list[int] = []

    async def judge(trajectory_id: str) -> list[Annotation]:
        ready.append(len(pool.lease(LeaseSpec(consumer=trajectory_id, limit=9)).groups))
        assert pool.trajectory(trajectory_id).status == "open"
        return [Annotation.reward("trajectory", trajectory_id, 1.0, "polite")]

    await collector(pool, judge, []).collect_groups(endless(), 1, 2)
    assert ready == [0, 0]
    assert len(pool.lease(LeaseSpec(consumer="trainer", limit=9)).groups) == 1


async def test_a_judge_that_fails_fails_the_trajectory_which_is_played_again(pool: SQLitePool) -> None:
    asked: list[str] = []

    async def judge(trajectory_id: str) -> list[Annotation]:
        asked.append(trajectory_id)
        if len(asked) == 1:
            raise EngineError("the judge is away")
        return [Annotation.reward("trajectory", trajectory_id, 1.0, "polite")]

    await collector(pool, judge, []).collect_groups(endless(), 1, 2)
    failed, *others = sorted(played(pool), key=lambda t: asked.index(t.info.id))
    assert (failed.status, failed.why) == ("failed", "EngineError: the judge is away")
    assert not failed.complete
    assert [dict(t.reward_parts)["polite"] for t in others] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("error", "tries"), [(EngineError("away"), 4), (ConfigError("no key"), 1), (ZeroDivisionError("oops"), 1)]
)
async def test_a_judge_that_never_works_ends_the_rollout_with_its_reason(
    pool: SQLitePool, error: Exception, tries: int
) -> None:
    async def judge(trajectory_id: str) -> list[Annotation]:
        raise error

    with pytest.raises(EnvironmentFailed, match=str(error)):
        await collector(pool, judge, [], group_size=1, max_failures=3).collect_groups(endless(), 1, 1)
    assert [t.status for t in played(pool)] == ["failed"] * tries


async def test_cancelling_while_a_judge_thinks_leaves_no_trajectory_open(pool: SQLitePool) -> None:
    thinking = asyncio.Event()

    async def judge(trajectory_id: str) -> list[Annotation]:
        thinking.set()
        await asyncio.Event().wait()
        return []

    collecting = asyncio.create_task(collector(pool, judge, []).collect_groups(endless(), 1, 2))
    await thinking.wait()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert {(t.status, t.why) for t in played(pool)} == {("failed", "cancelled")}


async def test_trunks_and_siblings_that_are_not_played_on_are_not_judged(pool: SQLitePool) -> None:
    judged: list[str] = []

    async def judge(trajectory_id: str) -> list[Annotation]:
        judged.append(trajectory_id)
        return await polite(1.0)(trajectory_id)

    made = collector(pool, judge, [])
    made.player.actor.answers = iter([*["same"] * 5, "left", "right", "left", "right"])  # a trunk, alike, not alike
    siblings = SiblingCollector(made, Siblings(skip_alike=True), Memory(pool, lambda: 0))
    assert await siblings.collect(endless(), 1) == 1
    assert all(t.status != "open" for t in played(pool))
    assert sorted(judged) == sorted(t.info.id for t in played(pool) if t.complete and t.info.source == "fork")
    assert len(judged) == 2
