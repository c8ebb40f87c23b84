"""A load of chat calls that costs the measured process's machine as little as possible."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np


@dataclass(frozen=True)
class Load:
    """What one run of calls took."""

    latencies: Sequence[float]
    """Seconds from sending a call to the last byte of its answer, in the order of the calls."""
    first_bytes: Sequence[float]
    """Seconds to the first byte of its body."""
    chunks: Sequence[int]
    """How many of HTTP's chunks each body came in."""
    seconds: float

    def over(self, took: Mapping[int, float], q: float) -> float:
        """Percentile of what the calls took longer than their upstream, which took `took` seconds by seed; ms."""
        longer = [latency - took[seed] for seed, latency in enumerate(self.latencies)]
        return float(np.percentile(longer, q)) * 1e3

    @property
    def first(self) -> float:
        """Median time to the first byte, milliseconds."""
        return float(np.median(self.first_bytes)) * 1e3

    @property
    def per_second(self) -> float:
        """Calls."""
        return len(self.latencies) / self.seconds


def body(model: str, stream: bool, task: object, *, seed: int = 0, fresh: bool = False) -> bytes:
    """8 messages of 2.7 KB together, about 512 tokens.

    Calls share instructions and examples and differ in the last message, the `task`, as those of one agent do; `fresh`
    makes every message another, which no cache can know. `seed` tells calls apart at the upstream.
    """
    words = "the quick brown fox jumps over the lazy dog and then it rests beside the old stone well while "
    marks = [f"{task if fresh or turn == 6 else ''} {turn} " for turn in range(7)]
    turns = [
        {"role": ("user", "assistant")[turn % 2], "content": mark + (words * 4)[:318]}
        for turn, mark in enumerate(marks)
    ]
    system = {"role": "system", "content": "You answer briefly. " * 6}
    return json.dumps({"model": model, "messages": [system, *turns], "stream": stream, "seed": seed}).encode()


def completion(model: str, stream: bool, seed: int = 0) -> bytes:
    """What the gateway sends on to its upstream: 512 prompt ids."""
    return json.dumps(
        {
            "model": model,
            "prompt": list(range(1000, 1512)),
            "stream": stream,
            "seed": seed,
            "max_tokens": 128,
            "logprobs": 0,
            "return_token_ids": True,
        }
    ).encode()


def run(url: str, path: str, bodies: Sequence[bytes], *, clients: int, key: str = "none") -> Load:
    """Send each body once, `clients` at a time, over kept connections."""
    return asyncio.run(_run(url, path, bodies, clients, key))


async def _run(url: str, path: str, bodies: Sequence[bytes], clients: int, key: str) -> Load:
    parts = urlsplit(url)
    queue = list(enumerate(bodies))
    latencies, firsts, chunks = [0.0] * len(bodies), [0.0] * len(bodies), [0] * len(bodies)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while queue:
            number, data = queue.pop()
            head = f"POST {parts.path}{path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
            start = time.perf_counter()
            writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
            first, chunks[number] = await _answer(reader)
            firsts[number] = first - start
            latencies[number] = time.perf_counter() - start
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(latencies, firsts, chunks, time.perf_counter() - start)


async def _answer(reader: asyncio.StreamReader) -> tuple[float, int]:
    """Read one answer to its end; gives the time of the first byte of its body, and the number of its chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    if b"transfer-encoding: chunked" not in head:
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        data = await reader.readexactly(min(1, length))
        first = time.perf_counter()
        await reader.readexactly(length - len(data))
        return first, 1
    first, chunks = 0.0, 0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
        first = first or time.perf_counter()
        chunks += 1
    await reader.readuntil(b"\r\n")
    return first, chunks
