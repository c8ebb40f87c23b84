"""The built-in agent against a real gateway: what it sends arrives, and each failure has its class."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepwell.errors import ContextOverflow, EngineError, InvalidRequest
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.store import SQLitePool
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.agent import ChatAgent, ChatAgentConfig
from stepwell.types import Annotation, Sampling, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving

SEARCH = Tool(
    name="search",
    description="Find.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
ASK = (Message(role="system", content="be brief"), Message(role="user", content="find wells"))
CONFIG = ChatAgentConfig(temperature=0.7, max_tokens=32, timeout=20)

Connect = Callable[..., ChatAgent]


@pytest.fixture
async def connect(pool: SQLitePool) -> AsyncIterator[Connect]:
    """Start a gateway in front of an engine; gives an agent of it."""
    agents: list[ChatAgent] = []
    with ExitStack() as stack:

        def start(engine: ScriptedEngine, model: str = "tiny", config: GatewayConfig | None = None) -> ChatAgent:
            url = stack.enter_context(serving(create_app(engine, engine.renderer, pool, config)))
            agents.append(ChatAgent(f"{url}/", model, CONFIG))
            return agents[-1]

        yield start
        for agent in agents:
            async with agent:
                pass  # closes its connections


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def engine(*replies: str, **settings) -> ScriptedEngine:
    return ScriptedEngine(tiny_renderer("line"), replies or ("hello",), **settings)


async def test_an_answer_is_a_message_with_the_id_of_its_recorded_step(connect: Connect, pool: SQLitePool) -> None:
    action = await connect(engine("hello there")).act("traj-1", ASK, ())
    assert action.message == Message(role="assistant", content="hello there")
    step = pool.step(action.step_id)
    assert (step.trajectory_id, step.index) == ("traj-1", 0)
    assert step.sampling == Sampling(temperature=0.7, max_tokens=32)


async def test_a_tool_call_comes_back_as_a_record(connect: Connect) -> None:
    action = await connect(engine("search: deep wells")).act("traj-1", ASK, (SEARCH,))
    (made,) = action.message.tool_calls
    assert (made.name, made.arguments) == ("search", '{"query": "deep wells"}')


async def test_a_conversation_with_calls_and_results_extends_the_step_before(
    connect: Connect, pool: SQLitePool
) -> None:
    agent = connect(engine("search: wells", "done"))
    first = await agent.act("traj-1", ASK, (SEARCH,))
    (made,) = first.message.tool_calls
    result = Message(role="tool", content="three wells", tool_call_id=made.id)
    second = await agent.act("traj-1", (*ASK, first.message, result), (SEARCH,))
    before, after = pool.step(first.step_id), pool.step(second.step_id)
    known = [*before.prompt_ids, *before.response_ids]
    assert after.index == 1
    assert after.prompt_ids[: len(known)].tolist() == known


async def test_two_trajectories_of_one_agent_stay_apart(connect: Connect, pool: SQLitePool) -> None:
    agent = connect(engine("hello"))
    steps = [pool.step((await agent.act(name, ASK, ())).step_id) for name in ("traj-1", "traj-2", "traj-1")]
    assert [(step.trajectory_id, step.index) for step in steps] == [("traj-1", 0), ("traj-2", 0), ("traj-1", 1)]


async def test_a_conversation_that_does_not_fit_overflows(connect: Connect) -> None:
    agent = connect(engine(context_length=16))
    with pytest.raises(ContextOverflow, match="context holds 16"):
        await agent.act("traj-1", ASK, ())


async def test_an_engine_that_fails_is_asked_again_and_then_an_engine_error(connect: Connect) -> None:
    failing = engine(fail_after=0)
    with pytest.raises(EngineError, match="scripted engine fails"):
        await connect(failing).act("traj-1", ASK, ())
    assert len(failing.requests) == 3


async def test_a_request_that_the_gateway_refuses_is_an_invalid_request(connect: Connect, pool: SQLitePool) -> None:
    agent = connect(engine())
    with pytest.raises(InvalidRequest, match="at least one message"):
        await agent.act("traj-1", (), ())
    with pytest.raises(InvalidRequest, match="not served here"):
        await connect(engine(), model="another").act("traj-1", ASK, ())


async def test_a_trajectory_that_has_ended_takes_no_call_any_more(connect: Connect, pool: SQLitePool) -> None:
    pool.put(TrajectoryInfo(id="traj-1"), Annotation.end("traj-1", "terminated"))
    with pytest.raises(InvalidRequest, match="has ended"):
        await connect(engine()).act("traj-1", ASK, ())


async def test_a_gateway_that_is_not_there_is_an_engine_error_that_names_it(unused_port: int) -> None:
    async with ChatAgent(f"http://127.0.0.1:{unused_port}", "tiny", CONFIG) as agent:
        with pytest.raises(EngineError, match=f"no answer from http://127.0.0.1:{unused_port}"):
            await agent.act("traj-1", ASK, ())


async def test_an_answer_that_was_lost_on_the_way_is_asked_for_again_and_is_one_step(
    connect: Connect, pool: SQLitePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = connect(engine("hello", "found", "found something else"))
    pool.put(TrajectoryInfo(id="t"))
    first = await agent.act("t", ASK, (SEARCH,))
    once, lost = agent._once, []

    async def losing(*asked):
        answer = await once(*asked)
        if not lost:
            lost.append(answer)
            raise aiohttp.ServerDisconnectedError
        return answer

    monkeypatch.setattr(agent, "_once", losing)
    second = await agent.act("t", (*ASK, first.message, Message(role="user", content="go on")), (SEARCH,))
    assert (second.message.content, len(lost)) == ("found", 1)
    assert [step.id for step in pool.trajectory("t").steps] == [first.step_id, second.step_id]


async def test_arguments_that_are_no_json_are_sent_as_they_are(connect: Connect, pool: SQLitePool) -> None:
    broken = Message(role="assistant", tool_calls=(ToolCall(id="c", name="search", arguments="{oops"),))
    result = Message(role="tool", content="that is no JSON", tool_call_id="c")
    action = await connect(engine("hello")).act("traj-1", (*ASK, broken, result), (SEARCH,))
    assert "{oops" in pool.step(action.step_id).request


async def test_a_state_that_is_only_looked_at_is_recorded_beside_the_agents_work(
    connect: Connect, pool: SQLitePool
) -> None:
    agent = connect(engine("hello", "ignored"))
    pool.put(TrajectoryInfo(id="t"))
    first = await agent.act("t", ASK, (SEARCH,))
    await agent.look("t", (*ASK, first.message, Message(role="user", content="go on")), (SEARCH,))
    acted, looked = pool.trajectory("t").steps
    assert (acted.side, looked.side) == ("", "state")
    assert looked.sampling.max_tokens == 1
    assert not looked.trainable
    assert len(looked.prompt_ids) > len(acted.prompt_ids)


GOOD = {"id": "chatcmpl-step", "choices": [{"message": {"role": "assistant", "content": "yes"}}]}
Answers = Callable[..., tuple[ChatAgent, list[Request]]]


@pytest.fixture
async def answering() -> AsyncIterator[Answers]:
    """An agent of a server that gives these answers, the last one for ever; and what it was asked."""
    agents: list[ChatAgent] = []
    with ExitStack() as stack:

        def start(*answers: Response, **settings: object) -> tuple[ChatAgent, list[Request]]:
            heard: list[Request] = []

            async def answer(request: Request) -> Response:
                heard.append(request)
                return answers[min(len(heard), len(answers)) - 1]

            url = stack.enter_context(serving(Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])))
            agents.append(ChatAgent(url, "tiny", CONFIG, **settings))
            return agents[-1], heard

        yield start
        for agent in agents:
            async with agent:
                pass


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_go_well_another_time_is_asked_for_again_and_says_so(answering: Answers, status: int) -> None:
    busy = Response("busy", status, {"retry-after": "0"})
    agent, heard = answering(busy, busy, JSONResponse(GOOD))
    action = await agent.act("t", ASK, ())
    assert (action.message.content, action.step_id) == ("yes", "step")
    assert [request.headers.get("x-stainless-retry-count") for request in heard] == [None, "1", "2"]


async def test_a_server_that_wants_to_be_left_alone_for_long_has_failed(answering: Answers) -> None:
    agent, heard = answering(Response("come back tomorrow", 429, {"retry-after": "86400"}))
    with pytest.raises(EngineError, match=r"come back tomorrow \(status 429\)"):
        await agent.act("t", ASK, ())
    assert len(heard) == 1


@pytest.mark.parametrize(("foreign", "kind"), [(False, InvalidRequest), (True, EngineError)])
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "not like that"}}',
        b'{"error": "not like that"}',
        b'{"detail": "not like that"}',
        b"not like that",
    ],
)
async def test_a_refusal_is_told_in_the_servers_words_whatever_their_shape(
    answering: Answers, body: bytes, foreign: bool, kind: type[Exception]
) -> None:
    agent, heard = answering(Response(body, 422), foreign=foreign)
    with pytest.raises(kind, match=r"not like that.*422"):
        await agent.act("t", ASK, ())
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "is no JSON"),
        (b"[]", "no chat completion"),
        (b"{}", "no chat completion"),
        (b'{"choices": []}', "no chat completion"),
        (b'{"choices": [{"message": {"role": "assistant", "content": 7}}]}', "no chat completion"),
    ],
)
async def test_an_answer_that_is_none_is_an_engine_error(answering: Answers, body: bytes, says: str) -> None:
    agent, _ = answering(Response(body, media_type="application/json"))
    with pytest.raises(EngineError, match=says):
        await agent.act("t", ASK, ())


async def test_a_server_that_does_not_answer_in_time_is_an_engine_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with ChatAgent(url, "tiny", ChatAgentConfig(timeout=0.1)) as agent:
            with pytest.raises(EngineError, match=f"no answer from {url}: .+"):
                await agent.act("t", ASK, ())
