"""What the gateway itself costs: CPU per call, latency and throughput with an engine that costs next to nothing.

The gateway runs in a process of its own (uvicorn, durable SQLite pool) and reports its own CPU time. A call has a
prompt of about 512 tokens and an answer of 128, one token per chunk.
"""

import asyncio
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' tiny tokenizer
sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.gateway
from report import Row, main

from stepwell.engines.base import Chunk, Generation
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from tests.fakes.models import tiny_renderer

PROMPT, RESPONSE, CLIENTS = 512, 128, 8


def measure(quick: bool) -> Sequence[Row]:
    count = 200 if quick else 1_000
    with _gateway() as gateway:
        _calls(gateway, 20, stream=False)  # warm-up: lazy imports, first pages of the database
        whole = _calls(gateway, count, stream=False)
        streamed = _calls(gateway, count, stream=True)
        busy = _calls(gateway, count * 2, stream=False, clients=CLIENTS)
        busy_streams = _calls(gateway, count, stream=True, clients=CLIENTS)
    return [
        Row(name="whole answer", value=whole.cpu_ms, unit="CPU ms/call", goal=10),
        Row(name=f"stream of {RESPONSE} chunks", value=streamed.cpu_ms, unit="CPU ms/call", goal=25),
        Row(name="whole answer, p50", value=whole.percentile(50), unit="ms"),
        Row(name="whole answer, p99", value=whole.percentile(99), unit="ms"),
        Row(name="stream, p50", value=streamed.percentile(50), unit="ms"),
        Row(name="stream, p99", value=streamed.percentile(99), unit="ms"),
        Row(name=f"whole answers, {CLIENTS} clients", value=busy.per_second, unit="calls/s", better="higher"),
        Row(name=f"streams, {CLIENTS} clients", value=busy_streams.per_second, unit="calls/s", better="higher"),
    ]


class InstantEngine:
    """Samples the same 128 tokens for every prompt."""

    model = "instant"
    context_length = 32_768
    policy_version = 0

    async def generate(self, request: Generation) -> AsyncIterator[Chunk]:  # noqa: ARG002 - the Engine's signature
        for position in range(RESPONSE):
            await asyncio.sleep(0)  # as with a real engine, other tasks run between two tokens
            finish = "stop" if position == RESPONSE - 1 else None
            yield Chunk(token_ids=(64 + position % 26,), logprobs=(-1.0,), policy_version=0, finish_reason=finish)


@dataclass(frozen=True)
class Gateway:
    port: int
    control: Connection

    def cpu_seconds(self) -> float:
        self.control.send("cpu")
        return self.control.recv()


@dataclass(frozen=True)
class Calls:
    latencies: list[float]
    cpu_ms: float
    per_second: float

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.latencies, q)) * 1e3


@contextmanager
def _gateway() -> Iterator[Gateway]:
    context = multiprocessing.get_context("spawn")
    control, remote = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_serve, args=(folder, remote), daemon=True)
        process.start()
        yield Gateway(port=control.recv(), control=control)
        control.send("stop")
        process.join(timeout=10)


def _serve(folder: str, control: Connection) -> None:
    pool = SQLitePool.open(Path(folder) / "pool.sqlite")
    app = create_app(InstantEngine(), tiny_renderer(), pool)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False))
    threading.Thread(target=_answer, args=(server, control), daemon=True).start()
    server.run()
    pool.close()


def _answer(server: uvicorn.Server, control: Connection) -> None:
    while not server.started:
        time.sleep(0.01)
    control.send(server.servers[0].sockets[0].getsockname()[1])
    while control.recv() == "cpu":
        control.send(time.process_time())
    server.should_exit = True


def _calls(gateway: Gateway, count: int, *, stream: bool, clients: int = 1) -> Calls:
    cpu, start = gateway.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        runs = threads.map(lambda _: _client(gateway.port, count // clients, stream), range(clients))
        latencies = [latency for run in runs for latency in run]
    seconds = time.perf_counter() - start
    spent = gateway.cpu_seconds() - cpu
    return Calls(latencies, cpu_ms=spent / len(latencies) * 1e3, per_second=len(latencies) / seconds)


def _client(port: int, count: int, stream: bool) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    message = {"role": "user", "content": ("The quick brown fox. " * 25)[: PROMPT - 20]}
    body = json.dumps({"model": "instant", "messages": [message], "stream": stream})
    latencies = []
    for _ in range(count):
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        latencies.append(time.perf_counter() - start)
    connection.close()
    return latencies


if __name__ == "__main__":
    main("Gateway", measure)
