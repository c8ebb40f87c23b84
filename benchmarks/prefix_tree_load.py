"""What `prefix_tree.py` evaluates: agents' rows of known lengths, two models, and one forward and backward pass.

Lengths are those of a long run of an agent, all divided by one number where a pass would take too long; what rows share
does not change with it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from stepwell.algorithms.objective import Objective
from stepwell.policy.attention import ATTENTION
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy
from stepwell.policy.tree_attention import BACKENDS
from stepwell.prefix_tree.pack import Merging
from stepwell.trainer.collate import MicroBatch, micro_batches
from stepwell.types import Ids, Sample

BUDGET: Final = 4096
"""Tokens of one forward and backward pass, as the trainer has it by default."""
_DOCUMENTS: Final = Path(__file__).parent.parent / "docs"
"""What a pretrained model reads. After random ids its gradients are a matter of rounding: in float32 those of the same
rows differ by 1e-4 from one attention kernel to the next, and by as much from those of float64."""
_FIRST: Final = range(1000, 6000)
"""Ids of a large vocabulary with which rows begin that are to have nothing in common."""


def siblings(vocabulary: int, divisor: int, group: int = 8) -> list[Sample]:
    """`group` trajectories of one prompt, 10 steps each: every prompt is all that came before and an observation."""
    random = np.random.default_rng(0)
    prompt, response, observation = 512 // divisor, 128 // divisor, 256 // divisor
    start, samples = _tokens(random, vocabulary, prompt), []
    for _ in range(group):
        row = np.concatenate([start, _tokens(random, vocabulary, response)])
        samples.append(_sample(row, response))
        for _ in range(9):
            row = np.concatenate([row, _tokens(random, vocabulary, observation + response)])
            samples.append(_sample(row, response))
    return samples


def linear(vocabulary: int, divisor: int) -> list[Sample]:
    """One of the siblings."""
    return siblings(vocabulary, divisor, group=1)


def grpo(vocabulary: int, divisor: int) -> list[Sample]:
    """Eight responses to one prompt, as long as itself."""
    return _continued(vocabulary, 1024 // divisor, 1024 // divisor)


def barely(vocabulary: int, divisor: int) -> list[Sample]:
    """Eight rows that share so little that merging saves 5 % of their tokens."""
    return _continued(vocabulary, 128 // divisor, (2240 - 128) // divisor)


def apart(vocabulary: int, divisor: int) -> list[Sample]:
    """Eight rows of different lengths that share nothing."""
    random = np.random.default_rng(0)
    lengths = random.integers(2048 // divisor, 4096 // divisor, 8)
    first = _tokens(random, vocabulary, 8, replace=False)
    rows = [_tokens(random, vocabulary, int(length)) for length in lengths]
    for row, token in zip(rows, first, strict=True):
        row[0] = token
    return [_sample(row, 1024 // divisor) for row in rows]


def crumbs(vocabulary: int, divisor: int) -> list[Sample]:
    """Rows of single tokens that part at every one, 1,022 in the tree: what suits block by block least."""
    rows = bushy(2, 9 - divisor.bit_length() + 1, 1)
    return [_sample(row % vocabulary, 1) for row in rows]


def bushy(ways: int, levels: int, length: int) -> list[Ids]:
    """The rows of a tree that parts `ways` times at each of its levels, `length` tokens apart, in no order."""
    random = np.random.default_rng(0)
    rows = [np.empty(0, np.int32)]
    for _ in range(levels):
        more = [_tokens(random, 50_000, length - 1) for _ in rows]
        rows = [np.concatenate([row, [way], rest]) for row, rest in zip(rows, more, strict=True) for way in range(ways)]
    return [rows[i].astype(np.int32) for i in random.permutation(len(rows))]


WORKLOADS: Final[dict[str, Callable[[int, int], list[Sample]]]] = {
    "siblings": siblings,
    "linear": linear,
    "GRPO": grpo,
    "5 % shared": barely,
    "nothing shared": apart,
    "crumbs": crumbs,
}


def _continued(vocabulary: int, prompt: int, response: int) -> list[Sample]:
    random = np.random.default_rng(0)
    start = _tokens(random, vocabulary, prompt)
    first = _tokens(random, vocabulary, 8, replace=False)
    return [
        _sample(np.concatenate([start, [token], _tokens(random, vocabulary, response - 1)]), response)
        for token in first
    ]


def _tokens(random: np.random.Generator, vocabulary: int, count: int, *, replace: bool = True) -> Ids:
    """A stretch of text, or random ids for a model that was never trained; other ones each, if not `replace`."""
    if vocabulary <= _FIRST.stop:
        return random.choice(vocabulary, count, replace=replace).astype(np.int32)
    if not replace:
        return random.choice(np.array(_FIRST), count, replace=False).astype(np.int32)
    text = _text()
    start = random.integers(len(text) - count + 1)
    return text[start : start + count]


@cache
def _text() -> Ids:
    """int32 [N]: the project's documentation, as SmolLM2 reads it."""
    tokenizer = Tokenizer.from_file(str(Path(resolve_model("smollm2-135m")) / "tokenizer.json"))
    pages = sorted(_DOCUMENTS.rglob("*.md"))
    return np.array(tokenizer.encode("\n".join(page.read_text(encoding="utf-8") for page in pages)).ids, np.int32)


def _sample(row: Ids, response: int) -> Sample:
    """A step whose loss is about the last `response` tokens."""
    known, credit = np.zeros(response, np.float32), np.ones(response, np.float32)
    return Sample(
        step_id="step",
        trajectory_id="trajectory",
        token_ids=row.astype(np.int32),
        prompt_length=len(row) - response,
        logprobs=known,
        advantages=credit,
    )


def smollm2() -> Policy:
    return Policy.load(Path(resolve_model("smollm2-135m")), name="smollm2")


def qwen2() -> Policy:
    """Of 4.8 million random parameters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attn_implementation=ATTENTION,
    )
    return Policy(Qwen2ForCausalLM(config), name="qwen2")


MODELS: Final[dict[str, Callable[[], Policy]]] = {"Qwen2-5M": qwen2, "SmolLM2-135M": smollm2}


def model_on(name: str, device: str) -> Policy:
    policy = MODELS[name]()
    policy.model.to(device)
    return policy


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward and backward over all rows, packing included."""

    seconds: float
    tokens: int
    """That were computed."""
    operations: float
    """Floating-point, that the computation needs at least."""
    gradient: Tensor
    """float32 [parameters], on the CPU."""


def evaluate(policy: Policy, samples: Sequence[Sample], merging: Merging, backend: str | None = None) -> Pass:
    """The gradient of the mean log-probability of the responses; None: the back end that Stepwell chooses."""
    policy.model.zero_grad(set_to_none=True)
    _wait(policy)
    start = time.perf_counter()
    batches, packing = micro_batches(samples, Objective(), BUDGET, merging)
    for batch in batches:
        _backward(policy, batch, backend)
    _wait(policy)
    seconds = time.perf_counter() - start
    gradients = [p.grad.flatten().cpu() for p in policy.trainable_parameters() if p.grad is not None]
    operations = sum(_operations(policy, batch) for batch in batches)
    return Pass(seconds, packing.tokens, operations, torch.cat(gradients))


def _operations(policy: Policy, batch: MicroBatch) -> float:
    """Of all matrix products, forward (each weight of a layer once per token, two products per attended pair) and
    backward (twice and five). What a merged token saves is less than a token where it attended to little.
    """
    weights = dict(policy.model.named_parameters())
    layers = sum(w.numel() for name, w in weights.items() if ".layers." in name and w.ndim == 2)
    queries = sum(len(w) for name, w in weights.items() if name.endswith("q_proj.weight"))
    head = weights["model.embed_tokens.weight"].numel()  # tied in both models
    return 6.0 * (layers * len(batch.ids) + head * len(batch.read)) + 14.0 * queries * batch.plan.tree.pairs


def _backward(policy: Policy, batch: MicroBatch, backend: str | None) -> None:
    device = device_of(policy)
    plan = batch.plan if backend is None else BACKENDS[backend](batch.plan.tree, device)
    hidden = policy.hidden(batch.ids.to(device), batch.positions.to(device), plan)
    logprobs = policy.logits(hidden[batch.read.to(device)]).log_softmax(-1)
    chosen = logprobs[batch.predicting.to(device), batch.targets.to(device)]
    loss: torch.Tensor = -(chosen * batch.weights.to(device)).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def _wait(policy: Policy) -> None:
    if device_of(policy).type == "cuda":
        torch.cuda.synchronize()


def device_of(policy: Policy) -> torch.device:
    """Where its weights are."""
    return next(policy.model.parameters()).device


def peak_memory(model: str, workload: str, divisor: int, merging: Merging, device: str) -> int:
    """Bytes that a pass needs at most, above what the process held before it. For a process of its own."""
    policy = model_on(model, device)
    samples = WORKLOADS[workload](policy.vocabulary_size, divisor)
    evaluate(policy, WORKLOADS["GRPO"](policy.vocabulary_size, 64), "on")  # what is loaded once is no one's memory
    policy.model.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        evaluate(policy, samples, merging)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    evaluate(policy, samples, merging)
    return _resident("VmHWM") - before


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))
