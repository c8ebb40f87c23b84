"""A response's request, understood."""

from typing import Any, Final

from stepwell.gateway.dialects.base import ChatCall
from stepwell.gateway.dialects.fields import Fields, invalid
from stepwell.gateway.dialects.openai import HARMLESS, offered, tool_choice
from stepwell.gateway.dialects.requests import (
    asks_title,
    limit_of,
    refuse,
    sampled,
    schema_asked,
    schema_of,
    seed_of,
    stops,
)
from stepwell.gateway.dialects.responses.items import Conversation, step_of
from stepwell.gateway.dialects.responses.kept import Kept

_HARMLESS: Final = {**HARMLESS, "background": (False,), "conversation": (), "prompt": ()}
_MOST_LOGPROBS: Final = 20


def parse(body: object, raw: bytes) -> ChatCall:
    """Understand a request. Raises InvalidRequest."""
    fields = Fields(body)
    refuse(fields, _HARMLESS)
    named = list(offered(fields.children("tools")))
    tools, choice = tool_choice(fields, tuple(tool for _, tool in named))
    previous = fields.text("previous_response_id")
    previous_id = step_of(previous, fields.place("previous_response_id")) if previous else ""
    conversation = _conversation(fields, continues=bool(previous_id))
    text = fields.child("text")
    shape = text.child("format") if text else None
    top_logprobs = fields.integer("top_logprobs", 0, _MOST_LOGPROBS) or 0
    include = fields.items("include")
    return ChatCall(
        dialect="responses",
        model=fields.name("model"),
        messages=tuple(conversation.messages),
        previous_id=previous_id,
        recalled=tuple(conversation.recalled),
        tools=tools,
        tool_choice=choice,
        **sampled(fields),
        seed=seed_of(fields),
        max_tokens=limit_of(fields, "max_output_tokens"),
        stop=stops(fields, "stop"),
        json_schema=schema_of(shape),
        template_options=_template_options(fields),
        stream=fields.flag("stream"),
        include_usage=True,
        logprobs=top_logprobs > 0 or "message.output_text.logprobs" in include,
        top_logprobs=top_logprobs,
        titled=asks_title(schema_asked(shape), tools, tuple(conversation.messages)),
        body=raw,
        kept=Kept(
            echo=_echo(fields),
            namespaces={tool.name: namespace for namespace, tool in named if namespace},
            summary=_wants_summary(fields),
            encrypted="reasoning.encrypted_content" in include,
        ),
    )


def _conversation(fields: Fields, *, continues: bool) -> Conversation:
    conversation = Conversation()
    instructions = fields.text("instructions")
    if instructions:
        conversation.say("system", instructions)
    given = fields.get("input")
    if isinstance(given, str):
        conversation.say("user", given)
    else:
        for item in fields.children("input"):
            conversation.add(item)
    conversation.close()
    if not conversation.messages and not continues:
        raise invalid(fields.place("input"), "must hold at least one item")
    return conversation


def _template_options(fields: Fields) -> dict[str, object]:
    reasoning = fields.child("reasoning")
    effort = reasoning.text("effort") if reasoning else None
    options: dict[str, object] = {"reasoning_effort": effort} if effort else {}
    if effort == "none":
        options["enable_thinking"] = False
    return {**options, **fields.mapping("chat_template_kwargs")}


def _wants_summary(fields: Fields) -> bool:
    reasoning = fields.child("reasoning")
    return reasoning is not None and (reasoning.has("summary") or reasoning.has("generate_summary"))


def _echo(fields: Fields) -> dict[str, Any]:
    # What the answer repeats of the request, with the original's defaults.
    defaults: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
    return {name: fields.get(name) if fields.has(name) else default for name, default in defaults.items()}
