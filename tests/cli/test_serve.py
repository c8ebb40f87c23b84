"""`stepwell serve`: what a client was told is stored, however the server ends; and what reads the pool afterwards."""

import asyncio
import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request

from stepwell.engines.base import Generation
from stepwell.engines.local import LocalEngine
from stepwell.pool.store import SQLitePool
from stepwell.types import Step
from tests.cli.processes import Finished, Stepwell, stepwell
from tests.fakes.models import tiny_tokenizer, write_model_directory
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving, wait_until
from tests.fakes.vllm import FakeVLLM
from tests.policy.tiny import tiny_policy

CLIENTS = 4
KILLS = int(os.environ.get("STEPWELL_KILLS", "5"))
Command = Callable[..., Finished]


def base_url(server: Stepwell) -> str:
    return server.wait_for("base URL").split()[2].removesuffix("/v1")


def call(url: str, trajectory: str, model: str = "lookup") -> str:
    """One call with the real SDK; gives the id of the step that it was told."""
    with openai.OpenAI(base_url=f"{url}/t/{trajectory}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        ask = {"role": "user", "content": "find ab"}
        raw = client.chat.completions.with_raw_response.create(model=model, messages=[ask], max_tokens=6)
    return raw.headers["x-stepwell-step"]


class Caller(threading.Thread):
    """Calls in one trajectory, again and again, until the server is gone."""

    def __init__(self, url: str, trajectory: str, enough: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.url, self.trajectory, self.enough = url, trajectory, enough
        self.told: list[str] = []

    def run(self) -> None:
        try:
            while True:
                self.told.append(call(self.url, self.trajectory))
                if len(self.told) == 5:
                    self.enough.wait(60)
        except openai.APIConnectionError:
            pass


def stored(pool: Path) -> dict[str, list[Step]]:
    """The steps of each trajectory."""
    opened = SQLitePool.open(pool, read_only=True)
    trajectories = [opened.trajectory(summary.info.id) for _, summary in opened.trajectories(limit=1000)]
    opened.close()
    return {trajectory.info.id: list(trajectory.steps) for trajectory in trajectories}


def test_what_was_acknowledged_outlives_a_kill_and_calls_go_on_behind_it(tmp_path: Path, command: Command) -> None:
    pool = tmp_path / "pool.sqlite"
    serve = ("serve", "--model", "lookup", "--tool-format", "line", "--port", "0", "--pool", str(pool))
    told: dict[str, list[str]] = {}
    for kill in range(KILLS):
        with stepwell(*serve) as server:
            told |= _call_until_killed(server, kill)
    before = stored(pool)
    for trajectory, steps in told.items():
        assert set(steps) <= {step.id for step in before[trajectory]}
        assert [step.index for step in before[trajectory]] == list(range(len(before[trajectory])))
    last_told = list(told)[-CLIENTS:]
    with stepwell(*serve) as server:
        url = base_url(server)
        new = {trajectory: call(url, trajectory) for trajectory in last_told}
        _run_through(command, url)
        assert server.interrupt() == 0
    after = stored(pool)
    for trajectory, step_id in new.items():
        *old, last = after[trajectory]
        assert (old, last.id, last.index) == (before[trajectory], step_id, len(before[trajectory]))
    _look(command, pool)


def _call_until_killed(server: Stepwell, kill: int) -> dict[str, list[str]]:
    """Kill the server while everybody is calling; gives the ids of the steps that each caller was told."""
    url = base_url(server)
    enough = threading.Barrier(CLIENTS + 1)
    callers = [Caller(url, f"caller-{kill}-{number}", enough) for number in range(CLIENTS)]
    for caller in callers:
        caller.start()
    enough.wait(60)
    time.sleep(random.Random(kill).uniform(0, 0.3))
    server.kill()
    for caller in callers:
        caller.join(60)
    return {caller.trajectory: caller.told for caller in callers}


def _run_through(command: Command, url: str) -> None:
    done = command("run", "--gateway", url, "--environment", "lookup", "--tasks", "2", "--group-size", "2")
    assert done.code == 0
    assert "4 trajectories, mean reward" in done.out


def _look(command: Command, pool: Path) -> None:
    """`stepwell pool` shows what the rollout left."""
    counts = json.loads(command("pool", "stats", "--pool", str(pool), "--json").out)
    assert (counts["groups"], counts["groups_ready"]) == (2, 2)
    listed = json.loads(command("pool", "ls", "--pool", str(pool), "--limit", "1000", "--json").out)
    sources = defaultdict(list)
    for line in listed:
        sources[line["info"]["source"]].append(line)
    assert len(sources["gateway"]) == CLIENTS * KILLS
    assert len(sources["rollout"]) == 4
    assert all(line["status"] in ("terminated", "truncated") for line in sources["rollout"])
    shown = json.loads(command("pool", "show", listed[0]["info"]["id"], "--pool", str(pool), "--json").out)
    assert len(shown["steps"]) == listed[0]["steps"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1"])
def test_only_loopback_is_served(command: Command, host: str) -> None:
    done = command("serve", "--model", "lookup", "--host", host)
    assert done.code == 1
    assert f"refusing to listen on {host}" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--keys", "none.json"), "there is no key in none.json"),
        (("--host", "0.0.0.0", "--keys", "none.json"), "there is no key in none.json"),
        (("--engine", "vllm"), "needs --url and --tokenizer"),
        (("--url", "http://127.0.0.1:9"), "--url needs an engine that has a server"),
        (("--engine", "vllm", "--model", "lookup"), "a server has its model"),
        (("--engine", "vlm", "--url", "http://127.0.0.1:9", "--tokenizer", "."), "did you mean 'vllm'?"),
        (("--engine", "openai", "--url", "http://127.0.0.1:9", "--tokenizer", "."), "model: Field required"),
        (("--engine", "vllm", "--url", "http://127.0.0.1:9", "--tokenizer", "."), "cannot be reached"),
        (("--engine", "vllm", "--url", "http://x", "--tokenizer", ".", "gateway.max_cals=1"), "mean 'max_calls'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_served_is_refused_before_anything_listens(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    write_model_directory(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = command("serve", *arguments)
    assert (done.code, says in done.err) == (1, True), done.err
    assert not (tmp_path / "runs").exists()


@dataclass
class HeldVLLM(FakeVLLM):
    """Answers calls when the test lets it."""

    asked: threading.Event = field(default_factory=threading.Event)
    let: threading.Event = field(default_factory=threading.Event)

    async def _answer(self, body: dict[str, Any], generation: Generation) -> dict[str, Any]:
        answer = await super()._answer(body, generation)
        if body["max_tokens"] > 1:  # not the gateway's own question when it connects
            self.asked.set()
            await asyncio.to_thread(self.let.wait, 60)
        return answer


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    words = tiny_tokenizer().get_vocab_size()
    policy = tiny_policy("qwen3", vocab_size=words, max_position_embeddings=512)
    engine = LocalEngine(policy, eos_ids=[words - 1], max_batch=4, seed=1)
    yield Sampler(policy, engine)
    engine.close()


@pytest.fixture
def upstream(sampler: Sampler) -> Iterator[tuple[HeldVLLM, str]]:
    """A server that speaks vLLM's format, and its URL; it does not hold anything back until told so."""
    fake = HeldVLLM(sampler)
    fake.let.set()
    with serving(fake.app()) as url:
        yield fake, url


def in_front_of(url: str, folder: Path, *more: str) -> tuple[str, ...]:
    """The arguments that serve a server's model."""
    (folder / "model").mkdir()
    tokenizer = str(write_model_directory(folder / "model"))
    where = ("--port", "0", "--pool", str(folder / "pool.sqlite"))
    return ("serve", "--engine", "vllm", "--url", url, "--tokenizer", tokenizer, *where, *more)


def test_a_server_s_model_is_served_without_torch_with_a_json_line_and_a_span_per_call(
    upstream: tuple[HeldVLLM, str], tmp_path: Path
) -> None:
    collector = FastAPI()
    spans: list[bytes] = []

    @collector.post("/v1/traces")
    async def collect(request: Request) -> dict[str, str]:
        spans.append(await request.body())
        return {}

    arguments = in_front_of(upstream[1], tmp_path, "--log-format", "json", "--log-level", "info")
    with serving(collector) as place:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": place}
        with stepwell(*arguments, without=("torch", "transformers"), env=env) as server:
            url = base_url(server)
            told = [call(url, "run-1", "tiny") for _ in range(2)]
            assert httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny"}).status_code == 400
            server.terminate()
            printed = server.rest()
        assert server.process.returncode == 0
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    calls = [line for line in lines if line["logger"] == "stepwell.calls"]
    assert [(line["outcome"], line.get("trajectory"), line.get("step")) for line in calls] == [
        ("ok", "run-1", told[0]),
        ("ok", "run-1", told[1]),
        ("invalid_request", None, None),
    ]
    assert [step.id for step in stored(tmp_path / "pool.sqlite")["run-1"]] == told
    assert all(step_id.encode() in b"".join(spans) for step_id in told)


def test_sigterm_lets_a_call_under_way_finish_and_takes_no_new_one(
    upstream: tuple[HeldVLLM, str], tmp_path: Path
) -> None:
    fake, place = upstream
    with stepwell(*in_front_of(place, tmp_path)) as server:
        url = base_url(server)
        fake.let.clear()
        with ThreadPoolExecutor() as pool:
            running = pool.submit(call, url, "run-1", "tiny")
            assert fake.asked.wait(60)
            server.terminate()
            wait_until(lambda: refuses(url))
            fake.let.set()
            told = running.result(60)
        server.rest()
        assert server.process.returncode == 0
    assert [step.id for step in stored(tmp_path / "pool.sqlite")["run-1"]] == [told]


def refuses(url: str) -> bool:
    """Whether nobody listens there any more."""
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return True
    return False
