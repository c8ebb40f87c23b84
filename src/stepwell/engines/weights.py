"""Weights before an engine takes them, and after: that they are of its model, and that it computes what they do.

A server's own check is not enough. vLLM dies of a folder that is not there, only warns in its log of tensors that are
missing, and with tied embeddings may keep the old output layer without a word.
"""

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from stepwell.engines.base import Engine, Generation, Weights, WrongWeights
from stepwell.errors import ConfigError, StepwellError
from stepwell.types import Sampling

OUTPUT_LAYER: Final = "lm_head.weight"
"""The tensor that is not there where a checkpoint ties it to the embeddings."""
_WHOLE: Final = "model.safetensors"
"""The file of a checkpoint that has a single one."""
_CANDIDATES: Final = 5
"""How many of the likeliest tokens to look among: two that are almost equally likely may change places."""
_LARGEST_HEADER: Final = 100_000_000
"""Bytes; the format's own limit."""

Layout = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors, by name."""


class _Tensor(msgspec.Struct):
    shape: tuple[int, ...]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    """Names of tensors, and of the files that hold them."""


_INDEX: Final = msgspec.json.Decoder(_Index)
_HEADER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR: Final = msgspec.json.Decoder(_Tensor)


def layout_of(folder: Path) -> Layout:
    """What the safetensors files of a Hugging Face checkpoint, or of an adapter, hold.

    Raises:
        ConfigError: it is none, or a file of it is damaged.
    """
    if not (holds_adapter(folder) or (folder / "config.json").is_file()):
        raise ConfigError(f"{folder} is no Hugging Face checkpoint: it has no config.json")
    try:
        return {name: shape for file in _files(folder) for name, shape in _header(folder / file).items()}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the safetensors files in {folder} cannot be read: {error}") from error


def holds_adapter(folder: Path) -> bool:
    """Whether `folder` has an adapter in the format of the peft library, and not a whole model."""
    return (folder / "adapter_config.json").is_file()


def _files(folder: Path) -> list[str]:
    """Those that belong to the checkpoint: others may lie beside them."""
    if holds_adapter(folder):
        return ["adapter_model.safetensors"]
    index = folder / f"{_WHOLE}.index.json"
    return sorted(set(_INDEX.decode(index.read_bytes()).weight_map.values())) if index.is_file() else [_WHOLE]


def _header(file: Path) -> Layout:
    """Names and shapes, from the JSON that precedes the data."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if length <= _LARGEST_HEADER else b""
    return {name: _TENSOR.decode(told).shape for name, told in _HEADER.decode(header).items() if name != "__metadata__"}


def refuse_others(new: Layout, known: Layout) -> None:
    """Raise ConfigError if `new` is of another model than `known`, but for an output layer that was tied before."""
    extra = {OUTPUT_LAYER} - known.keys()
    names = (known.keys() | new.keys()) - extra
    if wrong := sorted(name for name in names if known.get(name) != new.get(name)):
        shown = ", ".join(f"{name} {_shape(new.get(name))} for {_shape(known.get(name))}" for name in wrong[:3])
        raise ConfigError(f"these are weights of another model: {len(wrong)} tensors differ, such as {shown}")


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


async def verified(engine: Engine, weights: Weights) -> float:
    """How far the engine's log-probability is from the trainer's, in nats.

    Raises:
        WrongWeights: too far, or it cannot be found out.
    """
    try:
        difference = abs(await _logprob(engine, weights) - weights.logprob)
    except StepwellError as error:
        raise WrongWeights(f"whether the engine has version {weights.version} cannot be found out: {error}") from error
    if not difference <= weights.tolerance:
        raise WrongWeights(
            f"the engine does not compute what version {weights.version} does: the log-probability of token "
            f"{weights.token} differs by {difference:.3g} nats"
        )
    return difference


async def _logprob(engine: Engine, weights: Weights) -> float:
    """Of the token, by the engine; minus infinity if it is not among the likeliest."""
    request = Generation(
        prompt_ids=weights.prompt_ids,
        sampling=Sampling(temperature=1.0, max_tokens=1),
        top_logprobs=_CANDIDATES,
    )
    async with aclosing(engine.generate(request)) as chunks:
        tops = [top async for chunk in chunks for top in chunk.top]
    found: dict[int, float] = dict(tops[0]) if tops else {}
    return found.get(weights.token, float("-inf"))
