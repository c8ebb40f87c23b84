"""What an adapted policy has learnt, by itself: a few megabytes that others load onto the model they have."""

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from stepwell.errors import ConfigError
from stepwell.policy.model import Policy
from stepwell.policy.placing import placed
from stepwell.policy.shards import whole


def export_adapter(policy: Policy, target: Path) -> None:
    """Write the adapters in the format of the peft library, whole or not at all. All ranks call it, the first writes.

    Raises:
        ConfigError: the policy has none.
    """
    configs: dict[str, Any] = getattr(policy.model, "peft_config", {})
    if not configs:
        raise ConfigError("the policy has no adapters; set policy.lora, or export the whole model")
    ((own, config),) = configs.items()
    tensors = {_name(name, own): whole(tensor).cpu().contiguous() for name, tensor in policy.model_state().items()}
    if policy.ranks.rank == 0:
        told = copy.copy(config)
        told.target_modules = {name.rpartition(".")[2] for name in config.target_modules}
        with placed(target) as folder:
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            told.save_pretrained(folder)


def _name(name: str, adapter: str) -> str:
    """As a file has it: below the model that is adapted, and without the adapter's name."""
    return f"base_model.{name.replace(f'.{adapter}.', '.')}"
