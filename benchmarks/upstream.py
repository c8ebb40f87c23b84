"""A vLLM that costs next to nothing: it answers `/v1/completions` with the same 128 tokens, at a pace or all at once.

Run as a process of its own: `python benchmarks/upstream.py PORT_FILE MILLISECONDS_PER_TOKEN`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

RESPONSE = 128
MODEL = "bench"
_FIRST_ID = 1000  # of ordinary words in the vocabulary that the gateway's renderer has


def _choice(ids: list[int], finish: str | None) -> dict[str, Any]:
    logprobs = {
        "token_logprobs": [-1.0] * len(ids),
        "tokens": [f"token_id:{i}" for i in ids],
        "top_logprobs": [{f"token_id:{i}": -1.0} for i in ids],
        "text_offset": [0] * len(ids),
    }
    return {
        "index": 0,
        "text": " word" * len(ids),
        "token_ids": ids,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": None,
        "prompt_token_ids": None,
    }


def _shape(choices: list[Any], usage: dict[str, int] | None = None) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": MODEL, "choices": choices}
    return json.dumps(head if usage is None else {**head, "usage": usage}).encode()


_IDS = [_FIRST_ID + i for i in range(RESPONSE)]
_USAGE = {"prompt_tokens": 512, "completion_tokens": RESPONSE, "total_tokens": 512 + RESPONSE}
_WHOLE = _shape([_choice(_IDS, "stop")], _USAGE)
_ONE = _shape([_choice(_IDS[:1], "length")], {**_USAGE, "completion_tokens": 1})
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}).encode()
_CHUNKS = [b"data: " + _shape([_choice([token], "stop" if token == _IDS[-1] else None)]) + b"\n\n" for token in _IDS]
_END = b"data: " + _shape([], _USAGE) + b"\n\ndata: [DONE]\n\n"


class Upstream(asyncio.Protocol):
    """Answers requests of one connection; bodies come with a content-length."""

    pace = 0.0

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, mark, body = self._buffer.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if mark and len(body) >= length:
            self._buffer = body[length:]
            self._answer(head, body[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._whole(_MODELS)
        elif b'"stream":true' in body.replace(b" ", b""):
            self._stream = asyncio.ensure_future(self._streamed())
        else:
            self._whole(_ONE if b'"max_tokens":1,' in body else _WHOLE)

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    async def _streamed(self) -> None:
        write = self._transport.write
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        begun, clock = asyncio.get_running_loop().time(), asyncio.get_running_loop().time
        for position, chunk in enumerate([*_CHUNKS, _END]):
            # Sleep until the token's own time: a late timer must not make the whole answer late.
            await asyncio.sleep(max(0.0, begun + position * self.pace - clock()))
            write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        write(b"0\r\n\r\n")


async def _serve(port_file: Path, pace: float) -> None:
    Upstream.pace = pace
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    port_file.write_text(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2]) / 1e3))
