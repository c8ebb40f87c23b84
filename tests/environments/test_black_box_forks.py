"""Forks of agents that nobody changes: what a sibling is told, what becomes of one that is not in its past."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stepwell.algorithms.base import Siblings
from stepwell.environments.black_box import BlackBoxConfig
from stepwell.errors import EngineError
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from stepwell.rollout.blackbox import Call, Place, Task
from stepwell.rollout.command import CommandRunner
from stepwell.rollout.group import Collector
from stepwell.rollout.run import ALIKE, Ending, Fork, RolloutConfig, Start
from stepwell.rollout.siblings import SiblingCollector
from stepwell.types import GroupInfo, Trajectory, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving

AGENT = textwrap.dedent(
    """
    import os
    import httpx

    def asked(call, messages):
        body = {"model": call.model, "messages": messages}
        answer = httpx.post(f"{call.url}/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]["content"]

    def solve(call, turns=3, greeting="hello"):
        messages = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{greeting} {turn}"})
            messages.append({"role": "assistant", "content": asked(call, messages)})
        return 1.0
    """
)


class FailingOnce(ScriptedEngine):
    """Fails after `fail_after` tokens, and then no more."""

    async def _before(self, position: int) -> None:
        if position == self.fail_after:
            self.fail_after = None
            raise EngineError("the scripted engine fails here")


@dataclass
class Bench:
    """An agent whose program a test may change between its trunk and its forks."""

    folder: Path
    engine: FailingOnce
    pool: SQLitePool
    place: Place
    forks: list[Fork] = field(default_factory=list)
    trunk: str = ""

    def config(self, program: str = "", name: str = "solve", **settings) -> BlackBoxConfig:
        (self.folder / f"{name}.py").write_text(AGENT + textwrap.dedent(program))
        agent = {} if "command" in settings else {"function": f"{self.folder}/{name}.py:{name}", "reward": "result"}
        return BlackBoxConfig(**{"tasks": self.folder / "tasks.jsonl", **agent, **settings})

    async def play(self, config: BlackBoxConfig, start: Start, group: str | None = None) -> tuple[Ending, Trajectory]:
        info = TrajectoryInfo(task_id="t", group_id=group)
        ending = await config.build().player(self.place).play(info, start)
        return ending, self.pool.trajectory(info.id)

    async def record(self, config: BlackBoxConfig) -> Trajectory:
        ending, stored = await self.play(config, Start(forks=self.forks))
        assert ending.how == "terminated", ending.why
        self.trunk = stored.info.id
        return stored

    async def fork(self, config: BlackBoxConfig, index: int) -> tuple[Ending, Trajectory]:
        group = GroupInfo(task_id="t", size=2, origin_id=self.trunk, origin_index=self.forks[index].step)
        self.pool.put(group)
        return await self.play(config, Start(fork=self.forks[index]), group.id)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    engine = FailingOnce(tiny_renderer("line"), [f"reply{number}" for number in range(99)])
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "prompt": "hello"}\n')
    with ExitStack() as stack:
        url = stack.enter_context(serving(create_app(engine, engine.renderer, pool)))
        yield Bench(tmp_path, engine, pool, Place(gateway_url=url, model="tiny", log=pool, read=pool.trajectory))
    pool.close()


SHORT = """
def short(call):
    return solve(call, turns=1)
"""
DEAD = """
def dead(call):
    solve(call, turns=1)
    raise RuntimeError("out of memory")
"""
LONG = """
def long(call):
    return solve(call, turns=4)
"""
OTHER = """
def other(call):
    try:
        solve(call, greeting="good day")
    except httpx.HTTPStatusError:
        solve(call)
    return 1.0
"""
DEAF = """
def deaf(call):
    try:
        solve(call, greeting="good day")
    except httpx.HTTPStatusError:
        pass
    return 1.0
"""


async def test_a_reward_sees_all_that_an_agent_lived_through(bench: Bench) -> None:
    (bench.folder / "judge.py").write_text("def reward(done):\n    return len(done.steps)\n")
    config = bench.config(reward=f"{bench.folder}/judge.py:reward")
    await bench.record(config)
    for index in range(3):
        ending, stored = await bench.fork(config, index)
        assert (stored.reward, ending.turns) == (3.0, 3 - index)


async def test_an_agent_that_ends_before_the_fork_has_failed_and_another_try_would_not_mend_it(bench: Bench) -> None:
    await bench.record(bench.config())
    ending, stored = await bench.fork(bench.config(SHORT, "short"), 2)
    assert (stored.status, stored.reward, ending.retry) == ("failed", None, False)
    assert stored.why.startswith("ForkRefused: the agent did not get to step 2, which it was to take anew")


async def test_an_agent_that_dies_in_its_past_has_failed_and_is_tried_again(bench: Bench) -> None:
    await bench.record(bench.config())
    ending, stored = await bench.fork(bench.config(command="echo no memory; exit 3"), 2)
    assert (stored.status, stored.reward, ending.retry) == ("failed", None, True)
    assert stored.why.endswith("did not get to step 2, which it was to take anew; it ended with 3: no memory\n")


async def test_a_function_that_raises_in_its_past_has_failed_by_that(bench: Bench) -> None:
    await bench.record(bench.config())
    ending, stored = await bench.fork(bench.config(DEAD, "dead"), 2)
    assert (stored.status, ending.retry) == ("failed", True)
    assert stored.why == "EnvironmentFailed: the agent raised RuntimeError: out of memory"


async def test_an_agent_may_go_on_for_longer_than_it_did(bench: Bench) -> None:
    await bench.record(bench.config())
    ending, stored = await bench.fork(bench.config(LONG, "long"), 2)
    assert (ending.how, [step.index for step in stored.steps]) == ("terminated", [2, 3])


@pytest.mark.parametrize(("name", "program"), [("other", OTHER), ("deaf", DEAF)])
async def test_an_agent_that_asked_something_else_has_failed_whatever_it_makes_of_the_refusal(
    bench: Bench, name: str, program: str
) -> None:
    await bench.record(bench.config())
    sampled = len(bench.engine.requests)
    ending, stored = await bench.fork(bench.config(program, name), 1)
    assert (stored.status, stored.reward, ending.retry) == ("failed", None, False)
    assert "the agent sent 'good day 0" in stored.why
    assert len(bench.engine.requests) == sampled
    assert stored.steps == ()


async def test_an_answer_that_was_cut_off_is_no_turn_to_take_anew(bench: Bench) -> None:
    program = """
    def cut(call):
        messages = [{"role": "user", "content": "hello 0"}]
        try:
            asked(call, messages)
        except httpx.HTTPStatusError:
            return solve(call)
    """
    bench.engine.fail_after = 2
    config = bench.config(program, "cut")
    await bench.record(config)
    assert [fork.step for fork in bench.forks] == [1, 2, 3]


async def test_siblings_that_all_do_the_same_are_dropped_as_those_of_environments_are(bench: Bench) -> None:
    endings: list[Ending] = []
    player = bench.config().build().player(bench.place)
    collector = Collector(player, bench.pool, RolloutConfig(group_size=2), on_ending=endings.append)
    siblings = SiblingCollector(collector, Siblings(skip_alike=True))
    bench.engine.replies = ["a", "b", "c", *["same"] * 2, *"defghijklmnop"]
    assert await siblings.collect(iter(["t"]), 1) == 1
    assert [ending.why for ending in endings] == ["", ALIKE, ALIKE, "", ""]
    states = [line.state for _, line in bench.pool.groups("default")]
    assert sorted(states) == ["dropped", "ready"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_an_agent_in_a_cage_that_says_where_it_is_can_be_forked(bench: Bench) -> None:
    (bench.folder / "files").mkdir()
    program = "import os, types\nurl, model = os.environ['OPENAI_BASE_URL'], os.environ['STEPWELL_MODEL']\n"
    program += "solve(types.SimpleNamespace(url=url, model=model), greeting=os.getcwd())\n"
    (bench.folder / "files" / "agent.py").write_text(AGENT + program)
    command = f"{sys.executable} agent.py"
    config = bench.config(command=command, files=bench.folder / "files", sandbox="bubblewrap")
    await bench.record(config)
    ending, stored = await bench.fork(config, 2)
    assert (ending.how, [step.index for step in stored.steps]) == ("terminated", [2]), ending.why


async def test_a_program_that_prints_a_set_says_the_same_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    program = f"{sys.executable} -c \"print([*{{'one', 'two', 'three', 'four', 'five'}}])\""
    call = Call(task=Task("t", ""), url="", key="", model="", trajectory_id="t", folder=bench.folder)
    assert len({(await CommandRunner(program).run(call))[1] for _ in range(3)}) == 1
