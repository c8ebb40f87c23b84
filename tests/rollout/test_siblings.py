"""Siblings: each turn of a trunk is taken anew from the very state that it was in, the last turn first."""

import itertools
from collections.abc import Callable

import pytest

from stepwell.algorithms.base import Siblings
from stepwell.errors import ContextOverflow, EngineError, EnvironmentFailed, ForkRefused, InvalidRequest
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending, EnvironmentPlayer, RolloutConfig, Start, record
from stepwell.rollout.siblings import SiblingCollector
from stepwell.types import Annotation, Group, TrajectoryInfo
from tests.rollout.worlds import DONE, GO_ON, ScriptedAgent, ScriptedTasks, endless

REVERSE = Siblings()
THREE = [GO_ON, GO_ON, DONE]


def siblings(pool: SQLitePool, scripts, plan: Siblings = REVERSE, **config) -> SiblingCollector:
    settings = RolloutConfig(**{"group_size": 2, **config})
    player = EnvironmentPlayer(ScriptedTasks(scripts), ScriptedAgent(pool), pool, settings)
    return SiblingCollector(Collector(player, pool, settings), plan)


def ready(pool: SQLitePool) -> list[Group]:
    lease = pool.lease(LeaseSpec(consumer="trainer", unit="siblings", limit=100))
    pool.acknowledge(lease.id)
    return list(lease.groups)


async def test_the_last_turn_comes_first_and_each_has_groups_of_its_own(pool: SQLitePool) -> None:
    collector, tasks = siblings(pool, [THREE]), endless()
    for turn in (2, 1, 0):
        assert await collector.collect(tasks, 2) == 2
        groups = ready(pool)
        assert {group.info.origin_index for group in groups} == {turn}
        assert {group.info.task_id for group in groups} == {"task-0", "task-1"}
        for group in groups:
            assert len(group.trajectories) == 2
            for sibling in group.trajectories:
                assert [step.index for step in sibling.steps] == list(range(turn, 3))
                assert sibling.complete
    assert await collector.collect(tasks, 2) == 2  # and then there are new trunks
    assert {group.info.task_id for group in ready(pool)} == {"task-2", "task-3"}


async def test_forward_begins_with_the_first_turn(pool: SQLitePool) -> None:
    collector = siblings(pool, [THREE], Siblings(order="forward"))
    assert await collector.collect(endless(), 1) == 1
    assert [group.info.origin_index for group in ready(pool)] == [0]


async def test_trunks_are_in_no_group_and_named_by_their_siblings(pool: SQLitePool) -> None:
    await siblings(pool, [THREE]).collect(endless(), 1)
    (group,) = ready(pool)
    trunk = pool.trajectory(group.info.origin_id)
    assert (trunk.info.group_id, trunk.info.source, len(trunk.steps)) == (None, "trunk", 3)


async def test_a_shorter_trunk_takes_part_only_in_the_turns_that_it_had(pool: SQLitePool) -> None:
    collector = siblings(pool, [[DONE], THREE, THREE])
    counts = [await collector.collect(endless(), 2) for _ in range(3)]
    assert counts == [1, 1, 2]


async def test_several_trunks_of_a_task_are_counted_as_groups(pool: SQLitePool) -> None:
    assert await siblings(pool, [[DONE]], Siblings(trunks=2)).collect(endless(), 4) == 4
    assert sorted(group.info.task_id for group in ready(pool)) == ["task-0", "task-0", "task-1", "task-1"]


async def test_a_trunk_that_failed_is_played_again_and_keeps_nothing_of_the_failure(pool: SQLitePool) -> None:
    collector = siblings(pool, [[GO_ON, EnvironmentFailed("crash")], THREE])
    assert await collector.collect(endless(), 1) == 1
    assert [group.info.origin_index for group in ready(pool)] == [2]
    assert dict(pool.stats().trajectories_by_status)["failed"] == 1


async def test_an_environment_that_cannot_be_forked_ends_the_rollout_with_its_reason(pool: SQLitePool) -> None:
    collector = siblings(pool, [THREE])
    tasks = collector._collector.player.tasks
    made = tasks.make
    tasks.make = lambda: setattr(environment := made(), "no_fork", "it sends letters") or environment
    with pytest.raises(ForkRefused, match="cannot be forked: it sends letters"):
        await collector.collect(endless(), 1)


class Forgetful(EnvironmentPlayer):
    """Some of its forks are not what they were, as those of agents whose tools do not do the same again."""

    def __init__(self, player: EnvironmentPlayer, refused: Callable[[TrajectoryInfo, int], bool]) -> None:
        super().__init__(player.tasks, player.actor, player.log, player.config)
        object.__setattr__(self, "refused", refused)

    async def play(self, info: TrajectoryInfo, start: Start) -> Ending:
        if start.fork is None or not self.refused(info, start.fork.step):
            return await super().play(info, start)
        await record(self.log, info, Annotation.end(info.id, "failed", "it differs"))
        return Ending(trajectory_id=info.id, task_id=info.task_id, how="failed", why="it differs", refused=True)


def forgetful(pool: SQLitePool, refused: Callable[[TrajectoryInfo, int], bool]) -> SiblingCollector:
    settings = RolloutConfig(group_size=2)
    player = EnvironmentPlayer(ScriptedTasks([THREE]), ScriptedAgent(pool), pool, settings)
    return SiblingCollector(Collector(Forgetful(player, refused), pool, settings), REVERSE)


async def test_a_state_that_siblings_cannot_begin_in_is_passed_over_and_its_group_dropped_with_the_reason(
    pool: SQLitePool,
) -> None:
    collector, tasks = forgetful(pool, lambda info, step: step == 1 or info.task_id == "task-0"), endless()
    assert [await collector.collect(tasks, 2) for _ in range(2)] == [1, 1]
    assert {(group.info.task_id, group.info.origin_index) for group in ready(pool)} == {("task-1", 2), ("task-1", 0)}
    why = {line.why for _, line in pool.groups("default") if line.state == "dropped"}
    assert why == {
        "given up: task task-0 cannot be played: it differs",
        "given up: task task-1 cannot be played: it differs",
    }


async def test_trunks_of_which_no_state_can_be_had_again_end_the_rollout_with_the_last_reason(pool: SQLitePool) -> None:
    collector = forgetful(pool, lambda info, step: True)
    with pytest.raises(ForkRefused, match="task-0 cannot be played: it differs"):
        await collector.collect(endless(), 1)
    assert pool.stats().groups == 3


async def test_too_few_tasks_are_an_error(pool: SQLitePool) -> None:
    with pytest.raises(InvalidRequest, match="there are only 0"):
        await siblings(pool, [THREE]).collect(iter(()), 1)


SKIPPING = Siblings(skip_alike=True)


async def test_siblings_that_all_take_the_same_step_are_not_played_on_and_their_group_is_dropped(
    pool: SQLitePool,
) -> None:
    collector = siblings(pool, [THREE], SKIPPING, group_size=3, concurrency=2)
    # this agent always does the same, so no turn of any trunk teaches anything, which is an error and no endless loop
    with pytest.raises(InvalidRequest, match="of 3 sets of trunks no turn made siblings that differ"):
        await collector.collect(endless(), 1)
    assert dict(pool.stats().groups_dropped) == {"its siblings all took the same step": 9}
    assert ready(pool) == []
    some = [pool.trajectory(s.info.id) for _, s in pool.trajectories() if s.info.source == "fork"]
    assert {(len(t.steps), t.reward) for t in some if t.status == "truncated"} == {(1, None)}


async def test_siblings_that_differ_are_played_to_the_end(pool: SQLitePool) -> None:
    collector = siblings(pool, [THREE], SKIPPING, group_size=2)
    agent = collector._collector.player.actor
    agent.answers = itertools.cycle(["left", "right"])
    assert await collector.collect(endless(), 1) == 1
    (group,) = ready(pool)
    assert all(t.complete for t in group.trajectories)
    assert pool.stats().groups_dropped == ()


async def test_a_sibling_that_fails_before_its_step_holds_nobody_back(pool: SQLitePool) -> None:
    collector = siblings(pool, [THREE], SKIPPING, group_size=2)
    agent, calls = collector._collector.player.actor, itertools.count()

    def first_sibling_fails(turn: int) -> None:
        if next(calls) == 3:  # after the three turns of the trunk
            raise EngineError("gone")

    agent.before = first_sibling_fails
    assert await collector.collect(endless(), 1) == 1
    (group,) = ready(pool)
    assert len(group.trajectories) == 2


async def test_trunks_without_a_single_turn_are_an_error_and_no_endless_loop(pool: SQLitePool) -> None:
    collector = siblings(pool, [THREE])
    collector._collector.player.actor.before = lambda turn: (_ for _ in ()).throw(ContextOverflow("no room"))
    with pytest.raises(InvalidRequest, match="no turn made siblings"):
        await collector.collect(endless(), 1)


async def test_a_trunk_is_not_forked_where_its_context_was_full(pool: SQLitePool) -> None:
    def full(turn: int) -> None:
        if turn == 2:
            raise ContextOverflow("no room")

    collector = siblings(pool, [THREE])
    collector._collector.player.actor.before = full
    assert await collector.collect(endless(), 1) == 1
    assert [group.info.origin_index for group in ready(pool)] == [1]


async def test_trunks_ahead_are_played_beside_the_last_turn_and_taken_up_next(pool: SQLitePool) -> None:
    collector, tasks = siblings(pool, [THREE], Siblings(ahead=True)), endless()
    trunks = lambda: sum(line.info.source == "trunk" for _, line in pool.trajectories(limit=1000))  # noqa: E731
    for turn, so_far in ((2, 2), (1, 2), (0, 4), (2, 4), (1, 4), (0, 6)):
        assert await collector.collect(tasks, 2) == 2
        assert {group.info.origin_index for group in ready(pool)} == {turn}
        assert trunks() == so_far


async def test_trunks_ahead_change_no_group_but_for_when_its_trunk_was_played(pool: SQLitePool, tmp_path) -> None:
    async def groups(own: SQLitePool, plan: Siblings) -> list[tuple[str, int | None, list[float | None]]]:
        collector, tasks, made = siblings(own, [THREE], plan), endless(), []
        for _ in range(7):
            await collector.collect(tasks, 2)
            made += [(g.info.task_id, g.info.origin_index, [t.reward for t in g.trajectories]) for g in ready(own)]
        return made

    other = SQLitePool.open(tmp_path / "other.sqlite")
    assert sorted(await groups(pool, Siblings(ahead=True))) == sorted(await groups(other, REVERSE))
    other.close()
