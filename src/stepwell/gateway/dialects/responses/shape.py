"""The shapes of a response and of its items, the same whether it is streamed or not."""

from typing import Any, Literal

from stepwell.gateway.dialects.base import Answer, ChatCall
from stepwell.gateway.dialects.openai import token_shapes
from stepwell.gateway.dialects.responses.items import seal
from stepwell.gateway.dialects.responses.kept import Kept, kept_of
from stepwell.gateway.dialects.sse import dump
from stepwell.rendering.messages import ToolCall

Status = Literal["in_progress", "completed", "incomplete"]


def whole(call: ChatCall, answer: Answer) -> bytes:
    """The answer of a call that is not streamed."""
    kept = kept_of(call)
    step, message = answer.step, answer.message
    status = end_status(answer)
    items = []
    if message.reasoning:
        cut: Status = "completed" if message.content or message.tool_calls else status
        items.append(reasoning_item(kept, item_id("rs", step.id), message.reasoning, cut))
    if message.content or not (message.reasoning or message.tool_calls):
        cut = "completed" if message.tool_calls else status
        items.append(message_item(item_id("msg", step.id), message.content, token_shapes(answer.tokens), cut))
    items += [
        call_item(kept, call_id(step.id, index), tool_call, "completed")
        for index, tool_call in enumerate(message.tool_calls)
    ]
    return dump(response(call, step.id, int(step.created_at), items, answer))


def end_status(answer: Answer) -> Status:
    """How the last of an answer's items ended, and the answer with it."""
    return "incomplete" if answer.end == "length" else "completed"


def response(
    call: ChatCall, step_id: str, created: int, items: list[dict[str, Any]], answer: Answer | None
) -> dict[str, Any]:
    """The response as a whole; without an answer it is in progress."""
    cut = answer is not None and answer.end == "length"
    return {
        "id": f"resp_{step_id}",
        "object": "response",
        "created_at": created,
        "status": end_status(answer) if answer else "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": call.model,
        "output": items,
        **kept_of(call).echo,
        "usage": _usage(answer) if answer else None,
    }


def item_id(prefix: str, step_id: str, index: int = 0) -> str:
    """The id of a step's item; a later one of the same kind has its index at the end."""
    return f"{prefix}_{step_id}_{index}" if index else f"{prefix}_{step_id}"


def call_id(step_id: str, index: int) -> str:
    """The id of the item of a step's tool call."""
    return f"fc_{step_id}_{index}"


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said, as the one part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_part(kept: Kept, text: str) -> dict[str, Any]:
    """What is thought, as the one part of a reasoning item."""
    return {"type": "summary_text" if kept.summary else "reasoning_text", "text": text}


def message_item(name: str, text: str | None, logprobs: list[dict[str, Any]], status: Status) -> dict[str, Any]:
    """A message; `text` is None while it has no part yet."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(kept: Kept, name: str, text: str | None, status: Status) -> dict[str, Any]:
    """Reasoning; `text` is None while it has no part yet."""
    parts = [] if text is None else [reasoning_part(kept, text)]
    item: dict[str, Any] = {"id": name, "type": "reasoning", "summary": parts if kept.summary else []}
    if not kept.summary:
        item["content"] = parts
    if kept.encrypted:
        item["encrypted_content"] = None if text is None else seal(text)
    return {**item, "status": status}


def call_item(kept: Kept, name: str, call: ToolCall, status: Status) -> dict[str, Any]:
    """A function call."""
    item = {"id": name, "type": "function_call", "status": status, "call_id": call.id, "arguments": call.arguments}
    namespace = kept.namespaces.get(call.name)
    if namespace:
        return {**item, "namespace": namespace, "name": call.name.removeprefix(f"{namespace}__")}
    return {**item, "name": call.name}


def _usage(answer: Answer) -> dict[str, Any]:
    given, made = len(answer.step.prompt_ids), len(answer.step.response_ids)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": given + made,
    }
