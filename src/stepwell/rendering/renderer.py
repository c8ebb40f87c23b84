"""Messages to token ids and back, with a model's own tokenizer and chat template, without torch or transformers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from stepwell.errors import ConfigError, InvalidRequest
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.template import ChatTemplate
from stepwell.rendering.toolcalls import TOOL_FORMATS, HermesFormat, ParsedResponse, tool_schema
from stepwell.types import Ids

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class Renderer:
    """Renders conversations for one model; immutable, so safe to share between tasks and threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str,
        *,
        special_tokens: Mapping[str, str],
        eos_ids: Iterable[int],
        tool_format: str | None = None,
    ) -> None:
        """Use `tokenizer` and `chat_template`; `special_tokens` (`bos_token`, …) are the template's variables.

        Args:
            tokenizer: The model's tokenizer.
            chat_template: Jinja source.
            special_tokens: Name to text.
            eos_ids: Ids that end the assistant's turn.
            tool_format: A key of `TOOL_FORMATS`; None means `hermes`. A template that takes tools itself writes them
                itself under `hermes`.

        Raises:
            ConfigError: the template does not compile, or there is no such tool format.
        """
        if tool_format is not None and tool_format not in TOOL_FORMATS:
            raise ConfigError(f"there is no tool format {tool_format!r}; choose one of {', '.join(TOOL_FORMATS)}")
        self._tokenizer = tokenizer
        self._template = ChatTemplate(chat_template, special_tokens)
        self._format = TOOL_FORMATS[tool_format or "hermes"]
        self._native = self._template.takes_tools and isinstance(self._format, HermesFormat)
        self.eos_ids: Final = frozenset(eos_ids)

    @classmethod
    def from_directory(cls, path: Path | str, tool_format: str | None = None) -> "Renderer":
        """Load a model directory in Hugging Face's layout; its weights are not read.

        Raises:
            ConfigError: `tokenizer.json` or the chat template is missing or broken.
        """
        directory = Path(path)
        settings = _read_json(directory / "tokenizer_config.json")
        tokenizer = _load_tokenizer(directory / "tokenizer.json")
        special_tokens = _special_tokens(settings)
        return cls(
            tokenizer,
            _chat_template(directory, settings),
            special_tokens=special_tokens,
            eos_ids=_eos_ids(directory, tokenizer, special_tokens),
            tool_format=tool_format,
        )

    def text(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The conversation as the model reads it, up to where the assistant's turn begins.

        Raises:
            InvalidRequest: the chat template refuses the conversation.
        """
        if self._native:
            schemas = [tool_schema(tool) for tool in tools]
            return self._template.render([_template_message(message) for message in messages], schemas or None)
        written = self._format.write(messages, tools)
        return self._template.render([_template_message(message) for message in written], None)

    def encode(self, text: str) -> Ids:
        """int32 [P]: token ids of text in which special tokens are written out.

        Raises:
            InvalidRequest: the text holds a lone surrogate, which no tokenizer can encode.
        """
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(f"the text is not valid Unicode: {error}") from error
        return np.array(ids, np.int32)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Ids:
        """int32 [P]: the prompt for the assistant's next turn. Raises InvalidRequest as `text` does."""
        return self.encode(self.text(messages, tools))

    def decode(self, ids: Sequence[int] | Ids, skip_special: bool = True) -> str:
        """The text of token ids, without special tokens if `skip_special`."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def decoder(self) -> "IncrementalDecoder":
        """A fresh decoder for tokens that arrive one after the other."""
        return IncrementalDecoder(self._tokenizer)

    def raw_answer(self, response_ids: Sequence[int] | Ids) -> str:
        """What was sampled, special tokens included, without the end-of-turn token that the template writes itself."""
        ends = len(response_ids) > 0 and int(response_ids[-1]) in self.eos_ids
        return self.decode(response_ids[:-1] if ends else response_ids, skip_special=False)

    def parse(self, response_ids: Sequence[int] | Ids, tools: Sequence[Tool] = ()) -> ParsedResponse:
        """Content and tool calls of a sampled response; without tools everything is content."""
        return self.parse_text(self.decode(response_ids), tools)

    def parse_text(self, text: str, tools: Sequence[Tool] = ()) -> ParsedResponse:
        """`parse` for a response whose text is already decoded."""
        return self._format.parse(text, tools) if tools else ParsedResponse(content=text)

    def plain_length(self, text: str, tools: Sequence[Tool] = ()) -> int:
        """How many characters of a response that begins with `text` are certainly content, not a tool call."""
        return self._format.plain_length(text, tools) if tools else len(text)


class IncrementalDecoder:
    """Token ids in, text out as early as possible.

    Laws: the pieces, `finish()` included, concatenate to the decoding of all ids; no piece ends inside a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start before the first token."""
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens since the last-but-one piece: context for decoders that look back
        self._sent = 0  # tokens of the window whose text was handed out

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        self._window.extend(ids)
        text = self._tail()
        if text.endswith(_REPLACEMENT) or self._ends_in_byte():
            return ""
        del self._window[: self._sent]
        self._sent = len(self._window)
        return text

    def finish(self) -> str:
        """What was held back: an incomplete character, as U+FFFD."""
        text = self._tail()
        self._sent = len(self._window)
        return text

    def _tail(self) -> str:
        before = self._tokenizer.decode(self._window[: self._sent], skip_special_tokens=True)
        return self._tokenizer.decode(self._window, skip_special_tokens=True)[len(before) :]

    def _ends_in_byte(self) -> bool:
        # Byte-fallback vocabularies decode a run of byte tokens as a whole, so its text is known only after the run.
        token = self._tokenizer.id_to_token(self._window[-1]) if self._window else None
        return token is not None and len(token) == 6 and token.startswith("<0x")


def _template_message(message: Message) -> dict[str, Any]:
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shape["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _parsed_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = message.tool_call_id
    return shape


def _parsed_arguments(arguments: str) -> object:
    # Templates write arguments with `tojson`, which would quote a string a second time.
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _load_tokenizer(path: Path) -> Tokenizer:
    if not path.exists():
        raise ConfigError(f"{path} is missing: the model directory needs a fast tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare `Exception`
        raise ConfigError(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"{directory} has no chat template: it needs chat_template.jinja, or `chat_template` in "
            "tokenizer_config.json"
        )
    return template


def _eos_ids(directory: Path, tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> set[int]:
    name = "eos_token_id"
    generation, model = _read_json(directory / "generation_config.json"), _read_json(directory / "config.json")
    value = generation.get(name, model.get(name))
    ids = set(value) if isinstance(value, list) else {value}
    ids.add(tokenizer.token_to_id(special_tokens.get("eos_token", "")))
    return {i for i in ids if isinstance(i, int)}
