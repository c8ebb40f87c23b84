"""The policies behind the gateway: SmolLM2 for what fits its context, a random one of the same words for the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from stepwell.engines.local import LocalEngine
from stepwell.policy.attention import ATTENTION
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.rendering.renderer import Renderer
from tests.clients.tutor import GrammarCompiler

SMOLLM2 = "smollm2-135m"
RANDOM = "random-128k"
_LONG_CONTEXT = 131_072


@dataclass(frozen=True, kw_only=True)
class Model:
    """A policy with its engine."""

    engine: LocalEngine
    renderer: Renderer


@contextmanager
def running(name: str) -> Iterator[Model]:
    """The local engine over the policy of that name."""
    transformers.utils.logging.disable_progress_bar()
    directory = resolve_model(SMOLLM2)
    renderer = Renderer.from_directory(directory)
    eos_ids = sorted(renderer.eos_ids)
    policy = Policy.load(directory, PolicyConfig(trainable_layers=1), name=name) if name == SMOLLM2 else _random(name)
    compiler = GrammarCompiler(directory / "tokenizer.json", vocabulary_size=policy.vocabulary_size, eos_ids=eos_ids)
    engine = LocalEngine(policy, eos_ids=eos_ids, max_batch=8, constraints=compiler)
    try:
        yield Model(engine=engine, renderer=renderer)
    finally:
        engine.close()


def _random(name: str) -> Policy:
    """One layer of random weights: says anything, half characters included, and reads 30,000 tokens in seconds."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=_LONG_CONTEXT,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=torch.float32)
    return Policy(model, name=name)
