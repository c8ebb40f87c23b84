"""What the gateway itself costs, against its upstream alone: CPU per call, latency, throughput, memory.

Three processes: an upstream that speaks vLLM's format and costs next to nothing, the gateway (uvicorn, a durable SQLite
pool, the real tokenizer and template of SmolLM2), and this one, which makes the calls: 8 messages, about 512 prompt
tokens, 128 sampled. CPU time is the gateway process's own. First the upstream answers at once, for CPU, throughput and
memory; then one token every 2 ms, a little more or less from call to call, for what is added to a latency that an
engine has anyway: what each call took longer than the upstream says that it did, against the same without the gateway.
Tokens that arrive together go on together, so a stream has fewer chunks than tokens when the gateway is behind; at one
token every 2 ms it is not, and each token costs a wake-up of three processes.

Another gateway is measured by the same load: start `benchmarks/upstream.py PORT_FILE 0 PORT`, the other gateway in
front of it, and then this with `--url URL --pid PID --upstream http://127.0.0.1:PORT`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.gateway
import load
from load import Load
from report import Row, main
from upstream import MODEL, RESPONSE

CLIENTS = 8
PACE = 2.0  # milliseconds between two tokens of a stream
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Gateway:
    """A gateway that is measured."""

    url: str
    process: psutil.Process
    upstream: str

    def cpu(self) -> float:
        """Seconds of CPU time so far, children included."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in family)

    def megabytes(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss) / 2**20

    def calls(self, count: int, *, stream: bool, clients: int, fresh: bool = False) -> tuple[Load, float]:
        """Run calls; gives also the CPU milliseconds per call."""
        bodies = [load.body(MODEL, stream, uuid.uuid4(), seed=number, fresh=fresh) for number in range(count)]
        before = self.cpu()
        took = load.run(self.url, CHAT, bodies, clients=clients)
        return took, (self.cpu() - before) / count * 1e3

    def alone(self, count: int, *, stream: bool, clients: int) -> Load:
        """The same calls at the upstream, without the gateway."""
        bodies = [load.completion(MODEL, stream, number) for number in range(count)]
        return load.run(self.upstream, "/v1/completions", bodies, clients=clients)

    def took(self) -> dict[int, float]:
        """What each call since the last `took` took at the upstream, seconds by seed."""
        with urllib.request.urlopen(f"{self.upstream}/took") as answer:
            return {int(seed): seconds for seed, seconds in json.load(answer).items()}


def measure(quick: bool) -> Sequence[Row]:
    """Our own gateway."""
    with _gateway(pace=0) as gateway:
        costs = _costs(gateway, quick)
    with _gateway(pace=PACE) as gateway:
        return [*costs, *_latencies(gateway, 200 if quick else 1_000)]


def _costs(gateway: Gateway, quick: bool) -> list[Row]:
    count = 400 if quick else 2_000
    gateway.calls(100, stream=False, clients=CLIENTS)  # warm-up: lazy imports, first pages of the database
    gateway.calls(16, stream=True, clients=CLIENTS)
    whole, whole_cpu = gateway.calls(count, stream=False, clients=CLIENTS)
    streamed, stream_cpu = gateway.calls(count // 2, stream=True, clients=CLIENTS)
    _, fresh_cpu = gateway.calls(count // 2, stream=False, clients=CLIENTS, fresh=True)
    _, single_cpu = gateway.calls(count // 2, stream=False, clients=1)
    slope, calls = _slope(gateway, 2_000 if quick else 100_000)
    return [
        Row(name="whole answer", value=whole_cpu, unit="CPU ms/call", goal=2),
        Row(name=f"stream of {RESPONSE} tokens, as fast as it goes", value=stream_cpu, unit="CPU ms/call", goal=5),
        Row(name="chunks of such a stream", value=float(np.mean(streamed.chunks)), unit="chunks"),
        Row(name="whole answer, one client", value=single_cpu, unit="CPU ms/call"),
        Row(name="whole answer, no text seen before", value=fresh_cpu, unit="CPU ms/call"),
        Row(name=f"whole answers, {CLIENTS} clients", value=whole.per_second, unit="calls/s", better="higher"),
        Row(name=f"streams, {CLIENTS} clients", value=streamed.per_second, unit="calls/s", better="higher"),
        Row(name=f"memory over {calls:,} calls", value=slope, unit="KB/call", goal=None if quick else 0.1),
    ]


def _latencies(gateway: Gateway, count: int) -> list[Row]:
    gateway.calls(40, stream=False, clients=CLIENTS)
    gateway.calls(16, stream=True, clients=CLIENTS)
    rows = []
    for stream, what in ((False, "whole answer"), (True, "stream")):
        gateway.took()
        through, cpu = gateway.calls(count, stream=stream, clients=CLIENTS)
        took = gateway.took()
        alone = gateway.alone(count, stream=stream, clients=CLIENTS)
        took_alone = gateway.took()
        for q, goal in ((50, 3), (99, 10)):
            added = through.over(took, q) - alone.over(took_alone, q)
            rows.append(Row(name=f"{what}, added p{q}", value=added, unit="ms", goal=goal))
    return [
        *rows,
        Row(name="time to first token, added p50", value=through.first - alone.first, unit="ms"),
        Row(name=f"stream of {RESPONSE} tokens, one every {PACE:g} ms", value=cpu, unit="CPU ms/call", goal=5),
        Row(name=f"chunks of a stream at {PACE:g} ms", value=float(np.mean(through.chunks)), unit="chunks"),
        Row(name="the machine: its slowest hundredth", value=_unsteadiness(), unit="medians"),
    ]


def _unsteadiness() -> float:
    """99th percentile of the CPU time of equal pieces of work, in medians: no latency can be steadier than that."""
    took = []
    for _ in range(1_500):
        begun = time.thread_time()
        sum(range(10_000))
        took.append(time.thread_time() - begun)
        time.sleep(0.002)
    return float(np.percentile(took, 99) / np.median(took))


def _slope(gateway: Gateway, calls: int) -> tuple[float, int]:
    """Growth of resident memory per call, KB, after the first fifth, in which caches fill."""
    sizes = []
    for _ in range(10):
        gateway.calls(calls // 10, stream=False, clients=CLIENTS)
        sizes.append(gateway.megabytes())
    return (sizes[-1] - sizes[1]) * 1024 / (calls * 0.8), calls


@contextmanager
def _gateway(pace: float) -> Iterator[Gateway]:
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            process(here / "upstream.py", folder / "upstream", str(pace)) as (upstream, _),
            process(here / "served.py", folder / "gateway", upstream) as (url, served),
        ):
            yield Gateway(url=url, process=served, upstream=upstream)


@contextmanager
def process(script: Path, port_file: Path, argument: str) -> Iterator[tuple[str, psutil.Process]]:
    """A script that writes the port it listens on into `port_file`; gives its URL."""
    process = subprocess.Popen([sys.executable, script, port_file, argument])
    try:
        while not port_file.exists() or not port_file.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"{script.name} ended with {process.returncode}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text()}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--url", help="base URL, without /v1, of another gateway that runs already")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--upstream", help="base URL of the upstream that it calls")
    return parser.parse_known_args()


if __name__ == "__main__":
    other, rest = _options()
    if other.url is None:
        main("Gateway", measure, rest)
    else:
        there = Gateway(url=other.url, process=psutil.Process(other.pid), upstream=other.upstream)
        main(f"Gateway at {other.url}", lambda quick: _costs(there, quick), rest)
