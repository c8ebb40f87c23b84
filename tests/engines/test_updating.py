"""Weights for engines behind servers: vLLM and SGLang take them as a whole, or do not answer."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi import FastAPI

from stepwell.engines.base import Generation, Weights, WrongWeights
from stepwell.engines.sglang import SGLangConfig, SGLangEngine
from stepwell.engines.updating import UnderWay
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import ConfigError, EngineError
from stepwell.policy.model import Policy
from stepwell.types import Sampling
from tests.engines.benches import LocalBench, ServedBench, serving_tiny
from tests.engines.laws import EOS, Bench, ask, check_logprobs, prompt, together
from tests.fakes.sampler import Sampler
from tests.fakes.servers import wait_until
from tests.fakes.sglang import FakeSGLang
from tests.fakes.vllm import FakeVLLM
from tests.fakes.weights import adapter, exported
from tests.policy.tiny import one_row, tiny_policy

Updatable = VLLMEngine | SGLangEngine


@dataclass
class Stage:
    """A server, and a way to connect to it."""

    url: str
    local: LocalBench
    sampler: Sampler
    connect: Callable[[str, UnderWay], Awaitable[Updatable]]

    async def bench(self, under_way: UnderWay = "continue") -> tuple[ServedBench, Updatable]:
        bench = ServedBench(self.local, self.sampler, choosy=True)
        engine = await self.connect(self.url, under_way)
        bench.use(engine, [engine])
        return bench, engine


async def vllm(url: str, under_way: UnderWay) -> VLLMEngine:
    return await VLLMEngine.connect(url, VLLMConfig(urls=(url,), under_way=under_way), [EOS])


async def sglang(url: str, under_way: UnderWay) -> SGLangEngine:
    return await SGLangEngine.connect(url, SGLangConfig(urls=(url,), under_way=under_way), [EOS])


SERVERS = {
    "vllm": (vllm, lambda sampler: FakeVLLM(sampler, development=True).app()),
    "sglang": (sglang, lambda sampler: FakeSGLang(sampler).app()),
}
OLD = {
    "vllm": (vllm, lambda sampler: FakeVLLM(sampler).app(), "VLLM_SERVER_DEV_MODE=1"),
    "sglang": (sglang, lambda sampler: FakeSGLang(sampler, updates=False).app(), "update_weights_from_disk"),
}


@pytest.fixture(params=SERVERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    connect, app = SERVERS[request.param]
    with serving_tiny(app) as (url, local, sampler):
        yield Stage(url, local, sampler, connect)


@pytest.fixture
async def served(stage: Stage) -> AsyncIterator[tuple[ServedBench, Updatable]]:
    bench, engine = await stage.bench()
    yield bench, engine
    await engine.aclose()


def other(seed: int = 7, **more) -> Policy:
    """The same model with other weights."""
    return tiny_policy("qwen3", seed=seed, max_position_embeddings=Bench.CONTEXT, **more)


async def test_good_weights_are_served_under_their_version(
    served: tuple[ServedBench, Updatable], tmp_path: Path
) -> None:
    bench, engine = served
    before = await ask(bench, prompt(6))
    assert await engine.load(exported(other(), tmp_path, 5)) < 1e-4
    answer = await ask(bench, prompt(6))
    assert (set(answer.versions), engine.policy_version) == ({5}, 5)
    assert answer.logprobs != before.logprobs
    check_logprobs(bench, answer)


async def test_weights_of_another_model_never_reach_the_server(
    served: tuple[ServedBench, Updatable], stage: Stage, tmp_path: Path
) -> None:
    bench, engine = served
    await engine.load(exported(other(), tmp_path, 1))
    for version, odd in enumerate((other(num_hidden_layers=3), other(hidden_size=64)), 2):
        with pytest.raises(ConfigError, match="weights of another model"):
            await engine.load(exported(odd, tmp_path, version))
    assert (stage.sampler.reloads, engine.policy_version, stage.sampler.paused) == (1, 1, False)
    check_logprobs(bench, await ask(bench, prompt(6)))


async def test_what_the_server_was_started_with_tells_the_first_time(tmp_path: Path) -> None:
    root = exported(other(), tmp_path, 0).folder
    for connect, fake in ((vllm, FakeVLLM), (sglang, FakeSGLang)):
        more = {"development": True} if fake is FakeVLLM else {}
        with serving_tiny(lambda sampler, fake=fake, more=more: fake(sampler, root=str(root), **more).app()) as (
            url,
            _,
            sampler,
        ):
            engine = await connect(url, "continue")
            with pytest.raises(ConfigError, match="weights of another model"):
                await engine.load(exported(other(num_hidden_layers=3), tmp_path, 1))
            assert not sampler.reloads
            await engine.aclose()


async def test_a_server_that_computes_something_else_answers_nobody_until_good_weights_come(
    served: tuple[ServedBench, Updatable], stage: Stage, tmp_path: Path
) -> None:
    bench, engine = served
    good = exported(other(), tmp_path, 4)
    wrong = dataclasses.replace(good, version=3, logprob=good.logprob - 1)
    with pytest.raises(WrongWeights, match=r"version 3.* differs by 1 nats"):
        await engine.load(wrong)
    assert (engine.policy_version, stage.sampler.paused) == (0, True)
    waiting = asyncio.create_task(ask(bench, prompt(6)))
    await engine.load(good)
    answer = await waiting
    assert (set(answer.versions), stage.sampler.paused) == ({4}, False)
    check_logprobs(bench, answer)


async def test_a_server_that_fails_while_it_loads_is_left_alone(
    served: tuple[ServedBench, Updatable], stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = served

    def reload(folder: Path) -> None:
        raise OSError(f"{folder} is out of sight here")

    monkeypatch.setattr(stage.sampler, "reload", reload)
    with pytest.raises(WrongWeights, match="out of sight"):
        await engine.load(exported(other(), tmp_path, 1))
    assert (engine.policy_version, stage.sampler.paused) == (0, True)


@pytest.mark.parametrize("use", OLD)
async def test_a_server_without_the_routes_goes_on_and_the_error_says_how_to_start_it(use: str, tmp_path: Path) -> None:
    connect, app, remedy = OLD[use]
    with serving_tiny(app) as (url, local, sampler):
        bench, engine = await Stage(url, local, sampler, connect).bench()
        with pytest.raises(ConfigError, match=remedy):
            await engine.load(exported(other(), tmp_path, 1))
        assert set((await ask(bench, prompt(6))).versions) == {0}
        await engine.aclose()


@pytest.mark.parametrize("use", SERVERS)
async def test_a_server_that_is_gone_has_what_it_had(use: str, tmp_path: Path) -> None:
    connect, app = SERVERS[use]
    with serving_tiny(app) as (url, _, _):
        engine = await connect(url, "continue")
    with pytest.raises(EngineError) as failure:
        await engine.load(exported(other(), tmp_path, 1))
    assert not isinstance(failure.value, WrongWeights)
    await engine.aclose()


async def halfway(stage: Stage, under_way: UnderWay, weights: Weights) -> tuple[list[int], Sampler]:
    """Versions of an answer during which weights are published."""
    bench, engine = await stage.bench(under_way)
    sampled: list[asyncio.Task] = []
    loop = asyncio.get_running_loop()

    def publish() -> None:
        loop.call_soon_threadsafe(lambda: sampled.append(loop.create_task(engine.load(weights))))
        if under_way == "continue":
            wait_until(lambda: stage.sampler.reloads)  # else the answer may be done before

    bench.before_pass(8, publish)
    answer = await ask(bench, prompt(6), max_tokens=120, temperature=1.0, seed=3)
    while not sampled:  # noqa: ASYNC110 - it was asked for from another thread
        await asyncio.sleep(0.001)
    await sampled[0]
    await engine.aclose()
    return answer.versions, stage.sampler


async def test_requests_under_way_continue_with_the_new_weights(stage: Stage, tmp_path: Path) -> None:
    versions, sampler = await halfway(stage, "continue", exported(other(), tmp_path, 1))
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}
    assert not sampler.cancelled


async def test_or_they_finish_with_the_old_ones(stage: Stage, tmp_path: Path) -> None:
    versions, _ = await halfway(stage, "finish", exported(other(), tmp_path, 1))
    assert set(versions) == {0}


async def test_vllm_is_not_given_tied_embeddings(tmp_path: Path) -> None:
    tied = tiny_policy("qwen2", max_position_embeddings=Bench.CONTEXT)
    with serving_tiny(SERVERS["vllm"][1]) as (url, _, sampler):
        engine = await vllm(url, "continue")
        with pytest.raises(ConfigError, match="untied=True"):
            await engine.load(exported(tied, tmp_path, untied=False))
        assert not sampler.reloads
        await engine.aclose()


LORA = {"lora": {"rank": 2, "alpha": 8}}


def adapted(seed: int) -> Policy:
    """The model of the bench, with adapters that have learnt something."""
    policy = tiny_policy("qwen3", settings=LORA, max_position_embeddings=Bench.CONTEXT)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return policy


async def test_vllm_takes_adapters_by_themselves_one_in_the_place_of_the_last(tmp_path: Path) -> None:
    fakes: list[FakeVLLM] = []

    def app(sampler: Sampler) -> FastAPI:
        fakes.append(FakeVLLM(sampler, development=True, adapters=True))
        return fakes[0].app()

    with serving_tiny(app, LORA) as (url, local, sampler):
        engine = await vllm(url, "continue")
        request = Generation(prompt_ids=np.array(prompt(6), np.int32), sampling=Sampling(temperature=0.0, max_tokens=8))
        for version in (1, 2):
            policy = adapted(seed=version)
            assert await engine.load(adapter(policy, tmp_path, version)) < 1e-4
            answer = together(prompt(6), [chunk async for chunk in engine.generate(request)])
            assert set(answer.versions) == {version}
            rows = policy.logits(policy.hidden(*one_row([*prompt(6), *answer.ids]))).log_softmax(-1)[5:-1]
            assert answer.ids == rows.argmax(-1).tolist()
            assert answer.logprobs == pytest.approx(rows.max(-1).values.tolist(), abs=1e-4)
        other_rank = tiny_policy("qwen3", settings={"lora": {"rank": 3}}, max_position_embeddings=Bench.CONTEXT)
        with pytest.raises(ConfigError, match="another model"):
            await engine.load(adapter(other_rank, tmp_path, 3))
        assert (sampler.reloads, local.policy.version) == (2, 2)
        await engine.aclose()


@pytest.mark.parametrize(("use", "remedy"), [("vllm", "--enable-lora"), ("sglang", "whole models only")])
async def test_a_server_that_takes_no_adapters_says_what_to_do(use: str, remedy: str, tmp_path: Path) -> None:
    connect, app = SERVERS[use]
    with serving_tiny(app) as (url, _, sampler):
        engine = await connect(url, "continue")
        with pytest.raises(ConfigError, match=remedy):
            await engine.load(adapter(adapted(seed=1), tmp_path))
        assert (sampler.reloads, sampler.paused, engine.policy_version) == (0, False, 0)
        await engine.aclose()
