"""By what a conversation is recognised when a client sends it again, in its own way of writing.

Clients echo the whole history with each call, and none of them verbatim: call ids are renamed, arguments serialised
anew, reasoning dropped, null and "" exchanged. A *key* stands for a history up to such differences.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from stepwell.rendering.messages import Message, Tool

AnswerKey = tuple[str, tuple[tuple[str, str], ...]]
"""What stays the same when a client echoes an answer: stripped content, and name and parsed arguments of each call."""

_THROWAWAY: Final = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
"""Begins a message that its client adds to one request and leaves out of the next."""


def answer_key(answer: Message) -> AnswerKey:
    """By what an answer is recognised when it comes back; call ids are left out, because clients rename them."""
    if not answer.tool_calls:
        return answer.content.strip(), ()
    calls = tuple((call.name, _canonical(call.arguments)) for call in answer.tool_calls)
    return answer.content.strip(), calls


def history_keys(messages: Sequence[Message]) -> list[bytes]:
    """The keys of the first 0, 1, …, n messages: n + 1 of them."""
    keys = [b""]
    for message in messages:
        keys.append(extended_key(keys[-1], message))
    return keys


def extended_key(key: bytes, message: Message) -> bytes:
    """The key of the history of `key` with one more message."""
    if is_throwaway(message):
        return key
    content, calls = answer_key(message)
    texts = (message.role, content, *(part for call in calls for part in call))
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return blake2b(key + b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=16).digest()


def is_throwaway(message: Message) -> bool:
    """Whether the client will not send this message again."""
    return message.role == "user" and message.content.startswith(_THROWAWAY)


def tools_key(tools: Iterable[Tool]) -> bytes:
    """Equal for the same tools in the same order."""
    shapes = [(tool.name, tool.description, tool.parameters) for tool in tools]
    return blake2b(json.dumps(shapes).encode(), digest_size=16).digest() if shapes else b""


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()
