"""Several engines as one: the laws over two fake servers, sessions that stay, replicas that fail and come back."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from stepwell.engines import ENGINES
from stepwell.engines.base import Chunk, Generation, Weights, WrongWeights
from stepwell.engines.replicas import Replicas
from stepwell.engines.served import ServedConfig, Syntax
from stepwell.engines.sglang import SGLangConfig, SGLangEngine
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import ConfigError, EngineError, InvalidRequest, StepwellError
from stepwell.types import Sampling, TokenSource
from tests.engines.benches import LocalBench, ServedBench, serving_tiny
from tests.engines.laws import EOS, Bench, RequestLaws, StreamLaws
from tests.fakes.models import tiny_renderer
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving
from tests.fakes.sglang import FakeSGLang
from tests.fakes.vllm import FakeVLLM
from tests.fakes.weights import exported
from tests.policy.tiny import tiny_policy


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str, LocalBench, Sampler]]:
    """A vLLM and an SGLang over the same weights."""
    with (
        serving_tiny(lambda sampler: FakeVLLM(sampler).app()) as (vllm, local, sampler),
        serving(FakeSGLang(sampler).app()) as sglang,
    ):
        yield vllm, sglang, local, sampler


@pytest.fixture
async def bench(servers: tuple[str, str, LocalBench, Sampler]) -> AsyncIterator[ServedBench]:
    vllm, sglang, local, sampler = servers
    engines = [
        await VLLMEngine.connect(vllm, VLLMConfig(urls=(vllm,)), [EOS]),
        await SGLangEngine.connect(sglang, SGLangConfig(urls=(sglang,)), [EOS]),
    ]
    made = ServedBench(local, sampler, choosy=True)
    together = Replicas(engines)
    made.use(together, engines)
    yield made
    await together.aclose()


class TestReplicas(StreamLaws, RequestLaws):
    pass


@dataclass
class Scripted:
    """Yields `tokens` tokens, unless it is told to fail."""

    model: str = "tiny"
    context_length: int = 100
    policy_version: int = 0
    token_source: TokenSource = "engine"
    tokens: int = 3
    fails_after: int | None = None
    refuses: bool = False
    well: bool = True
    looked_at: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: list[str] = field(default_factory=list)
    left: int = 0

    async def healthy(self) -> bool:
        self.looked_at.set()
        return self.well

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        self.sessions.append(request.session)
        if self.refuses:
            raise InvalidRequest("no")
        try:
            for number in range(self.tokens):
                if number == self.fails_after:
                    raise EngineError("it broke")
                finish = "stop" if number == self.tokens - 1 else None
                yield Chunk(token_ids=(number,), logprobs=(-1.0,), policy_version=0, finish_reason=finish)
        except GeneratorExit:
            self.left += 1
            raise


def wish(session: str = "") -> Generation:
    return Generation(prompt_ids=np.array([5], np.int32), sampling=Sampling(max_tokens=3), session=session)


async def ask(engine: Replicas, session: str = "") -> list[int]:
    return [i async for chunk in engine.generate(wish(session)) for i in chunk.token_ids]


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    made = Replicas([Scripted() for _ in range(4)], check_every=0.01)
    yield made
    await made.aclose()


async def test_a_session_stays_where_it_is_and_sessions_spread(replicas: Replicas) -> None:
    for _ in range(3):
        for number in range(80):
            await ask(replicas, f"session-{number}")
    counts = [Counter(engine.sessions) for engine in replicas._engines]
    assert sum(len(count) for count in counts) == 80
    assert all(set(count.values()) == {3} for count in counts)
    assert all(8 <= len(count) <= 36 for count in counts)


async def test_requests_without_a_session_spread_too(replicas: Replicas) -> None:
    for _ in range(80):
        await ask(replicas)
    assert all(8 <= len(engine.sessions) <= 36 for engine in replicas._engines)


async def test_when_one_is_down_only_its_own_sessions_move_and_they_come_back(replicas: Replicas) -> None:
    sessions = [f"session-{number}" for number in range(40)]
    for session in sessions:
        await ask(replicas, session)
    home = [set(engine.sessions) for engine in replicas._engines]
    broken = replicas._engines[1]
    broken.fails_after, broken.well = 0, False
    for session in sessions:
        assert await ask(replicas, session) == [0, 1, 2]
    for number in (0, 2, 3):
        assert home[number] <= set(replicas._engines[number].sessions)
        assert set(replicas._engines[number].sessions) & home[1]
    broken.fails_after, broken.well = None, True
    while replicas._down:  # noqa: ASYNC110 - the health check runs beside us
        await asyncio.sleep(0.005)
    for engine in replicas._engines:
        engine.sessions.clear()
    for session in sessions:
        await ask(replicas, session)
    assert [set(engine.sessions) for engine in replicas._engines] == home


async def test_one_that_says_that_it_is_unwell_is_left_alone(replicas: Replicas) -> None:
    await ask(replicas)  # from now on somebody looks
    replicas._engines[2].well = False
    while 2 not in replicas._down:  # noqa: ASYNC110 - the health check runs beside us
        await asyncio.sleep(0.005)
    replicas._engines[2].sessions.clear()
    for _ in range(40):
        await ask(replicas)
    assert not replicas._engines[2].sessions


async def test_after_the_first_chunk_nobody_tries_again(replicas: Replicas) -> None:
    for engine in replicas._engines:
        engine.fails_after = 1
    stream = replicas.generate(wish())
    assert (await anext(stream)).token_ids == (0,)
    with pytest.raises(EngineError, match="it broke"):
        await anext(stream)
    assert sum(len(engine.sessions) for engine in replicas._engines) == 1


async def test_when_all_fail_the_last_reason_is_told(replicas: Replicas) -> None:
    for engine in replicas._engines:
        engine.fails_after = 0
    with pytest.raises(EngineError, match=r"none of 4 replicas.*it broke"):
        await ask(replicas)
    assert sum(len(engine.sessions) for engine in replicas._engines) == 4


async def test_a_refusal_is_the_callers_and_is_not_tried_elsewhere(replicas: Replicas) -> None:
    for engine in replicas._engines:
        engine.refuses = True
    with pytest.raises(InvalidRequest):
        await ask(replicas)
    assert sum(len(engine.sessions) for engine in replicas._engines) == 1
    assert not replicas._down


async def test_a_reader_that_leaves_leaves_the_replica(replicas: Replicas) -> None:
    async with aclosing(replicas.generate(wish())) as stream:
        await anext(stream)
    assert sum(engine.left for engine in replicas._engines) == 1


async def test_facts_are_those_that_hold_for_all() -> None:
    two = [Scripted(policy_version=4, context_length=90), Scripted(policy_version=3, token_source="text", well=False)]
    replicas = Replicas(two)
    assert (replicas.model, replicas.policy_version, replicas.context_length) == ("tiny", 3, 90)
    assert replicas.token_source == "text"
    assert await replicas.healthy()
    two[0].well = False
    assert not await replicas.healthy()


@pytest.mark.parametrize("models", [[], ["one", "two"]])
def test_replicas_of_different_models_are_refused(models: list[str]) -> None:
    with pytest.raises(ConfigError, match="one model"):
        Replicas([Scripted(model=model) for model in models])


@dataclass
class Taking(Scripted):
    """Takes weights, unless it is told to fail, and answers by their version."""

    refusal: StepwellError | None = None
    loaded: list[int] = field(default_factory=list)

    async def load(self, weights: Weights) -> float:
        if self.refusal is not None:
            raise self.refusal
        self.loaded.append(weights.version)
        self.policy_version = weights.version
        return 0.001 * len(self.loaded)


def version(number: int) -> Weights:
    return Weights(folder=Path("weights"), version=number, prompt_ids=np.array([1], np.int32), token=1, logprob=-1.0)


async def taking(*replicas: Taking) -> Replicas:
    together = Replicas(replicas, check_every=0.01)
    await together.load(version(1))
    return together


async def looked(engine: Scripted) -> None:
    """Two more looks at everybody's health have been taken."""
    for _ in range(2):
        engine.looked_at.clear()
        await engine.looked_at.wait()


async def test_all_replicas_get_the_weights() -> None:
    one, two = Taking(), Taking(loaded=[0])
    together = await taking(one, two)
    assert (one.loaded, two.loaded, together.policy_version) == ([1], [0, 1], 1)
    assert await together.load(version(2)) == pytest.approx(0.003)  # the largest difference
    await together.aclose()


@pytest.mark.parametrize("refusal", [WrongWeights("wrong"), EngineError("gone"), ConfigError("other")])
async def test_a_replica_that_does_not_take_them_answers_nobody_until_it_does(refusal: StepwellError) -> None:
    good, bad = Taking(), Taking()
    together = await taking(good, bad)
    bad.refusal = refusal
    await together.load(version(2))
    assert (together.policy_version, bad.policy_version) == (2, 1)
    for number in range(20):
        await ask(together, f"session-{number}")
    assert not bad.sessions
    bad.refusal = None
    await looked(bad)
    assert bad.loaded == [1, 2]
    for number in range(20):
        await ask(together, f"session-{number}")
    assert bad.sessions
    await together.aclose()


async def test_one_that_was_away_is_given_the_weights_before_it_answers() -> None:
    """Its server may have been started again, with the weights of its start."""
    away = Taking()
    together = await taking(away)
    away.well = False
    await looked(away)
    with pytest.raises(EngineError, match="no replica has good weights"):
        await ask(together)
    assert not await together.healthy()
    away.well = True
    await looked(away)
    assert await ask(together) == [0, 1, 2]
    assert away.loaded == [1, 1]
    await together.aclose()


async def test_weights_that_nobody_takes_leave_everybody_who_can_with_the_old_ones() -> None:
    one, two = Taking(), Taking()
    together = await taking(one, two)
    one.refusal = two.refusal = ConfigError("of another model")
    with pytest.raises(ConfigError, match="of another model"):
        await together.load(version(2))
    assert await ask(together) == [0, 1, 2]
    one.refusal = WrongWeights("half of them")
    with pytest.raises(EngineError, match="no replica took version 2; one said: half of them") as failure:
        await together.load(version(2))
    assert not isinstance(failure.value, WrongWeights)
    one.sessions.clear()
    for number in range(20):
        await ask(together, f"session-{number}")
    assert not one.sessions
    two.refusal = WrongWeights("the other half")
    with pytest.raises(WrongWeights):
        await together.load(version(2))
    with pytest.raises(EngineError, match="no replica has good weights"):
        await ask(together)
    await together.aclose()


async def test_replicas_that_take_no_weights_say_so(replicas: Replicas) -> None:
    with pytest.raises(ConfigError, match="cannot load weights"):
        await replicas.load(version(1))


async def test_alone_a_replica_fails_with_its_own_words() -> None:
    alone = Replicas([Scripted(fails_after=0)])
    with pytest.raises(EngineError, match=r"^it broke$"):
        await ask(alone)
    await alone.aclose()


async def test_two_servers_take_weights_and_one_of_them_that_cannot_is_left_out(tmp_path: Path) -> None:
    good = exported(tiny_policy("qwen3", seed=7, max_position_embeddings=Bench.CONTEXT), tmp_path, 2)
    with (
        serving_tiny(lambda sampler: FakeVLLM(sampler, development=True).app()) as (first, _, _),
        serving_tiny(lambda sampler: FakeVLLM(sampler).app()) as (second, _, sampler),
    ):
        engine = await VLLMConfig(urls=(first, second)).connect(tiny_renderer(), Syntax(lambda calls, tools: ""))
        assert await engine.load(good) < 1e-4
        before = sampler.requests
        for _ in range(6):
            assert {chunk.policy_version async for chunk in engine.generate(wish())} == {2}
        assert sampler.requests == before
        await engine.aclose()


@pytest.mark.parametrize("use", ["vllm", "sglang"])
async def test_settings_make_replicas_that_are_looked_after_even_of_one_url(
    servers: tuple[str, str, LocalBench, Sampler], use: str
) -> None:
    url = servers[0] if use == "vllm" else servers[1]
    for urls in ([url], [url, url + "/v1"]):
        config: ServedConfig = ENGINES[use](urls=urls, policy_version=2)
        engine = await config.connect(tiny_renderer(), Syntax(lambda calls, tools: ""))
        assert isinstance(engine, Replicas)
        assert (engine.model, engine.policy_version) == ("tiny", 2)
        assert await engine.healthy()
        await engine.aclose()


async def test_a_model_that_is_not_served_is_refused_with_what_is(
    servers: tuple[str, str, LocalBench, Sampler],
) -> None:
    config = VLLMConfig(urls=(servers[0],), model="other")
    with pytest.raises(ConfigError, match="does not serve 'other'; it serves tiny"):
        await config.connect(tiny_renderer(), Syntax(lambda calls, tools: ""))
