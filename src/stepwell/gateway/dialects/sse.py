"""Server-sent events in bytes, and JSON strings that no client's line splitter trips over."""

from typing import Final

from pydantic_core import to_json

COMMENT: Final = b": ping\n\n"
"""An event that every client ignores."""
DONE: Final = b"data: [DONE]\n\n"

# Legal inside a JSON string, but some clients split their lines at them.
_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def dump(value: object) -> bytes:
    """JSON on one line."""
    data = to_json(value)
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return data


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event; `name` is for APIs whose events have one."""
    return b"event: %b\ndata: %b\n\n" % (name, data) if name else b"data: %b\n\n" % data
