"""How tools, calls and results are written in the prompt and read back from a reply: one file per family of models."""

# ruff: noqa: RUF001 - DeepSeek's marks have full-width bars

from typing import Final

from stepwell.rendering.formats.base import ToolFormat
from stepwell.rendering.formats.deepseek import DeepseekFormat, DeepseekV31Format
from stepwell.rendering.formats.glm import GlmFormat
from stepwell.rendering.formats.harmony import HarmonyFormat
from stepwell.rendering.formats.hermes import HermesFormat
from stepwell.rendering.formats.line import LineFormat
from stepwell.rendering.formats.llama3_json import Llama3JsonFormat
from stepwell.rendering.formats.mistral import MistralArgsFormat, MistralFormat
from stepwell.rendering.formats.qwen_xml import QwenXmlFormat

TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    "hermes": HermesFormat(),
    "qwen_xml": QwenXmlFormat(),
    "llama3_json": Llama3JsonFormat(),
    "mistral": MistralFormat(),
    "mistral_args": MistralArgsFormat(),
    "deepseek": DeepseekFormat(),
    "deepseek_v31": DeepseekV31Format(),
    "glm": GlmFormat(),
    "harmony": HarmonyFormat(),
    "line": LineFormat(),
}

_SIGNS: Final = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("glm", ("<arg_key>",)),
    ("qwen_xml", ("<tool_call>", "<function=")),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("hermes", ("<tool_call>",)),
)
"""What betrays each format, the more special ones first: all of these texts."""


def find_tool_format(template: str, vocabulary: str) -> str:
    """The name of a model's tool format: the first whose signs are in its chat template, else among its added tokens.

    The template comes first, since models keep the vocabulary of the one that they were made from. `hermes` if there
    are no signs. `vocabulary`: the added tokens, joined.
    """
    for text in (template, vocabulary):
        for name, signs in _SIGNS:
            if all(sign in text for sign in signs):
                return name
    return "hermes"
