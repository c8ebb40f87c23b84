"""Models whose config says that they cannot be evaluated exactly, refused with the reason."""

from typing import Any, Final

from stepwell.errors import ConfigError

_SCALED_LOGITS: Final = ("logit_scale", "logits_scaling")
_LAYERS: Final = {"full_attention", "sliding_attention"}
"""Kinds of layers that keep nothing but keys and values of the past."""
_BATCH_ROPE: Final = {"dynamic", "longrope"}
"""Rotary embeddings that depend on the longest row of a forward pass, and so on what a row is packed with."""


def refuse_unsupported(config: Any) -> None:
    """Look at a transformers model's `config`.

    Raises:
        ConfigError: its context is unknown, it rescales logits, its layers carry a state, or its positions depend on
            the batch.
    """
    if not getattr(config, "max_position_embeddings", None):
        raise ConfigError("the model's config has no max_position_embeddings, so its context is not known")
    scaled = [name for name in _SCALED_LOGITS if getattr(config, name, None)]
    if scaled:
        raise ConfigError(f"models that rescale their logits ({', '.join(scaled)}) are not supported yet")
    stateful = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if stateful:
        raise ConfigError(
            f"this model has layers of the kind {', '.join(sorted(stateful))}, but only full and sliding-window "
            "attention are supported: others carry a state along the row, which rows that part cannot share by masking"
        )
    kinds = _rope_kinds(config)
    if kinds & _BATCH_ROPE:
        raise ConfigError(
            f"this model's rotary embeddings ({', '.join(sorted(kinds & _BATCH_ROPE))}) depend on the longest row of a "
            "batch, so no log-probability could be computed again; default, linear, llama3 and yarn are supported"
        )


def _rope_kinds(config: Any) -> set[str]:
    found: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    several = [found, *(value for value in found.values() if isinstance(value, dict))]
    return {str(kind) for each in several if (kind := each.get("rope_type") or each.get("type"))}
