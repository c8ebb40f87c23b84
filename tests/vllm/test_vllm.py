"""The vLLM engine against a real vLLM: the laws, a real stream, and its log-probabilities beside the trainer's own."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import numpy as np
import pytest
import torch
from torch import Tensor

from stepwell.engines.base import Chunk, Generation
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import InvalidRequest
from stepwell.policy.model import Policy
from stepwell.rendering.messages import Message
from stepwell.rendering.renderer import Renderer
from stepwell.types import Sampling
from tests.engines.laws import ServedLaws, ask, check_logprobs, distributions, exact_or_refused, prompt, together
from tests.policy.tiny import one_row
from tests.vllm.conftest import Served

NEWLINE = 198
"""An end of turn that soon comes after anything."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 9}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


class RealBench:
    """The server's weights are those of `policy`."""

    choosy = True
    passes = 0

    def __init__(self, engine: VLLMEngine, policy: Policy, served: Served) -> None:
        self.engine = engine
        self.processed = served.processed
        self._policy = policy
        self._url = served.url

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        """As the trainer computes them."""
        hidden = self._policy.hidden(*one_row(ids))
        return (self._policy.logits(hidden) / scale).log_softmax(-1)

    def publish(self) -> None:
        self.engine.policy_version += 1

    async def metric(self, name: str) -> int:
        """What the server says of itself."""
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{self._url}/metrics").read().decode())
        line = next(line for line in text.splitlines() if line.startswith(f"vllm:{name}"))
        return int(float(line.split()[-1]))

    async def running(self) -> bool:
        """Whether the server is working on a request."""
        return await self.metric("num_requests_running") > 0


@pytest.fixture
async def bench(server: Served, policy: Policy, renderer: Renderer) -> AsyncIterator[RealBench]:
    config = VLLMConfig(urls=(server.url,))
    engine = await VLLMEngine.connect(server.url, config, sorted(renderer.eos_ids))
    yield RealBench(engine, policy, server)
    await engine.aclose()


def chat(renderer: Renderer, question: str) -> np.ndarray:
    return renderer.render([Message(role="user", content=question)])


async def played(bench: RealBench, request: Generation) -> list[Chunk]:
    return [chunk async for chunk in bench.engine.generate(request)]


class TestRealVLLM(ServedLaws):
    async def test_a_response_ends_at_the_end_of_turn_token_or_at_max_tokens_and_says_which(
        self, bench: RealBench, renderer: Renderer
    ) -> None:
        request = Generation(prompt_ids=chat(renderer, "Say hi."), sampling=Sampling(temperature=0.0, max_tokens=60))
        answer = together(request.prompt_ids, await played(bench, request))
        assert answer.finish == "stop"
        assert answer.ids[-1] in renderer.eos_ids
        assert not renderer.eos_ids & set(answer.ids[:-1])

    async def test_an_end_of_turn_of_our_own_is_the_last_id_too(self, bench: RealBench, server: Served) -> None:
        engine = await VLLMEngine.connect(server.url, VLLMConfig(urls=(server.url,)), [NEWLINE])
        answer = await ask(RealBench(engine, bench._policy, server), prompt(5), max_tokens=60)
        await engine.aclose()
        assert (answer.finish, answer.ids[-1], answer.ids.count(NEWLINE)) == ("stop", NEWLINE, 1)

    @pytest.mark.parametrize("bad", [[], [3, 10**6], [-1]])
    async def test_a_prompt_that_the_model_cannot_read_is_refused_and_harms_nobody(self, bench: RealBench, bad) -> None:
        good, refused = await asyncio.gather(ask(bench, prompt(4)), ask(bench, bad), return_exceptions=True)
        assert isinstance(refused, InvalidRequest)
        check_logprobs(bench, good)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_when_the_reader_leaves_the_sampler_stops(self, bench: RealBench, stream: bool) -> None:
        sampling = Sampling(temperature=1.0, max_tokens=140, seed=1)
        request = Generation(prompt_ids=np.array(prompt(8), np.int32), sampling=sampling, stream=stream)
        before = await bench.metric("generation_tokens_total")
        async with aclosing(bench.engine.generate(request)) as chunks:
            reading = asyncio.create_task(anext(chunks))
            while not await bench.running():  # noqa: ASYNC110 - the server tells when it is asked
                await asyncio.sleep(0.02)
            if stream:
                await reading
            else:
                reading.cancel()
                await asyncio.wait([reading])
        while await bench.running():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert await bench.metric("generation_tokens_total") - before < 100

    async def test_when_a_reader_that_waits_for_the_whole_leaves_the_sampler_stops_too(self) -> None:
        """See above."""

    async def test_tokens_come_one_by_one(self, bench: RealBench, renderer: Renderer) -> None:
        sampling = Sampling(temperature=1.0, max_tokens=24, seed=4)
        chunks = await played(bench, Generation(prompt_ids=chat(renderer, "Tell me a story."), sampling=sampling))
        assert [len(chunk.token_ids) for chunk in chunks] == [1] * 24

    async def test_its_logprobs_are_the_trainers(self, bench: RealBench, renderer: Renderer) -> None:
        worst = 0.0
        for temperature in (1.0, 0.6) if bench.processed else (1.0,):
            for seed in range(3):
                sampling = Sampling(temperature=temperature, max_tokens=48, seed=seed)
                request = Generation(prompt_ids=chat(renderer, "What is a stepwell?"), sampling=sampling)
                answer = together(request.prompt_ids, await played(bench, request))
                rows = distributions(bench, answer, temperature)
                own = [float(row[token]) for row, token in zip(rows, answer.ids, strict=True)]
                worst = max(worst, float(np.abs(np.array(own) - answer.logprobs).max()))
        print(f"largest difference from the trainer's log-probabilities: {worst:.1e} nats")
        assert worst < 1e-3

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    async def test_a_schema_is_met_and_logprobs_are_those_of_the_whole_distribution(
        self, bench: RealBench, renderer: Renderer, temperature: float
    ) -> None:
        sampling = Sampling(temperature=temperature, max_tokens=60, seed=1)
        ids = chat(renderer, "Where?")
        request = Generation(prompt_ids=ids, sampling=sampling, json_schema=json.dumps(SCHEMA), top_logprobs=2)
        answer = together(ids, await played(bench, request))
        check_logprobs(bench, answer)
        assert answer.finish == "stop"
        assert set(json.loads(renderer.decode(answer.ids))) == {"city", "people"}

    async def test_a_schema_that_is_none_is_refused(self, bench: RealBench) -> None:
        request = Generation(prompt_ids=np.array([5], np.int32), json_schema='{"type": "nonsense"}')
        with pytest.raises(InvalidRequest, match="nonsense"):
            await played(bench, request)

    async def test_it_finds_out_how_the_server_reports_logprobs(self, bench: RealBench) -> None:
        for sampling in (Sampling(temperature=0.6, max_tokens=2), Sampling(top_k=3, max_tokens=2)):
            refused = False
            with exact_or_refused(bench):
                refused = True
                await played(bench, Generation(prompt_ids=np.array([5], np.int32), sampling=sampling))
                refused = False
            assert refused == (bench.processed == bool(sampling.top_k))
