"""Bodies of this door: JSON or msgpack, one item or a list under the name of its kind."""

from typing import Any, Final

import msgspec
from starlette.requests import Request

from stepwell.errors import InvalidRequest
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.transport import parse_json, read_body

_MSGPACK: Final = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


class Body:
    """A request's body, read; understanding it may take long, so `value` belongs into a thread."""

    def __init__(self, data: bytes, content_type: str) -> None:
        """`content_type`: as the header has it; what is not msgpack counts as JSON."""
        self._data = data
        self._packed = content_type.partition(";")[0].strip().lower() in _MSGPACK

    @classmethod
    async def read(cls, request: Request, config: GatewayConfig) -> "Body":
        """Raises as `transport.read_body`."""
        data = await read_body(request, config.max_body_bytes, config.body_seconds)
        return cls(data, request.headers.get("content-type", ""))

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self._data)

    @property
    def empty(self) -> bool:
        """Whether nothing was sent."""
        return not self._data

    def value(self) -> object:
        """What it says; NaN and infinity are let through, to be refused item by item.

        Raises:
            InvalidRequest: it is not what its content type says.
        """
        if not self._packed:
            return parse_json(self._data, allow_nan=True)
        try:
            return msgspec.msgpack.decode(self._data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid msgpack: {error}") from error

    def items(self, kind: str) -> list[object]:
        """The items of `{kind: [...]}`, else the one that the body is.

        Raises:
            InvalidRequest: something stands beside the list, where it would be lost; or as `value`.
        """
        value = self.value()
        if not isinstance(value, dict) or kind not in value:
            return [value]
        beside = sorted(map(str, value.keys() - {kind}))
        if beside:
            raise InvalidRequest(f"{beside[0]!r} stands beside {kind!r}; it belongs into each item", param=beside[0])
        items = value[kind]
        if not isinstance(items, list):
            raise InvalidRequest(f"{kind} must be a list", param=kind)
        return items


def described(model: str, kind: str = "", *, required: bool = True) -> dict[str, Any]:
    """The request body of a route for the OpenAPI document: one `model`, or a list of them under `kind`."""
    item = {"$ref": f"#/components/schemas/{model}"}
    many = {
        "type": "object",
        "properties": {kind: {"type": "array", "items": item}},
        "required": [kind],
        "additionalProperties": False,
    }
    schema = {"anyOf": [item, many]} if kind else item
    content = {content_type: {"schema": schema} for content_type in ("application/json", "application/msgpack")}
    return {"requestBody": {"required": required, "content": content}}
