"""A real agent that nobody changed, of the OpenAI Agents SDK: recorded, and forked at each of its turns."""

import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("agents", reason="needs: pip install openai-agents")

from stepwell.environments.black_box import BlackBoxConfig
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from stepwell.rollout.blackbox import Place
from stepwell.rollout.run import Fork, Start
from stepwell.types import GroupInfo, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving

AGENT = textwrap.dedent(
    """
    from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str) -> str:
        "The weather of a city."
        return f"sunny in {city}"

    async def DIALECT(call):
        agent = Agent(name="helper", instructions="INSTRUCTIONS", tools=[weather], model=call.model)
        async with AsyncOpenAI(base_url=call.url, api_key=call.key) as client:
            provider = OpenAIProvider(openai_client=client, use_responses="DIALECT" == "responses")
            config = RunConfig(model_provider=provider, tracing_disabled=True)
            result = await Runner.run(agent, call.task.prompt, run_config=config)
        return float(len(result.final_output))
    """
)
CALLS = [
    f'{city}? <tool_call>\n{{"name": "weather", "arguments": {{"city":  "{city}"}}}}\n</tool_call>'
    for city in ("Paris", "Oslo", "Lima")
]
TOLD = [*CALLS, "all sunny"]
ANEW = ["and Rome? " + CALLS[0].replace("Paris", "Rome"), "sunny there too"]
"""What the policy does in the trunk, and what it does where it is asked anew. Two spaces: no client sends them back."""


class Forking:
    """The agent, its trunk, and forks of that."""

    def __init__(self, folder: Path, dialect: str, place: Place, pool: SQLitePool) -> None:
        self.folder, self.dialect, self.place, self.pool = folder, dialect, place, pool
        self.forks: list[Fork] = []

    async def play(self, start: Start, group_id: str | None = None, instructions: str = "You help."):
        program = self.folder / f"{len(instructions)}_{self.dialect}.py"
        program.write_text(AGENT.replace("DIALECT", self.dialect).replace("INSTRUCTIONS", instructions))
        config = BlackBoxConfig(
            function=f"{program}:{self.dialect}", tasks=self.folder / "tasks.jsonl", reward="result"
        )
        info = TrajectoryInfo(task_id="t", group_id=group_id)
        await config.build().player(self.place).play(info, start)
        return self.pool.trajectory(info.id)

    async def fork(self, index: int, instructions: str = "You help."):
        start = self.forks[index]
        group = GroupInfo(task_id="t", size=1, origin_id=start.origin_id, origin_index=start.step)
        self.pool.put(group)
        return await self.play(Start(fork=start), group.id, instructions)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(tiny_renderer("hermes"), [*TOLD, *ANEW])


@pytest.fixture(params=["responses", "chat"])
def forking(request: pytest.FixtureRequest, tmp_path: Path, engine: ScriptedEngine) -> Iterator[Forking]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "prompt": "what is the weather?"}\n')
    with ExitStack() as stack:
        url = stack.enter_context(serving(create_app(engine, engine.renderer, pool)))
        place = Place(gateway_url=url, model="tiny", log=pool, read=pool.trajectory)
        yield Forking(tmp_path, request.param, place, pool)
    pool.close()


@pytest.mark.parametrize("index", range(4))
async def test_a_sibling_is_answered_from_the_record_up_to_its_turn_and_takes_that_anew(
    forking: Forking, engine: ScriptedEngine, index: int
) -> None:
    trunk = await forking.play(Start(forks=forking.forks))
    assert (trunk.status, trunk.reward, len(trunk.steps)) == ("terminated", len("all sunny"), 4)
    assert [fork.step for fork in forking.forks] == [0, 1, 2, 3]

    fork = await forking.fork(index)
    assert len(engine.requests) == 4 + 2  # none for what came before
    assert [step.index for step in fork.steps] == [index, index + 1]
    assert fork.reward == len("sunny there too"), fork.why
    taken, anew = trunk.steps[index], fork.steps[0]
    assert np.array_equal(anew.prompt_ids, taken.prompt_ids)
    assert np.array_equal(engine.requests[4].prompt_ids, taken.prompt_ids)
    assert not np.array_equal(anew.response_ids, taken.response_ids)
    assert anew.parent_id == (trunk.steps[index - 1].id if index else "")
    whole = fork.steps[1].prompt_ids[: len(anew.token_ids)]
    assert np.array_equal(whole, anew.token_ids)  # it goes on from its own step, id for id


@pytest.mark.parametrize("index", [0, 3])
async def test_an_agent_whose_prompt_has_changed_is_told_the_first_difference(
    forking: Forking, engine: ScriptedEngine, index: int
) -> None:
    await forking.play(Start(forks=forking.forks))
    fork = await forking.fork(index, "You help a lot.")
    assert (fork.status, fork.reward, fork.steps) == ("failed", None, ())
    assert "at step 0 of trajectory" in fork.why
    assert "You help' the record has '.\\n\\n# Tools" in fork.why
    assert "and the agent sent ' a lot.\\n\\n# Tools" in fork.why
    assert len(engine.requests) == 4
