"""Plays pieces through a dialect's writer, and hands the bytes to the real SDKs."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import anthropic
import openai
from fastapi import FastAPI, Response

from stepwell.gateway.dialects.base import Answer, AnswerEnd, ChatCall, Delta, Dialect, Started, Token
from stepwell.rendering.pieces import CallOpened, Piece, message_of
from stepwell.types import Step
from tests.fakes.servers import serving

STEPS = ("step-01", "step-02")
BODIES = {
    "chat": {"messages": [{"role": "user", "content": "Hello"}], "stream_options": {"include_usage": True}},
    "completions": {"prompt": "Hello", "stream_options": {"include_usage": True}},
    "responses": {"input": "Hello"},
    "messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100},
}


def parsed(dialect: Dialect, body: object) -> ChatCall:
    """A body as the gateway hands it over."""
    return dialect.parse(body, json.dumps(body).encode())


def call_of(dialect: Dialect, **options: object) -> ChatCall:
    """A small call with further fields."""
    return parsed(dialect, {"model": "tiny", **BODIES[dialect.name], **options})


def answer_of(
    pieces: Iterable[Piece],
    *,
    end: AnswerEnd | None = None,
    stop: str = "",
    choice: int = 0,
    tokens: tuple[Token, ...] = (),
) -> Answer:
    """The answer that pieces add up to: 20 prompt tokens, 16 of them seen before, and 6 sampled, 2 of them thought."""
    pieces = tuple(pieces)
    step = Step(
        id=STEPS[choice],
        trajectory_id="t1",
        index=0,
        prompt_ids=list(range(20)),
        response_ids=list(range(6)),
        logprobs=[-0.5] * 6,
        created_at=1000.0,
    )
    called = any(isinstance(piece, CallOpened) for piece in pieces)
    return Answer(
        choice=choice,
        step=step,
        message=message_of(pieces),
        end=end or ("tool_calls" if called else "stop"),
        stop=stop,
        cached_tokens=16,
        reasoning_tokens=2,
        tokens=tokens,
    )


def started(choice: int = 0) -> Started:
    """The beginning of the choice whose end `answer_of` makes."""
    return Started(
        choice=choice,
        step_ids=STEPS,
        trajectory_id="t1",
        policy_version=3,
        prompt_tokens=20,
        cached_tokens=16,
    )


def streamed(
    dialect: Dialect, call: ChatCall, pieces: Sequence[Piece], answer: Answer, tokens: Sequence[Token] = ()
) -> bytes:
    """A whole stream of one choice: one delta per piece, each with its token if there are any."""
    writer = dialect.writer(call)
    parts = [writer.start(started())]
    for index, piece in enumerate(pieces):
        parts.append(writer.delta(Delta(pieces=(piece,), tokens=tuple(tokens[index : index + 1]))))
    return b"".join([*parts, writer.end(answer)])


def events(stream: bytes) -> list[dict]:
    """The data of a stream's events, each checked to be one well-formed event of two lines at most."""
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        *names, data = block.split("\n")
        assert data.startswith("data: ")
        assert len(data.splitlines()) == 1
        if data == "data: [DONE]":
            continue
        shape = json.loads(data.removeprefix("data: "))
        assert names in ([], [f"event: {shape.get('type')}"])
        found.append(shape)
    return found


def undated(text: bytes) -> str:
    """Without what a clock decides."""
    return re.sub(r'"(created|created_at)":\d+', r'"\1":0', text.decode())


class Parrot:
    """A server that answers everything with the body that it was told to, and the SDKs that talk to it."""

    def __init__(self, url: str, app: FastAPI) -> None:
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
        self._state = app.state

    def say(self, body: bytes, *, status: int = 200) -> None:
        """Answer `body` from now on; as a stream unless it is JSON."""
        self._state.body, self._state.status = body, status


@contextmanager
def parrot() -> Iterator[Parrot]:
    """A parrot on loopback."""
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    def reply(path: str) -> Response:
        body = app.state.body
        kind = "application/json" if body.startswith(b"{") else "text/event-stream"
        return Response(body, status_code=app.state.status, media_type=kind)

    with serving(app) as url:
        found = Parrot(url, app)
        with found.openai, found.anthropic:
            yield found
