"""A real vLLM takes weights: a small model of SmolLM2's kind, with tied embeddings, that a trainer changes."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stepwell.engines.base import Chunk, Generation
from stepwell.engines.vllm import VLLMConfig, VLLMEngine
from stepwell.errors import ConfigError
from stepwell.policy.lora import LoRAConfig
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.types import Sampling
from tests.engines.laws import prompt
from tests.fakes.weights import adapter, exported
from tests.policy.tiny import one_row
from tests.vllm.conftest import vllm_serving

LENGTH = 140


@pytest.fixture(scope="module")
def small(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    shutil.copytree(directory, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    config = AutoConfig.from_pretrained(directory, **settings, **heads)
    assert config.tie_word_embeddings
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with vllm_serving(small, "raw", log, VLLM_SERVER_DEV_MODE="1") as served:
        yield served


@pytest.fixture
async def engine(url: str) -> AsyncIterator[VLLMEngine]:
    made = await VLLMEngine.connect(url, VLLMConfig(urls=(url,)), [0])
    yield made
    await made.aclose()


@torch.no_grad()
def perturbed(folder: Path, seed: int) -> Policy:
    """Every tensor has changed, the embeddings and so the output layer too."""
    policy = Policy.load(folder, name="small")
    torch.manual_seed(seed)
    for parameter in policy.model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2 * parameter.std().clamp_min(1e-2))
    return policy


async def played(engine: VLLMEngine, chunks: list[Chunk] | None = None) -> list[Chunk]:
    """An answer, also while it arrives."""
    chunks = [] if chunks is None else chunks
    sampling = Sampling(temperature=1.0, max_tokens=LENGTH, seed=1)
    request = Generation(prompt_ids=np.array(prompt(8), np.int32), sampling=sampling)
    async for chunk in engine.generate(request):
        chunks.append(chunk)
    return chunks


@torch.no_grad()
def differences(policy: Policy, chunks: list[Chunk]) -> torch.Tensor:
    """Of each token's log-probability from the trainer's, given all tokens before it."""
    start, ids = prompt(8), [i for chunk in chunks for i in chunk.token_ids]
    rows = policy.logits(policy.hidden(*one_row([*start, *ids]))).log_softmax(-1)[len(start) - 1 : -1]
    own = rows.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return (own - torch.tensor([p for chunk in chunks for p in chunk.logprobs])).abs()


async def test_a_tied_model_is_published_untied_and_computes_what_the_trainer_does(
    engine: VLLMEngine, small: Path, tmp_path: Path
) -> None:
    policy = perturbed(small, seed=1)
    difference = await engine.load(exported(policy, tmp_path, 1))
    chunks = await played(engine)
    worst = float(differences(policy, chunks).max())
    print(f"after a publication: probe {difference:.1e} nats, largest of {LENGTH} tokens {worst:.1e}")
    assert worst < 1e-3
    assert {chunk.policy_version for chunk in chunks} == {1}


async def test_requests_under_way_continue_exactly_with_the_new_weights(
    engine: VLLMEngine, small: Path, tmp_path: Path
) -> None:
    old, new = perturbed(small, seed=2), perturbed(small, seed=3)
    await engine.load(exported(old, tmp_path, 2))
    weights, chunks = exported(new, tmp_path, 3), []
    playing = asyncio.create_task(played(engine, chunks))
    while len(chunks) < 10:  # noqa: ASYNC110 - the server is elsewhere
        await asyncio.sleep(0.001)
    await engine.load(weights)
    await playing
    before = [chunk for chunk in chunks if chunk.policy_version == 2]
    count = sum(len(chunk.token_ids) for chunk in before)
    assert {chunk.policy_version for chunk in chunks} == {2, 3}
    assert float(differences(old, before).max()) < 1e-3
    assert float(differences(new, chunks)[count:].max()) < 1e-3


async def test_what_would_kill_it_or_deceive_is_refused_before(engine: VLLMEngine, small: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="untied=True"):
        await engine.load(exported(perturbed(small, seed=4), tmp_path, 4, untied=False))
    config = AutoConfig.from_pretrained(small, num_hidden_layers=3)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "deeper")
    with pytest.raises(ConfigError, match="another model"):
        await engine.load(exported(Policy.load(tmp_path / "deeper", name="deeper"), tmp_path, 5))
    assert await engine.healthy()


async def test_adapters_are_published_by_themselves(small: Path, tmp_path: Path) -> None:
    config = PolicyConfig(lora=LoRAConfig(rank=8, alpha=16))
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with vllm_serving(small, "raw", tmp_path / "log.txt", "--enable-lora", "--max-lora-rank", "8", **settings) as url:
        engine = await VLLMEngine.connect(url, VLLMConfig(urls=(url,)), [0])
        for version in (1, 2):
            policy = Policy.load(small, config, name="small")
            with torch.no_grad():
                for parameter in policy.trainable_parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.05)
            difference = await engine.load(adapter(policy, tmp_path, version))
            chunks = await played(engine)
            worst = float(differences(policy, chunks).max())
            print(f"adapter {version}: probe {difference:.1e} nats, largest of {LENGTH} tokens {worst:.1e}")
            assert worst < 1e-3
            assert {chunk.policy_version for chunk in chunks} == {version}
            assert float(differences(Policy.load(small, name="small"), chunks).max()) > 0.1  # without the adapter
        await engine.aclose()
