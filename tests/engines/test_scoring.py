"""Servers report log-probabilities under a schema's mask; what is recorded are those without it, by a second look."""

import json
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from stepwell.engines.base import Chunk, Generation
from stepwell.engines.constraint import ConstraintCompiler
from stepwell.engines.local import LocalEngine
from stepwell.engines.served import ServedEngine
from stepwell.engines.sglang import SGLangConfig, SGLangEngine
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest
from stepwell.types import Sampling
from tests.engines.laws import together
from tests.engines.test_constraint import EOS, RENDERER, SCHEMA, WORDS, check_logprobs
from tests.fakes.models import tiny_tokenizer
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving
from tests.fakes.sglang import FakeSGLang
from tests.fakes.vllm import FakeVLLM
from tests.policy.tiny import plain_logprobs, tiny_policy

CONTEXT = 300


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampler]:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny_tokenizer().save(str(file))
    policy = tiny_policy("qwen3", vocab_size=WORDS, max_position_embeddings=CONTEXT)
    constraints = ConstraintCompiler(file, vocabulary_size=WORDS, eos_ids=[EOS])
    engine = LocalEngine(policy, eos_ids=[EOS], constraints=constraints)
    yield Sampler(policy, engine)
    engine.close()


@pytest.fixture(params=["vllm", "vllm processed", "sglang"])
async def engine(request: pytest.FixtureRequest, sampler: Sampler) -> AsyncIterator[ServedEngine]:
    made: ServedEngine
    if request.param == "sglang":
        with serving(FakeSGLang(sampler).app()) as url:
            made = await SGLangEngine.connect(url, SGLangConfig(urls=(url,)), [EOS])
            yield made
            await made.aclose()
    else:
        with serving(FakeVLLM(sampler, processed="processed" in request.param).app()) as url:
            made = await VLLMEngine.connect(url, VLLMConfig(urls=(url,)), [EOS])
            yield made
            await made.aclose()


async def ask(engine: ServedEngine, prompt: list[int], top: int = 0, **sampling) -> list[Chunk]:
    wish = Sampling(**{"max_tokens": 200, "seed": 1, **sampling})
    ids = np.array(prompt, np.int32)
    request = Generation(prompt_ids=ids, sampling=wish, json_schema=json.dumps(SCHEMA), top_logprobs=top)
    return [chunk async for chunk in engine.generate(request)]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.6}])
async def test_a_response_meets_the_schema_with_the_logprobs_of_the_whole_distribution(
    engine: ServedEngine, sampler: Sampler, sampling: dict
) -> None:
    chunks = await ask(engine, [5, 6, 7], top=2, **sampling)
    answer = together([5, 6, 7], chunks)
    assert set(json.loads(RENDERER.decode(answer.ids))) == {"kind", "age", "names"}
    check_logprobs(sampler.policy, answer)
    rows = plain_logprobs(sampler.policy, [*answer.prompt, *answer.ids])[2:-1]
    tops = [top for chunk in chunks for top in chunk.top]
    assert len(tops) == len(answer.ids)
    for row, top in zip(rows, tops, strict=True):
        assert [token for token, _ in top] == row.topk(2).indices.tolist()


async def test_at_other_temperatures_they_cannot_be_told(engine: ServedEngine, sampler: Sampler) -> None:
    before = sampler.requests
    with pytest.raises(InvalidRequest, match="temperature 0 or 1"):
        await ask(engine, [5], temperature=0.6)
    assert sampler.requests == before


async def test_there_must_be_room_for_the_second_look(engine: ServedEngine) -> None:
    answer = together([], await ask(engine, [5] * (CONTEXT - 2)))
    assert (answer.finish, len(answer.ids)) == ("length", 1)
    with pytest.raises(ContextOverflow, match="no room"):
        await ask(engine, [5] * (CONTEXT - 1))


async def test_when_the_weights_change_between_the_looks_nothing_is_recorded(
    engine: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = engine._scoring

    def publish(*arguments):
        engine.policy_version += 1
        return scoring(*arguments)

    monkeypatch.setattr(engine, "_scoring", publish)
    with pytest.raises(EngineError, match="weights changed"):
        await ask(engine, [5])
