"""A vLLM that costs next to nothing: it answers with the same 128 tokens, at a pace or all at once.

`python benchmarks/upstream.py PORT_FILE MILLISECONDS_PER_TOKEN [PORT]` serves `/v1/completions` and
`/v1/chat/completions`, with token ids and log-probabilities, streamed and not, and writes its port into PORT_FILE.

No two calls of real clients keep step, so each has a pace of its own, a quarter faster to a quarter slower than asked
for, by its `seed`. `GET /took` tells the seconds that each call since the last `GET /took` took here, by its seed: from
its request to its last byte.
"""

import asyncio
import json
import random
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

RESPONSE = 128
MODEL = "bench"
_IDS = [1000 + i for i in range(RESPONSE)]  # ordinary words in the vocabulary that the gateway's renderer has
_USAGE = {"prompt_tokens": 512, "completion_tokens": RESPONSE, "total_tokens": 512 + RESPONSE}


def _shape(kind: str, choices: list[Any], usage: dict[str, int] | None = None) -> bytes:
    head = {"id": "cmpl-1", "object": kind, "created": 0, "model": MODEL, "choices": choices}
    return json.dumps(head if usage is None else {**head, "usage": usage}).encode()


def _completion(ids: list[int], finish: str | None) -> dict[str, Any]:
    logprobs = {
        "token_logprobs": [-1.0] * len(ids),
        "tokens": [f"token_id:{i}" for i in ids],
        "top_logprobs": [{f"token_id:{i}": -1.0} for i in ids],
        "text_offset": [0] * len(ids),
    }
    fields = {"index": 0, "text": " word" * len(ids), "token_ids": ids, "logprobs": logprobs}
    return {**fields, "finish_reason": finish, "stop_reason": None, "prompt_token_ids": None}


def _chat(ids: list[int], finish: str | None, part: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"token": " word", "logprob": -1.0, "bytes": None, "top_logprobs": []} for _ in ids
    ]
    text = {"role": "assistant", "content": " word" * len(ids)}
    return {"index": 0, part: text, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}


def _finish(token: int) -> str | None:
    return "stop" if token == _IDS[-1] else None


def _event(shape: bytes) -> bytes:
    return b"data: " + shape + b"\n\n"


_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}).encode()
_ONE = _shape("text_completion", [_completion(_IDS[:1], "length")], {**_USAGE, "completion_tokens": 1})
_WHOLE = {
    False: _shape("text_completion", [_completion(_IDS, "stop")], _USAGE),
    True: _shape("chat.completion", [_chat(_IDS, "stop", "message")], _USAGE),
}
_CHUNKS = {
    False: [_event(_shape("text_completion", [_completion([i], _finish(i))])) for i in _IDS],
    True: [_event(_shape("chat.completion.chunk", [_chat([i], _finish(i), "delta")])) for i in _IDS],
}
_SEED = re.compile(rb'"seed":(\d+)')
_END = _event(_shape("text_completion", [], _USAGE)) + b"data: [DONE]\n\n"


class Upstream(asyncio.Protocol):
    """Answers the requests of one connection; bodies come with a content-length."""

    pace = 0.0
    """Seconds per token, on average."""
    took: ClassVar[dict[int, float]] = {}
    """Seconds of each call so far, by its seed."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        # asyncio does it only for sockets that know their protocol's number, which those of a listener do not
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, mark, body = self._buffer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if mark and len(body) >= length:
            self._buffer = body[length:]
            self._task = asyncio.ensure_future(self._answer(head, body[:length].replace(b" ", b"")))

    async def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /took"):
            self._whole(json.dumps(self.took).encode())
            self.took.clear()
        elif head.startswith(b"GET"):
            self._whole(_MODELS)
        elif b'"max_tokens":1,' in body:
            self._whole(_ONE)
        else:
            await self._completed(b"/chat/completions" in head, body)

    async def _completed(self, chat: bool, body: bytes) -> None:
        begun = time.perf_counter()
        found = _SEED.search(body)
        seed = int(found[1]) if found else 0
        pace = self.pace * random.Random(seed).uniform(0.75, 1.25)
        if b'"stream":true' in body:
            await self._streamed(_CHUNKS[chat], pace)
        else:
            await asyncio.sleep(pace * RESPONSE)
            self._whole(_WHOLE[chat])
        self.took[seed] = time.perf_counter() - begun

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    async def _streamed(self, chunks: list[bytes], pace: float) -> None:
        write, clock = self._transport.write, asyncio.get_running_loop().time
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        begun = clock()
        for position, chunk in enumerate([*chunks, _END]):
            # Sleep until the token's own time: a late timer must not make the whole answer late.
            await asyncio.sleep(max(0.0, begun + position * pace - clock()))
            write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        write(b"0\r\n\r\n")


async def _serve(listener: socket.socket, pace: float) -> None:
    Upstream.pace = pace
    server = await asyncio.get_running_loop().create_server(Upstream, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", int((sys.argv[3:] or ["0"])[0])))
    Path(sys.argv[1]).write_text(str(listening.getsockname()[1]))
    asyncio.run(_serve(listening, float(sys.argv[2]) / 1e3))
