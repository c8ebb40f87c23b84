"""The SGLang engine against a fake SGLang over a tiny model, in each way in which the server can be set up."""

from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import pytest
from fastapi import FastAPI

from stepwell.engines.base import Generation
from stepwell.engines.sglang import SGLangConfig, SGLangEngine
from stepwell.errors import InvalidRequest
from stepwell.types import Sampling
from tests.engines.benches import LocalBench, ServedBench, serving_tiny
from tests.engines.laws import EOS, RequestLaws, ServedLaws, ask, check_logprobs, prompt
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving
from tests.fakes.sglang import FakeSGLang

SETUPS: dict[str, Callable[[Sampler], FastAPI]] = {
    "incremental": lambda sampler: FakeSGLang(sampler).app(),
    "cumulative": lambda sampler: FakeSGLang(sampler, incremental=False).app(),
    "original": lambda sampler: FakeSGLang(sampler, original=True).app(),
}


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalBench, Sampler, str]]:
    with serving_tiny(SETUPS[request.param]) as (url, local, sampler):
        yield url, local, sampler, request.param


@pytest.fixture
async def bench(server: tuple[str, LocalBench, Sampler, str]) -> AsyncIterator[ServedBench]:
    url, local, sampler, setup = server
    engine = await SGLangEngine.connect(url, SGLangConfig(urls=(url,)), [EOS])
    made = ServedBench(local, sampler, choosy=setup == "original")
    made.use(engine, [engine])
    yield made
    await engine.aclose()


@pytest.mark.parametrize("server", ["incremental"], indirect=True, scope="module")
class TestSGLangEngine(ServedLaws):
    pass


@pytest.mark.parametrize("server", ["cumulative", "original"], indirect=True, scope="module")
class TestOtherSetups(RequestLaws):
    async def test_logprobs_are_the_models_at_the_temperature_or_it_is_refused(
        self, bench: ServedBench, server: tuple[str, LocalBench, Sampler, str]
    ) -> None:
        check_logprobs(bench, await ask(bench, prompt(5), temperature=1.0, top_k=5, seed=1))
        if server[3] == "original":
            with pytest.raises(InvalidRequest, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
                await ask(bench, prompt(5), temperature=0.6)
        else:
            check_logprobs(bench, await ask(bench, prompt(5), temperature=0.6, top_k=5, seed=1), 0.6)


@pytest.mark.parametrize("server", ["incremental"], indirect=True)
async def test_a_seed_is_refused_by_a_server_that_would_ignore_it(server: tuple[str, LocalBench, Sampler, str]) -> None:
    _, _, sampler, _ = server
    with serving(FakeSGLang(sampler, deterministic=False).app()) as url:
        engine = await SGLangEngine.connect(url, SGLangConfig(urls=(url,)), [EOS])
        request = Generation(prompt_ids=np.array([5], np.int32), sampling=Sampling(seed=1))
        with pytest.raises(InvalidRequest, match="--enable-deterministic-inference"):
            await anext(engine.generate(request))
        await engine.aclose()
