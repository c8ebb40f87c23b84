"""How many steps a second a gateway takes in over HTTP: 64 clients that send one step per request, as JSON.

Three processes on loopback: an upstream that nobody calls, the gateway with its durable SQLite pool, and this one.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import gateway
import load
import pool_load
from report import Row

from stepwell.types import Step, TrajectoryInfo

CLIENTS = 64


def rows(quick: bool) -> Iterator[Row]:
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            gateway.process(here / "upstream.py", folder / "upstream", "0") as (upstream, _),
            gateway.process(here / "served.py", folder / "gateway", upstream) as (url, process),
        ):
            _send(url, pool_load.groups([10_000]))  # warm-up
            made = pool_load.groups(range(24 if quick else 96))
            before = sum(process.cpu_times()[:2])
            took = _send(url, made)
            cpu = (sum(process.cpu_times()[:2]) - before) / (len(made) * pool_load.PER_GROUP)
    name = f"over HTTP, one step per request, {CLIENTS} clients"
    yield Row(name=name, value=took.per_second, unit="steps/s", goal=2_000, better="higher")
    yield Row(name="over HTTP, CPU of the gateway", value=cpu * 1e3, unit="CPU ms/step")


def _send(url: str, made: Sequence[pool_load.Made]) -> load.Load:
    openings = [
        json.dumps({"id": r.id}).encode() for first, _, _ in made for r in first if isinstance(r, TrajectoryInfo)
    ]
    load.run(url, "/v1/trajectories", openings, clients=CLIENTS)
    return load.run(url, "/v1/steps", [_body(step) for _, steps, _ in made for step in steps], clients=CLIENTS)


def _body(step: Step) -> bytes:
    fields = {
        "id": step.id,
        "trajectory_id": step.trajectory_id,
        "index": step.index,
        "prompt_ids": step.prompt_ids.tolist(),
        "response_ids": step.response_ids.tolist(),
        "logprobs": step.logprobs.tolist(),
        "policy_version_min": step.policy_version_min,
        "policy_version_max": step.policy_version_max,
    }
    return json.dumps(fields).encode()
