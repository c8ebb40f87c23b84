"""The VLLM engine against a fake VLLM over a tiny model, in each way in which the server can be set up."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from stepwell.engines.base import Generation
from stepwell.engines.upstream import Upstream
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from tests.engines.benches import LocalBench, ServedBench, serving_tiny
from tests.engines.laws import EOS, ServedLaws
from tests.fakes.sampler import Sampler
from tests.fakes.saying import http, saying
from tests.fakes.vllm import FakeVLLM

SETUPS: dict[str, Callable[[Sampler], FastAPI]] = {
    "raw": lambda sampler: FakeVLLM(sampler).app(),
    "processed": lambda sampler: FakeVLLM(sampler, processed=True).app(),
}


@pytest.fixture(scope="module", params=SETUPS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalBench, Sampler]]:
    with serving_tiny(SETUPS[request.param]) as (url, local, sampler):
        yield url, local, sampler


@pytest.fixture
async def bench(server: tuple[str, LocalBench, Sampler]) -> AsyncIterator[ServedBench]:
    url, local, sampler = server
    engine = await VLLMEngine.connect(url, VLLMConfig(urls=(url,)), [EOS])
    made = ServedBench(local, sampler, choosy=True)
    made.use(engine, [engine])
    yield made
    await engine.aclose()


class TestVLLMEngine(ServedLaws):
    pass


GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_real_vllm_sent_is_understood(stream: bool) -> None:
    """Recorded from vLLM 0.32 over SmolLM2: a greedy answer of three tokens with the likeliest one at each place."""
    recorded = (GOLDEN / ("vllm-0.32-stream.txt" if stream else "vllm-0.32-answer.json")).read_bytes()
    with saying(http(recorded, "text/event-stream" if stream else "application/json")) as url:
        engine = VLLMEngine(
            Upstream(url, VLLMConfig(urls=(url,))),
            model="smollm2",
            context_length=512,
            processed_logprobs=False,
            eos_ids=[2],
        )
        request = Generation(prompt_ids=np.array([1, 9690, 198, 2683], np.int32), stream=stream, top_logprobs=1)
        chunks = [chunk async for chunk in engine.generate(request)]
        await engine.aclose()
    assert [i for chunk in chunks for i in chunk.token_ids] == [359, 354, 5646]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert logprobs == [-0.7261406779289246, -0.5328177213668823, -0.03135109320282936]
    assert [top for chunk in chunks for top in chunk.top] == [
        ((359, logprobs[0]),),
        ((354, logprobs[1]),),
        ((5646, logprobs[2]),),
    ]
    assert chunks[-1].finish_reason == "length"
    assert (len(chunks) > 1) is stream


def test_the_fake_sends_the_fields_that_the_real_one_sent(server: tuple[str, LocalBench, Sampler]) -> None:
    """So that the laws above say something about the real one."""
    real = _events((GOLDEN / "vllm-0.32-stream.txt").read_bytes())
    body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 2, "temperature": 0, "logprobs": 1, "stream": True}
    body |= {"return_token_ids": True, "top_p": 1.0, "top_k": 0, "stream_options": {"include_usage": True}}
    fake = _events(httpx.post(f"{server[0]}/v1/completions", json=body).content)
    assert _shape(fake[0]) == _shape(real[0])
    assert set(fake[-1]) == set(real[-1]) - {"system_fingerprint"}
    assert fake[-1]["usage"].keys() == real[-1]["usage"].keys()


def _events(stream: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def _shape(event: dict[str, Any]) -> dict[str, Any]:
    choice = event["choices"][0]
    return {"event": set(event), "choice": set(choice), "logprobs": set(choice["logprobs"])}
