"""Whatever an upstream server does to us, the client gets an error that says so, and the next call is answered."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import httpx
import pytest

from stepwell.engines.base import Chunk, Generation
from stepwell.engines.upstream import Upstream
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from tests.fakes.engines import ScriptedEngine
from tests.fakes.saying import cut, http, saying, stream
from tests.fakes.servers import free_port
from tests.gateway.doors import counted, every_door, well

TOKEN = '{"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[-0.5]},"finish_reason":null}]}'
BEGUN = cut(f"data: {TOKEN}\n\n".encode() * 3)
GARBAGE = http(b"\x00\xff garbage")


class Upset(ScriptedEngine):
    """Asks the vLLM at `url` while `upset`, and then samples by itself."""

    url = ""
    upset = True

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        config = VLLMConfig(urls=(self.url,), connect_timeout=5, idle_timeout=0.2)
        upstream = Upstream(self.url, config)
        vllm = VLLMEngine(upstream, model="tiny", context_length=512, processed_logprobs=False, eos_ids=[0])
        engine = vllm if self.upset else super()
        try:
            async with aclosing(engine.generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            await vllm.aclose()


@pytest.fixture
def upset(renderer, serve):
    """A client of a gateway whose upstream answers with given bytes, or is not there; and its engine."""
    with ExitStack() as stack:

        def start(answer: bytes | None, *, silent: bool = False) -> tuple[httpx.Client, Upset]:
            engine = Upset(renderer)
            gone = f"http://127.0.0.1:{free_port()}"
            engine.url = gone if answer is None else stack.enter_context(saying(answer, silent=silent))
            return stack.enter_context(httpx.Client(base_url=serve(engine), timeout=20)), engine

        yield start


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("answer", "silent", "status", "reason"),
    [
        (None, False, 503, "engine_error"),
        (b"", False, 503, "engine_error"),
        (b"", True, 504, "engine_timeout"),
        (GARBAGE, False, 503, "engine_error"),
        (b"SSH-2.0-server\r\n", False, 503, "engine_error"),
        (http(b"<html>oh no</html>", "text/html"), False, 503, "engine_error"),
        (http(b"oops", status="500 Internal Server Error"), False, 503, "engine_error"),
        (http(b"", status="302 Found"), False, 503, "engine_error"),
    ],
    ids=["not there", "closes", "never answers", "garbage", "no HTTP", "a page", "fails", "redirects"],
)
@every_door
def test_an_upstream_that_fails_before_the_first_token_has_a_status_of_its_own(
    upset, pool, door, streamed, answer, silent, status, reason
):
    client, engine = upset(answer, silent=silent)
    door.error(client.post(door.path, json={**door.good, "stream": streamed}), status)
    assert counted(client, door) == {reason: 1}
    assert pool.stats().steps == 0
    engine.upset = False
    well(client, door)


@pytest.mark.parametrize(
    ("answer", "silent", "reason"),
    [
        (BEGUN, False, "engine_error"),
        (BEGUN, True, "engine_timeout"),
        (stream(TOKEN, TOKEN, TOKEN, "garbage"), False, "engine_error"),
        (stream(TOKEN, TOKEN, TOKEN, "[DONE]"), False, "engine_error"),
        (stream(TOKEN, TOKEN, TOKEN, '{"error": {"message": "out of memory"}}'), False, "engine_error"),
    ],
    ids=["dies", "falls silent", "garbage", "ends early", "error"],
)
@every_door
def test_an_upstream_that_fails_in_mid_stream_ends_the_stream_with_an_error_and_its_tokens_are_kept(
    upset, pool, door, answer, silent, reason
):
    client, engine = upset(answer, silent=silent)
    response = client.post(f"/t/t1{door.path}", json={**door.good, "stream": True})
    if response.status_code == 200:
        assert '"error"' in response.text.splitlines()[-2]
        (step,) = pool.trajectory("t1").steps
        assert (step.finish_reason, set(step.response_ids.tolist())) == ("abort", {5})
    else:  # it failed before the first token was passed on
        door.error(response, 504 if silent else 503)
    assert counted(client, door) == {reason: 1}
    engine.upset = False
    well(client, door)


@every_door
def test_what_the_upstream_refuses_is_the_clients_mistake_in_the_upstreams_words(upset, door):
    client, engine = upset(http(b'{"error": {"message": "no such thing"}}', status="400 Bad Request"))
    assert "no such thing" in door.error(client.post(door.path, json=door.good), 400)
    engine.upset = False
    well(client, door)
