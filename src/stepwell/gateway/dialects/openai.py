"""What OpenAI's three chat APIs share: parameters that cannot be honoured, tools, log-probabilities, token counts."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stepwell.gateway.dialects.base import Answer, Token, ToolChoice
from stepwell.gateway.dialects.fields import Fields, compact_json, invalid
from stepwell.gateway.dialects.requests import chosen, parameters_of
from stepwell.gateway.dialects.sse import dump
from stepwell.rendering.messages import Tool, ToolCall

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": ({},),
}
"""Known parameters, also of servers that people come from, with the values that change nothing."""

_LEAST_LOGPROB: Final = -9999.0


def offered(tools: Iterator[Fields], prefix: str = "") -> Iterator[tuple[str, Tool]]:
    """Functions among the tools with the namespace of each; others are left out: clients list tools of the server's own
    for servers that have them."""
    for tool in tools:
        kind = tool.text("type") or "function"
        if kind == "namespace":
            name = tool.name("name")
            yield from offered(tool.children("tools"), name)
        elif kind == "function":
            yield prefix, _tool(tool.child("function") or tool, prefix)


def _tool(function: Fields, prefix: str) -> Tool:
    return Tool(
        name=flat_name(prefix, function.name("name")),
        description=function.text("description") or "",
        parameters=parameters_of(function, "parameters"),
    )


def flat_name(namespace: str, name: str) -> str:
    """The name under which the policy sees a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that `tool_choice` leaves and how they must be used. Raises InvalidRequest."""
    parallel = fields.flag("parallel_tool_calls", default=True)
    value = fields.get("tool_choice")
    if not isinstance(value, dict):
        return _by_mode(fields.text("tool_choice"), tools, fields.place("tool_choice"), parallel=parallel)
    choice = Fields(value, fields.place("tool_choice"))
    kind = choice.text("type")
    if kind == "function":
        name = (choice.child("function") or choice).name("name")
        return tools, chosen(tools, choice.place("name"), name=name, parallel=parallel)
    if kind == "allowed_tools":
        allowed = choice.child("allowed_tools") or choice
        names = {(tool.child("function") or tool).text("name") for tool in allowed.children("tools")}
        left = tuple(tool for tool in tools if tool.name in names)
        return _by_mode(allowed.text("mode"), left, allowed.place("mode"), parallel=parallel)
    raise invalid(choice.place("type"), f"{kind!r} forces a tool that this server does not have; only functions can be")


def _by_mode(
    mode: str | None, tools: tuple[Tool, ...], place: str, *, parallel: bool
) -> tuple[tuple[Tool, ...], ToolChoice]:
    match mode:
        case None | "auto":
            return tools, ToolChoice(parallel=parallel)
        case "none":
            return (), ToolChoice()
        case "required":
            return tools, chosen(tools, place, parallel=parallel)
        case _:
            raise invalid(place, f"must be none, auto, required or an object, got {mode!r}")


def echoed_call(call_id: str, function: Fields, namespace: str = "") -> ToolCall:
    """A function call that the client sends back; some clients send the arguments as an object."""
    arguments = function.get("arguments")
    text = compact_json(arguments) if isinstance(arguments, dict) else function.text("arguments")
    return ToolCall(id=call_id, name=flat_name(namespace, function.name("name")), arguments=text or "")


def token_shapes(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities."""
    return [{**_token(token), "top_logprobs": [_token(other) for other in token.top]} for token in tokens]


def _token(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": list(token.data)}


def finite(logprob: float) -> float:
    """A log-probability as JSON can say it."""
    return max(logprob, _LEAST_LOGPROB)


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Token counts of a completion: its prompt counts once, however many choices it has."""
    prompt = len(answers[0].step.prompt_ids)
    completion = sum(len(answer.step.response_ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
    }


def completion_head(prefix: str, kind: str, step_id: str, model: str, created: int) -> dict[str, Any]:
    """What every completion and every chunk of one begins with."""
    return {"id": f"{prefix}-{step_id}", "object": kind, "created": created, "model": model}


def open_json(shape: dict[str, Any]) -> bytes:
    """An object's JSON without its closing brace, so that more can follow."""
    return dump(shape)[:-1]
