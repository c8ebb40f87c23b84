"""A model directory without a model: a tiny byte-level tokenizer and a ChatML template, written where a test asks."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stepwell.rendering.renderer import Renderer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("a", "b"), ("ab", "a"), ("Ġ", "t")]


def tiny_tokenizer() -> Tokenizer:
    """One token per byte, a few merges (so that one text has several tokenisations), and ChatML's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet + [a + b for a, b in MERGES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_model_directory(directory: Path, template: str = CHATML) -> Path:
    """The files that `Renderer.from_directory` reads."""
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    eos = tokenizer.token_to_id("<|im_end|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return directory


def tiny_renderer(tool_format: str | None = None, template: str = CHATML) -> Renderer:
    """A renderer over `tiny_tokenizer`, without touching a disk."""
    tokenizer = tiny_tokenizer()
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    eos = [tokenizer.token_to_id("<|im_end|>")]
    return Renderer(tokenizer, template, special_tokens=special, eos_ids=eos, tool_format=tool_format)
