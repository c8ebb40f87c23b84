"""However an upstream fails, the caller gets an error that says so, and nothing hangs."""

import asyncio
import json
from collections.abc import Callable

import numpy as np
import pytest

from stepwell.engines import upstream
from stepwell.engines.base import Conversation, Generation
from stepwell.engines.openai import OpenAIConfig, OpenAIEngine
from stepwell.engines.served import ServedEngine, Syntax
from stepwell.engines.sglang import SGLangConfig, SGLangEngine
from stepwell.engines.upstream import Busy, Refused, Upstream, UpstreamConfig, refusal
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest
from stepwell.rendering.messages import Message
from tests.fakes.models import tiny_renderer
from tests.fakes.saying import cut, http, saying, stream
from tests.fakes.servers import free_port

PATIENCE = {"connect_timeout": 5.0, "idle_timeout": 0.3}


def vllm(url: str) -> VLLMEngine:
    upstream = Upstream(url, VLLMConfig(urls=(url,), **PATIENCE))
    return VLLMEngine(upstream, model="tiny", context_length=512, processed_logprobs=False, eos_ids=[0])


def sglang(url: str) -> SGLangEngine:
    upstream = Upstream(url, SGLangConfig(urls=(url,), **PATIENCE))
    facts = {"model": "tiny", "context_length": 512, "original_logprobs": False, "seeded": True}
    return SGLangEngine(upstream, **facts, eos_ids=[0])


def openai(url: str) -> OpenAIEngine:
    config = OpenAIConfig(urls=(url,), model="tiny", **PATIENCE)
    return OpenAIEngine(url, config, tiny_renderer(), Syntax(lambda calls, tools: ""))


GOOD = {
    vllm: '{"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[-0.5]},"finish_reason":null}]}',
    sglang: '{"meta_info":{"completion_tokens":1,"finish_reason":null,"output_token_logprobs":[[-0.5,5,null]]}}',
    openai: '{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}',
}
"""The first event of a stream, of each kind of server."""


@pytest.fixture(params=[vllm, sglang, openai])
def connected(request: pytest.FixtureRequest) -> Callable[[str], ServedEngine]:
    return request.param


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return request.param


async def ask(engine: ServedEngine, streamed: bool = True) -> list[int]:
    """The ids, or the error; within seconds."""
    conversation = Conversation(messages=(Message(role="user", content="hello"),))
    request = Generation(prompt_ids=np.array([5, 6], np.int32), stream=streamed, conversation=conversation)
    try:
        async with asyncio.timeout(20):
            return [i async for chunk in engine.generate(request) for i in chunk.token_ids]
    finally:
        await engine.aclose()


async def test_a_refused_connection_is_told_with_the_url(connected, streamed: bool) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match=f"{url} cannot be reached.*Is the server running there"):
        await ask(connected(url), streamed)


async def test_a_connection_that_closes_before_a_byte_is_told(connected, streamed: bool) -> None:
    with saying(b"") as url, pytest.raises(EngineError, match="closed the connection"):
        await ask(connected(url), streamed)


async def test_a_server_that_never_answers_is_given_up(connected, streamed: bool) -> None:
    with saying(b"", silent=True) as url, pytest.raises(EngineError, match=r"sent nothing for 0.3 s \(idle_timeout\)"):
        await ask(connected(url), streamed)


async def test_a_stream_that_falls_silent_is_given_up(connected) -> None:
    answer = cut(f"data: {GOOD[connected]}\n\n".encode())
    with saying(answer, silent=True) as url, pytest.raises(EngineError, match="sent nothing for"):
        await ask(connected(url))


async def test_a_stream_that_breaks_off_is_told_after_its_tokens(connected) -> None:
    answer = cut(f"data: {GOOD[connected]}\n\n".encode())
    with saying(answer) as url:
        engine = connected(url)
        conversation = Conversation(messages=(Message(role="user", content="hello"),))
        chunks = engine.generate(Generation(prompt_ids=np.array([5, 6], np.int32), conversation=conversation))
        assert (await anext(chunks)).token_ids
        with pytest.raises(EngineError, match="closed the connection"):
            await anext(chunks)
        await engine.aclose()


async def test_a_stream_that_ends_properly_but_too_early_is_told(connected) -> None:
    with (
        saying(stream(GOOD[connected], "[DONE]")) as url,
        pytest.raises(EngineError, match="in the middle"),
    ):
        await ask(connected(url))


@pytest.mark.parametrize(
    "body", [b"\x00\xff garbage", b"", b'{"choices": [{"tok', b"[1, 2]", b"<html>hi</html>", b"[" * 100_000]
)
async def test_an_answer_that_is_no_answer_is_told_and_shown(connected, body: bytes) -> None:
    with saying(http(body)) as url, pytest.raises(EngineError, match="sent what cannot be understood"):
        await ask(connected(url), streamed=False)


async def test_a_page_instead_of_a_stream_is_told_and_shown(connected) -> None:
    page = http(b"<html>welcome to the proxy</html>", "text/html")
    with saying(page) as url, pytest.raises(EngineError, match=r"something else than a stream.*welcome to the proxy"):
        await ask(connected(url))


@pytest.mark.parametrize("event", ["garbage", "{", "[]", '{"choices": 3, "meta_info": 3}', "\x00", "null"])
async def test_an_event_that_is_none_is_told(connected, event: str) -> None:
    with saying(stream(GOOD[connected], event)) as url, pytest.raises(EngineError, match="cannot be understood"):
        await ask(connected(url))


async def test_what_is_not_http_is_told(connected, streamed: bool) -> None:
    with saying(b"SSH-2.0-OpenSSH_9.2\r\n\r\n") as url, pytest.raises(EngineError, match="does not speak proper HTTP"):
        await ask(connected(url), streamed)


@pytest.mark.parametrize("status", ["500 Oh", "502 Bad", "503 Busy", "429 Slow down", "404 Not Found", "307 Moved"])
async def test_a_status_that_is_nobodys_mistake_here_is_the_engines_error(connected, streamed, status: str) -> None:
    answer = http(b'{"error": {"message": "so it is"}}', status=status)
    with saying(answer) as url, pytest.raises(EngineError, match=f"HTTP {status[:3]}: so it is"):
        await ask(connected(url), streamed)


@pytest.mark.parametrize("status", ["401 No", "403 Never"])
async def test_a_refused_key_names_the_setting(connected, streamed: bool, status: str) -> None:
    answer = http(b'{"error": "bad key"}', status=status)
    with saying(answer) as url, pytest.raises(EngineError, match=r"refuses the API key.*api_key: bad key"):
        await ask(connected(url), streamed)


@pytest.mark.parametrize(
    "body",
    [b'{"error": {"message": "no such one"}}', b'{"message": "no such one"}', b'{"detail": "no such one"}'],
)
async def test_what_is_the_callers_mistake_is_told_in_the_upstreams_words(connected, streamed, body: bytes) -> None:
    with saying(http(body, status="400 Bad")) as url, pytest.raises(InvalidRequest, match=r"^no such one$"):
        await ask(connected(url), streamed)


async def test_a_prompt_that_is_too_long_for_the_upstream_overflows(connected, streamed: bool) -> None:
    words = (
        b'{"error": {"message": "This model\'s maximum context length is 5 tokens", "code": "context_length_exceeded"}}'
    )
    with saying(http(words, status="400 Bad")) as url, pytest.raises(ContextOverflow, match="maximum context length"):
        await ask(connected(url), streamed)


async def test_an_error_inside_a_stream_is_told(connected) -> None:
    for code, kind in (("500", EngineError), ('"oops"', EngineError), ("null", EngineError), ("400", InvalidRequest)):
        event = f'{{"error": {{"message": "it broke", "code": {code}}}}}'
        with saying(stream(GOOD[connected], event, "[DONE]")) as url, pytest.raises(kind, match="it broke"):
            await ask(connected(url))


async def test_a_line_without_end_is_given_up(connected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_LONGEST_EVENT", 1000)
    with saying(cut(b"data: " + b"x" * 5000)) as url, pytest.raises(EngineError, match="no event"):
        await ask(connected(url))


async def test_events_are_read_however_the_bytes_are_cut(connected) -> None:
    last = {
        vllm: '{"choices":[{"token_ids":[6],"logprobs":{"token_logprobs":[-1]},"finish_reason":"stop"}],'
        '"usage":{"completion_tokens":2}}',
        sglang: '{"meta_info":{"completion_tokens":2,"finish_reason":{"type":"stop"},'
        '"output_token_logprobs":[[-1,6,""]]}}',
        openai: '{"choices":[{"delta":{},"finish_reason":"stop"}]}',
    }
    body = f": comment\r\ndata: {GOOD[connected]}\r\n\r\nevent: x\ndata:{last[connected]}\n\ndata: [DONE]\n\n".encode()
    answers = []
    for size in (1, 2, 7, 1000):
        parts = [body[i : i + size] for i in range(0, len(body), size)]
        chunks = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
        head = cut(b"").removesuffix(b"0\r\n\r\n")
        with saying(head + chunks + b"0\r\n\r\n") as url:
            answers.append(await ask(connected(url)))
    assert len(answers[0]) == 2
    assert answers == [answers[0]] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logprobs": {"token_logprobs": [-1.0, -2.0]}}, "2 log-probabilities for 1 tokens"),
        ({"logprobs": None}, "0 log-probabilities for 1 tokens"),
        ({"logprobs": {"token_logprobs": [None]}}, "cannot be understood"),
        ({"token_ids": None}, "return_token_ids"),
        ({"finish_reason": "abort"}, "gave up"),
    ],
)
async def test_vllm_must_send_one_logprob_per_id(streamed: bool, change: dict, words: str) -> None:
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop", **change}
    event = json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}})
    answer = stream(event, "[DONE]") if streamed else http(event.encode())
    with saying(answer) as url, pytest.raises(EngineError, match=words):
        await ask(vllm(url), streamed)


async def test_vllm_must_send_as_many_ids_as_it_counts(streamed: bool) -> None:
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
    for usage in ({"completion_tokens": 2}, None):
        event = json.dumps({"choices": [choice], "usage": usage})
        answer = stream(event, "[DONE]") if streamed else http(event.encode())
        with saying(answer) as url, pytest.raises(EngineError, match=r"counts (2|None) sampled tokens, but sent 1"):
            await ask(vllm(url), streamed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_token_logprobs": [[-1.0, 5, None]] * 3}, "3 log-probabilities for 2 tokens"),
        ({"output_token_logprobs": []}, "0 log-probabilities for 2 tokens"),
        ({"output_token_logprobs": None}, "0 log-probabilities for 2 tokens"),
        ({"output_token_logprobs": [[None, 5, None]] * 2}, "without its log-probability"),
        ({"finish_reason": {"type": "abort", "message": "out of memory"}}, "out of memory"),
    ],
)
async def test_sglang_must_send_one_logprob_per_token(streamed: bool, change: dict, words: str) -> None:
    good = [[-1.0, 5, None]] * 2
    meta = {"completion_tokens": 2, "finish_reason": {"type": "stop"}, "output_token_logprobs": good, **change}
    event = json.dumps({"meta_info": meta})
    answer = stream(event, "[DONE]") if streamed else http(event.encode())
    with saying(answer) as url, pytest.raises(EngineError, match=words):
        await ask(sglang(url), streamed)


async def test_health_is_told_without_raising(connected) -> None:
    for answer, expected in ((http(b""), True), (http(b"", status="503 Busy"), False), (b"", False), (b"?", False)):
        with saying(answer) as url:
            engine = connected(url)
            assert await engine.healthy() is expected
            await engine.aclose()
    engine = connected(f"http://127.0.0.1:{free_port()}")
    assert not await engine.healthy()
    await engine.aclose()


def test_an_engine_answers_in_one_event_loop_after_the_other(connected) -> None:
    with saying(http(b"")) as url:
        engine = connected(url)
        for _ in range(2):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(engine.healthy())
            loop.run_until_complete(engine.aclose())
            loop.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://there", ""])
def test_a_url_needs_its_scheme(url: str) -> None:
    with pytest.raises(ValueError, match="urls"):
        UpstreamConfig(urls=(url,))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_a_url_may_end_in_v1_or_not(path: str) -> None:
    url = f"http://127.0.0.1:8000{path}"
    assert Upstream(url, UpstreamConfig(urls=(url,))).url == "http://127.0.0.1:8000"


def test_a_key_is_not_shown() -> None:
    config = UpstreamConfig(urls=("http://127.0.0.1",), api_key="sk-secret")
    assert "sk-secret" not in f"{config!r} {config.model_dump()}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Refused) for status in (301, 308, 401, 402, 403, 404, 405, 410, 451)),
        *((status, InvalidRequest) for status in (400, 413, 422)),
        *((status, Busy) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
    ],
)
def test_a_refusal_says_whether_it_concerns_everything_this_question_or_this_moment(status: int, kind: type) -> None:
    error = refusal("http://x", status, "no", 7.0)
    assert type(error) is kind
    assert getattr(error, "retry_after", 7.0) == 7.0
