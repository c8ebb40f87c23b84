"""The list of models, in one shape that the SDKs of OpenAI and of Anthropic both read."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stepwell.gateway.dialects.sse import dump


def model_entry(name: str, context_length: int, created: int = 0) -> dict[str, Any]:
    """What is told of one model.

    Args:
        name: Under which it is served.
        context_length: Most tokens of prompt and answer together.
        created: Unix time in seconds.
    """
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "stepwell",
        "max_model_len": context_length,
        "type": "model",
        "display_name": name,
        "max_input_tokens": context_length,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }


def model_json(entry: dict[str, Any]) -> bytes:
    """The body of `GET /models/{name}`."""
    return dump(entry)


def models_json(entries: Sequence[dict[str, Any]]) -> bytes:
    """The body of `GET /models`: everything on one page."""
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return dump({"object": "list", "data": list(entries), "has_more": False, "first_id": first, "last_id": last})
