"""One trajectory: whatever happens in it is in the pool afterwards, and nothing else is."""

import asyncio

import pytest

from stepwell.errors import Conflict, ContextOverflow, EngineError, EnvironmentFailed, NotFound
from stepwell.pool.store import SQLitePool
from stepwell.rollout.env import Outcome
from stepwell.rollout.run import Ending, RolloutConfig, record, run_trajectory
from stepwell.types import Annotation, Trajectory, TrajectoryInfo
from tests.rollout.worlds import DONE, GO_ON, ScriptedAgent, ScriptedTasks, paid

CONFIG = RolloutConfig(max_turns=5)


async def play(
    pool: SQLitePool, outcomes: list[Outcome | Exception], agent: ScriptedAgent | None = None, task: str = "task"
) -> tuple[Ending, Trajectory]:
    info = TrajectoryInfo(task_id=task)
    ending = await run_trajectory(info, ScriptedTasks([outcomes]), agent or ScriptedAgent(pool), pool, CONFIG)
    return ending, pool.trajectory(info.id)


def raising(error: Exception, at: int):
    def before(turn: int) -> None:
        if turn == at:
            raise error

    return before


async def test_each_step_gets_the_reward_that_it_earned(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [paid(0.25), GO_ON, DONE])
    assert stored.status == "terminated"
    assert stored.step_rewards == (0.25, 0.0, 1.0)
    assert dict(stored.reward_parts) == {"reward": 0.25, "solved": 1.0}
    assert (ending.how, ending.reward, ending.turns) == ("terminated", 1.25, 3)


async def test_parts_of_one_step_are_stored_apart_and_summed(pool: SQLitePool) -> None:
    both = Outcome(terminated=True, reward_parts=(("answer", 1.0), ("format", -0.25)))
    ending, stored = await play(pool, [both])
    assert dict(stored.reward_parts) == {"answer": 1.0, "format": -0.25}
    assert stored.reward == ending.reward == 0.75


async def test_an_episode_that_earned_nothing_is_recorded_with_reward_zero_and_complete(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [GO_ON, Outcome(terminated=True)])
    assert stored.reward == 0.0
    assert stored.complete
    assert ending.reward == 0.0


async def test_the_agent_sees_the_whole_conversation_each_turn(pool: SQLitePool) -> None:
    agent = ScriptedAgent(pool)
    await play(pool, [GO_ON, DONE], agent, task="find it")
    assert agent.seen == [("find it",), ("find it", "turn 0", "go on")]


async def test_the_environments_own_limit_truncates(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [GO_ON, Outcome(truncated=True)])
    assert (ending.how, stored.status, stored.reward) == ("truncated", "truncated", 0.0)
    assert [step.side for step in stored.steps] == ["", "", "state"]


async def test_the_rollouts_limit_of_turns_truncates_and_keeps_what_was_earned(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [paid(0.5), *[GO_ON] * 10])
    assert (stored.status, stored.reward) == ("truncated", 0.5)
    assert [step.side for step in stored.steps] == [""] * CONFIG.max_turns + ["state"]
    assert ending.why == "5 turns"


@pytest.mark.parametrize("at", [0, 2])
async def test_a_conversation_that_outgrows_the_context_is_truncated_not_failed(pool: SQLitePool, at: int) -> None:
    agent = ScriptedAgent(pool, raising(ContextOverflow("too long"), at))
    ending, stored = await play(pool, [GO_ON] * 5, agent)
    assert (stored.status, len(stored.steps), stored.reward) == ("truncated", at, 0.0)
    assert (ending.how, ending.why, ending.turns) == ("truncated", "too long", at)


@pytest.mark.parametrize("error", [EnvironmentFailed("the browser crashed"), ZeroDivisionError("oops")])
async def test_an_environment_that_breaks_fails_the_trajectory_with_the_reason(
    pool: SQLitePool, error: Exception
) -> None:
    ending, stored = await play(pool, [paid(0.5), error])
    assert (stored.status, len(stored.steps)) == ("failed", 2)
    assert not stored.complete
    assert ending.why == f"{type(error).__name__}: {error}"


async def test_an_engine_that_fails_fails_the_trajectory_with_the_reason(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [GO_ON], ScriptedAgent(pool, raising(EngineError("gone"), 0)))
    assert (stored.status, ending.how, ending.why) == ("failed", "failed", "EngineError: gone")
    assert stored.reward is None


async def test_a_task_that_does_not_exist_fails_the_trajectory(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [GO_ON], task="missing")
    assert (stored.status, ending.why) == ("failed", "NotFound: there is no such task")


async def test_a_reward_that_is_not_a_number_fails_the_trajectory(pool: SQLitePool) -> None:
    ending, stored = await play(pool, [paid(float("nan")), DONE])
    assert stored.status == "failed"
    assert ending.why.startswith("InvalidRecord: a reward must be a finite number")


async def test_cancelling_fails_the_trajectory_and_is_passed_on(pool: SQLitePool) -> None:
    inside = asyncio.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.Event().wait()

    info = TrajectoryInfo(task_id="task")
    agent = ScriptedAgent(pool, lambda turn: hang() if turn else None)
    task = asyncio.create_task(run_trajectory(info, ScriptedTasks([[GO_ON] * 3]), agent, pool, CONFIG))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stored = pool.trajectory(info.id)
    assert (stored.status, len(stored.steps)) == ("failed", 1)


async def test_recording_raises_what_the_pool_refuses(pool: SQLitePool) -> None:
    with pytest.raises(NotFound):
        await record(pool, Annotation.reward("step", "nobody", 1.0))
    info = TrajectoryInfo()
    await record(pool, info, Annotation.end(info.id, "terminated"))
    with pytest.raises(Conflict):
        await record(pool, Annotation.end(info.id, "failed"))


async def test_a_last_state_that_cannot_be_shown_leaves_the_episode_what_it_is(pool: SQLitePool) -> None:
    agent = ScriptedAgent(pool, raising(EngineError("a passing hiccup"), 5))
    ending, stored = await play(pool, [paid(0.5), *[GO_ON] * 10], agent)
    assert (ending.how, stored.status, stored.reward) == ("truncated", "truncated", 0.5)
    assert [step.side for step in stored.steps] == [""] * 5


async def test_where_the_conversation_does_not_fit_nobody_asks_for_its_last_state(pool: SQLitePool) -> None:
    asked: list[int] = []

    def before(turn: int) -> None:
        asked.append(turn)
        if turn == 2:
            raise ContextOverflow("too long")

    await play(pool, [GO_ON] * 5, ScriptedAgent(pool, before))
    assert asked == [0, 1, 2]
