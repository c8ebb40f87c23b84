"""The OpenAPI document: what the framework knows of its own routes, and, by hand, those that it does not know.

The routes for agents are plain ASGI endpoints and exist below several base URLs, so each stands once in the document,
with these base URLs as its servers. Their bodies are described as far as the gateway looks at them; the rest is in the
documentation of the API that each of them is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from stepwell.gateway.ingest.feed_wire import SENT
from stepwell.gateway.ingest.feedback import EventWire, FeedbackWire
from stepwell.gateway.ingest.views import ErrorAnswer
from stepwell.gateway.ingest.wire import (
    CurationWire,
    EndWire,
    GroupWire,
    RewardWire,
    SessionWire,
    StepWire,
    TrajectoryWire,
)

_Shape = dict[str, Any]
_REF: Final = "#/components/schemas/"
_RECORDS: Final = (GroupWire, TrajectoryWire, StepWire, RewardWire, CurationWire, EndWire, SessionWire)
_SENT: Final = (*_RECORDS, FeedbackWire, EventWire, *SENT)
_ERRORS: Final = {
    "400": "The request is wrong; the message names the field and the remedy.",
    "401": "No key, or one that is not known here.",
    "403": "The key lacks the scope that this route needs.",
    "404": "What the request names is not here.",
    "405": "This method is not for this path.",
    "408": "The body did not arrive in time.",
    "409": "It contradicts a stored fact.",
    "413": "The body is too large.",
    "429": "Too many calls, or the key's quota is used up; Retry-After says when to try again.",
    "500": "The gateway failed; its log says why.",
    "503": "Paused, draining, or the engine failed; Retry-After may say when to try again.",
    "504": "The engine did not answer in time.",
    "507": "The pool could not store or read.",
}
_DESCRIPTION: Final = """One port serves a model to agents in four dialects, records every step, takes what other
programs recorded, and is operated. Routes for agents exist below `/v1`, `/` and `/t/{trajectory}/v1`, where the path
names the trajectory that the calls belong to."""


def documented(app: FastAPI) -> Callable[[], _Shape]:
    """What `app.openapi` is to be: the whole document, made once."""

    def document() -> _Shape:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return document


def _document(app: FastAPI) -> _Shape:
    shape = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
    schemas = shape.setdefault("components", {}).setdefault("schemas", {})
    sent = [(model, "validation") for model in (*_SENT, ErrorAnswer)]
    schemas.update(models_json_schema(sent, ref_template=_REF + "{model}")[1]["$defs"])  # type: ignore[arg-type]
    schemas["AnthropicError"] = _ANTHROPIC_ERROR
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for item in shape["paths"].values():
        for operation in item.values():
            _add_errors(operation, "ErrorAnswer")
    shape["paths"].update(_agent_paths())
    shape["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    shape["security"] = [{"key": []}, {}]
    return shape


def _add_errors(operation: _Shape, error: str) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # our errors for that are 400
    content = {"application/json": {"schema": {"$ref": _REF + error}}}
    for status, description in _ERRORS.items():
        responses.setdefault(status, {"description": description, "content": content})


def _agent_paths() -> Iterator[tuple[str, _Shape]]:
    for path, operations in _PATHS.items():
        item: _Shape = {"servers": _SERVERS}
        for method, operation in operations.items():
            item[method] = operation | {"tags": ["call models"], "responses": dict(operation["responses"])}
            _add_errors(item[method], "AnthropicError" if path.startswith("/messages") else "ErrorAnswer")
        yield path, item


_TRAJECTORY: Final = {"trajectory": {"default": "run-1", "description": "Trajectory that calls belong to."}}
_SERVERS: Final[Sequence[_Shape]] = [
    *({"url": url} for url in ("/v1", "/", "/v1/v1")),
    *({"url": f"/t/{{trajectory}}{end}", "variables": _TRAJECTORY} for end in ("/v1", "", "/v1/v1")),
]
_ANTHROPIC_ERROR: Final[_Shape] = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}


def _object(required: str = "", **properties: _Shape) -> _Shape:
    return {"type": "object", "properties": properties, "required": required.split()}


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_LIST: Final = {"type": "array"}
_MODEL: Final = {"type": "string", "description": "The served model's name, or an alias of it."}
_SAMPLING: Final[_Shape] = {
    "model": _MODEL,
    "stream": _FLAG,
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}
_HELLO: Final = [{"role": "user", "content": "hello"}]


def _call(summary: str, request: _Shape, example: _Shape, answer: _Shape, *, streams: bool = True) -> _Shape:
    content: _Shape = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": _TEXT}
    headers = {
        name: {"schema": _TEXT}
        for name in ("x-stepwell-step", "x-stepwell-trajectory", "x-stepwell-policy-version")
        if streams
    }
    body = {"required": True, "content": {"application/json": {"schema": request, "example": example}}}
    answered = {"description": "The answer.", "content": content, "headers": headers}
    return {"post": {"summary": summary, "requestBody": body, "responses": {"200": answered}}}


def _read(summary: str, answer: _Shape, *parameters: _Shape) -> _Shape:
    content = {"application/json": {"schema": answer}}
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": {"description": "Found.", "content": content}},
    }


def _probe(method: str, summary: str) -> _Shape:
    return {method: {"summary": summary, "responses": {"200": {"description": "It runs."}}}}


_ENTRY: Final = _object("id object", id=_TEXT, object=_TEXT, max_model_len=_COUNT)
_PATHS: Final[dict[str, _Shape]] = {
    "/chat/completions": _call(
        "OpenAI's chat completions",
        _object("model messages", messages={**_LIST, "minItems": 1}, tools=_LIST, **_SAMPLING),
        {"model": "smollm2-135m", "messages": _HELLO},
        _object("id object choices usage", id=_TEXT, object=_TEXT, choices=_LIST, usage=_object()),
    ),
    "/completions": _call(
        "OpenAI's completions, of a text or of token ids",
        _object("model prompt", prompt={"anyOf": [_TEXT, {**_LIST, "items": _COUNT}]}, **_SAMPLING),
        {"model": "smollm2-135m", "prompt": "Once upon"},
        _object("id object choices usage", id=_TEXT, object=_TEXT, choices=_LIST, usage=_object()),
    ),
    "/responses": _call(
        "OpenAI's responses; a websocket is refused with 426, so that clients use HTTP",
        _object("model", input={"anyOf": [_TEXT, _LIST]}, previous_response_id=_TEXT, tools=_LIST, **_SAMPLING),
        {"model": "smollm2-135m", "input": "hello"},
        _object("id object output usage", id=_TEXT, object=_TEXT, output=_LIST, usage=_object()),
    ),
    "/messages": _call(
        "Anthropic's messages",
        _object("model messages", messages={**_LIST, "minItems": 1}, max_tokens=_COUNT, tools=_LIST, **_SAMPLING),
        {"model": "smollm2-135m", "max_tokens": 64, "messages": _HELLO},
        _object("id type content usage", id=_TEXT, type=_TEXT, content=_LIST, usage=_object()),
    ),
    "/messages/count_tokens": _call(
        "Length of a prompt in tokens; nothing is sampled or stored",
        _object("model messages", model=_MODEL, messages={**_LIST, "minItems": 1}, tools=_LIST),
        {"model": "smollm2-135m", "messages": _HELLO},
        _object("input_tokens", input_tokens=_COUNT),
        streams=False,
    ),
    "/tokenize": _call(
        "Length of a chat completion's prompt in tokens, as vLLM tells it; nothing is sampled or stored",
        _object("model messages", model=_MODEL, messages={**_LIST, "minItems": 1}, tools=_LIST),
        {"model": "smollm2-135m", "messages": _HELLO},
        _object("count", count=_COUNT),
        streams=False,
    ),
    "/embeddings": _call(
        "Embeddings, passed through to the server in `gateway.embeddings_url`",
        _object("model input", model=_TEXT, input={"anyOf": [_TEXT, _LIST]}),
        {"model": "embedder", "input": "hello"},
        _object(),
        streams=False,
    ),
    "/models": {"get": _read("The one model that is served", _object("object data", object=_TEXT, data=_LIST))},
    "/models/{name}": {
        "get": _read("The same, by name", _ENTRY, {"name": "name", "in": "path", "required": True, "schema": _TEXT})
    },
    "/api/hello": _probe("get", "A probe that some clients send before they begin"),
    "/": _probe("head", "A probe of the base URL that some clients send before they begin"),
}
