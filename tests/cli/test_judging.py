"""A language model rewards a run's trajectories: any server of OpenAI's chat completions, asked before they end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.judging import judging
from stepwell.errors import ConfigError, EngineError, EnvironmentFailed, InvalidRequest
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.judges import FakeJudge
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving
from tests.scoring.worlds import step

Serve = Callable[[Any], str]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(TrajectoryInfo(id="t", task_id="rivers"), step("t", "The Seine.", question="Name a river."))
    yield pool
    pool.close()


@pytest.fixture
def served() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


async def said(pool: SQLitePool, *sections: dict[str, Any]) -> list[Annotation]:
    async with judging(sections, pool.trajectory) as judge:
        assert judge is not None
        return list(await judge("t"))


def asking(url: str, **settings: Any) -> dict[str, Any]:
    return {"use": "judge", "urls": [url], "model": "judge", "backoff": 0, "retries": 1, **settings}


async def test_a_judge_gives_a_part_with_what_it_was_asked_and_what_it_said(pool: SQLitePool, served: Serve) -> None:
    model = FakeJudge(lambda prompt: "Right.\nScore: 8")
    url = served(model.app())
    reward, evidence = await said(pool, asking(url, part="correct"))
    assert (reward.kind, reward.name, reward.value, reward.text) == ("reward", "correct", 0.8, "Right.\nScore: 8")
    assert (evidence.kind, evidence.name, evidence.text) == ("note", "asked", model.prompts[0])
    assert "Name a river." in evidence.text
    pool.put(reward, evidence)
    assert evidence in pool.trajectory("t").annotations


async def test_a_gateway_of_ours_can_be_the_judge(pool: SQLitePool, served: Serve, tmp_path: Path) -> None:
    own = SQLitePool.open(tmp_path / "judges.sqlite")
    engine = ScriptedEngine(tiny_renderer(), ["Score: 3"])
    url = served(create_app(engine, engine.renderer, own))
    assert [one.value for one in await said(pool, asking(url, model=engine.model))] == [0.3, None]
    own.close()


async def test_several_scorers_are_asked_in_order(pool: SQLitePool, served: Serve) -> None:
    judge = asking(served(FakeJudge(lambda prompt: "Score: 8").app()))
    rewards = await said(pool, judge, {"use": "regex", "pattern": "Seine", "part": "named"})
    assert [(one.name, one.value) for one in rewards] == [("judge", 0.8), ("asked", None), ("named", 1.0)]


@pytest.mark.parametrize(
    ("answer", "error", "asked"),
    [(503, EngineError, 2), ("no idea", EngineError, 1), ("Score: 11", EngineError, 1), (401, ConfigError, 1)],
)
async def test_a_judge_that_fails_is_a_typed_error_and_no_reward(
    pool: SQLitePool, served: Serve, answer: str | int, error: type[Exception], asked: int
) -> None:
    model = FakeJudge(lambda prompt: answer)
    with pytest.raises(error) as caught:
        await said(pool, asking(served(model.app())))
    assert type(caught.value) is not EnvironmentFailed
    assert len(model.asked) == asked


async def test_a_function_that_raises_is_a_failure_that_names_its_part(pool: SQLitePool) -> None:
    with pytest.raises(EnvironmentFailed, match="the reward 'mine' failed: ZeroDivisionError"):
        await said(pool, {"use": "callable", "function": "tests.cli.test_judging:broken", "part": "mine"})


def broken(trajectory: object) -> float:
    raise ZeroDivisionError


async def test_having_nothing_to_say_is_no_zero(pool: SQLitePool, tmp_path: Path) -> None:
    (tmp_path / "gold.jsonl").write_text('{"task_id": "capitals", "answer": "Paris"}\n')
    with pytest.raises(InvalidRequest, match="nothing to say of task 'rivers'"):
        await said(pool, {"use": "f1", "references": str(tmp_path / "gold.jsonl")})


async def test_a_trajectory_in_which_nothing_was_said_is_not_judged(pool: SQLitePool) -> None:
    pool.put(TrajectoryInfo(id="empty"))
    async with judging([{"use": "regex", "pattern": "x"}], pool.trajectory) as judge:
        assert judge is not None
        assert await judge("empty") == []


async def test_without_rewards_there_is_no_judge_and_a_wrong_one_is_named(pool: SQLitePool) -> None:
    async with judging([], pool.trajectory) as judge:
        assert judge is None
    with pytest.raises(ConfigError, match="oracle"):
        async with judging([{"use": "oracle"}], pool.trajectory):
            pass
