"""Groups are ready when they were collected; evaluation keeps its order and is never trained on."""

import asyncio

import pytest

from stepwell.errors import EngineError, EnvironmentFailed, InvalidRequest, PoolError
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.rollout.env import Outcome
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending, EnvironmentPlayer, RolloutConfig
from tests.rollout.worlds import DONE, GO_ON, ScriptedAgent, ScriptedTasks, endless

GOOD = [GO_ON, DONE]
BROKEN = [GO_ON, EnvironmentFailed("the browser crashed")]


def collector(pool: SQLitePool, tasks: ScriptedTasks, agent: ScriptedAgent | None = None, **config) -> Collector:
    settings = RolloutConfig(**config)
    return Collector(EnvironmentPlayer(tasks, agent or ScriptedAgent(pool), pool, settings), pool, settings)


def statuses(pool: SQLitePool) -> dict[str, int]:
    return {name: count for name, count in pool.stats().trajectories_by_status if count}


async def test_every_group_is_ready_with_exactly_its_size_and_one_task_each(pool: SQLitePool) -> None:
    await collector(pool, ScriptedTasks([GOOD])).collect_groups(endless(), 3, 4)
    groups = pool.lease(LeaseSpec(consumer="trainer", limit=10)).groups
    assert [len(group.trajectories) for group in groups] == [4, 4, 4]
    assert {group.info.task_id for group in groups} == {"task-0", "task-1", "task-2"}
    for group in groups:
        assert {t.info.task_id for t in group.trajectories} == {group.info.task_id}
        assert all(t.complete and t.reward == 1.0 for t in group.trajectories)


async def test_a_failed_member_is_replaced_and_the_group_is_ready_with_exactly_its_size(pool: SQLitePool) -> None:
    tasks = ScriptedTasks([GOOD, BROKEN, BROKEN, GOOD])
    await collector(pool, tasks).collect_groups(endless(), 1, 4)
    (group,) = pool.lease(LeaseSpec(consumer="trainer", limit=10)).groups
    assert [t.status for t in group.trajectories] == ["terminated"] * 4
    assert statuses(pool) == {"terminated": 4, "failed": 2}


async def test_a_task_that_fails_too_often_gives_up_with_the_reason(pool: SQLitePool) -> None:
    reason = "4 trajectories of task task-0 failed, the last: EnvironmentFailed: the browser crashed"
    with pytest.raises(EnvironmentFailed, match=reason):
        await collector(pool, ScriptedTasks([BROKEN]), max_failures=3).collect_groups(endless(), 1, 2)
    assert pool.lease(LeaseSpec(consumer="trainer", limit=10)).groups == ()


async def test_a_group_that_is_given_up_is_dropped_with_the_reason(pool: SQLitePool) -> None:
    with pytest.raises(EnvironmentFailed):
        await collector(pool, ScriptedTasks([BROKEN]), max_failures=0).collect_groups(endless(), 1, 2)
    ((reason, count),) = pool.stats().groups_dropped
    assert reason.startswith("given up: 2 trajectories of task task-0 failed")
    assert count == 1


async def test_a_failure_that_another_try_would_not_mend_is_not_tried_again(pool: SQLitePool) -> None:
    agent = ScriptedAgent(pool, before=lambda turn: (_ for _ in ()).throw(InvalidRequest("no such model")))
    with pytest.raises(EnvironmentFailed, match="task-0 cannot be played: InvalidRequest: no such model"):
        await collector(pool, ScriptedTasks([GOOD]), agent).collect_groups(endless(), 1, 1)
    assert statuses(pool) == {"failed": 1}


async def test_as_many_failures_as_allowed_are_survived(pool: SQLitePool) -> None:
    tasks = ScriptedTasks([BROKEN, BROKEN, BROKEN, GOOD])
    await collector(pool, tasks, max_failures=3).collect_groups(endless(), 1, 3)
    assert len(pool.lease(LeaseSpec(consumer="trainer", limit=10)).groups) == 1


async def test_no_more_trajectories_run_at_once_than_allowed_and_all_slots_are_used(pool: SQLitePool) -> None:
    agent = ScriptedAgent(pool)
    await collector(pool, ScriptedTasks([GOOD]), agent, concurrency=3).collect_groups(endless(), 4, 4)
    assert agent.most == 3


async def test_everybody_hears_of_every_ending(pool: SQLitePool) -> None:
    endings: list[Ending] = []
    collecting = collector(pool, ScriptedTasks([BROKEN, GOOD]))
    collecting.on_ending = endings.append
    await collecting.collect_groups(endless(), 1, 2)
    assert sorted(ending.how for ending in endings) == ["failed", "terminated", "terminated"]
    assert {ending.trajectory_id for ending in endings} == {s.info.id for _, s in pool.trajectories()}


async def test_evaluation_keeps_the_order_of_the_tasks_whichever_ends_first(pool: SQLitePool) -> None:
    others = asyncio.Event()
    agent = ScriptedAgent(pool)

    async def first_is_last() -> None:
        if len(agent.seen) == 1:
            await others.wait()
        elif len(agent.seen) == 3:
            others.set()

    agent.before = lambda turn: first_is_last()
    endings = await collector(pool, ScriptedTasks([[DONE]]), agent).evaluate(["a", "b", "c"])
    assert [pool.trajectory(ending.trajectory_id).info.task_id for ending in endings] == ["a", "b", "c"]
    assert [ending.reward for ending in endings] == [1.0, 1.0, 1.0]


async def test_evaluation_is_outside_of_any_group_and_never_leased(pool: SQLitePool) -> None:
    await collector(pool, ScriptedTasks([GOOD])).evaluate(["a", "b"])
    assert pool.lease(LeaseSpec(consumer="trainer", limit=10)).groups == ()
    assert {(s.info.source, s.info.group_id) for _, s in pool.trajectories()} == {("eval", None)}


async def test_a_failed_evaluation_is_reported_and_not_repeated(pool: SQLitePool) -> None:
    endings = await collector(pool, ScriptedTasks([BROKEN])).evaluate(["a"])
    assert [(ending.how, ending.reward) for ending in endings] == [("failed", 0.0)]
    assert statuses(pool) == {"failed": 1}


async def test_cancelling_a_collection_leaves_no_trajectory_open(pool: SQLitePool) -> None:
    agent = ScriptedAgent(pool, lambda turn: asyncio.sleep(60) if turn else None)
    running = asyncio.create_task(collector(pool, ScriptedTasks([[GO_ON] * 9]), agent).collect_groups(endless(), 2, 2))
    while len(agent.seen) < 8:  # noqa: ASYNC110  # each of the four is in its second turn
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert statuses(pool) == {"failed": 4}


async def test_an_engine_that_is_gone_gives_up_instead_of_trying_for_ever(pool: SQLitePool) -> None:
    def gone(turn: int) -> None:
        raise EngineError("no answer")

    with pytest.raises(EnvironmentFailed, match="no answer"):
        await collector(pool, ScriptedTasks([[Outcome()]]), ScriptedAgent(pool, gone)).collect_groups(endless(), 2, 4)


async def test_a_pool_that_fails_ends_the_collection_with_its_own_error(pool: SQLitePool) -> None:
    collecting = collector(pool, ScriptedTasks([GOOD]))
    pool.close()
    with pytest.raises(PoolError, match="closed"):
        await collecting.collect_groups(endless(), 2, 2)
    with pytest.raises(PoolError, match="closed"):
        await collecting.evaluate(["a"])
