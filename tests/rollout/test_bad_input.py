"""Whatever an environment or its tools do wrong is a recorded outcome with its reason: no crash, no silent zero.

Through the real gateway and pool, over HTTP.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import EnvironmentFailed
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from stepwell.rendering.messages import Message
from stepwell.rollout.agent import ChatAgent, ChatAgentConfig
from stepwell.rollout.env import Environment, Outcome
from stepwell.rollout.group import Collector
from stepwell.rollout.run import EnvironmentPlayer, RolloutConfig
from stepwell.types import Trajectory
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving
from tests.rollout.worlds import DONE


@dataclass
class World:
    """Says "go", does what the test wants, and ends the episode after that."""

    does: Callable[[], Any]
    name: str = "world"

    def tasks(self, split: str) -> Sequence[str]:
        return ["task"]

    def make(self) -> Environment:
        return _World(self.does)


class _World:
    tools = ()

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does
        self._turns = 0

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        return (Message(role="user", content="go"),)

    def step(self, action: Message) -> Outcome:
        self._turns += 1
        if self._turns > 1:
            return DONE
        return Outcome(messages=(Message(role="user", content=self._does()),))


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., list[Trajectory]]]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    engine = ScriptedEngine(tiny_renderer(), ["yes"] * 99)

    async def collect(does: Callable[[], Any], url: str, **config: Any) -> None:
        settings = RolloutConfig(**{"group_size": 1, "max_failures": 1, **config})
        async with ChatAgent(url, engine.model, ChatAgentConfig()) as agent:
            player = EnvironmentPlayer(World(does), agent, pool, settings)
            await Collector(player, pool, settings).collect_groups(iter(["task"]), 1, 1)

    def played(does: Callable[[], Any], **config: Any) -> list[Trajectory]:
        with serving(create_app(engine, engine.renderer, pool)) as url:
            try:
                asyncio.run(collect(does, url, **config))
            finally:
                found = [pool.trajectory(line.info.id) for _, line in pool.trajectories()]
                assert all(trajectory.status != "open" for trajectory in found)
                seen.extend(found[::-1])
        return seen

    seen: list[Trajectory] = []
    played.seen = seen  # type: ignore[attr-defined]
    yield played
    pool.close()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"caf\xe9 \xff".decode("utf-8", "surrogateescape"), "caf? ?"),
        ("\ud83d", "?"),
        ("a\0b", "a\0b"),
        ("x" * 100_000_000, "[99999000 characters left out]"),
    ],
    ids=["invalid UTF-8", "half a character", "NUL", "100 MB"],
)
def test_whatever_a_tool_prints_is_shown_as_text_of_bounded_length(play, said: str, shown: str) -> None:
    (trajectory,) = play(lambda: said, max_observation=1000)
    assert (trajectory.status, trajectory.reward, len(trajectory.steps)) == ("terminated", 1.0, 2)
    prompt = tiny_renderer().decode(trajectory.steps[1].prompt_ids)
    assert shown in prompt
    assert len(prompt) < 1200


def _exits() -> str:
    raise SystemExit("bye")


def _times_out() -> str:
    raise TimeoutError("the socket")


def _stops() -> str:
    return next(iter(()))


def _recurses() -> str:
    return _recurses()


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (_exits, "SystemExit: bye"),
        (_stops, "StopIteration"),
        (_times_out, "_World.step raised TimeoutError: the socket"),
        (_recurses, "RecursionError"),
        (lambda: 1 / 0, "division"),
    ],
)
def test_an_environment_that_raises_anything_has_failed_with_its_reason(
    play, does: Callable[[], str], why: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=why):
        play(does)
    assert {(t.status, t.complete, t.reward) for t in play.seen} == {("failed", False, None)}
    assert all(why in t.why for t in play.seen)


def test_one_that_hangs_is_given_up_tried_again_and_given_up(play) -> None:
    released = threading.Event()
    try:
        with pytest.raises(EnvironmentFailed, match="2 trajectories of task task failed"):
            play(released.wait, step_timeout=0.1)
        assert [t.status for t in play.seen] == ["failed", "failed"]
        assert all("_World.step did not return within 0.1 s" in t.why for t in play.seen)
    finally:
        released.set()


def test_one_that_dies_once_is_replaced(play) -> None:
    deaths = iter([EnvironmentFailed("the browser is gone")])

    def dies_once() -> str:
        for death in deaths:
            raise death
        return "go on"

    failed, replaced = play(dies_once)
    assert (failed.status, failed.why) == ("failed", "EnvironmentFailed: the browser is gone")
    assert (replaced.status, replaced.reward) == ("terminated", 1.0)
