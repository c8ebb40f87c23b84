"""What samples tokens, and the table of what runs elsewhere; the local engine needs a policy and is made by hand."""

from collections.abc import Mapping
from typing import Final

from stepwell.engines.openai import OpenAIConfig
from stepwell.engines.served import ServedConfig
from stepwell.engines.sglang import SGLangConfig
from stepwell.engines.vllm import VLLMConfig

ENGINES: Final[Mapping[str, type[ServedConfig]]] = {
    "openai": OpenAIConfig,
    "sglang": SGLangConfig,
    "vllm": VLLMConfig,
}
"""The engines by the name that `stepwell serve --engine` takes."""
