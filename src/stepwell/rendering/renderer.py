"""Messages to token ids and back, with a model's own tokenizer and chat template, without torch or transformers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from stepwell.errors import ConfigError, InvalidRequest
from stepwell.rendering.decoding import ByteDecoder, IncrementalDecoder, Vocabulary, WindowDecoder
from stepwell.rendering.encoding import Encoder
from stepwell.rendering.formats import TOOL_FORMATS, find_tool_format
from stepwell.rendering.formats.base import Forced
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import ReplyParser
from stepwell.rendering.source import PieceParser, Reading, Source
from stepwell.rendering.template import ChatTemplate
from stepwell.rendering.thinking import find_thinking
from stepwell.rendering.wire import tool_to_json
from stepwell.types import Ids

_NO_OPTIONS: Final[Mapping[str, Any]] = {}


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
            tool_format: A key of `TOOL_FORMATS`; None takes the one whose marks are in the template or among the added
                tokens, else `hermes`. A template that takes tools itself writes them itself, except under `line`.

        Raises:
            ConfigError: the template does not compile, or there is no such tool format.
        """
        if tool_format is not None and tool_format not in TOOL_FORMATS:
            raise ConfigError(f"there is no tool format {tool_format!r}; choose one of {', '.join(TOOL_FORMATS)}")
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self.tool_format: Final = tool_format or find_tool_format(chat_template, "".join(added))
        self.eos_ids: Final = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._template = ChatTemplate(chat_template, special_tokens)
        self._format = TOOL_FORMATS[self.tool_format]
        self._native = self._template.takes_tools and self._format.native
        self._thinking = find_thinking(chat_template, frozenset(added))
        self._takes_reasoning = "reasoning_content" in chat_template or self.tool_format == "harmony"
        thinking_marks = (self._thinking.open, self._thinking.close) if self._thinking else ()
        self._encoder = Encoder(tokenizer)
        self._vocabulary = Vocabulary(tokenizer, kept={*self._format.marks, *thinking_marks})
        self.vocabulary_size: Final = max(tokenizer.get_vocab().values(), default=-1) + 1

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

    def text(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: Mapping[str, Any] = _NO_OPTIONS
    ) -> str:
        """The conversation as the model reads it, up to where the assistant's turn begins.

        `options` are further variables of the chat template, such as `enable_thinking`; those that it does not know
        change nothing. Reasoning is shown to models that reason; what becomes of older reasoning the template decides.

        Raises:
            InvalidRequest: the chat template refuses the conversation.
        """
        written = messages if self._native else self._format.write(messages, tools)
        schemas = [tool_to_json(tool) for tool in tools] if self._native else []
        return self._template.render([self._shape(message) for message in written], schemas or None, options)

    def encode(self, text: str) -> Ids:
        """int32 [P]: token ids of text in which special tokens are written out.

        Long texts take milliseconds, but in a thread of their own hold nobody else up.

        Raises:
            InvalidRequest: the text holds a lone surrogate, which no tokenizer can encode.
        """
        return self._encoder.encode(text)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Ids:
        """int32 [P]: the prompt for the assistant's next turn. Raises InvalidRequest as `text` does."""
        return self.encode(self.text(messages, tools))

    def decode(self, ids: Sequence[int] | Ids, skip_special: bool = True) -> str:
        """The text of token ids, without special tokens if `skip_special`."""
        if not skip_special and self._vocabulary.byte_level:
            return b"".join(map(self._vocabulary.bytes.__getitem__, np.asarray(ids).tolist())).decode(errors="replace")
        return self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=skip_special)

    def decoder(self) -> IncrementalDecoder:
        """A fresh decoder for a reply's tokens, which arrive one after the other.

        Special tokens that mark calls or reasoning are part of the text; all others, the end of turn too, are not.
        """
        return ByteDecoder(self._vocabulary) if self._vocabulary.byte_level else WindowDecoder(self._vocabulary)

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, special ones written out; none if there is no such token."""
        return self._vocabulary.token_bytes(token_id)

    def parser(self, tools: Sequence[Tool] = (), prompt_end: str = "") -> ReplyParser:
        """A fresh parser for a reply's text; without tools nothing is a call.

        `prompt_end`: the end of the prompt, or all of it, which tells whether the template began the reasoning itself.
        """
        return PieceParser(partial(self._read, tools=tools, prompt_end=prompt_end))

    def forced(self, tools: Sequence[Tool], name: str = "", prompt_end: str = "") -> Forced:
        """How an answer begins that is certainly a call of the tool `name`, or, without one, of any.

        The answer's parser is fed the prefix first. `prompt_end` is that of `parser`: reasoning is over before a call.

        Raises:
            InvalidRequest: there is no such tool, or calls cannot be forced in this model's tool format.
        """
        chosen = [tool for tool in tools if name in ("", tool.name)]
        if not chosen:
            raise InvalidRequest(
                f"the tool {name!r} cannot be called, since it is not among the tools that are offered"
            )
        forced = self._format.forced(chosen)
        if self._thinking and self._thinking.is_open(prompt_end):
            return replace(forced, prefix=f"\n{self._thinking.close}\n\n{forced.prefix}")
        return forced

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool] = ()) -> str:
        """The text by which this model would have made these calls: `parser` reads it back."""
        return self._format.write_calls(calls, tools)

    @property
    def thinking_marks(self) -> tuple[str, str] | None:
        """What comes before and after reasoning in a reply; None for a model that does not reason."""
        return (self._thinking.open, self._thinking.close) if self._thinking else None

    def _read(self, source: Source, tools: Sequence[Tool], prompt_end: str) -> Reading[None]:
        if self._thinking:
            yield from self._thinking.read(source, self._thinking.is_open(prompt_end))
        yield from self._format.read(source, tools)

    def _shape(self, message: Message) -> dict[str, Any]:
        if message.reasoning and not self._takes_reasoning:
            content = message.content
            if self._thinking:
                content = self._thinking.inline(message.reasoning, content)
            message = replace(message, reasoning="", content=content)
        return self._format.shape(message)


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
