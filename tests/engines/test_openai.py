"""The text-only engine against a fake chat server: what it asks, and how it writes down what it is told."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stepwell.engines.base import Chunk, Conversation, Generation
from stepwell.engines.openai import OpenAIConfig, OpenAIEngine
from stepwell.engines.served import Syntax
from stepwell.errors import ConfigError, InvalidRequest
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.renderer import Renderer
from stepwell.types import Sampling
from tests.engines.laws import together
from tests.fakes.models import CHATML, tiny_renderer
from tests.fakes.servers import serving

RENDERER = tiny_renderer()
EOS = min(RENDERER.eos_ids)
SEARCH = Tool(name="search", parameters={"type": "object", "properties": {"q": {"type": "string"}}})
MESSAGES = (
    Message(role="system", content="be kind"),
    Message(role="user", content="hello"),
    Message(
        role="assistant", content="", reasoning="hm", tool_calls=(ToolCall(id="1", name="search", arguments="{}"),)
    ),
    Message(role="tool", content="nothing", tool_call_id="1"),
)


def written(calls, tools) -> str:
    return "".join(f"<{call.name}{call.arguments}>" for call in calls)


@dataclass
class FakeChat:
    """Answers with these deltas: one after the other, or put together."""

    deltas: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "assistant"}, {"content": "hello"}])
    finish: str = "stop"
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()
        app.post("/v1/chat/completions")(self._complete)
        return app

    async def _complete(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        if self.bodies[-1].get("stream"):
            return StreamingResponse(self._events(), media_type="text/event-stream")
        choice = {"index": 0, "message": self._message(), "finish_reason": self.finish}
        return JSONResponse({"object": "chat.completion", "choices": [choice]})

    async def _events(self) -> AsyncIterator[str]:
        for delta in self.deltas:
            yield self._event({"index": 0, "delta": delta, "finish_reason": None})
        yield self._event({"index": 0, "delta": {}, "finish_reason": self.finish})
        yield "data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any]) -> str:
        return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
        for delta in self.deltas:
            for name in ("content", "reasoning_content", "reasoning"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for part in delta.get("tool_calls", ()):
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"id": part["id"], "function": {"name": "", "arguments": ""}})
                function = message["tool_calls"][part["index"]]["function"]
                for name, more in part["function"].items():
                    function[name] += more
        return message


@pytest.fixture
def fake() -> FakeChat:
    return FakeChat()


@pytest.fixture
def url(fake: FakeChat) -> Iterator[str]:
    with serving(fake.app()) as url:
        yield url


async def played(url: str, *, settings: dict[str, Any] | None = None, **wishes: Any) -> list[Chunk]:
    config = OpenAIConfig(urls=(url,), model="big", **settings or {})
    engine = OpenAIEngine(url, config, RENDERER, Syntax(written))
    wishes = {"conversation": Conversation(messages=MESSAGES, tools=(SEARCH,)), **wishes}
    request = Generation(prompt_ids=np.array([5], np.int32), **wishes)
    try:
        return [chunk async for chunk in engine.generate(request)]
    finally:
        await engine.aclose()


def text(chunks: list[Chunk]) -> str:
    return RENDERER.decode(together([5], chunks).ids)


CALL = [
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "search", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]},
    {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "open", "arguments": "{}"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([{"content": "hel"}, {"content": "lo, t"}, {"content": "here"}], "hello, there"),
        ([{"content": "caf"}, {"content": "é 🦊"}], "café 🦊"),
        (
            [{"reasoning_content": "so"}, {"reasoning_content": "so"}, {"content": "ok"}],
            "<think>\nsoso\n</think>\n\nok",
        ),
        ([{"reasoning": "hm"}, {"content": "ok"}], "<think>\nhm\n</think>\n\nok"),
        ([{"reasoning_content": "hm"}], "<think>\nhm\n</think>\n\n"),
        (CALL, '<search{"q":"x"}><open{}>'),
        ([{"content": "look:"}, *CALL], 'look:\n<search{"q":"x"}><open{}>'),
        ([{"reasoning_content": "hm"}, *CALL], '<think>\nhm\n</think>\n\n<search{"q":"x"}><open{}>'),
        ([], ""),
    ],
)
async def test_an_answer_is_written_as_a_model_would_have_sampled_it(
    fake: FakeChat, url: str, deltas: list[dict[str, Any]], expected: str, stream: bool
) -> None:
    fake.deltas, fake.finish = deltas, "tool_calls" if deltas[-1:] == CALL[-1:] else "stop"
    chunks = await played(url, stream=stream)
    assert text(chunks) == expected
    answer = together([5], chunks)
    assert answer.ids[-1] == EOS
    assert answer.finish == "stop"
    assert set(answer.logprobs) == {0.0}


async def test_text_comes_as_soon_as_it_is_said(fake: FakeChat, url: str) -> None:
    fake.deltas = [{"content": part} for part in ("one ", "two ", "three")]
    chunks = await played(url)
    assert [RENDERER.decode(chunk.token_ids) for chunk in chunks] == ["one ", "two ", "three", ""]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_was_cut_has_no_end_of_turn(fake: FakeChat, url: str, stream: bool) -> None:
    fake.finish = "length"
    answer = together([5], await played(url, stream=stream))
    assert answer.finish == "length"
    assert EOS not in answer.ids


async def test_what_is_asked_is_what_was_wished(fake: FakeChat, url: str) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=30, seed=4)
    await played(url, sampling=sampling, stop=("END",), json_schema='{"type": "object"}', stream=False)
    body = fake.bodies[0]
    assert body["model"] == "big"
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "search", "arguments": "{}"}
    assert body["messages"][3]["tool_call_id"] == "1"
    assert "hm" not in json.dumps(body)
    assert body["tools"][0]["function"]["name"] == "search"
    assert {name: body[name] for name in ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 30,
        "seed": 4,
        "stop": ["END"],
    }
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    await played(url, settings={"limit_field": "max_completion_tokens"}, json_schema="{}")
    assert fake.bodies[1]["max_completion_tokens"] == 256
    assert fake.bodies[1]["response_format"] == {"type": "json_object"}
    assert not fake.bodies[1].keys() & {"max_tokens", "top_p", "top_k", "seed", "stop"}


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"conversation": None}, "messages only"),
        ({"top_logprobs": 1}, "no log-probabilities"),
        ({"json_schema": "{"}, "not JSON"),
    ],
)
async def test_what_text_cannot_give_is_refused(fake: FakeChat, url: str, wish: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await played(url, **wish)
    assert not fake.bodies


def test_a_tokenizer_that_needs_whole_texts_is_refused() -> None:
    vocabulary = {"<unk>": 0, "▁say": 1, "ing": 2, "▁so": 3, "▁ing": 4, "▁": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    renderer = Renderer(tokenizer, CHATML, special_tokens={}, eos_ids=[0])
    with pytest.raises(ConfigError, match="byte-level"):
        OpenAIEngine("http://127.0.0.1", OpenAIConfig(urls=("http://127.0.0.1",), model="x"), renderer, Syntax(written))


async def test_it_says_that_its_ids_are_made_from_text() -> None:
    config = OpenAIConfig(urls=("http://127.0.0.1",), model="big", context_length=99)
    engine = await config.connect(RENDERER, Syntax(written))
    assert (engine.model, engine.context_length, engine.token_source) == ("big", 99, "text")
