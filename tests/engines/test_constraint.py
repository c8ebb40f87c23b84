"""Responses under a JSON schema: always what the schema says, sampled from what the model would say."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from stepwell.engines.base import Generation
from stepwell.engines.constraint import ConstraintCompiler
from stepwell.engines.local import LocalEngine
from stepwell.errors import InvalidRequest, MissingDependency
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy
from stepwell.types import Sampling
from tests.engines.laws import Answer, together
from tests.fakes.models import tiny_renderer, tiny_tokenizer
from tests.policy.tiny import plain_logprobs, tiny_policy

WORDS = tiny_tokenizer().get_vocab_size() + 3
"""Models often have a few more logits than their tokenizer has tokens."""
RENDERER = tiny_renderer()
EOS = min(RENDERER.eos_ids)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["kind", "age", "names"],
    "additionalProperties": False,
}


MANY_FIELDS = {
    "type": "object",
    "properties": {f"p{number}": {"type": "string"} for number in range(1000)},
    "additionalProperties": False,
}
"""More than the library can keep track of at once."""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCompiler:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny_tokenizer().save(str(file))
    return ConstraintCompiler(file, vocabulary_size=WORDS, eos_ids=[EOS])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy("qwen3", vocab_size=WORDS, max_position_embeddings=400)


@pytest.fixture(scope="module")
def engine(policy: Policy, compiler: ConstraintCompiler) -> Iterator[LocalEngine]:
    made = LocalEngine(policy, eos_ids=[EOS], max_batch=6, constraints=compiler)
    yield made
    made.close()


async def ask(engine: LocalEngine, schema: object = SCHEMA, prompt: tuple[int, ...] = (5, 6), **sampling) -> Answer:
    wish = Sampling(**{"max_tokens": 300, **sampling})
    written = schema if isinstance(schema, str) else json.dumps(schema)
    request = Generation(prompt_ids=np.array(prompt, np.int32), sampling=wish, json_schema=written)
    return together(prompt, [chunk async for chunk in engine.generate(request)])


def check_logprobs(policy: Policy, answer: Answer, scale: float = 1.0) -> None:
    rows = plain_logprobs(policy, [*answer.prompt, *answer.ids], scale)[len(answer.prompt) - 1 : -1]
    assert answer.logprobs == pytest.approx([float(row[i]) for row, i in zip(rows, answer.ids, strict=True)], abs=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.5}, {"temperature": 2.0, "top_k": 3}],
)
async def test_a_response_meets_the_schema_and_logprobs_are_those_before_the_mask(
    engine: LocalEngine, policy: Policy, sampling: dict
) -> None:
    for seed in range(5):
        answer = await ask(engine, seed=seed, **sampling)
        value = json.loads(RENDERER.decode(answer.ids))
        assert set(value) == {"kind", "age", "names"}
        assert value["kind"] in ("cat", "dog")
        assert 0 <= value["age"] <= 99
        assert all(len(name) <= 3 for name in value["names"])
        assert answer.finish == "stop"
        assert answer.ids[-1] == EOS
        check_logprobs(policy, answer, sampling["temperature"] or 1.0)
        assert max(np.array(answer.logprobs)) < -0.1  # a mask's own would be near 0 where one token was left


async def test_an_empty_schema_is_any_json_value(engine: LocalEngine) -> None:
    kinds = set()
    for seed in range(12):
        answer = await ask(engine, "{}", seed=seed)
        if answer.finish == "stop":
            kinds.add(type(json.loads(RENDERER.decode(answer.ids))))
    assert len(kinds) >= 2


async def test_when_tokens_run_out_the_value_stays_incomplete(engine: LocalEngine) -> None:
    answer = await ask(engine, max_tokens=4)
    assert (answer.finish, len(answer.ids)) == ("length", 4)


async def test_requests_with_and_without_a_schema_share_a_pass(engine: LocalEngine, policy: Policy) -> None:
    free = Generation(prompt_ids=np.array([7], np.int32), sampling=Sampling(temperature=0.0, max_tokens=20))

    async def unconstrained() -> Answer:
        return together([7], [chunk async for chunk in engine.generate(free)])

    first, other, second = await asyncio.gather(ask(engine, seed=1), unconstrained(), ask(engine, {"const": 7}))
    rows = plain_logprobs(policy, [*other.prompt, *other.ids])[len(other.prompt) - 1 : -1]
    assert other.ids == rows.argmax(-1).tolist()
    assert json.loads(RENDERER.decode(first.ids))["kind"] in ("cat", "dog")
    assert RENDERER.decode(second.ids) == "7"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "Expecting"),
        ("[1]", "must be an object"),
        ("[" * 100_000, "cannot be used"),
        ('{}, "grammars": []', "Extra data"),
        ({"type": "nonsense"}, "nonsense"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"type": "object", "not": {}}, "not"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "#"}, "no value can meet it"),
        ({"allOf": [{"$ref": "#"}]}, "no value can meet it"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable"),
        (MANY_FIELDS, "3999 items; max is 2000"),
        ({"type": "object", "properties": {"a": MANY_FIELDS}, "required": ["a"]}, "3999 items; max is 2000"),
        ({"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(300)]}, "items; max is 2000"),
    ],
)
async def test_what_is_no_schema_or_is_not_supported_is_refused_and_harms_nobody(
    engine: LocalEngine, schema: object, words: str
) -> None:
    good, refused = await asyncio.gather(ask(engine), ask(engine, schema), return_exceptions=True)
    assert isinstance(refused, InvalidRequest)
    assert words in str(refused)
    assert "\n" not in str(refused)
    assert len(str(refused)) < 300
    assert json.loads(RENDERER.decode(good.ids))


async def test_what_cannot_be_met_is_refused_before_the_first_token_and_later_only_where_the_beginning_is_free(
    engine: LocalEngine,
) -> None:
    async def heard(schema: object, seed: int) -> str:
        wish = Sampling(max_tokens=50, seed=seed)
        request = Generation(prompt_ids=np.array([5], np.int32), sampling=wish, json_schema=json.dumps(schema))
        ids: list[int] = []
        try:
            async for chunk in engine.generate(request):
                ids.extend(chunk.token_ids)
        except InvalidRequest as error:
            return f"{RENDERER.decode(ids)} {str(error).partition('row has ')[2][:24]}"
        return RENDERER.decode(ids)

    assert await heard(MANY_FIELDS, 0) == " 3999 items; max is 2000;"
    free = {"anyOf": [{"const": 7}, MANY_FIELDS]}
    assert {await heard(free, seed) for seed in range(12)} == {"7", "{ 3999 items; max is 2000;"}


async def test_an_engine_without_a_tokenizer_refuses_schemas(policy: Policy) -> None:
    engine = LocalEngine(policy, eos_ids=[EOS])
    with pytest.raises(InvalidRequest, match="without a tokenizer"):
        await ask(engine)
    engine.close()


def test_a_tokenizer_that_cannot_be_constrained_is_refused_when_it_is_used() -> None:
    file = resolve_model("lookup") / "tokenizer.json"
    compiler = ConstraintCompiler(file, vocabulary_size=36, eos_ids=[0])
    with pytest.raises(InvalidRequest, match="tokenizer does not allow"):
        compiler.compile("{}")


def test_without_the_library_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingDependency, match="pip install"):
        ConstraintCompiler(Path("tokenizer.json"), vocabulary_size=1, eos_ids=[0])


def test_a_complete_value_leaves_only_the_end_of_turn(compiler: ConstraintCompiler) -> None:
    constraint = compiler.compile('{"const": true}')
    for token in RENDERER.encode("true"):
        mask = constraint.allowed()
        assert mask[token]
        assert mask.shape == (WORDS,)
        constraint.advance(int(token))
    assert torch.from_numpy(constraint.allowed()).nonzero().flatten().tolist() == [EOS]
