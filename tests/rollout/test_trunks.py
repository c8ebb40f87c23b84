"""Trunks outlive the process: the next one goes on with the turns that were left, from states that it makes again."""

import asyncio
import logging
from dataclasses import replace

import pytest

from stepwell.algorithms.base import Siblings
from stepwell.errors import EngineError, EnvironmentFailed
from stepwell.pool.store import SQLitePool
from stepwell.rollout.env import Outcome
from stepwell.rollout.group import Collector
from stepwell.rollout.run import Ending, EnvironmentPlayer, Fork, RolloutConfig, Start, record
from stepwell.rollout.siblings import SiblingCollector
from stepwell.rollout.trunks import NOTE, Memory
from stepwell.types import Annotation, Step, TrajectoryInfo
from tests.rollout.worlds import DONE, GO_ON, ScriptedAgent, ScriptedEnvironment, ScriptedTasks, endless, paid

THREE = [GO_ON, GO_ON, DONE]
REVERSE = Siblings()


class Process:
    """One process of a run: what it knows of those before it is in the pool."""

    def __init__(self, pool: SQLitePool, version: int = 0, plan: Siblings = REVERSE, script=THREE, **config) -> None:
        settings = RolloutConfig(**{"group_size": 2, **config})
        self.agent = ScriptedAgent(pool, version=version)
        self.tasks = ScriptedTasks([script])
        player = EnvironmentPlayer(self.tasks, self.agent, pool, settings)
        self.siblings = SiblingCollector(Collector(player, pool, settings), plan, Memory(pool, lambda: version))
        self.pool = pool

    async def collect(self, held: int = 0, count: int = 2) -> list[tuple[str, int | None]]:
        """(task, turn) of the groups that are made now."""
        before = {line.info.id for _, line in self.pool.groups()}
        made = await self.siblings.collect(endless(), count, held)
        new = [line for _, line in self.pool.groups() if line.info.id not in before and line.state == "ready"]
        assert len(new) == made
        return sorted((line.info.task_id, line.info.origin_index) for line in new)


def both(turn: int) -> list[tuple[str, int]]:
    return [("task-0", turn), ("task-1", turn)]


def trunks(pool: SQLitePool) -> int:
    return sum(summary.info.source == "trunk" for _, summary in pool.trajectories())


def sets_of_trunks(pool: SQLitePool) -> int:
    notes = [note for _, line in pool.trajectories() for note in pool.notes(line.info.id)]
    return sum(note.name == NOTE for note in notes)


async def test_a_new_process_goes_on_with_the_next_turn_of_the_same_trunks(pool: SQLitePool) -> None:
    assert await Process(pool, version=0).collect() == both(2)
    later = Process(pool, version=1)
    assert await later.collect() == both(1)
    assert await later.collect() == both(0)
    assert trunks(pool) == 2
    for _, line in pool.groups():
        for sibling in pool.group(line.info.id).trajectories:
            assert [step.index for step in sibling.steps] == list(range(line.info.origin_index, 3))
            assert sibling.reward == 1.0


async def test_where_nothing_is_left_there_are_new_trunks(pool: SQLitePool) -> None:
    for version in (0, 1, 2):
        await Process(pool, version).collect()
    assert await Process(pool, version=3).collect() == both(2)
    assert trunks(pool) == 4


async def test_forward_goes_forward(pool: SQLitePool) -> None:
    plan = Siblings(order="forward")
    assert await Process(pool, 0, plan).collect() == both(0)
    assert await Process(pool, 1, plan).collect() == both(1)


async def test_a_turn_that_was_interrupted_is_finished_by_the_version_that_began_it(pool: SQLitePool) -> None:
    dying = Process(pool, concurrency=1, max_failures=0)

    def second_trunk_fails(turn: int) -> None:
        if len(dying.agent.seen) > 8:  # two trunks of three steps, and the first one's two siblings
            raise EngineError("gone")

    dying.agent.before = second_trunk_fails
    with pytest.raises(EnvironmentFailed):
        await dying.collect()
    assert await Process(pool).collect(held=1) == [("task-1", 2)]
    assert await Process(pool, version=1).collect() == both(1)


async def test_an_update_that_has_the_groups_of_a_turn_gets_no_other_turns(pool: SQLitePool) -> None:
    await Process(pool).collect()
    assert await Process(pool).collect(held=2) == []  # all of the turn is there: nothing was interrupted
    again = Process(pool)
    assert await again.collect() == both(1)  # nobody holds them, so they are of no use to this update
    assert await again.collect(held=1) == []


async def test_what_versions_after_the_checkpoint_did_is_done_anew(pool: SQLitePool) -> None:
    await Process(pool, version=4).collect()
    await Process(pool, version=5).collect()  # its weights are lost
    assert await Process(pool, version=5).collect(held=2) == []
    assert await Process(pool, version=4).collect(held=2) == []
    assert await Process(pool, version=4).collect() == both(1)
    assert await Process(pool, version=3).collect() == both(2)
    assert trunks(pool) == 4  # those of version 4 are not there for version 3


async def test_turns_at_which_all_siblings_were_alike_are_over(pool: SQLitePool) -> None:
    plan = Siblings(skip_alike=True)
    dying = Process(pool, 0, plan, concurrency=1, max_failures=0)

    def dies_within_the_middle_turn(turn: int) -> None:
        if len(dying.agent.seen) > 16:
            raise EngineError("gone")

    # two trunks, two siblings of each at the last turn, all alike, and at the turn before those of one trunk
    dying.agent.answers = iter(["same"] * 10 + ["left", "right"] * 9)
    dying.agent.before = dies_within_the_middle_turn
    with pytest.raises(EnvironmentFailed):
        await dying.collect()
    again = Process(pool, 0, plan)
    again.agent.answers = iter(["left", "right"] * 9)
    assert await again.collect(held=1) == [("task-1", 1)]


async def test_an_environment_that_draws_is_played_again_with_its_seed(pool: SQLitePool) -> None:
    seeds: list[int] = []

    def remember(process: Process) -> Process:
        made = process.tasks.make

        def make() -> ScriptedEnvironment:
            environment = made()
            reset = environment.reset
            environment.reset = lambda task_id, *, seed=0: seeds.append(seed) or reset(task_id, seed=seed)
            return environment

        process.tasks.make = make
        return process

    await remember(Process(pool, version=0)).collect()
    first = set(seeds)
    seeds.clear()
    await remember(Process(pool, version=1, seed=77)).collect()
    assert set(seeds) == first


@pytest.mark.parametrize("script", [[paid(0.5), GO_ON, DONE], [EnvironmentFailed("crash")], [Outcome(terminated=True)]])
async def test_a_trunk_that_cannot_be_made_again_is_left_out_with_the_reason(
    pool: SQLitePool, script: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    await Process(pool, version=0).collect()
    with caplog.at_level(logging.WARNING):
        changed = Process(pool, version=1, script=script)
        changed.tasks.scripts = [script, script, THREE]  # the two that are played again, and those that come new
        assert await changed.collect() == both(2)
    assert trunks(pool) == 4
    said = "crash" if isinstance(script[0], EnvironmentFailed) else "did not do the same again"
    assert [said in line.getMessage() for line in caplog.records] == [True, True]


async def test_other_runs_trunks_in_the_same_pool_are_let_alone(pool: SQLitePool) -> None:
    await Process(pool, version=0).collect()
    other = Process(pool, version=1)
    other.siblings._collector.channel = "another"
    assert await other.collect() == both(2)


class _Led:
    """Plays what nobody sees but at the gateway: three steps, forked without a state."""

    agent = "black box"

    def __init__(self, pool: SQLitePool, version: int) -> None:
        self.pool, self.version = pool, version
        self.began: list[Fork | None] = []

    async def play(self, info: TrajectoryInfo, start: Start) -> Ending:
        self.began.append(start.fork)
        first = start.fork.step if start.fork else 0
        template = Step(
            trajectory_id=info.id,
            index=0,
            prompt_ids=[1],
            response_ids=[2],
            logprobs=[-0.5],
            policy_version_min=self.version,
            policy_version_max=self.version,
        )
        steps = [replace(template, id=f"{info.id}-{index}", index=index) for index in range(first, 3)]
        reward = Annotation.reward("trajectory", info.id, 1.0)
        await record(self.pool, info, *steps, reward, Annotation.end(info.id, "terminated"))
        if start.forks is not None:
            start.forks[:] = [Fork(step.index) for step in steps]
        return Ending(trajectory_id=info.id, task_id=info.task_id, how="terminated", reward=1.0)


async def test_an_agent_that_a_gateway_leads_needs_nothing_but_its_trunks_name(pool: SQLitePool) -> None:
    for version, turn in ((0, 2), (1, 1)):
        player, config = _Led(pool, version), RolloutConfig(group_size=2)
        memory = Memory(pool, lambda now=version: now)
        siblings = SiblingCollector(Collector(player, pool, config), Siblings(), memory)
        assert await siblings.collect(endless(), 1) == 1
        assert [fork.step for fork in player.began if fork is not None] == [turn, turn]
    assert trunks(pool) == 1


AHEAD = Siblings(ahead=True)


async def test_trunks_that_were_played_ahead_are_taken_up_by_the_next_process(pool: SQLitePool) -> None:
    for version, turn in ((0, 2), (1, 1), (2, 0), (3, 2), (4, 1), (5, 0), (6, 2)):
        assert await Process(pool, version, AHEAD).collect() == both(turn)
    assert trunks(pool) == 6  # the second set came with version 2, the third with version 5


async def test_a_last_turn_that_was_interrupted_is_finished_before_the_trunks_ahead(pool: SQLitePool) -> None:
    for version in (0, 1):
        await Process(pool, version, AHEAD).collect()
    dying = Process(pool, 2, AHEAD, max_failures=0)
    act = dying.agent.act

    async def fails_once_the_trunks_are_there(trajectory_id, messages, tools):
        info = pool.trajectory(trajectory_id).info
        if info.group_id is not None and info.task_id == "task-1":
            while sets_of_trunks(pool) != 2:  # noqa: ASYNC110  # the pool tells nobody
                await asyncio.sleep(0.01)
            raise EngineError("gone")
        return await act(trajectory_id, messages, tools)

    dying.agent.act = fails_once_the_trunks_are_there
    with pytest.raises(EnvironmentFailed):
        await dying.collect()
    assert await Process(pool, 2, AHEAD).collect(held=1) == [("task-1", 0)]
    assert await Process(pool, 3, AHEAD).collect() == both(2)
    assert trunks(pool) == 4


async def test_trunks_ahead_of_a_version_that_is_lost_are_not_taken_up(pool: SQLitePool) -> None:
    for version in (0, 1, 2):
        await Process(pool, version, AHEAD).collect()
    assert await Process(pool, 1, AHEAD).collect() == both(0)  # the checkpoint was that of version 1: once more
    assert await Process(pool, 2, AHEAD).collect() == both(2)
