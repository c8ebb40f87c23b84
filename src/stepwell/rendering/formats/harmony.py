"""gpt-oss's harmony: every message has a channel, and a tool call is a message with a recipient.

`analysis` is reasoning, `commentary` and `final` are text. A header that is never followed by its message is text.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from stepwell.rendering.formats.base import Forced, ToolFormat, arguments_schema, template_shape
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import ReasoningPiece, TextPiece
from stepwell.rendering.source import Marks, Reading, Source

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_END: Final = "<|end|>"
_CALL: Final = "<|call|>"
_RETURN: Final = "<|return|>"
_FUNCTIONS: Final = "functions."

_HEADERS: Final = (_START, _CHANNEL, _MESSAGE)
_BETWEEN: Final = Marks(*_HEADERS, _END, _CALL, _RETURN)
_RECIPIENT: Final = re.compile(r"to=([^\s<]+)")
_LONGEST_HEADER: Final = 512


class HarmonyFormat(ToolFormat):
    """See the module."""

    name = "harmony"
    marks = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN)
    instruction = "Call them in the commentary channel, with the recipient functions.NAME and arguments as JSON."

    def shape(self, message: Message) -> dict[str, Any]:
        """See `ToolFormat`. The template calls reasoning `thinking`."""
        shape = template_shape(message)
        if message.reasoning:
            shape["thinking"] = shape.pop("reasoning_content")
        return shape

    def write_calls(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:  # noqa: ARG002
        """See `ToolFormat`."""
        return f"{_START}assistant".join(f"{_head(call.name)}{call.arguments}{_CALL}" for call in calls)

    def read(self, source: Source, tools: Sequence[Tool]) -> Reading[None]:
        """See `ToolFormat`. Without tools, a message to a recipient is text."""
        yield from source.skip_space()
        mark = yield from source.accept("to=")  # the prompt has the beginning of the header
        if not mark:
            source.refuse()
            mark = yield from source.prose(_BETWEEN)
        while mark:
            if mark in (_END, _CALL, _RETURN):
                source.turn()
            elif (yield from _read_header(source)):
                mark = yield from _read_body(source, bool(tools))
                continue
            else:
                source.refuse()
            mark = yield from source.prose(_BETWEEN)

    def forced(self, tools: Sequence[Tool]) -> Forced:
        """See `ToolFormat`."""
        tool = self._only(tools)
        return Forced(prefix=_head(tool.name), json_schema=json.dumps(arguments_schema(tool)))


def _head(name: str) -> str:
    return f"{_CHANNEL}commentary to={_FUNCTIONS}{name} {_CONSTRAIN}json{_MESSAGE}"


def _read_header(source: Source) -> Reading[bool]:
    """Read on until the message begins, but not for good; False if it does not."""
    while True:
        end = source.text.find(_MESSAGE)
        if 0 <= end <= _LONGEST_HEADER:
            source.at = end + len(_MESSAGE)
            return True
        if len(source.text) > _LONGEST_HEADER + len(_MESSAGE) or not (yield from source.more()):
            return False


def _read_body(source: Source, calls: bool) -> Reading[str]:
    """Read the message whose header has been read; the mark that ended it."""
    header = source.text[: source.at]
    recipient = _RECIPIENT.search(header)
    if recipient and calls:
        source.open_call(recipient[1].removeprefix(_FUNCTIONS))
        mark = yield from source.copy(_BETWEEN, source.argue)
        source.close_call()
        return mark
    source.turn()
    analysis = f"{_CHANNEL}analysis" in header.replace(" ", "")
    return (yield from source.prose(_BETWEEN, ReasoningPiece if analysis else TextPiece))
